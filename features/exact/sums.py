"""Exact sums: the same number for any order and any split of the values.

A float64 is a whole number of units of 2^-1074, so a sum of floats is a sum of integers and has one right answer.

On the CPU a compiled loop (`features/exact/loops.py`) adds up mantissas by exponent. On a GPU the integers are found
without leaving vector arithmetic: adding and subtracting 1.5 * 2^(u + 52) rounds a value to a multiple of 2^u without
error (the extraction of Rump, Ogita and Oishi 2008, "Accurate floating-point summation part I", section 3), values
within a few powers of two of each other then add up exactly in float64 in whatever order the library takes, and what
was left over goes through again with smaller units until nothing is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

UNIT_EXPONENT = -1074  # of the smallest float64 above 0
CHUNK_BITS = 22  # values a launch: 32 MB; a chunk's pieces keep 53 - 22 bits, so that their float64 sum is exact


@dataclass(frozen=True)
class ExactSum:
    """The exact sum of finite numbers, in units of 2^-1074. Equal sums are equal objects.

    On one shared CPU core: about 1.1 ns of CPU time a value, float32 or float64, whatever their range.
    """

    units: int = 0

    @classmethod
    def of(cls, values: Any) -> ExactSum:
        """The sum of a float64, float32, integer or bool array (NumPy or CuPy); `ValueError` for NaN and infinity."""
        kind = values.dtype.kind
        if kind not in "biuf":
            raise ValueError(f"ExactSum.of: an array of {values.dtype} has no sum. Cast it to numbers first.")
        values = values.ravel()
        if kind != "f":
            return cls(_sum_integers(values) << -UNIT_EXPONENT)
        if isinstance(values, np.ndarray):
            from gigabatch.features.exact.loops import sum_bins

            return cls.of_bins(sum_bins(_for_kernel(values)))
        return cls(sum_by_extraction(values))

    @classmethod
    def of_bins(cls, bins: np.ndarray) -> ExactSum:
        """The sum that `kernels.sum_bins` counted."""
        units = 0
        for row in np.flatnonzero(bins.any(axis=1)).tolist():
            negative, exponent = divmod(row, 2048)
            if exponent == 2047:
                raise ValueError("exact sum: the values hold NaN or an infinity; remove them first.")
            high, low = bins[row].tolist()
            found = ((high << 26) + low) << max(exponent - 1, 0)
            units += -found if negative else found
        return cls(units)

    def merge(self, other: ExactSum) -> ExactSum:
        """The sum of both; integer addition, so associative and commutative exactly."""
        return ExactSum(self.units + other.units)

    def value(self) -> float:
        """The nearest float64, ties to even; `OverflowError` beyond its range."""
        return self.units / (1 << -UNIT_EXPONENT)  # Python rounds a quotient of integers correctly


def _sum_integers(values: Any) -> int:
    if values.dtype.kind == "b" or values.dtype.itemsize <= 4:
        return int(values.astype("int64").sum())
    # Halves of 32 bits: neither can leave int64 below 2^31 values.
    return (int((values >> 32).astype("int64").sum()) << 32) + int((values & 0xFFFFFFFF).astype("int64").sum())


def sum_of_squares(values: Any) -> ExactSum:
    """The exact sum of the squares of a float64 array; `ValueError` where one leaves float64.

    Exact too where a square needs more than 53 bits: each value is split into halves of 26 bits, whose products float64
    holds (Dekker 1971, section 5), unless they fall below 2^-1074.
    """
    if isinstance(values, np.ndarray):
        from gigabatch.features.exact.loops import square_bins

        return ExactSum.of_bins(square_bins(_for_kernel(values)))
    return squares_by_extraction(values)


def leading_sums32(moments: np.ndarray) -> tuple[ExactSum, ExactSum]:
    """Exact sum and sum of squares of the float32 values that `kernels.leading_moments32` counted, NaN and infinity
    left out."""
    rows = moments.reshape(512, 128, 3)
    used = np.flatnonzero(rows[:, :, 0].any(axis=1))
    counts, lows, low_squares = np.moveaxis(rows[used], 2, 0)
    upper = np.arange(128, dtype=np.int64) + np.where(used % 256 > 0, 128, 0)[:, None]  # with the implicit bit
    totals = (((upper * counts) << 16) + lows).sum(axis=1).tolist()
    squares = [part.sum(axis=1).tolist() for part in (upper * upper * counts, upper * lows, low_squares)]
    total = square = 0
    for place, (negative, exponent) in enumerate(divmod(row, 256) for row in used.tolist()):
        if exponent == 255:
            continue
        shift = max(exponent, 1) - 150  # of a mantissa's last bit
        found = totals[place] << (shift - UNIT_EXPONENT)
        total += -found if negative else found
        high, cross, low = (part[place] for part in squares)
        square += ((high << 32) + (cross << 17) + low) << (2 * shift - UNIT_EXPONENT)
    return ExactSum(total), ExactSum(square)


def _for_kernel(values: np.ndarray) -> np.ndarray:
    """Contiguous float32 or float64; the kernels are compiled for these."""
    return np.ascontiguousarray(values, dtype=np.float32 if values.dtype == np.float32 else np.float64)


def sum_by_extraction(values: Any, bits: int = CHUNK_BITS) -> int:
    """The exact sum of a float array in units of 2^-1074, in vector arithmetic only, 2^bits values at a time."""
    units = 0
    for start in range(0, len(values), 1 << bits):
        chunk = values[start : start + (1 << bits)].astype("float64")
        for unit, pieces in exact_pieces(chunk, 53 - bits):
            # 2^bits pieces of 53 - bits bits each stay below 2^53 units: exact; huge ones could overflow.
            total, down = (float((pieces * 2.0**-64).sum()), 64) if unit > 900 else (float(pieces.sum()), 0)
            units += int(math.ldexp(total, down - unit)) << (unit - UNIT_EXPONENT)
    return units


def squares_by_extraction(wide: Any) -> ExactSum:
    """`sum_of_squares` of a float64 array in vector arithmetic only."""
    high, low = halves(wide)
    units = sum_by_extraction(high * high)
    if bool((low != 0).any()):
        units += 2 * sum_by_extraction(high * low) + sum_by_extraction(low * low)
    return ExactSum(units)


def halves(values: Any) -> tuple[Any, Any]:
    """Two float64 arrays of at most 26 bits a value that add up to the float64 array (Dekker 1971, section 5)."""
    large = values * 134217729.0  # 2^27 + 1
    high = large - (large - values)
    return high, values - high


def exact_pieces(values: Any, bits: int, grid: int = 1) -> Iterator[tuple[int, Any]]:
    """Pairs (unit, pieces) whose pieces add up to the float64 array `values` exactly, element by element.

    Pieces are multiples of 2^unit, at most 2^bits of them in absolute value; the units fall from pair to pair, and
    each is UNIT_EXPONENT plus a multiple of `grid`, which is at most `bits`. bits: from 2 to 50.
    """
    rest = values.copy()
    while len(rest):
        largest = max(float(rest.max()), -float(rest.min()))
        if not math.isfinite(largest):
            raise ValueError("exact sum: the values hold NaN or an infinity; remove them first.")
        if largest == 0:
            return
        above = math.frexp(largest)[1] - bits - UNIT_EXPONENT
        unit = max(-(-above // grid) * grid, 0) + UNIT_EXPONENT
        pieces = _multiples(rest, unit)
        yield unit, pieces
        rest -= pieces


def _multiples(values: Any, unit: int) -> Any:
    """Each value rounded to a multiple of 2^unit: towards 0 near the end of float64's range, else to the nearest."""
    if unit > 900:  # the anchor, or the largest number rounded up, would overflow
        return (values * 2.0**-unit).astype("int64") * 2.0**unit
    anchor = math.ldexp(1.5, unit + 52)
    pieces = values + anchor
    pieces -= anchor
    return pieces
