"""List columns in the models of the shelf: against tables trained densely by torch, in both kinds of gradients."""

import json
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.model import require_fit
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.shelf import MODELS, ModelSpec, model_class

# sasrec looks at a single list and has no table of another (recommenders/test_sasrec.py).
TAKING = [name for name in MODELS if model_class(name).takes_lists and name != "sasrec"]


class Lists(NamedTuple):
    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None


LISTS = (
    Lists(torch.tensor([1, 1, 3, 6], dtype=torch.int32), torch.tensor([0, 2, 2, 4, 4])),
    Lists(torch.tensor([0, 4], dtype=torch.int32), torch.tensor([0, 0, 1, 1, 2]), torch.tensor([2.0, -1.0])),
)
INPUTS = ModelInputs((5, 7), 2, 2, lists=(ListInputs(7, shares=1), ListInputs(6, weighted=True)))
IDS, FLOATS = torch.tensor([[1, 6], [4, 0], [2, 3], [0, 1]], dtype=torch.int32), torch.randn(4, 2)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_table_shared_with_an_id_column_moves_as_one_of_torchs_does(pooling):
    """Rows 1, 3 and 6 occur in both: a step by each source alone would be another with momentum or AdaGrad."""
    torch.manual_seed(1)
    tables = EmbeddingTables((5, 7), (3, 4, 2), lists=INPUTS.lists, pooling=pooling)
    plain = [nn.Parameter(table.detach().clone()) for table in tables.weights]
    rows = RowOptimizer([tables], lr=0.1, method="adagrad", second_moment="full", eps=1e-10)
    dense = torch.optim.Adagrad(plain, lr=0.1, eps=1e-10)
    direction = torch.randn(4, 13)
    for _ in range(3):
        first, second = LISTS
        weights = second.weights / second.weights.abs() if pooling == "mean" else second.weights
        wanted = torch.cat(
            [
                *(functional.embedding(IDS[:, place].long(), plain[place]) for place in range(2)),
                functional.embedding_bag(
                    first.ids.long(), plain[1], first.offsets, mode=pooling, include_last_offset=True
                ),
                functional.embedding_bag(
                    second.ids.long(), plain[2], second.offsets, mode="sum", per_sample_weights=weights,
                    include_last_offset=True,
                ),
            ],
            dim=1,
        )  # fmt: skip
        found = tables(IDS, LISTS)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        for outputs, optimizer in ((found, rows), (wanted, dense)):
            optimizer.zero_grad()
            (outputs * direction).square().sum().backward()
            optimizer.step()
    for one, other in zip(tables.weights, plain, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TAKING)
def test_both_kinds_of_gradients_give_the_same_outputs_and_dense_gradients(name):
    torch.manual_seed(2)
    model = ModelSpec(name, INPUTS, model_class(name).Settings()).build().eval()
    modules = [module for module in model.modules() if isinstance(module, EmbeddingTables)]
    for module in modules:
        for table in module.weights:
            nn.init.normal_(table)
    dense = model(IDS, FLOATS, LISTS)
    dense.square().sum().backward()
    grads = {table: table.grad.clone() for module in modules for table in module.weights}
    assert any(float(grads[module.weights[2]].abs().sum()) > 0 for module in modules)
    model.zero_grad()
    for module in modules:
        module.gradients = "rows"
    outputs = model(IDS, FLOATS, LISTS)
    torch.testing.assert_close(outputs, dense, rtol=1e-5, atol=1e-5)
    before = {table: table.detach().clone() for table in grads}
    optimizer = RowOptimizer(modules, lr=1.0, method="sgd")
    model(IDS, FLOATS, LISTS).square().sum().backward()
    optimizer.step()
    for table, gradient in grads.items():
        torch.testing.assert_close(before[table] - table.detach(), gradient, rtol=1e-3, atol=1e-4)
    with torch.inference_mode():
        others = (Lists(LISTS[0].ids + 0, torch.tensor([0, 0, 2, 3, 4])), LISTS[1])
        assert not torch.equal(model(IDS, FLOATS, others), model(IDS, FLOATS, LISTS))


def test_the_folded_pass_and_the_plain_one_of_tabular_learn_the_same():
    grown = []
    for folded in (True, False):
        torch.manual_seed(3)
        model = ModelSpec("tabular", INPUTS, model_class("tabular").Settings(layers=(8,))).build()
        model.folded = folded
        optimizer = RowOptimizer([model.embeddings], lr=0.5, method="sgd")
        assert model.folding_obstacle() is None
        model(IDS, FLOATS, LISTS).square().sum().backward()
        optimizer.step()
        grown.append([table.detach().clone() for table in model.embeddings.weights])
    for one, other in zip(*grown, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_other_models_say_that_they_take_no_lists():
    for name in sorted(name for name in set(MODELS) - set(TAKING) if not model_class(name).entities):
        with pytest.raises(ModelError, match="no use for list columns"):
            require_fit(model_class(name), name, INPUTS)


def test_inputs_go_to_json_and_back_and_stay_as_they_were_without_lists():
    assert ModelInputs.from_dict(INPUTS.to_dict()) == INPUTS
    assert "lists" not in ModelInputs((5,), 1).to_dict()
    with pytest.raises(ModelError, match="shares the vocabulary"):
        ModelInputs((5,), 1, lists=(ListInputs(7, shares=0),))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ((), "2 list columns, found 0"),
        ((LISTS[0], Lists(*LISTS[1][:2])), "a weight for each id"),
        ((Lists(LISTS[0].ids, torch.tensor([0, 3, 2, 4, 4])), LISTS[1]), "must ascend"),
        ((Lists(LISTS[0].ids, torch.tensor([0, 3, 4])), LISTS[1]), "5 offsets"),
    ],
)
def test_lists_that_do_not_fit_are_refused(lists, message):
    model = ModelSpec("dcn", INPUTS, model_class("dcn").Settings()).build()
    with pytest.raises(ModelError, match=message):
        model(IDS, FLOATS, lists)


def test_lists_of_neither_user_nor_item_are_context():
    lists = (ListInputs(7, shares=1), ListInputs(4), ListInputs(3))
    user, item = EntityColumns(0, (0,)), EntityColumns(1, (1,), lists=(1,))
    inputs = ModelInputs((5, 7), 0, user=user, item=item, lists=lists)
    assert inputs.context_lists == (0, 2)
    saved = json.loads(json.dumps(inputs.to_dict(), allow_nan=False))
    assert ModelInputs.from_dict(saved) == inputs
    assert "lists" not in saved["user"]
    with pytest.raises(ModelError, match="lies outside 2 ids, 0 floats and 1 lists"):
        ModelInputs((5, 7), 0, item=EntityColumns(1, (1,), lists=(1,)), lists=lists[:1])
