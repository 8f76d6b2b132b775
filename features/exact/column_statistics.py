"""What one pass over a continuous column finds out: enough for its median, its scale and a report of its change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from gigabatch.features.exact.float_order import ALL_VALID, Bitmap, as_float32, require_no_infinity, valid_mask
from gigabatch.features.exact.quantiles import RadixHistogram, Search, selected
from gigabatch.features.exact.sums import UNIT_EXPONENT, ExactSum, halves, leading_sums32, sum_of_squares

KEPT_VALUES = 1 << 22  # 16 MB of float32: with no more values than that in all, the partitions are not read again
# A column that varies less than this is constant but for noise; dividing by it would leave float32's range.
SMALLEST_SPREAD = 2.0**-100
CLIP = 3.0  # of robust scales
ENDLESS = float(np.finfo(np.float64).max)  # by which every float32 becomes 0
FEW_VALUES = 1 << 14  # fewer are summed without a table of 65,536 rows


@dataclass(frozen=True)
class Scale:
    """mean and population standard deviation at fit.

    A constant column has std 1, so it becomes 0; so has one whose deviation is below SMALLEST_SPREAD.
    """

    mean: float
    std: float

    @property
    def clip(self) -> float:
        """What bounds the scaled values; 0 where nothing does."""
        return 0.0

    def of(self, values: np.ndarray) -> np.ndarray:
        """float64 values as the encoded rows have them, before these are rounded to float32."""
        scaled = (values - self.mean) / self.std
        return scaled / np.sqrt(1 + (scaled / self.clip) ** 2) if self.clip else scaled


@dataclass(frozen=True)
class RobustScale(Scale):
    """mean: the median of the known values at fit; std: the range between their quartiles. Scaled values x become
    x / sqrt(1 + (x / bound)^2), which lies within `bound` of 0 and keeps their order.

    Where the quartiles are one value, std is half of the whole range; where that is 0 too, `ENDLESS`, so that the
    column is 0 whatever comes. Holzmüller, Grinsztajn and Steinwart, Better by Default, NeurIPS 2024 (arXiv
    2407.04491), section 3, which takes both for 0 where they are and not where they are below `SMALLEST_SPREAD`.
    """

    bound: float = CLIP

    @property
    def clip(self) -> float:
        return self.bound

    @classmethod
    def of_quantiles(cls, median: float, quartiles: tuple[float, float], ends: tuple[float, float]) -> RobustScale:
        """quartiles, ends: the lower and the upper; in float64."""
        spread = quartiles[1] - quartiles[0]
        if spread < SMALLEST_SPREAD:
            spread = (ends[1] - ends[0]) / 2
        return cls(median, spread if spread >= SMALLEST_SPREAD else ENDLESS)


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
            from gigabatch.features.exact.loops import leading_moments32

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
        return WeightedMoments(ExactSum(self.count << -UNIT_EXPONENT), self.total, self.squares).scale()


@dataclass(frozen=True)
class WeightedMoments:
    """Exact sums of weights w, of w x and of w x^2, so that a value of weight 2 is two, and one of weight 0 none."""

    mass: ExactSum
    total: ExactSum
    squares: ExactSum

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray) -> WeightedMoments:
        """Of finite float32 arrays, whose products are summed without rounding them."""
        wide, mass = values.astype("float64"), weights.astype("float64")
        weighed = wide * mass  # of 48 bits
        squares = [ExactSum.of(part * wide) for part in halves(weighed)]  # 26 and 24 bits: float64 holds the product
        return cls(ExactSum.of(mass), ExactSum.of(weighed), squares[0].merge(squares[1]))

    def merge(self, other: WeightedMoments) -> WeightedMoments:
        return WeightedMoments(
            self.mass.merge(other.mass), self.total.merge(other.total), self.squares.merge(other.squares)
        )

    def scale(self) -> Scale:
        """Mean and standard deviation; each is the exact quotient, rounded once (and a square root)."""
        mass, total = self.mass.units, self.total.units
        variance = max(mass * self.squares.units - total**2, 0) / mass**2
        return Scale(total / mass, variance**0.5 if variance**0.5 >= SMALLEST_SPREAD else 1.0)


@dataclass(frozen=True)
class ColumnStatistics:
    """rows: with the null ones. histogram and moments: of the values that are known; exact, so merging has no order.

    From the histogram follow the bins that `Search` looks into next for a median or other quantiles.
    """

    rows: int
    histogram: RadixHistogram
    moments: Moments

    @property
    def nulls(self) -> int:
        """Rows that are null or NaN."""
        return self.rows - self.moments.count

    @classmethod
    def of(cls, values: Any, valid: Bitmap | None = None) -> ColumnStatistics:
        """Of a float32 or float64 array, in which NaN is null; an infinity is `InfinityFound`.

        NumPy's float32 takes one compiled pass without the interpreter lock, about 1.1 ns of CPU time a value (1.7
        with a bitmap). valid: Arrow's validity bitmap (uint8) and the place in it of the first value; NumPy only.
        """
        if isinstance(values, np.ndarray) and values.dtype == np.float32:
            return cls.of_pieces([(values, valid or ALL_VALID)])
        histogram = RadixHistogram.of(values, valid)
        known = values == values  # not NaN
        if valid is not None:
            known &= valid_mask(valid, len(values))
        return cls(len(values), histogram, Moments.of(values[known]))

    @classmethod
    def of_pieces(cls, pieces: Sequence[tuple[np.ndarray, Bitmap]]) -> ColumnStatistics:
        """Of a column in pieces, NumPy float32 arrays with their bitmaps (`ALL_VALID` where there is none)."""
        from gigabatch.features.exact.loops import add_leading_moments32

        found = np.zeros((1 << 16, 3), np.int64)
        for values, valid in pieces:
            add_leading_moments32(found, np.ascontiguousarray(values).view(np.uint32), *valid)
        for values, valid in pieces:
            require_no_infinity(values, valid, found[:, 0])
        return cls.of_moments(sum(len(values) for values, _ in pieces), found)

    @classmethod
    def of_moments(cls, rows: int, moments: np.ndarray) -> ColumnStatistics:
        """Of float32 values without infinities, from what `loops.leading_moments32` counted of them."""
        return cls(rows, RadixHistogram.of_patterns("float32", moments[:, 0]), Moments.of_leading(moments))

    def filled_scale(self, fill: float) -> Scale:
        """Mean and deviation of all rows, null ones filled with a number."""
        return self.moments.merge(Moments.of_repeated(as_float32(fill), self.nulls)).scale()

    def merge(self, other: ColumnStatistics) -> ColumnStatistics:
        """Of both."""
        return ColumnStatistics(
            self.rows + other.rows, self.histogram.merge(other.histogram), self.moments.merge(other.moments)
        )


@dataclass(frozen=True, eq=False)
class Ranked:
    """What the first pass knows of a column's values.

    kept: the partitions' arrays (NumPy or CuPy, references where possible), while they are few; else None.
    """

    histogram: RadixHistogram
    kept: tuple[Any, ...] | None

    @classmethod
    def of(cls, values: Any, keep: bool = True) -> Ranked:
        """Of a float32 or float64 array; NaN is left out, an infinity is `InfinityFound`."""
        histogram = RadixHistogram.of(values)
        kept = (values,) if histogram.total else ()
        return cls(histogram, kept if keep and len(values) <= KEPT_VALUES else None)

    def merge(self, other: Ranked) -> Ranked:
        """Of both. More values never become fewer, so the order does not decide whether they are kept."""
        kept = None if self.kept is None or other.kept is None else self.kept + other.kept
        if kept is not None and sum(map(len, kept)) > KEPT_VALUES:
            kept = None
        return Ranked(self.histogram.merge(other.histogram), kept)

    def search(self, ranks: Sequence[int]) -> Search:
        """The search for these ranks, resolved if the values are at hand."""
        search = Search.start(self.histogram, ranks)
        return search if self.kept is None else selected(search, self.kept)
