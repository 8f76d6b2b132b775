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
