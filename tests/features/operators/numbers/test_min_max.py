"""MinMax against scikit-learn's MinMaxScaler."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.min_max import MinMax
from tests.examples import examples

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


def frame_of(values, dtype="float64"):
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


@given(values=NUMBERS)
@settings(max_examples=examples(60), deadline=None)
def test_scaled_values_equal_scikit_learn(values):
    frame = frame_of(values)
    operator = MinMax("x")
    found = operator.apply(frame, operator.fit([frame]))["x"]
    expected = MinMaxScaler().fit_transform(frame[["x"]].to_numpy())[:, 0]
    assert str(found.dtype) == "float32"
    spread = float(np.ptp(frame["x"].to_numpy()))
    # scikit-learn multiplies by a reciprocal and adds an offset, so it cancels where the values are large.
    slack = 1e-15 * np.abs(values).max() / spread if spread else 0
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-7 + 10 * slack)


def test_literal_values_outside_the_fit_are_not_clipped():
    operator = MinMax("x")
    frame = frame_of([-5, 0, 2.5, 10, 20]).set_axis([4, 4, 1, 0, 9])
    found = operator.apply(frame, operator.fit([frame_of([0, 10])]))
    assert found["x"].tolist() == [-0.5, 0, 0.25, 1, 2]
    assert found.index.tolist() == [4, 4, 1, 0, 9]
    assert frame["x"].iloc[0] == -5


def test_whole_numbers_above_float32_are_subtracted_in_float64():
    frame = frame_of([2**24 + 1, 2**24 + 2, 2**24 + 5], "int64")
    operator = MinMax("x")
    assert operator.apply(frame, operator.fit([frame]))["x"].tolist() == [0, 0.25, 1]


@pytest.mark.parametrize("value", [5.0, 0.1, 0.0])
def test_a_constant_column_becomes_zero(value):
    frame, operator = frame_of([value] * 7), MinMax("x")
    assert operator.apply(frame, operator.fit([frame]))["x"].tolist() == [0] * 7


def test_a_range_beyond_float64_is_an_error():
    with pytest.raises(DataError, match=r"spans -1.7e\+308 to 1.7e\+308"):
        MinMax("x").fit([frame_of([-1.7e308, 1.7e308])])
