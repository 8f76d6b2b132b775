"""Clip against Python's min and max."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.clip import Clip
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "float32", "float64", "Int64"])
def test_the_type_stays(dtype):
    found = Clip("x", 2, 5.0)(pd.DataFrame({"x": pd.Series([1, 3, 9], dtype=dtype)}))["x"]
    assert str(found.dtype) == dtype
    assert found.tolist() == [2, 3, 5]


@given(values=st.lists(st.none() | st.floats(-9, 9) | st.sampled_from([-math.inf, math.inf]), max_size=10),
       bounds=st.tuples(*[st.floats(-9, 9)] * 2), given=st.sampled_from(["both", "low", "high"]))  # fmt: skip
@settings(max_examples=examples(50), deadline=None)
def test_any_values_as_by_a_loop_row_by_row(values, bounds, given):
    low, high = sorted(bounds)
    low, high = (-math.inf if given == "high" else low), (math.inf if given == "low" else high)
    bounds = (None if abs(bound) == math.inf else bound for bound in (low, high))
    found = assert_row_wise(Clip("x", *bounds), pd.DataFrame({"x": pd.Series(values, dtype="float64")}))
    np.testing.assert_array_equal(found["x"], [math.nan if v is None else min(max(v, low), high) for v in values])


@pytest.mark.parametrize("bounds", [(None, None), (2, 1), (math.nan, 1), (0, math.inf)])
def test_bounds_without_meaning_are_an_error(bounds):
    with pytest.raises(DataError, match="Clip of 'x': give low, high or both"):
        Clip("x", *bounds)


@pytest.mark.parametrize(
    ("dtype", "bound"), [("int64", 0.5), ("int8", 300), ("int64", 2**63), ("uint32", -1), ("float32", 1e300)]
)
def test_a_bound_that_the_type_cannot_hold_is_an_error(dtype, bound):
    with pytest.raises(DataError, match=rf"column 'x' is {dtype}, which cannot hold the bound"):
        Clip("x", bound)(pd.DataFrame({"x": pd.Series([1], dtype=dtype)}))
