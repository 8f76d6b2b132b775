"""Which version of a kernel runs, and what is said where there is none."""

import importlib
import os
import subprocess
import sys
import threading

import pytest
import torch

from gigabatch.models import kernels
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import KERNELS, kernel, using_kernels
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("device", "version", "found"),
    [
        ("cpu", None, "cpu"),
        ("cpu", "cpu", "cpu"),
        ("cpu", "reference", "reference"),
        ("cuda:1", "reference", "reference"),
    ],
)
def test_a_device_has_its_version_and_the_reference_runs_anywhere(name, device, version, found):
    assert kernel(name, torch.device(device), version).__name__ == f"gigabatch.models.kernels.{name}.{found}"


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0)])
def test_cuda_tensors_go_to_triton(name, device):
    pytest.importorskip("triton")
    assert (
        kernel(name, device).__name__
        == kernel(name, device, "cuda").__name__
        == f"gigabatch.models.kernels.{name}.cuda"
    )


def test_a_choice_of_kernels_holds_within_its_block_and_for_every_device():
    with using_kernels("reference"):
        assert kernel("folded", "cpu").__name__ == "gigabatch.models.kernels.folded.reference"
        assert kernel("folded", "cuda").__name__ == "gigabatch.models.kernels.folded.reference"
        assert kernel("folded", "cpu", "cpu").__name__ == "gigabatch.models.kernels.folded.cpu"
        with using_kernels("compiled"):
            assert kernel("folded", "cpu").__name__ == "gigabatch.models.kernels.folded.cpu"
    assert kernel("folded", "cpu").__name__ == "gigabatch.models.kernels.folded.cpu"
    with (
        pytest.raises(ModelError, match=r"unknown kernels 'plain'\. Known: compiled, reference"),
        using_kernels("plain"),
    ):
        pass


@pytest.mark.parametrize("folded", [True, False])
def test_a_backward_pass_in_another_thread_runs_the_version_of_its_forward_pass(folded, monkeypatch):
    """On a GPU autograd has threads of its own, which know no context variable."""
    model = TabularModel(ModelInputs((20, 7), 3), TabularSettings(layers=(8, 4), dropout=0.3, embedding_dropout=0.2))
    model.folded = folded
    optimizer = build_optimizer(model, "lamb", lr=0.1)
    loaded = []
    monkeypatch.setattr(kernels, "import_module", lambda name: loaded.append(name) or importlib.import_module(name))
    with using_kernels("reference"):
        outputs = model(torch.randint(0, 7, (30, 2), dtype=torch.int32), torch.randn(30, 3))
        backward = threading.Thread(target=outputs.sum().backward)
        backward.start()
        backward.join()
        optimizer.step()
    assert len(loaded) > 2
    assert {name.rpartition(".")[2] for name in loaded} == {"reference"}
    assert all(table.isfinite().all() for table in model.embeddings.weights)


def test_an_unknown_version_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"unknown kernel version 'numba'\. Known: reference, cpu, cuda"):
        kernel("lookup", "cpu", "numba")


@pytest.mark.parametrize(("device", "version"), [("cpu", "cuda"), ("cuda", "cpu"), ("mps", None)])
def test_a_version_that_cannot_run_on_the_device_is_an_error(device, version):
    with pytest.raises(ModelError, match=f"version of lookup cannot run on {device} tensors. .*`reference`"):
        kernel("lookup", device, version)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "gigabatch.models.kernels.lookup.cuda", raising=False)
    with pytest.raises(ModelError, match="cuda version of lookup needs triton, which is not installed"):
        kernel("lookup", "cuda")


def test_starting_numbas_threads_leaves_torchs_number():
    """In a process of its own, where OpenMP is told another number than there are cores."""
    code = (
        "import torch\nfrom gigabatch.models.kernels import kernel\n"
        "kernel('folded', 'cpu').column_moments(torch.ones(1000, 2))\nprint(torch.get_num_threads())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == "1"
