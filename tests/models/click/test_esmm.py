"""The entire-space model: chances that multiply, learnt from all rows."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from tests.models.shelf_helpers import INPUTS, Rows, build, by_hand, mlp_by_hand, random_rows, stir, train

SHAPE = {"embedding_dim": 3, "layers": (6, 4)}


def with_outputs(num_outputs: int) -> ModelInputs:
    return ModelInputs(INPUTS.num_ids, INPUTS.num_floats, num_outputs)


@torch.no_grad()
def test_a_step_has_the_product_of_the_chances_up_to_it():
    model, rows = build("esmm", with_outputs(3), **SHAPE).eval(), random_rows(INPUTS, 6)
    stir(model)
    found, x = model(rows.ids, rows.floats), by_hand(model.row(rows.ids, rows.floats))
    for row in range(6):
        chance = 1.0
        for step in range(3):
            chance *= 1 / (1 + np.exp(-mlp_by_hand(model.towers[step], x[row])[0]))
            assert torch.sigmoid(found[row, step]).item() == pytest.approx(chance, rel=1e-4)


@torch.no_grad()
def test_the_loss_is_that_of_click_and_of_click_with_conversion_over_all_rows():
    """Equation 3 of the paper, by scikit-learn's log loss of the probabilities."""
    model, rows = build("esmm", with_outputs(2), **SHAPE).eval(), random_rows(INPUTS, 200)
    stir(model)
    click = rows.targets[0]
    bought = click * (rows.floats[:, 0] > 0)
    first, second = (1 / (1 + np.exp(-by_hand(part))) for part in model.steps(rows.ids, rows.floats).unbind(1))
    expected = log_loss(click, first) + log_loss(bought, first * second)
    loss = model.training_loss(Rows(rows.ids, rows.floats, (click, bought)), TargetLoss([("binary", 1)] * 2))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [0.0, 30.0, 300.0])
def test_chances_near_0_and_1_have_finite_logits_and_slopes(size, monkeypatch):
    model, rows = build("esmm", with_outputs(2), **SHAPE), random_rows(INPUTS, 4)
    steps = torch.tensor([[size, size], [-size, size], [size, -size], [-size, -size]], requires_grad=True)
    monkeypatch.setattr(model, "steps", lambda *_: steps)
    found = model(rows.ids, rows.floats)
    found.sum().backward()
    a, b = steps.detach().double().unbind(1)
    low = -torch.log(torch.exp(-a) + torch.exp(-b) + torch.exp(-a - b))
    torch.testing.assert_close(found[:, 1].double(), low, rtol=1e-5, atol=1e-5)
    assert steps.grad.isfinite().all()


def shown(num_rows: int, seed: int) -> tuple[Rows, torch.Tensor]:
    """Clicks by one float; purchases of the clicked by the same float the other way, so clicked rows are no sample of
    all. And the true chance of a purchase after a click."""
    rows = random_rows(with_outputs(2), num_rows, seed)
    draw = torch.Generator().manual_seed(seed)
    click, after = (torch.sigmoid(part) for part in (rows.floats[:, 0] - 1, -rows.floats[:, 0]))
    clicked = (torch.rand(num_rows, generator=draw) < click).float()
    bought = clicked * (torch.rand(num_rows, generator=draw) < after).float()
    return Rows(rows.ids, rows.floats, (clicked, bought)), after


def test_the_conversion_after_a_click_is_learnt_also_where_nobody_clicks():
    (rows, _), (others, after) = shown(20_000, 0), shown(4000, 1)
    model: Model = build("esmm", with_outputs(2), embedding_dim=3, layers=(16,))
    train(model, rows, steps=600, loss=TargetLoss([("binary", 1)] * 2), lr=0.02, weight_decay=0.0)
    with torch.no_grad():
        found = torch.sigmoid(model.eval().steps(others.ids, others.floats)[:, 1])
    assert (found - after).abs().mean() < 0.07
    rare = others.floats[:, 0] < -1  # one click in eight and less
    assert (found - after)[rare].abs().mean() < 0.1  # their mean is .82


@pytest.mark.parametrize("tasks", [["binary"], ["binary", "regression"], ["multiclass", "binary"]])
def test_targets_that_are_no_steps_are_refused(tasks):
    with pytest.raises(ModelError, match="esmm: its targets are binary steps"):
        build("esmm").require_targets(tasks)
    build("esmm", with_outputs(2)).require_targets(["binary", "binary"])
