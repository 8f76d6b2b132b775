"""CountEncoding and LastBefore: what another table says about a row's key before the row's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import require_columns
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.operators.base import ColumnOperator


class CountEncoding(ColumnOperator):
    """float32 column `output`: how many rows of `events` share the key and have a strictly smaller `at`.

    events: a frame that holds `by` and `at` too. A row with a null key counts 0. Exact up to 2^24.
    """

    reads, writes = ("by", "at"), ("output",)

    tables = ("events",)

    def __init__(self, events: Any, by: Sequence[str], output: str, *, at: str) -> None:
        self.events, self.by, self.output, self.at = events, tuple(by), output, at
        require_columns(events, [*by, at], f"events of {output!r}")

    def compute(self, frame: Any) -> dict[str, Any]:
        question = AsOfJoin(frame, self.events, by=self.by, query_time=self.at, event_time=self.at)
        return {self.output: engine_of(frame).series(question.count().astype("float32"), frame)}


class LastBefore(ColumnOperator):
    """Columns of the latest row of `events` with the same key and a strictly smaller `at`; null where there is none.

    columns: {name in events: output name}, types as there (integers come as float64, so that they can be null).
    order: a column of `events` that settles which of several rows of one `at` is the latest.
    """

    reads, writes = ("by", "at"), ("columns",)

    tables = ("events",)

    def __init__(self, events: Any, by: Sequence[str], columns: Mapping[str, str], *, at: str, order: str) -> None:
        self.events, self.by, self.columns, self.at, self.order = events, tuple(by), dict(columns), at, order
        require_columns(events, [*by, at, order, *columns], f"events of {', '.join(columns.values())}")

    def compute(self, frame: Any) -> dict[str, Any]:
        engine = engine_of(frame)
        question = AsOfJoin(frame, self.events, by=self.by, query_time=self.at, event_time=self.at, order=self.order)
        rows = question.last_row()
        known, found = engine.series(rows >= 0, frame), {}
        for source, output in self.columns.items():
            column = self.events[source]
            column = column.astype("float64") if column.dtype.kind in "iu" else column
            if len(column) == 0:
                found[output] = engine.frames.Series([None] * len(frame), index=frame.index, dtype=column.dtype)
                continue
            taken = column.take(engine.arrays.clip(rows, 0, None))
            taken.index = frame.index
            found[output] = taken.where(known)
        return found
