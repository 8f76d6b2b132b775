"""QuantileBuckets against numpy.quantile and pandas.qcut."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.errors import DataError
from features.operators.quantile_buckets import Edges, QuantileBuckets

NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.integers(0, 3).map(float), min_size=1, max_size=40)


def frame_of(values):
    return pd.DataFrame({"x": pd.Series(values, dtype="float64")})


@given(values=NUMBERS, num_buckets=st.integers(2, 12))
@settings(max_examples=150, deadline=None)
def test_edges_equal_numpy_linear_quantiles(values, num_buckets):
    state = QuantileBuckets("x", num_buckets).fit([frame_of(values)])
    expected = np.quantile(np.array(values), np.arange(1, num_buckets) / num_buckets)
    assert list(state.edges) == sorted(set(expected.tolist()))
    assert state.merged == num_buckets - 1 - len(state.edges)


@given(
    values=st.lists(st.none() | st.floats(-1e6, 1e6), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=15),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_fit_does_not_depend_on_partitions(values, cuts, seed):
    frame = frame_of([*values, 1.5])
    rng, shuffled = np.random.default_rng(seed), frame.sample(frac=1, random_state=seed)
    bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    parts = [shuffled.iloc[a:b] for a, b in itertools.pairwise(bounds)]
    operator = QuantileBuckets("x", 5)
    assert operator.fit([parts[i] for i in rng.permutation(len(parts))]) == operator.fit([frame])


def test_distinct_values_fall_as_in_qcut():
    frame = frame_of(np.random.default_rng(0).normal(size=1003))
    operator = QuantileBuckets("x", 7)
    found = operator.apply(frame, operator.fit([frame]))["x"]
    assert str(found.dtype) == "int32"
    np.testing.assert_array_equal(found, 1 + pd.qcut(frame["x"], 7, labels=False))


def test_null_is_bucket_zero_and_an_edge_belongs_to_the_bucket_below():
    frame = frame_of([-9, 1, 1.5, 2, 99, None]).set_axis([3, 3, 0, 1, 2, 8])
    found = QuantileBuckets("x", 3).apply(frame, Edges((1.0, 2.0), 0))
    assert found["x"].tolist() == [1, 1, 2, 2, 3, 0]
    assert found.index.tolist() == [3, 3, 0, 1, 2, 8]


def test_equal_edges_are_merged_and_counted():
    assert QuantileBuckets("x", 4).fit([frame_of([0, 0, 0, 0, 0, 0, 0, 8])]) == Edges((0.0,), 2)


def test_a_row_alone_equals_the_row_among_many():
    frame, operator = frame_of([*np.random.default_rng(1).normal(size=50), None]), QuantileBuckets("x", 6)
    state = operator.fit([frame])
    alone = [operator.apply(frame.iloc[[row]], state)["x"].iloc[0] for row in range(len(frame))]
    assert operator.apply(frame, state)["x"].tolist() == alone


def test_one_bucket_is_an_error():
    with pytest.raises(DataError, match=r"QuantileBuckets of 'x': num_buckets must be at least 2, found 1"):
        QuantileBuckets("x", 1)


def test_all_null_is_an_error():
    with pytest.raises(DataError, match=r"'x' has no known value"):
        QuantileBuckets("x", 2).fit([frame_of([None, None])])
