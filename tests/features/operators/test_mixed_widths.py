"""Keys of two widths: alike where the values are, refused where a narrow float may be a wider number rounded."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.columns.categories import same_kind
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.operators import (
    Categorify,
    CountEncoding,
    FoldedTargetEncoding,
    JoinExternal,
    JoinGroupby,
    LastBefore,
)

BIG = 2**24 + 1  # float32 makes it 2^24
OPERATORS = {
    "CountEncoding": lambda table: CountEncoding(table, ["key"], "found", at="at"),
    "LastBefore": lambda table: LastBefore(table, ["key"], {"value": "found"}, at="at", order="at"),
    "JoinExternal": lambda table: JoinExternal(table, ["key"], {"value": "found"}),
}


def rows(values, dtype, at):
    return pd.DataFrame({"key": np.array(values, dtype), "at": at, "value": 10 + np.arange(len(values))})


def looked_up(name, table, asked):
    """(values, dtype) of the table's keys and of the asked ones -> what a left join finds."""
    return OPERATORS[name](rows(*table, 1))(rows(*asked, 9))["found"]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    ("table", "asked"),
    [
        (([0.1, 3.0], "float64"), ([0.1, 3.0], "float32")),
        (([0.1, 3.0], "float32"), ([0.1, 3.0], "float64")),
        (([0.1, 3.0], "float16"), ([0.1, 3.0], "float32")),
        (([0.1, 3.0], "float64"), ([0.1, 3.0], "float16")),
        (([BIG, 3], "float32"), ([BIG, 3], "int64")),
        (([BIG, 3], "int32"), ([BIG, 3], "float32")),
        (([2049, 3], "float16"), ([2049, 3], "int32")),
    ],
    ids=str,
)
def test_a_key_that_is_rounded_on_one_side_is_refused_not_missed(name, table, asked):
    with pytest.raises(DataError, match=r"column 'key'.*rounded"):
        looked_up(name, table, asked)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("table", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("asked", ["float32", "float64", "int32", "int64", "uint8"])
def test_keys_that_both_widths_hold_are_found_as_pandas_merge_finds_them(name, table, asked):
    left, right = ([5, 1, 3, 3, 7], asked), ([3, 1, 200], table)
    merged = rows(*left, 9)[["key"]].astype("float64").merge(rows(*right, 1).astype({"key": "float64"}), "left", "key")
    expected = merged["value"].notna().astype(float) if name == "CountEncoding" else merged["value"]
    found = looked_up(name, right, left).astype("float64")
    assert found.fillna(-1).tolist() == expected.fillna(-1).tolist()


def test_a_number_beyond_what_the_other_side_holds_is_just_not_found():
    """Floats of 2^24 and beyond, and no whole number that large that they could have been."""
    question = AsOfJoin(
        rows([1, 3], "int64", 9), rows([2**24, 3], "float32", 1), by=["key"], query_time="at", event_time="at"
    )
    assert question.count().tolist() == [0, 1]


@pytest.mark.parametrize(
    "operator", [JoinGroupby(["key"], ["value"], ["count"]), FoldedTargetEncoding(["key"], ["value"], "at", 2),
                 Categorify("key")], ids=lambda operator: type(operator).__name__
)  # fmt: skip
@pytest.mark.parametrize(
    ("parts", "types"), [([0.1, 0.2, 3.0], ("float32", "float64")), ([0.1, 0.2, 3.0], ("float64", "float32"))], ids=str
)
def test_parts_of_two_widths_are_no_two_groups_of_one_value(operator, parts, types):
    narrow, wide = (rows(parts, dtype, [1, 2, 3]) for dtype in types)
    with pytest.raises(DataError, match="rounded"):
        operator.fit([narrow, wide])
    operator.fit([wide, wide])


def test_whole_numbers_below_2_24_stand_beside_float32():
    left, right = same_kind(pd.Series([5, 2**24 - 1]), pd.Series([5.0], dtype="float32"), "Test")
    assert (str(left.dtype), str(right.dtype)) == ("float64", "float64")
    with pytest.raises(DataError, match=r"2\^24"):
        same_kind(pd.Series([BIG], name="id"), pd.Series([BIG], dtype="float32", name="id"), "Test")


@pytest.mark.parametrize("dtype", ["uint64", "UInt64"])
@pytest.mark.parametrize("swap", [False, True])
def test_whole_numbers_beyond_int64_are_refused_beside_others_in_place_of_wrapping_round(dtype, swap):
    values = [2**63 + 1, 1] if dtype == "uint64" else [2**63 + 1, None]
    pair = pd.Series(values, dtype=dtype, name="id"), pd.Series([1, None], dtype="Int64", name="id")
    with pytest.raises(DataError, match=r"Test: column 'id' holds integers of 2\^63 and beyond. Read them as text."):
        same_kind(*(pair[::-1] if swap else pair), "Test")
    kept = pd.Series([2**63 - 1, *values[1:]], dtype=dtype, name="id")
    left, right = same_kind(kept, pair[1], "Test")
    assert left.dropna().astype("int64").tolist() == [2**63 - 1, *[v for v in values[1:] if v]]
    assert right.dropna().astype("int64").tolist() == [1]
