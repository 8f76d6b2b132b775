"""The shelf's shared parts against formulas written out, and the checks of settings."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.fields import (
    FieldEmbeddings,
    InputRow,
    LinearTerms,
    OutputLinear,
    lists_to_tuples,
    mlp,
    positive,
    probability,
)
from tests.models.shelf_helpers import NO_IDS, random_rows


def test_linear_terms_stay_float32_under_autocast():
    linear, rows = LinearTerms(NO_IDS), random_rows(NO_IDS)
    with torch.no_grad():
        linear.float_weights.normal_()
    linear.eval()
    with torch.autocast("cpu", torch.bfloat16):
        halved = linear(rows.ids, rows.floats)
    assert torch.equal(halved, linear(rows.ids, rows.floats))


def test_parts_can_leave_normalising_to_the_model():
    rows = random_rows(NO_IDS)
    row = InputRow(NO_IDS, 3, batch_norm=False)
    assert torch.equal(row.train()(rows.ids, rows.floats), rows.floats)
    for part in (row, FieldEmbeddings(NO_IDS, 3, batch_norm=False), LinearTerms(NO_IDS, batch_norm=False)):
        assert not [key for key in part.state_dict() if "norm" in key]


def test_mlp_orders_a_hidden_layer_as_linear_norm_relu_dropout_and_ends_linear():
    kinds = [type(part) for part in mlp(3, (4,), 1, dropout=0.1, batch_norm=True)]
    assert kinds == [nn.Linear, BatchNorm1d, nn.ReLU, Dropout, OutputLinear]
    assert [type(part) for part in mlp(3, (4,), None)] == [nn.Linear, nn.ReLU]
    assert mlp(3, (4,), 1, batch_norm=True)[0].bias is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("num_out", [1, 3])
def test_logits_are_not_rounded_to_bfloat16(num_out, training):
    torch.manual_seed(0)
    layer, rows = OutputLinear(7, num_out).train(training), torch.randn(64, 7)
    exact = functional.linear(rows.double(), layer.weight.double(), layer.bias.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(rows)
        assert nn.Linear(7, num_out)(rows).dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


nested = st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@given(nested)
def test_lists_become_tuples_at_every_depth_and_keep_their_contents(value):
    @dataclass(frozen=True)
    class Settings:
        value: object

        def __post_init__(self):
            lists_to_tuples(self)

    def as_lists(entry):
        return [as_lists(inner) for inner in entry] if isinstance(entry, tuple) else entry

    made = Settings(value).value
    assert not isinstance(made, list)
    assert as_lists(made) == value
    assert isinstance(hash(made), int)  # a list anywhere inside has none


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_what_is_not_a_positive_integer_is_refused_by_name(value):
    positive("width", 1, 7)
    with pytest.raises(ModelError, match="width must be an integer from 1 up"):
        positive("width", 3, value)


@pytest.mark.parametrize("value", [1, 1.0, -0.1, float("nan"), "0.5", None, True])
def test_what_is_not_a_probability_under_1_is_refused(value):
    probability("dropout", 0)
    probability("dropout", 0.99)
    with pytest.raises(ModelError, match=r"dropout must be a probability in \[0, 1\)"):
        probability("dropout", value)
