"""One pass over a column against NumPy and fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.float_order import ALL_VALID, InfinityFound
from gigabatch.features.exact.quantiles import RadixHistogram
from tests.examples import examples

FLOATS = st.floats(width=32, allow_infinity=False) | st.integers(-2, 2).map(float) | st.just(-0.0)


def units(values):
    return sum((Fraction(value) for value in values), Fraction(0)) * 2**1074


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(values=st.lists(FLOATS, max_size=60), seed=st.integers(0, 99))
@settings(max_examples=examples(100), deadline=None)
def test_everything_is_exact_and_does_not_depend_on_partitions(dtype, values, seed):
    if dtype == "float64":
        values = [value if abs(value) > 1e-30 else 0.0 for value in values]  # float64 squares may leave its range
    array = np.array(values, dtype=dtype)
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, 64, len(array))
    found = ColumnStatistics.of(array[owner == 0])
    for part in rng.permutation(range(1, 64)):
        found = found.merge(ColumnStatistics.of(array[owner == part]))
    known = array[~np.isnan(array)].tolist()
    assert (found.rows, found.nulls, found.moments.count) == (len(array), len(array) - len(known), len(known))
    assert found.moments.total.units == units(known)
    assert found.moments.squares.units == units(Fraction(value) ** 2 for value in known)
    assert found.histogram == RadixHistogram.empty().merge(RadixHistogram.of(array))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [0, 5, 64])
def test_a_bitmap_says_what_is_null(dtype, offset):
    rng = np.random.default_rng(1)
    values = rng.normal(size=5000).astype(dtype)
    null = rng.random(5000) < 0.2
    bitmap = np.packbits(np.concatenate([rng.random(offset) < 0.5, ~null]), bitorder="little")
    with_nan = np.where(null, np.nan, values).astype(dtype)
    values[null] = np.inf
    assert ColumnStatistics.of(values, (bitmap, offset)) == ColumnStatistics.of(with_nan)
    assert ColumnStatistics.of(with_nan).nulls == null.sum()


def test_pieces_are_one_column():
    values = np.random.default_rng(2).normal(size=1000).astype("float32")
    bitmap = np.packbits(values[300:] > 0, bitorder="little")
    values.flags.writeable = False
    found = ColumnStatistics.of_pieces([(values[:300], ALL_VALID), (values[300:], (bitmap, 0))])
    assert found == ColumnStatistics.of(np.concatenate([values[:300], np.where(values > 0, values, np.nan)[300:]]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_an_infinity_is_refused(dtype, bad):
    with pytest.raises(InfinityFound):
        ColumnStatistics.of(np.array([1.0, bad, np.nan], dtype))
