"""Progressive layered extraction: its equations in plain loops, and experts that only their own task moves."""

import numpy as np
import pytest
import torch

from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import INPUTS, build, by_hand, mlp_by_hand, random_rows, stir

SHAPE = {"embedding_dim": 3, "layers": (6, 4), "num_experts": 2, "num_shared": 3, "tower_layers": (5,)}
TASKS = 3


def made(**settings):
    model = build("ple", ModelInputs(INPUTS.num_ids, INPUTS.num_floats, TASKS), **SHAPE | settings)
    stir(model)
    return model


def mixed(gate, row, experts):
    """sum_i softmax(W row)_i experts_i"""
    scores = [sum(weight * value for weight, value in zip(line, row, strict=True)) for line in by_hand(gate.weight)]
    shares = np.exp(scores) / np.exp(scores).sum()
    return sum(share * expert for share, expert in zip(shares, experts, strict=True))


@torch.no_grad()
def test_outputs_are_those_of_the_equations():
    model, rows = made(batch_norm=False).eval(), random_rows(INPUTS, 5)
    found, x = model(rows.ids, rows.floats), by_hand(model.row(rows.ids, rows.floats))
    for row in range(5):
        tasks, shared = [x[row]] * TASKS, x[row]
        for layer in model.extraction:
            own = [
                [mlp_by_hand(expert, task) for expert in experts]
                for experts, task in zip(layer.experts, [*tasks, shared], strict=True)
            ]
            tasks = [mixed(layer.gates[k], tasks[k], own[k] + own[-1]) for k in range(TASKS)]
            if len(layer.gates) > TASKS:
                shared = mixed(layer.gates[TASKS], shared, [expert for experts in own for expert in experts])
        for task in range(TASKS):
            expected = mlp_by_hand(model.towers[task], tasks[task])[0]
            assert found[row, task].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert [len(layer.gates) for layer in model.extraction] == [TASKS + 1, TASKS]


def test_a_task_moves_no_expert_of_another_in_the_last_layer():
    """In those before it the shared experts learn from all, and the shared row is of all."""
    model, rows = made(), random_rows(INPUTS)
    model.train()(rows.ids, rows.floats)[:, 1].square().mean().backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    last = {name.split(".")[3] for name in moved if name.startswith("extraction.1.experts")}
    first = {name.split(".")[3] for name in moved if name.startswith("extraction.0.experts")}
    assert (first, last) == ({"0", "1", "2", "3"}, {"1", "3"})
    assert {name.split(".")[1] for name in moved if name.startswith("towers")} == {"1"}
    assert {name.split(".")[3] for name in moved if name.startswith("extraction.1.gates")} == {"1"}
