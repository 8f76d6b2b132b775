"""Loops over float32 columns on a GPU, in Triton: many columns in one launch, counts that one read brings back.

They count what `features/exact/loops.py` counts on a CPU, by integer atomics, so that the order does not matter. What
bounds them is atomics, not memory: at most three a value, and an H200's L2 takes about one a clock in each of its 96
slices, so that 42.8M rows of 20 columns take some 16 ms where reading them takes 1 ms (an estimate). Atomics on one
address come one after another, at 0.6 ns each, so values that come often in a tile are added up first: those of 0 and
of null, and of two samples of the tile. A column that is one value in half of its rows needs an atomic for each of the
other half's values, and a few a tile for this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # values that a program counts: 8 a thread, whose registers leave room for three programs at once
PATTERNS = 1 << 16


@dataclass(frozen=True)
class DeviceColumn:
    """A float32 column as it lies in the device's memory.

    values: address of the first value. bitmap: address of Arrow's validity bitmap, or 0 where all are valid. offset:
    the bit of the first value. num_rows: below 2^31. Whoever makes one keeps its memory alive.
    """

    values: int
    bitmap: int
    offset: int
    num_rows: int


def add_leading_moments32(columns: Sequence[DeviceColumn], found: Tensor) -> None:
    """Add to `found`, int64 [C, 65536, 3], what `loops.add_leading_moments32` counts of each of C columns.

    One launch, after a few numbers are copied to the device; nothing is read back.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.features.exact.loops_cuda import DeviceColumn, add_leading_moments32
    >>> values = torch.tensor([1.0, 1.0, 2.5], device="cuda")  # doctest: +SKIP
    >>> found = torch.zeros(1, 1 << 16, 3, dtype=torch.int64, device="cuda")  # doctest: +SKIP
    >>> add_leading_moments32([DeviceColumn(values.data_ptr(), 0, 0, 3)], found)  # doctest: +SKIP
    >>> found[0, :, 0].nonzero().flatten().tolist()  # doctest: +SKIP
    [16256, 16416]
    """
    assert found.shape == (len(columns), PATTERNS, 3), found.shape
    assert found.dtype == torch.int64, found.dtype
    assert found.is_contiguous()
    tiles = _tiles(columns)
    if tiles:
        with torch.cuda.device_of(found):
            _leading_moments[(tiles * len(columns),)](
                _described(columns, found.device), found, tiles, BLOCK=BLOCK, num_warps=8
            )


def add_rest_counts32(columns: Sequence[DeviceColumn], rows: Tensor, found: Tensor) -> None:
    """Add to `found`, int32 [R, 65536], how often each value comes of those whose upper 16 bits are looked into.

    rows: int32 [C, 65536] on the device: the row of `found` where the values of a column with these upper bits are
    counted, by their lower 16 bits, or -1 for none. -0.0 counts as 0.0, a null as the NaN 0x7FC00000. One launch, which
    reads each column once, after a few numbers are copied to the device; nothing is read back.
    """
    assert rows.shape == (len(columns), PATTERNS), rows.shape
    assert found.shape[1:] == (PATTERNS,), found.shape
    assert rows.dtype == found.dtype == torch.int32, (rows.dtype, found.dtype)
    assert rows.is_contiguous()
    assert found.is_contiguous()
    tiles = _tiles(columns)
    if tiles:
        with torch.cuda.device_of(found):
            _rest_counts[(tiles * len(columns),)](
                _described(columns, found.device), rows, found, tiles, BLOCK=BLOCK, num_warps=8
            )


def _tiles(columns: Sequence[DeviceColumn]) -> int:
    """Programs a column."""
    return triton.cdiv(max((column.num_rows for column in columns), default=0), BLOCK)


def _described(columns: Sequence[DeviceColumn], device: torch.device) -> Tensor:
    """[C, 4] int64: values, bitmap, offset and rows."""
    rows = [(column.values, column.bitmap, column.offset, column.num_rows) for column in columns]
    return torch.tensor(rows, dtype=torch.int64).to(device)


@triton.jit
def _words(column, row, live):
    """uint32 words of a column's rows: 0.0 for -0.0, a NaN for null, 0 beyond its end."""
    values = tl.load(column).to(tl.pointer_type(tl.uint32))
    bitmap, bit = tl.load(column + 1), tl.load(column + 2) + row
    word = tl.load(values + row, mask=live, other=0)
    known = tl.load(bitmap.to(tl.pointer_type(tl.uint8)) + (bit >> 3), mask=live & (bitmap != 0), other=255)
    null = ((known.to(tl.int32) >> (bit & 7).to(tl.int32)) & 1) == 0
    word = tl.where(word == 0x80000000, 0, word).to(tl.uint32)
    return tl.where(null, 0x7FC00000, word).to(tl.uint32)


@triton.jit
def _sample(column, start, num_rows, SAMPLE: tl.constexpr, BLOCK: tl.constexpr):
    """The word of a tile's first value or of that in its middle."""
    row = start + SAMPLE * (BLOCK // 2)
    return _words(column, row, row < num_rows)


@triton.jit(do_not_specialize=["num_tiles"])
def _leading_moments(columns, found, num_tiles, BLOCK: tl.constexpr):
    number = (tl.program_id(0) // num_tiles).to(tl.int64)
    start = (tl.program_id(0) % num_tiles).to(tl.int64) * BLOCK
    column, table = columns + 4 * number, found + number * (3 * 65536)
    num_rows = tl.load(column + 3)
    row = start + tl.arange(0, BLOCK)
    rest = row < num_rows
    word = _words(column, row, rest)
    upper, low = (word >> 16).to(tl.int32), (word & 0xFFFF).to(tl.int64)
    for often in tl.static_range(4):  # of these, one atomic a tile
        if often == 0:
            wanted = 0
        elif often == 1:
            wanted = 0x7FC0
        else:
            wanted = (_sample(column, start, num_rows, often - 2, BLOCK) >> 16).to(tl.int32)
        same = rest & (upper == wanted)
        rest = rest & (upper != wanted)
        count = tl.sum(same.to(tl.int64))
        lows, squares = tl.sum(tl.where(same, low, 0)), tl.sum(tl.where(same, low * low, 0))
        tl.atomic_add(table + 3 * wanted, count, mask=count != 0, sem="relaxed")
        tl.atomic_add(table + 3 * wanted + 1, lows, mask=lows != 0, sem="relaxed")
        tl.atomic_add(table + 3 * wanted + 2, squares, mask=squares != 0, sem="relaxed")
    place = table + 3 * upper
    tl.atomic_add(place, (low * 0 + 1).to(tl.int64), mask=rest, sem="relaxed")
    # Whole numbers up to 2^8 and the like have no lower bits.
    tl.atomic_add(place + 1, low, mask=rest & (low != 0), sem="relaxed")
    tl.atomic_add(place + 2, low * low, mask=rest & (low != 0), sem="relaxed")


@triton.jit(do_not_specialize=["num_tiles"])
def _rest_counts(columns, rows, found, num_tiles, BLOCK: tl.constexpr):
    number = (tl.program_id(0) // num_tiles).to(tl.int64)
    start = (tl.program_id(0) % num_tiles).to(tl.int64) * BLOCK
    column, rows_of = columns + 4 * number, rows + number * 65536
    num_rows = tl.load(column + 3)
    row = start + tl.arange(0, BLOCK)
    live = row < num_rows
    word = _words(column, row, live)
    place = tl.load(rows_of + (word >> 16).to(tl.int32), mask=live, other=-1)
    inside = place >= 0
    counted = found + place.to(tl.int64) * 65536 + (word & 0xFFFF).to(tl.int64)
    for often in tl.static_range(3):  # of these, one atomic a tile
        common = (num_rows * 0).to(tl.uint32) if often == 0 else _sample(column, start, num_rows, often - 1, BLOCK)
        same = inside & (word == common)
        inside = inside & (word != common)
        count = tl.sum(same.to(tl.int32))
        at = tl.load(rows_of + (common >> 16).to(tl.int32)).to(tl.int64) * 65536 + (common & 0xFFFF).to(tl.int64)
        tl.atomic_add(found + at, count, mask=count != 0, sem="relaxed")
    tl.atomic_add(counted, (place * 0) + 1, mask=inside, sem="relaxed")
