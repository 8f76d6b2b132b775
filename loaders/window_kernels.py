"""Compiled on CPU by numba: the order of the rows of a window, and their copies in that order."""

from __future__ import annotations

import numba
import numpy as np

from loaders.gather_kernels import ROWS_AHEAD, copy_words, fetch_row

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@numba.njit(cache=True, nogil=True)
def permute(out, seed):
    """out [M] int32 becomes a random permutation of 0 .. M-1, M < 2^31, a pure function of M and seed (uint64).

    Fisher and Yates' shuffle in Durstenfeld's form (CACM 7, 1964, algorithm 235), driven by splitmix64 (Steele, Lea
    and Flood 2014). The upper half of a number is scaled to [0, i], which favours no value by more than M / 2^32.
    """
    for i in range(len(out)):
        out[i] = i
    state = seed
    for i in range(len(out) - 1, 0, -1):
        state += GOLDEN
        mixed = (state ^ (state >> np.uint64(30))) * MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * MIX_2
        mixed ^= mixed >> np.uint64(31)
        j = np.int64(((mixed >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        out[i], out[j] = out[j], out[i]


@numba.njit(cache=True, nogil=True)
def gather_places(window, row_bytes, places, out):
    """Copy row places[i] of `window` to row i of `out`: addresses (int64) of rows of `row_bytes` bytes.

    places: [B] int32. Rows are fetched ahead of their copies, which makes it about twice torch's index_select.
    """
    for i in range(min(ROWS_AHEAD, len(places))):
        fetch_row(window + np.int64(places[i]) * row_bytes, row_bytes)
    for i in range(len(places)):
        if i + ROWS_AHEAD < len(places):
            fetch_row(window + np.int64(places[i + ROWS_AHEAD]) * row_bytes, row_bytes)
        copy_words(out + i * row_bytes, window + np.int64(places[i]) * row_bytes, row_bytes)
