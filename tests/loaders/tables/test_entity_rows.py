"""Features of an item, put in the place of another's: against a slow loop over rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.schema import IdColumn, IdList, Target, TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable

SCHEMA = TensorSchema(
    ids=(IdColumn("user", 5), IdColumn("item", 7), IdColumn("genre", 4), IdColumn("weekday", 7)),
    floats=("age", "price", "length"),
    targets=(Target("clicked", "binary"),),
)


def table_of(items, seed=0) -> PackedTable:
    generator = torch.Generator().manual_seed(seed)
    num_rows = len(items)

    def whole(high):
        return torch.randint(0, high, (num_rows,), dtype=torch.int32, generator=generator)

    ids = [whole(5), torch.tensor(items, dtype=torch.int32), whole(4), whole(7)]
    floats = [torch.randn(num_rows, generator=generator) for _ in range(3)]
    return PackedTable.from_columns(SCHEMA, ids, floats, [whole(2).float()])


def slow_rows(table: PackedTable) -> dict[int, tuple[int, float, float]]:
    """(genre, price, length) of the last row of each item."""
    batch = table.unpack(table.words)
    return {
        int(ids[1]): (int(ids[2]), float(floats[1]), float(floats[2]))
        for ids, floats in zip(batch.ids, batch.floats, strict=True)
    }


@given(items=st.lists(st.integers(0, 6), min_size=1, max_size=40), seed=st.integers(0, 5), data=st.data())
def test_other_items_bring_their_own_features_and_nothing_else_changes(items, seed, data):
    table = table_of(items, seed)
    rows = EntityRows.of(table, 1, (1, 2), (1, 2))
    known = slow_rows(table)
    batch = table.unpack(table.words.clone())
    others = data.draw(st.lists(st.integers(0, 6), min_size=len(items), max_size=len(items)))
    before = table.unpack(table.words)
    rows.fill(batch.ids, batch.floats, torch.tensor(others, dtype=torch.int32))
    for place, other in enumerate(others):
        genre, price, length = known.get(other, (0, 0.0, 0.0))
        assert batch.ids[place].tolist() == [int(before.ids[place, 0]), other, genre, int(before.ids[place, 3])]
        assert batch.floats[place].tolist() == [float(before.floats[place, 0]), price, length]


@pytest.mark.parametrize(
    ("key", "ids", "floats", "message"),
    [
        (0, (1, 2), (), "the key column 0 is not among"),
        (1, (1, 9), (), r"no column \[9\]; the table has 4 ids and 3 floats"),
        (1, (1,), (3,), r"no column \[3\]"),
    ],
)
def test_columns_that_are_not_there_are_refused(key, ids, floats, message):
    with pytest.raises(LoaderError, match=message):
        EntityRows.of(table_of([1]), key, ids, floats)


def test_columns_that_differ_among_the_rows_of_an_item_are_told():
    table = table_of([1, 3, 3, 6, 6, 1])
    table.words[:, 2] = table.words[:, 1] % 4  # the genre follows from the item,
    rows = EntityRows.of(table, 1, (1, 2), (1, 2))
    assert rows.moving_columns(table) == [5, 6]  # price and length do not
    table.words[:, 6] = table.words[:, 1]
    table.words[[0, 2], 5] = table.words[[5, 1], 5]
    assert EntityRows.of(table, 1, (1, 2), (1, 2)).moving_columns(table) == [5]
    assert EntityRows.of(table, 1, (1, 2), (1, 2)).moving_columns(table, first=7) == []


LISTS = (IdList("seen", 7, shares="item"), IdList("tags", 5), IdList("parts", 9, weighted=True))
WITH_LISTS = TensorSchema(SCHEMA.ids, SCHEMA.floats, SCHEMA.targets, lists=LISTS)
ITEM_LISTS = (1, 2)


def listed_table(items, seed=0) -> PackedTable:
    """`table_of` with lists: what was seen is context, tags and weighted parts are the item's."""
    plain, draw = table_of(items, seed), torch.Generator().manual_seed(seed + 1)
    batch, lists = plain.unpack(plain.words), []
    for column in LISTS:
        lengths = torch.randint(0, 4, (len(items),), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ids = torch.randint(0, column.num_ids, (int(offsets[-1]),), dtype=torch.int32, generator=draw)
        lists.append(JaggedColumn(ids, offsets, torch.rand(len(ids), generator=draw) if column.weighted else None))
    columns = batch.ids.unbind(1), batch.floats.unbind(1), batch.targets
    return PackedTable.from_columns(WITH_LISTS, *columns, lists=lists)


def plain_lists(columns) -> list[list[tuple]]:
    """Of each row its lists as (ids, weights or None), one a column."""
    parts = []
    for column in columns:
        weights = column.to_lists() if column.weights is None else column._replace(ids=column.weights).to_lists()
        parts.append(
            [
                (ids, None if column.weights is None else own)
                for ids, own in zip(column.to_lists(), weights, strict=True)
            ]
        )
    return [list(row) for row in zip(*parts, strict=True)]


def slow_lists(table: PackedTable) -> dict[int, list[tuple]]:
    """The item's lists in the last row of each item."""
    batch = table.unpack(table.words)
    rows = plain_lists(batch.lists)
    return {int(ids[1]): [row[place] for place in ITEM_LISTS] for ids, row in zip(batch.ids, rows, strict=True)}


@given(items=st.lists(st.integers(0, 6), min_size=1, max_size=30), seed=st.integers(0, 9), data=st.data())
def test_other_items_bring_their_own_lists_and_the_others_stay(items, seed, data):
    table = listed_table(items, seed)
    shuffled = table.with_words(table.words[torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))])
    rows, known = EntityRows.of(shuffled, 1, (1, 2), (1, 2), ITEM_LISTS), slow_lists(shuffled)
    batch = shuffled.unpack(shuffled.words)
    chosen = data.draw(st.lists(st.integers(0, len(items) - 1), min_size=1, max_size=20))
    others = data.draw(st.lists(st.integers(0, 6), min_size=len(chosen), max_size=len(chosen)))
    found = plain_lists(rows.lists_beside(batch.lists, torch.tensor(chosen), torch.tensor(others)))
    before, nothing = plain_lists(batch.lists), [([], None), ([], [])]
    for row, place, other in zip(found, chosen, others, strict=True):
        assert row[0] == before[place][0]
        assert row[1:] == known.get(other, nothing)


def jagged(rows, weights=None) -> JaggedColumn:
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    flat = torch.tensor([value for row in rows for value in row], dtype=torch.int32)
    return JaggedColumn(flat, offsets, None if weights is None else torch.tensor(weights))


@pytest.mark.parametrize(
    ("tags", "weights", "moving"),
    [
        ([[1, 2], [1, 2], [4], [4]], [0.5, 0.5, 0.25, 0.25], []),
        ([[1, 2], [2, 1], [4], [4]], [0.5, 0.5, 0.25, 0.25], [8]),
        ([[1, 2], [1, 2], [], [4]], [0.5, 0.5, 0.25, 0.25], [8]),
        ([[1, 2], [1, 2], [4], [4]], [0.5, 0.5, 0.25, 0.75], [9]),
    ],
)
def test_lists_that_differ_among_the_rows_of_an_item_are_told(tags, weights, moving):
    plain = table_of([1, 1, 3, 3])
    batch = plain.unpack(plain.words)
    lists = jagged([[1], [2], [3], []]), jagged(tags), jagged([[7], [7], [8], [8]], weights)
    table = PackedTable.from_columns(
        WITH_LISTS, batch.ids.unbind(1), batch.floats.unbind(1), batch.targets, lists=lists
    )
    assert EntityRows.of(table, 1, (1,), (), ITEM_LISTS).moving_columns(table) == moving
    assert EntityRows.of(table, 1, (1,), (), ITEM_LISTS).moving_columns(table, first=4) == []
    with pytest.raises(LoaderError, match=r"no list column \[3\]; the table has 3"):
        EntityRows.of(table, 1, (1,), (), (3,))
