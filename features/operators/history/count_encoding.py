"""CountEncoding and LastBefore: what another table says about a row's key before the row's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import require_columns
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.history.key_index import take_or_null
from gigabatch.features.operators.base import ColumnOperator, listed, own_table


class CountEncoding(ColumnOperator):
    """Count the earlier events of a row's key in another table.

    The new column says how many rows of `events` share the key and have a strictly smaller `at`. A row with a null key
    counts 0. Exact up to 2^24. Row-wise, given the events.

    Parameters
    ----------
    events
        A frame, as of `arrow_table`, that holds `by` and `at` too.
    by
        Key columns, in both frames.
    output
        Name of the new float32 column.
    at
        Whole-number time, in both frames and in one unit.

    Raises
    ------
    DataError
        A column is missing, or a time is null or no whole number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import CountEncoding
    >>> events = pd.DataFrame({"user": [1, 1, 2], "at": [10, 20, 15]})
    >>> frame = pd.DataFrame({"user": [1, 1, 2], "at": [15, 30, 15]})
    >>> CountEncoding(events, ["user"], "visits", at="at")(frame)
       user  at  visits
    0     1  15     1.0
    1     1  30     2.0
    2     2  15     0.0
    """

    reads, writes = ("by", "at"), ("output",)

    tables = ("events",)

    def __init__(self, events: Any, by: Sequence[str], output: str, *, at: str) -> None:
        where = f"events of {output!r}"
        self.events, self.by, self.output, self.at = own_table(events, where), listed(by, "CountEncoding"), output, at
        require_columns(self.events, [*by, at], where)

    def compute(self, frame: Frame) -> dict[str, Column]:
        question = AsOfJoin(frame, self.events, by=self.by, query_time=self.at, event_time=self.at)
        return {self.output: engine_of(frame).series(question.count().astype("float32"), frame)}


class LastBefore(ColumnOperator):
    """Columns of the latest row of `events` with the same key and a strictly smaller `at`; null where there is none.

    Row-wise, given the events.

    Parameters
    ----------
    events
        A frame, as of `arrow_table`, that holds `by`, `at`, `order` and the columns to take.
    by
        Key columns, in both frames.
    columns
        What to take: new names by those in `events`. Types stay, but whole numbers and booleans come in types that can
        be null (Int64 and boolean on pandas).
    at
        Whole-number time, in both frames and in one unit.
    order
        Column of `events` that settles which of several rows of one `at` is the latest.

    Raises
    ------
    DataError
        A column is missing, or a time is null or no whole number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import LastBefore
    >>> events = pd.DataFrame({"user": [1, 1], "at": [10, 20], "page": ["home", "cart"], "row": [0, 1]})
    >>> frame = pd.DataFrame({"user": [1, 1, 2], "at": [15, 30, 30]})
    >>> LastBefore(events, ["user"], {"page": "last_page"}, at="at", order="row")(frame)
       user  at last_page
    0     1  15      home
    1     1  30      cart
    2     2  30       NaN
    """

    reads, writes = ("by", "at"), ("columns",)

    tables = ("events",)

    def __init__(self, events: Any, by: Sequence[str], columns: Mapping[str, str], *, at: str, order: str) -> None:
        where = f"events of {', '.join(columns.values())}"
        self.events, self.by, self.columns = own_table(events, where), listed(by, "LastBefore"), dict(columns)
        self.at, self.order = at, order
        require_columns(self.events, [*by, at, order, *columns], where)

    def compute(self, frame: Frame) -> dict[str, Column]:
        question = AsOfJoin(frame, self.events, by=self.by, query_time=self.at, event_time=self.at, order=self.order)
        rows = question.last_row()
        return {output: take_or_null(self.events[source], rows, frame) for source, output in self.columns.items()}
