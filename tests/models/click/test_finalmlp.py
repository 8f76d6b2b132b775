"""FinalMLP: its equations in plain loops, its gates, and products that a perceptron of its size gets less well."""

import numpy as np
import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from tests.models.shelf_helpers import (
    INPUTS,
    NO_FLOATS,
    Rows,
    build,
    by_hand,
    mlp_by_hand,
    normed_by_hand,
    random_rows,
    stir,
    stirred,
    train,
)

SMALL = {
    "embedding_dim": 3, "first_layers": (6, 4), "second_layers": (8,), "num_heads": 2, "gate_layers": (12,),
    "first_dropout": 0.0, "second_dropout": 0.0,
}  # fmt: skip


def flat_fields(fields: torch.nn.Module, rows: Rows, ids: tuple, floats: tuple) -> np.ndarray:
    """The vectors of these columns, one after the other: [B, columns x d]."""
    found = [by_hand(table)[rows.ids[:, place]] for table, place in zip(fields.tables.tables, ids, strict=True)]
    if floats:
        scaled = normed_by_hand(fields.float_norm, by_hand(rows.floats[:, list(floats)]))
        found += [scaled[:, [f]] * vector for f, vector in enumerate(by_hand(fields.float_vectors))]
    return np.concatenate(found, axis=1)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


@torch.no_grad()
def test_outputs_are_those_of_the_equations_row_by_row_and_head_by_head():
    inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 2, INPUTS.user, INPUTS.item)
    model, rows = stirred("finalmlp", inputs, **SMALL), random_rows(inputs, 9)
    found = model(rows.ids, rows.floats).numpy()
    fusion = model.fusion
    # of each gate the fields of its entity, whose columns INPUTS names
    users = mlp_by_hand(model.first_selection.gate, flat_fields(model.first_selection.fields, rows, (0,), (0,)))
    items = mlp_by_hand(model.second_selection.gate, flat_fields(model.second_selection.fields, rows, (1,), ()))
    vectors = flat_fields(model.fields, rows, (0, 1, 2), (0, 1))
    first, second = (mlp_by_hand(network, vectors * 2 * sigmoid(gate)) for network, gate in (
        (model.first, users), (model.second, items)
    ))  # fmt: skip
    x_size, y_size, heads = 4 // 2, 8 // 2, 2
    for number in range(9):
        x, y = first[number], second[number]
        for output in range(2):
            expected = fusion.x_linear.bias.numpy()[output] + fusion.x_linear.weight.numpy()[output] @ x
            expected += fusion.y_linear.weight.numpy()[output] @ y
            for head in range(heads):
                for i in range(x_size):
                    for j in range(y_size):
                        weight = fusion.products.numpy()[head, i, output * y_size + j]
                        expected += x[head * x_size + i] * weight * y[head * y_size + j]
            assert found[number, output] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@torch.no_grad()
def test_a_gate_of_zeros_selects_nothing_and_a_learned_one_is_the_same_for_every_row():
    gated, plain = (build("finalmlp", **(SMALL | gates)) for gates in (
        {"first_gate": "learned", "second_gate": "learned"}, {"first_gate": "none", "second_gate": "none"}
    ))  # fmt: skip
    stir(gated)
    plain.load_state_dict({name: gated.state_dict()[name] for name in plain.state_dict()})
    rows = random_rows(INPUTS)
    with_gates = gated.eval()(rows.ids, rows.floats)
    assert gated.first_selection(rows.ids, rows.floats).shape == (5 * 3,)
    for selection in (gated.first_selection, gated.second_selection):
        last = selection.gate[-1]
        last.weight.zero_()
        last.bias.zero_()
    without = plain.eval()(rows.ids, rows.floats)
    torch.testing.assert_close(gated(rows.ids, rows.floats), without)  # 2 sigmoid(0) is 1
    assert (with_gates - without).abs().max() > 0.01


@torch.no_grad()
def test_each_gate_sees_the_columns_of_its_entity_and_no_others():
    model = build("finalmlp", **(SMALL | {"first_gate": "context"}))
    stir(model)
    rows = random_rows(INPUTS, 1)
    columns = {("ids", 0): "user", ("ids", 1): "item", ("ids", 2): "context", ("floats", 0): "user",
               ("floats", 1): "context"}  # fmt: skip
    for (kind, place), entity in columns.items():
        moved = Rows(rows.ids.clone(), rows.floats.clone())
        values = getattr(moved, kind)
        values[0, place] = (values[0, place] + 1) % INPUTS.num_ids[place] if kind == "ids" else values[0, place] + 1
        for selection, sees in ((model.first_selection, "context"), (model.second_selection, "item")):
            before, after = selection.eval()(rows.ids, rows.floats), selection(moved.ids, moved.floats)
            assert torch.equal(before, after) == (entity != sees)


def test_auto_gates_are_learned_ones_where_no_entity_is_named():
    model = build("finalmlp", NO_FLOATS, **SMALL)
    assert model.first_selection.fields is None
    assert model.second_selection.fields is None


def products(num_rows: int, seed: int) -> tuple[ModelInputs, Rows]:
    """y = the sum of two products, each of a projection of the first eight floats and one of the last eight."""
    inputs = ModelInputs((), 16)
    fixed = torch.Generator().manual_seed(7)
    left, right = (torch.randn(2, 8, generator=fixed) / 8**0.5 for _ in range(2))
    rows = random_rows(inputs, num_rows, seed)
    value = ((rows.floats[:, :8] @ left.t()) * (rows.floats[:, 8:] @ right.t())).sum(dim=1)
    return inputs, Rows(rows.ids, rows.floats, (value,))


@torch.no_grad()
def unexplained(model: Model, rows: Rows) -> float:
    """Share of the target's variance that the model leaves."""
    errors = model.eval()(rows.ids, rows.floats)[:, 0] - rows.targets[0]
    return float(errors.square().mean() / rows.targets[0].var())


def test_products_of_two_streams_are_learnt_better_than_by_one_perceptron_of_as_many_parameters():
    inputs, rows = products(20_000, 0)
    _, held_out = products(4000, 1)
    loss = TargetLoss([("regression", 1)])
    ours = build("finalmlp", inputs, embedding_dim=1, first_layers=(8,), second_layers=(8,), num_heads=1,
                 first_gate="none", second_gate="none", first_dropout=0.0, second_dropout=0.0,
                 batch_norm=False)  # fmt: skip
    peer = build("tabular", inputs, layers=(20,), batch_norm=False)
    left = []
    for model in (ours, peer):
        train(model, rows, steps=400, loss=loss, lr=0.02, weight_decay=0.0)
        train(model, rows, steps=150, loss=loss, lr=0.004, weight_decay=0.0)
        left.append(unexplained(model, held_out))
    size, peer_size = (sum(parameter.numel() for parameter in model.parameters()) for model in (ours, peer))
    assert size < peer_size
    assert left[0] < 0.6 * left[1], left
    assert left[0] < 0.01


def test_a_gate_without_columns_is_refused():
    with pytest.raises(ModelError, match="a gate looks at the columns of user, but the inputs name none"):
        build("finalmlp", NO_FLOATS, **(SMALL | {"first_gate": "user"}))
    whole = ModelInputs((3, 3), 0, 1, EntityColumns(0, (0,)), EntityColumns(1, (1,)))
    with pytest.raises(ModelError, match="columns of context"):
        build("finalmlp", whole, **(SMALL | {"second_gate": "context"}))
