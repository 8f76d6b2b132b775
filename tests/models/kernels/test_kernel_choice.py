"""Which version of a kernel runs, and what is said where there is none."""

import os
import subprocess
import sys

import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.kernels import KERNELS, kernel


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
