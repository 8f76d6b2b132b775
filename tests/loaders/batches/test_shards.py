"""Sharded tables: the rows of the source in a random order, written in bounded memory, read by ranges, damage named.

OMP_NUM_THREADS=1 python -m pytest -q tests/loaders/batches/test_shards.py
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.schema import IdColumn, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables import storage
from gigabatch.loaders.tables.packed import PackedTable
from tests.examples import examples

PAIR = TensorSchema(ids=(IdColumn("row", 1 << 30), IdColumn("same", 1 << 30)), floats=(), targets=())


def numbered(num_rows: int) -> PackedTable:
    """Rows that hold their number twice."""
    return PackedTable(torch.arange(num_rows, dtype=torch.int32)[:, None].repeat(1, 2), PAIR)


def cut(table: PackedTable, *sizes: int) -> list[PackedTable]:
    return [PackedTable(words, table.schema) for words in table.words.split(list(sizes))]


def all_rows(location) -> torch.Tensor:
    """Every row as NumPy reads the files, in the order of the layout."""
    folder = Path(location)
    layout = json.loads((folder / "layout.json").read_text())
    return torch.from_numpy(np.concatenate([np.load(folder / shard["file"]) for shard in layout["shards"]]))


@pytest.fixture
def shuffled(make_table, tmp_path):
    """(source, folder) of 1,000 rows in shards of 300."""
    table = make_table(1000)
    write_shuffled([table], tmp_path / "train", table.schema, 1000, seed=5, shard_rows=300)
    return table, tmp_path / "train"


@pytest.fixture
def remote(shuffled):
    """The same table under a memory:// URL, and fsspec's filesystem there."""
    source, folder = shuffled
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(folder), "/bucket/train", recursive=True)
    yield source, "memory://bucket/train", filesystem
    filesystem.rm("/bucket", recursive=True)


def test_the_same_rows_come_out_in_another_order(shuffled):
    source, folder = shuffled
    words = all_rows(folder)
    assert [len(np.load(path)) for path in sorted(folder.glob("*.npy"))] == [300, 300, 300, 100]
    by_row = words[:, -1].argsort()  # group is the row number
    assert torch.equal(words[by_row], source.words)
    assert (words[:, -1] == torch.arange(1000)).sum() < 10


@settings(max_examples=examples(40))
@given(
    num_rows=st.integers(1, 300),
    shard_rows=st.integers(1, 400),
    seed=st.integers(-(2**63), 2**63 - 1),
    block_bytes=st.sampled_from([8, 80, 1 << 20]),
)
def test_every_row_is_written_once_whatever_the_sizes(tmp_path_factory, num_rows, shard_rows, seed, block_bytes):
    folder = tmp_path_factory.mktemp("shuffled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "WRITE_BYTES", block_bytes)
        write_shuffled([numbered(num_rows)], folder, PAIR, num_rows, seed, shard_rows)
    assert torch.equal(all_rows(folder)[:, 0].sort().values, torch.arange(num_rows, dtype=torch.int32))


def test_the_order_depends_on_the_seed_and_not_on_the_parts_or_blocks(tmp_path, monkeypatch):
    table = numbered(1000)
    write_shuffled([table], tmp_path / "whole", PAIR, 1000, 1, 64)
    monkeypatch.setattr(storage, "WRITE_BYTES", 100)
    write_shuffled(cut(table, 1, 0, 700, 299), tmp_path / "parts", PAIR, 1000, 1, 64)
    write_shuffled([table], tmp_path / "other", PAIR, 1000, 2, 64)
    assert torch.equal(all_rows(tmp_path / "whole"), all_rows(tmp_path / "parts"))
    assert (all_rows(tmp_path / "whole") == all_rows(tmp_path / "other")).float().mean() < 0.02


@pytest.mark.parametrize("shard_rows", [100, 1000, 20_000])
def test_the_order_on_disk_is_that_of_a_random_permutation(tmp_path, shard_rows):
    """Fixed points, adjacent pairs and rows by the hundred, where a row came from against where it went."""
    n = 10_000
    write_shuffled([numbered(n)], tmp_path, PAIR, n, 3, shard_rows)
    rows = all_rows(tmp_path)[:, 0].numpy().astype(np.int64)
    assert (rows == np.arange(n)).sum() < 8  # Poisson(1): once in a million
    assert (np.abs(np.diff(rows)) == 1).sum() < 14  # Poisson(2)
    counts = np.histogram2d(np.arange(n), rows, bins=100)[0]
    chi_square = ((counts - 1.0) ** 2).sum()
    assert abs(chi_square - 99 * 99) < 5 * (2 * 99 * 99) ** 0.5


@pytest.mark.parametrize("shard_rows", [10, 5000])
def test_a_loader_with_the_same_seed_does_not_undo_the_shuffle(tmp_path, shard_rows):
    n = 5000
    write_shuffled([numbered(n)], tmp_path, PAIR, n, 0, shard_rows)
    table = PackedTable.load(tmp_path, mmap=False)
    rows = BatchDataset(table, n, seed=0).words(0)[:, 0].double()
    assert abs(torch.corrcoef(torch.stack([rows, torch.arange(n).double()]))[0, 1]) < 0.08


def test_memory_does_not_grow_with_the_table(tmp_path):
    """64 MB in shards of 1 MB by blocks of 1 MB: after a table of 1 MB, a process needs less than 16 MB more.

    The source makes its parts as they are asked for, 1 MB each.
    """
    code = """
import sys, torch
from pathlib import Path
from gigabatch.loaders.tables import storage
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.loaders.batches.shards import write_shuffled
from gigabatch.features.schema import IdColumn, TensorSchema
schema = TensorSchema(ids=tuple(IdColumn(f"c{i}", 1 << 30) for i in range(16)), floats=(), targets=())
storage.WRITE_BYTES = 1 << 20
part_rows = 1 << 14
def write(folder, parts):
    source = (PackedTable(torch.full((part_rows, 16), i, dtype=torch.int32), schema) for i in range(parts))
    write_shuffled(source, folder, schema, parts * part_rows, 0, shard_rows=part_rows)
    # Not ru_maxrss: it counts the process that forked, too, which pytest has grown.
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])
before = write(sys.argv[1] + "/small", 1)
print(write(sys.argv[1] + "/large", 64) - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16 * 1024
    shards = sorted((tmp_path / "large").glob("*.npy"))
    counts = np.bincount(np.concatenate([np.load(path)[:, 3] for path in shards]))
    assert counts.tolist() == [1 << 14] * 64


@pytest.mark.parametrize(
    ("parts", "num_rows", "message"),
    [
        ([5], 6, "the source has 5 rows and 6 were announced"),
        ([5, 2], 6, r"5 \+ 2 rows are more than the 6"),
        ([], 6, "the source has 0 rows"),
        ([5], 0, "must be at least 1, found 0"),
        ([None], 5, "ids differ"),  # of another schema
    ],
)
def test_other_rows_than_announced_are_an_error_and_leave_the_old_table(make_table, tmp_path, parts, num_rows, message):
    write_shuffled([numbered(3)], tmp_path, PAIR, 3, 0)
    source = [make_table(5) if count is None else numbered(count) for count in parts]
    with pytest.raises(LoaderError, match=message):
        write_shuffled(source, tmp_path, PAIR, num_rows, 0)
    assert sorted(PackedTable.load(tmp_path).words[:, 0].tolist()) == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout.json", "words-00000.npy"]


def test_a_table_is_shuffled_onto_itself(tmp_path):
    table = numbered(1000)
    for folder in ("same", "source"):
        table.save(tmp_path / folder)
    stored = PackedShards(tmp_path / "same")
    mapped = PackedTable.load(tmp_path / "same")
    write_shuffled(stored.parts(800), tmp_path / "same", PAIR, 1000, 1, 300)
    write_shuffled(PackedShards(tmp_path / "source").parts(800), tmp_path / "other", PAIR, 1000, 1, 300)
    assert torch.equal(all_rows(tmp_path / "same"), all_rows(tmp_path / "other"))
    assert torch.equal(mapped.words, table.words)
    write_shuffled(PackedShards(tmp_path / "same").parts(800), tmp_path / "same", PAIR, 1000, 2, 128)
    assert torch.equal(all_rows(tmp_path / "same")[:, 0].sort().values, torch.arange(1000, dtype=torch.int32))
    names = [f"words-{number:05d}.npy" for number in range(8)]
    assert sorted(path.name for path in (tmp_path / "same").iterdir()) == ["layout.json", *names]


def test_a_smaller_table_replaces_a_larger_one(tmp_path):
    write_shuffled([numbered(100)], tmp_path, PAIR, 100, 0, shard_rows=10)
    write_shuffled([numbered(7)], tmp_path, PAIR, 7, 0, shard_rows=10)
    assert [path.name for path in tmp_path.glob("*.npy")] == ["words-00000.npy"]
    assert sorted(PackedTable.load(tmp_path).words[:, 0].tolist()) == list(range(7))


def test_a_sharded_table_loads_into_memory_and_one_shard_can_be_mapped(shuffled, tmp_path):
    source, folder = shuffled
    loaded = PackedTable.load(folder, mmap=False)
    assert loaded.schema == source.schema
    assert torch.equal(loaded.words, all_rows(folder))
    with pytest.raises(LoaderError, match=r"4 shards, which no single map covers. Use mmap=False"):
        PackedTable.load(folder)


@settings(max_examples=examples(50))
@given(data=st.data())
def test_ranges_of_rows_are_read_across_shards(read_table, data):
    words, tables = read_table
    row = st.integers(0, 1000)
    ranges = [tuple(sorted(pair)) for pair in data.draw(st.lists(st.tuples(row, row), max_size=5))]
    expected = torch.cat([words[:0], *(words[start:stop] for start, stop in ranges)])
    for table in tables:
        out = torch.zeros_like(expected)
        table.read_ahead(ranges)
        table.read_rows(ranges, out)
        assert torch.equal(out, expected)


@pytest.fixture(scope="module")
def read_table(make_table, tmp_path_factory):
    """The words of a table in shards, and that table opened: local, by file:// and by memory://."""
    folder, table = tmp_path_factory.mktemp("read"), make_table(1000)
    write_shuffled([table], folder, table.schema, 1000, seed=5, shard_rows=170)
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(folder), "/read", recursive=True)
    yield all_rows(folder), [PackedShards(where) for where in (folder, f"file://{folder}", "memory://read")]
    filesystem.rm("/read", recursive=True)


def test_a_single_file_table_is_one_shard(make_table, tmp_path):
    table = make_table(50)
    table.save(tmp_path)
    shards = PackedShards(tmp_path)
    out = torch.empty((20, 10), dtype=torch.int32)
    shards.read_rows([(30, 50)], out)
    assert torch.equal(out, table.words[30:])
    assert shards.layout.shuffle_seed is None
    assert (shards.num_rows, shards.row_bytes, shards.num_bytes) == (50, 40, 2000)


def test_parts_give_the_rows_in_order(shuffled):
    _, folder = shuffled
    parts = [part.words.clone() for part in PackedShards(folder).parts(part_bytes=130 * 40)]
    assert [len(part) for part in parts] == [130] * 7 + [90]
    assert torch.equal(torch.cat(parts), all_rows(folder))


def test_of_a_remote_table_only_the_bytes_asked_for_are_read(remote, monkeypatch):
    _, url, filesystem = remote
    table = PackedShards(url)
    asked = []
    original = type(filesystem).cat_file
    monkeypatch.setattr(
        type(filesystem),
        "cat_file",
        lambda self, path, start=None, end=None, **more: (
            asked.append((path, start, end)) or original(self, path, start, end, **more)
        ),
    )
    table.read_rows([(290, 305)], torch.empty((15, 10), dtype=torch.int32))
    assert asked == [
        ("/bucket/train/words-00000.npy", 128 + 290 * 40, 128 + 300 * 40),
        ("/bucket/train/words-00001.npy", 128, 128 + 5 * 40),
    ]


def _change_layout(folder, **fields):
    path = folder / "layout.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _shards(*named_rows):
    return [{"file": name, "rows": rows} for name, rows in named_rows]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: os.truncate(f / "words-00002.npy", 4000), r"words-00002.npy: 4000 bytes, expected \d+ for 300 rows"),
        (lambda f: os.truncate(f / "words-00002.npy", 0), "words-00002.npy: damaged header"),
        (lambda f: (f / "words-00001.npy").unlink(), "words-00001.npy: not found"),
        (lambda f: shutil.copy(f / "words-00003.npy", f / "words-00000.npy"), r"words-00000.npy: .*shape \(100, 10\)"),
        (lambda f: (f / "layout.json").unlink(), "layout.json: not found, so .* holds no finished packed table"),
        (lambda f: _change_layout(f, num_rows=999), "shards of 1000 rows, num_rows is 999"),
        (lambda f: _change_layout(f, shards=[]), "shards of 0 rows"),
        (lambda f: _change_layout(f, shards=_shards(("../words.npy", 1000))), "is not a file of this folder"),
        (lambda f: _change_layout(f, shards=_shards(("words.npy", True))), "is not a file of this folder"),
        (lambda f: _change_layout(f, shards=[7]), "shard 7 is not a file of this folder"),
        (lambda f: _change_layout(f, shuffle_seed="x"), "shuffle_seed is 'x'"),
    ],
)
def test_a_damaged_table_is_refused_with_its_file(shuffled, damage, message):
    _, folder = shuffled
    damage(folder)
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(folder), "/damaged", recursive=True)
    try:
        for location in (folder, "memory://damaged"):
            with pytest.raises(LoaderError, match=message):
                PackedShards(location)
    finally:
        filesystem.rm("/damaged", recursive=True)
    with pytest.raises(LoaderError, match=message):
        PackedTable.load(folder, mmap=False)


def test_a_shard_that_is_cut_after_it_was_opened_is_named(shuffled, remote):
    _, folder = shuffled
    _, url, filesystem = remote
    out = torch.empty((1000, 10), dtype=torch.int32)
    local, far = PackedShards(folder), PackedShards(url)
    os.truncate(folder / "words-00001.npy", 1000)
    filesystem.pipe_file("/bucket/train/words-00001.npy", b"\0" * 1000)
    for table in (local, far):
        with pytest.raises(LoaderError, match=r"words-00001.npy: .*truncated"):
            table.read_rows([(0, 1000)], out)
    (folder / "words-00001.npy").unlink()
    filesystem.rm("/bucket/train/words-00001.npy")
    for table in (local, far):
        with pytest.raises(LoaderError, match=r"words-00001.npy: (cannot be opened|not found)"):
            table.read_rows([(0, 1000)], out)


def test_a_url_that_nothing_can_open_is_an_error():
    with pytest.raises(LoaderError, match="nonsense://x: cannot be opened"):
        PackedShards("nonsense://x")
    with pytest.raises(LoaderError, match=r"memory:/+nowhere/layout.json: not found"):
        PackedShards("memory://nowhere")
