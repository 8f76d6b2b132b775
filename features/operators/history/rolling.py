"""Rolling: a statistic over the rows of the same group in a window of time before each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.operators.base import WithinGroups, listed
from gigabatch.features.operators.history.asof import ratio
from gigabatch.features.operators.history.windows import in_units, require_window, window_for
from gigabatch.features.operators.looking_back import LooksBack

STATISTICS = ("count", "sum", "mean", "min", "max")


class Rolling(WithinGroups, LooksBack):
    """Take a statistic over the rows of the group in a window of time before each row.

    The window is [t - window, t), t the row's own time, so a row does not see itself. Nulls of `column` take no part.
    count is int32 and 0 without rows; sum (0 without rows), mean, min and max (null without rows) are float32. Sums are
    exact until they are rounded, of fractions too, so that they depend on no order of the rows. Rows with a null key
    find nothing. Group-wise: needs every row of a group.

    Parameters
    ----------
    by
        Key columns.
    time
        Whole-number time, without nulls.
    column
        Numbers.
    window
        Length of the window in units of `time`, at least 1; or, where `time` is a datetime, whose unit is the
        microsecond, text such as 7d or 12h.
    statistic
        count, sum, mean, min or max.
    output
        Name of the new column.

    Raises
    ------
    DataError
        An unknown statistic, a window below 1, a time that is null or no whole number, or, in a column to be summed, an
        infinity or a fraction beyond 1e30.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Rolling
    >>> frame = pd.DataFrame({"shop": ["a", "a", "a"], "hour": [0, 5, 11], "sales": [1, 2, 3]})
    >>> Rolling(["shop"], "hour", "sales", 10, "sum", "recent")(frame)["recent"].tolist()
    [0.0, 1.0, 2.0]
    """

    reads, writes = ("by", "time", "column"), ("output",)

    untold = ("column",)

    def __init__(
        self, by: Sequence[str], time: str, column: str, window: int | str, statistic: str, output: str
    ) -> None:
        if statistic not in STATISTICS:
            raise DataError(f"Rolling: unknown statistic {statistic!r}. Known: {', '.join(STATISTICS)}.")
        require_window(window, f"Rolling of {column!r}")
        self.by, self.time, self.column, self.output = listed(by, "Rolling"), time, column, output
        self.window, self.statistic = window, statistic

    def typed(self, dtypes: Mapping[str, str]) -> Self:
        window = window_for(self.window, self.time, dtypes, f"Rolling of {self.column!r}")
        return self if window == self.window else type(self)(**(self.settings() | {"window": window}))

    @property
    def asks_at(self) -> str:
        return self.time

    @property
    def summed(self) -> tuple[str, ...]:
        return (self.column,) if self.statistic in ("sum", "mean") else ()

    @property
    def _reach(self) -> int:
        return cast("int", in_units(self.window, self.time, f"Rolling of {self.column!r}"))

    def kept(self, rows: Frame, until: int) -> Any:
        return whole_values(rows[self.time], "Rolling") >= until - self._reach

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        return {self.output: self._extreme(frame) if self.statistic in ("min", "max") else self._running(frame)}

    def _running(self, frame: Frame) -> Any:
        question = AsOfJoin(frame, frame, by=self.by, query_time=self.time, event_time=self.time)
        if self.statistic == "sum":
            total = question.total(self.column, self._reach)
            return question.engine.series(total.astype("float32"), frame)
        count = question.count(self._reach, of=self.column)
        if self.statistic == "count":
            return question.engine.series(count.astype("int32"), frame)
        return ratio(frame, question.total(self.column, self._reach).astype("float64"), count.astype("float64"))

    def _extreme(self, frame: Frame) -> Any:
        engine = engine_of(frame)
        events = frame[frame[self.column].notna()]
        question = AsOfJoin(frame, events, by=self.by, query_time=self.time, event_time=self.time)
        sign = 1.0 if self.statistic == "min" else -1.0
        values = sign * float_values(events[self.column], "Rolling")[question.sorted_rows]
        count = question.count(self._reach)
        low = range_minimum(engine.arrays, values, question.stop - count, count)
        return engine.series((sign * low).astype("float32"), frame, valid=count > 0)


def range_minimum(xp: Any, values: Any, starts: Any, counts: Any) -> Any:
    """min(values[start : start + count]) of every pair; 0 where count is 0.

    A sparse table (Bender and Farach-Colton 2000, section 3), one level at a time: level k holds the minimum of 2^k
    neighbours, and two of them that overlap cover a range. O(n log n) time, O(n) memory.
    """
    found = xp.zeros(len(starts), dtype="float64")
    longest, width = int(counts.max()) if len(counts) else 0, 1
    while width <= longest:
        asked = xp.nonzero((counts >= width) & (counts < 2 * width))[0]
        first = starts[asked]
        found[asked] = xp.minimum(values[first], values[first + counts[asked] - width])
        values = xp.minimum(values[:-width], values[width:])
        width *= 2
    return found
