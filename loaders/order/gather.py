"""Whole rows of a table in the order of an epoch.

Compiled loops compute the rows and copy them in one pass, on the CPU (`loaders/kernels/gather_loops.py`) and on a GPU
(`gather_cuda.py`). For tables of few rows, and where the reference is asked for, torch does it, bit for bit the same.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.order import SampleOrder

CHOICES = ("compiled", "reference")
TASK_ROWS = 8192  # what a thread takes at a time; a smaller batch is done before another thread would wake up


def gather_shuffled(
    table: Tensor, order: SampleOrder, start: int, stop: int, out: Tensor, kernels: str = "compiled"
) -> Tensor:
    """Copy rows `order([start, stop))` of `table` [N, W] int32 into `out` [stop - start, W] on the same device.

    Both are contiguous. kernels: of `CHOICES`; `reference` is torch's operations on any device. The result does not
    depend on the number of threads, torch.get_num_threads() on the CPU.

    Raises:
        LoaderError: for other kernels, or compiled ones on a GPU without Triton.
    """
    assert 0 <= start <= stop <= order.num_rows == len(table), (start, stop, order, table.shape)
    assert out.shape == (stop - start, table.shape[1]), (out.shape, start, stop, table.shape)
    assert out.dtype == table.dtype == torch.int32, (out.dtype, table.dtype)
    assert out.device == table.device, (out.device, table.device)
    assert out.is_contiguous()
    assert table.is_contiguous()
    compiled = require_kernels(kernels) == "compiled" and order.has_network
    if compiled and table.device.type == "cuda":
        _on_cuda().gather_shuffled(table, order, start, stop, out)
        return out
    if not compiled or table.device.type != "cpu":
        return torch.index_select(table, 0, order(torch.arange(start, stop, device=table.device)), out=out)
    from gigabatch.loaders.kernels import gather_loops

    row_bytes, network = 4 * table.shape[1], order.network_numbers

    def task(number: int) -> None:
        done = number * TASK_ROWS
        size = min(TASK_ROWS, stop - start - done)
        target = out.data_ptr() + done * row_bytes
        gather_loops.gather_shuffled(table.data_ptr(), row_bytes, start + done, size, target, network)

    _share(task, -(-(stop - start) // TASK_ROWS), torch.get_num_threads())
    return out


def require_kernels(kernels: str) -> str:
    """One of `CHOICES`, or a `LoaderError` that lists them."""
    if kernels not in CHOICES:
        raise LoaderError(f"unknown kernels {kernels!r}. Known: {', '.join(CHOICES)}.")
    return kernels


def _on_cuda() -> ModuleType:
    try:
        return import_module("gigabatch.loaders.order.gather_cuda")
    except ImportError as error:
        raise LoaderError(
            f"rows on a GPU are gathered by {error.name}, which is not installed. Install it, or take the kernels "
            "`reference`."
        ) from error


def _share(task: Callable[[int], None], count: int, num_threads: int) -> None:
    """Call task(0) .. task(count - 1), this thread and helpers each taking the next one when it has done its own.

    This thread starts at once and does not wait for a helper that has not: on busy cores, or in a forked process where
    helpers do not exist, it does all the tasks. OpenMP's equal shares would wait for the slowest, and numba's OpenMP
    is another library than torch's, whose threads keep their cores busy for milliseconds after each of its loops.
    """
    numbers = iter(range(count))

    def work() -> None:
        for number in numbers:
            task(number)

    num_helpers = min(num_threads, count) - 1
    started = [_helpers(num_threads - 1).submit(work) for _ in range(num_helpers)]
    try:
        work()
    finally:  # no helper may go on writing when this call has ended, in whatever way
        wait([helper for helper in started if not helper.cancel()])
    for helper in started:
        if not helper.cancelled():
            helper.result()


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="gather")
