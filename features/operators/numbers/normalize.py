"""Normalize: zero mean and unit standard deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import filled_values, require_finite
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Moments, Scale
from gigabatch.features.operators.base import FittedOperator


class Normalize(FittedOperator):
    """float32 (x - mean) / std, replacing the column, which may hold no nulls.

    The state follows from exact sums, so it is the same for any partitioning.
    """

    reads, writes = ("column",), ("column",)

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
