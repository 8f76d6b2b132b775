"""Dropout on all cores of a CPU, compiled by numba; see `reference.py`."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loops import njit
from gigabatch.models.kernels.dropout.reference import WORD, threshold
from gigabatch.models.kernels.row_loops import numbers, read, rounded

BLOCK_ROWS = 64


@torch.no_grad()
def dropout(
    values: Tensor,
    out: Tensor,
    seed: Tensor,
    rate: float,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    start: int = 0,
) -> None:
    """As the reference."""
    assert values.dtype == out.dtype, (values.dtype, out.dtype)
    scales, shifts = np.full(values.shape[1], 1 / (1 - rate), np.float32), np.zeros(values.shape[1], np.float32)
    if scale is not None and shift is not None:
        scales, shifts = ((part.detach() / (1 - rate)).numpy() for part in (scale, shift))
    _dropout(numbers(values), numbers(out), *mask_of(seed, rate, start), scales, shifts)


def mask_of(seed: Tensor, rate: float, start: int = 0) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    """What `keeps` asks for: both halves of the seed and the threshold; and the number of the first element."""
    first, second = seed.tolist()
    return np.uint32(first), np.uint32(second), np.uint32(threshold(rate)), np.uint32(start % WORD)


@njit(inline="always")
def mixed(value):
    """The 32 bits of a number mixed."""
    value = np.uint32(np.uint32(value ^ np.uint32(value >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    value = np.uint32(np.uint32(value ^ np.uint32(value >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(value ^ np.uint32(value >> np.uint32(16)))


@njit(inline="always")
def keeps(counter, first, second, least):
    """1 where the mask keeps the element of this number (uint32), else 0, as float32."""
    stays = np.uint32(mixed(np.uint32(mixed(np.uint32(counter ^ first)) ^ second)) >> np.uint32(1)) >= least
    return np.float32(1) if stays else np.float32(0)


@njit(parallel=True)
def _dropout(values, out, first, second, least, start, scale, shift):
    num_rows, num_columns = values.shape
    for block in numba.prange(-(-num_rows // BLOCK_ROWS)):
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, num_rows)):
            line, found = values[row], out[row]
            begin = np.uint32(np.uint32(row * num_columns) + start)
            for i in range(num_columns):
                stays = keeps(np.uint32(begin + np.uint32(i)), first, second, least)
                found[i] = rounded((read(line[i]) * scale[i] + shift[i]) * stays, line[i])
