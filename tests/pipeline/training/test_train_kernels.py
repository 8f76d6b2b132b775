"""`train.kernels`: a training in plain torch where the compiled kernels are not wanted, on any device."""

import importlib
import logging

import pytest
import torch

import gigabatch.loaders.order.gather as gather_module
import gigabatch.loaders.order.order as order_module
from gigabatch.models import kernels
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.optimizers.schedule import Constant
from gigabatch.pipeline.config.config import ConfigError, parse_config
from gigabatch.pipeline.training.train import TrainingError
from gigabatch.pipeline.training.train_step import use_cuda_graph
from tests.pipeline.training.test_train import make_model, run, settings_of


@pytest.fixture
def used(monkeypatch):
    """Versions of kernels that were asked for, and pieces of batches that compiled loops gathered."""
    found = {"versions": set(), "gathered": 0}
    share = gather_module._share

    def load(name):
        found["versions"].add(name.rpartition(".")[2])
        return importlib.import_module(name)

    def counted(task, count, num_threads):
        found["gathered"] += count
        share(task, count, num_threads)

    monkeypatch.setattr(kernels, "import_module", load)
    monkeypatch.setattr(gather_module, "_share", counted)
    monkeypatch.setattr(order_module, "SORTED_ROWS", 1)  # the table of this test has a network, as large ones do
    return found


def test_a_training_in_plain_torch_runs_no_compiled_kernel_and_learns_the_same(tmp_path, used):
    plain = run(tmp_path / "reference", settings_of(kernels="reference"))
    assert used == {"versions": {"reference"}, "gathered": 0}
    compiled = run(tmp_path / "compiled", settings_of())
    assert "cpu" in used["versions"]
    assert used["gathered"] >= 20
    losses = [[line["valid_loss"] for line in one.curve if "valid_loss" in line] for one in (plain, compiled)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-3, atol=1e-4)


def test_a_configuration_chooses_the_kernels():
    config = {"name": "run", "recipe": "flights", "train": {"kernels": "reference"}}
    assert parse_config(config).train.kernels == "reference"
    assert parse_config(config | {"train": {}}).train.kernels == "compiled"
    with pytest.raises(ConfigError, match="compiled"):
        parse_config(config | {"train": {"kernels": "plain"}})


def test_plain_torch_is_not_captured_in_a_graph(caplog):
    caplog.set_level(logging.INFO)
    optimizer, schedule = build_optimizer(make_model(), "lamb", lr=0.1), Constant(0.1, 10)
    assert use_cuda_graph("auto", torch.device("cuda"), optimizer, schedule)
    assert not use_cuda_graph("auto", torch.device("cuda"), optimizer, schedule, kernels="reference")
    assert "waits for the device where it sums gradients" in caplog.text
    with pytest.raises(TrainingError, match=r"train\.cuda_graph=on: .*train\.kernels=reference"):
        use_cuda_graph("on", torch.device("cuda"), optimizer, schedule, kernels="reference")
