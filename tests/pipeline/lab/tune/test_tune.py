"""`gigabatch tune`: what it reads from measurements, the settings it proposes, and that trainings in pairs decide."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers.noise_scale import NoiseScale
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import TrainSettings, WholeTrainSettings, load_config
from gigabatch.pipeline.lab.bounds import TuneBounds
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.tune import trials as tune_trials
from gigabatch.pipeline.lab.tune.report import limit_text, trial_rows
from gigabatch.pipeline.lab.tune.trials import (
    NoisePoint,
    StepTime,
    Sweep,
    noise_scales,
    sweep_batches,
    time_steps,
)
from gigabatch.pipeline.lab.tune.tune import (
    Outcome,
    Trainer,
    choose_candidates,
    compare_batches,
    overrides_of,
    scaled_settings,
    tune,
)
from gigabatch.pipeline.training.defaults import settle
from gigabatch.pipeline.training.train import TrainingError

SMALL = ("train.batch_size=32", "train.epochs=2")


@pytest.fixture(scope="module")
def experiment(trained) -> Experiment:
    return Experiment.of_run(trained[0].config, SMALL)


def step_time(batch_size: int, row_seconds: float = 1e-6, peak_bytes: int = 0) -> StepTime:
    return StepTime(batch_size, batch_size * row_seconds, 5, peak_bytes)


def sweep_of(*times: StepTime, **changes) -> Sweep:
    return Sweep(**{"times": times, "ended": "rows", "budget_bytes": 1 << 30} | changes)


def test_the_fastest_is_the_smallest_batch_within_five_percent_of_the_least_time_per_row():
    assert sweep_of(step_time(1, 4.0), step_time(2, 2.09), step_time(4, 2.0), step_time(8, 3.0)).fastest.batch_size == 2
    assert sweep_of(step_time(1, 4.0), step_time(2, 2.11), step_time(4, 2.0), step_time(8, 3.0)).fastest.batch_size == 4


def test_the_largest_batch_that_fits_lies_on_the_line_through_the_two_largest():
    times = (step_time(100, peak_bytes=9_000), step_time(200, peak_bytes=10_000), step_time(400, peak_bytes=14_000))
    assert sweep_of(*times, budget_bytes=20_000).largest_that_fits == 700  # 20 bytes a row from 400 rows on
    assert sweep_of(*times[:1]).largest_that_fits is None
    assert sweep_of(times[0], step_time(200, peak_bytes=9_000)).largest_that_fits is None
    assert sweep_of(*times, out_of_memory=800).largest_that_fits == 400
    assert "400; 800 did not" in limit_text(sweep_of(*times, out_of_memory=800))
    assert "about 700 rows would fit" in limit_text(sweep_of(*times, budget_bytes=20_000))
    assert "memory does not limit it" in limit_text(sweep_of(*times[:1]))


def test_steps_are_timed_in_a_real_training_that_ends_early(experiment):
    found = time_steps(experiment, 64, seconds=0.0)
    assert (found.batch_size, found.num_steps) == (64, 5)  # 4 more are not counted
    assert found.seconds > 0
    assert found.peak_bytes > 1 << 20
    # 2,400 rows have 9 such batches; the epoch's end, with its evaluation, is not reached.
    assert time_steps(experiment, 256, seconds=60.0).num_steps == 5


def test_on_cpu_the_sweep_stops_before_memory_is_used_up(experiment, monkeypatch):
    monkeypatch.setattr(tune_trials, "memory_budget", lambda _: 10_000)
    monkeypatch.setattr(tune_trials, "time_steps", lambda _, size, __: step_time(size, peak_bytes=1_000 + 10 * size))
    found = sweep_batches(experiment, [64, 128, 256, 512, 1024, 2048], 60)
    assert [time.batch_size for time in found.times] == [64, 128, 256, 512]  # 1024 rows would take 11,240 bytes
    assert (found.ended, found.largest_that_fits) == ("memory", 900)


def test_on_a_gpu_the_sweep_ends_where_memory_does_and_other_errors_end_the_command(experiment, monkeypatch):
    def fails_above_256_by(error):
        def steps(_, size, __):
            if size > 256:
                raise error
            return step_time(size, peak_bytes=10 * size)

        monkeypatch.setattr(tune_trials, "time_steps", steps)

    monkeypatch.setattr(tune_trials, "memory_budget", lambda _: 1)
    on_gpu = replace(experiment, device="cuda")
    captured = TrainingError("train.cuda_graph: the step cannot be captured")
    captured.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    for error in (captured.__cause__, captured):
        fails_above_256_by(error)
        found = sweep_batches(on_gpu, [128, 256, 512, 1024], 60)
        assert (found.ended, found.out_of_memory, found.largest_that_fits) == ("memory", 512, 256)
    with pytest.raises(TrainingError, match="a batch of 512 rows does not fit in GPU memory"):
        sweep_batches(on_gpu, [512, 1024], 60)
    captured.__cause__ = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(TrainingError, match="cannot be captured"):
        sweep_batches(on_gpu, [128, 256, 512], 60)


def test_the_sweep_ends_when_its_time_is_up(experiment, monkeypatch):
    monkeypatch.setattr(tune_trials, "time_steps", lambda _, size, __: step_time(size))
    found = sweep_batches(experiment, [64, 128, 256], 0.0)
    assert ([time.batch_size for time in found.times], found.ended) == ([64], "--seconds")


def noise_point(simple: float) -> NoisePoint:
    return NoisePoint(1, NoiseScale(1.0, simple))


def test_candidates_are_batches_that_are_faster_the_noise_scale_setting_the_first():
    sweep = sweep_of(step_time(256, 4.0), step_time(512, 3.0), step_time(1024, 2.0), step_time(2048, 1.0),
                     step_time(4096, 1.0))  # fmt: skip
    assert choose_candidates(sweep, [noise_point(1e9)], 256)[0] == [2048, 1024, 512]
    assert choose_candidates(sweep, [noise_point(5.0), noise_point(1500.0)], 256)[0] == [1024, 512]
    assert choose_candidates(sweep, [noise_point(600.0)], 256) == ([512], "the next is above the noise scale")
    above = "every batch above the run's own 256 is above the noise scale, and this is the least"
    assert choose_candidates(sweep, [noise_point(10.0)], 256) == ([512], above)
    assert choose_candidates(sweep, [], 1024)[0] == [2048]
    assert choose_candidates(sweep, [], 2048) == ([], "no larger batch takes 5 % less time per row")
    assert choose_candidates(sweep_of(step_time(256, 4.0)), [], 256) == ([], "no larger batch was tried")


def settings_of(**changes) -> WholeTrainSettings:
    return WholeTrainSettings(**{"batch_size": 512, "lr_max": 0.01, "epochs": 4} | changes)


def test_the_learning_rate_grows_with_the_root_of_the_batch_and_warm_up_with_the_batch():
    found = scaled_settings(settings_of(schedule_settings={"pct_start": 0.05}), 2048, 100_000)
    assert (found.batch_size, found.lr_max) == (2048, 0.02)
    assert found.schedule_settings == {"pct_start": 0.2}
    assert scaled_settings(settings_of(), 2048, 100_000).schedule_settings == {"pct_start": 0.5}  # 4 x fastai's 0.25
    long = settings_of(schedule_settings={"pct_start": 0.7})
    assert scaled_settings(long, 1024, 100_000).schedule_settings == {"pct_start": 0.7}


def test_warm_up_in_steps_stays_up_to_half_of_the_steps():
    settings = settings_of(schedule="warmup_polynomial", schedule_settings={"warmup_steps": 30, "power": 2.0})
    assert scaled_settings(settings, 4096, 100_000).schedule_settings == {"warmup_steps": 30, "power": 2.0}
    few = scaled_settings(settings, 10_000, 100_000)  # 40 steps in all
    assert few.schedule_settings == {"warmup_steps": 20, "power": 2.0}
    assert scaled_settings(settings_of(schedule="constant"), 4096, 100_000).schedule_settings == {}


def test_cowclips_tables_keep_their_learning_rate_and_their_l2_grows_with_the_batch():
    """The paper's rule from 1K rows: l2 1e-5 s and dense learning rate 8e-4 sqrt(s) for s times the batch."""
    paper = settings_of(batch_size=1000, optimizer="cowclip", lr_max=8e-4, optimizer_settings={"table_lr": 1e-4})
    found = scaled_settings(paper, 128_000, 41_000_000)
    assert found.optimizer_settings == {"table_lr": 1e-4, "l2": 1.28e-3}
    assert found.lr_max == pytest.approx(8e-4 * math.sqrt(128), rel=1e-3)
    default = scaled_settings(settings_of(optimizer="cowclip", lr_max=0.01), 2048, 100_000)
    assert default.optimizer_settings == {"table_lr": 0.01, "l2": 4e-5}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "warmup_polynomial", "schedule_settings": {"warmup_steps": 90}},
        {"optimizer": "cowclip", "optimizer_settings": {"clip_ratio": 2.0}},
    ],
    ids=["one-cycle", "polynomial", "cowclip"],
)
def test_the_overrides_give_the_settings_that_were_tried(tmp_path, changes):
    before = settings_of(**changes)
    path = tmp_path / "run.yaml"
    raw = {"name": "x", "recipe": "tiny", "features": {"path": "."}, "train": before.model_dump()}
    path.write_text(json.dumps(raw))
    scaled = scaled_settings(before, 4096, 100_000)
    assert load_config(path, overrides_of(scaled, before)).train.model_dump() == scaled.model_dump()


def test_a_rate_of_the_tables_of_its_own_follows_the_root_too():
    scaled = scaled_settings(settings_of(optimizer_settings={"table_lr": 0.05}), 2048, 100_000)
    assert scaled.lr_max == pytest.approx(0.02)
    assert scaled.optimizer_settings == {"table_lr": pytest.approx(0.1)}


@pytest.mark.parametrize(("rows", "num_ids"), [(100_000, (10,)), (20_000, (20_000,))])
def test_the_overrides_give_what_was_tried_where_the_rule_chose_the_epochs(tmp_path, rows, num_ids):
    """The rule gives a larger batch more epochs: 17 for the 4 that were tried."""
    before = settle(TrainSettings(), rows, num_ids)
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"name": "x", "recipe": "tiny", "features": {"path": "."}}))
    scaled = scaled_settings(before, 8192, rows)
    train = load_config(path, overrides_of(scaled, before)).train
    assert settle(train, rows, num_ids).model_dump() == scaled.model_dump()


class Trained:
    """Stands for `Trainer`: a metric by batch size and seed, so that the comparison alone is tested."""

    metric = "auc"

    def __init__(self, values, stops_after=10**9):
        self.values, self.calls, self.stops_after = values, [], stops_after

    def train(self, settings, seed):
        if len(self.calls) >= self.stops_after:
            return None
        self.calls.append((settings.batch_size, seed))
        value = self.values[settings.batch_size][seed - 1]
        if isinstance(value, str):
            raise TrainingError(value)
        return Outcome(value, (0.5, 0.25))

    def relative_gain(self, large, small):
        return (large.metric - small.metric) / small.metric


BASE = [0.80, 0.81, 0.79]
EQUAL = [0.8001, 0.8101, 0.7901]
WORSE = [0.79, 0.80, 0.78]
RAGGED = [0.82, 0.80, 0.79]


def compared(experiment, trainer, candidates, seeds=3):
    return compare_batches(experiment, trainer, candidates, TuneBounds(seeds=seeds))


def test_the_first_batch_that_holds_ends_the_comparison(experiment):
    trainer = Trained({32: BASE, 256: WORSE, 128: EQUAL, 64: EQUAL})
    trials, curves = compared(experiment, trainer, [256, 128, 64])
    assert [(trial.batch_size, trial.verdict) for trial in trials] == [(256, "loses"), (128, "holds")]
    assert sorted(trainer.calls) == [(size, seed) for size in (32, 128, 256) for seed in (1, 2, 3)]  # 32 only once
    gains = np.array(EQUAL) / np.array(BASE) - 1
    assert trials[1].difference == pytest.approx(gains.mean())
    interval = scipy.stats.ttest_1samp(gains, 0, alternative="greater").confidence_interval(0.95)
    assert trials[1].bound == pytest.approx(interval.low, rel=1e-4)
    assert trials[0].text.startswith("The large batch loses: 256 has auc 1.250% worse than batch 32 over 3 seed(s)")
    assert trials[1].overrides[:3] == ("train.epochs=2", "train.batch_size=128", "train.lr_max=0.04")
    assert curves == {f"batch {size}": (0.5, 0.25) for size in (32, 256, 128)}


def test_of_a_loss_more_is_told_as_worse_and_less_as_better(experiment):
    """It said that a log loss which rose from .50 to .52 was -4 %."""

    class OfALoss(Trained):
        def relative_gain(self, large, small):
            return (small.metric - large.metric) / small.metric

    trainer = OfALoss({32: [0.5, 0.5], 128: [0.52, 0.52], 64: [0.48, 0.48]})
    trainer.metric = "logloss"
    rose, fell = compared(experiment, trainer, [128, 64], seeds=2)[0]
    assert rose.text.startswith("The large batch loses: 128 has logloss 4.000% worse than batch 32")
    assert fell.text.startswith("Parity holds at batch 64: logloss 4.000% better than batch 32")
    assert [row["better by %"] for row in trial_rows((rose, fell))] == pytest.approx([-4, 4])


@pytest.mark.parametrize(
    ("metric", "large", "small", "gain"),
    [("auc", 0.6, 0.5, 0.2), ("rmse", 0.6, 0.5, -0.2), ("rmse", 0.0, 0.0, 0.0), ("rmse", 0.5, 0.0, -1.0),
     ("auc", 0.5, 0.0, 1.0), ("mcc", -0.3, -0.6, 0.5)],
)  # fmt: skip
def test_a_metric_of_0_has_a_share_too(metric, large, small, gain):
    """It was a ZeroDivisionError: a regression that is met exactly has an RMSE of 0."""
    trainer = object.__new__(Trainer)
    trainer.metric, trainer.sign = metric, -1 if metric == "rmse" else 1
    assert trainer.relative_gain(Outcome(large, ()), Outcome(small, ())) == pytest.approx(gain)


def test_of_one_pair_no_bound_is_told(experiment):
    (trial,), _ = compared(experiment, Trained({32: BASE, 64: BASE}, stops_after=2), [64])
    assert (trial.verdict, trial.bound) == ("open", None)
    assert "over 1 seed(s), which have no bound, allowed -0.100%. The time was up" in trial.text


def test_a_difference_within_its_noise_is_open(experiment):
    (trial,), _ = compared(experiment, Trained({32: BASE, 64: RAGGED}), [64])
    assert trial.difference > -0.001
    assert trial.verdict == "open"
    assert trial.text.endswith("Give more --seeds.")


def test_a_batch_that_diverges_loses(experiment):
    (trial,), _ = compared(experiment, Trained({32: BASE, 64: [0.8, "training diverged in epoch 1"]}), [64])
    assert (trial.verdict, len(trial.large)) == ("loses", 1)
    assert "64 diverged (training diverged in epoch 1)" in trial.text


def test_the_runs_own_batch_that_diverges_is_an_error(experiment):
    with pytest.raises(TrainingError, match="training diverged"):
        compared(experiment, Trained({32: ["training diverged"], 64: EQUAL}), [64])


@pytest.mark.parametrize(("steps", "pairs"), [(0, None), (1, None), (3, 1), (5, 2)])
def test_when_the_time_is_up_only_whole_pairs_count(experiment, steps, pairs):
    trials, _ = compared(experiment, Trained({32: BASE, 64: WORSE[:1] + RAGGED[1:]}, stops_after=steps), [64])
    if pairs is None:
        assert trials == []
    else:
        assert (len(trials[0].small), len(trials[0].large)) == (pairs, pairs)
        assert trials[0].verdict != "holds"


def test_the_noise_scale_is_measured_beside_a_training_that_it_does_not_disturb(experiment, monkeypatch):
    seen = []

    def measure(model, batch_loss, batches, **counts):
        torch.rand(7)
        assert batch_loss(next(batches)).requires_grad
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return NoiseScale(1.0, 10.0)

    monkeypatch.setattr(tune_trials, "measure_noise_scale", measure)
    settings = experiment.config.train
    points = noise_scales(experiment, settings, 60)
    assert [point.step for point in points] == [19, 38, 75]  # of 75 steps an epoch
    plain = {}

    def keep(model, step):
        plain[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    experiment.fit(settings, experiment.config.seed, keep)
    for point, state in zip(points, seen, strict=True):
        weights = {name: tensor for name, tensor in state.items() if "running" not in name and "tracked" not in name}
        assert all(torch.equal(plain[point.step][name], tensor) for name, tensor in weights.items())


def test_the_command_decides_and_writes_what_it_found(tiny, capsys):
    arguments = [*SMALL, "--seeds", "2", "--seconds", "600", "--max-batch", "64", "--tolerance", "0.5"]
    assert main(["tune", "--config", str(tiny.config), *arguments]) == 0
    out = capsys.readouterr().out
    found = json.loads((tiny.home / "tune.json").read_text())
    assert [time["batch_size"] for time in found["sweep"]["times"]] == [32, 64]
    assert len(found["noise"]) == 3
    assert found["batch_size"] == 32
    assert found["rows"] == found["rows_of_run"] == 2400
    if found["candidates"]:  # a loaded machine may not see that 64 rows a step are faster
        (trial,) = found["trials"]
        assert trial["verdict"] == "holds"
        assert all(0.6 < auc < 1 for auc in trial["small"] + trial["large"])
        assert (
            "overrides  train.epochs=2 train.batch_size=64 train.lr_max=0.02828 train.ema_decay=null "
            "train.schedule_settings.pct_start=0.5" in out
        )
    assert found["verdict"] in out
    assert out.splitlines()[-1] == str(tiny.home / "tune.html")
    html = (tiny.home / "tune.html").read_text()
    assert found["verdict"].replace("+", "&#43;") in html or found["verdict"] in html
    assert not (tiny.home / "latest").exists()  # no run was made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1"], "--seeds must be from 2 to 30, not 1"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--max-batch", "16"], "the run's batch of 32 rows leaves nothing to try: --max-batch is 16"),
        (["--rows", "-1"], "--rows must be at least 1, not -1"),
        (["--rows", "200"], "200 rows are fewer than 8 such batches"),
    ],
)
def test_what_leaves_nothing_to_try_is_one_line(trained, capsys, arguments, message):
    assert main(["tune", "--config", str(trained[0].config), *SMALL, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err.splitlines()[-1]


def test_without_a_faster_batch_the_runs_own_is_kept(experiment, monkeypatch):
    monkeypatch.setattr(
        "gigabatch.pipeline.lab.tune.tune.sweep_batches", lambda *_: sweep_of(step_time(32, 1.0), step_time(64, 1.0))
    )
    found = tune(experiment, TuneBounds(seconds=600))
    assert (found.trials, found.chosen) == ((), None)
    assert found.verdict == "Keep train.batch_size=32: no larger batch takes 5 % less time per row."
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_rate_that_diverges_leaves_what_was_measured(experiment, monkeypatch):
    def diverges(*_):
        raise ModelError("noise scale: a gradient is not finite. Lower the learning rate before it.")

    monkeypatch.setattr(
        "gigabatch.pipeline.lab.tune.tune.sweep_batches", lambda *_: sweep_of(step_time(32), step_time(64))
    )
    monkeypatch.setattr("gigabatch.pipeline.lab.tune.tune.noise_scales", diverges)
    found = tune(experiment, TuneBounds(seconds=600))
    assert [time.batch_size for time in found.sweep.times] == [32, 64]
    assert found.verdict == (
        "Keep train.batch_size=32: no larger batch was trained. noise scale: a gradient is not finite. Lower the "
        "learning rate before it."
    )
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_time_did_not_allow_is_said(experiment, monkeypatch):
    times = (step_time(32, 4.0), step_time(64, 2.0), step_time(128, 1.0))
    monkeypatch.setattr("gigabatch.pipeline.lab.tune.tune.sweep_batches", lambda *_: sweep_of(*times))
    monkeypatch.setattr("gigabatch.pipeline.lab.tune.tune.noise_scales", lambda *_: [noise_point(1e9)])
    trainer = Trained({32: BASE, 128: WORSE}, stops_after=6)
    monkeypatch.setattr("gigabatch.pipeline.lab.tune.tune.Trainer", lambda *_: trainer)
    found = tune(experiment, TuneBounds(seeds=3, seconds=600))
    assert found.verdict.startswith("Keep train.batch_size=32. The large batch loses: 128 has auc 1.250% worse")
    assert found.verdict.endswith("The time was up before batch 64 could be tried.")
