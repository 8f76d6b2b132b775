"""Kernels, each with one signature and three versions: plain torch, numba for CPUs, Triton for CUDA.

A kernel is a folder with its versions `reference.py`, `cpu.py` and `cuda.py`; `kernel(name, device)` picks one.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch

from gigabatch.models.errors import ModelError, require_known

VERSIONS = ("reference", "cpu", "cuda")
KERNELS = ("lookup", "row_update", "folded", "dropout")


def kernel(name: str, device: torch.device | str, version: str | None = None) -> ModuleType:
    """The module of kernel `name` for tensors on `device`: its compiled version, or the one that `version` names.

    Raises:
        ModelError: for a version that does not exist or cannot run on the device. There is no other choice behind it.
    """
    assert name in KERNELS, name
    kind = torch.device(device).type
    chosen = version or ("cuda" if kind == "cuda" else "cpu")
    require_known("kernel version", [chosen], VERSIONS)
    if chosen == "cpu":
        _start_threads()
    if chosen != "reference" and chosen != kind:
        raise ModelError(
            f"the {chosen} version of {name} cannot run on {kind} tensors. Use that device or `reference`."
        )
    try:
        return import_module(f"gigabatch.models.kernels.{name}.{chosen}")
    except ImportError as error:
        raise ModelError(
            f"the {chosen} version of {name} needs {error.name}, which is not installed. Install it, or ask for the "
            "version `reference`."
        ) from error


@lru_cache(maxsize=1)
def _start_threads() -> None:
    """Start numba's threads, as many as torch has.

    As they start they set OpenMP's number of threads for the process, torch's with it, to that of the cores; but sums
    that torch takes in as many parts as it has threads, such as batch norm's, depend on it in the last bits.
    """
    import numba

    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)
