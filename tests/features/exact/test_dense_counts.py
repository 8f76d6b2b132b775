"""Tables of counts by value against sorted values, in any partition."""

import pickle
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.features.exact.bin_edges import bin_edges
from gigabatch.features.exact.dense_counts import DenseCounts
from gigabatch.features.exact.quantiles import RadixHistogram, Search
from tests.examples import examples

FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 1.5, -1.5, 1.5000001, 7.0])
)


def dense(values, search, device="cpu", kind=torch.int32):
    """What a GPU counts: by a loop over the values."""
    patterns = search.leading_patterns()
    table = np.zeros((len(patterns), 1 << 16), np.int64)
    for word in (values + np.float32(0)).view(np.uint32).tolist():  # -0.0 becomes 0.0
        (row,) = np.flatnonzero(patterns == word >> 16)[:1].tolist() or [None]
        if row is not None:
            table[row, word & 0xFFFF] += 1
    return DenseCounts(patterns, torch.from_numpy(table).to(device, kind), len(values))


def first_pass(values):
    """Of few values too, by 16 bits."""
    return RadixHistogram.distinct(values).coarsened(16)


@given(drawn=st.lists(FLOATS, min_size=1, max_size=60), data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranks_are_found_where_sorting_has_them_in_any_partition(any_device, drawn, data):
    values = np.array(drawn, np.float32)
    ranks = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=9))
    search = Search.start(first_pass(values), ranks)
    cut = data.draw(st.lists(st.integers(0, len(values)), max_size=3))
    parts = [dense(part, search, any_device) for part in np.split(values, sorted(cut))]
    merged = reduce(search.merge, parts)
    found = search.narrowed(merged)
    assert found.resolved
    assert found.values().tolist() == (np.sort(values)[ranks] + 0.0).tolist()
    expected = search.count(values)
    assert merged.histogram() == expected
    assert merged.total == expected.total
    assert found.counts.tolist() == search.narrowed(expected).counts.tolist()


def test_more_ranks_than_are_looked_for_at_a_time():
    values = np.random.default_rng(0).normal(size=3_000).astype(np.float32)
    search = Search.start(first_pass(values), list(range(0, 3_000, 7)))
    assert search.narrowed(dense(values, search)).values().tolist() == np.sort(values)[::7].astype(float).tolist()


def test_a_piece_of_another_kind_changes_nothing():
    values = np.array([1.0, 2.0, 2.5], np.float32)
    search = Search.start(first_pass(values), [1])
    counted = dense(values, search)
    for pair in ((counted, RadixHistogram.empty("float64")), (RadixHistogram.empty("float64"), counted)):
        assert search.merge(*pair) is counted


def test_counts_of_more_rows_than_an_int32_holds_are_added_exactly():
    values = np.full(3, 2.0, np.float32)
    search = Search.start(first_pass(values), [0])
    many = DenseCounts(search.leading_patterns(), dense(values, search).table * 700_000_000, 2_100_000_000)
    merged = many.merge(many)
    assert (merged.total, merged.table.dtype) == (4_200_000_000, torch.int64)


def test_a_table_that_others_share_is_sent_alone():
    values = np.array([1.0, 1.5, -7.0], np.float32)
    search = Search.start(first_pass(values), [0, 2])
    alone = dense(values, search)
    shared = torch.zeros(40, 1 << 16, dtype=torch.int32)
    shared[7 : 7 + len(alone.table)] = alone.table
    counted = DenseCounts(alone.patterns, shared[7 : 7 + len(alone.table)], 3)
    sent = pickle.dumps(counted)
    assert len(sent) < counted.table.nbytes + 10_000
    there = pickle.loads(sent)
    assert torch.equal(there.table, alone.table)
    assert (there.patterns.tolist(), there.rows) == (alone.patterns.tolist(), 3)


def test_a_table_and_a_histogram_of_one_search_are_added():
    """Where a partition's tables were too many for the device; no count is left out."""
    values = np.array([1.0, 2.0, -7.0, -7.0, 2.0], np.float32)
    search = Search.start(first_pass(values), [0, 4])
    left, right = dense(values[:3], search), dense(values[3:], search)
    for merged in (search.merge(left, right.histogram()), search.merge(left.histogram(), right)):
        assert merged == search.count(values)


@pytest.mark.parametrize("distinct", [0, 8])
def test_edges_of_few_values_are_the_values(distinct):
    values = np.repeat(np.array([-3.0, 0.0, 1.0, 40.0], np.float32), 300)
    histogram = first_pass(values)
    ranks = np.unique([0, 299, 300, 599, 600, 899, 900, 1199])
    search = Search.start(histogram, ranks)
    for counted in (dense(values, search), search.count(values)):
        found = bin_edges(ranks, search.narrowed(counted).values(), 4, counted, distinct)
        assert found == (-3.0, 0.0, 1.0, 40.0)
