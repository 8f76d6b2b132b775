"""One step of a tile of rows by a `RowRule`, in Triton: what the kernels of `cuda.py` end in.

Its counterpart in plain torch is `reference._move`. Scalars reach the kernels as launch arguments, so that
nothing is copied to the device; lr and beta1 given as 0-d tensors are read there, which lets a captured CUDA graph
follow a schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from gigabatch.models.kernels.row_update.rules import RowRule

# Fields of a table, int64 on the device: the addresses of table, exp_avg, exp_avg_sq and num_steps, the id column, the
# first column of its gradient, its rows, the base of its keys, its width.
FIELDS = 9


@dataclass(frozen=True)
class Group:
    """Tables that run in one launch. tables: [T, fields] int64 on the device."""

    tables: Tensor
    num_tables: int
    first: int  # place of the first table's entries among the sorted ones, in batches
    block_v: int
    block_d: int
    vector: int


def rule_arguments(rule: RowRule) -> dict[str, tuple]:
    """The launch arguments of a rule: `rule` its numbers, `FORM` what a kernel is compiled for.

    1 - beta and log(beta) are taken in float64 here: 1 - float32(0.999) is off by 2.5e-5 of itself.
    """
    if isinstance(rule.beta1, Tensor):
        beta1: tuple = (rule.beta1, 0.0, 0.0)
    else:
        beta1 = (float(rule.beta1), 1.0 - rule.beta1, _log(rule.beta1))
    numbers = (
        rule.lr if isinstance(rule.lr, Tensor) else float(rule.lr),
        *beta1,
        float(rule.beta2),
        1.0 - rule.beta2,
        _log(rule.beta2),
        float(rule.eps),
        float(rule.weight_decay),
        float(rule.l2),
        math.inf if rule.trust_clip is None else float(rule.trust_clip),
        float(rule.trust_floor),
        0.0 if rule.clip_ratio is None else float(rule.clip_ratio),
        float(rule.clip_floor),
    )
    form = (
        rule.method,
        rule.second_moment == "full",
        rule.step == "row",
        rule.clip_ratio is not None,
        isinstance(rule.lr, Tensor),
        isinstance(rule.beta1, Tensor),
    )
    return {"rule": numbers, "FORM": form}


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -math.inf  # exp(t log 0) = 0, as 0^t


@triton.jit
def place_of(base, row, d, width, VECTOR: tl.constexpr):
    """Pointers [N, D] to columns d of the rows of a float32 [V, width] at address `base`.

    VECTOR 4: width is a multiple of 4 and the address of 16, which lets a thread move 16 bytes at a time.
    """
    place = base.to(tl.pointer_type(tl.float32)) + (row * width)[:, None] + d[None, :]
    return tl.max_contiguous(tl.multiple_of(place, [1, 4 * VECTOR]), [1, VECTOR])


@triton.jit
def move_rows(
    fields, row, gradient, count, moved, rule, FORM: tl.constexpr, VECTOR: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Move the rows [N] of one table where `moved` [N] by summed gradients [N, BLOCK_D] and counts [N] float32.

    fields: pointer to those of the table. row: int64, inside the table where `moved`.

    All is read before anything is written: a tile of fewer elements than threads lies in several warps at once, and
    Triton reads a value once for each arrangement that it is needed in, so that a late warp would read what an early
    one has stored already, and hand it on (seen on an H200: the mean of gradients decayed twice in a row's step).
    """
    METHOD: tl.constexpr = FORM[0]
    FULL: tl.constexpr = FORM[1]
    ROW_STEPS: tl.constexpr = FORM[2]
    CLIPPED: tl.constexpr = FORM[3]
    LR_IS_TENSOR: tl.constexpr = FORM[4]
    BETA1_IS_TENSOR: tl.constexpr = FORM[5]
    lr, beta1, beta1_rest, log_beta1, beta2, beta2_rest, log_beta2 = rule[:7]
    eps, weight_decay, l2, trust_clip, trust_floor, clip_ratio, clip_floor = rule[7:]
    table, exp_avg, exp_avg_sq, num_steps = (
        tl.load(fields),
        tl.load(fields + 1),
        tl.load(fields + 2),
        tl.load(fields + 3),
    )
    width = tl.multiple_of(tl.load(fields + 8).to(tl.int32), VECTOR)
    d = tl.arange(0, BLOCK_D)
    tile = moved[:, None] & (d < width)[None, :]
    place = place_of(table, row, d, width, VECTOR)
    weight = tl.load(place, mask=tile, other=0.0)
    if METHOD != "sgd":
        if FULL:
            square_place = place_of(exp_avg_sq, row, d, width, VECTOR)
            old_square = tl.load(square_place, mask=tile, other=0.0)
        else:
            scalar_place = exp_avg_sq.to(tl.pointer_type(tl.float32)) + row
            old_square = tl.load(scalar_place, mask=moved, other=0.0)[:, None]
        if METHOD != "adagrad":
            mean_place = place_of(exp_avg, row, d, width, VECTOR)
            old_mean = tl.load(mean_place, mask=tile, other=0.0)
    steps_place = num_steps.to(tl.pointer_type(tl.float32))
    if ROW_STEPS:
        row_steps = tl.load(steps_place + row, mask=moved, other=0.0) + 1.0
    tl.debug_barrier()
    gradient = tl.where(tile, gradient + l2 * weight, 0.0)
    if CLIPPED:
        floor = clip_floor * tl.sqrt(width.to(tl.float32))
        bound = clip_ratio * tl.maximum(tl.sqrt(tl.sum(weight * weight, axis=1)), floor) * count
        norm = tl.sqrt(tl.sum(gradient * gradient, axis=1))
        gradient = gradient * tl.where(norm > bound, bound / norm, 1.0)[:, None]
    update = gradient
    if METHOD != "sgd":
        square = gradient * gradient
        if not FULL:
            square = (tl.sum(square, axis=1) / width.to(tl.float32))[:, None]
        if METHOD == "adagrad":
            square = old_square + square
            update = gradient / (tl.sqrt(square) + eps)
        else:
            square = beta2 * old_square + beta2_rest * square
            if BETA1_IS_TENSOR:
                exact = tl.load(beta1).to(tl.float64)
                decay, rest, log_decay = exact.to(tl.float32), (1 - exact).to(tl.float32), tl.log(exact)
            else:
                decay, rest, log_decay = beta1, beta1_rest, log_beta1
            mean = decay * old_mean + rest * gradient
            tl.store(mean_place, mean, mask=tile)
            # that of the table has grown by one before the launch
            steps = row_steps[:, None] if ROW_STEPS else tl.load(steps_place)
            # float64: 1 - beta2^t loses 3e-5 of itself in float32 at the first step
            mean_scale = (1 - tl.exp(steps.to(tl.float64) * log_decay)).to(tl.float32)
            square_scale = (1 - tl.exp(steps.to(tl.float64) * log_beta2)).to(tl.float32)
            update = (mean / mean_scale) / (tl.sqrt(square / square_scale) + eps)
        if FULL:
            tl.store(square_place, square, mask=tile)
        else:
            tl.store(scalar_place, tl.sum(square, axis=1), mask=moved)  # drops the axis of length one
    if ROW_STEPS:
        tl.store(steps_place + row, row_steps, mask=moved)
    update = tl.where(tile, update + weight_decay * weight, 0.0)  # 0 / (0 + eps) beside the row where eps is 0
    step = lr
    if LR_IS_TENSOR:
        step = tl.load(lr).to(tl.float32)
    if METHOD == "lamb":
        least_norm = trust_floor * tl.sqrt(width.to(tl.float32))
        weight_norm = tl.maximum(tl.sqrt(tl.sum(weight * weight, axis=1)), least_norm)
        update_norm = tl.sqrt(tl.sum(update * update, axis=1))
        ratio = tl.minimum(weight_norm / update_norm, trust_clip)
        ratio = tl.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)
        update = update * ratio[:, None]
    tl.store(place, weight - step * update, mask=tile)
