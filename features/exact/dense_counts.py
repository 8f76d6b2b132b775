"""Counts of each value of a float32 column in some bins of its first pass, as a table on the device that counted them.

`RadixHistogram` holds the values that come, sorted, on the host; in two hundred bins of a large column these are
millions. A table has a place for each of the 65,536 values of a bin. Two add up place by place, and the values at
wanted ranks are found where they lie, so that a GPU hands the host only those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.exact.float_order import images, words_of
from gigabatch.features.exact.quantiles import RadixHistogram, Search

NEGATIVE = 0x8000  # patterns of negative values, whose order is that of falling lower bits
MOST_IN_INT32 = 2**31 - 1
RANKS_AT_A_TIME = 256  # that are looked for; each takes a megabyte and more meanwhile


@dataclass(frozen=True, eq=False)
class DenseCounts:
    """How often each value comes in some bins of a first pass: what `Search.count` gives, undivided.

    patterns: int64 [P], the upper 16 bits of the bins' words, ascending (`Search.leading_patterns`). table: int32 or
    int64 [P, 65536], by the lower 16 bits. rows: of the columns that were counted, at most so many values.
    """

    patterns: np.ndarray
    table: Tensor
    rows: int

    kind = "float32"
    bits = 32
    exact = True

    def __reduce__(self) -> tuple[Any, ...]:
        """By way of the host, and of a table that others share only the own part."""
        return _of_host, (self.patterns, self.table.cpu().numpy(), self.rows)

    @property
    def num_values(self) -> int:
        """How many values come at all; waits for the device."""
        return int((self.table > 0).sum())

    @property
    def total(self) -> int:
        """Number of values; waits for the device."""
        return int(self.table.sum(dtype=torch.int64))

    def merge(self, other: DenseCounts) -> DenseCounts:
        """Both together; they answer one search."""
        assert np.array_equal(self.patterns, other.patterns)
        rows, left = self.rows + other.rows, self.table
        if rows > MOST_IN_INT32:
            left = left.long()
        return DenseCounts(self.patterns, left + other.table.to(left.device), rows)

    def narrowed(self, search: Search) -> Search:
        """The search after this pass, which it asked for: resolved, as each value has a place of its own."""
        assert (search.kind, search.bits) == ("float32", 16), (search.kind, search.bits)
        found, first, counts = (np.empty(len(search.prefixes), np.int64) for _ in range(3))
        upper = (words_of(search.prefixes << np.uint64(16), self.kind) >> np.uint64(16)).astype(np.int64)
        row = np.searchsorted(self.patterns, upper)
        for start in range(0, len(row), RANKS_AT_A_TIME):
            own = slice(start, start + RANKS_AT_A_TIME)
            up_to = self._running(row[own])
            wanted = torch.from_numpy(search.offsets[own]).to(up_to.device)[:, None]
            place = torch.searchsorted(up_to, wanted, right=True)
            before = torch.where(place > 0, up_to.gather(1, (place - 1).clamp(min=0)), 0)
            together = torch.cat([place, before, up_to.gather(1, place) - before], 1).cpu().numpy()
            found[own], first[own], counts[own] = together.T
        keys = search.prefixes << np.uint64(16) | found.astype(np.uint64)
        return Search(self.kind, 32, keys, search.offsets - first, counts)

    def _running(self, rows: np.ndarray) -> Tensor:
        """int64 [R, 65536]: running sums of rows of the table, in the order of their values."""
        device = self.table.device
        chosen = self.table[torch.from_numpy(rows).to(device)]
        falls = torch.from_numpy(self.patterns[rows] >= NEGATIVE).to(device)
        return torch.where(falls[:, None], chosen.flip(1), chosen).cumsum(1, dtype=torch.int64)

    def histogram(self) -> RadixHistogram:
        """The values that come, on the host."""
        row, low = (part.cpu().numpy() for part in self.table.nonzero(as_tuple=True))
        counts = self.table[self.table > 0].cpu().numpy().astype(np.int64)
        keys = images((self.patterns[row] << 16 | low).astype(np.uint32), self.kind).astype(np.uint64)
        order = np.argsort(keys)
        return RadixHistogram(self.kind, self.bits, keys[order], counts[order])

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """See `RadixHistogram.edges`."""
        return self.histogram().edges()


def _of_host(patterns: np.ndarray, table: np.ndarray, rows: int) -> DenseCounts:
    return DenseCounts(patterns, torch.from_numpy(table), rows)
