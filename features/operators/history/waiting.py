"""Waiting: planned events of the same group that have not happened yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.operators.base import WithinGroups, listed, unused
from gigabatch.features.operators.looking_back import LooksBack


class Waiting(WithinGroups, LooksBack):
    """Count the planned events of a group that have not happened yet.

    For each row, at its own planned time: how many rows of the group were planned before and had not happened by then,
    and how long they have waited on average. That an event is overdue is known; when, or whether, it will happen is
    not, and does not enter; one that happens at the very time of the row still waits. Rows with a null key wait for
    nothing, and nothing for them. Group-wise: needs every row of a group.

    Parameters
    ----------
    by
        Key columns.
    planned_at
        Whole-number time at which a row is due and at which it asks; no nulls.
    happened_at
        Whole-number time, in the same unit, at which it happened; null if never.
    output
        Name of the new int32 column. The mean wait stands in the float32 column `<output>_min_mean`, 0 where none
        waits.

    Raises
    ------
    DataError
        A time that is no whole number, or a null planned time.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Waiting
    >>> frame = pd.DataFrame({"gate": ["a", "a", "a"], "planned": [10, 15, 20], "left": [25.0, 12.0, None]})
    >>> Waiting(["gate"], "planned", "left", "queue")(frame)
      gate  planned  left  queue  queue_min_mean
    0    a       10  25.0      0             0.0
    1    a       15  12.0      1             5.0
    2    a       20   NaN      1            10.0
    """

    reads, writes = ("by", "planned_at", "happened_at"), ("output",)

    untold = ("happened_at",)

    def __init__(self, by: Sequence[str], planned_at: str, happened_at: str, output: str) -> None:
        self.by, self.planned_at, self.happened_at, self.output = listed(by, "Waiting"), planned_at, happened_at, output

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output, f"{self.output}_min_mean")

    @property
    def asks_at(self) -> str:
        return self.planned_at

    @property
    def null_until_happened(self) -> tuple[str, ...]:
        return (self.planned_at, self.happened_at)

    def kept(self, rows: Frame, until: int) -> Any:
        # What was due and has happened before adds to both counts and both sums, and so nothing.
        planned, happened = (whole_values(rows[name], "Waiting") for name in (self.planned_at, self.happened_at))
        known = engine_of(rows).array(rows[self.happened_at].notna())
        return ~(known & (happened < until)) | (planned >= until)

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        engine = engine_of(frame)
        if frame[self.planned_at].isna().any():
            raise DataError(f"Waiting: column {self.planned_at!r} holds nulls; every row needs a time.")
        # As int64, whatever their type, in which a difference may not fit; from the first on, so that sums stay inside.
        names = (self.planned_at, self.happened_at)
        times = {name: whole_values(frame[name], "Waiting") for name in names}
        earliest = int(times[self.planned_at].min()) if len(frame) else 0
        known = engine.series(engine.array(frame[self.happened_at].notna()), frame)
        frame = frame.copy(deep=False)
        for name in names:
            frame[name] = engine.series(times[name] - earliest, frame)
        frame[self.happened_at] = engine.with_nulls(frame[self.happened_at], ~known)
        # An early event has happened before it was due: it only leaves the queue that it has joined.
        # Column-wise: cuDF's row-wise maximum may go through float32, which rounds minutes since 1970.
        happened = frame[self.happened_at].fillna(frame[self.planned_at])
        planned_at = frame[self.planned_at].astype(happened.dtype)
        left_at = happened.where(happened > planned_at, planned_at).where(frame[self.happened_at].notna())
        due = unused("left_at", (*self.by, self.planned_at))
        frame_left = frame[list(dict.fromkeys((*self.by, self.planned_at)))].assign(**{due: left_at})
        planned = AsOfJoin(frame, frame, by=self.by, query_time=self.planned_at, event_time=self.planned_at)
        left = AsOfJoin(frame_left, frame_left, by=self.by, query_time=self.planned_at, event_time=due)
        waiting = planned.count() - left.count()
        due_in_all = planned.sum(self.planned_at) - left.sum(self.planned_at)
        some = planned.xp.maximum(waiting, 1)
        # The time since the mean of when they were due: the sum of the waits may not fit int64.
        whole = due_in_all // some
        mean = planned.xp.where(waiting > 0, (planned.at - whole) - (due_in_all - whole * some) / some, 0.0)
        columns = waiting.astype("int32"), mean.astype("float32")
        return {name: planned.engine.series(column, frame) for name, column in zip(self.outputs, columns, strict=True)}
