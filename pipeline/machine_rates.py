"""What this machine's memory and arithmetic can do at most, measured in a second or two: the ceilings of a profile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.kernels import kernel

REPEATS = 5
EMBEDDING_WORDS = 16  # of a random read: 64 bytes, a cache line and a common width of an embedding


@dataclass(frozen=True)
class Rates:
    """copy: bytes read and written a second by a large copy. random, packed: bytes a second of rows read in random
    order from a large table, rows of 64 bytes and of `packed_words` words; ids and output are not counted. matmul:
    floating-point operations a second of a square matrix product in `dtype`."""

    copy: float
    random: float
    packed: float
    packed_words: int
    matmul: float
    dtype: torch.dtype

    def __str__(self) -> str:
        return (
            f"copy {self.copy / 1e9:,.1f} GB/s; random rows of 64 bytes {self.random / 1e9:,.1f} GB/s "
            f"({self.random / 4 / EMBEDDING_WORDS / 1e6:,.0f}M/s), of {4 * self.packed_words} bytes "
            f"{self.packed / 1e9:,.1f} GB/s; products in {str(self.dtype).removeprefix('torch.')} "
            f"{self.matmul / 1e9:,.0f} GFLOP/s"
        )


def measure_rates(
    device: str, dtype: torch.dtype, packed_words: int, num_bytes: int = 1 << 29, side: int = 2048
) -> Rates:
    """Measure on `device`, medians of five: torch's copy and product, and reads by the kernel `lookup`.

    num_bytes: of the table that is copied and read from; it should be far larger than the caches. side: of the square
    matrices, far larger than a model's, so that the rate is one that its products cannot reach.
    """
    words = torch.ones(num_bytes // 4, device=device)  # zeros would be one page of the system's until written
    half = len(words) // 2
    left, right = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty(side, side, device=device, dtype=dtype)
    copied = seconds_of(lambda: words[:half].copy_(words[half : 2 * half]), device)
    multiplied = seconds_of(lambda: torch.mm(left, right, out=product), device)
    return Rates(
        copy=2 * half * 4 / copied,
        random=_random_rate(words, EMBEDDING_WORDS),
        packed=_random_rate(words, packed_words),
        packed_words=packed_words,
        matmul=2 * side**3 / multiplied,
        dtype=dtype,
    )


def _random_rate(words: torch.Tensor, row_words: int) -> float:
    """Bytes a second of rows of `row_words` words, read in random order from `words` taken as a table of such rows."""
    table = words[: len(words) // row_words * row_words].view(-1, row_words)
    ids = torch.randint(len(table), (max(len(table) // 8, 1), 1), dtype=torch.int32, device=words.device)
    rows = torch.empty(len(ids), row_words, device=words.device)
    lookup = kernel("lookup", words.device).lookup  # fetches ahead, which torch's own gather does not
    return rows.numel() * 4 / seconds_of(lambda: lookup(ids, [table], rows), str(words.device))


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Median seconds of `work` after one run that is not counted."""
    work()
    seconds = []
    for _ in range(REPEATS):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
