"""Elementwise passes of the folded network on all cores of a CPU, compiled by numba; see `reference.py`.

Sums are taken over blocks of fixed size in float32 and over the blocks in float64, so they do not depend on threads.
Far from zero a variance is a small difference of large numbers. So moments of raw values are in float64 throughout, and
those of activations in float32 only as differences from the mean of a few rows. That mean is rounded, and both sums
take it as it is, so that the variance is hardly off by it.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loops import njit
from gigabatch.models.kernels.dropout.cpu import keeps, mask_of
from gigabatch.models.kernels.row_loops import numbers, quickly_rounded, read

BLOCK_ROWS = 256
NEAR_ROWS = 32  # of activations, which are still in the cache when their mean is known


@torch.no_grad()
def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    partial = np.empty((-(-len(values) // BLOCK_ROWS), 2, values.shape[1]))
    _columns(numbers(values), partial)
    sums = torch.from_numpy(partial.sum(axis=0))
    return sums[0], sums[1]


@torch.no_grad()
def relu_moments(values: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As the reference."""
    partial = np.empty((-(-len(values) // BLOCK_ROWS), 2, values.shape[1]))
    added = np.zeros(values.shape[1], np.float32) if bias is None else bias.detach().numpy()
    _relu(numbers(values), added, partial)
    sums = torch.from_numpy(partial.sum(axis=0))
    return sums[0], sums[1]


@torch.no_grad()
def dropped_sums(gradient: Tensor, hidden: Tensor, seed: Tensor, rate: float, start: int = 0) -> tuple[Tensor, Tensor]:
    """As the reference."""
    partial = np.empty((-(-len(gradient) // BLOCK_ROWS), 2, gradient.shape[1]), np.float32)
    _dropped(numbers(gradient), numbers(hidden), *mask_of(seed, rate, start), partial)
    sums = torch.from_numpy(partial.sum(axis=0, dtype=np.float64)) / (1 - rate)
    return sums[0], sums[1]


@torch.no_grad()
def norm_relu_backward(
    gradient: Tensor,
    hidden: Tensor,
    slope: Tensor,
    offset: Tensor,
    scale: Tensor | None = None,
    seed: Tensor | None = None,
    rate: float = 0.0,
    start: int = 0,
) -> Tensor:
    """As the reference."""
    partial = np.empty((-(-len(gradient) // BLOCK_ROWS), gradient.shape[1]), np.float32)
    arrays = numbers(gradient), numbers(hidden), slope.numpy(), offset.numpy()
    if scale is None or seed is None:
        _backward(*arrays, partial)
    else:
        _dropped_backward(*arrays, (scale / (1 - rate)).numpy(), *mask_of(seed, rate, start), partial)
    return torch.from_numpy(partial.sum(axis=0, dtype=np.float64))


@njit(parallel=True)
def _columns(values, partial):
    for block in numba.prange(partial.shape[0]):
        sums, squares = partial[block, 0], partial[block, 1]
        sums[:] = 0
        squares[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, values.shape[0])):
            for i in range(len(sums)):
                value = np.float64(read(values[row, i]))
                sums[i] += value
                squares[i] += value * value


@njit(parallel=True)
def _relu(values, bias, partial):
    for block in numba.prange(partial.shape[0]):
        sums, squares = partial[block, 0], partial[block, 1]
        sums[:] = 0
        squares[:] = 0
        mean, spread = np.empty(len(sums), np.float32), np.empty(len(sums), np.float32)
        end = min((block + 1) * BLOCK_ROWS, values.shape[0])
        for first in range(block * BLOCK_ROWS, end, NEAR_ROWS):
            last = min(first + NEAR_ROWS, end)
            mean[:] = 0
            spread[:] = 0
            for row in range(first, last):
                line = values[row]
                for i in range(len(sums)):
                    value = read(line[i]) + bias[i]
                    stored = quickly_rounded(np.float32(0) if value < 0 else value, line[i])  # a NaN stays
                    line[i] = stored
                    mean[i] += read(stored)
            share = np.float32(1) / np.float32(last - first)
            for i in range(len(sums)):
                mean[i] *= share
            for row in range(first, last):
                line = values[row]
                for i in range(len(sums)):
                    value = read(line[i]) - mean[i]
                    spread[i] += value * value
            for i in range(len(sums)):
                exact = np.float64(mean[i])
                sums[i] += (last - first) * exact
                squares[i] += spread[i] + (last - first) * exact * exact


@njit(parallel=True)
def _backward(gradient, hidden, slope, offset, partial):
    for block in numba.prange(partial.shape[0]):
        sums = partial[block]
        sums[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, gradient.shape[0])):
            line, states = gradient[row], hidden[row]
            for i in range(len(sums)):
                state = read(states[i])
                moved = read(line[i]) + (slope[i] * state + offset[i])
                stored = quickly_rounded(np.float32(0) if state <= 0 else moved, line[i])
                line[i] = stored
                sums[i] += read(stored)


@njit(parallel=True)
def _dropped(gradient, hidden, first, second, least, start, partial):
    for block in numba.prange(partial.shape[0]):
        sums, products = partial[block, 0], partial[block, 1]
        sums[:] = 0
        products[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, gradient.shape[0])):
            line, states = gradient[row], hidden[row]
            begin = np.uint32(np.uint32(row * len(sums)) + start)
            for i in range(len(sums)):
                value = read(line[i]) * keeps(np.uint32(begin + np.uint32(i)), first, second, least)
                sums[i] += value
                products[i] += value * read(states[i])


@njit(parallel=True)
def _dropped_backward(gradient, hidden, slope, offset, scale, first, second, least, start, partial):
    for block in numba.prange(partial.shape[0]):
        sums = partial[block]
        sums[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, gradient.shape[0])):
            line, states = gradient[row], hidden[row]
            begin = np.uint32(np.uint32(row * len(sums)) + start)
            for i in range(len(sums)):
                state = read(states[i])
                value = read(line[i]) * (scale[i] * keeps(np.uint32(begin + np.uint32(i)), first, second, least))
                moved = value + (slope[i] * state + offset[i])
                stored = quickly_rounded(np.float32(0) if state <= 0 else moved, line[i])
                line[i] = stored
                sums[i] += read(stored)
