"""Rows of 4-byte words from a frame's columns, on CPU."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from features.arrow_columns import float_pieces
from features.frame import FloatWord, IdWord

# One a core: more would take each other's cache.
NUM_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
TASK_ROWS = 1 << 16  # rows that a thread weaves before it takes the next ones


def weave_rows(num_rows: int, num_words: int, ids: Sequence[IdWord], floats: Sequence[FloatWord]) -> np.ndarray:
    """int32 [num_rows, num_words]; a float's word holds the bits of its float32.

    ids: every int32 column, and the bits of float32 ones that are copied as they are. Bit for bit what `FillMissing`
    and then `Normalize` give. Errors (`DataError`): an infinity, before or after scaling, by the column's name.
    """
    from features import row_kernels as kernels

    # torch's memory, because NumPy asks for huge pages, and to clear those took longer than to write the rows: 0.45 s
    # for 432 MB in a new process of a virtual machine, where small pages took 0.19 s in all.
    out = torch.empty((num_rows, num_words), dtype=torch.int32).numpy()
    columns = [np.ascontiguousarray(word.ids).view(np.int32) for word in ids]
    tables = [None if word.table is None else np.ascontiguousarray(word.table, np.int32) for word in ids]
    chunks = [_Pieces(float_pieces(word.column)) for word in floats]
    cuts = sorted({cut for item in chunks for cut in item.starts} | set(range(0, num_rows, TASK_ROWS)) | {num_rows})
    id_places, float_places = _int64(word.place for word in ids), _int64(word.place for word in floats)
    nulls = np.array([0 if table is None else table[-1] for table in tables], np.int32)
    flag_places = _int64(word.flag_place for word in floats)
    table_addresses = _int64(0 if table is None else table.ctypes.data for table in tables)
    fills = np.array([word.fill for word in floats], np.float32)
    means, spreads = (np.array([getattr(word, name) for word in floats], np.float64) for name in ("mean", "std"))

    def run(bounds: tuple[int, int]) -> np.ndarray:
        start, stop = bounds
        rows, faults = out[start:stop], np.zeros(len(floats), np.int8)
        addresses = _int64(column.ctypes.data + 4 * start for column in columns)
        kernels.weave_words(addresses, table_addresses, nulls, id_places, rows)
        found = [item.at(start) for item in chunks]
        values, bitmaps, offsets = (_int64(item[part] for item in found) for part in range(3))
        kernels.weave_floats(values, bitmaps, offsets, fills, means, spreads, float_places, flag_places, rows, faults)
        return faults

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        faults = list(pool.map(run, pairwise(cuts)))
    for number, word in enumerate(floats):
        fault = int(np.bitwise_or.reduce([found[number] for found in faults])) if faults else 0
        if fault:
            raise word.infinity(scaled=not fault & kernels.INFINITE)
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
