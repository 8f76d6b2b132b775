"""Clip: values held between two bounds."""

from __future__ import annotations

import math

import numpy as np

from gigabatch.features.columns.numbers import is_empty
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator


class Clip(ColumnOperator):
    """Hold the values of a column between two bounds.

    Values below `low` become `low`, those above `high` become `high`; the type is that of the column. Nulls stay null,
    an infinity beyond a bound becomes that bound. Row-wise.

    Parameters
    ----------
    column
        Numbers.
    low, high
        Finite bounds; None is no bound, but one of the two must be given.
    output
        Name of the new column; `column` itself by default.

    Raises
    ------
    DataError
        No bound, a bound that is not finite, low above high, a column that holds no numbers, or a bound that the
        column's type cannot hold (a fraction for an integer column, 300 for int8).

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Clip
    >>> Clip("delay", -30, 180)(pd.DataFrame({"delay": [-45, 12, 999]}))["delay"].tolist()
    [-30, 12, 180]
    """

    reads, writes = ("column",), ("output",)

    def __init__(
        self, column: str, low: float | None = None, high: float | None = None, output: str | None = None
    ) -> None:
        bounds = [bound for bound in (low, high) if bound is not None]
        if not bounds or not all(map(math.isfinite, bounds)) or (len(bounds) == 2 and bounds[0] > bounds[1]):
            raise DataError(
                f"Clip of {column!r}: give low, high or both as finite numbers with low <= high, found low={low}, "
                f"high={high}."
            )
        self.column, self.low, self.high = column, low, high
        self.output = column if output is None else output

    def compute(self, frame: Frame) -> dict[str, Column]:
        column = frame[self.column]
        low, high = (_bound_as(column, bound) for bound in (self.low, self.high))
        if low is None and high is None:
            return {self.output: column}
        return {self.output: column.clip(lower=low, upper=high).astype(column.dtype)}


def _bound_as(column: Column, bound: float | None) -> float | None:
    """The bound as a number of the column's type."""
    if is_empty(column, "iuf", "Clip") or bound is None:
        return None
    kind = column.dtype.kind
    dtype = np.dtype(getattr(column.dtype, "numpy_dtype", column.dtype))  # of pandas' masked and Arrow types
    limits = np.finfo(dtype) if kind == "f" else np.iinfo(dtype)
    low, high = (float(limits.min), float(limits.max)) if kind == "f" else (int(limits.min), int(limits.max))
    if not low <= bound <= high or (kind != "f" and bound != int(bound)):
        raise DataError(f"Clip: column {column.name!r} is {column.dtype}, which cannot hold the bound {bound}.")
    return float(bound) if kind == "f" else int(bound)
