"""DIN against its equations in a slow loop over torch's own embeddings, forward and backward, in both kinds of
gradients; and planted data where an element counts for its like alone."""

import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from gigabatch.models.click.din import DIN, Dice
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.shelf import ModelSpec, model_class
from tests.models.shelf_helpers import BINARY, by_hand, mlp_by_hand, normed_by_hand, stir


class Lists(NamedTuple):
    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None


# Beside the item (column 1) a history, one with weights through it, a list of its own, and one beside the user.
INPUTS = ModelInputs(
    (5, 7),
    2,
    2,
    lists=(ListInputs(7, shares=1), ListInputs(7, shares=2, weighted=True), ListInputs(6), ListInputs(5, shares=0)),
)
IDS = torch.tensor([[1, 6], [4, 0], [2, 3], [0, 6]], dtype=torch.int32)
FLOATS = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.0], [1.0, 0.0]])
LISTS = (
    Lists(torch.tensor([6, 1, 6, 3, 3], dtype=torch.int32), torch.tensor([0, 3, 3, 5, 5])),
    Lists(torch.tensor([2, 5, 6], dtype=torch.int32), torch.tensor([0, 1, 1, 1, 3]), torch.tensor([2.0, -1.0, 0.5])),
    Lists(torch.tensor([0, 4], dtype=torch.int32), torch.tensor([0, 0, 1, 1, 2])),
    Lists(torch.tensor([4, 4], dtype=torch.int32), torch.tensor([0, 0, 0, 1, 2])),
)
SMALL = {"embedding_dim": 3, "attention_layers": (6, 5), "layers": (8,)}
ACTIVATIONS = ("silu", "dice", "prelu", "sigmoid", "relu")


def made(seed: int = 1, inputs: ModelInputs = INPUTS, **settings: object) -> DIN:
    torch.manual_seed(seed)
    model = ModelSpec("din", inputs, model_class("din").Settings(**(SMALL | settings))).build()
    stir(model)
    return model.eval()


def activated(module: nn.Module, x: np.ndarray) -> np.ndarray:
    sigmoid = 1 / (1 + np.exp(-x))
    match type(module).__name__:
        case "SiLU":
            return x * sigmoid
        case "Sigmoid":
            return sigmoid
        case "PReLU":
            return np.where(x > 0, x, by_hand(module.weight) * x)
        case "ReLU":
            return np.maximum(x, 0)
    share = 1 / (1 + np.exp(-normed_by_hand(module.norm, x)))
    return share * x + (1 - share) * by_hand(module.alpha) * x


def outputs_by_hand(model: DIN) -> np.ndarray:
    """[B, O] float64, list by list and element by element."""
    tables, found = [by_hand(table) for table in model.tables.weights], []
    softmax = model.settings.attention_norm == "softmax"
    for row in range(len(IDS)):
        parts = [tables[column][IDS[row, column]] for column in range(2)]
        for unit, place, column in zip(model.units, (0, 1, 3), (1, 1, 0), strict=True):
            item, value = LISTS[place], tables[column][IDS[row, column]]
            places = range(int(item.offsets[row]), int(item.offsets[row + 1]))
            vectors = [tables[column][item.ids[t]] for t in places]
            logits = []
            for h in vectors:
                x = np.concatenate([h, value, h - value, h * value])
                for layer, activation in zip(unit.hidden, unit.activations, strict=True):
                    x = activated(activation, by_hand(layer.weight) @ x + by_hand(layer.bias))
                logits.append(float(by_hand(unit.output.weight)[0] @ x + by_hand(unit.output.bias)[0]))
            shares = np.exp(logits) / np.exp(logits).sum() if softmax else logits
            total = np.zeros(3)
            for t, share, h in zip(places, shares, vectors, strict=True):
                total += share * h * (1.0 if item.weights is None else float(item.weights[t]))
            parts.append(total)
        own = [tables[2][key] for key in LISTS[2].ids[LISTS[2].offsets[row] : LISTS[2].offsets[row + 1]]]
        parts.append(np.mean(own, axis=0) if own else np.zeros(3))
        parts.append(normed_by_hand(model.float_norm, by_hand(FLOATS[row])))
        found.append(mlp_by_hand(model.network, np.concatenate(parts)[None])[0])
    return np.stack(found)


@pytest.mark.parametrize("norm", ["none", "softmax"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_outputs_are_those_of_the_equations(activation, norm):
    model = made(attention_activation=activation, attention_norm=norm)
    for module in model.modules():
        if isinstance(module, Dice):
            module.norm.running_mean.normal_()
            module.norm.running_var.uniform_(0.5, 2)
    found = model(IDS, FLOATS, LISTS)
    assert found.shape == (4, 2)
    np.testing.assert_allclose(found.numpy(), outputs_by_hand(model), rtol=1e-4, atol=1e-5)


class Plain(nn.Module):
    """The same network by `nn.Embedding`, concatenation and a loop over rows."""

    def __init__(self, model: DIN) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(table.detach().clone(), freeze=False) for table in model.tables.weights
        )

    def forward(self) -> torch.Tensor:
        rows = []
        for row in range(len(IDS)):
            values = [self.tables[column](IDS[row, column].long()) for column in range(2)]
            parts = list(values)
            for unit, place, column in zip(self.model.units, (0, 1, 3), (1, 1, 0), strict=True):
                item, total = LISTS[place], torch.zeros(3)
                for t in range(int(item.offsets[row]), int(item.offsets[row + 1])):
                    h, q = self.tables[column](item.ids[t].long()), values[column]
                    x = torch.cat([h, q, h - q, h * q])[None]
                    for layer, activation in zip(unit.hidden, unit.activations, strict=True):
                        x = activation(layer(x))
                    weight = 1.0 if item.weights is None else item.weights[t]
                    total = total + unit.output(x)[0] * weight * h
                parts.append(total)
            own = LISTS[2].ids[LISTS[2].offsets[row] : LISTS[2].offsets[row + 1]].long()
            parts.append(self.tables[2](own).mean(0) if len(own) else torch.zeros(3))
            rows.append(torch.cat(parts))
        return self.model.network(torch.cat([torch.stack(rows), self.model.float_norm(FLOATS)], dim=1))


def test_gradients_of_tables_and_networks_are_those_of_a_loop_in_both_kinds():
    """Rows 3 and 6 of the item's table are a query, an element of two lists and its own column's at once."""
    model = made(attention_activation="prelu", numeric="plain")
    plain = Plain(model)
    wanted = plain()
    wanted.square().sum().backward()
    for kind in ("dense", "rows"):
        own = copy.deepcopy(model)
        own.tables.gradients = kind
        before = [table.detach().clone() for table in own.tables.weights]
        moving = RowOptimizer([own.tables], lr=1.0, method="sgd") if kind == "rows" else None
        outputs = own(IDS, FLOATS, LISTS)
        torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-5)
        outputs.square().sum().backward()
        if moving is None:
            found = [table.grad for table in own.tables.weights]
        else:
            moving.step()
            found = [old - table.detach() for old, table in zip(before, own.tables.weights, strict=True)]
        for one, other in zip(found, plain.tables, strict=True):
            torch.testing.assert_close(one, other.weight.grad, rtol=1e-3, atol=1e-4)
        others = dict(plain.model.named_parameters())
        for name, parameter in own.named_parameters():
            if not name.startswith("tables"):
                torch.testing.assert_close(parameter.grad, others[name].grad, rtol=1e-3, atol=1e-4)
                assert bool(parameter.grad.any()), name


@pytest.mark.parametrize("norm", ["none", "softmax"])
@torch.no_grad()
def test_a_row_scores_alone_as_among_others_and_by_its_own_list(norm):
    model = made(attention_norm=norm)
    whole = model(IDS, FLOATS, LISTS)
    for row in range(len(IDS)):
        own = []
        for item in LISTS:
            first, last = int(item.offsets[row]), int(item.offsets[row + 1])
            weights = None if item.weights is None else item.weights[first:last]
            own.append(Lists(item.ids[first:last], torch.tensor([0, last - first]), weights))
        alone = model(IDS[row : row + 1], FLOATS[row : row + 1], own)
        torch.testing.assert_close(alone[0], whole[row], rtol=SCORE_RTOL, atol=SCORE_ATOL)


@torch.no_grad()
def test_attention_says_what_each_element_weighs():
    model = made(attention_norm="softmax").train()
    first, second, third = model.attention(IDS, FLOATS, LISTS)
    assert model.training
    assert first.shape == (5,)
    torch.testing.assert_close(torch.stack([first[:3].sum(), first[3:].sum()]), torch.ones(2))
    torch.testing.assert_close(first[0], first[2])  # the same item twice
    torch.testing.assert_close(second[0], torch.tensor(2.0))  # alone in its list, with its weight
    torch.testing.assert_close(third, torch.ones(2))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_batch_without_elements_and_one_with_a_single_one_are_learnt(activation):
    empty = Lists(torch.zeros(0, dtype=torch.int32), torch.zeros(5, dtype=torch.int64))
    single = Lists(torch.tensor([3], dtype=torch.int32), torch.tensor([0, 0, 1, 1, 1]))
    inputs = replace(INPUTS, lists=INPUTS.lists[:1])
    for norm in ("none", "softmax"):
        model = made(inputs=inputs, attention_activation=activation, attention_norm=norm).train()
        for lists in (empty, single):
            model(IDS, FLOATS, (lists,)).square().sum().backward()
            assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
        assert bool(model.eval()(IDS, FLOATS, (empty,)).isfinite().all())


def test_a_click_that_depends_on_the_likes_of_the_item_in_the_history_is_learnt():
    """Items of eight groups; a row is a click where its history holds the item's group."""
    draw = torch.Generator().manual_seed(0)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor, tuple[Lists], torch.Tensor]:
        items = torch.randint(3, 43, (count, 1), generator=draw, dtype=torch.int32)
        lengths = torch.randint(0, 8, (count,), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        elements = torch.randint(3, 43, (int(offsets[-1]),), generator=draw, dtype=torch.int32)
        owner = torch.repeat_interleave(torch.arange(count), lengths)
        like = (elements % 8 == items[owner, 0] % 8).float()
        label = (torch.zeros(count).index_add(0, owner, like) > 0).float()
        return items, torch.zeros(count, 0), (Lists(elements, offsets),), label

    inputs = ModelInputs((43,), 0, lists=(ListInputs(43, shares=0),))
    model = made(inputs=inputs, embedding_dim=8, attention_layers=(16,), layers=(16,))
    torch.manual_seed(0)
    moving = torch.optim.Adam(model.train().parameters(), lr=0.02)
    for _ in range(150):
        ids, floats, lists, label = rows(512)
        loss = BINARY(model(ids, floats, lists), (label,), None)
        moving.zero_grad()
        loss.backward()
        moving.step()
    ids, floats, lists, label = rows(2000)
    with torch.no_grad():
        right = ((model.eval()(ids, floats, lists)[:, 0] > 0) == (label == 1)).float().mean()
    assert float(right) > 0.95  # .67 are of one class


def test_a_schema_without_such_a_list_says_what_to_set():
    bare, other = ModelInputs((5, 7), 2), ModelInputs((5, 7), 2, lists=(ListInputs(6),))
    for inputs in (bare, other):
        with pytest.raises(ModelError, match=r"model din: .*Set features\.history .*or shares of a list"):
            ModelSpec("din", inputs, DIN.Settings()).build()
        with pytest.raises(ModelError, match="din: it attends to lists that share"):
            DIN(inputs, DIN.Settings())


def test_unknown_names_are_refused():
    with pytest.raises(ModelError, match=r"unknown attention_activation 'gelu'\. Known: silu, dice, prelu"):
        DIN.Settings(attention_activation="gelu")
    with pytest.raises(ModelError, match=r"unknown attention_norm 'max'\. Known: none, softmax"):
        DIN.Settings(attention_norm="max")
    with pytest.raises(ModelError, match="attention_layers is empty"):
        DIN.Settings(attention_layers=())
