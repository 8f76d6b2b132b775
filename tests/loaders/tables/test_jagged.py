"""Lists beside packed rows: in memory, on disk, shuffled, streamed and by rank, against Python's own lists."""

import json
import random
import tempfile
from dataclasses import replace

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.schema import IdColumn, IdList, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.batches.residency import load_table, residency_here
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.loaders.batches.stream import StreamedDataset
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import JaggedColumn, equal_rows
from gigabatch.loaders.tables.list_files import map_list, save_list
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter

SCHEMA = TensorSchema(
    ids=(IdColumn("item", 5000),),
    floats=("price",),
    targets=(Target("clicked", "binary"),),
    has_group=True,
    lists=(IdList("tags", 9, weighted=True), IdList("history", 5000, shares="item")),
)


def random_lists(num_rows: int, seed: int, num_ids: int = 9) -> list[list[int]]:
    """Rows of 0 to 6 ids, and one that is very long."""
    draw = random.Random(seed)
    found = [[draw.randrange(num_ids) for _ in range(draw.choice([0, 0, 1, 2, 6]))] for _ in range(num_rows)]
    if num_rows:
        found[num_rows // 2] = [draw.randrange(num_ids) for _ in range(700)]
    return found


def jagged(rows: list[list[int]], weighted: bool = False) -> JaggedColumn:
    ids = torch.tensor([value for row in rows for value in row], dtype=torch.int32)
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int64)
    return JaggedColumn(ids, offsets, ids / 8 if weighted else None)


def make_table(num_rows: int, seed: int = 0) -> tuple[PackedTable, list[list[int]], list[list[int]]]:
    """A table whose id, price and group are the row's number, with the lists of its rows."""
    tags, history = random_lists(num_rows, seed), random_lists(num_rows, seed + 1, 5000)
    numbers = torch.arange(num_rows, dtype=torch.int32)
    table = PackedTable.from_columns(
        SCHEMA, [numbers], [numbers.float()], [numbers % 2 * 1.0], group=numbers,
        lists=[jagged(tags, weighted=True), jagged(history)],
    )  # fmt: skip
    return table, tags, history


def require_rows(batch, tags, history) -> None:
    """The lists of a batch are those of its rows, which `group` names."""
    rows = batch.group.tolist()
    assert batch.ids[:, 0].tolist() == rows
    assert batch.lists[0].to_lists() == [tags[row] for row in rows]
    assert batch.lists[1].to_lists() == [history[row] for row in rows]
    assert torch.equal(batch.lists[0].weights, batch.lists[0].ids / 8)
    assert batch.lists[1].weights is None
    for column in batch.lists:
        assert (column.ids.dtype, column.offsets.dtype) == (torch.int32, torch.int64)
        assert int(column.offsets[0]) == 0
        assert column.num_rows == len(rows)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=9), st.randoms(use_true_random=False))
def test_rows_slices_and_concat_are_those_of_lists(rows, draw):
    column = jagged(rows, weighted=True)
    places = [draw.randrange(len(rows)) for _ in range(7)] if rows else []
    chosen = column.rows(torch.tensor(places, dtype=torch.int32))
    assert chosen.to_lists() == [rows[place] for place in places]
    assert torch.equal(chosen.weights, chosen.ids / 8)
    cut = draw.randrange(len(rows) + 1)
    parts = [column.slice(0, cut), column.slice(cut, len(rows))]
    assert parts[0].to_lists() == rows[:cut]
    assert parts[1].to_lists() == rows[cut:]
    whole = JaggedColumn.concat(parts)
    assert all(torch.equal(mine, other) for mine, other in zip(whole, column, strict=True))


def test_a_place_outside_is_refused():
    for place in (-1, 2):
        with pytest.raises(LoaderError, match=f"row {place} was asked for and there are 2"):
            jagged([[1], [2]]).rows(torch.tensor([place]))


@pytest.mark.parametrize("num_rows", [0, 1, 2000])
def test_a_saved_table_has_its_lists(tmp_path, num_rows):
    table, tags, history = make_table(num_rows)
    table.save(tmp_path / "table")
    for mmap in (True, False):
        found = PackedTable.load(tmp_path / "table", mmap=mmap)
        require_rows(found.unpack(found.words), tags, history)
    found.save(tmp_path / "table")  # onto itself
    require_rows(found.unpack(found.words), tags, history)
    assert json.loads((tmp_path / "table/layout.json").read_text())["version"] == 3


def test_a_table_without_lists_is_written_as_ever(tmp_path):
    table, _, _ = make_table(3)
    plain = replace(SCHEMA, lists=())
    PackedTable(table.words[:, :-2].contiguous(), plain).save(tmp_path)
    layout = json.loads((tmp_path / "layout.json").read_text())
    assert layout["version"] == 1
    assert "lists" not in layout
    assert "lists" not in layout["schema"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout.json", "words.npy"]


def test_parts_of_rows_in_any_order_are_written_with_their_own_lists(tmp_path):
    table, tags, history = make_table(100)
    chosen = torch.randperm(100, generator=torch.Generator().manual_seed(3))[:60]
    part = table.with_words(table.words[chosen])
    with PackedWriter(tmp_path, SCHEMA, 160) as writer:
        writer.write(part)
        writer.write(table)
    found = PackedTable.load(tmp_path)
    require_rows(found.unpack(found.words), tags, history)
    assert found.words[:, -1].tolist() == list(range(160))  # numbered as they lie
    assert found.words[:60, 0].tolist() == chosen.tolist()


def test_shuffled_batches_are_those_of_the_rows():
    table, tags, history = make_table(2000)
    seen = []
    for batch in BatchLoader(BatchDataset(table, 300, seed=4)):
        require_rows(batch, tags, history)
        seen += batch.group.tolist()
    assert sorted(seen) == list(range(2000))
    assert seen != sorted(seen)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_stream_gives_the_rows_of_a_shuffled_table_on_every_rank(tmp_path, num_ranks):
    table, tags, history = make_table(2000)
    parts = [table.with_words(table.words[:700]), table.with_words(table.words[700:])]
    write_shuffled(parts, tmp_path / "s", SCHEMA, 2000, seed=5, shard_rows=600)
    shards = PackedShards(tmp_path / "s")
    assert len(shards.shards) == 4
    assert not (tmp_path / "s/source-lists").exists()
    resident = load_table(shards, "host", torch.device("cpu"))
    require_rows(resident.unpack(resident.words), tags, history)
    assert resident.words[:, -1].tolist() == list(range(2000))  # so that a block's lists lie together
    seen = []
    for rank in range(num_ranks):
        source = StreamedDataset(shards, 100, seed=6, rank=rank, num_ranks=num_ranks, block_bytes=1000)
        for batch in BatchLoader(source, prefetch=1):
            require_rows(batch, tags, history)
            seen += batch.group.tolist()
    assert sorted(seen) == list(range(2000))


def test_streamed_and_resident_batches_are_equal_bit_for_bit(tmp_path):
    table, _, _ = make_table(500)
    table.save(tmp_path)
    streamed = BatchLoader(StreamedDataset(tmp_path, 64, shuffle=False, block_bytes=400), copy=True)
    resident = BatchLoader(BatchDataset(table, 64, shuffle=False), copy=True)
    for mine, other in zip(streamed, resident, strict=True):
        for one, two in zip(mine.lists, other.lists, strict=True):
            assert torch.equal(one.ids, two.ids)
            assert torch.equal(one.offsets, two.offsets)
        assert torch.equal(mine.lists[0].weights, other.lists[0].weights)


@pytest.fixture
def remote(tmp_path):
    """A function that puts a folder behind a URL, which it returns."""
    files = fsspec.filesystem("memory")

    def put(folder):
        files.put(f"{folder}/", f"/{folder.name}/", recursive=True)
        return f"memory://{folder.name}"

    yield put
    files.store.clear()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_table_behind_a_url_gives_the_batches_of_its_local_copy(tmp_path, remote, monkeypatch, shuffle):
    table, _, _ = make_table(500)
    write_shuffled([table], tmp_path / "words", table.schema, num_rows=500, seed=3, shard_rows=170)
    url, copies = remote(tmp_path / "words"), tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    opened = PackedShards(url)
    assert opened.is_remote
    assert not [*copies.iterdir()]  # mapped, and of no name any more
    sources = [
        StreamedDataset(place, 64, shuffle=shuffle, seed=2, block_bytes=400) for place in (url, tmp_path / "words")
    ]
    there, here = (BatchLoader(source, copy=True) for source in sources)
    for mine, other in zip(there, here, strict=True):
        assert torch.equal(mine.ids, other.ids)
        for one, two in zip(mine.lists, other.lists, strict=True):
            assert torch.equal(one.ids, two.ids)
            assert torch.equal(one.offsets, two.offsets)
        assert torch.equal(mine.lists[0].weights, other.lists[0].weights)
    resident = [load_table(place, "host", torch.device("cpu")) for place in (url, tmp_path / "words")]
    for one, two in zip(*(part.lists for part in resident), strict=True):
        assert one.to_lists() == two.to_lists()


def test_lists_behind_a_url_that_cannot_be_had_are_named(tmp_path, remote, monkeypatch):
    table, _, _ = make_table(20)
    table.save(tmp_path / "words")
    url, files = remote(tmp_path / "words"), fsspec.filesystem("memory")
    name = "/words/list-001-ids.npy"
    content = files.cat_file(name)
    files.pipe_file(name, content[:-4])
    with pytest.raises(LoaderError, match=r"^memory:///?words/list-001-ids\.npy.*truncated or overwritten"):
        PackedShards(url)
    files.rm(name)
    with pytest.raises(LoaderError, match=r"^memory:///?words/list-001-ids\.npy: not found\. Write the table again"):
        PackedShards(url)
    files.pipe_file(name, content)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(type(files), "get_file", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(LoaderError, match=r"list-000-ids\.npy: cannot be copied to .*No space left.*TMPDIR"):
        PackedShards(url)


def test_lists_count_among_what_must_fit(tmp_path):
    table, _, _ = make_table(1000)
    table.save(tmp_path)
    shards = PackedShards(tmp_path)
    of_lists = sum(column.num_bytes for column in table.lists)
    free = 1000 * shards.row_bytes + of_lists
    assert residency_here([shards], "cpu", int(free / 0.8) + 2000).kind == "host"
    assert residency_here([shards], "cpu", int((free - of_lists // 2) / 0.8)).kind == "stream"


DAMAGE = {
    "ids truncated": ("list-001-ids.npy", lambda data: data[:-4], "truncated or overwritten"),
    "offsets truncated": ("list-000-offsets.npy", lambda data: data[:-8], "truncated or overwritten"),
    "weights of another type": ("list-000-weights.npy", lambda data: data.replace(b"<f4", b"<i4"), "expected one"),
    "no header": ("list-000-ids.npy", lambda data: b"x" + data[1:], "damaged header"),
    "of another table": ("list-000-ids.npy", None, "of different tables"),
    "missing": ("list-001-offsets.npy", "gone", "not found"),
    "offsets fall": ("list-000-offsets.npy", "fall", "offsets fall after row 3"),
    "offsets beyond the end": ("list-000-offsets.npy", "beyond", "must go from 0 to the"),
    "offsets begin late": ("list-000-offsets.npy", "late", "must go from 0 to the"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused_by_name(tmp_path, name):
    table, _, _ = make_table(50)
    table.save(tmp_path)
    file, change, message = DAMAGE[name]
    path = tmp_path / file
    if change == "gone":
        path.unlink()
    elif change is None:
        np.save(path, np.zeros(3, np.int32))
    elif isinstance(change, str):
        offsets = np.load(path)
        place, value = {"fall": (4, -1), "beyond": (-1, 10**6), "late": (0, 1)}[change]
        offsets[place] = value
        np.save(path, offsets)
    else:
        path.write_bytes(change(path.read_bytes()))
    for read in (PackedTable.load, PackedShards):
        with pytest.raises(LoaderError, match=message) as error:
            read(tmp_path)
        assert file in str(error.value)


def test_a_row_that_names_no_list_is_refused(tmp_path):
    table, _, _ = make_table(5)
    words = table.words.clone()
    words[2, -1] = 5
    with pytest.raises(LoaderError, match="row 5 was asked for and there are 5"):
        table.unpack(words)


BAD_LISTS = {
    "other rows": (lambda c: jagged([[1]], True), "1 rows, the first column has 3"),
    "ids too high": (lambda c: c._replace(ids=c.ids + 9), "ids must be in"),
    "no weights": (lambda c: c._replace(weights=None), "says that weights"),
    "infinite weights": (lambda c: c._replace(weights=c.weights / 0), "must be finite"),
    "fewer weights": (lambda c: c._replace(weights=c.weights[1:]), "weights for"),
    "wide ids": (lambda c: c._replace(ids=c.ids.long()), "ids are one column of torch.int32"),
    "falling offsets": (lambda c: c._replace(offsets=torch.tensor([0, 2, 1, 3])), "do not ascend, first after row 1"),
    "late offsets": (lambda c: c._replace(offsets=torch.tensor([1, 1, 2, 3])), "offsets go from 0"),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_lists_that_do_not_fit_are_refused(name):
    change, message = BAD_LISTS[name]
    numbers = torch.arange(3, dtype=torch.int32)
    good = jagged([[1], [2, 3], []], True)
    with pytest.raises(LoaderError, match=message):
        PackedTable.from_columns(
            SCHEMA, [numbers], [numbers.float()], [numbers % 2 * 1.0], group=numbers,
            lists=[change(good), jagged([[], [], []])],
        )  # fmt: skip


def test_a_table_without_its_lists_is_refused():
    table, _, _ = make_table(3)
    with pytest.raises(LoaderError, match="2 list column"):
        PackedTable(table.words, SCHEMA)


ROWS = st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=8)


@given(rows=ROWS, times=st.integers(1, 4))
def test_rows_that_are_repeated_are_those_of_a_loop(rows, times):
    found = jagged(rows, True).repeat(times)
    expected = [row for row in rows for _ in range(times)]
    assert found.to_lists() == expected
    weights = jagged(rows, True).rows(torch.arange(len(rows)).repeat_interleave(times)).weights
    assert torch.equal(found.weights, weights)


@given(rows=ROWS, data=st.data())
def test_equal_rows_are_equal_lists(rows, data):
    others = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=len(rows), max_size=len(rows)))
    expected = [one == other for one, other in zip(rows, others, strict=True)]
    assert equal_rows(jagged(rows), jagged(others)).tolist() == expected
    heavier = jagged(rows, True)._replace(weights=jagged(rows, True).weights + 1)
    assert equal_rows(jagged(rows, True), heavier).tolist() == [not row for row in rows]


def test_a_saved_column_comes_back_and_one_that_is_damaged_is_refused(tmp_path):
    column = jagged([[1, 2], [], [8]], True)
    save_list(tmp_path, 4, column)
    found = map_list(tmp_path, 4, 9, True)
    assert all(torch.equal(one, other) for one, other in zip(found, column, strict=True))
    with pytest.raises(LoaderError, match=r"ids must be in \[0, 8\)"):
        map_list(tmp_path, 4, 8, True)
    np.save(tmp_path / "list-004-offsets.npy", np.array([0, 2, 1, 3], "<i8"))
    with pytest.raises(LoaderError, match="do not ascend"):
        map_list(tmp_path, 4, 9, True)
    (tmp_path / "list-004-ids.npy").write_bytes(b"no array")
    with pytest.raises(LoaderError, match="damaged header"):
        map_list(tmp_path, 4, 9, True)
    (tmp_path / "list-004-ids.npy").unlink()
    with pytest.raises(LoaderError, match="not found"):
        map_list(tmp_path, 4, 9, True)
