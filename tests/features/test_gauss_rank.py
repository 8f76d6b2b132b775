"""GaussRank against scipy's ranks and normal distribution."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from features.errors import DataError
from features.operators.gauss_rank import GaussRank

NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.integers(0, 3).map(float), min_size=2, max_size=40)


def frame_of(values):
    return pd.DataFrame({"x": pd.Series(values, dtype="float64")})


def transformed(values, fitted_on):
    operator = GaussRank("x")
    return operator.apply(frame_of(values), operator.fit([frame_of(fitted_on)]))["x"]


@given(values=NUMBERS)
@settings(max_examples=80, deadline=None)
def test_values_of_the_fit_equal_scipy(values):
    uniform = np.clip((rankdata(values) - 1) / (len(values) - 1), 1e-6, 1 - 1e-6)
    found = transformed(values, values)
    assert str(found.dtype) == "float32"
    np.testing.assert_allclose(found, norm.ppf(uniform), rtol=1e-6, atol=1e-7)


@given(values=NUMBERS, cuts=st.lists(st.integers(0, 40), max_size=15), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_fit_does_not_depend_on_partitions(values, cuts, seed):
    frame = frame_of(values)
    rng, shuffled = np.random.default_rng(seed), frame.sample(frac=1, random_state=seed)
    bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    parts = [shuffled.iloc[a:b] for a, b in itertools.pairwise(bounds)]
    found = GaussRank("x").fit([parts[i] for i in rng.permutation(len(parts))])
    pd.testing.assert_frame_equal(found.table, GaussRank("x").fit([frame]).table, check_exact=True)


@given(values=NUMBERS, others=st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_unseen_values_keep_their_order_and_equal_linear_interpolation(values, others):
    found = transformed(sorted(others), values).to_numpy()
    assert (np.diff(found) >= 0).all()
    knots = np.unique(values)
    at_knots = transformed(knots, values).to_numpy("float64")
    np.testing.assert_allclose(found, np.interp(sorted(others), knots, at_knots), rtol=1e-5, atol=1e-6)


def test_literal_scores_of_three_values():
    assert transformed([1, 2, 4, 3, -7, 9], [1, 2, 4]).tolist() == pytest.approx(
        [-4.753424, 0, 4.753424, 4.753424 / 2, -4.753424, 4.753424], abs=1e-6
    )


def test_a_row_alone_equals_the_row_among_many():
    rng = np.random.default_rng(1)
    operator, frame = GaussRank("x"), frame_of(rng.normal(size=60)).set_axis(range(90, 30, -1))
    state = operator.fit([frame_of(rng.normal(size=40))])
    alone = [operator.apply(frame.iloc[[row]], state)["x"].iloc[0] for row in range(len(frame))]
    found = operator.apply(frame, state)
    assert found["x"].tolist() == alone
    assert found.index.equals(frame.index)


@pytest.mark.parametrize("values", [[5.0], [0.1] * 7])
def test_a_constant_column_becomes_zero(values):
    assert transformed([*values, 9.0], values).tolist() == [0] * (len(values) + 1)


def test_a_null_is_an_error():
    with pytest.raises(DataError, match=r"GaussRank: column 'x' holds nulls"):
        GaussRank("x").fit([frame_of([1, None])])


def test_no_rows_and_a_range_beyond_float64_are_errors():
    with pytest.raises(DataError, match=r"'x' has no rows to fit on"):
        GaussRank("x").fit([frame_of([])])
    with pytest.raises(DataError, match=r"'x' spans more than float64"):
        GaussRank("x").fit([frame_of([-1.7e308, 1.7e308])])
