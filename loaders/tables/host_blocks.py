"""Rows block by block in host memory, from wherever a table lies, for what writes them while a GPU works on."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gigabatch.loaders.tables.storage import WRITE_BYTES


class HostBlocks:
    """Cut words [N, W] into blocks in host memory.

    Words on the host are cut into views. Those on a GPU are copied through two page-locked buffers, one of which is
    filled while the caller uses the other. The copies run on a stream of their own, which waits once for the stream
    that made the words; no other stream waits for it, and only the thread that asks for blocks waits for a copy. (That
    part has not run on a GPU yet.)

    Make it in the thread that made the words, after them: buffers and events are there before another thread or the
    capture of a graph begins. Then one other thread may ask for the blocks.

    Parameters
    ----------
    device : torch.device
        Where the words lie.
    num_words : int
        W.
    block_bytes : int, default 64 MiB
        Of a block, at most; one row at least. A GPU's words take twice that of page-locked memory.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.loaders.tables.host_blocks import HostBlocks
    >>> words = torch.arange(10, dtype=torch.int32).view(5, 2)
    >>> [block.tolist() for block in HostBlocks(words.device, 2, block_bytes=16)(words)]
    [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]
    """

    def __init__(self, device: torch.device, num_words: int, block_bytes: int = WRITE_BYTES) -> None:
        self._rows = max(1, block_bytes // (4 * max(num_words, 1)))
        self._buffers: list[Tensor] = []
        if device.type != "cpu":
            self._buffers = [torch.empty((self._rows, num_words), dtype=torch.int32, pin_memory=True) for _ in range(2)]
            # A thread that waits for such an event sleeps, where it would else keep a core from the training.
            self._copied = [torch.cuda.Event(blocking=True) for _ in self._buffers]
            self._stream = torch.cuda.Stream(device)
            self._made = torch.cuda.Event()
            self._made.record(torch.cuda.current_stream(device))

    def __call__(self, words: Tensor) -> Iterator[Tensor]:
        """The blocks in order, [B, W] each; one of a GPU's words is valid until the next is asked for."""
        blocks = words.split(self._rows)
        if not self._buffers:
            yield from blocks
            return
        self._stream.wait_event(self._made)
        try:
            self._start(0, blocks[0])
            for number, block in enumerate(blocks):
                if number + 1 < len(blocks):  # into the buffer of the block before this one, which is done with
                    self._start(number + 1, blocks[number + 1])
                self._copied[number % 2].synchronize()
                yield self._buffers[number % 2][: len(block)]
        finally:
            self._stream.synchronize()  # where the caller has stopped early, a copy may still be under way

    def _start(self, number: int, block: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            self._buffers[number % 2][: len(block)].copy_(block, non_blocking=True)
            self._copied[number % 2].record(self._stream)
