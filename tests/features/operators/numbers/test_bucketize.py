"""Bucketize against a loop over the edges."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.bucketize import Bucketize
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

NUMBERS = st.integers(-5, 5).map(float) | st.floats(-6, 6)


def test_edges_belong_to_the_bucket_on_their_right_and_null_is_0():
    values = [-math.inf, 9.9, 10.0, 19.0, 20.0, math.inf, None]
    found = Bucketize("x", (10, 20), "b")(pd.DataFrame({"x": values}, index=range(7, 0, -1)))
    assert found["b"].tolist() == [1, 1, 2, 2, 3, 3, 0]
    assert str(found["b"].dtype) == "int32"
    assert found.index.tolist() == [7, 6, 5, 4, 3, 2, 1]


@given(values=st.lists(st.none() | NUMBERS, max_size=10), edges=st.lists(NUMBERS, min_size=1, max_size=5, unique=True))
@settings(max_examples=examples(60), deadline=None)
def test_any_values_as_by_a_loop_row_by_row(values, edges):
    frame = pd.DataFrame({"x": pd.Series(values, dtype="float64")})
    found = assert_row_wise(Bucketize("x", sorted(edges)), frame)
    assert found["x"].tolist() == [0 if v is None else 1 + sum(edge <= v for edge in edges) for v in values]


def test_integers_with_nulls_are_taken():
    assert Bucketize("x", [3])(pd.DataFrame({"x": pd.array([2, 3, None], dtype="Int32")}))["x"].tolist() == [1, 2, 0]
    assert Bucketize("x", [3])(pd.DataFrame({"x": np.array([2, 3], dtype="int8")}))["x"].tolist() == [1, 2]


@pytest.mark.parametrize("edges", [(), (1, 1), (2, 1), (math.nan,), (0, math.inf)])
def test_edges_that_do_not_increase_are_an_error(edges):
    with pytest.raises(DataError, match="Bucketize of 'x': edges must be"):
        Bucketize("x", edges)
