"""Batches of a table larger than memory: whole blocks are read ahead in the background, rows are shuffled in windows.

Shapes: B rows of a batch, W words in a row, M rows of a window on one rank.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.batches.dataset import BatchSource
from gigabatch.loaders.batches.shards import PackedShards
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.blocks import BlockOrder
from gigabatch.loaders.order.ranks import RankBatches
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable

# Of all lanes a window of 32 MiB; two are in memory. Between 8 and 128 MiB the size makes no difference of 10 % to the
# speed from the page cache (AMD EPYC), so it is the size that a disk reads well in one go.
BLOCK_BYTES = 512 << 10
WINDOW_BLOCKS = 8
NUM_LANES = 8
READ_BYTES = 16 << 20  # between two looks at whether the rows are still wanted; of a remote table, asked for at once


# The rows of one rank in the order of its batches, cut into windows: which rows to read, and where each is then.


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


class StreamedDataset(BatchSource):
    """A `BatchSource` over a packed table that stays on disk or behind a URL; its words are made on the CPU.

    With `shuffle` the order is `BlockOrder`'s, a pure function of (seed, epoch): any step can be asked for, and costs
    no more than the window that it is in. The table must have been written by `write_shuffled`. Without, batches are
    the rows as they lie there.

    A thread reads the next window while rows of the one before it are handed out; an error of it comes out of `words`.
    The thread lasts for one window only, so an iteration that is given up leaves none behind. Memory: `buffer_bytes`,
    kept between epochs, and for a remote table `READ_BYTES` or a block more. Call `words` from one thread at a time.

    block_bytes: what is read at once (rounded down to whole rows). window_blocks: blocks of a lane in memory at once.
    num_lanes: a multiple of num_ranks. All three are part of the order, so a resumed run must have the same.
    """

    def __init__(
        self,
        table: PackedShards | Path | str,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        num_ranks: int = 1,
        *,
        block_bytes: int = BLOCK_BYTES,
        window_blocks: int = WINDOW_BLOCKS,
        num_lanes: int = NUM_LANES,
    ) -> None:
        self.table = table if isinstance(table, PackedShards) else PackedShards(table)
        batches = RankBatches(self.table.num_rows, batch_size, rank, num_ranks, drop_last)
        super().__init__(self.table.schema, batches, shuffle, seed)
        for name, value in (
            ("block_bytes", block_bytes),
            ("window_blocks", window_blocks),
            ("num_lanes", num_lanes),
        ):
            if value < 1:
                raise LoaderError(f"stream: {name} must be at least 1, found {value}.")
        if shuffle and self.table.layout.shuffle_seed is None:
            raise LoaderError(
                f"{self.table.location}: its rows lie in the order of their source, which blocks of rows cannot be "
                "shuffled from. Write it once in a random order (gigabatch.loaders.batches.shards.write_shuffled), "
                "hold it in memory (residency=host), or stream it with shuffle=False."
            )
        if shuffle and num_lanes % num_ranks:
            raise LoaderError(
                f"stream: num_lanes={num_lanes} is not a multiple of the {num_ranks} ranks, so that they cannot share "
                f"lanes evenly. Use num_lanes={-(-num_lanes // num_ranks) * num_ranks}."
            )
        self.block_rows = max(1, block_bytes // self.table.row_bytes)
        self.window_blocks = window_blocks
        self.num_lanes = num_lanes
        self._buffers: list[Tensor] = []  # the other one is in `_ahead`, or free
        self._current: _Window | None = None
        self._ahead: _Window | None = None
        self._one_at_a_time = threading.Lock()  # a loader's thread may be within `words` when an epoch is set
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Give the batches of this epoch from now on; waits for a step that another thread is asking for."""
        with self._one_at_a_time:
            self._set_epoch(epoch)

    def _set_epoch(self, epoch: int) -> None:
        self._give_up()
        self.epoch = epoch
        windows: Windows
        if self.shuffle:
            order = BlockOrder(self.num_rows, self.block_rows, self.window_blocks, self.num_lanes, self.seed, epoch)
            windows = ShuffledWindows(order, _turn(self._batches), self.num_ranks)
        else:
            window_rows = self.block_rows * self.window_blocks * self.num_lanes // self.num_ranks
            windows = SequentialWindows(self._batches, window_rows)
        self._windows = windows
        _, stop = self._positions(len(self) - 1)
        self._last_window = windows.window_of(max(stop - 1, 0))

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def lists(self) -> Sequence[JaggedColumn]:
        """Mapped from the table's files; the system reads the pages of the rows that are asked for."""
        return self.table.lists

    def tables(self) -> Iterable[PackedTable]:
        return self.table.parts()

    @property
    def buffer_bytes(self) -> int:
        """Memory of two windows of this rank: their rows, and where each row is to be found."""
        return 2 * self._windows.max_rows * (self.table.row_bytes + 4)

    def words(self, index: int, out: Tensor | None = None) -> Tensor:
        """As `BatchSource.words`, in host memory. Steps one after another are read ahead; a step out of turn waits
        for its window.

        Raises:
            LoaderError: naming the file that could not be read; asking again reads again.
        """
        position, stop = self._positions(index)
        rows = stop - position
        out = torch.empty((rows, self.schema.num_words), dtype=torch.int32) if out is None else out[:rows]
        done = 0
        with self._one_at_a_time:
            while done < rows:
                window = self._take(self._windows.window_of(position + done))
                done += window.copy_rows(position + done, out[done:])
        return out

    def settings(self) -> dict[str, int | bool]:
        """As `BatchSource.settings`, and the sizes that the order depends on."""
        found = super().settings()
        if self.shuffle:
            found |= {
                "block_rows": self.block_rows,
                "window_blocks": self.window_blocks,
                "num_lanes": self.num_lanes,
                "table_shuffle_seed": self.table.layout.shuffle_seed or 0,
            }
        return found

    def close(self) -> None:
        """End the reading thread and free the buffers. The next `words` starts both again."""
        with self._one_at_a_time:
            self._give_up()
            self._buffers = []

    def _positions(self, index: int) -> tuple[int, int]:
        """[start, stop) of a step among the rows of this rank."""
        start, stop = self._batches.positions(index)
        return index * self.batch_size, index * self.batch_size + stop - start

    def _take(self, number: int) -> "_Window":
        """Window `number`, read; the next one is being read from now on."""
        if self._current is not None and self._current.number == number:
            return self._current
        if self._ahead is None or self._ahead.number != number:
            self._give_up()
            self._ahead = self._read(number)
        ahead, self._ahead = self._ahead, None
        if self._current is not None:
            self._buffers.append(self._current.buffer)
            self._current = None
        try:
            ahead.wait()
        except BaseException:
            ahead.cancel()
            self._buffers.append(ahead.buffer)
            raise
        self._current = ahead
        if number < self._last_window:
            self._ahead = self._read(number + 1)
        return ahead

    def _read(self, number: int) -> "_Window":
        shape = (self._windows.max_rows, self.schema.num_words)
        buffer = self._buffers.pop() if self._buffers else torch.empty(shape, dtype=torch.int32)
        return _Window(self.table, self._windows, number, buffer)

    def _give_up(self) -> None:
        """Forget both windows; their buffers are free once the thread has ended."""
        for window in (self._current, self._ahead):
            if window is not None:
                window.cancel()
                self._buffers.append(window.buffer)
        self._current = self._ahead = None


def _turn(batches: RankBatches) -> int:
    """This rank's turn among positions that the ranks take one after another: t, t + R, t + 2R, ...

    Where they share the last step unevenly, the ranks to which `RankBatches` gives a row more come first.
    """
    parts = [replace(batches, rank=rank).positions(batches.num_steps - 1) for rank in range(batches.num_ranks)]
    return sorted(range(batches.num_ranks), key=lambda rank: parts[rank][0] - parts[rank][1]).index(batches.rank)


class _Window:
    """A window's rows, read into `buffer` by a thread that ends with it and knows nothing of the dataset."""

    def __init__(self, table: PackedShards, windows: Windows, number: int, buffer: Tensor) -> None:
        self.number = number
        self.buffer = buffer
        self._start = windows.start(number)
        self._num_rows = 0
        self._places: np.ndarray | None = None
        self._error: BaseException | None = None
        self._cancelled = threading.Event()
        # A daemon, so that a remote store that does not answer keeps no process from ending.
        self._thread = threading.Thread(target=self._run, args=(table, windows), name="stream", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all rows are there; raises what reading them raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Read no further; the buffer may be used again."""
        self._cancelled.set()
        self._thread.join()

    def copy_rows(self, position: int, out: Tensor) -> int:
        """Copy the rows from this position on, as many as `out` [B, W] takes and the window has; returns how many."""
        first = position - self._start
        count = min(len(out), self._num_rows - first)
        assert count > 0, (position, self._start, self._num_rows)
        if self._places is None:
            out[:count] = self.buffer[first : first + count]
        else:
            from gigabatch.loaders.kernels.gather_loops import gather_places

            assert out.is_contiguous(), out.stride()
            assert out.shape[1] == self.buffer.shape[1], (out.shape, self.buffer.shape)
            row_bytes = self.buffer.element_size() * self.buffer.shape[1]
            gather_places(self.buffer.data_ptr(), row_bytes, self._places[first : first + count], out.data_ptr())
        return count

    def _run(self, table: PackedShards, windows: Windows) -> None:
        try:
            ranges = windows.ranges(self.number)
            table.read_ahead(ranges)  # so that the disk has all of the window to do at once
            self._places = windows.places(self.number)
            for group in _groups(ranges, max(1, READ_BYTES // table.row_bytes)):
                if self._cancelled.is_set():
                    return
                first, self._num_rows = self._num_rows, self._num_rows + sum(stop - start for start, stop in group)
                table.read_rows(group, self.buffer[first : self._num_rows])
        except BaseException as error:
            self._error = error


def _groups(ranges: Sequence[tuple[int, int]], max_rows: int) -> Iterator[list[tuple[int, int]]]:
    """The ranges in order, cut and gathered so that each group has at most `max_rows` rows."""
    group: list[tuple[int, int]] = []
    free = max_rows
    for start, stop in ranges:
        while start < stop:
            upto = min(stop, start + free)
            group.append((start, upto))
            free -= upto - start
            start = upto
            if not free:
                yield group
                group, free = [], max_rows
    if group:
        yield group
