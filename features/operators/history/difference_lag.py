"""DifferenceLag: how a value changed since an earlier row of its group, or will change until a later one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gigabatch.features.columns.numbers import number_parts, whole_values
from gigabatch.features.columns.stacking import stacked
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import sorted_rows
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.history.past import NotLater, Past
from gigabatch.features.operators.base import WithinGroups, listed
from gigabatch.features.operators.looking_back import LooksBack

log = logging.getLogger(__name__)


class DifferenceLag(WithinGroups, LooksBack):
    """Subtract the value of an earlier row of the group, or of a later one.

    The difference to the row `lag` places earlier is taken before it is rounded to float32. It is null where there is
    no such row, where either value is null and where a key is null. Row order is kept. Group-wise: needs every row of a
    group.

    A negative lag looks at later rows, which a row that is scored when it comes does not have: what is learned from
    them in training is a leak, unless the column is known ahead, as a planned price is. A warning says so.

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
        How many places earlier; a negative one is as many places later.

    Raises
    ------
    DataError
        A lag of 0; an order that holds nulls, is of another type than integers or repeats within a group.

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
        if lag == 0:
            raise DataError(
                f"DifferenceLag of {column!r}: lag must not be 0. Give 1 for the row before, -1 for the next."
            )
        self.by, self.order = listed(by, "DifferenceLag"), order
        self.column, self.output, self.lag = column, output, lag

    @property
    def asks_at(self) -> str:
        return self.order

    @property
    def looks_ahead(self) -> bool:
        return self.lag < 0

    def kept(self, rows: Frame, until: int) -> Any:
        """The last `lag` rows of each group."""
        return last_of_groups(*sorted_groups(rows, self.by, self.order, "DifferenceLag"), self.lag)

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
        xp, places = engine.arrays, abs(self.lag)
        groups, rows = sorted_groups(frame, self.by, self.order, "DifferenceLag")
        high, low = number_parts(frame[self.column], "DifferenceLag")
        known = ~xp.isnan(high)
        own, other = rows[places:], rows[: max(len(rows) - places, 0)]
        if self.looks_ahead:
            own, other = other, own
            _warn_of_leak(self.output)
        difference = xp.zeros(len(frame), dtype="float64")
        valid = xp.zeros(len(frame), dtype=bool)
        difference[own] = high[own] - high[other] + (low[own] - low[other])
        valid[own] = (groups[own] >= 0) & (groups[own] == groups[other]) & known[own] & known[other]
        return {self.output: engine.series(difference.astype("float32"), frame, valid=valid)}


@cache
def _warn_of_leak(output: str) -> None:
    log.warning(
        "DifferenceLag of %r looks at later rows (its lag is negative). Rows that are scored when they come do not "
        "have them: leave the column out of the features, unless what it is made of is known ahead.", output,
    )  # fmt: skip


def last_of_groups(groups: Any, rows: Any, number: int) -> Any:
    """bool array: the last `number` of each group, of `sorted_groups`; none of rows with a null key."""
    stay = groups >= 0
    early, late = rows[: max(len(rows) - number, 0)], rows[number:]
    stay[early] &= groups[early] != groups[late]
    return stay


def sorted_groups(frame: Frame, by: Sequence[str], order: str | Sequence[str], operator: str) -> tuple[Any, Any]:
    """(int64 group of each row, -1 for a null key; int64 row numbers sorted by group and then `order`, of whose columns
    each settles the ties of those before it).

    `DataError` if one of `order` holds nulls or is not of whole numbers, or rows of a group have the same order.
    """
    engine = engine_of(frame)
    names = (order,) if isinstance(order, str) else tuple(order)
    require_places(frame, names, operator)
    places = [whole_values(frame[name], operator) for name in names]
    place = places[0] if len(places) == 1 else _ranks(engine.arrays, places)
    groups = group_codes(frame, frame, by, operator)[0]
    rows = sorted_rows(engine, groups, place)
    later, earlier = rows[1:], rows[:-1]
    twice = (groups[later] == groups[earlier]) & (place[later] == place[earlier]) & (groups[later] >= 0)
    if bool(twice.any()):
        raise repeated(frame.take(later[twice]), by, order, operator)
    return groups, rows


def require_places(frame: Frame, names: Sequence[str], operator: str) -> None:
    """Raise `DataError` where a column that says which row comes first holds nulls or is of another type than
    integers."""
    for name in names:
        if frame[name].isna().any():
            raise DataError(f"{operator}: order column {name!r} holds nulls. Drop those rows or give them a place.")
        if len(frame) and frame[name].dtype.kind not in "iu":
            raise DataError(
                f"{operator}: order column {name!r} is {frame[name].dtype}; cast it to int64, e.g. minutes or ids."
            )


def repeated(rows: Frame, by: Sequence[str], order: str | Sequence[str], operator: str) -> DataError:
    """The error of rows behind others of their group and order."""
    names = (order,) if isinstance(order, str) else tuple(order)
    value = ", ".join(str(int(whole_values(rows[name].iloc[:1], operator)[0])) for name in names)
    columns = f"column {order!r} is" if isinstance(order, str) else f"columns {list(order)} are"
    return DataError(
        f"{operator}: order {columns} not unique within groups of {list(by)}: {len(rows)} repeat(s), for example "
        f"{value}. {_settle(operator)}, or drop the repeats."
    )


def _settle(operator: str) -> str:
    if operator == "GroupbyToSequence":
        return "Name a further column that settles ties, such as order: [time, row_number]"
    if operator == "Lag":
        return "Name a column that settles which of them comes last, such as order: row_number"
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
