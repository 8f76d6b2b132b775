"""How a row of a table moves on a CPU, compiled by numba: its counterpart in plain torch is `reference._move`."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from gigabatch.loops import njit
from gigabatch.models.kernels.row_loops import pointer, prefetch
from gigabatch.models.kernels.row_update.rules import METHODS, RowRule, State

TOGETHER = 32  # rows that move together: the processor works at many of them while one waits for its square root

SGD, ADAGRAD, ADAM, LAMB = range(len(METHODS))
NUM_NUMBERS = 15
(
    METHOD, FULL, ROW_STEPS, LR, BETA1, BETA2, EPS, DECAY, L2, TRUST, TRUST_FLOOR, CLIP_RATIO, CLIP_FLOOR, MEAN_SCALE,
    SQUARE_SCALE,
) = range(NUM_NUMBERS)  # fmt: skip
TABLE, MEAN, SQUARE, STEPS = range(4)


@njit(parallel=True)
def move_hot(sums, counts, shapes, hot, addresses, numbers):
    """Move the first `hot` [C] rows of each table by what the chunks of a batch sum to.

    sums float32 [chunks, sum of hot elements], counts int32 [chunks, hot rows].
    """
    block = TOGETHER
    ends = np.cumsum((hot + block - 1) // block)
    for task in numba.prange(ends[-1]):
        column = np.searchsorted(ends, task, side="right")
        first = (task - (ends[column - 1] if column else 0)) * block
        width = shapes[column, 1]
        sum_at = (hot[:column] * shapes[:column, 1]).sum()
        count_at = hot[:column].sum()
        rows, found, summed = np.empty(block, np.int64), np.empty(block, np.int64), np.empty((block, width), np.float32)
        total = np.empty(width, np.float64)
        size = 0
        for row in range(first, min(first + block, hot[column])):
            count = 0
            for chunk in range(len(sums)):
                count += counts[chunk, count_at + row]
            if count > 0:
                at = sum_at + row * width
                total[:] = 0
                for chunk in range(len(sums)):
                    for i in range(width):
                        total[i] += sums[chunk, at + i]
                for i in range(width):
                    summed[size, i] = total[i]
                rows[size], found[size] = row, count
                size += 1
        move_rows(rows[:size], summed[:size], found[:size], addresses[column], numbers[column])


def fill_numbers(numbers: np.ndarray, addresses: np.ndarray, table: Tensor, state: State, rule: RowRule) -> None:
    """The rule of one table as numbers [NUM_NUMBERS] float64 and addresses [4] int64; a global step goes on by one."""
    beta1, beta2 = float(rule.beta1), rule.beta2
    mean_scale = square_scale = 1.0
    if rule.step == "global":
        steps = float(state["num_steps"].add_(1))
        mean_scale, square_scale = 1 / (1 - beta1**steps), 1 / (1 - beta2**steps)
    no_bound = np.inf
    numbers[:] = (
        METHODS.index(rule.method), rule.second_moment == "full", rule.step == "row", float(rule.lr), beta1, beta2,
        rule.eps, rule.weight_decay, rule.l2, no_bound if rule.trust_clip is None else rule.trust_clip,
        rule.trust_floor, no_bound if rule.clip_ratio is None else rule.clip_ratio, rule.clip_floor, mean_scale,
        square_scale,
    )  # fmt: skip
    addresses[TABLE] = table.data_ptr()
    for place, name in ((MEAN, "exp_avg"), (SQUARE, "exp_avg_sq"), (STEPS, "num_steps")):
        if name in state and state[name].numel():
            assert state[name].is_contiguous(), name
            addresses[place] = state[name].data_ptr()


@njit()
def prefetch_row(row, width, addresses, numbers):
    """Ask for the table's row and its moments."""
    line = 4 * width * np.int64(row)
    last = 4 * width - 1
    prefetch(addresses[TABLE] + line)
    prefetch(addresses[TABLE] + line + last)
    if addresses[MEAN] != 0:
        prefetch(addresses[MEAN] + line)
        prefetch(addresses[MEAN] + line + last)
    if addresses[SQUARE] != 0:
        square = addresses[SQUARE] + (line if numbers[FULL] != 0 else 4 * np.int64(row))
        prefetch(square)
        if numbers[FULL] != 0:
            prefetch(square + last)


@njit(fastmath={"reassoc", "contract", "nsz"})
def _square_sums(values, out):
    """Sum of squares of each row of [n, D] into out [n] float32."""
    for r in range(len(values)):
        total = np.float32(0)
        for i in range(values.shape[1]):
            total += values[r, i] * values[r, i]
        out[r] = total


@njit(fastmath={"reassoc", "contract", "nsz"})
def _square_sums_of(address, rows, width, out):
    """The same of rows `rows` [n] of the matrix at an address."""
    values, width = numba.carray(pointer(address), (1,), np.float32), np.uint64(width)
    for r in range(len(rows)):
        at = np.uint64(rows[r]) * width
        total = np.float32(0)
        for i in range(width):
            total += values[at + i] * values[at + i]
        out[r] = total


@njit()
def _add_scaled(address, rows, scale, out):
    """out [n, D] += scale times rows `rows` [n] of the matrix at an address."""
    values, width = numba.carray(pointer(address), (1,), np.float32), np.uint64(out.shape[1])
    for r in range(len(rows)):
        at = np.uint64(rows[r]) * width
        for i in range(width):
            out[r, i] += scale * values[at + i]


@njit()
def move_rows(rows, gradients, counts, addresses, numbers):
    """Move rows [n], whose `counts` gradients sum to `gradients` [n, D] float32 (overwritten by the update).

    Every quantity is computed for all rows before the next one, so that no row waits for another.
    """
    width, method = gradients.shape[1], int(numbers[METHOD])
    table = addresses[TABLE]
    weight_norms, norms = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    if numbers[L2] != 0:
        _add_scaled(table, rows, np.float32(numbers[L2]), gradients)
    if numbers[CLIP_RATIO] < np.inf:
        floor, ratio = np.float32(numbers[CLIP_FLOOR] * np.sqrt(width)), np.float32(numbers[CLIP_RATIO])
        _square_sums_of(table, rows, width, weight_norms)
        _square_sums(gradients, norms)
        for r in range(len(rows)):
            bound, norm = ratio * max(np.sqrt(weight_norms[r]), floor) * np.float32(counts[r]), np.sqrt(norms[r])
            if norm > bound:
                for i in range(width):
                    gradients[r, i] *= bound / norm
    if numbers[ROW_STEPS] != 0:
        steps = numba.carray(pointer(addresses[STEPS]), (1,), np.float32)
        for r in range(len(rows)):
            steps[rows[r]] += 1
    if method != SGD:
        _to_updates(rows, gradients, norms, method, addresses, numbers)
    if numbers[DECAY] != 0:
        _add_scaled(table, rows, np.float32(numbers[DECAY]), gradients)
    lr = np.float32(numbers[LR])
    if method == LAMB:
        trust, least_norm = np.float32(numbers[TRUST]), np.float32(numbers[TRUST_FLOOR] * np.sqrt(width))
        _square_sums_of(table, rows, width, weight_norms)
        _square_sums(gradients, norms)
        for r in range(len(rows)):
            weight_norm = max(np.sqrt(weight_norms[r]), least_norm)
            both = weight_norm > 0 and norms[r] > 0
            norms[r] = lr * min(weight_norm / np.sqrt(norms[r]), trust) if both else lr
    else:
        norms[:] = lr
    weights, width = numba.carray(pointer(table), (1,), np.float32), np.uint64(width)
    for r in range(len(rows)):
        at = np.uint64(rows[r]) * width
        for i in range(width):
            weights[at + i] -= norms[r] * gradients[r, i]


@njit()
def _to_updates(rows, gradients, norms, method, addresses, numbers):
    """Advance the rows' moments by `gradients` [n, D], which become the updates before decay and trust ratio."""
    beta1, beta2 = np.float32(numbers[BETA1]), np.float32(numbers[BETA2])
    rest1, rest2 = np.float32(1 - numbers[BETA1]), np.float32(1 - numbers[BETA2])
    eps = np.float32(numbers[EPS])
    if method == ADAGRAD:
        beta2, rest2 = np.float32(1), np.float32(1)
    size, width = len(rows), np.uint64(gradients.shape[1])
    squares = numba.carray(pointer(addresses[SQUARE]), (1,), np.float32)
    mean_scales, square_scales = np.empty(size, np.float32), np.empty(size, np.float32)
    for r in range(size):
        mean_scale, square_scale = numbers[MEAN_SCALE], numbers[SQUARE_SCALE]
        if numbers[ROW_STEPS] != 0 and method != ADAGRAD:
            steps = np.float64(numba.carray(pointer(addresses[STEPS]), (1,), np.float32)[rows[r]])
            mean_scale = 1 / (1 - numbers[BETA1] ** steps)
            square_scale = 1 / (1 - numbers[BETA2] ** steps)
        mean_scales[r] = np.float32(1 if method == ADAGRAD else mean_scale)
        square_scales[r] = np.float32(1 if method == ADAGRAD else square_scale)
    if numbers[FULL] != 0:
        for r in range(size):
            at = np.uint64(rows[r]) * width
            for i in range(width):
                squares[at + i] = beta2 * squares[at + i] + rest2 * gradients[r, i] * gradients[r, i]
    else:
        _square_sums(gradients, norms)
        for r in range(size):
            place = np.uint64(rows[r])
            squares[place] = beta2 * squares[place] + rest2 * (norms[r] / np.float32(width))
            norms[r] = mean_scales[r] / (np.sqrt(squares[place] * square_scales[r]) + eps)
    if method != ADAGRAD:
        means = numba.carray(pointer(addresses[MEAN]), (1,), np.float32)
        for r in range(size):
            at = np.uint64(rows[r]) * width
            for i in range(width):
                means[at + i] = beta1 * means[at + i] + rest1 * gradients[r, i]
                gradients[r, i] = means[at + i]
    for r in range(size):
        if numbers[FULL] != 0:
            at = np.uint64(rows[r]) * width
            for i in range(width):
                gradients[r, i] *= mean_scales[r] / (np.sqrt(squares[at + i] * square_scales[r]) + eps)
        else:
            for i in range(width):
                gradients[r, i] *= norms[r]
