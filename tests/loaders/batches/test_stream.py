"""Streamed tables: the rows of `BlockOrder` in batches, on any number of ranks, from any step, in bounded memory.

OMP_NUM_THREADS=1 python -m pytest -q tests/loaders/batches/test_stream.py
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.loaders.batches import stream
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.loaders.batches.stream import StreamedDataset
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.blocks import BlockOrder
from gigabatch.loaders.order.ranks import RankBatches
from gigabatch.loaders.tables.packed import unpack
from tests.examples import examples

NUM_ROWS = 2003
ROW_BYTES = 40
SMALL = {"block_bytes": 50 * ROW_BYTES, "window_blocks": 3, "num_lanes": 4}


@pytest.fixture(scope="module")
def folder(make_table, tmp_path_factory):
    """A shuffled table of 2,003 rows in shards of 300, whose `group` is the row of the source."""
    folder = tmp_path_factory.mktemp("stream")
    table = make_table(NUM_ROWS)
    write_shuffled([table], folder, table.schema, NUM_ROWS, seed=5, shard_rows=300)
    return folder


@pytest.fixture(scope="module")
def stored(folder):
    """The table's words in the order of its files, as NumPy reads them."""
    return torch.from_numpy(np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))]))


def epoch_words(dataset: StreamedDataset) -> list[torch.Tensor]:
    return [dataset.words(index) for index in range(len(dataset))]


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stream"]


def wait_for_no_threads() -> None:
    until = time.monotonic() + 60
    while stream_threads() and time.monotonic() < until:
        time.sleep(0.005)
    assert not stream_threads()


@pytest.mark.parametrize(("batch_size", "epoch"), [(64, 0), (299, 3), (NUM_ROWS, 3), (5000, 0)])
def test_batches_are_the_rows_of_the_block_order(folder, stored, batch_size, epoch):
    dataset = StreamedDataset(folder, batch_size, seed=9, **SMALL)
    dataset.set_epoch(epoch)
    rows = BlockOrder(NUM_ROWS, 50, 3, 4, 9, epoch)(torch.arange(NUM_ROWS))
    expected = stored[rows].split(batch_size)
    batches = epoch_words(dataset)
    assert len(batches) == len(expected) == len(dataset)
    assert all(map(torch.equal, batches, expected))


@settings(max_examples=examples(20))
@given(
    batch_size=st.integers(10, 700),
    block_rows=st.integers(1, 600),
    window_blocks=st.integers(1, 5),
    ranks=st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 6), (3, 3), (4, 8)]),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_ranks_share_every_step_and_the_rows_of_a_step_do_not_depend_on_them(
    folder, stored, batch_size, block_rows, window_blocks, ranks, drop_last, shuffle
):
    num_ranks, num_lanes = ranks
    if drop_last and batch_size * num_ranks > NUM_ROWS:
        return
    options = {"block_bytes": block_rows * ROW_BYTES, "window_blocks": window_blocks, "num_lanes": num_lanes}
    datasets = [
        StreamedDataset(folder, batch_size, shuffle, 1, drop_last, rank, num_ranks, **options)
        for rank in range(num_ranks)
    ]
    assert len({len(dataset) for dataset in datasets}) == 1
    order = torch.arange(NUM_ROWS)
    if shuffle:
        order = BlockOrder(NUM_ROWS, block_rows, window_blocks, num_lanes, 1, 0)(order)
    steps = stored[order].split(batch_size * num_ranks)
    if drop_last and len(steps[-1]) < batch_size * num_ranks:
        steps = steps[:-1]
    assert len(steps) == len(datasets[0])
    for index, step in enumerate(steps):
        parts = [dataset.words(index) for dataset in datasets]
        ranges = [RankBatches(NUM_ROWS, batch_size, r, num_ranks, drop_last).positions(index) for r in range(num_ranks)]
        assert [len(part) for part in parts] == [stop - start for start, stop in ranges]
        found = torch.cat(parts)
        # `group`, the last word, is the row; ranks take a step's positions in turn, not one after another.
        assert torch.equal(found[found[:, -1].argsort()], step[step[:, -1].argsort()])


def test_each_rank_reads_its_own_blocks_only(folder):
    table, read = PackedShards(folder), []
    original = table.read_rows
    table.read_rows = lambda ranges, out: read.extend(ranges) or original(ranges, out)
    for rank in range(2):
        epoch_words(StreamedDataset(table, 100, rank=rank, num_ranks=2, **SMALL))
    rows = sorted(row for start, stop in read for row in range(start, stop))
    assert rows == list(range(NUM_ROWS))


@settings(max_examples=examples(30))
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=12))
def test_any_step_of_any_epoch_can_be_asked_for_at_once(folder, whole_epochs, steps):
    dataset = StreamedDataset(folder, 97, seed=2, **SMALL)
    for epoch, index in steps:
        if epoch != dataset.epoch:
            dataset.set_epoch(epoch)
        assert torch.equal(dataset.words(index), whole_epochs[epoch][index])


@pytest.fixture(scope="module")
def whole_epochs(folder):
    dataset, found = StreamedDataset(folder, 97, seed=2, **SMALL), []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        found.append(epoch_words(dataset))
    return found


def test_a_step_costs_no_more_than_its_windows(folder):
    table, read = PackedShards(folder), []
    original = table.read_rows
    table.read_rows = lambda ranges, out: read.extend(stop - start for start, stop in ranges) or original(ranges, out)
    dataset = StreamedDataset(table, 10, **SMALL)
    dataset.words(len(dataset) // 2)
    dataset.close()
    assert sum(read) <= 2 * 4 * 3 * 50  # the window and the next one, of four lanes of three blocks


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_loader_resumes_at_any_step_also_on_another_number_of_ranks(folder, num_ranks):
    def rows(loaders: list[BatchLoader], steps: int) -> list[list[int]]:
        iterators = [iter(loader) for loader in loaders]
        return [sorted(row for each in iterators for row in next(each).group.tolist()) for _ in range(steps)]

    def loaders(count: int) -> list[BatchLoader]:
        datasets = [StreamedDataset(folder, 120 // count, rank=rank, num_ranks=count, **SMALL) for rank in range(count)]
        return [BatchLoader(dataset) for dataset in datasets]

    whole = rows(loaders(1), 17)
    first = loaders(1)
    assert rows(first, 6) == whole[:6]
    state = json.loads(json.dumps(first[0].state_dict()))
    later = loaders(num_ranks)
    for loader in later:
        loader.load_state_dict(state)
    assert rows(later, 11) == whole[6:]


@pytest.mark.parametrize("change", [{"block_bytes": 2040}, {"window_blocks": 2}, {"num_lanes": 8}])
def test_a_state_of_another_order_is_refused(folder, change):
    state = BatchLoader(StreamedDataset(folder, 100, **SMALL)).state_dict()
    name = "block_rows" if "block_bytes" in change else next(iter(change))
    with pytest.raises(LoaderError, match=f"saved with {name}="):
        BatchLoader(StreamedDataset(folder, 100, **{**SMALL, **change})).load_state_dict(state)


def test_words_are_written_where_they_are_asked_for(folder):
    dataset = StreamedDataset(folder, 100, **SMALL)
    out = torch.full((130, 10), 7, dtype=torch.int32)
    words = dataset.words(0, out=out)
    assert words.data_ptr() == out.data_ptr()
    assert torch.equal(words, dataset.words(0))
    assert (out[100:] == 7).all()
    with pytest.raises(IndexError, match="batch 21 of 21"):
        dataset.words(21)


def test_a_remote_table_gives_the_same_batches_as_a_local_one(folder, monkeypatch):
    monkeypatch.setattr(stream, "READ_BYTES", 70 * ROW_BYTES)
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(folder), "/stream", recursive=True)
    local = epoch_words(StreamedDataset(folder, 100, **SMALL))
    remote = epoch_words(StreamedDataset("memory://stream", 100, **SMALL))
    filesystem.rm("/stream", recursive=True)
    assert all(map(torch.equal, local, remote))


def test_an_error_of_the_reading_thread_arrives_at_the_consumer_and_reading_can_go_on(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    expected = epoch_words(StreamedDataset(folder, 50, **SMALL))
    dataset = StreamedDataset(tmp_path, 50, **SMALL)
    dataset.words(0)
    moved = tmp_path / "words-00003.npy"
    moved.rename(tmp_path / "away")
    with pytest.raises(LoaderError, match=r"words-00003.npy: cannot be opened"):
        epoch_words(dataset)
    wait_for_no_threads()
    (tmp_path / "away").rename(moved)
    assert all(map(torch.equal, epoch_words(dataset), expected))
    os.truncate(moved, 500)
    dataset.set_epoch(1)
    with pytest.raises(LoaderError, match=r"words-00003.npy: ends before byte \d+: truncated"):
        epoch_words(dataset)


def test_no_thread_is_left_by_an_abandoned_iteration_or_a_closed_dataset(folder):
    for batch in BatchLoader(StreamedDataset(folder, 10, **SMALL)):
        assert batch.num_rows == 10
        break
    wait_for_no_threads()
    dataset = StreamedDataset(folder, 10, **SMALL)
    first = dataset.words(0)
    dataset.close()
    assert not stream_threads()
    assert torch.equal(dataset.words(0), first)
    dataset.close()
    assert not stream_threads()


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("leave", ["break", "set_epoch"])
def test_an_epoch_that_is_left_while_a_batch_is_gathered_ahead_spoils_no_other(make_table, tmp_path, steps, leave):
    """The loader's thread was within `words` of the old epoch, and left its window to the new one."""
    source = make_table(4000)
    write_shuffled([source], tmp_path, source.schema, 4000, seed=1)
    table, read, slow = PackedShards(tmp_path), PackedShards.read_rows, True

    def read_rows(ranges, out):
        time.sleep(0.3 * slow)
        read(table, ranges, out)

    table.read_rows = read_rows
    sizes = {"block_bytes": 100 * table.row_bytes, "window_blocks": 2, "num_lanes": 1}
    dataset = StreamedDataset(table, 100, seed=3, **sizes)
    loader = BatchLoader(dataset, prefetch=1)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    if leave == "set_epoch":
        dataset.set_epoch(1)
    slow = False
    found = [batch.ids.clone() for batch in loader]
    assert loader.epoch == 2
    dataset.set_epoch(1)
    wanted = epoch_words(dataset)
    assert len(found) == len(wanted)
    assert all(torch.equal(ids, unpack(source.schema, words).ids) for ids, words in zip(found, wanted, strict=True))


def test_closing_does_not_wait_for_a_whole_window(folder, monkeypatch):
    """Each read takes .2 s, and a window is some sixty of them: the thread ends after the one that it is at."""
    monkeypatch.setattr(stream, "READ_BYTES", 10 * ROW_BYTES)
    table = PackedShards(folder)
    dataset = StreamedDataset(table, 10, **SMALL)
    dataset.words(0)
    dataset.set_epoch(1)
    table.read_rows = lambda ranges, out: time.sleep(0.2)
    dataset._ahead = dataset._read(0)
    start = time.monotonic()
    dataset.close()
    assert time.monotonic() - start < 8
    assert not stream_threads()


def test_buffers_are_reused_and_freed(folder):
    dataset = StreamedDataset(folder, 100, **SMALL)
    addresses = set()
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            dataset.words(index)
            addresses.add(dataset._current.buffer.data_ptr())
    assert len(addresses) == 2
    dataset.close()
    gc.collect()
    assert not dataset._buffers


def test_memory_is_bounded_and_as_stated(tmp_path):
    """Two epochs of a 64 MB table in windows of 4 MB: what a process needs more than before is near `buffer_bytes`."""
    code = """
import os, sys, torch
from pathlib import Path
from gigabatch.features.schema import IdColumn, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.loaders.batches.shards import write_shuffled
from gigabatch.loaders.batches.stream import StreamedDataset
schema = TensorSchema(ids=tuple(IdColumn(f"c{i}", 1 << 30) for i in range(32)), floats=(), targets=())
part_rows = 1 << 15
source = (PackedTable(torch.full((part_rows, 32), i, dtype=torch.int32), schema) for i in range(16))
write_shuffled(source, sys.argv[1], schema, 16 * part_rows, 0, shard_rows=part_rows)
def peak():
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])
def stream(epochs, **options):
    dataset = StreamedDataset(sys.argv[1], 8000, **options)
    out = torch.empty(8000, 32, dtype=torch.int32)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            dataset.words(index, out)
    return dataset.buffer_bytes
stream(1, block_bytes=1 << 14)  # compiles
Path("/proc/self/clear_refs").write_text("5")  # the peak is what is in memory now
before = peak()
print(stream(2, block_bytes=1 << 18, window_blocks=2), 1024 * (peak() - before))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    stated, found = map(int, done.stdout.split())
    assert 8 << 20 < stated < 9 << 20
    assert found < stated + (6 << 20)


def test_settings_that_cannot_be_are_named(folder, make_table, tmp_path):
    make_table(10).save(tmp_path)
    with pytest.raises(LoaderError, match=r"rows lie in the order of their source.*write_shuffled"):
        StreamedDataset(tmp_path, 5)
    assert len(StreamedDataset(tmp_path, 5, shuffle=False)) == 2
    with pytest.raises(LoaderError, match=r"num_lanes=8 is not a multiple of the 3 ranks.*Use num_lanes=9"):
        StreamedDataset(folder, 5, rank=0, num_ranks=3)
    for name in SMALL:
        for shuffle in (True, False):
            with pytest.raises(LoaderError, match=f"{name} must be at least 1, found 0"):
                StreamedDataset(folder, 5, shuffle, **{name: 0})
    with pytest.raises(LoaderError, match="batch_size must be at least 1"):
        StreamedDataset(folder, 0)
    with pytest.raises(LoaderError, match="no finished packed table"):
        StreamedDataset(Path(tmp_path) / "nothing", 5)


def test_fewer_rows_than_ranks_still_make_equal_steps(make_table, tmp_path):
    table = make_table(3)
    write_shuffled([table], tmp_path, table.schema, 3, seed=0)
    for shuffle in (True, False):
        datasets = [StreamedDataset(tmp_path, 2, shuffle, rank=rank, num_ranks=8) for rank in range(8)]
        assert {len(dataset) for dataset in datasets} == {1}
        rows = torch.cat([dataset.words(0) for dataset in datasets])[:, -1]
        assert sorted(rows.tolist()) == [0, 1, 2]
