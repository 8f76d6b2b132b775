"""The profile of a step: the phases add up to the step that training takes."""

import json

import pytest
import torch

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.models.kernels import kernel
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.profile.step_needs import Rates, measure_rates
from gigabatch.pipeline.lab.profile.step_phases import FORWARD, LOOKUP, LOSS, PHASES, Laps, PhasedStep, watched_lookup
from gigabatch.pipeline.lab.profile.step_profile import profile_steps
from gigabatch.pipeline.training.train import TrainingError

SMALL = ("train.batch_size=64",)
KINDS = {
    "folded": ("model.dropout=0",),
    "rows": ("model.dropout=0.1",),
    "dense": ("train.optimizer=adamw",),
    "float16": ("train.precision=float16",),
}
RATES = Rates(copy=100.0, random=10.0, packed=20.0, packed_words=4, matmul=1000.0, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    """The machine is not measured here, and a step is timed in a moment."""
    monkeypatch.setattr("gigabatch.pipeline.lab.profile.step_profile.measure_rates", lambda *_: RATES)
    monkeypatch.setattr("gigabatch.pipeline.lab.profile.step_profile.WHOLE_STEP_SECONDS", 0.0)


@pytest.fixture(params=list(KINDS))
def experiment(trained, request) -> Experiment:
    return Experiment.of_run(trained[0].config, [*SMALL, *KINDS[request.param]])


def test_the_steps_are_those_of_training(experiment):
    """Bit for bit the weights that `TrainStep` gives, which training calls."""
    dataset = BatchDataset(experiment.train, 64, seed=3, drop_last=True)
    plain, phased = experiment.new_model(1).train(), experiment.new_model(1).train()
    train_step = experiment.train_step(plain)
    torch.manual_seed(5)
    for index in range(3):
        train_step(dataset[index], experiment.config.train.lr_max, 0.9)
    laps = Laps("cpu")
    step = PhasedStep(experiment, phased, laps)
    torch.manual_seed(5)
    with watched_lookup(laps, "cpu"):
        for index in range(3):
            step(dataset, index)
    expected = plain.state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in phased.state_dict().items())


def test_every_phase_has_its_time_and_together_they_are_the_step(experiment):
    found = profile_steps(experiment, 6)
    assert list(found.seconds) == list(PHASES)
    assert all(seconds > 0 for seconds in found.seconds.values()), found.seconds
    assert found.dense_tables == (experiment.config.train.optimizer == "adamw")
    rows = found.rows()
    assert [row["phase"] for row in rows] == [*PHASES, "sum"]
    assert sum(row["share %"] for row in rows[:-1]) == pytest.approx(100)
    assert rows[-1]["ms"] == pytest.approx(1e3 * sum(found.seconds.values()))
    assert found.step_seconds > 0


def test_the_kernel_is_itself_again_afterwards():
    module = kernel("lookup", "cpu")
    before = module.lookup
    watching = watched_lookup(Laps("cpu"), "cpu")
    watching.__enter__()
    assert module.lookup is not before
    watching.__exit__(KeyError, KeyError("of the block"), None)
    assert module.lookup is before


def test_laps_add_up_by_name_within_a_step(monkeypatch):
    laps = Laps("cpu")
    moments = iter([0.0, 1.0, 3.0, 3.5, 100.0, 100.25])
    monkeypatch.setattr(laps, "_now", lambda: next(moments))
    laps.start()
    laps.lap(FORWARD)  # 1
    laps.lap(LOOKUP)  # 2
    laps.lap(FORWARD)  # 0.5
    laps.start()
    laps.lap(LOSS)
    nothing = dict.fromkeys(PHASES, 0.0)
    assert laps.by_step() == [nothing | {FORWARD: 1.5, LOOKUP: 2.0}, nothing | {LOSS: 0.25}]


def test_the_command_prints_the_phases_and_writes_json_and_trace(trained, tmp_path, capsys):
    tiny, _ = trained
    trace = tmp_path / "traces" / "step.json"
    arguments = [*SMALL, "--steps", "3", "--trace", str(trace)]
    assert main(["profile", "--config", str(tiny.config), *arguments]) == 0
    out = capsys.readouterr().out
    assert all(phase in out for phase in PHASES)
    assert "whole step" in out
    saved = json.loads((tiny.home / "profile.json").read_text())
    assert [row["phase"] for row in saved["phases"]] == [*PHASES, "sum"]
    assert saved["batch_size"] == 64
    events = json.loads(trace.read_text())["traceEvents"]
    assert any("backward" in event.get("name", "").lower() for event in events)
    assert out.splitlines()[-1] == str(tiny.home / "profile.json")


def test_rates_are_those_of_random_numbers(monkeypatch):
    """A GPU multiplies equal numbers faster than a model's."""
    multiply, factors = torch.mm, []
    monkeypatch.setattr(torch, "mm", lambda a, b, **more: factors.extend((a, b)) or multiply(a, b, **more))
    measure_rates("cpu", torch.bfloat16, packed_words=10, num_bytes=1 << 20, side=64)
    assert all(len(factor.unique()) > 100 for factor in factors)
    assert not torch.equal(*factors[:2])


def test_a_machines_rates_are_positive_and_say_of_what():
    found = measure_rates("cpu", torch.float32, packed_words=10, num_bytes=1 << 20, side=64)
    assert min(found.copy, found.random, found.packed, found.matmul) > 0
    assert "of 40 bytes" in str(found)


def test_no_steps_to_profile_is_one_line(trained, capsys):
    assert main(["profile", "--config", str(trained[0].config), "--steps", "0"]) == 2
    assert "--steps must be at least 1, not 0" in capsys.readouterr().err.splitlines()[-1]


def test_phases_on_any_device(tiny, any_device):
    experiment = Experiment.of_run(tiny.config, [*SMALL, f"device={any_device}"])
    found = profile_steps(experiment, 5)
    assert all(seconds > 0 for seconds in found.seconds.values()), found.seconds
    with pytest.raises(TrainingError):
        profile_steps(experiment, 0)
