"""XXH64 of many values at once on CPU, compiled by numba (Collet, "xxHash fast digest algorithm", 2023)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigabatch.loops import njit

P1, P2, P3, P4, P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
STRIPE = 32  # bytes that the four lanes take together


@njit(inline="always")
def _rotated(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@njit(inline="always")
def _word(data, at, size):
    """The `size` bytes from data[at] on as a little-endian uint64."""
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(inline="always")
def _round(lane, word):
    return _rotated(lane + word * P2, 31) * P1


@njit(inline="always")
def _stripes(data, start, stop):
    """The lanes over all whole stripes, merged."""
    a, b, c, d = P1 + P2, P2, np.uint64(0), np.uint64(0) - P1
    for at in range(start, stop - STRIPE + 1, STRIPE):
        a, b = _round(a, _word(data, at, 8)), _round(b, _word(data, at + 8, 8))
        c, d = _round(c, _word(data, at + 16, 8)), _round(d, _word(data, at + 24, 8))
    found = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
    for lane in (a, b, c, d):
        found = (found ^ _round(np.uint64(0), lane)) * P1 + P4
    return found


@njit()
def hash_bytes(offsets: Any, data: Any) -> Any:
    """uint64 [N]: XXH64 with seed 0 of each data[offsets[i] : offsets[i + 1]] (uint8)."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        at, stop = np.int64(offsets[i]), np.int64(offsets[i + 1])
        size = stop - at
        found = _stripes(data, at, stop) if size >= STRIPE else P5
        found += np.uint64(size)
        at += size // STRIPE * STRIPE
        while at + 8 <= stop:
            found = _rotated(found ^ _round(np.uint64(0), _word(data, at, 8)), 27) * P1 + P4
            at += 8
        if at + 4 <= stop:
            found = _rotated(found ^ (_word(data, at, 4) * P1), 23) * P2 + P3
            at += 4
        while at < stop:
            found = _rotated(found ^ (np.uint64(data[at]) * P5), 11) * P1
            at += 1
        found = (found ^ (found >> np.uint64(33))) * P2
        found = (found ^ (found >> np.uint64(29))) * P3
        hashes[i] = found ^ (found >> np.uint64(32))
    return hashes
