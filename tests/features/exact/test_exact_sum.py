"""ExactSum against math.fsum and fractions.Fraction; float32 and merging are those of test_column_statistics."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact import loops as kernels
from gigabatch.features.exact.sums import (
    ExactSum,
    exact_pieces,
    leading_sums32,
    squares_by_extraction,
    sum_by_extraction,
    sum_of_squares,
)
from tests.examples import examples

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TAME = st.floats(-1e300, 1e300)  # math.fsum overflows on the way where ExactSum does not
TINY = st.floats(-1e-306, 1e-306)


def exactly(values):
    return sum((Fraction(value) for value in values), Fraction(0))


@given(values=st.lists(TAME | TINY | st.floats(-2, 2), max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_value_equals_fsum_bit_for_bit(values):
    assert ExactSum.of(np.array(values, dtype="float64")).value().hex() == (math.fsum(values) + 0.0).hex()


@given(values=st.lists(FINITE, max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_units_equal_the_rational_sum_of_any_finite_floats(values):
    assert Fraction(ExactSum.of(np.array(values, dtype="float64")).units, 2**1074) == exactly(values)


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_int64_sums_do_not_overflow(values):
    assert ExactSum.of(np.array(values, dtype="int64")).units == sum(values) << 1074


@pytest.mark.parametrize("dtype", ["uint64", "uint32", "int32", "int8", "bool"])
def test_whole_number_types_sum_exactly(dtype):
    top = 1 if dtype == "bool" else np.iinfo(dtype).max
    assert ExactSum.of(np.full(1000, top, dtype=dtype)).units == (1000 * int(top)) << 1074


def test_a_full_chunk_of_the_largest_numbers_is_exact():
    largest = np.finfo("float64").max
    values = np.concatenate([np.full(8192, largest), np.full(8192, -largest), [3.0]])
    assert ExactSum.of(values).value() == 3.0


def test_a_sum_beyond_float64_is_an_overflow_error():
    with pytest.raises(OverflowError):
        ExactSum.of(np.full(3, 1.7e308)).value()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_errors(bad):
    with pytest.raises(ValueError, match=r"NaN or an infinity"):
        ExactSum.of(np.array([1.0, bad, 2.0]))


def test_text_is_an_error():
    with pytest.raises(ValueError, match=r"array of <U1 has no sum"):
        ExactSum.of(np.array(["a"]))


@given(values=st.lists(FINITE, min_size=1, max_size=20), bits=st.integers(26, 50), grid=st.sampled_from([1, 7, 26]))
@settings(max_examples=examples(150), deadline=None)
def test_pieces_are_small_whole_numbers_on_the_grid_and_add_up(values, bits, grid):
    array = np.array(values, dtype="float64")
    totals = [Fraction(0)] * len(values)
    units = []
    for unit, pieces in exact_pieces(array, bits, grid):
        units.append(unit)
        for row, piece in enumerate(pieces):
            whole = Fraction(float(piece)) / Fraction(2) ** unit
            assert whole.denominator == 1
            assert abs(whole) <= 2**bits
            totals[row] += Fraction(float(piece))
    assert totals == [Fraction(value) for value in values]
    assert units == sorted(set(units), reverse=True)
    assert all((unit + 1074) % grid == 0 for unit in units)
    assert array.tolist() == values


@given(values=st.lists(FINITE | TINY, max_size=60), bits=st.integers(4, 22))
@settings(max_examples=examples(150), deadline=None)
def test_the_compiled_loop_and_vector_arithmetic_find_the_same_units(values, bits):
    array = np.array(values, dtype="float64")
    assert ExactSum.of(array).units == sum_by_extraction(array, bits)


@given(values=st.lists(st.floats(-1e150, 1e150) | st.floats(-2, 2), max_size=40))
@settings(max_examples=examples(150), deadline=None)
def test_squares_of_float64(values):
    values = [value for value in values if abs(value) >= 1e-130]  # below, the square's last bits leave float64
    array = np.array(values, dtype="float64")
    assert Fraction(sum_of_squares(array).units, 2**1074) == exactly(Fraction(value) ** 2 for value in values)
    assert sum_of_squares(array) == squares_by_extraction(array)


@given(values=st.lists(TINY, max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_squares_below_float64_are_the_same_by_both_ways(values):
    array = np.array(values, dtype="float64")
    assert sum_of_squares(array) == squares_by_extraction(array)


def test_a_square_beyond_float64_is_an_error():
    with pytest.raises(ValueError, match=r"NaN or an infinity"):
        sum_of_squares(np.array([1e200]))


def test_float32_sums_do_not_overflow_when_all_bits_are_set():
    value = np.float32(np.finfo("float32").max)  # every bit of the mantissa
    moments = kernels.leading_moments32(np.array([value]).view(np.uint32), np.empty(0, np.uint8), 0)
    many = (1 << 31) - 1
    total, squares = leading_sums32(moments * many)
    assert Fraction(total.units, 2**1074) == many * Fraction(float(value))
    assert Fraction(squares.units, 2**1074) == many * Fraction(float(value)) ** 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_strided_and_read_only_arrays(dtype):
    values = np.arange(60).astype(dtype)[::-3]
    values.flags.writeable = False
    assert ExactSum.of(values).value() == sum(range(59, -1, -3))
    assert ExactSum.of(values.reshape(4, 5)).value() == sum(range(59, -1, -3))
