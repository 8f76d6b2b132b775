"""Normalize against numpy's mean and standard deviation."""

import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact.column_statistics import FEW_VALUES, Moments, Scale
from gigabatch.features.exact.sums import ExactSum, squares_by_extraction, sum_by_extraction
from gigabatch.features.operators.numbers.normalize import Normalize
from tests.examples import examples

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


def frame_of(values, dtype="float32"):
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


@given(values=NUMBERS)
@settings(max_examples=examples(60), deadline=None)
def test_fit_equals_the_statistics_module_which_computes_with_fractions(values):
    found = Normalize("x").fit([frame_of(values)])
    deviation = statistics.pstdev(values)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-12, abs=1e-300)
    assert found.std == pytest.approx(deviation if deviation >= 2.0**-100 else 1.0, rel=1e-12)


def test_applies_mean_and_std_in_float64():
    found = Normalize("x").apply(frame_of([2**24 + 2, 2**24], "float64"), Scale(2.0**24 + 1, 0.5))
    assert found["x"].tolist() == [2.0, -2.0]
    assert str(found["x"].dtype) == "float32"


@pytest.mark.parametrize("value", [5.0, 0.1, 1e6 + 0.1])
def test_a_constant_column_becomes_zero(value):
    frame, operator = frame_of([value] * 7, "float64"), Normalize("x")
    state = operator.fit([frame])
    assert state.std == 1.0
    assert operator.apply(frame, state)["x"].tolist() == [0] * 7


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("size", [0, 1, FEW_VALUES - 1, FEW_VALUES, 3 * FEW_VALUES])
def test_moments_of_few_and_many_values_equal_vector_arithmetic(dtype, size):
    rng = np.random.default_rng(size)
    values = (np.exp(20 * rng.normal(size=size)) * rng.choice([-1, 0, 1], size)).clip(-1e15, 1e15).astype(dtype)
    wide = values.astype("float64")
    assert Moments.of(values) == Moments(size, ExactSum(sum_by_extraction(wide)), squares_by_extraction(wide))


@pytest.mark.parametrize("size", [3, FEW_VALUES])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_moments_of_what_is_not_finite_are_refused(size, bad):
    values = np.ones(size, "float32")
    values[1] = bad
    with pytest.raises(ValueError, match="NaN or an infinity"):
        Moments.of(values)
