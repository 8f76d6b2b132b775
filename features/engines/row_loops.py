"""Rows of 4-byte words from a frame's columns, on CPU: filled, scaled and packed in one pass by compiled loops.

The loops are given columns by their addresses, so that one call serves any number of them; `pack_rows` keeps what lies
there alive.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gigabatch.features.engines.arrow_columns import float_pieces
from gigabatch.features.engines.frame import FloatWord, IdWord, require_every_word
from gigabatch.loops import njit

# One a core: more would take each other's cache.
NUM_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
TASK_ROWS = 1 << 16  # rows that a thread packs before it takes the next ones
# Rows packed at a time: with some fifty words a row they stay in the L1 cache while every column adds its word.
BLOCK_ROWS = 128
INFINITE, OUT_OF_RANGE = 1, 2


def pack_rows(num_rows: int, num_words: int, ids: Sequence[IdWord], floats: Sequence[FloatWord]) -> np.ndarray:
    """int32 [num_rows, num_words]; a float's word holds the bits of its float32.

    ids: every int32 column, and the bits of float32 ones that are copied as they are. Bit for bit what `FillMissing`
    and then `Normalize` give, or `RobustScale.of` of what is filled. Errors (`DataError`): an infinity, before or after
    scaling, by the column's name.
    """
    import torch  # here, for who reads and looks at frames without packing a row

    require_every_word(num_words, ids, floats)
    # torch's memory, because NumPy asks for huge pages, and to clear those took longer than to write the rows: 0.45 s
    # for 432 MB in a new process of a virtual machine, where small pages took 0.19 s in all.
    out = torch.empty((num_rows, num_words), dtype=torch.int32, device="cpu").numpy()
    columns = [np.ascontiguousarray(word.ids).view(np.int32) for word in ids]
    tables = [None if word.table is None else np.ascontiguousarray(word.table, np.int32) for word in ids]
    chunks = [_Pieces(float_pieces(word.column)) for word in floats]
    cuts = sorted({cut for item in chunks for cut in item.starts} | set(range(0, num_rows, TASK_ROWS)) | {num_rows})
    id_places, float_places = _int64(word.place for word in ids), _int64(word.place for word in floats)
    nulls = np.array([0 if table is None else table[-1] for table in tables], np.int32)
    flag_places = _int64(word.flag_place for word in floats)
    table_addresses = _int64(0 if table is None else table.ctypes.data for table in tables)
    fills = np.array([word.fill for word in floats], np.float32)
    scales = np.array([(word.mean, word.std, word.clip) for word in floats], np.float64).reshape(-1, 3)

    def run(bounds: tuple[int, int]) -> np.ndarray:
        start, stop = bounds
        rows, faults = out[start:stop], np.zeros(len(floats), np.int8)
        addresses = _int64(column.ctypes.data + 4 * start for column in columns)
        pack_words(addresses, table_addresses, nulls, id_places, rows)
        found = [item.at(start) for item in chunks]
        values, bitmaps, offsets = (_int64(item[part] for item in found) for part in range(3))
        pack_floats(values, bitmaps, offsets, fills, scales, float_places, flag_places, rows, faults)
        return faults

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        faults = list(pool.map(run, pairwise(cuts)))
    for number, word in enumerate(floats):
        fault = int(np.bitwise_or.reduce([found[number] for found in faults])) if faults else 0
        if fault:
            raise word.infinity(scaled=not fault & INFINITE)
    return out


class _Pieces:
    """The pieces of one column, by row."""

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = pieces
        self.starts = np.concatenate([[0], np.cumsum([len(values) for values, _ in pieces])]).astype(int).tolist()

    def at(self, row: int) -> tuple[int, int, int]:
        """Address of the row's value, of its piece's bitmap (0: none), and the row's bit there."""
        number = bisect_right(self.starts, row) - 1
        values, (bitmap, offset) = self.pieces[number]
        inside = row - self.starts[number]
        return values.ctypes.data + 4 * inside, bitmap.ctypes.data if len(bitmap) else 0, offset + inside


def _int64(values: Any) -> np.ndarray:
    return np.fromiter(values, np.int64)


@intrinsic
def _pointer(typing_context, address):
    """An address (int64) as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@njit()
def _unpack_nulls(bitmap, first, size, null):
    """null[:size]: whether the bits from `first` on are 0; `bitmap` is an address, of Arrow's validity bitmap."""
    num_bytes = (first + size + 7) >> 3
    bits = numba.carray(_pointer(bitmap), (num_bytes,), np.uint8)
    at = 0
    while at < size:
        byte, bit = (first + at) >> 3, (first + at) & 7
        if byte + 4 < num_bytes and size - at >= 32:
            word = np.uint64(bits[byte]) | np.uint64(bits[byte + 1]) << np.uint64(8)
            word |= np.uint64(bits[byte + 2]) << np.uint64(16) | np.uint64(bits[byte + 3]) << np.uint64(24)
            word |= np.uint64(bits[byte + 4]) << np.uint64(32)
            low = np.uint32((word >> np.uint64(bit)) & np.uint64(0xFFFFFFFF))
            for i in range(32):  # a fixed number, so that it becomes a few vector instructions
                null[at + i] = (low >> np.uint32(i)) & np.uint32(1) == np.uint32(0)
            at += 32
        else:
            null[at] = (bits[byte] >> np.uint8(bit)) & np.uint8(1) == np.uint8(0)
            at += 1


@njit()
def _fill_and_scale(source, null, size, fill, scale, filled):
    """The words of a block of one column into `filled`, its nulls into `null`, and what is wrong with it."""
    infinite, beyond = np.int32(0), np.int32(0)
    mean, spread, clip = scale
    for i in range(size):
        value = source[i]
        null[i] |= value != value
        value = fill if null[i] else value
        infinite += np.abs(value) == np.float32(np.inf)
        filled[i] = value
    if spread != 0 and clip != 0:
        for i in range(size):
            scaled = (np.float64(filled[i]) - mean) / spread
            part = scaled / clip
            filled[i] = np.float32(scaled / np.sqrt(1.0 + part * part))
    elif spread != 0:
        for i in range(size):
            scaled = np.float32((np.float64(filled[i]) - mean) / spread)
            beyond += np.abs(scaled) == np.float32(np.inf)
            filled[i] = scaled
    if infinite:
        return np.int8(INFINITE)
    return np.int8(OUT_OF_RANGE) if beyond else np.int8(0)


@njit()
def pack_floats(values, bitmaps, bit_offsets, fills, scales, places, flag_places, out, faults):
    """Fill, flag and scale float32 columns into `out` (int32 [N, W]) as `FillMissing` and `Normalize` do, bit by bit.

    One entry a column: values, the address of its N values; bitmaps, that of Arrow's validity bitmap or 0, whose bit
    `bit_offsets` belongs to the first value; fills float32; scales float64 [columns, 3]: mean, spread, 0 for a column
    that is not scaled, and what bounds it smoothly, 0 for nothing; places, its word in a row; flag_places, that of its
    indicator or -1; faults, int8, set to INFINITE or OUT_OF_RANGE.
    """
    num_rows, width = out.shape[0], np.uint64(out.shape[1])
    words = out.reshape(-1).view(np.float32)
    filled, null = np.empty(BLOCK_ROWS, np.float32), np.empty(BLOCK_ROWS, np.bool_)
    for start in range(0, num_rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, num_rows - start)
        for column in range(len(values)):
            source = numba.carray(_pointer(values[column] + 4 * start), (size,), np.float32)
            if bitmaps[column] != 0:
                _unpack_nulls(bitmaps[column], bit_offsets[column] + start, size, null)
            else:
                null[:] = False
            scale = (scales[column, 0], scales[column, 1], scales[column, 2])
            faults[column] |= _fill_and_scale(source, null, size, fills[column], scale, filled)
            # Unsigned places, because signed ones are looked at for being negative.
            place = np.uint64(start) * width + np.uint64(places[column])
            for i in range(size):
                words[place] = filled[i]
                place += width
            if flag_places[column] >= 0:
                place = np.uint64(start) * width + np.uint64(flag_places[column])
                for i in range(size):
                    words[place] = np.float32(null[i])
                    place += width


@njit()
def pack_words(words, tables, nulls, places, out):
    """Write int32 columns into `out` (int32 [N, W]).

    One entry a column: words, the address of its N words; tables, 0, or the address of int32 by code, and then a
    column's words are codes into it; nulls, what a negative code becomes; places, its word in a row.
    """
    num_rows, width = out.shape[0], np.uint64(out.shape[1])
    flat = out.reshape(-1)
    for start in range(0, num_rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, num_rows - start)
        for column in range(len(words)):
            source = numba.carray(_pointer(words[column] + 4 * start), (size,), np.int32)
            place = np.uint64(start) * width + np.uint64(places[column])
            if tables[column] != 0:
                table = numba.carray(_pointer(tables[column]), (1,), np.int32)
                null = nulls[column]
                for i in range(size):
                    code = source[i]
                    flat[place] = table[code] if code >= 0 else null
                    place += width
            else:
                for i in range(size):
                    flat[place] = source[i]
                    place += width
