"""What a user's code is told while a model is trained, and what it cannot change."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gigabatch
from gigabatch import Callback, Pipeline
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.training.train import TrainingError

PAGE = Path(__file__).parents[3] / "docs" / "tracking.md"


class Told(Callback):
    """Keeps what it is told; draws random numbers beside that, and leaves the model in evaluation mode."""

    def __init__(self):
        self.calls = []

    def begin(self, model, num_steps, done_steps):
        self.calls.append(("begin", num_steps, done_steps))
        self.disturb(model)

    def epoch(self, points, model):
        first = next(model.parameters()).detach().clone()
        self.calls.append(("epoch", [point["step"] for point in points], points[-1]["valid_loss"], first))
        self.disturb(model)

    def end(self, curve, model):
        self.calls.append(
            ("end", [point["step"] for point in curve], {k: v.clone() for k, v in model.state_dict().items()})
        )
        self.disturb(model)

    def disturb(self, model):
        model.eval()
        torch.rand(3), random.random(), np.random.random()

    def named(self, name):
        return [call for call in self.calls if call[0] == name]


def weights(run) -> dict[str, torch.Tensor]:
    return run.bundle().model.state_dict()


def test_the_loop_tells_each_epoch_and_the_weights_are_those_of_a_training_without_callbacks(tiny, trained):
    told = Told()
    run = Pipeline(load_config(tiny.config), callbacks=[told]).train()
    steps = run.curve[-1]["step"]
    assert [call[0] for call in told.calls] == ["begin", "epoch", "epoch", "end"]
    assert told.calls[0][1:] == (steps, 0)
    epochs = told.named("epoch")
    assert epochs[0][1][-1] == steps // 2
    assert epochs[0][1] + epochs[1][1] == told.calls[-1][1] == [point["step"] for point in run.curve]
    losses = [point["valid_loss"] for point in run.curve if "valid_loss" in point]
    assert [call[2] for call in epochs] == losses
    assert not torch.equal(epochs[0][3], epochs[1][3])
    found, alone = weights(run), weights(trained[1])  # dropout is on, so that a draw of its own would show
    assert found.keys() == alone.keys() == told.calls[-1][2].keys()
    for name, value in alone.items():
        assert torch.equal(found[name], value), name
        assert torch.equal(told.calls[-1][2][name], value), name


def test_a_training_that_is_skipped_tells_nothing(finished):
    told = Told()
    run = Pipeline.from_config(finished.config, callbacks=[told]).train()
    assert "train" in run.skipped
    assert told.calls == []


class EndsAt(Callback):
    """Fails, or is stopped, in one of its methods."""

    def __init__(self, method, error):
        self.method, self.error = method, error

    def begin(self, *_):
        self.reach("begin")

    def epoch(self, *_):
        self.reach("epoch")

    def end(self, *_):
        self.reach("end")

    def reach(self, name):
        if name == self.method:
            raise self.error


@pytest.mark.parametrize("method", ["begin", "epoch", "end"])
def test_what_a_callback_raises_ends_the_training_and_names_it(tiny, method):
    callbacks = [Told(), EndsAt(method, ZeroDivisionError("it was 0"))]
    with pytest.raises(
        TrainingError, match=rf"callback EndsAt: {method} raised ZeroDivisionError: it was 0 \(.*, line"
    ):
        Pipeline(load_config(tiny.config), callbacks=callbacks).train()
    assert tiny.artifacts("train") == []


def test_a_training_that_was_stopped_goes_on_and_tells_from_there(tiny, trained):
    config, told = load_config(tiny.config), Told()
    pipeline = Pipeline(config, callbacks=[OnSecond()])
    with pytest.raises(KeyboardInterrupt):  # in the second epoch, after whose first there is a checkpoint
        pipeline.train()
    run = Pipeline(config, callbacks=[told]).train()
    steps = run.curve[-1]["step"]
    assert told.calls[0][1:] == (steps, steps // 2)
    assert [call[0] for call in told.calls] == ["begin", "epoch", "end"]
    assert told.named("epoch")[0][1][0] > steps // 2
    assert told.calls[-1][1] == [point["step"] for point in run.curve]  # whole
    assert all(torch.equal(value, weights(run)[name]) for name, value in weights(trained[1]).items())


class OnSecond(Callback):
    def __init__(self):
        self.count = 0

    def epoch(self, points, model):
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("given", [Told, "told", [Told]])
def test_what_is_no_callback_is_refused_before_any_work(tiny, given):
    with pytest.raises(TypeError, match=r"callbacks: a list of gigabatch\.Callback objects is needed, found"):
        Pipeline(load_config(tiny.config), callbacks=given)


def test_the_example_of_the_docs_runs(tiny, capsys, monkeypatch):
    code = re.search(r"## Callbacks\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    monkeypatch.chdir(tiny.folder)
    Path("run.yaml").write_text(tiny.config.read_text())
    exec(code, {})
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    points = [point for point in tiny.latest().curve if "valid_loss" in point]
    assert shown == [[str(point["step"]), str(point["valid_loss"])] for point in points]
    assert gigabatch.Callback is Callback
