"""Bucketize against a loop over the edges."""

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.bucketize import Bucketize
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

NUMBERS = st.integers(-5, 5).map(float) | st.floats(-6, 6)


@given(
    values=st.lists(st.none() | NUMBERS | st.sampled_from([-math.inf, math.inf]), max_size=10),
    edges=st.lists(NUMBERS, min_size=1, max_size=5, unique=True),
)
@settings(max_examples=examples(60), deadline=None)
def test_any_values_as_by_a_loop_row_by_row(values, edges):
    frame = pd.DataFrame({"x": pd.Series(values, dtype="float64", index=range(len(values), 0, -1))})
    found = assert_row_wise(Bucketize("x", sorted(edges)), frame)
    assert str(found["x"].dtype) == "int32"
    assert found["x"].tolist() == [0 if v is None else 1 + sum(edge <= v for edge in edges) for v in values]


@pytest.mark.parametrize("edges", [(), (1, 1), (2, 1), (math.nan,), (0, math.inf)])
def test_edges_that_do_not_increase_are_an_error(edges):
    with pytest.raises(DataError, match="Bucketize of 'x': edges must be"):
        Bucketize("x", edges)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64"])
def test_whole_numbers_of_2_to_the_53_and_beyond_are_compared_without_rounding(dtype):
    edges = [2.5, 2**53, 2**53 + 1, 2**60 + 1, 2.0**63]
    values = [2, 3, 2**53 - 1, 2**53, 2**53 + 1, 2**60, 2**60 + 1, 2**63 - 1]
    found = Bucketize("x", edges)(pd.DataFrame({"x": pd.Series(values, dtype=dtype)}))
    assert found["x"].tolist() == [1 + sum(edge <= v for edge in edges) for v in values] == [1, 2, 2, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("dtype", ["uint64", "UInt64", "uint64[pyarrow]"])
def test_whole_numbers_of_2_to_the_63_and_beyond_are_compared_without_rounding(dtype):
    edges = [-1e30, -5, 2**63 + 1, 2**64 - 2, 2**64 - 1, 2**64, 1e30]
    values = [0, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 3, 2**64 - 2, 2**64 - 1]
    known = pd.Series(values, dtype=dtype)
    found = Bucketize("x", edges)(pd.DataFrame({"x": known}))["x"]
    assert found.tolist() == [1 + sum(edge <= v for edge in edges) for v in values] == [3, 3, 3, 4, 4, 5, 6]
    if dtype != "uint64":
        holed = pd.DataFrame({"x": pd.Series([None if v == 2**63 + 1 else v for v in values], dtype=dtype)})
        assert Bucketize("x", edges)(holed)["x"].tolist() == [3, 3, 3, 0, 4, 5, 6]


def test_whole_edges_that_no_float64_is_hold_for_floats_and_below_every_whole_number():
    assert Bucketize("x", [2**53 + 1])(pd.DataFrame({"x": [2.0**53, 2.0**53 + 2]}))["x"].tolist() == [1, 2]
    assert Bucketize("x", [-1e30])(pd.DataFrame({"x": [-(2**63), 0]}))["x"].tolist() == [2, 2]
    assert Bucketize("x", [1, 2**53]).edges == (1.0, 2.0**53)
