"""QuantileBuckets against numpy.quantile and pandas.qcut."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.exact import column_statistics, quantiles
from gigabatch.features.operators.numbers.quantile_buckets import Edges, QuantileBuckets
from tests.examples import examples

NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.integers(0, 3).map(float), min_size=1, max_size=40)


def frame_of(values):
    return pd.DataFrame({"x": pd.Series(values, dtype="float64")})


@given(values=NUMBERS, num_buckets=st.integers(2, 12))
@settings(max_examples=examples(150), deadline=None)
def test_edges_equal_numpy_linear_quantiles(values, num_buckets):
    state = QuantileBuckets("x", num_buckets).fit([frame_of(values)])
    expected = np.quantile(np.array(values), np.arange(1, num_buckets) / num_buckets)
    assert list(state.edges) == sorted(set(expected.tolist()))
    assert state.merged == num_buckets - 1 - len(state.edges)


def test_null_is_bucket_zero_and_an_edge_belongs_to_the_bucket_below():
    frame = frame_of([-9, 1, 1.5, 2, 99, None]).set_axis([3, 3, 0, 1, 2, 8])
    found = QuantileBuckets("x", 3).apply(frame, Edges((1.0, 2.0), 0))
    assert found["x"].tolist() == [1, 1, 2, 2, 3, 0]
    assert found.index.tolist() == [3, 3, 0, 1, 2, 8]


def test_one_bucket_and_an_unknown_method_are_errors():
    with pytest.raises(DataError, match=r"QuantileBuckets of 'x': num_buckets must be at least 2, found 1"):
        QuantileBuckets("x", 1)
    with pytest.raises(DataError, match=r"unknown method 'x'. Known: exact, sketch"):
        QuantileBuckets("x", 2, "x")


def edges_by_sorting(values, num_buckets):
    """The whole column in memory, sorted; linear quantiles as NumPy computes them."""
    ordered = sorted(value + 0.0 for value in values)
    found = []
    for i in range(1, num_buckets):
        place = i / num_buckets * (len(ordered) - 1)
        below = math.floor(place)
        part, low, high = place - below, ordered[below], ordered[min(below + 1, len(ordered) - 1)]
        found.append(high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part)
    return tuple(sorted(set(found)))


WILD = st.none() | st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 2.0**-149, 1.0, 2.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kept", [0, 1 << 22])
@given(values=st.lists(WILD, max_size=60), num_buckets=st.integers(2, 50), seed=st.integers(0, 999))
@settings(max_examples=examples(40), deadline=None)
def test_edges_out_of_core_equal_sorting_everything(dtype, kept, values, num_buckets, seed):
    values = [*values, 1.0]
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, rng.integers(1, 65), len(values))
    frame = pd.DataFrame({"x": pd.Series(values, dtype=dtype)})
    operator = QuantileBuckets("x", num_buckets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_statistics, "KEPT_VALUES", kept)  # 0: no partition is kept, further passes are made
        patch.setattr(quantiles, "MOST_BINS", 16)
        found = operator.fit([frame[owner == part] for part in rng.permutation(owner.max() + 1)])
    expected = edges_by_sorting([value for value in values if value is not None], num_buckets)
    assert found == Edges(expected, num_buckets - 1 - len(expected))


@given(values=st.lists(WILD, max_size=60), num_buckets=st.integers(2, 20), cut=st.integers(0, 60))
@settings(max_examples=examples(60), deadline=None)
def test_sketched_edges_are_as_near_as_they_say_and_do_not_depend_on_partitions(values, num_buckets, cut):
    values = [*values, 1.0]
    frame = frame_of(values)
    operator = QuantileBuckets("x", num_buckets, method="sketch")
    found = operator.fit([frame.iloc[cut:], frame.iloc[:cut]])
    assert found == operator.fit([frame])
    assert len(found.edges) == len(found.errors) == num_buckets - 1 - found.merged
    for fraction in np.arange(1, num_buckets) / num_buckets:
        exact = np.quantile([value for value in values if value is not None], fraction)
        assert any(abs(edge - exact) <= error for edge, error in zip(found.edges, found.errors, strict=True))
