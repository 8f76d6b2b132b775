"""A step of LAMB on small dense parameters on a CPU, compiled by numba: one call, where torch's forty take ten times as
long as the arithmetic in them.

In one thread, so that it depends on nothing else; sums of squares are taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from torch import Tensor
from torch.autograd.graph import increment_version

from gigabatch.loops import njit
from gigabatch.models.kernels.row_loops import pointer


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
    _step(addresses, sizes, *moments, scales, rates, adapt)
    increment_version(parameters)  # torch counts its own writes only


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
