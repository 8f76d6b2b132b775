"""Normalize: zero mean and unit standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from features.errors import DataError
from features.exact_sum import UNIT_EXPONENT, ExactSum, leading_sums32, sum_of_squares
from features.frame import engine_of
from features.operators.base import FittedOperator, OneColumn
from features.operators.fill_missing import filled_values, require_finite

# A column that varies less than this is constant but for noise; dividing by it would leave float32's range.
SMALLEST_SPREAD = 2.0**-100
FEW_VALUES = 1 << 14  # fewer are summed without a table of 65,536 rows


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
        if isinstance(values, np.ndarray) and values.dtype == np.float32 and FEW_VALUES <= len(values) < 1 << 31:
            from features.kernels import leading_moments32

            words = np.ascontiguousarray(values).view(np.uint32)
            found = cls.of_leading(leading_moments32(words, np.empty(0, np.uint8), 0))
            if found.count != len(values):
                raise ValueError("Moments: the values hold NaN or an infinity; remove them first.")
            return found
        wide = values.astype("float64")
        return cls(len(values), ExactSum.of(wide), sum_of_squares(wide))

    @classmethod
    def of_leading(cls, moments: np.ndarray) -> Moments:
        """Of the finite ones among the float32 values that `kernels.leading_moments32` counted."""
        count = int(moments[:, 0].reshape(2, 256, 128)[:, :255].sum())
        return cls(count, *leading_sums32(moments))

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


class Normalize(OneColumn, FittedOperator):
    """float32 (x - mean) / std, replacing the column, which may hold no nulls.

    The state follows from exact sums, so it is the same for any partitioning.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def partial(self, frame: Any) -> Moments:
        return Moments.of(filled_values(frame, self.column, "Normalize"))

    def merge(self, left: Moments, right: Moments) -> Moments:
        return left.merge(right)

    def finish(self, partial: Moments) -> Scale:
        if partial.count == 0:
            raise DataError(f"Normalize: column {self.column!r} has no value to fit on.")
        return partial.scale()

    def columns(self, frame: Any, state: Scale) -> dict[str, Any]:
        values = filled_values(frame, self.column, "Normalize")
        with np.errstate(over="ignore"):  # what leaves float32 is refused by name below
            scaled = ((values - state.mean) / state.std).astype("float32")
        found = engine_of(frame).series(scaled, frame).rename(self.column)
        require_finite(found)
        return {self.column: found}
