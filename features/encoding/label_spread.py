"""What float32, in which labels are kept, leaves of a regression target's differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Moments
from gigabatch.features.reading.sources import cast
from gigabatch.features.refit.statistics import FitStatistics

LARGEST_LOSS = 1e-3  # of the standard deviation of labels, by rounding
SMALLEST_SPREAD = 2.0**-50  # of the mean of floats: less is the rounding of float64, whose numbers are 2**-52 apart
LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class LabelSpread:
    """Hold how far labels lie apart, and how far float32 moves one.

    Labels that are null, infinite or beyond float32 are left out; whoever encodes them refuses them.

    Parameters
    ----------
    moments
        Of the labels as float64.
    lost
        The most that float32 moves a label by.
    low, high
        The least and the greatest label.
    whole
        Whether the labels come as integers, whose differences are real however small.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.encoding.label_spread import LabelSpread
    >>> LabelSpread.of(pd.Series([1e9, 1e9 + 1]), "price").lost
    1.0
    """

    moments: Moments
    lost: float
    low: float
    high: float
    whole: bool

    @classmethod
    def of(cls, column: Any, name: str) -> LabelSpread:
        """Measure a column of N labels.

        Parameters
        ----------
        column
            Numbers, or what `gigabatch.features.reading.sources.cast` makes float64 of.
        name
            Of the target, for errors.

        Raises
        ------
        DataError
            If the labels are no numbers.
        """
        engine, whole = engine_of(column), column.dtype.kind in "iu"
        typed = column if whole else cast(column.to_frame(name), {name: "float64"}, f"target {name!r}")[name]
        values = engine.array(typed.dropna())
        values = values.astype("uint64" if values.dtype.kind == "u" else "int64" if whole else "float64")
        values = values[abs(values.astype("float64")) <= LARGEST_FLOAT32]
        wide = values.astype("float64")
        narrow = values.astype("float32").astype("float64")
        if not len(values):
            return cls(Moments.of(wide), 0.0, float("inf"), float("-inf"), whole)
        # In two parts, because float64 does not hold every integer beyond 2^53.
        upper = values >> 32 << 32 if whole else values
        moved = abs((upper.astype("float64") - narrow) + (values - upper).astype("float64"))
        return cls(Moments.of(wide), float(moved.max()), values.min().item(), values.max().item(), whole)

    def merge(self, other: LabelSpread) -> LabelSpread:
        """That of both columns, one below the other."""
        return LabelSpread(
            self.moments.merge(other.moments),
            max(self.lost, other.lost),
            min(self.low, other.low),
            max(self.high, other.high),
            self.whole or other.whole,
        )

    @property
    def is_lost(self) -> bool:
        """Whether float32 loses the labels' differences; a constant has none."""
        if self.low >= self.high:
            return False
        scale = self.moments.scale()
        noise = 0.0 if self.whole else SMALLEST_SPREAD * abs(scale.mean)
        return scale.std > noise and self.lost > LARGEST_LOSS * scale.std

    def require_deviation(self, name: str) -> None:
        """Raise `DataError` for labels that differ, and by so little that their scale would be that of a constant."""
        if self.low >= self.high:
            return
        scale, width = self.moments.scale(), float(self.high - self.low)
        # No deviation is as wide as the values lie apart: it is the 1 of a constant.
        if scale.std > width and (self.whole or width > SMALLEST_SPREAD * abs(scale.mean)):
            raise DataError(
                f"target {name!r}: its values differ by {width:.3g} at most, which float32, in which labels are kept, "
                "is too coarse for. Give them in a smaller unit, such that they differ by about 1."
            )

    def require(self, name: str) -> None:
        """Raise `DataError` for labels whose differences float32 loses, or the scale that they are learnt in."""
        self.require_deviation(name)
        if self.is_lost:
            scale = self.moments.scale()
            raise DataError(
                f"target {name!r}: float32, in which labels are kept, moves values by up to {self.lost:.3g}, and they "
                f"differ by {scale.std:.3g} (standard deviation). Subtract a constant near their mean, "
                f"{scale.mean:.17g}."
            )


class FitLabels(FitStatistics):
    """Fit `LabelSpread` of a regression target as it is given, and refuse labels whose differences float32 loses."""

    def partial(self, frame: Any) -> LabelSpread:
        return LabelSpread.of(frame[self.column], self.column)

    def merge(self, left: LabelSpread, right: LabelSpread) -> LabelSpread:
        return left.merge(right)

    def finish(self, partial: LabelSpread) -> LabelSpread:
        partial.require(self.column)
        return partial
