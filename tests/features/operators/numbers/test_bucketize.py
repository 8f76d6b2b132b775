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
