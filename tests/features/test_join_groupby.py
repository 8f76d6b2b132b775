"""JoinGroupby against the statistics module and fractions."""

import itertools
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.errors import DataError
from features.operators.join_groupby import STATISTICS, JoinGroupby

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]), st.integers(0, 1), st.none() | st.floats(-1e12, 1e12), st.integers(-9, 9)
    ),
    min_size=1,
    max_size=30,
)


def frame_of(rows):
    frame = pd.DataFrame(rows, columns=["k", "j", "x", "n"])
    return frame.astype({"k": "str", "j": "int64", "x": "float64", "n": "int64"})


@given(rows=ROWS)
@settings(max_examples=40, deadline=None)
def test_statistics_equal_the_exact_ones(rows):
    frame, operator = frame_of(rows), JoinGroupby(("k", "j"), ["x"], STATISTICS)
    found = operator.apply(frame, operator.fit([frame]))
    for row, (key, number, *_) in enumerate(rows):
        seen = [x for k, j, x, _ in rows if key is not None and (k, j) == (key, number) and x is not None]
        expected = dict.fromkeys(STATISTICS, np.nan)
        if seen:
            mean = statistics.mean(seen)
            expected = {"count": len(seen), "sum": mean * len(seen), "mean": mean, "min": min(seen), "max": max(seen)}
            expected["std"] = statistics.stdev(seen) if len(seen) > 1 else np.nan
        got = [float(found[f"x_{name}_by_k_j"].iloc[row]) for name in STATISTICS]
        np.testing.assert_allclose(got, [expected[name] for name in STATISTICS], rtol=2e-7, atol=1e-30)


@given(rows=ROWS, cuts=st.lists(st.integers(0, 30), max_size=15), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_fit_does_not_depend_on_partitions(rows, cuts, seed):
    frame = frame_of(rows)
    rng, shuffled = np.random.default_rng(seed), frame.sample(frac=1, random_state=seed)
    bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    parts = [shuffled.iloc[a:b] for a, b in itertools.pairwise(bounds)]
    operator = JoinGroupby(("k", "j"), ["x", "n"], STATISTICS)
    found = operator.fit([parts[i] for i in rng.permutation(len(parts))])
    pd.testing.assert_frame_equal(found.table, operator.fit([frame]).table, check_exact=True)


def test_literal_groups_unseen_and_null_keys_in_row_order():
    train = pd.DataFrame({"k": ["a", "b", "a"], "n": [1, 5, 3]})
    frame = pd.DataFrame({"k": ["z", "a", None, "b"]}, index=[7, 7, 1, 0]).assign(n=0)
    operator = JoinGroupby(("k",), ["n"], ["count", "mean", "std"])
    found = operator.apply(frame, operator.fit([train]))
    assert operator.outputs == ("n_count_by_k", "n_mean_by_k", "n_std_by_k")
    np.testing.assert_array_equal(found["n_count_by_k"], [np.nan, 2, np.nan, 1])
    np.testing.assert_array_equal(found["n_mean_by_k"], [np.nan, 2, np.nan, 5])
    np.testing.assert_allclose(found["n_std_by_k"], [np.nan, 2**0.5, np.nan, np.nan], rtol=1e-7)
    assert found.index.tolist() == [7, 7, 1, 0]
    assert {str(found[name].dtype) for name in operator.outputs} == {"float32"}


def test_a_row_alone_equals_the_row_among_many():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"k": rng.choice(["a", "b", "c"], 30), "x": rng.normal(size=30)})
    operator = JoinGroupby(("k",), ["x"], STATISTICS[:5])
    state = operator.fit([frame[frame["k"] != "c"]])
    alone = pd.concat([operator.apply(frame.iloc[[row]], state) for row in range(30)])
    pd.testing.assert_frame_equal(operator.apply(frame, state), alone, check_exact=True)


def test_cancelling_values_keep_their_mean_and_deviation():
    frame = pd.DataFrame({"k": "a", "x": [1e16 + 2, 1e16, 1e16 + 4]})
    state = JoinGroupby(("k",), ["x"], ["std", "sum"]).fit([frame])
    assert state.table["x_std_by_k"].tolist() == [2.0]
    state = JoinGroupby(("k",), ["x"], ["sum"]).fit([frame.assign(x=[1e29, 0.5, -1e29])])
    assert state.table["x_sum_by_k"].tolist() == [0.5]


def test_unknown_statistics_and_huge_values_are_errors():
    with pytest.raises(DataError, match=r"unknown: \['median'\]. Known: count, sum, mean, min, max, std"):
        JoinGroupby(("k",), ["x"], ["median"])
    with pytest.raises(DataError, match=r"column 'x' holds values beyond 1e\+30"):
        JoinGroupby(("k",), ["x"], ["sum"]).fit([pd.DataFrame({"k": ["a"], "x": [1e31]})])
