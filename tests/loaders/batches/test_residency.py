"""Where a table's rows are while training: the choice, its reasons in words, and what is opened for it.

OMP_NUM_THREADS=1 python -m pytest -q tests/loaders/batches/test_residency.py
"""

import logging
import re
import threading
from types import SimpleNamespace

import fsspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.loaders.batches import residency
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.batches.residency import Residency, choose_residency, open_source, residency_here
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.loaders.batches.stream import StreamedDataset
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable

GIB = 1 << 30
ROWS = (10 * GIB) // 100  # of 100 bytes: 10 GiB


@pytest.fixture(scope="module")
def saved(make_table, tmp_path_factory):
    """(table, folder of it in one file, folder of it in shuffled shards)."""
    table, folder = make_table(1000), tmp_path_factory.mktemp("residency")
    table.save(folder / "plain")
    write_shuffled([table], folder / "shuffled", table.schema, 1000, seed=5, shard_rows=300)
    return table, folder / "plain", folder / "shuffled"


@pytest.mark.parametrize(
    ("device", "gpu_gib", "host_gib", "kind", "reason"),
    [
        ("cuda", 80, 64, "device", "10.00 GiB, fit in 70% of the 80.00 GiB of free memory of cuda"),
        ("cuda", 14, 64, "host", "do not fit in 70% of the 14.00 GiB .*; .* fit in 80% of the 64.00 GiB of free host"),
        ("cuda", 14, 12, "stream", "do not fit in 70% .*; .* do not fit in 80% of the 12.00 GiB"),
        ("cuda", 80, 1, "device", "fit in 70% of the 80.00 GiB of free memory of cuda$"),
        ("cpu", 0, 13, "host", "fit in 80% of the 13.00 GiB of free host memory$"),
        ("cpu", 80, 12, "stream", "^[0-9,]* rows of 100 bytes, 10.00 GiB, do not fit in 80% of the 12.00 GiB"),
    ],
)
def test_the_fastest_that_fits_is_chosen_and_says_why(device, gpu_gib, host_gib, kind, reason):
    found = choose_residency(ROWS, 100, device, gpu_gib * GIB, host_gib * GIB)
    assert found.kind == kind
    assert re.search(reason, found.reason), found.reason


@given(
    num_rows=st.integers(1, 10**10),
    device=st.sampled_from(["cpu", "cuda"]),
    gpu=st.integers(0, 10**12),
    host=st.integers(0, 10**12),
    setting=st.sampled_from(["auto", "device", "host", "stream"]),
)
def test_what_is_chosen_fits_and_a_setting_is_obeyed_or_refused(num_rows, device, gpu, host, setting):
    share = {"device": 0.7 * gpu, "host": 0.8 * host}
    if setting in share and (num_rows * 100 > share[setting] or (setting, device) == ("device", "cpu")):
        with pytest.raises(LoaderError, match="Use residency="):
            choose_residency(num_rows, 100, device, gpu, host, setting)
        return
    found = choose_residency(num_rows, 100, device, gpu, host, setting)
    assert setting in ("auto", found.kind)
    if found.kind == "device":
        assert device == "cuda"
        assert num_rows * 100 <= gpu
    if found.kind == "host":
        assert num_rows * 100 <= host


@pytest.mark.parametrize(
    ("setting", "device", "host_gib", "message"),
    [
        ("device", "cuda", 64, "=device: .* do not fit in 70% of the 5.00 GiB .*Use residency=host or residency=st"),
        ("device", "cpu", 64, "residency=device: the run trains on cpu, not on a GPU. Use residency=host or auto"),
        ("disk", "cpu", 64, "residency 'disk' is unknown. Known: auto, device, host, stream"),
        ("host", "cpu", 1, "residency=host: .* do not fit in 80% of the 1.00 GiB.*Use residency=stream"),
    ],
)
def test_a_setting_that_does_not_fit_is_an_error_that_says_what_would(setting, device, host_gib, message):
    with pytest.raises(LoaderError, match=message):
        choose_residency(ROWS, 100, device, 5 * GIB, host_gib * GIB, setting)


def test_the_choice_counts_all_tables_and_is_logged(saved, caplog):
    tables = [PackedShards(saved[1]), PackedShards(saved[2])]  # 40,000 bytes each
    with caplog.at_level(logging.INFO):
        assert residency_here(tables, "cpu", 110_000).kind == "host"
        assert residency_here(tables, "cpu", 90_000).kind == "stream"
    assert "residency host: 2,000 rows of 40 bytes" in caplog.text
    assert "residency stream: 2,000 rows of 40 bytes" in caplog.text


def rows_of(source) -> torch.Tensor:
    return torch.cat([batch.group for batch in BatchLoader(source, copy=True)])


@pytest.mark.parametrize("where", ["plain", "url", "shuffled", "remote", "table"])
def test_host_gives_the_batches_of_the_whole_table(saved, where):
    table, plain, shuffled = saved
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(shuffled), "/resident", recursive=True)
    tables = {"plain": plain, "url": f"file://{plain}", "shuffled": shuffled, "remote": "memory://resident"}
    given_table = tables.get(where, table)
    source = open_source(given_table, "host", 64, seed=3, drop_last=True, rank=1, num_ranks=2)
    filesystem.rm("/resident", recursive=True)
    assert isinstance(source, BatchDataset)
    words = table.words if where in ("plain", "url", "table") else PackedTable.load(shuffled, mmap=False).words
    expected = BatchDataset(PackedTable(words, table.schema), 64, seed=3, drop_last=True, rank=1, num_ranks=2)
    assert torch.equal(rows_of(source), rows_of(expected))


def test_stream_gives_every_row_and_takes_the_same_settings(saved):
    _, plain, shuffled = saved
    source = open_source(shuffled, Residency("stream", "test"), 64, seed=3, drop_last=True, rank=1, num_ranks=2)
    assert isinstance(source, StreamedDataset)
    expected = StreamedDataset(shuffled, 64, seed=3, drop_last=True, rank=1, num_ranks=2)
    assert torch.equal(rows_of(source), rows_of(expected))
    in_order = open_source(PackedShards(plain), "stream", 64, shuffle=False)
    assert torch.equal(rows_of(in_order), torch.arange(1000, dtype=torch.int32))


def test_a_table_read_in_many_blocks_is_whole(saved, monkeypatch):
    monkeypatch.setattr(residency, "COPY_BYTES", 170 * 40)
    loaded = residency.load_table(saved[2], "host", torch.device("cpu"))
    assert torch.equal(loaded.words, PackedTable.load(saved[2], mmap=False).words)


def test_blocks_are_read_by_several_threads_and_come_in_order(saved, monkeypatch):
    """The first block is the last to be there; the others are read meanwhile."""
    shards, started, last = PackedShards(saved[1]), [], threading.Event()
    blocks = [(start, start + 100) for start in range(0, 1000, 100)]
    read = shards.read_rows

    def slow(ranges, out):
        started.append(ranges[0][0])
        if ranges[0][0] == 0:
            assert last.wait(30), "nothing was read while a block was slow"
        read(ranges, out)
        if ranges[0][0] == 300:
            last.set()

    monkeypatch.setattr(shards, "read_rows", slow)
    words = torch.zeros_like(saved[0].words)
    outs = [words[start:stop] for start, stop in blocks]
    assert list(residency._read_in_turn(shards, blocks, outs)) == list(range(10))
    assert torch.equal(words, saved[0].words)
    assert sorted(started) == [start for start, _ in blocks]


def test_an_error_of_one_block_comes_out_and_the_others_are_let_go(saved, monkeypatch):
    shards, started = PackedShards(saved[1]), []
    blocks = [(start, start + 10) for start in range(0, 1000, 10)]

    def fails(ranges, out):
        started.append(ranges[0][0])
        raise LoaderError(f"rows {ranges[0][0]} cannot be read")

    monkeypatch.setattr(shards, "read_rows", fails)
    outs = [torch.empty((10, 10), dtype=torch.int32) for _ in blocks]
    with pytest.raises(LoaderError, match="rows 0 cannot be read"):
        list(residency._read_in_turn(shards, blocks, outs, ahead=5))
    assert len(started) <= 5


class LateGpu:
    """Memory of a GPU that copies as late as it may: when an event behind the copy is waited for."""

    def __init__(self, words):
        self.words, self.queue, self.lock, self.pinned = words, [], threading.Lock(), []
        gpu = self

        class Event:
            def __init__(self):
                self.at = 0

            def record(self, stream):
                self.at = len(gpu.queue)

            def synchronize(self):
                gpu.run(self.at)

        def empty(shape, dtype, pin_memory):
            assert pin_memory
            gpu.pinned.append(torch.full(shape, -7, dtype=dtype))
            return gpu.pinned[-1]

        cuda = SimpleNamespace(Event=Event, current_stream=lambda device: self)
        self.torch = SimpleNamespace(cuda=cuda, empty=empty, int32=torch.int32)
        self.done, self.shape, self.device = 0, words.shape, "cuda"

    def run(self, upto):
        with self.lock:
            while self.done < upto:
                self.queue[self.done]()
                self.done += 1

    def synchronize(self):
        self.run(len(self.queue))

    def __getitem__(self, rows):
        return LateRows(self, rows)


class LateRows:
    def __init__(self, gpu, rows):
        self.gpu, self.rows = gpu, rows

    def copy_(self, block, non_blocking):
        assert non_blocking
        self.gpu.queue.append(lambda: self.gpu.words[self.rows].copy_(block))


@pytest.mark.parametrize("rows", [1, 99, 100, 170, 1000])
def test_a_page_locked_block_is_read_into_again_only_when_its_copy_is_over(make_table, tmp_path, monkeypatch, rows):
    """Stands in for a GPU: a buffer that is filled too early would be copied with the rows of a later block."""
    table = make_table(rows)
    table.save(tmp_path)
    gpu = LateGpu(torch.zeros_like(table.words))
    monkeypatch.setattr(residency, "COPY_BYTES", 17 * 40)
    monkeypatch.setattr(residency, "torch", gpu.torch)
    residency._copy_to_gpu(PackedShards(tmp_path), gpu)
    assert torch.equal(gpu.words, table.words)
    assert len(gpu.pinned) <= residency.READERS + 1
    assert all(len(buffer) <= 17 for buffer in gpu.pinned)


def test_what_cannot_be_opened_is_named(saved):
    table, plain, _ = saved
    with pytest.raises(LoaderError, match=r"residency 'auto' cannot be opened. Known: device, host, stream"):
        open_source(plain, "auto", 10)
    with pytest.raises(LoaderError, match="in memory already"):
        open_source(table, "stream", 10)
    with pytest.raises(LoaderError, match="residency=device: the run trains on cpu"):
        open_source(plain, "device", 10)
    with pytest.raises(LoaderError, match="rows lie in the order of their source"):
        open_source(plain, "stream", 10)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["plain", "shuffled"])
def test_on_a_gpu_every_residency_gives_every_row(saved, where, monkeypatch):
    monkeypatch.setattr(residency, "COPY_BYTES", 170 * 40)
    folder = saved[1 if where == "plain" else 2]
    on_device = open_source(folder, "device", 64, seed=3, device="cuda")
    on_host = open_source(folder, "host", 64, seed=3, device="cuda")
    assert on_device.device.type == "cuda"
    assert on_host.device.type == "cpu"
    rows = rows_of(on_device).cpu()
    assert torch.equal(rows, rows_of(on_host))
    assert torch.equal(rows.sort().values, torch.arange(1000, dtype=torch.int32))
    copied = torch.cat([batch.group for batch in BatchLoader(on_host, "cuda", copy=True)])
    assert len(copied.unique()) == 1000
    found = residency_here([PackedShards(folder)], "cuda", GIB)
    assert found.kind == "device"
