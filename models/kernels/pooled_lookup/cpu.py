"""`pooled_lookup` on all cores of a CPU, compiled by numba; see `reference.py` for what it computes."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.pooled_lookup.reference import check_lists, check_memory
from gigabatch.models.kernels.row_loops import AHEAD, njit, pointer, prefetch, read, rounded, stored_as

BLOCK_LISTS = 64  # of a task, so that threads share long and short lists evenly
NEAR_BYTES = 1 << 18  # tables up to this size are in the cache anyway and are not fetched ahead
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
        bad = _sum(ids.numpy(), offsets.numpy(), scales, pooling == "mean", source, height, width, *place)
    if bad:
        raise IndexError(
            f"embedding tables: a list holds ids from {int(ids.min())} to {int(ids.max())}, its table has {height} "
            "rows."
        )


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


@njit(parallel=True)
def _sum(ids, offsets, weights, mean, table, height, width, out, stride):
    """Whether an id is outside the table. table and out are addresses, stride in elements."""
    num_lists = len(offsets) - 1
    num_blocks = (num_lists + BLOCK_LISTS - 1) // BLOCK_LISTS
    faults = np.zeros(num_blocks, np.bool_)
    near = height * width * 4 <= NEAR_BYTES
    for block in numba.prange(num_blocks):
        end = min((block + 1) * BLOCK_LISTS, num_lists)
        wrong = False
        last_element = offsets[end]
        for row in range(block * BLOCK_LISTS, end):
            first, last = offsets[row], offsets[row + 1]
            wrong |= _sum_list(
                ids, weights, first, last, last_element, near, mean, table, height, width, out + 4 * row * stride
            )
        faults[block] = wrong
    return faults.any()


@njit()
def _sum_list(ids, weights, first, last, last_element, near, mean, table, height, width, out):
    source, target = numba.carray(pointer(table), (1,), np.float32), numba.carray(pointer(out), (1,), np.float32)
    columns = np.uint64(width)
    for i in range(columns):
        target[i] = 0
    weighted = len(weights) > 0
    for element in range(first, last):
        if not near and element + AHEAD < last_element:
            ahead = table + 4 * width * np.int64(ids[element + AHEAD])
            prefetch(ahead)
            prefetch(ahead + 4 * width - 4)
        key = ids[element]
        if key < 0 or key >= height:
            return True
        begin = np.uint64(key) * columns
        if weighted:
            weight = weights[element]
            for i in range(columns):
                target[i] += weight * source[begin + i]
        else:
            for i in range(columns):
                target[i] += source[begin + i]
    if mean and last > first:
        factor = _factor(weights, first, last, mean)
        for i in range(columns):
            target[i] *= factor
    return False


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
