"""Edges of quantile bins against NumPy's quantiles and plain loops."""

from functools import reduce

import numpy as np
import pytest

from gigabatch.features.exact.bin_edges import bin_edges, edge_ranks
from gigabatch.features.exact.quantiles import RadixHistogram, Search


def edges_of(values, bins, parts=1, distinct=0):
    """As the preprocessor finds them, over parts."""
    cut = np.array_split(np.asarray(values, np.float32), parts)
    histogram = RadixHistogram.empty()
    for part in cut:
        histogram = histogram.merge(RadixHistogram.of(part))
    ranks = edge_ranks(histogram, bins, distinct)
    search = Search.start(histogram, ranks)
    counted = None
    while not search.resolved:
        counted = reduce(search.merge, [search.count(part) for part in cut])
        search = search.narrowed(counted)
    return np.array(bin_edges(ranks, search.values(), bins, counted, distinct))


def shares(values, edges):
    """Of the values that each bin holds."""
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(places, minlength=len(edges) - 1) / len(values)


@pytest.mark.parametrize("bins", [2, 7, 48])
def test_of_distinct_values_they_are_the_quantiles_whatever_the_partitions(bins):
    values = np.random.default_rng(1).lognormal(3, 2, 9_999).astype(np.float32)
    found = edges_of(values, bins)
    assert len(found) == bins + 1
    assert (found[[0, -1]] == [values.min(), values.max()]).all()
    assert np.isin(found, values).all()
    assert np.abs(shares(values, found) - 1 / bins).max() <= 0.3 / bins
    for parts in (2, 13, 400):
        assert np.array_equal(edges_of(values, bins, parts), found)


def test_few_values_are_all_kept_however_rare_and_close():
    values = np.repeat([2008.0, 2009.0, 2010.0, 2011.0, 2012.0, 1e9], [50_000, 40_000, 7, 30_000, 9_000, 1])
    years = np.array([2008, 2009, 2010, 2011, 2012, 1e9], np.float32)
    assert np.array_equal(edges_of(values, 48), years)
    ages = np.repeat(np.arange(17, 48, dtype=np.float32), 1 + np.arange(31) ** 3)
    assert np.array_equal(edges_of(ages, 48), np.unique(ages))


@pytest.mark.parametrize("parts", [1, 7])
def test_values_up_to_the_number_given_are_each_an_edge(parts):
    """A capital gain: 0 in nine rows of ten, and a hundred amounts of the tax form, some of which decide."""
    generator = np.random.default_rng(4)
    amounts = np.unique(generator.integers(100, 99_999, 118)).astype(np.float32)
    gains = np.where(generator.random(30_000) < 0.92, 0, generator.choice(amounts, 30_000)).astype(np.float32)
    every = np.unique(gains)
    assert len(every) > 100
    assert np.array_equal(edges_of(gains, 48, parts, distinct=len(every)), every)
    assert len(edges_of(gains, 48, parts, distinct=len(every) - 1)) <= 49
    assert len(edges_of(gains, 0, parts, distinct=256)) == 0
    more = np.append(gains, np.arange(300, dtype=np.float32) + 0.5)
    assert np.array_equal(edges_of(more, 48, parts, distinct=256), edges_of(more, 48, parts))


def test_values_of_thirty_rows_on_average_are_each_an_edge():
    """Years of a panel of states, of which each has an epidemic or none: bins would take two years for one."""
    years = np.repeat(np.arange(1928, 2012, dtype=np.float32), 30)
    assert np.array_equal(edges_of(years, 48, distinct=256), np.unique(years))
    assert len(edges_of(years[1:], 48, distinct=256)) == 49


def test_a_frequent_value_leaves_the_other_bins_to_the_rest():
    generator = np.random.default_rng(2)
    gains = np.where(generator.random(40_000) < 0.92, 0, generator.lognormal(8, 1, 40_000)).astype(np.float32)
    found = edges_of(gains, 48)
    assert found[0] == 0
    assert len(found) >= 40
    rest = gains[gains > 0]
    assert shares(rest, found[1:]).max() < 2.5 / 40  # plain quantiles have 4 edges above 0


def test_values_far_from_zero_are_told_apart():
    minutes = (22_000_000 + np.random.default_rng(3).integers(0, 500_000, 20_000)).astype(np.float32)
    found = edges_of(minutes, 16)
    assert np.abs(shares(minutes, found) - 1 / 16).max() < 0.3 / 16


@pytest.mark.parametrize(("values", "edges"), [([], []), ([5.0] * 9, []), ([1.0, 2.0], [1.0, 2.0])])
def test_fewer_than_two_values_have_no_edge(values, edges):
    assert edges_of(np.array(values), 8).tolist() == edges
    assert edges_of(np.array([1.0, 2.0, 3.0]), 0).tolist() == []
