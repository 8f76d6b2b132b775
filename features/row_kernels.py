"""Compiled on CPU by numba: columns of a partition, filled, scaled and woven into rows of 4-byte words in one pass.

Columns are given by their addresses, so that one call serves any number of them; `features/encode_rows.py` keeps what
lies there alive.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Rows woven at a time: with some fifty words a row they stay in the L1 cache while every column adds its word.
BLOCK_ROWS = 128
INFINITE, OUT_OF_RANGE = 1, 2


@intrinsic
def _pointer(typing_context, address):
    """An address (int64) as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _fill_and_scale(source, null, size, fill, mean, spread, filled):
    """The words of a block of one column into `filled`, its nulls into `null`, and what is wrong with it."""
    infinite, beyond = np.int32(0), np.int32(0)
    for i in range(size):
        value = source[i]
        null[i] |= value != value
        value = fill if null[i] else value
        infinite += np.abs(value) == np.float32(np.inf)
        filled[i] = value
    if spread != 0:
        for i in range(size):
            scaled = np.float32((np.float64(filled[i]) - mean) / spread)
            beyond += np.abs(scaled) == np.float32(np.inf)
            filled[i] = scaled
    if infinite:
        return np.int8(INFINITE)
    return np.int8(OUT_OF_RANGE) if beyond else np.int8(0)


@numba.njit(cache=True, nogil=True)
def weave_floats(values, bitmaps, bit_offsets, fills, means, spreads, places, flag_places, out, faults):
    """Fill, flag and scale float32 columns into `out` (int32 [N, W]) as `FillMissing` and `Normalize` do, bit by bit.

    One entry a column: values, the address of its N values; bitmaps, that of Arrow's validity bitmap or 0, whose bit
    `bit_offsets` belongs to the first value; fills float32; means and spreads float64, spread 0 for a column that is
    not scaled; places, its word in a row; flag_places, that of its indicator or -1; faults, int8, set to INFINITE or
    OUT_OF_RANGE.
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
            faults[column] |= _fill_and_scale(source, null, size, fills[column], means[column], spreads[column], filled)
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


@numba.njit(cache=True, nogil=True)
def weave_words(words, tables, nulls, places, out):
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
