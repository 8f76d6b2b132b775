"""DifferenceLag against pandas' sort, group and shift."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.difference_lag import DifferenceLag
from gigabatch.features.recipes.carrying import leading_steps
from tests.examples import examples

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.none() | st.floats(-9, 9)))


@given(rows=ROWS, lag=st.integers(-4, 4).filter(bool), seed=st.integers(0, 99))
@settings(max_examples=examples(80), deadline=None)
def test_equals_the_difference_from_a_shift_within_sorted_groups(rows, lag, seed):
    frame = pd.DataFrame(rows, columns=["k", "j", "x"]).astype({"k": "str", "j": "int64", "x": "float64"})
    frame.index = np.arange(len(frame))[::-1] * 2
    frame["at"] = np.random.default_rng(seed).permutation(len(frame)).astype("int64")
    found = DifferenceLag(("k", "j"), "at", "x", "d", lag)(frame)
    grouped = frame.sort_values("at").groupby(["k", "j"])["x"]
    expected = (frame["x"] - grouped.shift(lag)).reindex(frame.index).astype("float32")
    np.testing.assert_array_equal(found["d"], expected)
    assert str(found["d"].dtype) == "float32"
    pd.testing.assert_frame_equal(found[["k", "j", "x", "at"]], frame)


def test_a_repeated_order_within_a_group_is_an_error_across_groups_it_is_not():
    frame = pd.DataFrame({"k": ["a", "b", "a"], "at": [1, 1, 2], "x": [1, 2, 3]})
    assert DifferenceLag(("k",), "at", "x", "d")(frame)["d"].tolist()[2] == 2
    with pytest.raises(DataError, match=r"'at' is not unique within groups of \['k'\]: 1 repeat\(s\), for example 1"):
        DifferenceLag(("k",), "at", "x", "d")(frame.assign(k="a"))


def test_a_lag_of_zero_is_an_error():
    with pytest.raises(DataError, match=r"lag must not be 0"):
        DifferenceLag(("k",), "at", "x", "d", 0)


def test_a_lead_warns_once_of_a_leak(caplog):
    frame = pd.DataFrame({"k": ["a", "b", "a"], "at": [1, 1, 2], "x": [5, 9, 7]})
    step = DifferenceLag(("k",), "at", "x", "until the next", -1)
    for _ in range(2):
        np.testing.assert_array_equal(step(frame)["until the next"], np.float32([-2, np.nan, np.nan]))
    assert [record.message.partition(".")[0] for record in caplog.records] == [
        "DifferenceLag of 'until the next' looks at later rows (its lag is negative)"
    ]


def test_rows_of_a_lead_are_not_finished_before_later_ones_come():
    back, ahead = (DifferenceLag(("k",), "at", "x", "d", lag) for lag in (1, -1))
    assert leading_steps([back], ["k"]) == 1
    assert leading_steps([ahead], ["k"]) == leading_steps([ahead, back], ["k"]) == 0


@pytest.mark.parametrize("dtype", ["int64", "Int64"])
def test_times_in_nanoseconds_lose_nothing(dtype):
    day = 1_700_000_000_000_000_000
    frame = pd.DataFrame({"k": "a", "at": [1, 2, 3], "x": pd.Series([day, day + 7, day + 8], dtype=dtype)})
    assert DifferenceLag(("k",), "at", "x", "d")(frame)["d"].tolist()[1:] == [7.0, 1.0]
