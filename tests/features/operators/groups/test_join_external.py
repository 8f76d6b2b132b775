"""JoinExternal: rows, order and index stay; a key is found once or not at all."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.count_encoding import LastBefore
from tests.examples import examples

PLANES = pd.DataFrame({"tail": ["N1", "N2", None], "seats": [50.0, 180.0, 9.0], "year": [1999, 2004, 1970]})


@given(keys=st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 3)))))
@settings(max_examples=examples(40), deadline=None)
def test_two_key_columns_equal_a_dictionary_lookup(keys):
    frame = pd.DataFrame(keys, columns=["place", "hour"]).astype({"place": "str", "hour": "float64"})
    table = pd.DataFrame(
        [(p, float(h), 10 * h + ord(p)) for p in "abc" for h in (0, 1, 3)], columns=["place", "hour", "t"]
    )
    frame.index = np.arange(len(frame))[::-1] // 2
    known = {(p, h): t for p, h, t in table.itertuples(index=False)}
    found = JoinExternal(table.sample(frac=1, random_state=1), ("place", "hour"), {"t": "temp"})(frame)
    pd.testing.assert_index_equal(found.index, frame.index)
    assert list(found.columns) == ["place", "hour", "temp"]
    expected = [known.get((p, h), np.nan) for p, h in zip(frame["place"], frame["hour"], strict=True)]
    np.testing.assert_array_equal(found["temp"].astype("float64"), np.array(expected, dtype="float64"))


def test_duplicate_keys_are_an_error_with_an_example():
    twice = pd.DataFrame({"tail": ["N1", "N2", "N2"], "seats": [1, 2, 3]})
    with pytest.raises(DataError, match=r"JoinExternal of planes: 1 duplicate key.*'tail': 'N2'"):
        JoinExternal(twice, ("tail",), {"seats": "seats"}, "planes")


def test_a_missing_column_of_the_table_is_named():
    with pytest.raises(
        DataError, match=r"JoinExternal of planes: column.* 'engines' not found.*'tail', 'seats', 'year'"
    ):
        JoinExternal(PLANES, ("tail",), {"engines": "engines"}, "planes")


WIDE = pd.DataFrame({
    "key": [1, 2], "id": [2**60 + 1, 2**60 + 3], "small": pd.Series([3, 4], dtype="uint8"), "flag": [True, False],
    "text": pd.Series(["a", "b"], dtype="str"), "x": [0.5, 1.5],
})  # fmt: skip
TYPES = {"id": "Int64", "small": "UInt8", "flag": "boolean", "text": "str", "x": "float64"}


@pytest.mark.parametrize("keys", [[1, 2], [2, 9], [9], []], ids=str)
@pytest.mark.parametrize("table", [WIDE, WIDE.iloc[:0]], ids=["table", "empty table"])
def test_types_follow_from_the_table_alone_and_ids_keep_every_digit(table, keys):
    frame = pd.DataFrame({"key": pd.Series(keys, dtype="int64")})
    found = JoinExternal(table, ["key"], {name: name for name in TYPES})(frame)
    assert {name: str(found[name].dtype) for name in TYPES} == TYPES
    known = dict(zip(table["key"], table["id"], strict=True))
    assert [None if value is pd.NA else value for value in found["id"]] == [known.get(key) for key in keys]


def test_a_key_may_be_taken_and_replaced():
    cities = pd.DataFrame({"city": ["Oslo", "Bonn"], "mayor": ["A", "B"]})
    frame = pd.DataFrame({"city": ["Bonn", "Rome"]})
    assert JoinExternal(cities, ["city"], {"city": "known", "mayor": "city"})(frame).fillna("-").to_dict("list") == {
        "city": ["B", "-"], "known": ["Bonn", "-"],
    }  # fmt: skip


def test_a_key_of_another_kind_and_none_are_refused_by_name():
    with pytest.raises(DataError, match=r"JoinExternal of planes: column 'tail' holds whole numbers .* text .*Cast"):
        JoinExternal(PLANES, ["tail"], {"seats": "seats"}, "planes")(pd.DataFrame({"tail": [1]}))
    with pytest.raises(DataError, match="one or more key columns, found 'tail'"):
        JoinExternal(PLANES, "tail", {"seats": "seats"})


def test_a_null_of_a_dictionary_of_arrow_stays_one():
    """pandas' `where` gave it the last value of the dictionary, as soon as another row was not found."""
    table = pa.table({"key": [1, 2, 3], "word": pa.array(["a", None, "c"]).dictionary_encode()})
    table = table.to_pandas(types_mapper=pd.ArrowDtype)
    frame = pd.DataFrame({"key": [2, 9, 1]})
    joined = JoinExternal(table, ["key"], {"word": "word"})(frame)["word"]
    assert joined.fillna("-").tolist() == ["-", "-", "a"]
    last = LastBefore(table.assign(at=1), ["key"], {"word": "word"}, at="at", order="at")(frame.assign(at=2))["word"]
    assert last.fillna("-").tolist() == ["-", "-", "a"]


@pytest.mark.parametrize("columns", [["seats"], "seats"])
def test_columns_without_their_names_here_are_refused(columns):
    with pytest.raises(DataError, match=r"columns gives what to take .*found"):
        JoinExternal(PLANES, ["tail"], columns)
