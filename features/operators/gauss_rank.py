"""GaussRank: a column onto the shape of the normal distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from features.errors import DataError
from features.frame import engine_of
from features.operators.base import FittedOperator
from features.operators.fill_missing import concatenate
from features.operators.min_max import filled_values

CLIP = 1e-6


@dataclass(frozen=True)
class Scores:
    """table: columns `value` (ascending, distinct) and `score`, float64."""

    table: Any


class GaussRank(FittedOperator):
    """float32 normal score of the value's rank, replacing the column, which may hold no nulls.

    Ranks at fit run from 0 to n - 1, equal values share their mean; rank / (n - 1) is clipped to [1e-6, 1 - 1e-6] and
    goes through the inverse normal distribution function (Jahrer 2017, "RankGauss", first place of Porto Seguro's
    Safe Driver Prediction). A value not seen at fit is interpolated linearly between its neighbours' scores, which
    keeps the order; beyond the ends it takes the end's score. A constant column becomes 0.
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
        """Values of the partition as a one-column frame's array."""
        return filled_values(frame, self.column, "GaussRank") + 0.0  # -0.0 becomes 0.0: one value, one knot

    def merge(self, left: Any, right: Any) -> Any:
        return concatenate(left, right)

    def finish(self, partial: Any) -> Scores:
        import pandas as pd

        if len(partial) == 0:
            raise DataError(f"GaussRank: column {self.column!r} has no rows to fit on. The train split is empty.")
        values = partial.copy()
        values.sort()
        if not math.isfinite(float(values[-1]) - float(values[0])):
            raise DataError(f"GaussRank: column {self.column!r} spans more than float64 can hold. Clip it first.")
        engine = engine_of_array(values)
        first = engine.arrays.ones(len(values), dtype=bool)
        first[1:] = values[1:] != values[:-1]
        starts = engine.to_host(engine.arrays.nonzero(first)[0])
        knots = engine.to_host(values[first])
        return Scores(engine.from_pandas(pd.DataFrame({"value": knots, "score": scores(starts, len(values))})))

    def columns(self, frame: Any, state: Scores) -> dict[str, Any]:
        engine = engine_of(frame)
        xp = engine.arrays
        values = filled_values(frame, self.column, "GaussRank")
        knots, score = engine.array(state.table["value"]), engine.array(state.table["score"])
        below = xp.clip(xp.searchsorted(knots, values, side="right") - 1, 0, None)
        above = xp.clip(below + 1, None, len(knots) - 1)
        gap = knots[above] - knots[below]
        part = xp.clip(values, knots[0], knots[-1]) - knots[below]
        part = part / xp.where(gap > 0, gap, 1.0)
        # The last bits of a product may pass the upper neighbour; order must hold.
        found = xp.minimum(score[below] + part * (score[above] - score[below]), score[above])
        return {self.column: engine.series(found.astype("float32"), frame)}


def engine_of_array(values: Any) -> Any:
    """The engine module whose arrays these are."""
    from features.frame import load_engine

    return load_engine("cudf" if type(values).__module__.partition(".")[0] == "cupy" else "pandas")


def scores(starts: Any, num_rows: int) -> Any:
    """float64 normal scores of the distinct values of a sorted column; starts: where each of them begins.

    On the host, once a fit: the same bits whatever the device.
    """
    import numpy as np
    import torch

    stops = np.append(starts[1:], num_rows)
    if num_rows == 1:
        return np.zeros(1)
    uniform = np.clip((starts + stops - 1) / 2 / (num_rows - 1), CLIP, 1 - CLIP)
    return torch.special.ndtri(torch.from_numpy(uniform)).numpy()
