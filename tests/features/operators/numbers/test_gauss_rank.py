"""GaussRank against scipy's ranks and normal distribution."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.gauss_rank import GaussRank, scores
from tests.examples import examples

NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.integers(0, 3).map(float), min_size=2, max_size=40)


def frame_of(values):
    return pd.DataFrame({"x": pd.Series(values, dtype="float64")})


def transformed(values, fitted_on):
    operator = GaussRank("x")
    return operator.apply(frame_of(values), operator.fit([frame_of(fitted_on)]))["x"]


@given(values=NUMBERS)
@settings(max_examples=examples(80), deadline=None)
def test_values_of_the_fit_equal_scipy(values):
    uniform = np.clip((rankdata(values) - 1) / (len(values) - 1), 1e-6, 1 - 1e-6)
    found = transformed(values, values)
    assert str(found.dtype) == "float32"
    np.testing.assert_allclose(found, norm.ppf(uniform), rtol=1e-6, atol=1e-7)


def table_by_sorting(values):
    """Knots and scores with the whole column in memory, sorted."""
    ordered = np.sort(np.array(values)) + 0.0
    first = np.append(True, ordered[1:] != ordered[:-1])
    return pd.DataFrame({"value": ordered[first], "score": scores(np.flatnonzero(first), len(ordered))})


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 5e-324, 1.0, 1.5]), min_size=2, max_size=60),
    max_knots=st.integers(2, 20),
    seed=st.integers(0, 999),
)
@settings(max_examples=examples(80), deadline=None)
def test_few_knots_are_the_same_for_any_partitions_and_as_good_as_they_say(values, max_knots, seed):
    frame, rng = frame_of(values), np.random.default_rng(seed)
    owner = rng.integers(0, rng.integers(1, 65), len(values))
    operator = GaussRank("x", max_knots)
    found = operator.fit([frame[owner == part] for part in rng.permutation(owner.max() + 1)])
    whole = operator.fit([frame])
    pd.testing.assert_frame_equal(found.table, whole.table, check_exact=True)
    assert found.rank_error == whole.rank_error
    assert len(found.table) <= max_knots
    assert found.table["value"].is_monotonic_increasing
    assert found.table["value"].between(min(values), max(values)).all()
    if len(set(values)) <= max_knots:
        pd.testing.assert_frame_equal(found.table, table_by_sorting(values), check_exact=True)
    result = operator.apply(frame, found)["x"].to_numpy("float64")
    ranks = (rankdata(values) - 1) / (len(values) - 1)
    # Scores become float32, whose steps the distribution function makes smaller than these.
    assert np.abs(norm.cdf(result) - np.clip(ranks, 1e-6, 1 - 1e-6)).max() <= found.rank_error + 1e-6
    assert (np.diff(result[np.argsort(values, kind="stable")]) >= 0).all()


def test_the_rank_error_counts_the_group_that_a_score_leans_towards():
    # Of the second group's 50 values all but one lie far above its knot, next to that of the third group.
    values = [0.6, 1.97, *np.linspace(1.9998, 1.9999, 49), *np.linspace(2, 2.0001, 50)]
    operator = GaussRank("x", 3)
    state = operator.fit([frame_of(values)])
    assert state.table["value"].tolist() == pytest.approx([0.6, 1.984375, 2.0001], rel=0.01)
    found = operator.apply(frame_of(values), state)["x"]
    furthest = np.abs(norm.cdf(found) - np.clip((rankdata(values) - 1) / 100, 1e-6, 1 - 1e-6)).max()
    assert 0.5 < furthest <= state.rank_error == 0.75


@given(values=NUMBERS, others=st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=40))
@settings(max_examples=examples(80), deadline=None)
def test_unseen_values_keep_their_order_and_equal_linear_interpolation(values, others):
    found = transformed(sorted(others), values).to_numpy()
    assert (np.diff(found) >= 0).all()
    knots = np.unique(values)
    at_knots = transformed(knots, values).to_numpy("float64")
    np.testing.assert_allclose(found, np.interp(sorted(others), knots, at_knots), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("values", [[5.0], [0.1] * 7])
def test_a_constant_column_becomes_zero(values):
    assert transformed([*values, 9.0], values).tolist() == [0] * (len(values) + 1)


def test_one_knot_and_a_range_beyond_float64_are_errors():
    with pytest.raises(DataError, match=r"GaussRank of 'x': max_knots must be at least 2, found 1"):
        GaussRank("x", 1)
    with pytest.raises(DataError, match=r"'x' spans more than float64"):
        GaussRank("x").fit([frame_of([-1.7e308, 1.7e308])])
