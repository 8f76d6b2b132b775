"""Normalize: zero mean and unit standard deviation."""

from __future__ import annotations

from gigabatch.features.columns.numbers import filled_values, float32_column
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Moments, Scale
from gigabatch.features.operators.base import FittedOperator

LARGEST = 1e150  # whose square float64 still holds, of many rows too


class Normalize(FittedOperator):
    """Scale a column to zero mean and unit standard deviation.

    Mean and (population) standard deviation follow from exact sums over the train rows, so they are the same for any
    partitioning. A column that is constant at fit becomes 0, and another value later x - mean.

    Parameters
    ----------
    column
        Numbers without nulls.
    output
        Name of the new float32 column, (x - mean) / std; `column` itself by default.

    Raises
    ------
    DataError
        The column holds a null, an infinity or something else than numbers, there is no row to fit on, a number of
        1e150 or beyond at fit, or a scaled value leaves float32.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Normalize
    >>> frame = pd.DataFrame({"price": [10.0, 20.0, 30.0, 40.0]})
    >>> operator = Normalize("price")
    >>> state = operator.fit([frame])
    >>> state.mean
    25.0
    >>> operator.apply(frame, state)["price"].round(3).tolist()
    [-1.3420000076293945, -0.44699999690055847, 0.44699999690055847, 1.3420000076293945]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, output: str | None = None) -> None:
        self.column, self.output = column, column if output is None else output

    def partial(self, frame: Frame) -> Moments:
        values = filled_values(frame, self.column, "Normalize")
        if bool((abs(values) >= LARGEST).any()):
            raise DataError(
                f"Normalize: column {self.column!r} holds numbers of 1e150 and beyond, whose squares leave float64. "
                "Divide them by a power of ten, or take the logarithm first."
            )
        return Moments.of(values)

    def merge(self, left: Moments, right: Moments) -> Moments:
        return left.merge(right)

    def finish(self, partial: Moments) -> Scale:
        if partial.count == 0:
            raise DataError(f"Normalize: column {self.column!r} has no value to fit on.")
        return partial.scale()

    def columns(self, frame: Frame, state: Scale) -> dict[str, Column]:
        values = filled_values(frame, self.column, "Normalize")
        return {self.output: float32_column((values - state.mean) / state.std, frame, self.column)}
