"""DifferenceLag: how a value changed since an earlier row of its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.features.columns.numbers import number_parts, whole_values
from gigabatch.features.columns.stacking import stacked
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import group_codes, sorted_rows
from gigabatch.features.history.past import NotLater, Past
from gigabatch.features.operators.base import WithinGroups, listed
from gigabatch.features.operators.looking_back import LooksBack


class DifferenceLag(WithinGroups, LooksBack):
    """Subtract the value of an earlier row of the group.

    The difference to the row `lag` places earlier is taken before it is rounded to float32. It is null where there is
    no such row, where either value is null and where a key is null. Row order is kept. Group-wise: needs every row of a
    group.

    Parameters
    ----------
    by
        Key columns.
    order
        Integer column, unique within a group, that says what is earlier.
    column
        Numbers.
    output
        Name of the new float32 column.
    lag
        How many places earlier, at least 1.

    Raises
    ------
    DataError
        A lag below 1; an order that holds nulls, is of another type than integers or repeats within a group.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import DifferenceLag
    >>> frame = pd.DataFrame({"shop": ["a", "b", "a"], "day": [1, 1, 2], "sales": [5, 9, 7]})
    >>> DifferenceLag(["shop"], "day", "sales", "change")(frame)
      shop  day  sales  change
    0    a    1      5     NaN
    1    b    1      9     NaN
    2    a    2      7     2.0
    """

    reads, writes = ("by", "order", "column"), ("output",)

    def __init__(self, by: Sequence[str], order: str, column: str, output: str, lag: int = 1) -> None:
        if lag < 1:
            raise DataError(f"DifferenceLag of {column!r}: lag must be at least 1, found {lag}.")
        self.by, self.order = listed(by, "DifferenceLag"), order
        self.column, self.output, self.lag = column, output, lag

    @property
    def asks_at(self) -> str:
        return self.order

    def kept(self, rows: Frame, until: int) -> Any:
        """The last `lag` rows of each group."""
        xp = engine_of(rows).arrays
        groups, order = sorted_groups(rows, self.by, self.order, "DifferenceLag")
        stay = xp.zeros(len(rows), dtype=bool)
        early, late = order[: max(len(order) - self.lag, 0)], order[self.lag :]
        stay[order] = True
        stay[early] = groups[early] != groups[late]
        return stay & (groups >= 0)

    def require_later(self, frame: Frame, new: Any, past: Past) -> None:
        """In each group by itself, whose order need not be that of others."""
        names = [*self.by, self.order]
        both = stacked([past.rows[names], frame[names]], "DifferenceLag", self.by)
        groups, order = sorted_groups(both, self.by, self.order, "DifferenceLag")
        later = (order >= len(past.rows)).astype("int64")
        back = (later[1:] < later[:-1]) & (groups[order[1:]] == groups[order[:-1]]) & (groups[order[1:]] >= 0)
        if bool(back.any()):
            raise NotLater(f"DifferenceLag of {self.output!r}: a row stands before one of its group that is finished")

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        engine = engine_of(frame)
        xp, lag = engine.arrays, self.lag
        groups, rows = sorted_groups(frame, self.by, self.order, "DifferenceLag")
        high, low = number_parts(frame[self.column], "DifferenceLag")
        known = ~xp.isnan(high)
        later, earlier = rows[lag:], rows[: max(len(rows) - lag, 0)]
        difference = xp.zeros(len(frame), dtype="float64")
        valid = xp.zeros(len(frame), dtype=bool)
        difference[later] = high[later] - high[earlier] + (low[later] - low[earlier])
        valid[later] = (groups[later] >= 0) & (groups[later] == groups[earlier]) & known[later] & known[earlier]
        return {self.output: engine.series(difference.astype("float32"), frame, valid=valid)}


def sorted_groups(frame: Frame, by: Sequence[str], order: str | Sequence[str], operator: str) -> tuple[Any, Any]:
    """(int64 group of each row, -1 for a null key; int64 row numbers sorted by group and then `order`, of whose columns
    each settles the ties of those before it).

    `DataError` if one of `order` holds nulls or is not of whole numbers, or rows of a group have the same order.
    """
    engine = engine_of(frame)
    names = (order,) if isinstance(order, str) else tuple(order)
    for name in names:
        if frame[name].isna().any():
            raise DataError(f"{operator}: order column {name!r} holds nulls. Drop those rows or give them a place.")
        if len(frame) and frame[name].dtype.kind not in "iu":
            raise DataError(
                f"{operator}: order column {name!r} is {frame[name].dtype}; cast it to int64, e.g. minutes or ids."
            )
    places = [whole_values(frame[name], operator) for name in names]
    place = places[0] if len(places) == 1 else _ranks(engine.arrays, places)
    groups = group_codes(frame, frame, by, operator)[0]
    rows = sorted_rows(engine, groups, place)
    later, earlier = rows[1:], rows[:-1]
    twice = (groups[later] == groups[earlier]) & (place[later] == place[earlier]) & (groups[later] >= 0)
    if bool(twice.any()):
        value = ", ".join(str(int(one[later[int(twice.argmax())]])) for one in places)
        columns = f"column {order!r} is" if isinstance(order, str) else f"columns {list(order)} are"
        raise DataError(
            f"{operator}: order {columns} not unique within groups of {list(by)}: {int(twice.sum())} repeat(s), for "
            f"example {value}. {_settle(operator)}, or drop the repeats."
        )
    return groups, rows


def _settle(operator: str) -> str:
    if operator == "GroupbyToSequence":
        return "Name a further column that settles ties, such as order: [time, row_number]"
    return "Take an order in which no two rows of a group are alike, such as row_number of files that are in order"


def _ranks(xp: Any, places: Sequence[Any]) -> Any:
    """int64: the rank of each row by all of the places, the first of which counts first; equal for equal rows."""
    rows = xp.lexsort(xp.stack(list(reversed(places))))
    steps = xp.zeros(len(rows), dtype="int64")
    for place in places:
        steps[1:] |= (place[rows[1:]] != place[rows[:-1]]).astype("int64")
    ranks = xp.zeros(len(rows), dtype="int64")
    ranks[rows] = xp.cumsum(steps)
    return ranks
