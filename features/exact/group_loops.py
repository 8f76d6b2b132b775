"""Exact sums of a million groups on the CPU, compiled by numba: added up in digits of 26 bits, rounded once at the end.

A sum is whole: digit k stands for multiples of 2^(-1074 + 26 k), and int64 holds sums of 2^36 digits of one place. What
comes out is what Python's integers would give, at the price of a few divisions a group.

Import this module inside the function that needs it: numba takes half a second to load.
"""

from __future__ import annotations

import math

import numpy as np

from gigabatch.features.exact.sums import UNIT_EXPONENT
from gigabatch.loops import njit

BITS = 26
MASK = (1 << BITS) - 1
PLACES = 2046 // BITS + 3  # of the digits of all finite float64
BLOCK = 256  # groups whose digits fit into the L1 cache
# Leading digits that are divided. Two divisors below 2^36 take at most 3 of the quotient's, and 4 hold its 53 bits and
# the one after them.
WINDOW = 7


@njit()
def _digits(value):
    """(place of the first, three signed digits) of a finite float64."""
    word = np.float64(value).view(np.int64)
    exponent = (word >> 52) & 0x7FF
    mantissa = word & ((1 << 52) - 1)
    if exponent > 0:
        mantissa |= 1 << 52
        exponent -= 1
    place, up = exponent // BITS, exponent % BITS
    low = (mantissa & MASK) << up
    high = ((mantissa >> BITS) << up) + (low >> BITS)
    if word < 0:
        return place, -(low & MASK), -(high & MASK), -(high >> BITS)
    return place, low & MASK, high & MASK, high >> BITS


@njit()
def _square(value):
    """(x * x rounded, its error), exactly the square (Dekker 1971, section 5) but for squares near 2^-1022."""
    large = value * 134217729.0  # 2^27 + 1
    high = large - (large - value)
    low = value - high
    square = value * value
    return square, ((high * high - square) + 2.0 * high * low) + low * low


@njit()
def _mark(used, value):
    place, low, middle, high = _digits(value)
    used[place] |= low != 0
    used[place + 1] |= middle != 0
    used[place + 2] |= high != 0


@njit()
def used_places(values, squares):
    """bool[2, PLACES]: which digits the values have, and with `squares` which ones their squares have."""
    used = np.zeros((2, PLACES), np.bool_)
    for i in range(len(values)):
        _mark(used[0], values[i])
        if squares:
            square, error = _square(values[i])
            _mark(used[1], square)
            _mark(used[1], error)
    return used


@njit()
def _add(found, rows, value):
    place, low, middle, high = _digits(value)
    if low != 0:
        found[rows[place]] += low
    if middle != 0:
        found[rows[place + 1]] += middle
    if high != 0:
        found[rows[place + 2]] += high


@njit()
def digit_sums(used, groups, values, num_groups):
    """int64 [digits, groups]: sums of the digits that `used_places` found, a row for each, by group."""
    rows = np.empty(used.shape, np.int64)
    size = 0
    for kind in range(2):
        for place in range(PLACES):
            rows[kind, place] = size
            size += used[kind, place]
    squares = used[1].any()
    near = np.zeros((num_groups, size), np.int64)  # a group's digits side by side: rows come in any order
    for i in range(len(values)):
        found = near[groups[i]]
        _add(found, rows[0], values[i])
        if squares:
            square, error = _square(values[i])
            _add(found, rows[1], square)
            _add(found, rows[1], error)
    out = np.empty((size, num_groups), np.int64)
    for start in range(0, num_groups, BLOCK):
        for row in range(size):
            for group in range(start, min(start + BLOCK, num_groups)):
                out[row, group] = near[group, row]
    return out


@njit()
def add_extremes(low, high, groups, values):
    """Lower and raise each group's extremes to those of its values."""
    for i in range(len(values)):
        low[groups[i]] = min(low[groups[i]], values[i])
        high[groups[i]] = max(high[groups[i]], values[i])


@njit()
def _carried(sums, group, digits):
    """Write the absolute value of the group's sum as digits from 0 to 2^26 - 1; whether it is negative."""
    for sign in (1, -1):
        carry = 0
        for place in range(len(digits)):
            whole = carry
            if place < len(sums):
                whole += sign * sums[place, group]
            digits[place] = whole & MASK
            carry = whole >> BITS
        if carry == 0:
            return sign < 0
    return False


@njit()
def _divide(window, divisor):
    """Divide the window in place, its leading digit first; the remainder. Below 2^36 it fits beside a digit."""
    rest = 0
    for k in range(len(window)):
        whole = (rest << BITS) | window[k]
        window[k] = whole // divisor
        rest = whole - window[k] * divisor
    return rest


@njit()
def _nearest(digits, exponent, first, second, window):
    """The float64 nearest to digits * 2^exponent / (first * second), ties to even."""
    top = len(digits) - 1
    while top >= 0 and digits[top] == 0:
        top -= 1
    if top < 0:
        return 0.0
    more = False  # is anything left below the bits that are looked at
    for k in range(top - WINDOW + 1):
        more |= digits[k] != 0
    for k in range(WINDOW):
        window[k] = digits[top - k] if top >= k else 0
    more |= _divide(window, first) != 0
    if second > 1:
        more |= _divide(window, second) != 0
    lead = 0
    while window[lead] == 0:
        lead += 1
    for k in range(lead + 4, WINDOW):
        more |= window[k] != 0
    # The leading 62 bits of four digits, of which the first has 1 to 26.
    bits = (np.float64(window[lead]).view(np.int64) >> 52) - 1022
    low = (window[lead + 2] << BITS) | window[lead + 3]
    down = 16 + bits
    whole = (((window[lead] << BITS) | window[lead + 1]) << (52 - down)) | (low >> down)
    more |= low & ((1 << down) - 1) != 0
    unit = exponent + BITS * (top - lead) + bits - 62
    drop = max(62 - 53, UNIT_EXPONENT - unit)  # below 2^-1022 fewer bits than 53 are left
    if drop > 62:
        return 0.0
    kept, rest, half = whole >> drop, whole & ((1 << drop) - 1), 1 << (drop - 1)
    if rest > half or (rest == half and (more or kept & 1)):
        kept += 1
    return math.ldexp(float(kept), unit + drop)


@njit()
def quotients(sums, exponent, divisors):
    """float64 [groups], the nearest to sum * 2^exponent / divisor.

    sums: int64 [digits, groups], the lowest digit first; divisors: from 1 to 2^36.
    """
    found = np.empty(sums.shape[1])
    digits, window = np.empty(len(sums) + 2, np.int64), np.empty(WINDOW, np.int64)
    for group in range(len(found)):
        negative = _carried(sums, group, digits)
        nearest = _nearest(digits, exponent, divisors[group], 1, window)
        found[group] = -nearest if negative else nearest
    return found


@njit()
def variances(sums, squares, counts, exponent, sum_place, square_place, up):
    """float64 [groups], the nearest to (n * squares - sum^2) / (n * (n - 1)); 0 where rounded squares make it negative.

    In multiples of 2^exponent the squared sum begins at digit sum_place, and the squares at digit square_place, `up`
    (below 26) bits further. sums and squares: as in `quotients`; counts: from 2 to 2^36.
    """
    found = np.empty(len(counts))
    total, square = np.empty(len(sums) + 2, np.int64), np.empty(len(squares) + 3, np.int64)
    size = max(sum_place + 2 * len(total), square_place + len(square)) + 2
    spread, window = np.empty(size, np.int64), np.empty(WINDOW, np.int64)
    for group in range(len(found)):
        _carried(sums, group, total)
        _carried(squares, group, square)
        spread[:] = 0
        below = 0
        for k in range(len(square)):
            spread[square_place + k] = counts[group] * (((square[k] << up) & MASK) | below)
            below = square[k] >> (BITS - up)
        for i in range(len(total)):
            if total[i] != 0:
                for j in range(len(total)):
                    spread[sum_place + i + j] -= total[i] * total[j]
        carry = 0
        for k in range(size):
            whole = spread[k] + carry
            spread[k] = whole & MASK
            carry = whole >> BITS
        found[group] = 0.0 if carry < 0 else _nearest(spread, exponent, counts[group], counts[group] - 1, window)
    return found
