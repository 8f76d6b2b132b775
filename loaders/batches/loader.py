"""Batches of an epoch on the device that trains, resumable at any step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gigabatch.loaders.batches.dataset import BatchSource
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, rows_of_lists, unpack

# A batch stays as it is while the next one is worked on, so two are out at a time.
BATCHES_OUT = 2


class BatchLoader:
    """Iterates over the batches of the current epoch of `source`, each on `device`.

    Each `for` runs a whole epoch: the first one that of `source`, each other one the epoch after the last of which a
    batch was handed out, also where that loop was left (`break`), or the one that `source.set_epoch` has named since,
    the same one too. But the first `for` after `load_state_dict` goes on at `step`, the number of batches that were
    handed out. A batch counts as handed out before its consumer works on it, so a state saved after a training step
    resumes with the next one. A state saved after the last batch and loaded again gives an epoch with no batches left,
    so that what follows an epoch (evaluation, say) is not skipped.

    One loop runs at a time, since there is one place in the epoch: a loop that goes on after another one has begun, or
    after the source was set to another epoch (by another loader of it, say), is refused. Loops that run side by side
    need a loader and a source each.

    Batches lie in a ring of buffers that are filled again: a batch is valid until the one after the next one is asked
    for.

    From the CPU to a GPU a batch is gathered into page-locked memory and copied as one block on a stream of its own,
    beside the work on the batch before; the consumer's current stream waits for it, the host does not. Where rows
    already lie on the GPU, everything is queued on the consumer's current stream: use the batches on that one.

    Lists are fetched last, for the rows of the batch, and always have memory of their own. On a GPU that holds them the
    host waits once a batch and list column, for the number of their ids.

    Parameters
    ----------
    source : BatchSource
        A `BatchDataset` or a `StreamedDataset`.
    device : torch.device or str or None, default None
        Where batches are handed out; by default where the source makes them.
    prefetch : int or None, default None
        Batches that a background thread gathers ahead while the device works; 0 for none. By default 1 from host memory
        to a GPU and 0 otherwise: on CPU the thread would take the cores from the training.
    copy : bool, default False
        Give every batch memory of its own, for those who keep batches (`list(loader)`).

    Raises
    ------
    LoaderError
        For a `prefetch` that is negative, or not 0 for rows that lie on a GPU; from a loop that another one has
        overtaken.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import BatchDataset, BatchLoader, PackedTable
    >>> from gigabatch.features.schema import IdColumn, Target, TensorSchema
    >>> schema = TensorSchema(ids=(IdColumn("item", 9),), floats=("price",), targets=(Target("clicked", "binary"),))
    >>> items, clicked = torch.arange(9, dtype=torch.int32), torch.zeros(9)
    >>> table = PackedTable.from_columns(schema, ids=[items], floats=[items / 2], targets=[clicked])
    >>> loader = BatchLoader(BatchDataset(table, batch_size=4, shuffle=False))
    >>> [batch.num_rows for batch in loader]
    [4, 4, 1]
    >>> loader.state_dict()["epoch"]  # the next one to run
    1
    """

    def __init__(
        self,
        source: BatchSource,
        device: torch.device | str | None = None,
        *,
        prefetch: int | None = None,
        copy: bool = False,
    ) -> None:
        self.source = source
        self.device = torch.device(device) if device is not None else source.device
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.copy = copy
        self.step = 0
        # `times_set` of the source at the last batch handed out, until the next epoch starts
        self._begun: int | None = None
        self._loops = 0  # begun so far
        from_host = source.device.type == "cpu"
        to_gpu = from_host and self.device.type == "cuda"
        self.prefetch = int(to_gpu) if prefetch is None else prefetch
        if self.prefetch < 0 or (self.prefetch and not from_host):
            raise LoaderError(
                f"prefetch={self.prefetch}: it is the number of batches gathered ahead on the CPU, 0 or more, and 0 "
                f"for rows that lie on a GPU. The rows are on {source.device}."
            )
        self._stream = torch.cuda.Stream(self.device) if to_gpu else None
        self._slots: list[Slot] = []
        self._num_filled = 0  # fills so far; the next one goes into slot `_num_filled % len(_slots)`
        self._ahead: deque[_Ahead] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches") if self.prefetch else None

    @property
    def epoch(self) -> int:
        return self.source.epoch

    def __len__(self) -> int:
        """Batches in a whole epoch, wherever the loader stands; the same on every rank."""
        return len(self.source)

    def __iter__(self) -> Iterator[Batch]:
        if self._begun is not None:
            self._start_next(self._begun == self.source.times_set)
        self._loops += 1
        loop = self._loops
        while self._goes_on(loop):
            words, lists = self._next_words()
            self.step += 1
            self._begun = self.source.times_set
            batch = unpack(self.source.schema, words)
            yield batch._replace(lists=lists) if lists else batch
        self._start_next(self._begun in (None, self.source.times_set))

    def _goes_on(self, loop: int) -> bool:
        """Whether the epoch has a batch left for the loop of this number."""
        if loop != self._loops:
            raise LoaderError(
                "another loop over this loader has begun, and a loader has one place in the epoch. For loops side by "
                "side make a BatchDataset and a BatchLoader for each."
            )
        if self.step == len(self.source):
            return False
        if self._begun not in (None, self.source.times_set):
            raise LoaderError(
                f"the dataset was set to epoch {self.epoch} within a loop over another one, at step {self.step}. "
                "Set it between loops, and give each BatchLoader that runs beside another a BatchDataset of its own."
            )
        return True

    def _start_next(self, begun: bool) -> None:
        """Stand at step 0 of the source's epoch, or where that is `begun`, of the one after."""
        self._drop_ahead()  # of a loop that was left
        if begun:
            self.source.set_epoch(self.epoch + 1)
        self.step, self._begun = 0, None

    def _next_words(self) -> tuple[Tensor, tuple[JaggedColumn, ...]]:
        """Packed rows [B, W] of step `step` on `device`, and their lists."""
        if self._ahead and self._ahead[0].place != (self.source.times_set, self.step):
            self._drop_ahead()  # the source was set to another epoch
        if self._ahead:
            slot = self._ahead[0].slot
            try:
                self._ahead[0].done.result()
            except BaseException:
                self._drop_ahead()
                raise
            self._ahead.popleft()
        else:
            slot = self._open_slot()
            slot.fill(self.source, self.step)
            self._num_filled += 1
        if self._thread is not None:
            first, stop = self.step + 1 + len(self._ahead), self.step + 1 + self.prefetch
            for step in range(first, min(stop, len(self))):
                later = self._open_slot()
                self._num_filled += 1
                done = self._thread.submit(later.fill, self.source, step)
                self._ahead.append(_Ahead((self.source.times_set, step), later, done))
        words, lists = slot.hand_out(), tuple(column.to(self.device) for column in slot.lists)
        if words.device != self.device:
            return words.to(self.device), lists
        return words.clone() if self.copy else words, lists

    def _open_slot(self) -> Slot:
        """The slot of the oldest batch, which is given up with this call."""
        if not self._slots:
            self._slots = [self._new_slot() for _ in range(BATCHES_OUT + self.prefetch)]
        slot = self._slots[self._num_filled % len(self._slots)]
        slot.reopen()
        return slot

    def _new_slot(self) -> Slot:
        return SourceSlot(self.source) if self._stream is None else GpuSlot(self.source, self._stream)

    def _drop_ahead(self) -> None:
        """Forget what was gathered ahead; its slots are the next to be filled."""
        wait([ahead.done for ahead in self._ahead])
        self._num_filled -= len(self._ahead)
        self._ahead.clear()

    def state_dict(self) -> dict[str, int | bool]:
        """Where the loader stands, and what the order of the remaining batches depends on.

        `step * global_batch_size` rows of the epoch are done, on all ranks together; every rank's state is the same,
        and a run on another number of ranks takes it up if its global batch size is equal.
        """
        return {"epoch": self.epoch, "step": self.step, **self.source.settings()}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Stand where `state` was saved.

        Raises:
            LoaderError: where the table or a setting differs, so that the remaining batches would not be the same.
        """
        settings = self.source.settings()
        missing = [name for name in ("epoch", "step", *settings) if name not in state]
        if missing:
            raise LoaderError(f"loader state: {', '.join(missing)} not found. It holds {', '.join(state)}.")
        for name, value in settings.items():
            if state[name] != value:
                raise self._differs(name, state[name], value)
        if not 0 <= state["step"] <= len(self):
            raise LoaderError(f"loader state: step {state['step']} is outside [0, {len(self)}].")
        self._drop_ahead()
        self.source.set_epoch(int(state["epoch"]))
        self.step, self._begun = int(state["step"]), None

    def _differs(self, name: str, saved: int | bool, found: int | bool) -> LoaderError:
        advice = "Resume with the saved setting and the same table, or start anew."
        if name == "global_batch_size":
            num_ranks = self.source.num_ranks
            fits = f"batch_size {saved // num_ranks}" if saved % num_ranks == 0 else "a number of ranks that divides it"
            advice = f"On {num_ranks} rank(s) resume with {fits}, so that every step has the same rows, or start anew."
        return LoaderError(f"loader state: saved with {name}={saved}, this loader has {name}={found}. {advice}")


# Memory that is filled again and again: one slot holds one batch of packed rows.


class Slot(Protocol):
    """A batch's place: `reopen` when its last batch is given up, `fill`, then `hand_out`.

    lists: of the rows that it was filled with, in memory of their own.
    """

    lists: tuple[JaggedColumn, ...]

    def reopen(self) -> None:
        """Called by the consumer's thread: what it has queued so far may still read the slot's last batch."""

    def fill(self, source: BatchSource, index: int) -> None:
        """Make the rows of step `index` in this slot; may run in another thread than the consumer's."""

    def hand_out(self) -> Tensor:
        """The rows [B, W] int32, for what the consumer's thread queues from now on."""


class SourceSlot:
    """A slot on the source's own device. On a GPU all is queued on the consumer's stream, which keeps the order."""

    def __init__(self, source: BatchSource) -> None:
        self._buffer = torch.empty(_shape(source), dtype=torch.int32, device=source.device)
        self._words = self._buffer[:0]
        self.lists: tuple[JaggedColumn, ...] = ()

    def reopen(self) -> None:
        pass

    def fill(self, source: BatchSource, index: int) -> None:
        self._words = source.words(index, out=self._buffer)
        self.lists = rows_of_lists(source.schema, self._words, source.lists)

    def hand_out(self) -> Tensor:
        return self._words


class GpuSlot:
    """A slot on a GPU for rows that lie on the host: made in page-locked memory, copied as one block on `stream`.

    Nothing waits for the GPU but `fill`, for the copy out of its own page-locked memory, one round of slots ago; that
    keeps the host from running further ahead than there are slots. The rest is order among streams: the copy waits for
    what the consumer had queued at `reopen`, and the consumer's stream waits for the copy at `hand_out`.
    """

    def __init__(self, source: BatchSource, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pinned = torch.empty(_shape(source), dtype=torch.int32, pin_memory=True)
        self._buffer = torch.empty(_shape(source), dtype=torch.int32, device=stream.device)
        self._words = self._buffer[:0]
        self.lists: tuple[JaggedColumn, ...] = ()
        self._given_up = torch.cuda.Event()
        self._copied = torch.cuda.Event()

    def reopen(self) -> None:
        self._given_up.record(torch.cuda.current_stream(self._stream.device))

    def fill(self, source: BatchSource, index: int) -> None:
        self._copied.synchronize()  # returns at once for an event that was never recorded
        rows = source.words(index, out=self._pinned)
        self._words = self._buffer[: len(rows)]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._given_up)
            self._words.copy_(rows, non_blocking=True)
            # Memory of their own on both sides: their size is another one each time, and a pageable source is copied
            # before the call returns.
            self.lists = tuple(
                column.to(self._stream.device) for column in rows_of_lists(source.schema, rows, source.lists)
            )
            self._copied.record(self._stream)

    def hand_out(self) -> Tensor:
        consumer = torch.cuda.current_stream(self._stream.device)
        consumer.wait_event(self._copied)
        # Both streams use the buffer: its memory must outlive what either has queued when the loader is let go.
        self._buffer.record_stream(consumer)
        self._buffer.record_stream(self._stream)
        for column in self.lists:
            for part in column:
                if part is not None:
                    part.record_stream(consumer)
        return self._words


def _shape(source: BatchSource) -> tuple[int, int]:
    return min(source.batch_size, source.num_rows), source.schema.num_words


class _Ahead(NamedTuple):
    """A batch that the thread gathers: its (`times_set` of the source, step), its slot, and the call that fills it."""

    place: tuple[int, int]
    slot: Slot
    done: Future[None]
