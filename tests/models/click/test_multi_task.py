"""Multi-task heads: their equations in plain loops, what is shared and what is not, and tasks that conflict."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from tests.models.shelf_helpers import INPUTS, Rows, build, by_hand, mlp_by_hand, random_rows, stir, train

MMOE = {"structure": "mmoe", "embedding_dim": 3, "layers": (6, 4), "num_experts": 3, "tower_layers": (5,)}
BOTTOM = {"structure": "shared_bottom", "embedding_dim": 3, "layers": (6, 4), "tower_layers": (5,)}
TWO = TargetLoss([("binary", 1), ("binary", 1)])
BOTH = pytest.mark.parametrize("settings", [MMOE, BOTTOM], ids=["mmoe", "shared_bottom"])


def with_outputs(num_outputs: int) -> ModelInputs:
    return ModelInputs(INPUTS.num_ids, INPUTS.num_floats, num_outputs)


@BOTH
@torch.no_grad()
def test_outputs_are_those_of_the_equations(settings):
    model = build("multi_task", with_outputs(4), **settings, batch_norm=False)
    stir(model)
    rows = random_rows(INPUTS, 7)
    model.train()(rows.ids, rows.floats)
    found, shares = model.eval()(rows.ids, rows.floats), model.shares(rows.ids, rows.floats)
    x = by_hand(model.row(rows.ids, rows.floats))
    num_experts = settings.get("num_experts", 1)
    assert shares.shape == (7, 4, num_experts)
    for row in range(7):
        experts = [mlp_by_hand(expert, x[row]) for expert in model.experts]
        for task in range(4):
            alpha = np.ones(1)
            if model.gates is not None:
                gate = model.gates.weight.numpy()[task * num_experts : (task + 1) * num_experts]
                alpha = np.exp(gate @ x[row]) / np.exp(gate @ x[row]).sum()
            mixed = sum(share * expert for share, expert in zip(alpha, experts, strict=True))
            expected = mlp_by_hand(model.towers[task], mixed)[0]
            assert found[row, task].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
            np.testing.assert_allclose(shares[row, task].numpy(), alpha, atol=1e-5)


@BOTH
def test_a_task_moves_its_own_tower_and_gate_and_what_is_shared(settings):
    """The gradient of the second output alone."""
    model = build("multi_task", with_outputs(3), **settings).train()
    stir(model)
    rows = random_rows(INPUTS)
    model(rows.ids, rows.floats)[:, 1].square().mean().backward()
    moved = {
        name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }
    towers = {name.split(".")[1] for name in moved if name.startswith("towers")}
    assert towers == {"1"}
    experts = {name.split(".")[1] for name in moved if name.startswith("experts")}
    assert experts == {str(number) for number in range(settings.get("num_experts", 1))}
    if model.gates is not None:
        rows_moved = model.gates.weight.grad.abs().sum(dim=1) > 0
        assert rows_moved.tolist() == [False] * 3 + [True] * 3 + [False] * 3


def test_targets_of_several_kinds_are_trained_together():
    """A binary target, three classes and a value: outputs in the order of the targets."""
    inputs = with_outputs(5)
    loss = TargetLoss([("binary", 1), ("multiclass", 3), ("regression", 1)])
    rows = random_rows(inputs, 256)
    first, third = rows.ids[:, 0], rows.ids[:, 2]
    targets = ((first > 2).float(), third.clamp(max=2), 2.0 * rows.floats[:, 1])
    planted = Rows(rows.ids, rows.floats, targets)
    model = build("multi_task", inputs, **MMOE)
    train(model, planted, steps=250, loss=loss, lr=0.02)
    with torch.no_grad():
        click, classes, value = loss.predict(model.eval()(rows.ids, rows.floats))
    assert ((click > 0.5).float() == targets[0]).float().mean() > 0.95
    assert (classes.argmax(dim=1) == targets[1]).float().mean() > 0.95
    assert np.corrcoef(value, targets[2])[0, 1] > 0.95


SEGMENTS = 12


def conflicting(num_rows: int, seed: int) -> tuple[ModelInputs, Rows]:
    """Two labels. In each segment of an id column either depends on the floats in a direction of the segment's, and
    the second label has the direction that the first has in the next segment."""
    inputs = ModelInputs((SEGMENTS,), 12, 2)
    directions = torch.randn(SEGMENTS, 12, generator=torch.Generator().manual_seed(7)) / 12**0.5
    rows = random_rows(inputs, num_rows, seed)
    segment = rows.ids[:, 0].long()
    draw = torch.Generator().manual_seed(seed + 99)
    labels = []
    for shift in (0, 1):
        logit = 6 * (rows.floats * directions[(segment + shift) % SEGMENTS]).sum(dim=1)
        labels.append((torch.rand(num_rows, generator=draw) < torch.sigmoid(logit)).float())
    return inputs, Rows(rows.ids, rows.floats, tuple(labels))


@torch.no_grad()
def mean_auc(model: Model, rows: Rows) -> float:
    outputs = model.eval()(rows.ids, rows.floats)
    return float(np.mean([roc_auc_score(rows.targets[task], outputs[:, task]) for task in range(2)]))


def test_experts_serve_two_tasks_that_conflict_better_than_a_shared_bottom_of_the_same_size():
    inputs, rows = conflicting(12_000, 0)
    _, held_out = conflicting(6000, 1)
    plain = {"embedding_dim": 4, "tower_layers": (), "batch_norm": False}
    mmoe = build("multi_task", inputs, structure="mmoe", layers=(4,), num_experts=SEGMENTS, **plain)
    bottom = build("multi_task", inputs, structure="shared_bottom", layers=(64,), **plain)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (mmoe, bottom)]
    assert sizes[0] <= sizes[1]
    for model in (mmoe, bottom):
        train(model, rows, steps=300, loss=TWO, lr=0.02, weight_decay=0.0)
    assert mean_auc(mmoe, held_out) > mean_auc(bottom, held_out) + 0.012
    # Each task takes different experts for a segment, and the same expert serves both tasks in different segments.
    shares = mmoe.shares(held_out.ids, held_out.floats)
    assert (shares[:, 0].argmax(dim=1) != shares[:, 1].argmax(dim=1)).float().mean() > 0.5
