"""The order among streams of a loader that brings rows to a GPU, on a stand-in that runs work in the worst order.

A stream is a queue of work, an event a place in one; nothing runs but when somebody waits for it or a `turn` lets it.
A missing wait is rows of another batch.
"""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from gigabatch.loaders.batches import loader as loader_module
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader

DEVICE = torch.device("cuda", 0)


class Stream:
    """Work in order: functions, and events that must be over first."""

    def __init__(self, device=DEVICE):
        self.device, self.queue = device, []
        Cuda.streams.append(self)

    def wait_event(self, event):
        with Cuda.lock:
            self.queue.append(("wait", event.place))

    def run(self):
        """The next piece of work if it may run; whether it did."""
        if not self.queue or (self.queue[0][0] == "wait" and self.queue[0][1] and not self.queue[0][1]["over"]):
            return False
        kind, work = self.queue.pop(0)
        if kind == "work":
            work()
        return True


class Event:
    """place: of its last record; None before the first, when nothing waits for it."""

    def __init__(self, blocking=False):
        self.place = None

    def record(self, stream):
        with Cuda.lock:
            place = self.place = {"over": False}
            stream.queue.append(("work", lambda: place.update(over=True)))

    def synchronize(self):
        with Cuda.lock:
            while self.place is not None and not self.place["over"]:
                assert any(stream.run() for stream in Cuda.streams), "the streams wait for each other"


class Words:
    """Memory of the device: what is written goes through the current stream."""

    device = DEVICE

    def __init__(self, memory, used_by):
        self.memory, self.used_by = memory, used_by

    def __getitem__(self, rows):
        return Words(self.memory[rows], self.used_by)

    def __len__(self):
        return len(self.memory)

    def copy_(self, rows, non_blocking=False):
        assert non_blocking, "the host waits for the copy"
        assert any(rows.data_ptr() == one.data_ptr() for one in Cuda.pinned), "such a copy is none beside other work"
        stream = Cuda.current()
        assert stream is not Cuda.consumer, "the copy is not beside the work of the consumer"
        with Cuda.lock:
            stream.queue.append(("work", lambda: self.memory.copy_(rows)))

    def record_stream(self, stream):
        self.used_by.add(stream)


class Cuda:
    """What of `torch.cuda` the loader calls."""

    Stream, Event = Stream, Event

    @classmethod
    def start(cls):
        cls.lock, cls.streams, cls.pinned, cls.local = threading.RLock(), [], [], threading.local()
        cls.consumer = Stream()

    @classmethod
    def current(cls):
        return getattr(cls.local, "stream", cls.consumer)

    @staticmethod
    def current_device():
        return 0

    @classmethod
    def current_stream(cls, device):
        assert device == DEVICE
        return cls.current()

    @classmethod
    @contextmanager
    def stream(cls, stream):
        before, cls.local.stream = cls.current(), stream
        try:
            yield
        finally:
            cls.local.stream = before


def empty(shape, dtype, pin_memory=False, device=None):
    memory = torch.full(shape, -7, dtype=dtype)
    if device is not None:
        return Words(memory, set())
    if pin_memory:
        Cuda.pinned.append(memory)
    return memory


@pytest.fixture
def cuda(monkeypatch):
    Cuda.start()
    of_torch = SimpleNamespace(cuda=Cuda, empty=empty, device=torch.device, int32=torch.int32)
    monkeypatch.setattr(loader_module, "torch", of_torch)
    monkeypatch.setattr(loader_module, "unpack", lambda schema, words: words)
    return Cuda


def consumer_last():
    """The copies run as soon as they may, the work on batches as late as it can."""
    for stream in Cuda.streams:
        while stream is not Cuda.consumer and stream.run():
            pass


def consumer_first():
    while Cuda.consumer.run():
        pass


def nobody():
    """Until the host waits."""


@pytest.mark.parametrize("turn", [consumer_last, consumer_first, nobody])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_batches_are_their_rows_in_whatever_order_streams_run(cuda, make_table, prefetch, turn):
    """The batch before is read again beside each: two are out at a time."""
    table = make_table(95)
    source = BatchDataset(table, 10, shuffle=False)
    loader, seen, before = BatchLoader(source, "cuda", prefetch=prefetch), [], None
    for batch in loader:
        assert batch.used_by == set(cuda.streams), "memory is given back while a stream still uses it"
        for kind, words in (("before", before), ("new", batch)):
            if words is not None:
                with cuda.lock:
                    work = ("work", lambda kind=kind, words=words: seen.append((kind, words.memory.clone())))
                    cuda.consumer.queue.append(work)
        before = batch
        with cuda.lock:
            turn()
    with cuda.lock:
        while any(stream.run() for stream in cuda.streams):
            pass
    expected = table.words.split(10)
    assert torch.equal(torch.cat([words for kind, words in seen if kind == "new"]), table.words)
    for found, wanted in zip([words for kind, words in seen if kind == "before"], expected, strict=False):
        assert torch.equal(found, wanted)
    assert len(seen) == 2 * len(expected) - 1
