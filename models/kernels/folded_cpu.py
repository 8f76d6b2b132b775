"""Elementwise passes of the folded network on all cores of a CPU, compiled by numba; see `folded_reference.py`.

Sums are taken over blocks of fixed size in float32 and over the blocks in float64, so they do not depend on threads.
Only those of raw values are in float64 throughout: far from zero their variance is a small difference of large numbers.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from models.kernels.row_loops import from_bfloat16, to_bfloat16

BLOCK_ROWS = 256


@torch.no_grad()
def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    partial = np.empty((-(-len(values) // BLOCK_ROWS), 2, values.shape[1]))
    loop = _column_halves if values.dtype == torch.bfloat16 else _column_floats
    loop(_array(values), partial)
    sums = torch.from_numpy(partial.sum(axis=0))
    return sums[0], sums[1]


@torch.no_grad()
def relu_moments(values: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As the reference."""
    partial = np.empty((-(-len(values) // BLOCK_ROWS), 2, values.shape[1]), np.float32)
    added = np.zeros(values.shape[1], np.float32) if bias is None else bias.detach().numpy()
    loop = _relu_halves if values.dtype == torch.bfloat16 else _relu_floats
    loop(_array(values), added, partial)
    sums = torch.from_numpy(partial.sum(axis=0, dtype=np.float64))
    return sums[0], sums[1]


@torch.no_grad()
def norm_relu_backward(gradient: Tensor, hidden: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """As the reference."""
    partial = np.empty((-(-len(gradient) // BLOCK_ROWS), gradient.shape[1]), np.float32)
    loop = _backward_halves if gradient.dtype == torch.bfloat16 else _backward_floats
    loop(_array(gradient), _array(hidden), slope.numpy(), offset.numpy(), partial)
    return torch.from_numpy(partial.sum(axis=0, dtype=np.float64))


def _array(values: Tensor) -> np.ndarray:
    """float32, or the bits of bfloat16 as uint16."""
    return values.view(torch.uint16).numpy() if values.dtype == torch.bfloat16 else values.numpy()


@numba.njit(cache=True, nogil=True, parallel=True)
def _column_halves(values, partial):
    for block in numba.prange(partial.shape[0]):
        sums, squares = partial[block, 0], partial[block, 1]
        sums[:] = 0
        squares[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, values.shape[0])):
            for i in range(len(sums)):
                value = np.float64(from_bfloat16(values[row, i]))
                sums[i] += value
                squares[i] += value * value


@numba.njit(cache=True, nogil=True, parallel=True)
def _column_floats(values, partial):
    for block in numba.prange(partial.shape[0]):
        sums, squares = partial[block, 0], partial[block, 1]
        sums[:] = 0
        squares[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, values.shape[0])):
            for i in range(len(sums)):
                value = np.float64(values[row, i])
                sums[i] += value
                squares[i] += value * value


@numba.njit(cache=True, nogil=True, parallel=True)
def _relu_halves(values, bias, partial):
    for block in numba.prange(partial.shape[0]):
        sums, squares = partial[block, 0], partial[block, 1]
        sums[:] = 0
        squares[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, values.shape[0])):
            line = values[row]
            for i in range(len(sums)):
                value = from_bfloat16(line[i]) + bias[i]
                rounded = to_bfloat16(np.float32(0) if value < 0 else value)  # a NaN stays
                line[i] = rounded
                value = from_bfloat16(rounded)
                sums[i] += value
                squares[i] += value * value


@numba.njit(cache=True, nogil=True, parallel=True)
def _relu_floats(values, bias, partial):
    for block in numba.prange(partial.shape[0]):
        sums, squares = partial[block, 0], partial[block, 1]
        sums[:] = 0
        squares[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, values.shape[0])):
            line = values[row]
            for i in range(len(sums)):
                value = line[i] + bias[i]
                value = np.float32(0) if value < 0 else value
                line[i] = value
                sums[i] += value
                squares[i] += value * value


@numba.njit(cache=True, nogil=True, parallel=True)
def _backward_halves(gradient, hidden, slope, offset, partial):
    for block in numba.prange(partial.shape[0]):
        sums = partial[block]
        sums[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, gradient.shape[0])):
            line, states = gradient[row], hidden[row]
            for i in range(len(sums)):
                state = from_bfloat16(states[i])
                moved = from_bfloat16(line[i]) + (slope[i] * state + offset[i])
                rounded = to_bfloat16(np.float32(0) if state <= 0 else moved)
                line[i] = rounded
                sums[i] += from_bfloat16(rounded)


@numba.njit(cache=True, nogil=True, parallel=True)
def _backward_floats(gradient, hidden, slope, offset, partial):
    for block in numba.prange(partial.shape[0]):
        sums = partial[block]
        sums[:] = 0
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, gradient.shape[0])):
            line, states = gradient[row], hidden[row]
            for i in range(len(sums)):
                moved = line[i] + (slope[i] * states[i] + offset[i])
                line[i] = np.float32(0) if states[i] <= 0 else moved
                sums[i] += line[i]
