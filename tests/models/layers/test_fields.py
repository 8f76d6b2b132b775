"""The shelf's shared parts against formulas written out, and the checks of settings."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
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
from tests.models.shelf_helpers import ALL_INPUTS, NO_IDS, by_hand, mlp_by_hand, normed_by_hand, random_rows


@ALL_INPUTS
def test_fields_are_table_rows_then_floats_times_their_vectors(inputs):
    fields, rows = FieldEmbeddings(inputs, 3), random_rows(inputs)
    fields.train()(rows.ids, 2 * rows.floats + 1)  # running statistics other than 0 and 1
    got = by_hand(fields.eval()(rows.ids, rows.floats))
    assert got.shape == (len(rows), len(inputs.num_ids) + inputs.num_floats, 3)

    normed = normed_by_hand(fields.float_norm, by_hand(rows.floats))
    for b in range(len(rows)):
        wanted = [by_hand(table)[rows.ids[b, column]] for column, table in enumerate(fields.tables.tables)]
        wanted += [normed[b, f] * by_hand(fields.float_vectors)[f] for f in range(inputs.num_floats)]
        np.testing.assert_allclose(got[b], wanted, rtol=1e-5, atol=1e-7)


@ALL_INPUTS
def test_an_input_row_is_table_rows_then_normed_floats(inputs):
    row, rows = InputRow(inputs, 3), random_rows(inputs)
    got = by_hand(row.train()(rows.ids, rows.floats))
    assert got.shape == (len(rows), row.width)
    floats = by_hand(rows.floats)
    wanted = [by_hand(table)[rows.ids[:, column]] for column, table in enumerate(row.tables.tables)]
    wanted.append((floats - floats.mean(0)) / np.sqrt(floats.var(0) + 1e-5))  # in training: the batch's statistics
    np.testing.assert_allclose(got, np.concatenate(wanted, axis=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_outputs", [1, 3])
@ALL_INPUTS
def test_linear_terms_add_one_weight_an_id_and_a_float(inputs, num_outputs):
    inputs = ModelInputs(inputs.num_ids, inputs.num_floats, num_outputs)
    linear, rows = LinearTerms(inputs), random_rows(inputs)
    assert not linear(rows.ids, rows.floats).any()  # they start at 0
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.normal_()
    got = by_hand(linear.eval()(rows.ids, rows.floats))
    normed = normed_by_hand(linear.float_norm, by_hand(rows.floats))
    for b in range(len(rows)):
        for output in range(num_outputs):
            wanted = by_hand(linear.bias)[output]
            for column, table in enumerate(linear.tables.tables):
                wanted += by_hand(table)[rows.ids[b, column], output]
            for f in range(inputs.num_floats):
                wanted += normed[b, f] * by_hand(linear.float_weights)[f, output]
            assert got[b, output] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


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


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("layers", [(), (4,), (6, 5)])
@pytest.mark.parametrize("num_out", [None, 2])
def test_mlp_against_layers_written_out(layers, num_out, batch_norm):
    torch.manual_seed(0)
    network = mlp(3, layers, num_out, dropout=0.5, batch_norm=batch_norm)
    x = torch.randn(40, 3)
    network.train()(x + 1)
    got = network.eval()(x)
    assert got.shape == (40, num_out or (layers[-1] if layers else 3))
    np.testing.assert_allclose(by_hand(got), mlp_by_hand(network, by_hand(x)), rtol=1e-4, atol=1e-6)


def test_mlp_orders_a_hidden_layer_as_linear_norm_relu_dropout_and_ends_linear():
    kinds = [type(part) for part in mlp(3, (4,), 1, dropout=0.1, batch_norm=True)]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout, OutputLinear]
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
