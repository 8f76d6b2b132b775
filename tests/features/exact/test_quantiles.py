"""Order statistics by radix counting, against sorting and numpy.quantile."""

import math
import struct
import sys
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.exact import float_order, quantiles
from gigabatch.features.exact.float_order import WIDTHS, InfinityFound
from gigabatch.features.exact.quantiles import (
    LEADING_BITS,
    RadixHistogram,
    Search,
    interpolated,
    linear_place,
    selected,
)
from tests.examples import examples

KINDS = tuple(WIDTHS)


def select(parts, ranks):
    """float64 values of these ranks among all values of the arrays, all of one type; NaN is left out."""
    histogram = RadixHistogram.empty()
    for part in parts:
        histogram = histogram.merge(RadixHistogram.of(part))
    return selected(Search.start(histogram, ranks), parts).values()


def numbers(kind):
    """Tame and wild floats, many of them equal, with both zeros, denormal ones and NaN."""
    width = WIDTHS[kind]
    smallest = 2.0 ** (-149 if kind == "float32" else -1074)
    return st.one_of(
        st.floats(width=width, allow_infinity=False, allow_nan=False),
        st.floats(-1, 1, width=width),
        st.integers(-2, 2).map(float),
        st.sampled_from([0.0, -0.0, smallest, -smallest, 3 * smallest, math.nan]),
    )


@st.composite
def partitions(draw, kind, min_values=1):
    """1 to 64 arrays, empty ones among them, with at least so many known values in all."""
    drawn = draw(st.lists(numbers(kind), max_size=80))
    values = np.array([*([1.5] * min_values), *drawn], dtype=kind)
    count = draw(st.integers(1, 64))
    owner = np.random.default_rng(draw(st.integers(0, 999))).integers(0, count, len(values))
    return [values[owner == part] for part in range(count)]


def known(parts):
    values = np.concatenate(parts)
    return np.sort(values[~np.isnan(values)]).astype("float64") + 0.0


def pattern_image(value, kind):
    """The order-preserving integer of one float, by struct."""
    size = WIDTHS[kind]
    (word,) = struct.unpack("<I" if size == 32 else "<Q", struct.pack("<f" if size == 32 else "<d", value + 0.0))
    return word ^ ((1 << size) - 1) if word >> (size - 1) else word | (1 << (size - 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most_bins", [2, 40, 1 << 20])
@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_any_ranks_of_any_partitions_are_those_of_the_sorted_values(kind, most_bins, data):
    parts = data.draw(partitions(kind))
    expected = known(parts)
    ranks = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "MOST_BINS", most_bins)  # few: distinct values are not kept, bits are counted
        patch.setattr(quantiles, "FEW_VALUES", 10)
        assert select(parts, ranks).tolist() == expected[ranks].tolist()


@pytest.mark.parametrize(("kind", "passes"), [("float32", 2), ("float64", 4)])
def test_no_more_passes_than_bits_allow(kind, passes, monkeypatch):
    monkeypatch.setattr(quantiles, "MOST_BINS", 1 << 16)
    values = np.arange(200_000).astype(f"u{WIDTHS[kind] // 8}").view(kind)  # denormal: all in one bin for long
    values = np.concatenate([values] if kind == "float32" else [values * 2, values])  # some of twice the width
    search, done = Search.start(RadixHistogram.of(values), [70_000]), 1
    while not search.resolved:
        counted = search.count(values)
        assert len(counted.bins) <= 1 << 16
        search, done = search.narrowed(counted), done + 1
    assert done <= passes
    assert search.values()[0] == np.sort(values)[70_000]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 30, 500])
def test_a_pass_holds_no_more_bins_than_it_may_however_many_ranks_are_looked_for(kind, num_ranks, monkeypatch):
    monkeypatch.setattr(quantiles, "MOST_BINS", 1024)
    values = np.random.default_rng(0).normal(size=50_000).astype(kind)
    ranks = np.linspace(0, len(values) - 1, num_ranks).astype(int)
    search = Search.start(RadixHistogram.of(values), ranks)
    while not search.resolved:
        counted = search.count(values)
        assert len(counted.bins) <= 1024
        search = search.narrowed(counted)
    assert search.values().tolist() == np.sort(values)[ranks].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 30, 500])
def test_a_pass_counts_each_value_of_the_bins_that_are_looked_into(kind, num_ranks):
    random = np.random.default_rng(1)
    values = random.normal(size=60_000).astype(kind)
    values[:9_000] = random.choice(np.array([-0.0, 0.0, -1.5, 2.5, np.nan, -1e-40], kind), 9_000)
    ranks = np.linspace(0, 40_000, num_ranks).astype(int)
    search = Search.start(RadixHistogram.of(values), ranks)
    shift = WIDTHS[kind] - LEADING_BITS[kind]
    leading = (np.abs(values).view(f"u{WIDTHS[kind] // 8}") >> shift).astype(int) * np.where(values < 0, -1, 1)
    wanted = leading[np.isin(values, np.sort(values)[ranks])]
    expected = Counter((values[np.isin(leading, wanted) & ~np.isnan(values)] + 0.0).tolist())
    for pieces in ([values], np.array_split(values, 7)):
        found = search.count_pieces([(piece, None) for piece in pieces])
        low, high = found.edges()
        assert (low == high).all()
        assert dict(zip(low.tolist(), found.counts.tolist(), strict=True)) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_the_next_pass_merges_in_any_order(kind, data):
    parts = data.draw(partitions(kind))
    histogram = RadixHistogram.of(np.concatenate(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "MOST_BINS", data.draw(st.integers(1, 12)))
        search = Search.start(histogram, [0, histogram.total // 2, histogram.total - 1])
        if search.resolved:
            return
        counted = [search.count(part) for part in parts]
        whole = search.count(np.concatenate(parts))
        for order in (range(len(parts)), np.random.default_rng(0).permutation(len(parts))):
            merged = counted[order[0]]
            for i in order[1:]:
                merged = search.merge(merged, counted[i])
            assert merged == whole


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_the_histogram_counts_leading_bits_whatever_the_partitions(kind, data):
    parts = data.draw(partitions(kind, min_values=0))
    merged = RadixHistogram.empty()
    for part in parts:
        merged = merged.merge(RadixHistogram.of(part))
    shift = WIDTHS[kind] - LEADING_BITS[kind]
    expected = Counter(pattern_image(value, kind) >> shift for value in known(parts).tolist())
    assert dict(zip(merged.bins.tolist(), merged.counts.tolist(), strict=True)) == expected
    assert merged.bins.tolist() == sorted(expected)
    assert merged.total == len(known(parts))
    assert (merged.bins.dtype, merged.counts.dtype) == (np.uint64, np.int64)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), most=st.integers(1, 20))
@settings(max_examples=examples(80), deadline=None)
def test_a_limited_histogram_has_as_many_bits_as_fit_and_merges_in_any_order(kind, data, most):
    parts = data.draw(partitions(kind))
    whole = RadixHistogram.distinct(np.concatenate(parts))
    found = RadixHistogram.distinct(parts[-1]).limited(most)
    for part in reversed(parts[:-1]):
        found = found.merge(RadixHistogram.distinct(part).limited(most)).limited(most)
    assert found == whole.limited(most)
    assert len(found.bins) <= most
    assert found.total == whole.total
    assert found.exact or len(whole.coarsened(found.bits + 1).bins) > most


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), fraction=st.floats(0, 1))
@settings(max_examples=examples(150), deadline=None)
def test_one_pass_bounds_every_quantile(kind, data, fraction):
    parts = data.draw(partitions(kind))
    values, histogram = known(parts), RadixHistogram.of(np.concatenate(parts))
    below, above, part = linear_place(fraction, len(values))
    if not math.isfinite(values[above] - values[below]):
        return  # NumPy's definition itself leaves float64 here
    exact = interpolated(values[below], values[above], part)
    low, high = histogram.quantile_bounds(fraction)
    assert low <= exact <= high
    middle, error = histogram.sketched_quantile(fraction)
    assert abs(middle - exact) <= error
    largest = max(abs(values[below]), abs(values[above]))
    if largest >= 2.0 ** (-126 if kind == "float32" else -1022):
        assert error <= largest * 2.0**-7


def test_a_sketch_of_zeros_is_zero():
    assert RadixHistogram.of(np.array([0.0, -0.0, 0.0], dtype="float32")).sketched_quantile(0.5)[0] == 0.0


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), offset=st.integers(0, 17))
@settings(max_examples=examples(80), deadline=None)
def test_a_validity_bitmap_leaves_out_what_it_says(kind, data, offset):
    values = np.concatenate(data.draw(partitions(kind)))
    null = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    bitmap = np.packbits(np.concatenate([np.zeros(offset, bool), ~null]), bitorder="little")
    known_only = values[~null]
    values[null] = np.inf  # a null slot may hold anything
    histogram = RadixHistogram.of(values, (bitmap, offset))
    assert histogram == RadixHistogram.of(known_only)
    if histogram.total:
        search = Search.start(histogram, [histogram.total // 2])
        assert search.count(values, (bitmap, offset)) == search.count(known_only)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(30), deadline=None)
def test_arrays_lead_back_to_the_histogram(kind, data):
    histogram = RadixHistogram.of(np.concatenate(data.draw(partitions(kind, min_values=0))))
    bins, counts = histogram.to_arrays()
    assert (bins.dtype, counts.dtype) == (np.int64, np.int64)
    assert RadixHistogram.from_arrays(kind, bins, counts) == histogram


@pytest.mark.parametrize(
    ("kind", "bins", "counts", "message"),
    [
        ("float16", [1], [1], r"unknown kind 'float16'. Known: float32, float64"),
        ("float32", [1, 2], [1], "equally long"),
        ("float32", [1.5], [1], "whole numbers"),
        ("float32", [2, 1], [1, 1], "ascend"),
        ("float32", [1, 1], [1, 1], "ascend"),
        ("float32", [1 << 16], [1], r"below 2\^16"),
        ("float32", [-1], [1], r"below 2\^16"),
        ("float32", [1], [0], "at least 1"),
    ],
)
def test_damaged_arrays_are_refused(kind, bins, counts, message):
    with pytest.raises(DataError, match=message):
        RadixHistogram.from_arrays(kind, np.array(bins), np.array(counts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf])
@pytest.mark.parametrize("few", [-1, 1 << 12])
def test_an_infinity_is_refused_and_nan_of_any_bits_is_not_counted(kind, bad, few, monkeypatch):
    monkeypatch.setattr(quantiles, "FEW_VALUES", few)
    with pytest.raises(InfinityFound):
        RadixHistogram.of(np.array([1.0, bad], dtype=kind))
    word = "uint32" if kind == "float32" else "uint64"
    infinity = np.array([bad], dtype=kind).view(word)
    odd_nan = (infinity + infinity.dtype.type(1)).view(kind)  # shares its leading bits with the infinity
    assert np.isnan(odd_nan).all()
    assert RadixHistogram.of(np.concatenate([odd_nan, np.array([1.0, np.nan, -np.nan], kind)])).total == 1


def test_float32_and_float64_do_not_mix_unless_one_is_empty():
    narrow, wide = (RadixHistogram.of(np.array([1.0], kind)) for kind in KINDS)
    with pytest.raises(DataError, match=r"one partition holds float32, another float64"):
        narrow.merge(wide)
    nothing = RadixHistogram.of(np.array([np.nan], "float64"))
    assert narrow.merge(nothing) == nothing.merge(narrow) == narrow
    assert select([np.array([3.0, 1.0], "float32"), np.array([np.nan])], [1]).tolist() == [3.0]


def test_arrays_of_any_layout():
    values = np.arange(40, dtype="float32")[::-3]
    assert not values.flags.c_contiguous
    values.flags.writeable = False
    assert select([values], range(len(values))).tolist() == sorted(values.tolist())


def test_no_value_has_no_quantile():
    with pytest.raises(ValueError, match="no value"):
        RadixHistogram.empty().quantile_bounds(0.5)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_the_vector_arithmetic_for_cupy_counts_what_the_compiled_loops_count(kind, data):
    parts = data.draw(partitions(kind))
    values = np.concatenate(parts)
    histogram = RadixHistogram.of(values)
    search = Search.start(histogram, [0, histogram.total // 2])
    counted = search.count(values)
    with pytest.MonkeyPatch.context() as patch:
        # No GPU here: NumPy goes by CuPy's name, and no array is taken for one of NumPy's.
        patch.setitem(sys.modules, "cupy", Renamed(np, asnumpy=np.asarray))
        patch.setattr(quantiles, "np", Renamed(np, ndarray=str))
        patch.setattr(float_order, "np", Renamed(np, ndarray=str))
        patch.setattr(quantiles, "FEW_VALUES", -1)
        assert RadixHistogram.of(values) == histogram
        assert search.count(values) == counted


class Renamed(ModuleType):
    """A module with some names replaced."""

    def __init__(self, module, **names):
        super().__init__(module.__name__)
        self.__dict__.update(module.__dict__ | names)
