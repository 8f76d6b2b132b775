"""Filter against Python's own comparisons in a loop."""

import operator
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.filter import Filter
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

PYTHON = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
OPS = st.sampled_from(list(PYTHON))


def kept(values, op, value):
    """Row numbers that a loop keeps; Python compares an integer with a float exactly."""
    if op == "in":
        return [k for k, v in enumerate(values) if v is not None and v in value]
    if op == "not_in":
        return [k for k, v in enumerate(values) if v is not None and v not in value]
    return [k for k, v in enumerate(values) if v is not None and PYTHON[op](v, value)]


def check(column, values, op, value):
    frame = pd.DataFrame({"x": column, "row": np.arange(len(values))}, index=np.arange(len(values)) * 2 + 1)
    found = assert_row_wise(Filter("x", op, value), frame)
    assert found["row"].tolist() == kept(values, op, value)
    assert found.index.tolist() == [2 * row + 1 for row in found["row"]]
    pd.testing.assert_frame_equal(found, frame.loc[found.index])


NUMBERS = st.one_of(st.integers(-5, 5), st.floats(-5, 5), st.sampled_from([-0.5, 0.5, 2.5, 300, -129, 2**63, -(2**70)]))


@given(values=st.lists(st.integers(-5, 5), max_size=9), op=OPS, value=NUMBERS)
@settings(max_examples=examples(40), deadline=None)
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_integers_against_any_number_as_by_a_loop(dtype, values, op, value):
    check(pd.Series(values, dtype=dtype).to_numpy(), values, op, value)


@given(values=st.lists(st.none() | st.floats(-5, 5), max_size=9), op=OPS, value=st.floats(-5, 5) | st.integers(-5, 5))
@settings(max_examples=examples(80), deadline=None)
def test_floats_with_nulls_as_by_a_loop(values, op, value):
    check(np.array(values, dtype="float64"), values, op, value)


@given(
    values=st.lists(st.none() | st.text("aBé|\U0001f600", max_size=2), max_size=9),
    op=OPS,
    value=st.text("aBé", max_size=2),
)
@settings(max_examples=examples(60), deadline=None)
def test_text_as_by_a_loop(values, op, value):
    check(pd.array(values, dtype="str"), values, op, value)
    check(pd.Categorical(values), values, op, value)


@given(
    values=st.lists(st.none() | st.integers(2**62, 2**62 + 3), max_size=9),
    op=st.sampled_from(["in", "not_in"]),
    asked=st.lists(st.integers(2**62, 2**62 + 3) | st.just(0.5), min_size=1, max_size=3),
)
@settings(max_examples=examples(60), deadline=None)
def test_membership_of_large_nullable_integers_as_by_a_loop(values, op, asked):
    check(pd.array(values, dtype="Int64"), values, op, asked)


def test_null_tests_keep_nulls_or_the_rest():
    frame = pd.DataFrame({"x": [1.0, None, np.nan, np.inf]})
    assert assert_row_wise(Filter("x", "is_null"), frame).index.tolist() == [1, 2]
    assert assert_row_wise(Filter("x", "not_null"), frame).index.tolist() == [0, 3]


def test_float32_is_compared_as_the_number_that_it_holds():
    values = np.array([0.1, 0.5], dtype="float32")
    frame = pd.DataFrame({"x": values})
    assert Filter("x", "==", 0.1)(frame)["x"].tolist() == []
    assert Fraction(float(values[0])) > Fraction(0.1)
    assert Filter("x", ">", 0.1)(frame).index.tolist() == [0, 1]


def test_booleans_by_equality():
    for column in (np.array([True, False, True]), pd.array([True, False, None], dtype="boolean")):
        frame = pd.DataFrame({"x": column})
        assert Filter("x", "==", True)(frame).index.tolist() == [
            k for k in range(3) if column[k] is not pd.NA and column[k]
        ]
        assert Filter("x", "not_in", [True])(frame).index.tolist() == [1]
    with pytest.raises(DataError, match="column 'x' is bool, which cannot be compared by '<' with True"):
        Filter("x", "<", True)(pd.DataFrame({"x": [True]}))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (["a"], 1), (["a"], True), ([1], "1"), ([1.5], "1.5"), ([1], True), ([True], 1),
        (pd.to_datetime(["2020-01-01"]), "2020"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_an_error_not_a_silent_no(column, value):
    with pytest.raises(DataError, match=r"Filter: column 'x' is .*, which cannot be compared by '==' with"):
        Filter("x", "==", value)(pd.DataFrame({"x": column}))


def test_a_whole_number_that_floats_skip_is_an_error():
    with pytest.raises(DataError, match="column 'x' is float64, which skips the number 9007199254740993"):
        Filter("x", "==", 2**53 + 1)(pd.DataFrame({"x": [1.0]}))


@pytest.mark.parametrize(
    ("op", "value", "message"),
    [
        ("=", 1, "unknown op. Known: ==, !=, <, <=, >, >=, in, not_in, is_null, not_null"),
        ("==", None, "compares with text, finite numbers and booleans, found None"),
        ("==", float("nan"), "found nan"),
        ("<", float("inf"), "found inf"),
        ("==", 10**400, "found 1000"),
        ("==", [1], r"found \[1\]"),
        ("in", 1, "give a list of one or more values, found 1"),
        ("in", "abc", "give a list of one or more values, found 'abc'"),
        ("in", [], "give a list"),
        ("in", [1, None], "found None"),
        ("is_null", 1, "takes no value, found 1"),
    ],
)  # fmt: skip
def test_a_condition_without_meaning_is_an_error(op, value, message):
    with pytest.raises(DataError, match=f"Filter of 'x' by '{op}': .*{message}"):
        Filter("x", op, value)
