"""Lag against pandas' shift of rows and of times, within sorted groups."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators import Lag
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.none() | st.floats(-9, 9)))
DAY = 86_400_000_000


def of(rows, seed, gaps):
    frame = pd.DataFrame(rows, columns=["k", "j", "x"]).astype({"k": "str", "j": "int64", "x": "float64"})
    frame.index = np.arange(len(frame))[::-1] * 2
    times = np.random.default_rng(seed).permutation(len(frame) * gaps)[: len(frame)]
    return frame.assign(at=times.astype("int64"))


@given(rows=ROWS, periods=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=examples(80), deadline=None)
def test_periods_are_a_shift_within_sorted_groups(rows, periods, seed):
    frame = of(rows, seed, gaps=3)
    found = Lag(["k", "j"], "at", "x", "lag", periods)(frame)
    expected = frame.sort_values("at").groupby(["k", "j"])["x"].shift(periods).reindex(frame.index)
    np.testing.assert_array_equal(found["lag"], expected)
    pd.testing.assert_frame_equal(found[["k", "j", "x", "at"]], frame)


@given(rows=ROWS, span=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=examples(80), deadline=None)
def test_a_span_is_a_shift_of_the_times(rows, span, seed):
    frame = of(rows, seed, gaps=2)
    found = Lag(["k", "j"], "at", "x", "lag", span=span)(frame)
    shifted = frame[frame["k"].notna()].assign(at=frame["at"] + span)[["k", "j", "at", "x"]]
    expected = frame[["k", "j", "at"]].merge(shifted, on=["k", "j", "at"], how="left")["x"]
    np.testing.assert_array_equal(found["lag"], expected)


@pytest.mark.parametrize("dtype", ["float32", "int64", "Int64", "bool", "boolean", "str", "category", "datetime64[us]"])
def test_a_value_keeps_its_type(dtype):
    values = pd.Series([1, 0, 1, 1]).astype("str" if dtype in ("str", "category") else "int64").astype(dtype)
    found = Lag(["k"], "at", "x", "lag")(pd.DataFrame({"k": ["a", "a", "b", "a"], "at": [3, 1, 1, 2], "x": values}))
    expected = [values[3], None, None, values[1]]
    assert [None if pd.isna(one) else one for one in found["lag"]] == expected
    assert str(found["lag"].dtype) == {"int64": "Int64", "bool": "boolean"}.get(dtype, dtype)


def test_whole_numbers_that_floats_would_round_stay():
    frame = pd.DataFrame({"k": "a", "at": [1, 2], "x": [2**60 + 1, 2**60 + 3]})
    assert Lag(["k"], "at", "x", "lag")(frame)["lag"][1] == 2**60 + 1


def test_rows_of_one_time_see_neither_each_other_nor_themselves():
    rows = pd.DataFrame({"k": "a", "at": [1, 2, 2, 3], "row": [0, 2, 1, 3], "x": [10.0, 30.0, 20.0, 40.0]})
    for one in (rows, rows.iloc[::-1], rows.sample(frac=1, random_state=3)):
        found = Lag(["k"], "at", "x", "lag", order="row")(one).sort_values(["at", "row"])
        np.testing.assert_array_equal(found["lag"], [np.nan, 10, 10, 30])
        second = Lag(["k"], "at", "x", "lag", 2, order="row")(one).sort_values(["at", "row"])
        np.testing.assert_array_equal(second["lag"], [np.nan, np.nan, np.nan, 20])
        before = Lag(["k"], "at", "x", "lag", span=1, order="row")(one).sort_values(["at", "row"])
        np.testing.assert_array_equal(before["lag"], [np.nan, 10, 10, 30])
    with pytest.raises(DataError, match=r"not unique within groups of \['k'\].*such as order: row_number"):
        Lag(["k"], "at", "x", "lag")(rows)
    with pytest.raises(DataError, match=r"columns \['at', 'row'\] are not unique"):
        Lag(["k"], "at", "x", "lag", span=1, order="row")(rows.assign(row=1))


@pytest.mark.parametrize("span", [2**62, 2**63 - 1])
def test_a_span_that_leaves_int64_finds_nothing(span):
    frame = pd.DataFrame({"k": "a", "at": [-(2**62), 0, 2**62], "x": [1.0, 2.0, 3.0]})
    found = Lag(["k"], "at", "x", "lag", span=span)(frame)["lag"]
    np.testing.assert_array_equal(found, [np.nan, 1.0, 2.0] if span == 2**62 else [np.nan] * 3)


def test_what_is_not_earlier_is_refused():
    with pytest.raises(DataError, match="periods must be at least 1, found 0: later rows"):
        Lag(["k"], "at", "x", "lag", 0)
    with pytest.raises(DataError, match="span must be at least 1, found -1"):
        Lag(["k"], "at", "x", "lag", span=-1)
    with pytest.raises(DataError, match="either periods, a number of rows, or span, a time; found both"):
        Lag(["k"], "at", "x", "lag", 2, span=7)
    with pytest.raises(DataError, match="span is '7d', and column 'at' holds numbers"):
        Lag(["k"], "at", "x", "lag", span="7d")(pd.DataFrame({"k": ["a"], "at": [1], "x": [1.0]}))


def test_a_span_of_a_datetime_has_a_unit_and_a_lagged_time_stays_one():
    step = {"lag": {"by": ["k"], "time": "at", "column": "at", "span": "7d", "output": "week"}}
    window = {
        "rolling": {"by": ["k"], "time": "week", "column": "x", "window": "1d", "statistic": "sum", "output": "s"}
    }
    steps = Workflow.from_steps([step, window]).steps
    workflow = Workflow(steps, dtypes={"at": "datetime"})
    assert [workflow.steps[0].span, workflow.steps[1].window] == [7 * DAY, DAY]
    frame = pd.DataFrame({"k": "a", "at": [0, DAY, 7 * DAY], "x": 1.0})
    assert workflow.steps[0](frame)["week"].isna().tolist() == [True, True, False]
