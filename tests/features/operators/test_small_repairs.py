"""Columns of odd types and names, and what operators keep of what they were given."""

import decimal
import fractions

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.operators import (
    Categorify,
    CountEncoding,
    FillMissing,
    GroupbyToSequence,
    HashBucket,
    LastBefore,
    Normalize,
)
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.schema import Column, ListColumn, Schema, Target


def test_sparse_columns_are_those_that_they_stand_for():
    sparse = pd.DataFrame(
        {"x": pd.arrays.SparseArray([1.0, 0.0, np.nan, 0.0]), "k": pd.arrays.SparseArray([7, 0, 0, 5])}
    )
    dense = sparse.sparse.to_dense()
    for made in (
        lambda frame: FillMissing("x").apply(frame, FillMissing("x").fit([frame]))["x"],
        lambda frame: Categorify("k").apply(frame, Categorify("k").fit([frame]))["k"],
        lambda frame: HashBucket("k", 10)(frame)["k"],
        lambda frame: pd.Series(Preprocessor(SCHEMA).fit([frame]).pack(frame).ravel()),
    ):
        assert made(sparse).tolist() == made(dense).tolist()


SCHEMA = Schema((Column("k", "categorical", "int64"), Column("x", "continuous", "float32")), ())


def test_numbers_whose_squares_leave_float64_are_refused_by_name():
    """The error said that the values hold NaN or an infinity, and named no column."""
    with pytest.raises(DataError, match="'price' holds numbers of 1e150"):
        Normalize("price").fit([pd.DataFrame({"price": [1e200, 1.0]})])
    assert Normalize("price").fit([pd.DataFrame({"price": [1e149, -1e149]})]).std == 1e149


def test_a_target_may_be_called_self(tmp_path):
    rows = pd.DataFrame({"x": np.arange(200.0), "self": [0, 1] * 100})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    settings = TableSettings(path=str(tmp_path / "rows.csv"), continuous=("x",), targets={"self": {"task": "binary"}})
    assert set(TableRecipe(settings).build("pandas").splits["train"]["self"]) == {0, 1}
    schema = Schema(
        (Column("x", "continuous", "float32"), Column("self", "target", "float32")), (Target("self", "binary"),)
    )
    packed = Preprocessor(schema).fit([rows]).pack(rows)
    assert packed.view("float32")[:, -1].tolist() == [0, 1] * 100


def test_tables_that_an_operator_was_given_are_kept_as_they_were():
    events = pd.DataFrame({"user": [1, 1], "at": [1, 2], "page": ["home", "cart"], "row": [0, 1]})
    rows = pd.DataFrame({"user": [1], "at": [9]})
    count = CountEncoding(events, ["user"], "n", at="at")
    last = LastBefore(events, ["user"], {"page": "last"}, at="at", order="row")
    events.loc[1, "at"] = 99
    assert count(rows)["n"].tolist() == [2]
    assert last(rows)["last"].tolist() == ["cart"]


@pytest.mark.parametrize("first", ["1", "01"])
def test_classes_of_one_number_stand_in_one_order(first, tmp_path):
    """They stood by frequency, so that their numbers could change from one night to the next."""
    other = {"1": "01", "01": "1"}[first]
    rows = pd.DataFrame({"x": np.arange(300.0), "kind": [first, first, other] * 100})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    settings = TableSettings(
        path=str(tmp_path / "rows.csv"), continuous=("x",), targets={"kind": {"task": "multiclass"}}
    )
    (target,) = TableRecipe(settings).build("pandas").schema.targets
    assert list(target.classes) == ["01", "1"]


@pytest.mark.parametrize("column", [
    pd.Series(pd.arrays.ArrowExtensionArray(pa.array([1, 2, 3], pa.decimal128(5, 2)))),
    pd.Series(pd.arrays.ArrowExtensionArray(pa.array([1, 2, 3], pa.date32()))),
    pd.Series(pd.period_range("2020", periods=3, freq="M")),
], ids=["decimal", "date", "period"])  # fmt: skip
def test_types_that_are_no_categories_are_refused(column):
    frame = column.rename("k").to_frame()
    for fit in (lambda: Categorify("k").fit([frame]), lambda: HashBucket("k", 10)(frame)):
        with pytest.raises(DataError, match="column 'k' is"):
            fit()


def test_objects_of_two_kinds_of_numbers_make_no_text_of_lists():
    """They became `1|2.0`."""
    frame = pd.DataFrame({"u": [1, 1, 2], "t": [1, 2, 3], "i": pd.Series([1, 2.0, None], dtype="object")})
    with pytest.raises(DataError, match="column 'i'"):
        GroupbyToSequence(["u"], "t", ["i"], 5)(frame)


@pytest.mark.parametrize("value", [decimal.Decimal(7), fractions.Fraction(7), 7 + 0j, decimal.Decimal(9)], ids=str)
def test_a_row_is_refused_whether_or_not_the_number_is_known(value):
    known = Preprocessor(Schema((Column("id", "categorical", "int64"),), ())).fit([pd.DataFrame({"id": [7, 8]})])
    online = OnlineTransformer(known)
    with pytest.raises(DataError, match="'id'"):
        online({"id": value})
    lists = Schema((Column("x", "continuous", "float32"),), (), lists=(ListColumn("ids", elements="int64"),))
    row = OnlineTransformer(Preprocessor(lists).fit([pd.DataFrame({"ids": [[7, 8]], "x": [1.0]})]))
    with pytest.raises(DataError, match="'ids'"):
        row.pack_lists([{"ids": [value, 7], "x": 1.0}])
    assert [int(online({"id": number})[0][0]) for number in (7, 7.0, np.int8(7), np.uint64(8), "8")] == [3, 3, 3, 4, 4]
