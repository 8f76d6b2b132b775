"""Compiled sums by group against Python's integers, whose quotients are rounded once."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gigabatch.features.exact.group_loops import BITS, BLOCK, PLACES, digit_sums, quotients, used_places, variances
from tests.examples import examples

PIECES = st.one_of(st.integers(-(2**62), 2**62), st.integers(-9, 9), st.sampled_from([0, 2**26, -(2**26), 2**53]))
COUNTS = st.one_of(st.integers(1, 2**36), st.integers(1, 9), st.integers(0, 36).map(lambda n: 2**n))


def whole(pieces):
    return sum(piece << BITS * place for place, piece in enumerate(pieces))


def array(pieces):
    return np.array(pieces, dtype="int64").reshape(-1, 1)


@given(
    pieces=st.lists(PIECES, max_size=5),
    exponent=st.one_of(st.integers(-1300, -900), st.integers(-100, 100)),
    count=COUNTS,
)
@example(pieces=[1], exponent=-1075, count=1)  # a tie between 0 and the smallest float64
@example(pieces=[3], exponent=-1075, count=1)
@example(pieces=[2**53 + 1], exponent=0, count=1)  # ties to even, down and up
@example(pieces=[2**53 + 3], exponent=0, count=1)
@example(pieces=[1, 0, 0, 0, 0, 0, 0, 0, 2**53 + 1], exponent=0, count=1)  # a tie but for the last bit
@example(pieces=[0, 0, 0, 1], exponent=-60, count=2**36)
@settings(max_examples=examples(300), deadline=None)
def test_a_quotient_is_that_of_pythons_integers(pieces, exponent, count):
    found = quotients(array(pieces), exponent, np.array([count]))[0]
    up, down = max(exponent, 0), max(-exponent, 0)
    assert found.hex() == ((whole(pieces) << up) / (count << down)).hex()


@given(
    sums=st.lists(PIECES, max_size=3),
    squares=st.lists(PIECES.map(abs), min_size=1, max_size=6),
    count=COUNTS.filter(lambda n: n > 1),
    exponent=st.integers(-1300, 100),
    sum_place=st.integers(0, 4),
    square_place=st.integers(0, 4),
    up=st.integers(0, 25),
)
@example(sums=[3], squares=[9], count=2, exponent=0, sum_place=0, square_place=0, up=0)
@settings(max_examples=examples(300), deadline=None)
def test_a_variance_is_that_of_pythons_integers(sums, squares, count, exponent, sum_place, square_place, up):
    found = variances(array(sums), array(squares), np.array([count]), exponent, sum_place, square_place, up)[0]
    spread = count * (whole(squares) << BITS * square_place + up) - (whole(sums) ** 2 << BITS * sum_place)
    expected = (spread << max(exponent, 0)) / (count * (count - 1) << max(-exponent, 0))
    assert found == max(expected, 0.0)


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.floats(-1e30, 1e30)), max_size=20),
    squares=st.booleans(),
    before=st.sampled_from([0, BLOCK - 2]),
)
@example(rows=[(0, 5e-324), (0, -5e-324), (2, 2.2250738585072014e-308), (2, -1e30)], squares=False, before=0)
@settings(max_examples=examples(200), deadline=None)
def test_digits_add_up_to_the_sums_and_the_squares(rows, squares, before):
    groups = np.array([before + group for group, _ in rows], dtype="int64")
    values = np.array([value for _, value in rows], dtype="float64")
    used = used_places(values, squares)
    digits = digit_sums(used, groups, values, before + 3)
    assert used.shape == (2, PLACES)
    assert len(digits) == used.sum()
    places = np.argwhere(used)
    for group in range(3):
        mine = [Fraction(value) for number, value in rows if number == group]
        for kind in range(2):
            units = sum(
                int(digit) << BITS * int(place)
                for (found, place), digit in zip(places, digits[:, before + group], strict=True)
                if found == kind
            )
            if kind == 0:
                assert Fraction(units, 2**1074) == sum(mine)
            elif squares and all(value == 0 or abs(value) > 2**-400 for value in mine):
                assert Fraction(units, 2**1074) == sum(value**2 for value in mine)


def test_the_largest_floats_have_their_places():
    values = np.array([math.ulp(0.0), 1.7976931348623157e308, -1.7976931348623157e308])
    used = used_places(values, False)
    assert digit_sums(used, np.zeros(3, "int64"), values, 1)[:, 0].tolist() == [1] + [0] * (int(used.sum()) - 1)
