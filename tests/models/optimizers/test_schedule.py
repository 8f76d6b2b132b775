"""Schedules against fastai's recorded one-cycle and torch's own schedulers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LinearLR, PolynomialLR, SequentialLR

from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers.schedule import (
    Constant,
    CosineLog,
    OneCycle,
    WarmupPolynomial,
    build_schedule,
    square_root_scaled_lr,
)

RECORDED = Path(__file__).parents[1] / "data" / "fastai_onecycle.npz"


@pytest.mark.parametrize("case", ["defaults", "own"])
def test_one_cycle_equals_what_a_fastai_learner_recorded(case):
    with np.load(RECORDED) as file:
        arguments, lrs, moms = json.loads(str(file[f"{case}/arguments"])), file[f"{case}/lr"], file[f"{case}/mom"]
    schedule = OneCycle(**arguments)
    found = np.array([schedule.at(step) for step in range(schedule.num_steps)])
    assert len(lrs) == schedule.num_steps
    # fastai computes positions in float32.
    np.testing.assert_allclose(found[:, 0], lrs, rtol=0, atol=1e-6 * schedule.lr_max)
    np.testing.assert_allclose(found[:, 1], moms, rtol=0, atol=1e-6)


def test_one_cycle_starts_peaks_and_ends_where_its_settings_say():
    schedule = OneCycle(lr_max=0.1, num_steps=400)
    assert schedule.at(0) == pytest.approx((0.1 / 25, 0.95))
    assert schedule.at(100) == pytest.approx((0.1, 0.85))
    assert schedule.at(400) == pytest.approx((0.1 / 1e5, 0.95))


def test_cosine_log_is_what_the_authors_of_realmlp_compute():
    """pytabkit 1.7.3's CoslogFunc at these shares of the steps, of 4 waves and of 2."""
    expected = {
        4: (0.350381, 0.718355, 0.983844, 0.073619, 0.186201),
        2: (0.017841, 0.861268, 0.05308, 0.718355, 0.119745),
    }
    for cycles, values in expected.items():
        schedule = CosineLog(0.5, 1000, cycles=cycles)
        for share, value in zip((0.01, 0.1, 0.3, 0.5, 0.9), values, strict=True):
            assert schedule.at(round(1000 * share)) == pytest.approx((0.5 * value, 0.9), abs=1e-6)


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("warmup_steps", [0, 1, 7])
def test_warmup_polynomial_equals_torchs_chained_schedulers(warmup_steps, power):
    num_steps, lr_max = 30, 0.4
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr_max)
    decay = PolynomialLR(optimizer, total_iters=num_steps - warmup_steps, power=power)
    scheduler = decay
    if warmup_steps:
        warmup = LinearLR(optimizer, start_factor=1 / warmup_steps, total_iters=max(warmup_steps - 1, 1))
        scheduler = SequentialLR(optimizer, [warmup, decay], milestones=[warmup_steps])
    expected = []
    for _ in range(num_steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    schedule = WarmupPolynomial(lr_max, num_steps, warmup_steps, power=power)
    assert [schedule.at(step)[0] for step in range(num_steps)] == pytest.approx(expected)


def test_warmup_polynomial_ends_at_its_final_rate():
    assert WarmupPolynomial(0.4, 30, 3, lr_final=0.1, mom=0.8).at(30) == pytest.approx((0.1, 0.8))


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("one_cycle", {"div": 10.0}, OneCycle(0.1, 50, div=10.0)),
        ("warmup_polynomial", {"warmup_steps": 5}, WarmupPolynomial(0.1, 50, 5)),
        ("cosine_log", {"cycles": 2}, CosineLog(0.1, 50, cycles=2)),
        ("constant", {"mom": 0.5}, Constant(0.1, 50, mom=0.5)),
    ],
)
def test_schedules_are_built_by_name(name, settings, expected):
    assert build_schedule(name, 0.1, 50, **settings) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cosine", {}, "unknown schedule 'cosine'. Known: one_cycle, warmup_polynomial, cosine_log, constant"),
        ("one_cycle", {"warmup": 3}, "unknown setting of one_cycle 'warmup'. Known: pct_start, div, div_final, moms"),
        ("constant", {"lr": 3}, "unknown setting of constant 'lr'. Known: mom"),
    ],
)
def test_unknown_schedules_and_settings_list_the_known_ones(name, settings, message):
    with pytest.raises(ModelError, match=message):
        build_schedule(name, 0.1, 50, **settings)


def test_lr_scales_with_the_square_root_of_the_batch():
    # The paper's own pair: 5e-3 at 32,768 and 6.25e-4 at 512.
    assert square_root_scaled_lr(5e-3, 512, 32_768) == pytest.approx(6.25e-4)


@pytest.mark.parametrize(
    "schedule", [OneCycle(0.1, 10), WarmupPolynomial(0.1, 10), CosineLog(0.1, 10), Constant(0.1, 10)]
)
@pytest.mark.parametrize("step", [-1, 11])
def test_steps_outside_the_run_are_refused(schedule, step):
    with pytest.raises(ModelError, match=f"step {step} is outside the schedule's 10 steps"):
        schedule.at(step)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneCycle(0.0, 10), "learning rate must be positive"),
        (lambda: OneCycle(0.1, 0), "num_steps must be at least 1"),
        (lambda: OneCycle(0.1, 10, pct_start=1.0), "pct_start"),
        (lambda: OneCycle(0.1, 10, div_final=0.0), "div_final must be positive"),
        (lambda: OneCycle(0.1, 10, moms=(0.9, 0.8)), "moms must be"),
        (lambda: OneCycle(0.1, 10, moms=(0.9, 1.0, 0.8)), "momentum must be in"),
        (lambda: WarmupPolynomial(0.1, 10, warmup_steps=10), "warmup_steps must be in"),
        (lambda: WarmupPolynomial(0.1, 10, power=0.0), "power must be positive"),
        (lambda: WarmupPolynomial(0.1, 10, lr_final=0.2), "lr_final must be in"),
        (lambda: CosineLog(0.1, 10, cycles=0), "cycles must be an integer from 1 up, not 0"),
        (lambda: Constant(0.1, 10, mom=-0.1), "momentum must be in"),
    ],
)
def test_settings_of_a_schedule_out_of_range_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_constant_never_moves():
    assert {Constant(0.1, 5, mom=0.7).at(step) for step in range(6)} == {(0.1, 0.7)}
