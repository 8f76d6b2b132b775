"""`pooled_lookup` on all cores of a CPU, compiled by numba; see `reference.py` for what it computes."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loops import njit
from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.gather_sums import sum_named_rows
from gigabatch.models.kernels.pooled_lookup.reference import check_lists, check_memory, check_sources
from gigabatch.models.kernels.row_loops import pointer, read, rounded, stored_as

BLOCK_LISTS = 64  # of a task, so that threads share long and short lists evenly
TASK_ELEMENTS = 4096  # wanted of a task of sums, an empty list counted as LIST_COST of them
LIST_COST = 4
NO_WEIGHTS = np.empty(0, np.float32)


@torch.no_grad()
def pooled_lookup(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    table: Tensor,
    pooling: str,
    out: Tensor,
    chosen: Tensor | None = None,
) -> None:
    """As the reference.

    Raises:
        IndexError: for an id outside the table; `out` is then unspecified.
    """
    check_lists(offsets, weights, pooling, len(ids))
    assert int(offsets[-1]) == len(ids), (offsets[-1], ids.shape)
    assert int(offsets[0]) == 0, offsets[0]
    check_memory(ids, torch.int32, ids.shape)
    check_memory(table, torch.float32, table.shape)
    assert (out.dtype, out.shape) == (torch.float32, (len(offsets) - 1, table.shape[1])), (out.shape, table.shape)
    if not out.numel():
        return
    assert out.stride(1) == 1, out.stride()
    height, width = table.shape
    source, place = table.data_ptr(), (out.data_ptr(), out.stride(0))
    if pooling == "max":
        kept = torch.empty(len(out), width, dtype=torch.int32) if chosen is None else chosen
        check_memory(kept, torch.int32, out.shape)
        bad = _max(ids.numpy(), offsets.numpy(), source, height, width, *place, kept.numpy())
    else:
        scales = NO_WEIGHTS if weights is None else weights.numpy()
        like, stride = stored_as(table), place[1]
        starts = _starts(offsets.numpy(), max(1, (len(ids) + LIST_COST * len(out)) // TASK_ELEMENTS))
        bad = _sum(
            ids.numpy(),
            offsets.numpy(),
            scales,
            pooling == "mean",
            starts,
            source,
            height,
            width,
            place[0],
            stride,
            like,
        )
    if bad:
        raise IndexError(
            f"embedding tables: a list holds ids from {int(ids.min())} to {int(ids.max())}, its table has {height} "
            "rows."
        )


@torch.no_grad()
def element_scales(
    offsets: Tensor, weights: Tensor | None, pooling: str, places: Tensor, scales: Tensor | None
) -> None:
    """As the reference."""
    check_sources(offsets, weights, pooling, places, scales)
    if len(places):
        starts = _starts(offsets.numpy(), max(1, (len(places) + LIST_COST * len(offsets)) // TASK_ELEMENTS))
        given = NO_WEIGHTS if weights is None else weights.numpy()
        found = NO_WEIGHTS if scales is None else scales.numpy()
        _sources(offsets.numpy(), given, starts, places.numpy(), found)


@torch.no_grad()
def spread_gradient(
    gradient: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str, chosen: Tensor | None, out: Tensor
) -> None:
    """As the reference, for gradients of a type in `FLOATS`."""
    check_lists(offsets, weights, pooling, len(out))
    assert gradient.dtype in FLOATS, gradient.dtype
    check_memory(out, gradient.dtype, out.shape)
    assert gradient.shape == (len(offsets) - 1, out.shape[1]), (gradient.shape, out.shape)
    if not out.numel():
        return
    assert gradient.stride(1) == 1, gradient.stride()
    like, source = stored_as(gradient), (gradient.data_ptr(), gradient.stride(0))
    if pooling == "max":
        assert chosen is not None
        check_memory(chosen, torch.int32, gradient.shape)
        out.zero_()
        _spread_max(*source, like, chosen.numpy(), out.data_ptr())
    else:
        scales = NO_WEIGHTS if weights is None else weights.numpy()
        _spread(*source, like, offsets.numpy(), scales, pooling == "mean", out.shape[1], out.data_ptr())


# Places are unsigned, because signed ones are looked at for being negative.


@njit()
def _factor(weights, first, last, mean):
    """What the sum of a list is multiplied with."""
    if not mean:
        return np.float32(1)
    if len(weights) == 0:
        return np.float32(1) / np.float32(last - first)
    total = np.float32(0)
    for element in range(first, last):
        total += abs(weights[element])
    return np.float32(1) / total if total > 0 else np.float32(0)


@njit()
def _starts(offsets, num_tasks):
    """The first list of each task and at last their number, int64 [num_tasks + 1], so that tasks take equally long."""
    num_lists = len(offsets) - 1
    total = offsets[num_lists] + LIST_COST * num_lists
    starts = np.empty(num_tasks + 1, np.int64)
    starts[0] = 0
    row = 0
    for task in range(1, num_tasks):
        low, high, wanted = row, num_lists, total * task // num_tasks
        while low < high:
            middle = (low + high) // 2
            if offsets[middle] + LIST_COST * middle < wanted:
                low = middle + 1
            else:
                high = middle
        row = low
        starts[task] = row
    starts[num_tasks] = num_lists
    return starts


@njit(parallel=True)
def _sum(ids, offsets, weights, mean, starts, table, height, width, out, stride, like):
    """Whether an id is outside the table. starts: of `_starts`; table, out: addresses; stride in elements."""
    num_tasks = len(starts) - 1
    faults = np.zeros(num_tasks, np.bool_)
    named, scaled = ids.ctypes.data, weights.ctypes.data
    for task in numba.prange(num_tasks):
        first, end = offsets[starts[task]], offsets[starts[task + 1]]
        low, high = np.int32(0), np.int32(-1)  # no id is inside a table of no rows
        for element in range(first, end):
            low, high = min(low, ids[element]), max(high, ids[element])
        if low < 0 or high >= height:
            faults[task] = True
        else:
            for row in range(starts[task], starts[task + 1]):
                begin, last = offsets[row], offsets[row + 1]
                factor = _factor(weights, begin, last, mean) if last > begin else np.float32(1)
                scales = scaled + 4 * begin if len(weights) else 0
                sum_named_rows(
                    out + 4 * row * stride, table, width, 4 * width, named + 4 * begin, scales, last - begin,
                    end - begin, factor, like,
                )  # fmt: skip
    return faults.any()


@njit(parallel=True)
def _max(ids, offsets, table, height, width, out, stride, chosen):
    num_lists = len(offsets) - 1
    num_blocks = (num_lists + BLOCK_LISTS - 1) // BLOCK_LISTS
    faults = np.zeros(num_blocks, np.bool_)
    for block in numba.prange(num_blocks):
        wrong = False
        for row in range(block * BLOCK_LISTS, min((block + 1) * BLOCK_LISTS, num_lists)):
            wrong |= _max_list(
                ids, offsets[row], offsets[row + 1], table, height, width, out + 4 * row * stride, chosen[row]
            )
        faults[block] = wrong
    return faults.any()


@njit()
def _max_list(ids, first, last, table, height, width, out, chosen):
    source, target = numba.carray(pointer(table), (1,), np.float32), numba.carray(pointer(out), (1,), np.float32)
    columns = np.uint64(width)
    for i in range(columns):
        target[i] = 0
        chosen[i] = -1
    for element in range(first, last):
        key = ids[element]
        if key < 0 or key >= height:
            return True
        begin = np.uint64(key) * columns
        for i in range(columns):
            value = source[begin + i]
            # a NaN is the largest, as in torch, and stays so
            if chosen[i] < 0 or value > target[i] or (np.isnan(value) and not np.isnan(target[i])):
                target[i] = value
                chosen[i] = element
    return False


@njit(parallel=True)
def _sources(offsets, weights, starts, places, scales):
    """The list of each element and, where there are any, the scales of a mean."""
    for task in numba.prange(len(starts) - 1):
        for row in range(starts[task], starts[task + 1]):
            first, last = offsets[row], offsets[row + 1]
            places[first:last] = row
            if len(scales) and last > first:
                factor = _factor(weights, first, last, True)
                for element in range(first, last):
                    scales[element] = factor * weights[element] if len(weights) else factor


@njit(parallel=True)
def _spread(gradient, stride, like, offsets, weights, mean, width, out):
    num_lists = len(offsets) - 1
    num_blocks = (num_lists + BLOCK_LISTS - 1) // BLOCK_LISTS
    for block in numba.prange(num_blocks):
        source, target = numba.carray(pointer(gradient), (1,), like.dtype), numba.carray(pointer(out), (1,), like.dtype)
        columns = np.uint64(width)
        for row in range(block * BLOCK_LISTS, min((block + 1) * BLOCK_LISTS, num_lists)):
            first, last = offsets[row], offsets[row + 1]
            factor = _factor(weights, first, last, mean) if last > first else np.float32(1)
            begin = np.uint64(row * stride)
            for element in range(first, last):
                scale = factor * weights[element] if len(weights) else factor
                place = np.uint64(element) * columns
                for i in range(columns):
                    target[place + i] = rounded(scale * read(source[begin + i]), target[place + i])


@njit(parallel=True)
def _spread_max(gradient, stride, like, chosen, out):
    for row in numba.prange(len(chosen)):
        source, target = numba.carray(pointer(gradient), (1,), like.dtype), numba.carray(pointer(out), (1,), like.dtype)
        columns = np.uint64(chosen.shape[1])
        begin = np.uint64(row * stride)
        for i in range(columns):
            element = chosen[row, i]
            if element >= 0:
                target[np.uint64(element) * columns + i] = source[begin + i]
