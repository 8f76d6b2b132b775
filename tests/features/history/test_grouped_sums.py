"""Sums by group: rows in vector arithmetic and in compiled loops give the same totals, in little memory."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.history import grouped_sums
from gigabatch.features.history.grouped_sums import GroupedSums, _SortedRows
from tests.examples import examples


def totals(frame):
    keys, (found,) = GroupedSums.of(frame, ["k"], ["x"], "here").on_host()
    return keys, found


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.floats(-1e30, 1e30)), min_size=1, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_sorted_rows_and_compiled_loops_have_the_same_totals(rows):
    frame = pd.DataFrame(rows, columns=["k", "x"])
    keys, compiled = totals(frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_sums, "_HostRows", _SortedRows)
        same_keys, ordered = totals(frame)
    pd.testing.assert_frame_equal(keys, same_keys)
    for name in ("sum", "mean", "std"):
        np.testing.assert_array_equal(getattr(compiled, name)(), getattr(ordered, name)())
    for name in ("count", "low", "high"):
        np.testing.assert_array_equal(getattr(compiled, name), getattr(ordered, name))


def test_a_state_of_sorted_rows_merges_with_one_of_loops():
    values = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"k": np.arange(60) % 7, "x": values})
    whole = totals(frame)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_sums, "_HostRows", _SortedRows)
        half = GroupedSums.of(frame[:31], ["k"], ["x"], "here")
    merged = half.merge(GroupedSums.of(frame[31:].reset_index(drop=True), ["k"], ["x"], "here")).on_host()[1][0]
    np.testing.assert_array_equal(merged.mean(), whole.mean())
    np.testing.assert_array_equal(merged.std(), whole.std())


def test_no_group_needs_objects_of_its_own():
    """F18: mean and deviation went through several Python integers a group."""
    size = 1 << 14
    values = np.random.default_rng(0).normal(size=2 * size)
    _, found = totals(pd.DataFrame({"k": np.arange(2 * size) % size, "x": values}))
    found.mean(), found.std()  # compiled before memory is counted
    digits = 8 * (len(found.sums) + len(found.squares))
    tracemalloc.start()
    try:
        found.mean(), found.std()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size * (digits + 8 * 10)  # the digits once, and ten numbers


def test_tiny_values_have_a_deviation_of_zero_or_more():
    """Squares near 2^-1074 are rounded, so n * squares may fall below the squared sum."""
    values = [1.3e-160, 1.3e-160, 1.1e-161, 2.9e-162]
    _, found = totals(pd.DataFrame({"k": [0, 0, 1, 1], "x": values}))
    assert (found.std() >= 0).all()
