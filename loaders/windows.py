"""The rows of one rank in the order of its batches, cut into windows: which rows to read, and where each is then.

Shapes: M rows of a window on one rank.
"""

from typing import Protocol

import numpy as np

from loaders.block_order import BlockOrder
from loaders.ranks import RankBatches


class Windows(Protocol):
    """The rows of one rank, in the order of its batches, cut into windows that fit in memory."""

    max_rows: int

    def window_of(self, position: int) -> int:
        """The window that holds this rank's row number `position` of the epoch."""

    def start(self, window: int) -> int:
        """First position of a window."""

    def ranges(self, window: int) -> list[tuple[int, int]]:
        """Rows [start, stop) of the table that make up a window, in the order in which they are read."""

    def places(self, window: int) -> np.ndarray | None:
        """[M] int32: for each position of a window, where its row is among those read; None where it is that one."""


class ShuffledWindows:
    """Windows of the lanes of one rank, of which its positions take a row in turn; see `BlockOrder`.

    turn: the rank takes positions turn, turn + num_ranks, ... of the epoch.
    """

    def __init__(self, order: BlockOrder, turn: int, num_ranks: int) -> None:
        self.order = order
        self.lanes = range(turn, order.num_lanes, num_ranks)
        lengths = [order.window_start(w + 1) - order.window_start(w) for w in range(order.num_windows)]
        self.max_rows = max(lengths) * len(self.lanes)

    def window_of(self, position: int) -> int:
        return self.order.window_of(position // len(self.lanes))

    def start(self, window: int) -> int:
        return self.order.window_start(window) * len(self.lanes)

    def ranges(self, window: int) -> list[tuple[int, int]]:
        return [rows for lane in self.lanes for rows in self.order.ranges(lane, window)]

    def places(self, window: int) -> np.ndarray:
        counts = [self.order.window_rows(lane, window) for lane in self.lanes]
        out = np.empty(sum(counts), dtype=np.int32)
        first = 0
        for number, (lane, count) in enumerate(zip(self.lanes, counts, strict=True)):
            np.add(self.order.permutation(lane, window), np.int32(first), out=out[number :: len(self.lanes)])
            first += count
        return out


class SequentialWindows:
    """The rows themselves, in the order of the table: of each step the part of this rank."""

    def __init__(self, batches: RankBatches, window_rows: int) -> None:
        self.batches = batches
        self.max_rows = max(1, min(window_rows, batches.num_steps * batches.batch_size))

    def window_of(self, position: int) -> int:
        return position // self.max_rows

    def start(self, window: int) -> int:
        return window * self.max_rows

    def ranges(self, window: int) -> list[tuple[int, int]]:
        size = self.batches.batch_size
        first, stop = self.start(window), self.start(window + 1)
        found: list[tuple[int, int]] = []
        for step in range(first // size, min(-(-stop // size), self.batches.num_steps)):
            rows = self.batches.positions(step)
            start_row = rows[0] + max(first - step * size, 0)
            stop_row = min(rows[1], rows[0] + stop - step * size)
            if found and found[-1][1] == start_row:
                found[-1] = (found[-1][0], stop_row)
            elif stop_row > start_row:
                found.append((start_row, stop_row))
        return found

    def places(self, window: int) -> None:
        return None
