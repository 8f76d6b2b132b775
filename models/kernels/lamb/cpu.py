"""A step of LAMB on dense parameters on a CPU, compiled by numba: one call, where torch's forty take ten times as long
as the arithmetic in them if the parameters are small, and go through memory more often if they are large.

Small ones are moved in one thread, large ones block by block on all cores. Sums of squares are taken in float64, of
blocks of fixed size, so that they do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from torch import Tensor
from torch.autograd.graph import increment_version

from gigabatch.loops import njit
from gigabatch.models.kernels.row_loops import pointer

ONE_THREAD = 1 << 17  # elements that one thread moves sooner than several are woken
BLOCK = 1 << 14  # elements: of weights, gradient and moments 256 KB, which stay in the second cache


def step(
    parameters: Sequence[Tensor],
    steps: int,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    clip: Tensor | None,
    group: dict[str, Any],
) -> None:
    """Moves the parameters and their moments, as `models/optimizers/lamb.py:step_bundle` does.

    parameters: contiguous float32, N elements together. steps: t, this one counted. gradient, mean, square: [N]
        float32, end to end.
    """
    beta1, beta2 = float(group["betas"][0]), group["betas"][1]
    addresses = np.array([parameter.data_ptr() for parameter in parameters], np.int64)
    sizes = np.array([parameter.numel() for parameter in parameters], np.int64)
    adapt = bool(group["weight_decay"] or group["always_adapt"])
    bound = math.inf if group["trust_clip"] is None else group["trust_clip"]
    # u = (m / mean_scale) / (sqrt(v / square_scale) + eps), with both corrections moved down, which saves divisions.
    mean_scale, square_scale = 1 - beta1**steps, 1 - beta2**steps
    shrink = 1.0 if clip is None else 1 / float(clip)
    scales = (shrink, beta1, beta2, mean_scale / math.sqrt(square_scale), mean_scale * group["eps"])
    rates = (float(group["lr"]), float(group["weight_decay"]), float(bound), float(group["trust_floor"]))
    moments = (gradient.numpy(), mean.numpy(), square.numpy())
    if len(moments[0]) <= ONE_THREAD:
        _step(addresses, sizes, *moments, scales, rates, adapt)
    else:
        _step_by_blocks(addresses, sizes, blocks_of(tuple(sizes.tolist())), *moments, scales, rates, adapt)
    increment_version(parameters)  # torch counts its own writes only


@lru_cache(maxsize=64)
def blocks_of(sizes: tuple[int, ...]) -> np.ndarray:
    """[blocks, 4] int64: parameter, its first element among those of all, and from where to where in it."""
    firsts = np.cumsum([0, *sizes])
    blocks = [
        (place, firsts[place], begin, min(begin + BLOCK, size))
        for place, size in enumerate(sizes)
        for begin in range(0, size, BLOCK)
    ]
    return np.array(blocks, np.int64)


@njit(fastmath={"reassoc"})  # which lets sums be taken by a vector's lanes
def _step(addresses, sizes, gradient, mean, square, scales, rates, adapt):
    lr, weight_decay, bound, floor = rates
    shrink, beta1, beta2 = np.float32(scales[0]), np.float32(scales[1]), np.float32(scales[2])
    rest1, rest2 = np.float32(1 - scales[1]), np.float32(1 - scales[2])
    spread, offset, decay = np.float32(scales[3]), np.float32(scales[4]), np.float32(weight_decay)
    first = 0
    for place in range(len(sizes)):
        size = sizes[place]
        weights = numba.carray(pointer(addresses[place]), (size,), np.float32)
        means, squares, changes = mean[first : first + size], square[first : first + size], np.empty(size, np.float32)
        for i in range(size):
            value = gradient[first + i] * shrink
            means[i] = beta1 * means[i] + rest1 * value
            squares[i] = beta2 * squares[i] + rest2 * (value * value)
            changes[i] = means[i] / (np.sqrt(squares[i]) * spread + offset) + decay * weights[i]
        rate = lr
        if adapt:
            weight_squares = update_squares = 0.0
            for i in range(size):
                weight, change = np.float64(weights[i]), np.float64(changes[i])
                weight_squares += weight * weight
                update_squares += change * change
            weight_squares = max(weight_squares, floor * floor * size)
            if weight_squares > 0 and update_squares > 0:
                rate *= min(np.sqrt(weight_squares / update_squares), bound)
        step = np.float32(rate)
        for i in range(size):
            weights[i] -= step * changes[i]
        first += size


@njit(parallel=True, fastmath={"reassoc"})
def _step_by_blocks(addresses, sizes, blocks, gradient, mean, square, scales, rates, adapt):
    lr, weight_decay, bound, floor = rates
    shrink, beta1, beta2 = np.float32(scales[0]), np.float32(scales[1]), np.float32(scales[2])
    rest1, rest2 = np.float32(1 - scales[1]), np.float32(1 - scales[2])
    spread, offset, decay = np.float32(scales[3]), np.float32(scales[4]), np.float32(weight_decay)
    partial = np.zeros((len(blocks), 2))
    for block in numba.prange(len(blocks)):
        place, first, begin, end = blocks[block]
        weights = numba.carray(pointer(addresses[place]), (sizes[place],), np.float32)[begin:end]
        values, means = gradient[first + begin : first + end], mean[first + begin : first + end]
        squares = square[first + begin : first + end]
        for i in range(end - begin):
            value = values[i] * shrink
            means[i] = beta1 * means[i] + rest1 * value
            squares[i] = beta2 * squares[i] + rest2 * (value * value)
        if adapt:
            weight_squares = update_squares = 0.0
            for i in range(end - begin):
                change = means[i] / (np.sqrt(squares[i]) * spread + offset) + decay * weights[i]
                weight_squares += np.float64(weights[i]) * np.float64(weights[i])
                update_squares += np.float64(change) * np.float64(change)
            partial[block, 0], partial[block, 1] = weight_squares, update_squares
    sums, steps = np.zeros((len(sizes), 2)), np.full(len(sizes), lr)
    for block in range(len(blocks)):
        sums[blocks[block, 0]] += partial[block]
    if adapt:
        for place in range(len(sizes)):
            weight_squares = max(sums[place, 0], floor * floor * sizes[place])
            if weight_squares > 0 and sums[place, 1] > 0:
                steps[place] *= min(np.sqrt(weight_squares / sums[place, 1]), bound)
    for block in numba.prange(len(blocks)):
        place, first, begin, end = blocks[block]
        weights = numba.carray(pointer(addresses[place]), (sizes[place],), np.float32)[begin:end]
        means, squares = mean[first + begin : first + end], square[first + begin : first + end]
        step = np.float32(steps[place])
        for i in range(end - begin):
            weights[i] -= step * (means[i] / (np.sqrt(squares[i]) * spread + offset) + decay * weights[i])
