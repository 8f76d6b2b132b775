"""ListSlice against Python's slices."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.lists.explode_lists import split_lists
from gigabatch.features.operators.lists.list_slice import ListSlice, _join_by_place, join_lists
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

BOUND = st.none() | st.integers(-5, 5)
WORDS = st.lists(st.none() | st.lists(st.sampled_from(["a", "bé", "", "12"]), min_size=1, max_size=5), max_size=9)
NUMBERS = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=8)


def text_of(rows, separator="|"):
    return pd.array([None if row is None else separator.join(row) for row in rows], dtype="str")


@given(rows=WORDS, start=BOUND, stop=BOUND, separator=st.sampled_from(["|", ", "]))
@settings(max_examples=examples(80), deadline=None)
def test_text_equals_pythons_slices_row_by_row(rows, start, stop, separator):
    frame = pd.DataFrame({"x": text_of(rows, separator)}, index=np.arange(len(rows)) * 2 + 1)
    found = assert_row_wise(ListSlice("x", start, stop, "part", separator=separator), frame)["part"]
    sliced = [row and row[start:stop] for row in rows]
    expected = [separator.join(row) if row else None for row in sliced]
    assert [None if pd.isna(value) else value for value in found] == expected
    assert str(found.dtype) == "str"


@given(rows=NUMBERS, start=BOUND, stop=BOUND)
@settings(max_examples=examples(80), deadline=None)
def test_columns_of_lists_equal_pythons_slices(rows, start, stop):
    frame = pd.DataFrame({"x": pd.Series(rows, dtype="object", index=np.arange(len(rows)) * 2 + 1)})
    found = ListSlice("x", start, stop, separator=None)(frame)["x"]
    assert [list(row) for row in found] == [row[start:stop] for row in rows]
    assert found.index.equals(frame.index)
    alone = [list(ListSlice("x", start, stop, separator=None)(frame.iloc[[k]])["x"].iloc[0]) for k in range(len(rows))]
    assert alone == [list(row) for row in found]


def test_ids_beyond_2_to_53_beside_a_null_stay_what_they_are():
    frame = pd.DataFrame({"x": [[2**60 + 1, None, 3], [5, 2**60 + 3], None]})
    found = ListSlice("x", 0, 2, separator=None)(frame)["x"]
    assert [row.tolist() for row in found] == [[2**60 + 1, None], [5, 2**60 + 3], []]
    padded = ListSlice("x", 1, 3, separator=None, pad=2**60 + 5)(frame)["x"]
    assert [row.tolist() for row in padded] == [[None, 3], [2**60 + 3, 2**60 + 5], [2**60 + 5, 2**60 + 5]]


SAME_SIDE = st.tuples(st.integers(0, 4), st.integers(1, 4)).map(lambda t: (t[0], t[0] + t[1])) | st.tuples(
    st.integers(-8, -4), st.none() | st.integers(-3, -1)
)


@given(rows=WORDS, bounds=SAME_SIDE)
@settings(max_examples=examples(60), deadline=None)
def test_padded_text_has_one_length(rows, bounds):
    start, stop = bounds
    frame = pd.DataFrame({"x": text_of(rows)})
    found = assert_row_wise(ListSlice("x", start, stop, pad="-"), frame)["x"]
    width = (stop or 0) - start
    expected = [((row or [])[start:stop] + ["-"] * width)[:width] for row in rows]
    assert found.tolist() == ["|".join(row) for row in expected]


@given(rows=NUMBERS, bounds=SAME_SIDE)
@settings(max_examples=examples(60), deadline=None)
def test_padded_lists_have_one_length(rows, bounds):
    start, stop = bounds
    width = (stop or 0) - start
    found = ListSlice("x", start, stop, pad=0, separator=None)(pd.DataFrame({"x": pd.Series(rows, dtype="object")}))[
        "x"
    ]
    assert [list(row) for row in found] == [(row[start:stop] + [0] * width)[:width] for row in rows]


def test_literal_slices_and_what_is_null():
    frame = pd.DataFrame({"x": ["1|2|3", "4", "", None], "y": 1})
    assert ListSlice("x", -2)(frame)["x"].fillna("null").tolist() == ["2|3", "4", "", "null"]
    assert ListSlice("x", 1)(frame)["x"].fillna("null").tolist() == ["2|3", "null", "null", "null"]
    assert ListSlice("x", 1, 3, pad="")(frame)["x"].tolist() == ["2|3", "|", "|", "|"]
    assert ListSlice("x", 0, 1)(frame.assign(x=[None] * 4))["x"].isna().all()
    lists = pd.DataFrame({"x": [[1, 2], None, []]})
    assert [list(row) for row in ListSlice("x", 1, separator=None)(lists)["x"]] == [[2], [], []]


@given(
    rows=st.lists(st.lists(st.sampled_from(["a", "", "bc"]), max_size=5), max_size=9),
    separator=st.sampled_from(["|", "--"]),
)
@settings(max_examples=examples(60), deadline=None)
def test_both_ways_to_join_equal_pythons(rows, separator):
    entries = pd.Series([entry for row in rows for entry in row], dtype="str")
    lengths = np.array([len(row) for row in rows], dtype="int64")
    expected = [separator.join(row) for row in rows]
    for join in (join_lists, _join_by_place):
        joined = join(entries, lengths, separator)
        assert joined.tolist() == expected
        assert str(joined.dtype) == "str"
    again, found = split_lists(pd.Series(expected, dtype="str"), "string", separator)
    assert [n for n in found if n] == [max(n, 1) for n in lengths]
    assert "".join(again) == "".join(entries)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1.5}, "start and stop are whole numbers or None, found 1.5"),
        ({"stop": True}, "whole numbers or None, found True"),
        ({"start": 1, "pad": "0"}, "must count from the same side .* found 1 to None"),
        ({"start": -3, "stop": 2, "pad": "0"}, "found -3 to 2"),
        ({"start": 3, "stop": 3, "pad": "0"}, "leave one entry or more"),
        ({"stop": 3, "pad": "a|b"}, r"pad is text without the separator '\|', found 'a\|b'"),
        ({"stop": 3, "pad": 0}, "pad is text"),
        ({"separator": ""}, "the separator must not be empty"),
    ],
)
def test_settings_without_meaning_are_an_error(options, message):
    with pytest.raises(DataError, match=f"ListSlice of 'x': .*{message}"):
        ListSlice("x", **options)


def test_columns_of_another_kind_are_an_error():
    with pytest.raises(DataError, match=r"ListSlice: column 'x' is int64, not delimited text"):
        ListSlice("x", 0, 1)(pd.DataFrame({"x": [1]}))
    with pytest.raises(DataError, match=r"ListSlice: not a column of lists \(column 'x' is int64"):
        ListSlice("x", 0, 1, separator=None)(pd.DataFrame({"x": [1]}))


@pytest.mark.parametrize(
    ("lists", "pad"),
    [
        ([[1, 2], [3]], "0"), ([[1, None], [3]], "0"), ([[1], [2]], 0.5), ([[1], [2]], 2**70), ([[1], [2]], True),
        ([["a"], ["b"]], 0), ([["a"], [None]], 0.0), ([[1.5], []], "x"), ([[True], [False]], 0), ([[1], None], 1e300),
        ([np.array([1, 2], "int8")], 1000), ([np.array([1.5], "float32")], 1e300), ([[1]], float("inf")),
    ],
)  # fmt: skip
def test_a_pad_that_could_be_no_entry_is_refused(lists, pad):
    with pytest.raises(DataError, match=rf"column 'x' holds lists of .*, and pad is {re.escape(repr(pad))}"):
        ListSlice("x", 0, 3, pad=pad, separator=None)(pd.DataFrame({"x": pd.Series(lists, dtype="object")}))


@pytest.mark.parametrize(
    ("lists", "pad"),
    [
        ([[1], [2]], 0),
        ([[1], [2]], -1.0),
        ([["a"]], "b"),
        ([[1.5]], 2),
        ([[True]], False),
        ([[1.5]], 2.5),
        ([None], "z"),
    ],
)
def test_a_pad_that_could_be_an_entry_is_taken(lists, pad):
    found = ListSlice("x", 0, 2, pad=pad, separator=None)(pd.DataFrame({"x": pd.Series(lists, dtype="object")}))["x"]
    assert [list(row) for row in found] == [([*(row or []), pad, pad])[:2] for row in lists]
