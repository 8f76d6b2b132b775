"""QuantileBuckets: numbers to buckets of about equal size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from features.errors import DataError
from features.frame import engine_of
from features.operators.base import FittedOperator
from features.operators.fill_missing import concatenate, known_values


@dataclass(frozen=True)
class Edges:
    """edges: ascending and distinct. merged: how many of the asked edges fell together with another one."""

    edges: tuple[float, ...]
    merged: int


class QuantileBuckets(FittedOperator):
    """int32 bucket, replacing the column: 0 for null, 1 up to the first edge inclusive, 2 above it, and so on.

    Edges are the exact quantiles i / num_buckets of the known values at fit, i from 1 to num_buckets - 1, by NumPy's
    `linear` definition (Hyndman and Fan 1996, definition 7). Equal edges are merged, so a column with few distinct
    values has fewer buckets; the state's `merged` says by how many.
    """

    def __init__(self, column: str, num_buckets: int) -> None:
        if num_buckets < 2:
            raise DataError(f"QuantileBuckets of {column!r}: num_buckets must be at least 2, found {num_buckets}.")
        self.column, self.num_buckets = column, num_buckets

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, frame: Any) -> Any:
        return known_values(frame[self.column]).astype("float64")

    def merge(self, left: Any, right: Any) -> Any:
        return concatenate(left, right)

    def finish(self, partial: Any) -> Edges:
        if len(partial) == 0:
            raise DataError(f"QuantileBuckets: column {self.column!r} has no known value in the train split.")
        values = partial.copy()
        values.sort()
        found = [linear_quantile(values, i / self.num_buckets) for i in range(1, self.num_buckets)]
        edges = tuple(sorted(set(found)))
        return Edges(edges, len(found) - len(edges))

    def columns(self, frame: Any, state: Edges) -> dict[str, Any]:
        engine = engine_of(frame)
        column = frame[self.column]
        values = engine.array(column.astype("float64"), fill=0.0)
        buckets = 1 + engine.arrays.searchsorted(engine.arrays.asarray(state.edges), values)
        buckets = engine.arrays.where(engine.array(column.isna()), 0, buckets)
        return {self.column: engine.series(buckets.astype("int32"), frame)}


def linear_quantile(values: Any, fraction: float) -> float:
    """NumPy's `linear` quantile of an ascending array, bit for bit: it takes the nearer neighbour as the base."""
    place = fraction * (len(values) - 1)
    below = math.floor(place)
    part = place - below
    low, high = float(values[below]), float(values[min(below + 1, len(values) - 1)])
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part
