"""Normalize: zero mean and unit standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.errors import DataError
from features.operators.base import FittedOperator
from features.operators.fill_missing import concatenate, known_values


@dataclass(frozen=True)
class Scale:
    """mean and population standard deviation at fit; a constant column has std 1, so it becomes 0."""

    mean: float
    std: float


class Normalize(FittedOperator):
    """float32 (x - mean) / std, replacing the column, which may hold no nulls.

    The sums run in float64 over the sorted values of the whole split, so the state is the same for any partitioning.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, frame: Any) -> Any:
        if frame[self.column].isna().any():
            raise DataError(f"Normalize: column {self.column!r} holds nulls. Fill them first.")
        return known_values(frame[self.column])

    def merge(self, left: Any, right: Any) -> Any:
        return concatenate(left, right)

    def finish(self, partial: Any) -> Scale:
        values = partial.copy()
        values.sort()  # in the narrow type, which is faster and gives the same order
        values = values.astype("float64")
        if values[0] == values[-1]:
            # Rounding can move the mean of equal values beside them, and the deviation then is tiny instead of 0.
            return Scale(float(values[0]), 1.0)
        mean = float(values.mean())
        std = float(((values - mean) ** 2).mean()) ** 0.5
        return Scale(mean, std if std > 0 else 1.0)

    def columns(self, frame: Any, state: Scale) -> dict[str, Any]:
        scaled = (frame[self.column].astype("float64") - state.mean) / state.std
        return {self.column: scaled.astype("float32")}
