"""Features of an item, put in the place of another's: against a slow loop over rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.entity_rows import EntityRows
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
