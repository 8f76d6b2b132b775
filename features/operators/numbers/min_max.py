"""MinMax: a column onto the range 0 to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gigabatch.features.columns.numbers import filled_values, float32_column
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import SMALLEST_SPREAD
from gigabatch.features.operators.base import FittedOperator


@dataclass(frozen=True)
class Range:
    """Smallest and largest value at fit."""

    low: float
    high: float

    @property
    def span(self) -> float:
        """What values are divided by."""
        span = self.high - self.low
        return span if span >= SMALLEST_SPREAD else 1.0


class MinMax(FittedOperator):
    """Scale a column onto the range 0 to 1.

    A column that is constant at fit, or spans less than 2^-100, becomes 0, and another value later x - low. Values
    outside the range of the fit are not clipped and come out below 0 or above 1.

    Parameters
    ----------
    column
        Numbers without nulls.
    output
        Name of the new float32 column, (x - low) / (high - low); `column` itself by default.

    Raises
    ------
    DataError
        The column holds a null, an infinity or something else than numbers, there is no row to fit on, the range is
        more than float64 can hold, or a scaled value leaves float32.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import MinMax
    >>> operator = MinMax("price")
    >>> state = operator.fit([pd.DataFrame({"price": [10, 30]})])
    >>> operator.apply(pd.DataFrame({"price": [15, 30, 50]}), state)["price"].tolist()
    [0.25, 1.0, 2.0]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, output: str | None = None) -> None:
        self.column, self.output = column, column if output is None else output

    def partial(self, frame: Frame) -> Range:
        """The partition's range; from infinity to -infinity for a partition without rows."""
        values = filled_values(frame, self.column, "MinMax")
        return Range(float(values.min()), float(values.max())) if len(values) else Range(math.inf, -math.inf)

    def merge(self, left: Range, right: Range) -> Range:
        return Range(min(left.low, right.low), max(left.high, right.high))

    def finish(self, partial: Range) -> Range:
        if partial.low > partial.high:
            raise DataError(f"MinMax: column {self.column!r} has no rows to fit on. The train split is empty.")
        if not math.isfinite(partial.high - partial.low):
            raise DataError(
                f"MinMax: column {self.column!r} spans {partial.low} to {partial.high}, more than float64 can hold. "
                "Clip it first."
            )
        return partial

    def columns(self, frame: Frame, state: Range) -> dict[str, Column]:
        values = filled_values(frame, self.column, "MinMax")
        return {self.output: float32_column((values - state.low) / state.span, frame, self.column)}
