"""The learning-rate range test: reads curves as fastai does, leaves no trace in the model, and stops in time."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.kernels import kernel
from gigabatch.models.optimizers import loss_scale
from gigabatch.models.optimizers.registry import build_optimizer, set_lr_and_momentum
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.display import format_value
from gigabatch.pipeline.lab.tune import lr_range
from gigabatch.pipeline.lab.tune.lr_range import LrRange, advised, lr_range_test, valley
from gigabatch.pipeline.training.train import TrainingError


def curve(kind: str) -> tuple[np.ndarray, np.ndarray]:
    lrs, x = np.geomspace(1e-6, 3.0, 85), np.linspace(0, 1, 85)
    if kind == "monotone":
        return lrs, 1 - x**3
    losses = 0.7 - 0.25 / (1 + np.exp(-20 * (x - 0.6))) + np.maximum(x - 0.85, 0) ** 2 * 40
    noise = np.random.default_rng(5).normal(size=85) * 0.004
    return lrs, losses + noise if kind == "ragged" else losses


# What fastai 2.8.12's own functions valley, steep and minimum say of these curves.
@pytest.mark.parametrize(
    ("kind", "of_valley", "of_steep", "of_minimum"),
    [
        ("smooth", 0.0004998049152386176, 0.007168516979975068, 0.029833872678503282),
        ("ragged", 0.00502588035376397, 0.007168516979975068, 0.020916665886464403),
        ("monotone", 0.00145028061142054, 2.5119597042124346, 0.3),
    ],
)
def test_suggestions_are_those_of_fastai(kind, of_valley, of_steep, of_minimum):
    lrs, losses = curve(kind)
    # What the first tenth and the last five points say is not looked at.
    padded = LrRange(
        tuple(np.concatenate([np.geomspace(1e-8, 9e-7, 10), lrs, np.full(5, 10.0)])),
        (),
        tuple(np.concatenate([np.full(10, -9.0), losses, np.full(5, -9.0)])),
        False,
    )
    found = padded.suggestions()
    assert list(found) == ["valley", "steepest", "minimum / 10"]
    assert found == pytest.approx({"valley": of_valley, "steepest": of_steep, "minimum / 10": of_minimum})


def test_a_curve_that_never_falls_has_its_valley_at_the_first_point():
    assert valley([1.0, 2.0, 3.0]) == 0


class Line(nn.Module):
    """With batch norm and dropout, so that there are buffers, a mode and random numbers to put back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.1), nn.Linear(3, 1))

    def forward(self, floats: torch.Tensor) -> torch.Tensor:
        return self.layers(floats)[:, 0]


def parts(optimizer: str = "adamw"):
    torch.manual_seed(3)
    model = Line()
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([1.0, -2.0, 0.5])

    def batches():
        while True:
            floats = torch.randn(64, 3, generator=generator)
            yield Batch(torch.empty(64, 0, dtype=torch.int32), floats, (floats @ true,))

    built = build_optimizer(model, optimizer, lr=1.0)

    def step(batch, lr, momentum):
        set_lr_and_momentum(built, lr, momentum)
        built.zero_grad()
        loss = (model(batch.floats) - batch.targets[0]).square().mean()
        loss.backward()
        built.step()
        return loss.detach()

    return model, step, batches()


@pytest.mark.parametrize(("optimizer", "training"), [("adamw", True), ("lamb", False)])
def test_the_model_is_bit_for_bit_as_before(optimizer, training):
    model, step, batches = parts(optimizer)
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    found = lr_range_test(model, step, batches, num_steps=40)
    assert len(set(found.losses)) == len(found.losses)  # it did train
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_model_is_as_before_when_a_batch_fails():
    model, step, batches = parts()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def failing():
        for _ in range(7):
            yield next(batches)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        lr_range_test(model, step, failing())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_rates_grow_by_a_constant_factor_and_the_mean_is_unbiased():
    model, step, batches = parts()
    found = lr_range_test(model, step, batches, start=1e-6, stop=1e-2, num_steps=41)
    np.testing.assert_allclose(found.lrs, np.geomspace(1e-6, 1e-2, 41))
    assert not found.diverged
    weights = 0.98 ** np.arange(41)[::-1]  # exponential weights, summing to one
    assert found.smoothed[-1] == pytest.approx(np.sum(weights * found.losses) / weights.sum())
    assert found.smoothed[0] == pytest.approx(found.losses[0])


def test_it_finds_where_a_quadratic_loss_starts_to_fall_and_stops_where_it_diverges():
    model, step, batches = parts()
    found = lr_range_test(model, step, batches, start=1e-5, stop=1e5, num_steps=200)
    assert found.diverged
    assert len(found.lrs) < 200
    assert found.smoothed[-1] > 4 * min(found.smoothed)
    assert max(found.smoothed[:-1]) <= 4 * found.smoothed[0]
    suggestions = found.suggestions()
    least = found.lrs[int(np.argmin(found.smoothed))]
    assert 1e-4 < suggestions["valley"] < least


def test_a_loss_that_is_not_finite_stops_it():
    model, step, batches = parts()
    taken = []

    def fails_at_30(*arguments):
        taken.append(arguments)
        return step(*arguments) * (math.inf if len(taken) == 30 else 1.0)

    found = lr_range_test(model, fails_at_30, batches)
    assert (len(found.lrs), found.diverged) == (30, True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 0.0}, "positive learning rate up, not from 0.0 to 10.0"),
        ({"start": 1.0, "stop": 0.5}, "not from 1.0 to 0.5"),
        ({"num_steps": 19}, "at least 20 steps are needed, not 19"),
        ({"num_steps": 200}, "200 batches are needed, there were 50"),
    ],
)
def test_what_cannot_be_tested_is_refused(settings, message):
    model, step, batches = parts()
    with pytest.raises(TrainingError, match=message):
        lr_range_test(model, step, [next(batches) for _ in range(50)], **settings)


def range_of(losses: np.ndarray) -> LrRange:
    """With its smoothed losses, the weights of each mean written out."""
    smoothed = [np.average(losses[: n + 1], weights=0.98 ** np.arange(n, -1, -1)) for n in range(len(losses))]
    return LrRange(tuple(np.geomspace(1e-7, 10, len(losses))), tuple(losses), tuple(smoothed), False)


def descent(fall: float, noise: float, seed: int) -> LrRange:
    """A hundred losses that fall about a learning rate of a hundredth, with the scatter of batches."""
    x = np.linspace(0, 1, 100)
    return range_of(0.69 - fall / (1 + np.exp(-25 * (x - 0.6))) + np.random.default_rng(seed).normal(size=100) * noise)


def test_a_curve_of_scatter_alone_carries_no_advice_and_a_descent_does():
    """H3: a rate was advised on 4,809 rows, whose readings lay a factor of 55,000 apart."""
    flat = [descent(0.0, 0.04, seed).doubts(128, 100_000) for seed in range(300)]
    assert sum(any("the loss falls by" in text for text in doubts) for doubts in flat) > 0.97 * 300
    assert "the scatter of batches of 128 rows alone makes 0.0" in flat[0][0]
    falling = [descent(0.25, 0.03, seed).doubts(128, 100_000) for seed in range(300)]
    # Of one in ten the steepest place lies in the scatter before the descent: such readings lie far apart, rightly.
    assert sum(not doubts for doubts in falling) > 0.85 * 300
    assert all("the readings lie" in text for doubts in falling for text in doubts)


@pytest.mark.parametrize("scatter", [0.01, 1.0])
def test_the_error_of_the_fall_follows_the_scatter(scatter):
    """Against the spread of the first and the last mean over many curves of scatter alone, as if independent."""
    curves = [descent(0.0, scatter, seed) for seed in range(400)]
    spread = math.hypot(np.std([c.smoothed[10] for c in curves]), np.std([c.smoothed[60] for c in curves]))
    assert np.median([curve.fall[1] for curve in curves]) == pytest.approx(spread, rel=0.2)


def test_readings_far_apart_and_few_rows_are_reasons_too():
    found = descent(0.25, 0.0, 0)
    assert found.doubts(128, 100_000) == []
    (few,) = found.doubts(128, 1000)
    assert few.startswith("the steps went through the 1,000 train rows 13 times, more than 10")
    # A long slight fall at small rates, which leads lowest, and a steep short one at large rates.
    fall, drop = np.linspace(0.70, 0.695, 51), np.linspace(0.709, 0.6956, 10)
    smoothed = (*[0.70] * 10, *fall, *[0.71] * 24, *drop, *[0.7] * 5)
    contradicting = LrRange(tuple(np.geomspace(1e-7, 10, 100)), smoothed, smoothed, False)
    readings = contradicting.suggestions()
    (text,) = contradicting.doubts(128, 100_000)
    factor = readings["steepest"] / readings["valley"]
    assert factor > 10_000
    assert text == f"the readings lie a factor of {factor:,.0f} apart, more than 1,000"


def test_too_few_steps_suggest_nothing_and_say_what_to_do():
    early = LrRange(tuple(np.geomspace(1e-7, 1e-3, 12)), (1.0,) * 12, (1.0,) * 12, True)
    with pytest.raises(TrainingError, match=r"only 12 steps.*rate of 0\.001\. Begin at a lower one \(--start\)"):
        early.suggestions()


def test_the_command_prints_an_override_and_writes_the_page(tiny, capsys):
    arguments = ["--config", str(tiny.config), "--steps", "60", "--start", "1e-5", "model.numeric=plain"]
    assert main(["lr-range", *arguments]) == 0
    out = capsys.readouterr().out
    page = tiny.home / "lr_range.html"
    saved = json.loads((tiny.home / "lr_range.json").read_text())
    assert out.splitlines()[-1] == str(page)
    assert f"override  train.lr_max={saved['suggestions']['valley']:.2g}" in out
    assert 1e-5 <= saved["suggestions"]["valley"] <= 10
    assert saved["batch_size"] == 256
    assert saved["no_advice"] == []
    assert f"the readings lie a factor of {format_value(saved['apart'])} apart\n" in out
    assert len(saved["lrs"]) == len(saved["losses"]) <= 60
    html = page.read_text()
    assert "Loss by learning rate" in html
    assert html.count("<svg") == 1
    assert not (tiny.home / "latest").exists()  # no run was made


def test_a_float16_loss_that_is_scaled_too_much_at_first_is_no_divergence(tiny, monkeypatch):
    """Each overflow halves the scale and trains nothing, so the same batch is taken again."""
    arguments = ["lr-range", "--config", str(tiny.config), "--steps", "20", "--start", "1e-5", "--stop", "1e-4"]
    saved = []
    for start in (2.0**10, 2.0**60):
        monkeypatch.setattr(loss_scale, "START", start)
        assert main([*arguments, "train.precision=float16", "model.dropout=0"]) == 0
        saved.append(json.loads((tiny.home / "lr_range.json").read_text()))
    assert [len(found["losses"]) for found in saved] == [20, 20]
    assert saved[0]["losses"][0] == saved[1]["losses"][0]  # before any update: the same batch and weights
    assert saved[0]["losses"] == pytest.approx(saved[1]["losses"], rel=0.02)


def test_the_test_runs_by_the_kernels_of_the_setting(tiny, monkeypatch):
    seen, real = [], lr_range.lr_range_test

    def test(*arguments, **named):
        seen.append(kernel("lookup", "cpu").__name__.rpartition(".")[2])
        return real(*arguments, **named)

    monkeypatch.setattr(lr_range, "lr_range_test", test)
    for choice in ("compiled", "reference"):
        assert main(["lr-range", "--config", str(tiny.config), "--steps", "20", f"train.kernels={choice}"]) == 0
    assert seen == ["cpu", "reference"]


def test_the_same_line_gives_the_same_curve(tiny):
    """Dropout draws from torch's generator, wherever that stands."""
    curves = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        assert main(["lr-range", "--config", str(tiny.config), "--steps", "20", "model.dropout=0.5"]) == 0
        assert torch.equal(torch.get_rng_state(), before)
        curves.append(json.loads((tiny.home / "lr_range.json").read_text())["losses"])
    assert curves[0] == curves[1]


def test_the_command_withholds_advice_where_nothing_is_learnt_and_says_why(tiny, capsys):
    """Labels of the train split are in random order."""
    arguments = ["lr-range", "--config", str(tiny.config), "--steps", "60", "--start", "1e-5"]
    assert main([*arguments, "features.shuffled=true", "model.numeric=plain"]) == 0  # bins learn rows by heart
    out = capsys.readouterr().out
    saved = json.loads((tiny.home / "lr_range.json").read_text())
    readings = saved["suggestions"].values()
    assert saved["apart"] == pytest.approx(max(readings) / min(readings))
    assert f"the readings lie a factor of {format_value(saved['apart'])} apart" in out
    assert "override" not in out
    assert saved["no_advice"]
    assert "the loss falls by" in saved["no_advice"][0]
    for text in saved["no_advice"]:
        assert f"no advice {text}\n" in out
    assert "No advice: the loss falls by" in (tiny.home / "lr_range.html").read_text()


def test_a_rate_of_the_tables_of_its_own_is_part_of_the_advice():
    """The test moved tables at 10 times the layers' rate; with lr_max alone they would stay at the .03 that is set."""
    settings = WholeTrainSettings(epochs=1, batch_size=64, lr_max=0.003, optimizer_settings={"table_lr": 0.03})
    assert advised(settings, 0.02) == ["train.lr_max=0.02", "train.optimizer_settings.table_lr=0.2"]
    assert advised(settings.model_copy(update={"optimizer_settings": {}}), 0.02) == ["train.lr_max=0.02"]
