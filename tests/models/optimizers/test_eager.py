"""Optimizers of ours step, are saved and restored without torch's compiler, whose import takes seconds."""

import copy
import subprocess
import sys

import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.lamb import Lamb
from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer

STEPS = """
import sys
import torch
from torch import nn
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.registry import build_optimizer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = EmbeddingTables([5, 7], [4, 4])
        self.dense = nn.Linear(8, 1)

    def forward(self, ids):
        return self.dense(self.tables(ids).flatten(1))

def moved(state=None):
    torch.manual_seed(0)
    net = Net()
    optimizer = build_optimizer(net, "lamb", lr=0.1)
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.tensor([[1, 2], [3, 4]])).sum().backward()
        optimizer.step()
    return net, optimizer

net, optimizer = moved()
again, restored = moved(optimizer.state_dict())
print([len(group["params"]) for group in restored.param_groups], "torch._dynamo" in sys.modules)
"""


def test_the_compiler_is_not_loaded_to_step_save_and_restore():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"


def moved(kind, rows=5, width=4, steps=1):
    """An optimizer of that kind over a table, or over a weight of as many numbers, and what it moves."""
    torch.manual_seed(0)
    table = EmbeddingTables([rows], [width])
    weight = table.tables[0] if kind in ROWS else torch.nn.Parameter(torch.ones(rows, width))
    optimizer = KINDS[kind](table if kind in ROWS else weight)
    for _ in range(steps):
        (table(torch.tensor([[1], [2]])) if kind in ROWS else weight).sum().backward()
        optimizer.step()
    return optimizer, weight


KINDS = {
    "adam": lambda weight: torch.optim.Adam([weight], lr=0.5),
    "lamb": lambda weight: Lamb([weight], lr=0.5),
    "adagrad": lambda table: RowOptimizer([table], 0.5, method="adagrad"),
    "rows of adam": lambda table: RowOptimizer([table], 0.5, method="adam", second_moment="full", step="row"),
}
ROWS = ("adagrad", "rows of adam")
FOREIGN = [(one, other) for one in ("lamb", *ROWS) for other in KINDS if one != other and {one, other} != set(ROWS)]


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(("kind", "other"), FOREIGN)
def test_a_state_of_another_optimizer_or_model_is_refused(kind, other, steps):
    optimizer, _ = moved(kind)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ModelError, match="was saved by an optimizer of another kind"):
        optimizer.load_state_dict(moved(other, steps=steps)[0].state_dict())
    for rows, width in ((4, 4), (6, 4), *([] if kind == "adagrad" else [(5, 8)])):  # which keeps one number a row
        with pytest.raises(
            ModelError, match=r"of a parameter of shape \(5, 4\), expected .* another optimizer or model"
        ):
            optimizer.load_state_dict(moved(kind, rows, width)[0].state_dict())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(after["state"][0][name], value) for name, value in before["state"][0].items())


@pytest.mark.parametrize(("kind", "other"), [("adam", "lamb"), ("lamb", "adam"), ("adagrad", "lamb")])
def test_no_part_of_several_is_changed_where_one_of_them_is_of_another_kind(kind, other):
    first, one, two = moved("lamb", steps=2)[0], moved(kind)[0], moved(other)[0]
    optimizers = Optimizers(moved("lamb")[0], one)
    with pytest.raises(ModelError, match="another kind"):
        optimizers.load_state_dict(Optimizers(first, two).state_dict())
    assert optimizers.optimizers[0].state_dict()["state"][0]["num_steps"] == 1


def test_no_part_of_several_is_changed_where_the_last_one_is_of_another_size():
    optimizers = Optimizers(moved("adagrad")[0], moved("lamb")[0])
    before = copy.deepcopy(optimizers.state_dict())
    with pytest.raises(ModelError, match="another optimizer or model"):
        optimizers.load_state_dict(Optimizers(moved("adagrad", steps=2)[0], moved("lamb", rows=6)[0]).state_dict())
    two = Lamb([torch.nn.Parameter(torch.ones(2)) for _ in "ab"])
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizers.load_state_dict(Optimizers(moved("adagrad", steps=2)[0], two).state_dict())
    for part, old in zip(optimizers.optimizers, before["optimizers"], strict=True):
        assert part.state_dict()["param_groups"] == old["param_groups"]
        assert all(torch.equal(part.state_dict()["state"][0][name], value) for name, value in old["state"][0].items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 2])
def test_its_own_state_is_taken_also_by_copies_and_under_settings_of_a_schedule(kind, steps):
    optimizer, weight = moved(kind, steps=steps)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    again, other = moved(kind, steps=1)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["initial_lr"] == 0.5
    for name, value in optimizer.state.get(weight, {}).items():
        assert torch.equal(again.state[other][name], value)
    copy.deepcopy(again).load_state_dict(optimizer.state_dict())
