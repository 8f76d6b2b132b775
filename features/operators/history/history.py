"""History: to each row a list of what its group had before, such as the items that the user chose last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from gigabatch.features.columns.categories import FLAG, FLOAT, WHOLE, canonicalize
from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.columns.time_types import is_time_type
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.history.sequences import last_values, last_weights
from gigabatch.features.operators.base import WithinGroups, listed
from gigabatch.features.operators.looking_back import LooksBack
from gigabatch.features.setting_checks import TIME_UNITS, require_counts, time_span


class History(WithinGroups, LooksBack):
    """Give each row the list of a column's last values in its group, as known strictly before the row's time.

    The oldest value stands first. Rows of the row's own time are not in its list, so it does not see itself; rows
    without a value are in none. A row with a null key has an empty list. Rows to be served bring their lists, as raw
    columns. Group-wise: needs every row of a group.

    Parameters
    ----------
    by
        Key columns, such as the user.
    time
        Whole-number time, without nulls.
    order
        Whole-number column without nulls, unique within a time, that says which of two rows of one time comes last;
        `row_number` in the recipe `table`.
    column
        Text or whole numbers, such as the item.
    length
        How many values are kept, the last.
    output
        Name of the new column of lists.
    where
        Column of 0 and 1 that says which rows lists may hold, such as whether the item was bought; null is 0. A label
        may stand here: a row is not told its own. None for all rows.
    half_life
        After which time an element weighs half: its weight is 0.5 ** (age / half_life), its age that as of the row's
        time, in the column of float32 lists `<output>_weights`. A number in the unit of `time`, or text such as `30d`
        where the time is declared a datetime (units d, h, min, s, ms, us, ns). None for no weights.

    Raises
    ------
    DataError
        A length below 1, a half-life that is no time above 0 or whose unit fits no time; a time or order that is null
        or no whole number; a column of other values, or `where` with others than 0 and 1.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import History
    >>> frame = pd.DataFrame({"user": [1, 1, 2, 1], "at": [10, 20, 20, 30], "row": range(4), "item": [7, 8, 7, 9]})
    >>> [list(row) for row in History(["user"], "at", "row", "item", 2, "seen")(frame)["seen"]]
    [[], [7], [], [7, 8]]
    """

    reads, writes = ("by", "time", "order", "column", "where"), ("output",)

    untold = ("column", "where")

    def __init__(
        self,
        by: Sequence[str],
        time: str,
        order: str,
        column: str,
        length: int,
        output: str,
        where: str | None = None,
        half_life: float | str | None = None,
    ) -> None:
        require_counts("History", length=length)
        if half_life is not None:
            time_span(half_life, "History", "half_life")
        self.by, self.time, self.order, self.column = listed(by, "History"), time, order, column
        self.length, self.output, self.where, self.half_life = length, output, where, half_life

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,) if self.half_life is None else (self.output, f"{self.output}_weights")

    def brought(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        elements = "int64" if dtypes.get(self.column) in ("int32", "int64") else "string"
        return dict(zip(self.outputs, (f"list[{elements}]", "list[float32]"), strict=False))

    def typed(self, dtypes: Mapping[str, str]) -> Self:
        if isinstance(self.half_life, str) and is_time_type(dtypes.get(self.time, "")):
            number, unit = time_span(self.half_life, "History", "half_life")
            microseconds = number * TIME_UNITS[str(unit)] / TIME_UNITS["us"]
            return type(self)(**(self.settings() | {"half_life": microseconds}))
        return self

    @property
    def asks_at(self) -> str:
        return self.time

    def counted(self, rows: Frame) -> Any:
        found = engine_of(rows).array(rows[self.column].notna())
        if self.where is None:
            return found
        flags = float_values(rows[self.where], "History")
        other = ~engine_of(rows).arrays.isnan(flags) & (flags != 0) & (flags != 1)
        if bool(other.any()):
            raise DataError(
                f"History: column {self.where!r} holds {float(flags[other][0]):g}. `where` is a column of 0 and 1, 1 "
                "in rows that lists may hold."
            )
        return found & (flags == 1)

    def kept(self, rows: Frame, until: int) -> Any:
        # Of what every later row has before it, the last of each group.
        times, order = (whole_values(rows[name], "History") for name in (self.time, self.order))
        groups = group_codes(rows, rows, self.by, "History")[0]
        xp = engine_of(rows).arrays
        before = xp.flatnonzero(self.counted(rows) & (times < until) & (groups >= 0))
        placed = before[xp.lexsort(xp.stack([order[before], times[before], groups[before]]))] if len(before) else before
        groups = groups[placed]
        from_end = xp.searchsorted(groups, groups, side="right") - xp.arange(len(groups))
        stay = times >= until
        stay[placed[from_end <= self.length]] = True
        return stay

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        if isinstance(self.half_life, str):
            raise DataError(
                f"History: half_life is {self.half_life!r}, and column {self.time!r} holds numbers, whose unit is not "
                f"known. Give half_life as a number in that unit, or declare {self.time!r} a datetime."
            )
        values, elements = self._values(frame[self.column])
        events = engine_of(frame).arrays.flatnonzero(self.counted(frame))
        told = frame[list(dict.fromkeys((*self.by, self.time, self.order)))]
        question = AsOfJoin(
            told, told.take(events), by=self.by, query_time=self.time, event_time=self.time, order=self.order
        )
        made = [last_values(question, self.length, values.take(events), elements, frame)]
        if self.half_life is not None:
            times = whole_values(frame[self.time], "History")
            made.append(last_weights(question, self.length, times[events], times, self.half_life, frame))
        return dict(zip(self.outputs, made, strict=True))

    def _values(self, column: Column) -> tuple[Any, str]:
        """The values, something else for null, and the type of the elements that they are."""
        found = canonicalize(column, "History")
        if found.kind == FLAG:
            raise DataError(
                f"History: column {self.column!r} holds flags. Elements are text or whole numbers: cast it."
            )
        if found.kind == FLOAT or (found.kind is None and column.dtype.kind in "iuf"):
            return engine_of(column).series(whole_values(column, "History"), column.to_frame()), "int64"
        return found.values, "int64" if found.kind == WHOLE else "string"
