"""Normalize: zero mean and unit standard deviation."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from features.errors import DataError
from features.exact_sum import UNIT_EXPONENT, ExactSum
from features.operators.base import FittedOperator
from features.operators.fill_missing import known_values, require_finite

# A column that varies less than this is constant but for noise; dividing by it would leave float32's range.
SMALLEST_SPREAD = 2.0**-100


@dataclass(frozen=True)
class Scale:
    """mean and population standard deviation at fit.

    A constant column has std 1, so it becomes 0; so has one whose deviation is below SMALLEST_SPREAD.
    """

    mean: float
    std: float


@dataclass(frozen=True)
class Moments:
    """Count, exact sum and exact sum of squares; merging is addition of integers, so it has no order."""

    count: int
    total: ExactSum
    squares: ExactSum

    @classmethod
    def of(cls, values: Any) -> Moments:
        """Of a float or integer array, taken as float64; its squares are summed without rounding them."""
        wide = values.astype("float64")
        return cls(len(values), ExactSum.of(wide), _sum_of_squares(wide))

    def merge(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total.merge(other.total), self.squares.merge(other.squares))

    @classmethod
    def of_repeated(cls, value: float, count: int) -> Moments:
        """Of one number, `count` times."""
        total, squares = (int(Fraction(x) * (1 << -UNIT_EXPONENT)) * count for x in (value, value * value))
        return cls(count, ExactSum(total), ExactSum(squares))

    def scale(self) -> Scale:
        """Mean and standard deviation; each is the exact quotient, rounded once (and a square root)."""
        mean = self.total.units / (self.count << -UNIT_EXPONENT)
        variance_units = self.count * (self.squares.units << -UNIT_EXPONENT) - self.total.units**2
        variance = max(variance_units, 0) / (self.count**2 << -2 * UNIT_EXPONENT)
        return Scale(mean, variance**0.5 if variance**0.5 >= SMALLEST_SPREAD else 1.0)


class Normalize(FittedOperator):
    """float32 (x - mean) / std, replacing the column, which may hold no nulls.

    The state follows from exact sums, so it is the same for any partitioning.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, frame: Any) -> Moments:
        if frame[self.column].isna().any():
            raise DataError(f"Normalize: column {self.column!r} holds nulls. Fill them first.")
        return Moments.of(known_values(frame[self.column]))

    def merge(self, left: Moments, right: Moments) -> Moments:
        return left.merge(right)

    def finish(self, partial: Moments) -> Scale:
        if partial.count == 0:
            raise DataError(f"Normalize: column {self.column!r} has no value to fit on.")
        return partial.scale()

    def columns(self, frame: Any, state: Scale) -> dict[str, Any]:
        with np.errstate(over="ignore"):  # what leaves float32 is refused by name below
            scaled = ((frame[self.column].astype("float64") - state.mean) / state.std).astype("float32")
        require_finite(scaled)
        return {self.column: scaled}


@dataclass(frozen=True)
class Known:
    """Moments of the values that are known, and how many rows are null."""

    moments: Moments
    nulls: int

    def filled(self, value: float) -> Moments:
        """Of the float32 column with `value` in place of nulls, without another pass over it."""
        return self.moments.merge(Moments.of_repeated(_as_float32(value), self.nulls))


class KnownMoments(FittedOperator):
    """Fits `Known`; for those who fill and scale in one pass. Adds no column."""

    def __init__(self, column: str) -> None:
        self.column = column

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    def partial(self, frame: Any) -> Known:
        values = known_values(frame[self.column])
        return Known(Moments.of(values.astype("float32")), len(frame) - len(values))

    def merge(self, left: Known, right: Known) -> Known:
        return Known(left.moments.merge(right.moments), left.nulls + right.nulls)

    def finish(self, partial: Known) -> Known:
        return partial

    def columns(self, frame: Any, state: Known) -> dict[str, Any]:
        return {}


def _sum_of_squares(wide: Any) -> ExactSum:
    """Exact: each value is split into halves of 26 bits, whose products float64 holds (Dekker 1971, section 5)."""
    large = wide * 134217729.0  # 2^27 + 1
    high = large - (large - wide)
    low = wide - high
    found = ExactSum.of(high * high)
    if bool((low != 0).any()):
        crossed = ExactSum.of(high * low)
        found = found.merge(crossed).merge(crossed).merge(ExactSum.of(low * low))
    return found


def _as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]
