"""Models of users: outputs that no model can be trained by, tied weights, half precision."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.model import Model, model_call
from gigabatch.models.shelf import OWN, register_model
from gigabatch.pipeline.config.config import ConfigError
from gigabatch.pipeline.export.export import traced
from gigabatch.pipeline.lab.compare.compare import _unless_it_fails
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.checkpoint import TrainingError


@dataclass(frozen=True)
class NoSettings:
    pass


class Line(Model):
    Settings = NoSettings

    def __init__(self, inputs, settings):
        super().__init__(inputs, settings)
        self.head = nn.Linear(inputs.num_floats, inputs.num_outputs)

    def forward(self, ids, floats):
        return self.head(floats)


class Detached(Line):
    def forward(self, ids, floats):
        return self.head(floats).detach()


class Pair(Line):
    def forward(self, ids, floats):
        return self.head(floats), 1


class Counts(Line):
    """Its outputs follow from a number of Python, as if it were a weight."""

    steps = 0

    def forward(self, ids, floats):
        self.steps += self.training
        return self.head(floats) + 0.3 * self.steps


class Tied(Line):
    def __init__(self, inputs, settings):
        super().__init__(inputs, settings)
        self.again = self.head
        self.view = nn.Parameter(self.head.weight.detach().flatten()[:1])

    def forward(self, ids, floats):
        return (self.head(floats) + self.again(floats)) / 2 + self.view


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains a model of these on 300 rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OWN, "kinds", dict(OWN.kinds))
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"km": rng.uniform(1, 9, 300)})
    rows.assign(late=(rows["km"] + rng.normal(size=300) < 4).astype(int)).to_csv("trips.csv", index=False)
    features = {"path": "trips.csv", "continuous": ["km"], "targets": {"late": {"task": "binary"}}}

    def train(kind):
        name = kind.__name__.lower()
        register_model(name)(kind)
        config = {"name": name, "recipe": "table", "features": features, "model": {"kind": name}}
        plain = {"importance": False, "baselines": []}
        return Pipeline.from_config(config | {"train": {"epochs": 2}, "evaluate": plain}).train()

    return train


@pytest.mark.parametrize(
    ("give", "found"),
    [
        (lambda out: (out, out), "tuple"),
        (lambda out: {"late": out}, "dict"),
        (lambda out: None, "NoneType"),
        (lambda out: out.long(), r"a tensor of torch\.int64"),
    ],
)
def test_what_is_no_tensor_of_floats_is_named(give, found):
    class Own(Line):
        def forward(self, ids, floats):
            return give(self.head(floats))

    with pytest.raises(
        ModelError, match=rf"^Own\.forward gave {found}\. Return one tensor \[rows, outputs\] of floats"
    ):
        model_call(Own(ModelInputs(num_ids=(), num_floats=2), NoSettings()), torch.zeros(3, 0), torch.zeros(3, 2))


def test_outputs_of_half_precision_are_given_as_float32_of_the_same_value():
    class Own(Line):
        def forward(self, ids, floats):
            return floats.bfloat16()

    found = model_call(
        Own(ModelInputs(num_ids=(), num_floats=2), NoSettings()), torch.zeros(1, 0), torch.ones(1, 2) / 3
    )
    assert found.dtype == torch.float32
    assert found.tolist() == [[0.333984375] * 2]  # the nearest number of 8 bits to a third


def test_an_exported_model_of_half_precision_gives_float32(monkeypatch):
    class Own(Line):
        def forward(self, ids, floats):
            return floats.bfloat16()

    monkeypatch.setattr(OWN, "kinds", OWN.kinds | {"own": Own})
    model, rows = Own(ModelInputs(num_ids=(), num_floats=2), NoSettings()), torch.ones(4, 2)
    found = traced(model, torch.zeros(4, 0, dtype=torch.int32), rows).module()(torch.zeros(4, 0).int(), rows)
    assert found.dtype == torch.float32


def test_no_epoch_is_trained_of_outputs_that_train_nothing(trained, tmp_path):
    with pytest.raises(TrainingError, match=r"^Detached gave outputs that no weight is trained by: they are detached"):
        trained(Detached)
    with pytest.raises(ModelError, match=r"^Pair\.forward gave tuple\."):
        trained(Pair)
    assert not list(tmp_path.glob("artifacts/train/*"))


def test_tied_weights_are_saved_and_loaded(trained):
    run = trained(Tied)
    weights = load_file(run.path / "model" / "weights.safetensors")
    assert torch.equal(weights["head.weight"], weights["again.weight"])
    rows = pd.DataFrame({"km": np.float32([2.0])})
    bundle = run.bundle()
    assert bundle.model.again is bundle.model.head
    packed = torch.from_numpy(bundle.preprocessor.pack(rows, targets=False)).view(torch.float32)
    logit = packed[0] @ weights["head.weight"][0] + weights["head.bias"][0] + weights["view"][0]
    assert bundle.predict(rows)["late"].item() == pytest.approx(torch.sigmoid(logit).item(), abs=1e-6)


def test_what_a_bundle_does_not_keep_is_warned_of(trained, caplog):
    trained(Line)
    assert "once it is loaded" not in caplog.text
    run = trained(Counts)
    losses = [point["valid_loss"] for point in run.curve if "valid_loss" in point]
    (said,) = [text for text in caplog.messages if "once it is loaded" in text]
    found, trained_to = map(float, re.findall(r"\d+\.\d{5}", said))
    assert any(abs(trained_to - loss) < 1e-5 for loss in losses)
    logloss = run.summary["metrics"]["valid"]["logloss"]
    assert found == pytest.approx(logloss, abs=1e-4) != trained_to


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), ZeroDivisionError("of a user")])
@pytest.mark.parametrize("where", ["__init__", "forward"])
def test_a_second_model_that_fails_loses_no_training(trained, caplog, where, error):
    class Once(Line):
        """Fails once, where it is made anew after it was trained."""

        was_trained, failed = False, False

        def __init__(self, inputs, settings):
            super().__init__(inputs, settings)
            self.is_trained = False
            if where == "__init__":
                self.fail()

        def forward(self, ids, floats):
            self.is_trained |= self.training
            Once.was_trained |= self.training
            if not self.is_trained:
                self.fail()
            return self.head(floats)

        def fail(self):
            if Once.was_trained and not Once.failed:
                Once.failed = True
                raise error

    caplog.set_level("INFO")
    run = trained(Once)
    assert Once.failed
    losses = [point["valid_loss"] for point in run.curve if "valid_loss" in point]
    assert run.summary["metrics"]["valid"]["logloss"] == pytest.approx(min(losses), abs=1e-4)
    assert f"Once: whether a bundle keeps all of it was not checked: {error!r}" in caplog.messages


def test_any_error_of_a_model_of_a_user_leaves_the_others_to_be_compared(monkeypatch):
    def fails():
        raise RuntimeError("mat1 and mat2 shapes\ncannot be multiplied")

    monkeypatch.setattr(OWN, "kinds", {"line": Line})
    assert _unless_it_fails(fails, "line") == (None, "RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError):
        _unless_it_fails(fails, "tabular")


def test_a_mapping_is_given_to_from_config():
    with pytest.raises(ConfigError, match=r"^Pipeline takes a RunConfig, not a dict\. .*Pipeline\.from_config"):
        Pipeline({"name": "trips"})
