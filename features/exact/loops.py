"""Loops over a column on the CPU, compiled by numba: what NumPy would need several passes and large temporaries for.

Import this module inside the function that needs it: numba takes half a second to load. Each function compiles at its
first call and is kept on disk beside this file (`NUMBA_CACHE_DIR` moves that), runs without the interpreter lock, and
gives whole numbers, so that chunks of a column may be added in any order.
"""

from __future__ import annotations

import numpy as np

from gigabatch.loops import njit

HALF = np.uint64(26)  # bits of the lower part that a float64's 53 are split at
MINUS_ZERO32 = np.uint32(0x80000000)
NAN32 = np.uint32(0x7FC00000)


@njit(inline="always")
def _is_null(valid, place):
    """Whether Arrow's validity bitmap (uint8, lowest bit first; empty: all are valid) has a 0 at `place`."""
    return len(valid) > 0 and not (valid[place >> 3] >> np.uint8(place & 7)) & 1


@njit()
def add_leading_moments32(found, words, valid, offset):
    """Add to `found`, int64[65536, 3], of float32 values given as uint32 `words`: count, sum and sum of squares of the
    lower 16 bits, for each pattern of the upper 16. -0.0 counts as 0.0, a null as NaN.

    valid: see `_is_null`; bit `offset` belongs to the first value. Below 2^31 values nothing overflows.
    """
    for i in range(len(words)):
        word = words[i]
        if word == MINUS_ZERO32:
            word = np.uint32(0)
        if _is_null(valid, offset + i):
            word = NAN32
        low = np.int64(word & np.uint32(0xFFFF))
        row = word >> np.uint32(16)
        found[row, 0] += 1
        found[row, 1] += low
        found[row, 2] += low * low


def leading_moments32(words, valid, offset):
    """`add_leading_moments32` from zero."""
    found = np.zeros((1 << 16, 3), np.int64)
    add_leading_moments32(found, words, valid, offset)
    return found


@njit()
def leading_counts(words, valid, offset, shift, num_bins, minus_zero):
    """int64[num_bins]: how many of the words have each pattern `word >> shift`; `minus_zero` counts as 0, nulls not
    at all."""
    found = np.zeros(num_bins, np.int64)
    for i in range(len(words)):
        word = words[i]
        if word == minus_zero:
            word ^= minus_zero
        found[word >> shift] += not _is_null(valid, offset + i)
    return found


@njit()
def words_inside(words, valid, offset, shift, wanted, minus_zero):
    """The words, in their order, whose `word >> shift` is True in `wanted`; `minus_zero` is taken as 0, nulls are left
    out."""
    found = np.empty(len(words), words.dtype)  # pages that are never written take no memory
    place = 0
    for i in range(len(words)):
        word = words[i]
        if word == minus_zero:
            word ^= minus_zero
        if wanted[word >> shift] and not _is_null(valid, offset + i):
            found[place] = word
            place += 1
    return found[:place].copy()


@njit()
def keys_inside32(words, valid, offset, slots):
    """uint32 keys, in the words' order, of float32 values given as uint32 `words` whose upper 16 bits have a slot:
    above, the slot less 1; below, the lower 16 bits of the value's image, so that keys order as values do.

    slots: uint16[65536], by the upper 16 bits, 0 for none; they ascend with the value. -0.0 is taken as 0.0, nulls are
    left out. Every key is written and the next one goes over it where it does not stay, since which of them stay no
    processor foretells.
    """
    found = np.empty(len(words), np.uint32)  # pages that are never written take no memory
    place = 0
    some_null = len(valid) > 0
    for i in range(len(words)):
        word = words[i]
        word = np.uint32(0) if word == MINUS_ZERO32 else word
        slot = slots[word >> np.uint32(16)]
        flipped = np.uint32(0) - (word >> np.uint32(31))  # of a negative value all bits
        found[place] = (np.uint32(slot - np.uint16(1)) << np.uint32(16)) | ((word ^ flipped) & np.uint32(0xFFFF))
        stays = slot != 0
        if some_null:
            stays &= not _is_null(valid, offset + i)
        place += stays
    return found[:place].copy()


@njit()
def counted_keys32(keys, num_slots):
    """(uint32 distinct `keys` ascending, int64 how often each comes) of keys of `keys_inside32` with so many slots, by
    digits of 12 bits, the lowest first."""
    spare = np.empty_like(keys)
    starts = np.empty(1 << 12, np.int64)
    top = np.uint64(num_slots) << np.uint64(16)
    shift = np.uint32(0)
    while top >> np.uint64(shift):
        starts[:] = 0
        for key in keys:
            starts[(key >> shift) & np.uint32(0xFFF)] += 1
        total = 0
        for digit in range(1 << 12):
            total, starts[digit] = total + starts[digit], total
        for key in keys:
            digit = (key >> shift) & np.uint32(0xFFF)
            spare[starts[digit]] = key
            starts[digit] += 1
        keys, spare = spare, keys
        shift += np.uint32(12)
    last = -1
    counts = np.zeros(len(keys), np.int64)
    for key in keys:
        if last < 0 or key != spare[last]:
            last += 1
            spare[last] = key
        counts[last] += 1
    return spare[: last + 1].copy(), counts[: last + 1].copy()


@njit()
def _add(bins, value):
    """Add one float64 to the row of its sign and exponent."""
    word = np.float64(value).view(np.uint64)
    row = word >> np.uint64(52)
    mantissa = word & np.uint64(0xFFFFFFFFFFFFF)
    if row & np.uint64(0x7FF):
        mantissa |= np.uint64(1 << 52)
    bins[row, 0] += np.int64(mantissa >> HALF)
    bins[row, 1] += np.int64(mantissa & np.uint64((1 << 26) - 1))


@njit()
def sum_bins(values):
    """int64[4096, 2] of float values taken as float64: sums of the mantissas' upper 27 and lower 26 bits, by the 12
    bits of sign and exponent. Below 2^36 values nothing overflows. (Neal 2015, "Fast exact summation using small and
    large superaccumulators", keeps such bins too, with one word each and carries.)
    """
    bins = np.zeros((1 << 12, 2), np.int64)
    for i in range(len(values)):
        _add(bins, values[i])
    return bins


@njit()
def square_bins(values):
    """int64[4096, 2] as in `sum_bins`, of numbers that add up to the squares of the float64 `values` exactly.

    Each value is split into halves of 26 bits, whose products float64 holds (Dekker 1971, section 5).
    """
    bins = np.zeros((1 << 12, 2), np.int64)
    for i in range(len(values)):
        value = values[i]
        large = value * 134217729.0  # 2^27 + 1
        high = large - (large - value)
        low = value - high
        _add(bins, high * high)
        if low != 0:
            _add(bins, high * low)
            _add(bins, high * low)
            _add(bins, low * low)
    return bins
