"""Rows cut into blocks in host memory: those of a host as views, those of a GPU through two buffers and a stream."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from gigabatch.loaders.tables import host_blocks
from gigabatch.loaders.tables.host_blocks import HostBlocks


def test_rows_on_the_host_are_views_in_order(make_table):
    words = make_table(100).words
    blocks = list(HostBlocks(words.device, words.shape[1], block_bytes=7 * 40)(words))
    assert [len(block) for block in blocks] == [7] * 14 + [2]
    assert torch.equal(torch.cat(blocks), words)
    assert blocks[3].data_ptr() == words[21:].data_ptr()
    assert [len(block) for block in HostBlocks(words.device, words.shape[1])(words[:0])] == [0]


class Stream:
    """A queue of work that runs when somebody waits for it, as late as a GPU may."""

    def __init__(self, log, device):
        self.log, self.queue = log, []
        log.append(f"stream on {device}")

    def wait_event(self, event):
        self.log.append("waits for the rows")
        assert event.recorded

    def run(self, upto):
        while self.queue and upto > 0:
            self.queue.pop(0)()
            upto -= 1

    def synchronize(self):
        self.run(len(self.queue))
        self.log.append("stream idle")


class Event:
    def __init__(self, blocking=False):
        self.blocking, self.recorded, self.done = blocking, False, True

    def record(self, stream):
        self.recorded, self.done = True, False
        stream.queue.append(lambda: setattr(self, "done", True))
        self.stream = stream

    def synchronize(self):
        assert self.blocking, "a thread that spins takes a core from the training"
        while not self.done:
            self.stream.run(1)


class Buffer:
    """Page-locked memory whose copies run on the current stream; what lies there is read by `words`."""

    def __init__(self, memory, cuda):
        self.memory, self.cuda = memory, cuda

    def __getitem__(self, rows):
        return Buffer(self.memory[rows], self.cuda)

    def copy_(self, block, non_blocking=False):
        assert non_blocking
        assert self.cuda.current is not self.cuda.default, "the copy runs on the stream that trains"
        self.cuda.current.queue.append(lambda: self.memory.copy_(block))

    @property
    def words(self):
        return self.memory


@pytest.fixture
def gpu(monkeypatch):
    """Stands in for torch's CUDA; its log says what happened."""
    log, made = [], []

    class Cuda:
        def __init__(self):
            self.default = self.current = Stream(log, "default")
            self.Event = Event

        def Stream(self, device):
            return Stream(log, device)

        def current_stream(self, device):
            return self.current

        @contextmanager
        def stream(self, stream):
            before, self.current = self.current, stream
            try:
                yield
            finally:
                self.current = before

    cuda = Cuda()

    def empty(shape, dtype, pin_memory):
        assert pin_memory
        made.append(shape)
        return Buffer(torch.full(shape, -7, dtype=dtype), cuda)

    monkeypatch.setattr(host_blocks, "torch", SimpleNamespace(cuda=cuda, empty=empty, int32=torch.int32))
    return SimpleNamespace(cuda=cuda, log=log, made=made)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 14, 15, 100])
def test_rows_on_a_gpu_come_through_two_buffers_as_they_are(gpu, make_table, rows):
    """Copies run only when they are waited for, and each block is read again just before the next is asked for."""
    words = make_table(rows).words
    blocks = HostBlocks(torch.device("cuda"), words.shape[1], block_bytes=7 * 40)
    assert gpu.made == [(7, 10)] * 2
    found = [block.words.clone() for block in blocks(words)]
    assert torch.equal(torch.cat(found), words)
    assert gpu.log == ["stream on default", "stream on cuda", "waits for the rows", "stream idle"]
    assert gpu.cuda.default.queue  # nobody has waited for the stream that trains
    again = [block.words.clone() for block in blocks(words)]  # the next table of the same width
    assert torch.equal(torch.cat(again), words)


def test_a_block_stays_as_it_is_while_it_is_used(gpu, make_table):
    """The copies that were asked for meanwhile all run, and none is into its buffer."""
    words = make_table(50).words
    blocks = HostBlocks(torch.device("cuda"), words.shape[1], block_bytes=7 * 40)
    for number, block in enumerate(blocks(words)):
        blocks._stream.run(100)
        assert torch.equal(block.words, words[7 * number : 7 * number + 7])


def test_nothing_is_under_way_where_the_caller_stops_early(gpu, make_table):
    words = make_table(50).words
    blocks = HostBlocks(torch.device("cuda"), words.shape[1], block_bytes=7 * 40)(words)
    next(blocks)
    blocks.close()
    assert gpu.log[-1] == "stream idle"


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 100])
def test_on_a_gpu_the_blocks_are_the_rows(make_table, rows):
    words = make_table(rows).words
    there = words.to("cuda")
    blocks = HostBlocks(there.device, words.shape[1], block_bytes=7 * 40)
    found = [block.clone() for block in blocks(there)]
    assert all(block.device.type == "cpu" for block in found)
    assert torch.equal(torch.cat(found), words)
