"""FillAndScale: `FillMissing` and then `Normalize`, fitted together in one pass and the median's next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.column_statistics import ColumnStatistics, Moments, Ranked, Scale
from features.frame import engine_of
from features.number_columns import as_float32, naming
from features.operators.base import FittedOperator
from features.operators.fill_missing import Fill, Filling, FillMissing
from features.operators.normalize import Normalize
from features.quantiles import RadixHistogram, Search, middle_ranks
from features.rank_search import NextPass


@dataclass(frozen=True)
class FilledScale:
    """The state. scale: None where the column is only filled."""

    fill: Fill
    scale: Scale | None
    statistics: ColumnStatistics


class FillAndScale(FittedOperator):
    """What the preprocessor fits on a float32 column: the state that `FillMissing(column, indicator)` and, with
    `scale`, a `Normalize` after it would have, without reading the filled column again."""

    reads = ("column",)

    is_step = False

    def __init__(self, column: str, indicator: str = "auto", scale: bool = True) -> None:
        self.column, self.indicator, self.scale = column, indicator, scale

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._filling.outputs

    @property
    def _filling(self) -> FillMissing:
        return FillMissing(self.column, self.indicator)

    def partial(self, frame: Any) -> ColumnStatistics:
        return naming(self.column, engine_of(frame).column_statistics, frame[self.column])

    def merge(self, left: ColumnStatistics, right: ColumnStatistics) -> ColumnStatistics:
        return left.merge(right)

    def following(self, partial: ColumnStatistics) -> FittedOperator | None:
        if not partial.moments.count:
            return None
        return NextPass(self, partial, Search.start(partial.histogram, middle_ranks(partial.moments.count)))

    def finish(self, partial: ColumnStatistics) -> FilledScale:
        return self.state_of(partial, None)

    def count(self, frame: Any, search: Search) -> RadixHistogram:
        """Of the next pass: `search.count` of the partition's values."""
        return engine_of(frame).column_count(frame[self.column], search)

    def state_of(self, found: ColumnStatistics, search: Search | None) -> FilledScale:
        """search: for the two middle values, resolved; None where there is no value (an error, by FillMissing)."""
        filling = Filling(found.rows, found.moments.count, Ranked(found.histogram, None))
        fill = self._filling.finish(filling) if search is None else self._filling.state_of(filling, search)
        scale = (
            found.moments.merge(Moments.of_repeated(as_float32(fill.value), found.nulls)).scale()
            if self.scale
            else None
        )
        return FilledScale(fill, scale, found)

    def columns(self, frame: Any, state: FilledScale) -> dict[str, Any]:
        filled = self._filling.columns(frame, state.fill)
        if state.scale is None:
            return filled
        return filled | Normalize(self.column).columns(frame.assign(**filled), state.scale)
