"""GaussRank: a column onto the shape of the normal distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import filled_values, tell_of_rounding
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import rankable
from gigabatch.features.exact.quantiles import RadixHistogram
from gigabatch.features.operators.base import FittedOperator

CLIP = 1e-6
MOST_KNOTS = 1 << 20  # 16 MB


@dataclass(frozen=True)
class Scores:
    """table: columns `value` (ascending, distinct) and `score`, float64.

    rank_error: a score that a value of the fit gets is that of a rank / (n - 1) at most so far from the value's own; 0
    where every distinct value has its knot.
    """

    table: Any
    rank_error: float = 0.0


@dataclass(frozen=True, eq=False)
class Partial:
    """counted: distinct values, or groups of them. low, high: of all values. engine: the partitions' library."""

    counted: RadixHistogram
    low: float
    high: float
    engine: str


class GaussRank(FittedOperator):
    """Map a column onto the shape of the normal distribution by the ranks of its values.

    Ranks at fit run from 0 to n - 1, equal values share their mean; rank / (n - 1) is clipped to [1e-6, 1 - 1e-6] and
    goes through the inverse normal distribution function (Jahrer 2017, "RankGauss", first place of Porto Seguro's Safe
    Driver Prediction). A value not seen at fit is interpolated linearly between its neighbours' scores, which keeps the
    order; beyond the ends it takes the end's score. A constant column becomes 0.

    Parameters
    ----------
    column
        Numbers without nulls. Integers above 2^53 are taken as the nearest float64, and a fit logs it.
    max_knots
        Of a column with more distinct values, those that share their leading bits also share a mean rank, with as many
        bits as make no more than `max_knots` groups. So the fit takes bounded memory and one pass over the partitions;
        the state's `rank_error` says what that costs.
    output
        Name of the new float32 column of scores; `column` itself by default.

    Raises
    ------
    DataError
        A `max_knots` below 2; a null, an infinity or something else than numbers; no row to fit on; a range that is
        more than float64 can hold.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import GaussRank
    >>> frame = pd.DataFrame({"income": [10.0, 20.0, 5000.0]})
    >>> operator = GaussRank("income")
    >>> operator.apply(frame, operator.fit([frame]))["income"].round(2).tolist()
    [-4.75, 0.0, 4.75]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, max_knots: int = MOST_KNOTS, output: str | None = None) -> None:
        if max_knots < 2:
            raise DataError(f"GaussRank of {column!r}: max_knots must be at least 2, found {max_knots}.")
        self.column, self.max_knots = column, max_knots
        self.output = column if output is None else output

    def partial(self, frame: Frame) -> Partial:
        values = rankable(filled_values(frame, self.column, "GaussRank", wide=False))
        tell_of_rounding(frame[self.column], "GaussRank")
        ends = (float(values.min()), float(values.max())) if len(values) else (math.inf, -math.inf)
        return Partial(RadixHistogram.distinct(values, "float64").limited(self.max_knots), *ends, engine_of(frame).NAME)

    def merge(self, left: Partial, right: Partial) -> Partial:
        counted = left.counted.merge(right.counted).limited(self.max_knots)
        return Partial(counted, min(left.low, right.low), max(left.high, right.high), left.engine)

    def finish(self, partial: Partial) -> Scores:
        import pandas as pd

        counted = partial.counted
        total = counted.total
        if not total:
            raise DataError(f"GaussRank: column {self.column!r} has no rows to fit on. The train split is empty.")
        if not math.isfinite(partial.high - partial.low):
            raise DataError(f"GaussRank: column {self.column!r} spans more than float64 can hold. Clip it first.")
        low, high = counted.edges()
        knots = low if counted.exact else np.clip(low / 2 + high / 2, partial.low, partial.high)
        starts = np.cumsum(counted.counts) - counted.counts
        table = load_engine(partial.engine).from_pandas(pd.DataFrame({"value": knots, "score": scores(starts, total)}))
        if counted.exact:
            return Scores(table)
        # Such a score lies between those of the two groups beside the value's own.
        groups = np.concatenate([[0], counted.counts, [0]])
        furthest = groups[1:-1] + np.maximum(groups[:-2], groups[2:]) / 2
        return Scores(table, min(float(furthest.max()) / max(total - 1, 1), 1.0))

    def columns(self, frame: Frame, state: Scores) -> dict[str, Column]:
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
        return {self.output: engine.series(found.astype("float32"), frame)}


def scores(starts: Any, num_rows: int) -> Any:
    """float64 normal scores of the distinct values of a sorted column; starts: where each of them begins.

    On the host, once a fit: the same bits whatever the device.
    """
    import torch

    stops = np.append(starts[1:], num_rows)
    if num_rows == 1:
        return np.zeros(1)
    uniform = np.clip((starts + stops - 1) / 2 / (num_rows - 1), CLIP, 1 - CLIP)
    return torch.special.ndtri(torch.from_numpy(uniform)).numpy()
