"""Difference: one column less another, in float64."""

import numpy as np
import pandas as pd

from gigabatch.features.operators.numbers.difference import Difference


def test_subtracts_before_it_rounds_and_keeps_nulls():
    # Both numbers are odd and above 2**24: rounded to float32 first, the difference would be 0 or 4.
    frame = pd.DataFrame({"left": [22_600_003, 1, 2], "right": [22_600_001.0, np.nan, 5.0]}, index=[9, 8, 7])
    found = Difference("left", "right", "gap")(frame)
    np.testing.assert_array_equal(found["gap"], np.array([2, np.nan, -3], dtype="float32"))
    assert str(found["gap"].dtype) == "float32"
    assert list(frame.columns) == ["left", "right"]
    assert found.index.tolist() == [9, 8, 7]


def test_whole_numbers_that_a_float_would_round_lose_nothing():
    day = 1_700_000_000_000_000_000
    left = pd.Series([day + 7, 2**62 + 1, -(2**62) - 3, 2**53 + 1, None, 5], dtype="Int64")
    right = pd.Series([day, 2**62, -(2**62), 2**53, day, day], dtype="int64")
    found = Difference("left", "right", "gap")(pd.DataFrame({"left": left, "right": right}))["gap"]
    np.testing.assert_array_equal(found, np.array([7, 1, -3, 1, np.nan, 5 - day], dtype="float32"))
    unsigned = pd.DataFrame({"left": np.array([2**64 - 1], "uint64"), "right": np.array([2**64 - 3], "uint64")})
    assert Difference("left", "right", "gap")(unsigned)["gap"].tolist() == [2.0]
