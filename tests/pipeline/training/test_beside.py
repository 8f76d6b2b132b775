"""Members of an ensemble side by side, in processes of their own: what becomes of them, of failures and of kills."""

import contextlib
import importlib.util
import logging
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gigabatch.models.shelf import OWN
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training import beside
from gigabatch.pipeline.training.beside import Beside, CannotCross, members_at_once
from gigabatch.pipeline.training.callbacks import Callback
from gigabatch.pipeline.training.checkpoint import TrainingError
from tests.pipeline.training.forked_member import Forked

TWO = "train.ensemble=2"
MODEL = """
from dataclasses import dataclass
from torch import nn
from gigabatch import Model, register_model
from gigabatch.models.layers.embeddings import EmbeddingTables

class Broken(Exception):
    pass

@dataclass(frozen=True)
class LineSettings:
    breaks: bool = False

@register_model("line")
class Line(Model):
    Settings = LineSettings

    def __init__(self, inputs, settings):
        super().__init__(inputs, settings)
        self.out = nn.Linear(inputs.num_floats, inputs.num_outputs)

    def forward(self, ids, floats):
        if self.settings.breaks and self.training:
            raise Broken("no such line")
        return self.out(floats)
"""
# A run whose members train side by side, and which says the numbers of their processes.
SIDE_BY_SIDE = """
import signal, subprocess
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in a shell's background ignores it
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.training import beside

class Told(subprocess.Popen):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        if "gigabatch.pipeline.training.member" in self.args:
            print(self.pid, flush=True)

beside.subprocess.Popen = Told
beside.START_S, beside.available_cores = 0, lambda: 2
sys.exit(main(["train", "--config", config, *{settings}]))
"""


class Started(list):
    """The processes that members are trained in. fork: whether those that are begun now are forked."""

    fork = True


@pytest.fixture
def started(monkeypatch):
    """Two members train at once, however small they are; the processes that are begun."""
    found, real = Started(), subprocess.Popen

    def begun(command, *arguments, **named):
        of_member = "gigabatch.pipeline.training.member" in command
        process = (Forked if of_member and found.fork else real)(command, *arguments, **named)
        if of_member:
            found.append(process)
        return process

    monkeypatch.setattr(beside, "START_S", 0.0)
    monkeypatch.setattr(beside, "available_cores", lambda: 2)
    monkeypatch.setattr(beside.subprocess, "Popen", begun)
    return found


@pytest.fixture
def other(tiny, tiny_in, tmp_path):
    """The same rows in another folder, where nothing has run."""
    made = tiny_in(tmp_path / "other")
    shutil.copytree(tiny.raw, made.raw, dirs_exist_ok=True)
    return made


def assert_same(run: Run, expected: Run) -> None:
    found, other = (load_file(one.path / "model" / "weights.safetensors") for one in (run, expected))
    assert found.keys() == other.keys()
    assert all(torch.equal(found[name], other[name]) for name in found)
    for name in ("metrics.jsonl", "training/optimizer.safetensors", "training/optimizer.json"):
        assert (run.path / name).read_bytes() == (expected.path / name).read_bytes()


def in_turn(tiny, *settings) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "START_S", 3.0)
        run = tiny.train(*settings)
    assert run.summary["ensemble"]["at_once"] == 1
    return run


def test_members_side_by_side_are_those_trained_in_turn(tiny, other, started, caplog, capsys):
    caplog.set_level(logging.INFO)
    settings = ("train.ensemble=3", "train.ema_decay=0.9", "train.calibration=temperature")
    started.fork = False
    run = tiny.train(*settings)
    started.fork = True
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)
    told = run.summary["ensemble"]
    assert told["at_once"] == 2
    assert 0 < told["elapsed_seconds"] <= run.summary["seconds"]["train"]
    (text,) = (text for text in run.summary["notes"] if text.startswith("Ensemble of 3 members"))
    assert f"They were trained 2 at a time, in {told['elapsed_seconds']:.1f} s by the clock" in text
    assert run.summary["trained"]["threads"] == 1
    assert {f"member {n}: training in" for n in (1, 2, 3)} <= {
        line.partition(" in ")[0] + " in" for line in caplog.messages
    }
    shown = capsys.readouterr().err
    assert "train, epochs of all members: done, 6 in" in shown
    assert "\ntrain: " not in shown
    expected = in_turn(other, *settings)
    assert_same(run, expected)
    assert tiny.hidden() == []
    warm = (*settings, "preprocess.from=latest", "train.start_from=latest", "train.epochs=1")
    run, expected = tiny.train(*warm), in_turn(other, *warm)
    assert run.summary["ensemble"]["at_once"] == 2
    assert run.summary["started"]["moments"] == "carried"
    assert_same(run, expected)


def test_what_a_member_raises_is_what_the_run_raises_and_ends_the_others(tiny, started):
    with pytest.raises(TrainingError, match=r"Lower train\.lr_max") as raised:
        tiny.train(TWO, "train.lr_max=1e30", "train.optimizer=adamw")
    assert "In the process of a member" in raised.value.__notes__[0]
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def test_models_of_users_are_trained_there_and_their_errors_keep_their_type(
    tiny, other, started, tmp_path, monkeypatch
):
    (tmp_path / "line.py").write_text(MODEL)
    monkeypatch.setattr(OWN, "kinds", dict(OWN.kinds))
    own = {"imports": [str(tmp_path / "line.py")], "model": {"kind": "line"}, "train.ensemble": 2}
    run = tiny.pipeline(own).train()
    assert len(started) == 2
    assert_same(run, in_turn(other, own))
    with pytest.raises(sys.modules[OWN.kinds["line"].__module__].Broken, match="no such line"):
        tiny.pipeline(own | {"model": {"kind": "line", "breaks": True}}).train()


def test_a_process_that_is_gone_is_named_by_its_signal(tiny, started, monkeypatch):
    real = beside.subprocess.Popen

    def killed(*arguments, **named):
        process = real(*arguments, **named)
        process.kill()
        return process

    monkeypatch.setattr(beside.subprocess, "Popen", killed)
    with pytest.raises(TrainingError, match=r"an ensemble's members was ended by SIGKILL\. .* Run again to go on"):
        tiny.train(TWO)


def test_a_killed_training_goes_on_side_by_side(tiny, other, started, monkeypatch):
    settings = ("train.ensemble=3", "train.checkpoint_every_steps=4")
    expected, real, begun = in_turn(other, *settings), stages.train_model, []

    def killed(*arguments, **named):
        begun.append(named["folder"].name)

        def stop(done: int) -> None:
            if begun[-1] == "member-1" and done == 14:
                raise RuntimeError("the machine went away")

        return real(*arguments, **named, after_step=stop)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "train_model", killed)
        patch.setattr(beside, "START_S", 3.0)
        with pytest.raises(RuntimeError, match="went away"):
            tiny.train(*settings)
    assert begun == ["member-0", "member-1"]
    run = tiny.train(*settings)
    assert len(started) == 2
    assert_same(run, expected)
    rows = expected.summary["trained"]["rows"]
    assert run.summary["trained"]["rows"] == rows
    assert run.summary["trained"]["earlier_rows"] == rows // 3 + 12 * 256


def test_a_single_member_that_is_left_is_trained_in_turn_and_told_so(tiny, started, monkeypatch):
    real = stages.train_model

    def killed(*arguments, **named):
        if named["folder"].name == "member-2":
            raise RuntimeError("the machine went away")
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "train_model", killed)
        patch.setattr(beside, "START_S", 3.0)
        with pytest.raises(RuntimeError, match="went away"):
            tiny.train("train.ensemble=3")
    run = tiny.train("train.ensemble=3")
    told = run.summary["ensemble"]
    assert not started
    assert told["at_once"] == 1
    assert told["elapsed_seconds"] >= sum(told["seconds"])  # in turn none saves the time of another
    assert any("They were trained one after another" in text for text in run.summary["notes"])


def test_no_process_outlives_a_killed_run_which_goes_on_later(tiny, other):
    settings = (TWO, "train.epochs=40")
    run, numbers = side_by_side(tiny, settings)
    run.kill()
    run.communicate()
    assert_gone(numbers)
    assert_same(again := tiny.train(*settings), in_turn(other, *settings))
    assert again.summary["trained"]["earlier_rows"] > 0
    assert tiny.hidden() == []


def test_a_signal_ends_the_run_and_its_processes(tiny):
    """SIGINT takes the same way, as test_nightly.py and tests/pipeline/stages/test_stages.py show."""
    run, numbers = side_by_side(tiny, (TWO, "train.epochs=1000"))
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert "gigabatch: stopped by SIGTERM; run again to go on." in said
    assert_gone(numbers)


def side_by_side(tiny, settings):
    """A run in a process, once each of its two members has a checkpoint; and the numbers of the members' processes."""
    run = tiny.start(SIDE_BY_SIDE.format(settings=settings))
    numbers = [int(run.stdout.readline()) for _ in range(2)]
    while run.poll() is None and len(list(tiny.folder.glob("artifacts/*/*/member-*/checkpoint.pt"))) < 2:
        time.sleep(0.01)
    assert run.poll() is None, run.communicate()[1]
    return run, numbers


def assert_gone(numbers) -> None:
    until = time.monotonic() + 60
    while any(map(lives, numbers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(lives, numbers))


def lives(number: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_callbacks_are_told_by_members_in_turn(tiny, started):
    class Ends(Callback):
        told = 0

        def end(self, curve, model) -> None:
            self.told += 1

    told = Ends()
    run = Pipeline.from_config(tiny.config, TWO, callbacks=[told]).train()
    assert told.told == 2
    assert run.summary["ensemble"]["at_once"] == 1
    assert not started


def test_what_another_process_does_not_find_is_trained_in_turn(tiny, started, tmp_path, caplog, monkeypatch):
    (tmp_path / "line.py").write_text(MODEL)
    monkeypatch.setattr(OWN, "kinds", dict(OWN.kinds))
    spec = importlib.util.spec_from_file_location("only_here", tmp_path / "line.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "only_here", module)
    spec.loader.exec_module(module)
    run = tiny.pipeline({"model": {"kind": "line"}, "train.ensemble": 2}).train()
    assert len(started) == 2
    assert run.summary["ensemble"]["at_once"] == 1
    told = "OwnCodeError: model 'line' of only_here: imports: there is no module 'only_here'"
    assert f"members are trained in turn: {told}" in caplog.text


def test_what_cannot_cross_says_why(monkeypatch):
    with pytest.raises(CannotCross, match="lambda"):
        Beside(2, (), ()).packed(lambda asked: None)
    monkeypatch.setattr(beside, "told", lambda *_: {"what": "model", "name": "mine", "import": "__main__"})
    with pytest.raises(CannotCross, match=r"model 'mine' was registered in a notebook or a script\. Put it into"):
        Beside(2, (), (("model", "mine"),)).packed(None)


@pytest.mark.parametrize(
    ("members", "steps", "rows", "threads", "cores", "expected"),
    [
        (2, 900, 900_000, 1, 2, 2),  # 6.3 s saved
        (2, 700, 500_000, 1, 2, 1),  # 4.1 s
        (4, 700, 500_000, 1, 2, 2),  # two rounds fewer: 8.2 s
        (4, 10_000, 1_000_000, 2, 2, 1),
        (4, 10_000, 1_000_000, 1, 1, 1),
        (4, 10_000, 1_000_000, 1, 3, 2),  # the third would end no earlier
        (5, 10_000, 1_000_000, 2, 8, 3),  # four processes have room, and two rounds they all take
        (10, 10_000, 1_000_000, 1, 64, 5),  # of 10 GiB of memory eight tenths, of which a member takes 1.5
        (2, 0, 0, 1, 2, 1),
    ],
)
def test_as_many_at_once_as_cores_memory_and_what_it_saves_allow(
    monkeypatch, members, steps, rows, threads, cores, expected
):
    monkeypatch.setattr(beside, "available_cores", lambda: cores)
    monkeypatch.setattr(beside, "available_memory", lambda: 10 << 30)
    monkeypatch.setattr(beside, "resident_bytes", lambda: (1 << 40, 1 << 30))
    assert members_at_once(members, steps, rows, lambda: threads, 64 << 20) == expected
