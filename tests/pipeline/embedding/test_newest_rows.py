"""The newest row of each user or item: what a plain loop over all rows remembers, however the rows lie in parts."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Entity, ListColumn, Schema
from gigabatch.pipeline.embedding.entities import NewestRows, feature_rows, kept_columns
from tests.examples import examples
from tests.pipeline.shop_rows import ITEM, SHOP, USER, sales

TIMELESS = Schema(SHOP.columns[:-1], SHOP.targets, SHOP.entities)


def newest_rows(schema: Schema, entity: Entity, parts: list[pd.DataFrame]) -> pd.DataFrame:
    found = NewestRows(schema, entity)
    for part in parts:
        found.add(part)
    return found.frame


def plain(frame: pd.DataFrame, columns: list[str]) -> list[tuple]:
    """Rows as tuples of Python values, None for null."""
    found = [[None if pd.isna(value) else value for value in frame[name].tolist()] for name in columns]
    return list(zip(*found, strict=True))


def newest_by_loop(frame: pd.DataFrame, entity: Entity, columns: list[str], timed: bool) -> list[tuple]:
    """What a loop over the rows keeps, in the order in which keys first appear."""
    key, best = columns.index(entity.key), {}
    for row in plain(frame, columns):
        if row[key] is None:
            continue
        before = best.get(row[key])
        if before is not None and timed:
            new, old = (-1 if found[-1] is None else found[-1] for found in (row, before))
            if new < old:
                continue
        best[row[key]] = row
    return list(best.values())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 30), min_size=1, max_size=5), st.booleans())
def test_the_newest_rows_are_those_a_loop_keeps_however_the_rows_lie_in_parts(seed, sizes, timed):
    schema = SHOP if timed else TIMELESS
    frame = sales(seed, sum(sizes))
    cuts = np.cumsum([0, *sizes])
    parts = [frame.iloc[start:stop] for start, stop in pairwise(cuts)]
    for entity in schema.entities:
        columns = kept_columns(schema, entity)
        found = newest_rows(schema, entity, parts)
        assert list(found.columns) == columns
        assert found[entity.key].is_unique
        assert list(found.index) == list(range(len(found)))
        assert plain(found, columns) == newest_by_loop(frame, entity, columns, timed)


def test_parts_may_come_from_parquet_with_other_null_encodings(tmp_path):
    """A part without nulls has integers where another has masked ones, and pandas without metadata reads floats."""
    frame = sales(3, 400).assign(item=lambda all_rows: all_rows["item"].astype("float64") % 9)
    frame.to_parquet(tmp_path / "a.parquet")
    whole = frame.dropna().assign(item=lambda rows: rows["item"].astype("int64"))
    whole.to_parquet(tmp_path / "b.parquet")
    parts = [pd.read_parquet(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    found = newest_rows(SHOP, ITEM, parts)
    columns = kept_columns(SHOP, ITEM)
    assert plain(found, columns) == newest_by_loop(pd.concat(parts, ignore_index=True), ITEM, columns, timed=True)
    assert found["item"].dtype == "int64"


def test_no_rows_leave_an_empty_frame_and_no_frame_is_an_error():
    found = newest_rows(SHOP, USER, [sales(0, 0), sales(0, 0)])
    assert (len(found), list(found.columns)) == (0, ["user", "age", "at"])
    with pytest.raises(DataError, match="rows of the user: no frame was given"):
        newest_rows(SHOP, USER, [])


def test_missing_columns_and_wrong_values_are_errors():
    with pytest.raises(DataError, match=r"rows of the item: column\(s\) 'price' not found"):
        newest_rows(SHOP, ITEM, [sales(0, 5).drop(columns="price")])
    with pytest.raises(DataError, match="rows of the item: column 'stock' is declared int32"):
        newest_rows(SHOP, ITEM, [sales(0, 5).assign(stock=0.5)])
    text = Schema((*SHOP.columns[:-1], Column("at", "time", "string")), SHOP.targets, SHOP.entities)
    with pytest.raises(DataError, match="time column 'at' is text"):
        newest_rows(text, ITEM, [sales(0, 5)])


@pytest.fixture(scope="module")
def preprocessor() -> Preprocessor:
    return Preprocessor(SHOP).fit([sales(1, 500)])


@pytest.mark.parametrize("name", ["user", "item"])
def test_feature_rows_encode_the_entity_as_its_own_row_does_and_the_rest_as_null(preprocessor, name):
    entity = SHOP.entity(name)
    frame = sales(2, 60)
    rows = newest_rows(SHOP, entity, [frame])
    found = preprocessor.transform(feature_rows(SHOP, entity, rows), targets=False)
    # The very rows of the table that the newest rows are: the last of those with the greatest time.
    order = frame.assign(at=frame["at"].fillna(0), place=range(len(frame))).dropna(subset=[entity.key])
    last = order.sort_values(["at", "place"]).groupby(entity.key)["place"].last()
    expected = preprocessor.transform(frame.iloc[last[rows[entity.key]].tolist()], targets=False)
    own = [column for column in found.columns if column.removesuffix("_na") in entity.columns]
    assert len(own) > 1
    for column in own:
        assert np.array_equal(found[column].to_numpy(), expected[column].to_numpy()), column
    ids = [column for column in SHOP.names("categorical") if column not in entity.columns]
    assert {value for column in ids for value in found[column]} == {1}  # the id of null
    flags = [f"{column}_na" for column in ("age", "price") if column not in entity.columns]
    assert {value for column in flags for value in found[column]} == {1.0}


LISTED = Schema(
    (Column("user", "categorical", "string"), Column("item", "categorical", "int64"), Column("at", "time", "int64")),
    (),
    (Entity("user", "user", ("user", "clubs")), Entity("item", "item", ("item", "tags", "like"))),
    (
        ListColumn("seen", "int64", shares="item", weights="ages"),  # a history: context, of items
        ListColumn("words"),  # of the request
        ListColumn("clubs"),
        ListColumn("tags", weights="shares"),
        ListColumn("like", "int64", shares="item"),  # items, but of the item
    ),
)


def listed_rows() -> pd.DataFrame:
    return pd.DataFrame({
        "user": ["u", "v", "u"], "item": [7, 8, 8], "at": [5, 5, 4],
        "seen": [[7, 8], None, [8]], "ages": [[1.0, 2.0], None, [4.0]], "words": [["x"], ["y"], ["x"]],
        "clubs": [["a"], [], ["b"]], "tags": [["t"], ["r", "s"], ["r"]], "shares": [[1.0], [2.0, 3.0], [4.0]],
        "like": [[8], [], [7]],
    })  # fmt: skip


def test_of_lists_those_of_the_entity_are_kept_and_of_a_user_the_histories():
    user, item = LISTED.entities
    assert kept_columns(LISTED, user) == ["user", "at", "seen", "ages", "clubs"]
    assert kept_columns(LISTED, item) == ["item", "at", "tags", "shares", "like"]
    users, items = (newest_rows(LISTED, entity, [listed_rows()]) for entity in (user, item))
    assert [None if row is pd.NA else list(row) for row in users["seen"]] == [[7, 8], None]
    assert [list(row) for row in users["ages"].iloc[:1]] == [[1.0, 2.0]]
    assert [list(row) for row in items["tags"]] == [["t"], ["r", "s"]]
    assert [list(row) for row in items["like"]] == [[8], []]
    fitted = Preprocessor(LISTED).fit([listed_rows()])
    for entity, rows, lengths in ((user, users, [[2, 0], [0, 0], [1, 0], [0, 0], [0, 0]]),
                                  (item, items, [[0, 0], [0, 0], [0, 0], [1, 2], [1, 0]])):  # fmt: skip
        packed = fitted.pack_lists(feature_rows(LISTED, entity, rows))
        assert [np.diff(column.offsets).tolist() for column in packed] == lengths
