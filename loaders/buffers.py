"""Memory that a `BatchLoader` fills again and again: one slot holds one batch of packed rows."""

from typing import Protocol

import torch
from torch import Tensor

from loaders.dataset import BatchSource


class Slot(Protocol):
    """A batch's place: `reopen` when its last batch is given up, `fill`, then `hand_out`."""

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

    def reopen(self) -> None:
        pass

    def fill(self, source: BatchSource, index: int) -> None:
        self._words = source.words(index, out=self._buffer)

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
            self._copied.record(self._stream)

    def hand_out(self) -> Tensor:
        consumer = torch.cuda.current_stream(self._stream.device)
        consumer.wait_event(self._copied)
        # Both streams use the buffer: its memory must outlive what either has queued when the loader is let go.
        self._buffer.record_stream(consumer)
        self._buffer.record_stream(self._stream)
        return self._words


def _shape(source: BatchSource) -> tuple[int, int]:
    return min(source.batch_size, source.num_rows), source.schema.num_words
