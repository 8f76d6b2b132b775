"""`lookup` on all cores of a CPU, compiled by numba; see `reference.py` for what it computes."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loops import njit
from gigabatch.models.kernels.row_loops import AHEAD, pointer, prefetch, rounded, stored_as

BLOCK_ROWS = 128  # written by all columns in turn while they lie in the cache
NEAR_BYTES = 1 << 18  # tables up to this size are in the cache anyway and are not fetched ahead


@torch.no_grad()
def lookup(
    ids: Tensor,
    tables: Sequence[Tensor],
    out: Tensor,
    floats: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """As the reference.

    Raises:
        IndexError: for an id outside its table; `out` is then unspecified.
    """
    assert ids.dtype == torch.int32, ids.dtype
    assert ids.shape == (len(out), len(tables)), (ids.shape, out.shape, len(tables))
    assert floats is None or len(floats) == len(ids), (floats.shape, ids.shape)
    assert out.stride(1) == 1, out.stride()
    assert all(table.dtype == torch.float32 and table.is_contiguous() for table in tables)
    addresses = np.array([table.data_ptr() for table in tables], np.int64)
    shapes = np.array([table.shape for table in tables], np.int64).reshape(-1, 2)
    values = np.empty((len(ids), 0), np.float32) if floats is None else floats.detach().numpy()
    num_floats = values.shape[1]
    scales = np.ones(num_floats, np.float32) if scale is None else scale.detach().numpy()
    shifts = np.zeros(num_floats, np.float32) if shift is None else shift.detach().numpy()
    place = out.data_ptr(), out.stride(0), out.shape[1], stored_as(out)
    bad = _lookup(ids.numpy(), addresses, shapes, values, scales, shifts, *place)
    if bad >= 0:
        wrong = ids[:, bad]
        raise IndexError(
            f"embedding tables: column {bad} holds ids from {int(wrong.min())} to {int(wrong.max())}, its table has "
            f"{tables[bad].shape[0]} rows."
        )


@njit(parallel=True)
def _lookup(ids, addresses, shapes, floats, scales, shifts, out, stride, width, like):
    """Returns -1, or the first column with an id outside its table. out is an address, stride and width in elements,
    which are of the type of `like`."""
    num_rows = ids.shape[0]
    num_blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    faults = np.full(num_blocks, len(addresses), np.int64)
    for block in numba.prange(num_blocks):
        first = block * BLOCK_ROWS
        last = min(first + BLOCK_ROWS, num_rows)
        at = 0
        for column in range(len(addresses)):
            size, depth = shapes[column]
            if _copy_rows(ids, first, last, column, addresses[column], size, depth, out, stride, at, like):
                faults[block] = min(faults[block], column)
            at += depth
        _copy_floats(floats, first, last, scales, shifts, out, stride, at, width, like)
    found = faults.min() if num_blocks else len(addresses)
    return found if found < len(addresses) else -1


# Places are unsigned, because signed ones are looked at for being negative.


@njit()
def _copy_rows(ids, first, last, column, table, size, depth, out, stride, at, like):
    """Rows [first, last) of one column; whether an id was outside the table."""
    near = size * depth * 4 <= NEAR_BYTES
    wrong = False
    source, target = numba.carray(pointer(table), (1,), np.float32), numba.carray(pointer(out), (1,), like.dtype)
    width, step = np.uint64(depth), np.uint64(stride)
    place = np.uint64(first * stride + at)
    mine = ids[first:last, column]
    for row in range(len(mine)):
        if not near and row + AHEAD < len(mine):
            ahead = table + 4 * depth * np.int64(mine[row + AHEAD])
            prefetch(ahead)
            prefetch(ahead + 4 * depth - 4)
        key = mine[row]
        if key < 0 or key >= size:
            wrong = True
        else:
            begin = np.uint64(key) * width
            for i in range(width):
                target[place + i] = rounded(source[begin + i], target[place + i])
        place += step
    return wrong


@njit()
def _copy_floats(floats, first, last, scales, shifts, out, stride, at, width, like):
    """Scaled floats from column `at` on, then zeros up to `width`."""
    num_floats, num_columns = np.uint64(floats.shape[1]), np.uint64(width - at)
    target = numba.carray(pointer(out), (1,), like.dtype)
    place = np.uint64(first * stride + at)
    for row in range(first, last):
        line = floats[row]
        for i in range(num_floats):
            target[place + i] = rounded(line[i] * scales[i] + shifts[i], target[place + i])
        for i in range(num_floats, num_columns):
            target[place + i] = 0
        place += np.uint64(stride)
