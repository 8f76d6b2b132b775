"""The mark of a step that is to be skipped holds for that step alone."""

import copy
import math

import pytest
import torch
from torch import nn

from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.lamb import Lamb
from gigabatch.models.optimizers.non_finite import mark_non_finite
from gigabatch.models.optimizers.registry import build_optimizer

IDS = torch.tensor([[0], [3]], dtype=torch.int32)
OPTIMIZERS = {
    "lamb": ("lamb", {}),
    "lamb of whole tables": ("lamb", {"rowwise": False}),
    "adamw": ("adamw", {}),
    "adamw by rows": ("adamw", {"rowwise": True}),
    "cowclip": ("cowclip", {}),
}


def make(case):
    torch.manual_seed(0)
    model = nn.Sequential(EmbeddingTables([5], [3]), nn.Linear(3, 1))
    name, settings = OPTIMIZERS[case]
    return model, build_optimizer(model, name, lr=0.1, **settings)


def step(model, optimizer, factor: float = 1.0, marked: bool = False):
    optimizer.zero_grad()
    loss = factor * model(IDS).square().sum()
    loss.backward()
    if marked:
        mark_non_finite(optimizer, loss)
    optimizer.step()


def has_moved(model, before) -> dict[str, bool]:
    return {name: not torch.equal(value, before[name]) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_step_after_a_skipped_one_moves_the_weights_again(case):
    """The mark stayed, and every later step that nobody marked did nothing."""
    model, optimizer = make(case)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer, math.nan, marked=True)
    assert not any(has_moved(model, before).values())
    step(model, optimizer)
    assert all(has_moved(model, before).values())


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_no_mark_is_left_after_a_step(case):
    model, optimizer = make(case)
    for _ in range(2):
        step(model, optimizer, marked=True)
        assert all(getattr(part, "found_inf", None) is None for part in getattr(optimizer, "optimizers", [optimizer]))


def test_lamb_looks_for_itself_again_after_a_marked_step():
    """A good step's mark stood for the next one too, whose NaN then reached every weight."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = Lamb(model.parameters(), lr=0.1)
    for factor, marked in ((1.0, True), (math.nan, False)):
        optimizer.zero_grad()
        loss = factor * model(torch.ones(2, 3)).square().sum()
        loss.backward()
        if marked:
            mark_non_finite(optimizer, loss)
        optimizer.step()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_copy_forgets_its_marks_too(case):
    model, optimizer = make(case)
    step(model, optimizer, marked=True)
    if "whole" in case or case == "adamw":  # the others' tables belong to the optimizer that was built for them
        model, optimizer = copy.deepcopy((model, optimizer))
    step(model, optimizer, math.nan, marked=True)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer)
    assert all(has_moved(model, before).values())
