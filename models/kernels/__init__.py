"""Kernels, each with one signature and three versions: plain torch, numba for CPUs, Triton for CUDA.

A kernel is a folder with its versions `reference.py`, `cpu.py` and `cuda.py`; `kernel(name, device)` picks one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch

from gigabatch.loops import is_serial
from gigabatch.models.errors import ModelError, require_known

log = logging.getLogger(__name__)
VERSIONS = ("reference", "cpu", "cuda")
CHOICES = ("compiled", "reference")
KERNELS = ("lookup", "pooled_lookup", "row_update", "folded", "dropout")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # that activations and gradients may have; tables are float32


def kernel(name: str, device: torch.device | str, version: str | None = None) -> ModuleType:
    """The module of kernel `name` for tensors on `device`: the version named, or by default that of `using_kernels`.

    A backward pass keeps the one of its forward pass: autograd runs it in a thread of its own on a GPU, where no
    `using_kernels` holds.

    Raises:
        ModelError: for a version that does not exist or cannot run on the device. There is no other choice behind it.
    """
    assert name in KERNELS, name
    kind = torch.device(device).type
    own = "cuda" if kind == "cuda" else "cpu"
    chosen = version or (own if _choice.get() == "compiled" else "reference")
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


def takes_tables(dtype: torch.dtype, version: str | None = None) -> bool:
    """Whether kernels take tables of this type: float32 alone, but for plain torch."""
    return dtype == torch.float32 or version == "reference" or _choice.get() == "reference"


def cpu_loops(device: torch.device) -> bool:
    """Whether to compute on `device` by compiled loops, for what has them on a CPU alone (`interpolate`)."""
    # A trace knows no context variables, so it is asked about first.
    found = device.type == "cpu" and not torch.compiler.is_compiling() and _choice.get() == "compiled"
    if found:
        _start_threads()
    return found


_choice: ContextVar[str] = ContextVar("kernels", default="compiled")


@contextmanager
def using_kernels(choice: str) -> Iterator[None]:
    """Within it `kernel` gives the device's compiled versions (`compiled`), or plain torch on any device (`reference`).

    Raises:
        ModelError: for another choice.
    """
    require_known("kernels", [choice], CHOICES)
    before = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(before)


@lru_cache(maxsize=1)
def _start_threads() -> None:
    """Start numba's threads, as many as torch has.

    As they start they set OpenMP's number of threads for the process, torch's with it, to that of the cores; but sums
    that torch takes in as many parts as it has threads, such as batch norm's, depend on it in the last bits.
    """
    import numba

    if is_serial():
        log.warning(
            "This process computes on one thread: it was forked from one whose threads had started. Begin processes by "
            "spawn or forkserver, fork before the first fit or prediction, or install tbb."
        )
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)


os.register_at_fork(after_in_child=_start_threads.cache_clear)
