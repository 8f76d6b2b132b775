"""Whole numbers of 2^53 and beyond stay what they are among Python's objects, in lists and beside other types."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.columns.categories import canonicalize
from gigabatch.features.columns.objects import unboxed
from gigabatch.features.columns.stacking import stacked
from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.categories.hash_bucket import HashBucket
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.operators.rows.cast import Cast
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.workflow import Workflow

A, B = 2**60 + 1, 2**60
NULLS = [None, float("nan"), pd.NA]
COUNT = {"by": ["user"], "time": "at", "column": "at", "window": 100, "statistic": "count", "output": "n"}


def objects(*values) -> pd.Series:
    return pd.Series(values, dtype="object")


@pytest.mark.parametrize("null", NULLS, ids=str)
@pytest.mark.parametrize("number", [int, np.int64, np.uint64], ids=lambda kind: kind.__name__)
def test_ids_among_objects_beside_a_null_are_the_ids(null, number):
    """pandas' `convert_dtypes` takes objects with None or NaN through float64, so that two ids were one."""
    rows = pd.DataFrame({"id": objects(number(A), number(B), null)})
    schema = Schema((Column("id", "categorical", "int64"),), ())
    known = Preprocessor(schema).fit([pd.DataFrame({"id": [A, B, B]})])
    online = OnlineTransformer(known)
    assert known.pack(rows).ravel().tolist() == [4, 3, 1]
    assert [int(online({"id": value})[0][0]) for value in (A, B, None)] == [4, 3, 1]
    assert sorted(Preprocessor(schema).fit([rows]).vocabularies["id"].values.tolist()) == [B, A]
    assert Categorify("id").fit([rows]).values.tolist() == [B, A]
    assert Cast(["id"], "int64", nullable=True)(rows)["id"].tolist()[:2] == [A, B]
    whole = HashBucket("id", 10**6)(pd.DataFrame({"id": [A, B]}))["id"].tolist()
    assert HashBucket("id", 10**6)(rows)["id"].tolist() == [*whole, 0]
    table = pd.DataFrame({"id": [A, B], "name": ["a", "b"]})
    assert JoinExternal(table, ["id"], {"name": "name"})(rows)["name"].tolist()[:2] == ["a", "b"]
    frame = pd.DataFrame({"user": rows["id"], "at": [1, 2, 3]})
    assert Rolling(**COUNT)(frame)["n"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("values", "wanted"), [
    ((1, 2.0, None), [1.0, 2.0, None]), ((A, 2.0, None), [A, 2, None]), ((2.5, None), [2.5, None]),
    ((3, None), [3, None]),
    ((True, None), [True, None]),
    (("a", None), ["a", None]), ((np.float32(0.1), None), [float(np.float32(0.1)), None]),
])  # fmt: skip
def test_objects_become_the_type_that_all_have(values, wanted):
    found = unboxed(objects(*values))
    assert [None if pd.isna(value) else value for value in found] == wanted
    assert str(found.dtype) != "object"


def test_objects_of_float32_are_told_as_such():
    """Each may be one of several whole numbers from 2^24 on."""
    assert canonicalize(objects(np.float32(2**24), None), "here").exact == 2**24


@pytest.mark.parametrize("values", [
    (2**53, 1.5), (2**53 + 1, 0.5, None), (2**53 + 1, 2.0**53), (2**64, None), (2**63, 1), (-(2**63) - 1, None),
])  # fmt: skip
def test_objects_that_no_type_holds_are_refused_by_name(values):
    """2^64 ended in an OverflowError without the column."""
    column = objects(*values).rename("id")
    with pytest.raises(DataError, match="column 'id' holds"):
        canonicalize(column, "here")
    with pytest.raises(DataError, match="column 'id'"):
        Cast(["id"], "int64", nullable=True)(column.to_frame())


def test_floats_among_objects_are_floats_that_may_be_rounded():
    """They were taken for whole numbers, so that an id was found that may be another one."""
    ids = pd.DataFrame({"id": [2**53, 2**53 + 1]})
    known = Preprocessor(Schema((Column("id", "categorical", "int64"),), ())).fit([ids])
    with pytest.raises(DataError, match=r"2\^53"):
        known.pack(pd.DataFrame({"id": objects(float(2**53), None)}))


LISTS = [
    pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.uint64()), pa.large_list(pa.uint64()),
    pa.list_(pa.int64(), 2),
]  # fmt: skip


@pytest.mark.parametrize("kind", LISTS, ids=str)
@pytest.mark.parametrize("way", ["table", "file", "arrow frame", "objects"])
def test_elements_of_lists_beside_a_null_are_the_elements(kind, way, tmp_path):
    lists = [[A, None], [B, A], [A, B]]
    table = pa.table({"seen": pa.array(lists, kind)})
    pq.write_table(table, tmp_path / "lists.parquet")
    part = {
        "table": table,
        "file": ("pandas", str(tmp_path / "lists.parquet")),
        "arrow frame": pd.DataFrame({"seen": pd.arrays.ArrowExtensionArray(table.column("seen"))}),
        "objects": pd.DataFrame({"seen": lists}),
    }[way]
    workflow = Workflow([Categorify("seen", lists=True)]).fit([part])
    assert workflow.states[0].values.tolist() == [A, B]
    if way != "file":
        made = workflow.transform(part)["seen"]
        rows = made.to_pylist() if way == "table" else [list(row) for row in made]
        assert rows == [[3, 1], [4, 3], [3, 4]]


def counted(users, at) -> list[int]:
    """How many earlier rows a row has, by a slow loop over Python's numbers; 0 for a null."""
    return [
        sum(1 for other, then in zip(users, at, strict=True) if other == user and then < now) if user is not None else 0
        for user, now in zip(users, at, strict=True)
    ]


COLUMNS = {
    "int64": lambda values: pd.Series(values, dtype="int64"),
    "Int64": lambda values: pd.Series(values, dtype="Int64"),
    "uint64": lambda values: pd.Series(values, dtype="uint64"),
    "object": lambda values: pd.Series(values, dtype="object"),
    "arrow": lambda values: pd.Series(values, dtype="int64[pyarrow]"),
    "float64": lambda values: pd.Series([math.nan if value is None else value for value in values], dtype="float64"),
}


@pytest.mark.parametrize("first", ["int64", "Int64", "uint64", "object", "arrow"])
@pytest.mark.parametrize(("second", "users"), [
    ("int64", [A, B]), ("Int64", [A, None]), ("uint64", [A, B]), ("object", [A, None]), ("object", [None, None]),
    ("arrow", [A, None]), ("float64", [None, None]), ("float64", [7.0, None]),
])  # fmt: skip
def test_rows_and_their_history_may_be_of_other_types(first, second, users):
    earlier = [A, B, B, 7]
    workflow = Workflow([Rolling(**COUNT)])
    history = pd.DataFrame({"user": COLUMNS[first](earlier), "at": [1, 2, 3, 4]})
    rows = pd.DataFrame({"user": COLUMNS[second](users), "at": [9, 10]}).set_axis([5, 5])
    wanted = counted([*earlier, *users], [1, 2, 3, 4, 9, 10])
    assert workflow.transform(rows, history=history)["n"].tolist() == wanted[4:]
    parts = workflow.fit_transform([history, rows])
    assert [value for part in parts for value in part["n"]] == wanted


def test_floats_beside_ids_of_the_history_that_they_may_be_are_refused():
    """Both ids of the history were 2^53 as floats, and the row was told of two visits."""
    workflow = Workflow([Rolling(**COUNT)])
    history = pd.DataFrame({"user": [2**53, 2**53 + 1], "at": [1, 2]})
    for value in (float(2**53), 0.5):
        with pytest.raises(DataError, match=r"column 'user' .* reach 2\^53"):
            workflow.transform(pd.DataFrame({"user": [value, None], "at": [9, 9]}), history=history)
    small = pd.DataFrame({"user": [2**24 + 1], "at": [1]})
    with pytest.raises(DataError, match=r"column 'user' .* reach 2\^24"):
        workflow.transform(pd.DataFrame({"user": np.array([2**24], "float32"), "at": [9]}), history=small)


def test_a_label_of_rows_beside_their_history_may_be_null():
    """A column of None alone is of objects, and was refused as no number, though the docstring says it may be null."""
    rate = {"by": ["user"], "hits": "late", "output": "rate", "at": "at", "smoothing": 1.0}
    workflow = Workflow.from_steps([{"target_encoding": rate}], labels=["late"])
    history = pd.DataFrame({"user": ["a", "a", "b"], "at": [1, 2, 3], "late": [1, 0, 1]})
    rows = pd.DataFrame({"user": ["a", "b"], "at": [5, 5], "late": [None, None]})
    prior = 2 / 3
    made = workflow.transform(rows, history=history)["rate"]
    np.testing.assert_allclose(made, [(1 + prior) / (2 + 1), (1 + prior) / (1 + 1)], rtol=1e-6)


def test_stacked_frames_without_any_value_or_row():
    frames = [pd.DataFrame({"id": [None]}), pd.DataFrame({"id": []}), pd.DataFrame({"id": ["x"]})]
    assert stacked(frames, "here")["id"].tolist()[1:] == ["x"]
    assert len(stacked(frames[:2], "here")) == 1


def below(*columns):
    """Python's values of columns below each other, None for a null."""
    found = stacked([pd.DataFrame({"x": column}) for column in columns], "here")["x"]
    return [None if pd.isna(value) else value for value in found]


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_an_infinity_below_a_whole_number_that_floats_round_is_refused_by_name(infinity):
    """It ended in pandas' IntCastingNaNError."""
    with pytest.raises(DataError, match="here: column 'x'"):
        below(pd.Series([A]), pd.Series([infinity, 1.0]))


@pytest.mark.parametrize("first", [
    pd.Series([1, 2**63 + 1], dtype="uint64"), pd.Series([1, 2**63 + 1], dtype="UInt64"),
    pd.Series([1, 2**63 + 1], dtype="uint64[pyarrow]"),
], ids=lambda column: str(column.dtype))  # fmt: skip
@pytest.mark.parametrize("second", [
    pd.Series([7, 255], dtype="uint8"), pd.Series([2**64 - 1, None], dtype="UInt64"),
    pd.Series([2**64 - 1, 0], dtype="uint64"), pd.Series([None, 2**64 - 1], dtype="uint64[pyarrow]"),
    pd.Series([None, None], dtype="object"),
], ids=lambda column: str(column.dtype))  # fmt: skip
def test_unsigned_numbers_of_several_types_stay_what_they_are(first, second):
    """Those of 2^63 and beyond were refused."""
    expected = [None if pd.isna(value) else int(value) for column in (first, second) for value in column]
    assert below(first, second) == expected


def test_intervals_below_a_column_of_nulls_stay_intervals():
    """It ended in pandas' IntCastingNaNError."""
    intervals = pd.Series(pd.interval_range(0, 2))
    assert below(pd.Series([None]), intervals) == [None, *intervals]


@pytest.mark.parametrize(("masked", "arrow"), [
    ("Int64", pa.int64()), ("Int64", pa.float32()), ("Int16", pa.uint8()), ("Float64", pa.int16()),
    ("Float64", pa.float64()), ("boolean", pa.bool_()),
], ids=str)  # fmt: skip
def test_numbers_of_pandas_and_of_arrow_below_each_other_stay_numbers(masked, arrow):
    """pandas makes Python's objects of them, which operators refused as no number."""
    columns = [pd.Series([1, None], dtype=masked), pd.Series([0, None, 1], dtype=pd.ArrowDtype(arrow))]
    for pair in (columns, columns[::-1]):
        found = stacked([pd.DataFrame({"x": column}) for column in pair], "here")["x"]
        assert found.dtype.kind in "ifb"
        assert below(*pair) == [None if pd.isna(value) else value for column in pair for value in column]
    assert below(pd.Series([A, None], dtype="Int64"), pd.Series([B, A], dtype="int64[pyarrow]")) == [A, None, B, A]


def test_a_table_of_arrow_is_history_to_rows_of_pandas():
    rows = pd.DataFrame({"user": ["a", "b"], "at": [5, 6], "sales": pd.Series([4, None], dtype="Int64")})
    history = pa.table({"user": ["a", "a", "b"], "at": [1, 2, 3], "sales": pa.array([2, None, 8])})
    step = {"by": ["user"], "time": "at", "column": "sales", "window": 100, "statistic": "sum", "output": "n"}
    workflow = Workflow.from_steps([{"rolling": step}]).fit([rows])
    assert workflow.transform(rows, history=history)["n"].tolist() == [2.0, 8.0]
