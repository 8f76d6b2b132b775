"""Log against Python's math."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.log import Log
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

VALUES = st.none() | st.floats(-0.99, 1e12) | st.just(math.inf)


@given(values=st.lists(VALUES, max_size=10), offset=st.sampled_from([1.0, 1, 2.5]))
@settings(max_examples=examples(50), deadline=None)
def test_any_values_as_by_a_loop_row_by_row(values, offset):
    frame = pd.DataFrame({"x": pd.Series(values, dtype="float64", index=range(len(values), 0, -1))})
    found = assert_row_wise(Log("x", offset=offset), frame)
    assert str(found["x"].dtype) == "float32"
    expected = [math.nan if v is None else math.log1p(v) if offset == 1 else math.log(v + offset) for v in values]
    np.testing.assert_allclose(found["x"], expected, rtol=2e-7, atol=1e-38)  # below lie float32's subnormals


def test_beyond_the_domain_is_an_error_or_null_by_choice():
    frame = pd.DataFrame({"x": [-1.0, -2.0, 1.0, -math.inf]})
    with pytest.raises(DataError, match=r"column 'x' \+ 1.0 is not above 0 in 3 row.*invalid='null'"):
        Log("x")(frame)
    found = Log("x", invalid="null")(frame)["x"]
    np.testing.assert_allclose(found, [np.nan, np.nan, math.log(2), np.nan], rtol=1e-7)


def test_wrong_settings_and_columns_are_errors():
    with pytest.raises(DataError, match=r"unknown invalid='skip'. Known: error, null"):
        Log("x", invalid="skip")
    with pytest.raises(DataError, match="offset must be a finite number"):
        Log("x", offset=math.nan)
    with pytest.raises(DataError, match="Log: column 'x' is str, not a number"):
        Log("x")(pd.DataFrame({"x": pd.Series(["a"], dtype="str")}))
