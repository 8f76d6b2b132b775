"""Lag: the value that an earlier row of the group had, some rows or some time before each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.history.key_index import take_or_null
from gigabatch.features.operators.base import WithinGroups, listed
from gigabatch.features.operators.history.difference_lag import last_of_groups, repeated, require_places, sorted_groups
from gigabatch.features.operators.history.windows import in_units, require_window, window_for
from gigabatch.features.operators.looking_back import LooksBack


class Lag(WithinGroups, LooksBack):
    """Give each row the value that an earlier row of its group had, such as what the shop sold a week ago.

    Which one: of the rows whose time is before its own the last but `periods` - 1, however long ago that was; or, with
    `span`, the one whose time lies just that far before its own. The value keeps its type; whole numbers and flags
    become types that can be null. It is null where there is no such row, where that row has none and where a key is
    null. Rows of one time do not see each other, so a label may be lagged. Group-wise: needs every row of a group.

    Parameters
    ----------
    by
        Key columns.
    time
        Whole-number time, without nulls.
    column
        Of any type.
    output
        Name of the new column.
    periods
        How many rows back, at least 1, as of `shift` in pandas and Polars.
    span
        How far back in time, in place of `periods`: at least 1 unit of `time`, or, where that is a datetime, text such
        as 7d or 12h. A gap in time is null then, where `periods` takes a row of longer ago.
    order
        Whole-number column without nulls that says which of a group's rows of one time comes last. None where no group
        has two.

    Raises
    ------
    DataError
        Periods or a span below 1, or both; a time or order that is null or of another type than integers; two rows of a
        group with one time, and one order.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Lag
    >>> frame = pd.DataFrame({"shop": ["a", "a", "a"], "day": [1, 2, 4], "sold": [5.5, 7.0, 9.0]})
    >>> frame = Lag(["shop"], "day", "sold", "sold_before")(frame)
    >>> Lag(["shop"], "day", "sold", "sold_yesterday", span=1)(frame)
      shop  day  sold  sold_before  sold_yesterday
    0    a    1   5.5          NaN             NaN
    1    a    2   7.0          5.5             5.5
    2    a    4   9.0          7.0             NaN
    """

    reads, writes = ("by", "time", "column", "order"), ("output",)

    untold = ("column",)

    def __init__(
        self,
        by: Sequence[str],
        time: str,
        column: str,
        output: str,
        periods: int = 1,
        span: int | str | None = None,
        order: str | None = None,
    ) -> None:
        where = f"Lag of {column!r}"
        if periods < 1:
            raise DataError(f"{where}: periods must be at least 1, found {periods}: later rows are not known yet.")
        if span is not None and periods != 1:
            raise DataError(f"{where}: give either periods, a number of rows, or span, a time; found both.")
        require_window(span, where, "span")
        self.by, self.time, self.column, self.output = listed(by, "Lag"), time, column, output
        self.periods, self.span, self.order = periods, span, order

    def typed(self, dtypes: Mapping[str, str]) -> Self:
        span = window_for(self.span, self.time, dtypes, f"Lag of {self.column!r}", "span")
        return self if span == self.span else type(self)(**(self.settings() | {"span": span}))

    def types_after(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        own = {self.output: dtypes[self.column]} if self.column in dtypes else {}
        return super().types_after(dtypes) | own

    @property
    def asks_at(self) -> str:
        return self.time

    @property
    def _back(self) -> int | None:
        return in_units(self.span, self.time, f"Lag of {self.column!r}", "span")

    def kept(self, rows: Frame, until: int) -> Any:
        times = whole_values(rows[self.time], "Lag")
        if (back := self._back) is not None:
            return times >= until - back
        earlier = rows[times < until]
        stay = times >= until
        stay[times < until] = last_of_groups(*sorted_groups(earlier, self.by, self._places, "Lag"), self.periods)
        return stay

    @property
    def _places(self) -> str | tuple[str, str]:
        """By which rows of a group come one after the other."""
        return self.time if self.order is None else (self.time, self.order)

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        asked = frame[list(dict.fromkeys((*self.by, self.time, *([self.order] if self.order else ()))))]
        require_places(frame, [name for name in (self.time, self.order) if name], "Lag")
        question = AsOfJoin(asked, asked, by=self.by, query_time=self.time, event_time=self.time, order=self.order)
        if len(repeats := question.repeats()):  # of which nothing says which comes last
            raise repeated(asked.take(repeats), self.by, self._places, "Lag")
        rows = question.row_before(self.periods) if self._back is None else question.row_at(self._back)
        return {self.output: take_or_null(frame[self.column], rows, frame)}
