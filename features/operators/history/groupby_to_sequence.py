"""GroupbyToSequence: the rows of a group as one row of lists, and of single values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gigabatch.features.columns.categories import FLOAT, TEXT, WHOLE, canonicalize
from gigabatch.features.columns.lists import list_column
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import sorted_rows
from gigabatch.features.history.group_aggregates import AGGREGATIONS, UNORDERED, GroupsOfRows
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.operators.base import Operator, WithinGroups, listed
from gigabatch.features.operators.history.difference_lag import sorted_groups
from gigabatch.features.operators.lists.explode_lists import row_of_entry
from gigabatch.features.operators.lists.list_slice import join_lists


class GroupbyToSequence(WithinGroups, Operator):
    """Make one row of lists from the rows of each group.

    The result has one row a group, sorted by key on a new index: the keys, per column the last values, and the
    aggregations, of which lists or these may be left out. The latest of the last values is at the end: as text like
    '12|7|31', or, with `separator=None`, as a column of lists. A null becomes an empty entry, or a null in a list, so
    lists of one row stay equally long, as `ExplodeLists` wants them, which reads an empty entry as text alone
    (`string`), as no number. Rows with a null key are left out. Group-wise: needs every row of a group.

    Aggregations are of all rows of the group, whatever `max_length`. first and last are the values of those rows, null
    where these are; count is the number of rows and nunique that of different values that are not null, both int64. min
    and max keep the column's type; sum is int64 of whole numbers and flags, else float64, and mean and var, that of a
    sample (n - 1), are float64: exact, rounded once; std is the root of var. Nulls take no part in these six, which are
    null where nothing else is, std and var also of one value.

    Parameters
    ----------
    by
        Key columns.
    order
        Integer column that says what is earlier, or several, each of which settles the ties of those before it
        (`row_number` in the recipe `table`); together they are unique within a group. It may be left out without lists,
        first and last, which alone follow it.
    columns
        Columns of text or whole numbers, in lists fractions too, none of them a key.
    max_length
        How many values of them are kept at most.
    separator
        What stands between two values; None for columns of lists.
    aggregations
        [column, one of first, last, count, nunique, min, max, sum, mean, std, var] by the name of a new column.

    Raises
    ------
    DataError
        No key, neither a column nor an aggregation, a column that is a key too, columns without a `max_length` of 1 or
        more, or that without columns, an empty separator or one that a text holds; no order where one is needed; one
        that holds nulls, is of another type than integers or repeats within a group; fractions as text; on cuDF more
        elements than a column holds; an unknown aggregation, or one under the name of a key or a list; min, max, sum or
        mean of what is no number; sums of whole numbers beyond int64, of infinities or of floats beyond 1e30.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import GroupbyToSequence
    >>> frame = pd.DataFrame({"user": [2, 1, 2, 2], "at": [3, 0, 1, 2], "item": [30, 5, 10, 20]})
    >>> GroupbyToSequence(["user"], "at", ["item"], max_length=2)(frame)
       user   item
    0     1      5
    1     2  20|30
    >>> more = {"length": ["item", "count"], "started": ["at", "first"]}
    >>> GroupbyToSequence(["user"], "at", ["item"], max_length=2, aggregations=more)(frame)
       user   item  length  started
    0     1      5       1        0
    1     2  20|30       3        1
    """

    reads, writes = ("by", "order", "columns"), ("columns",)

    changes_rows = True

    def __init__(
        self,
        by: Sequence[str],
        order: str | Sequence[str] = (),
        columns: Sequence[str] = (),
        max_length: int | None = None,
        separator: str | None = "|",
        aggregations: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        if (max_length is not None and max_length < 1) or separator == "":
            raise DataError(
                f"GroupbyToSequence: max_length must be at least 1 and the separator not empty, found {max_length} "
                f"and {separator!r}."
            )
        self.by = listed(by, "GroupbyToSequence")
        self.columns = listed(columns, "GroupbyToSequence", "columns")
        shared = sorted(set(by).intersection(columns))
        if not by or not (columns or aggregations) or shared:
            raise DataError(
                "GroupbyToSequence: give keys and columns (or aggregations alone), none of them both"
                + (f", found {', '.join(map(repr, shared))} in both." if shared else ".")
            )
        if bool(columns) != (max_length is not None):
            raise DataError(
                "GroupbyToSequence: max_length is of lists. "
                + ("Give one." if columns else "Leave it out, or name the columns to make lists of.")
            )
        self.max_length, self.separator = max_length, separator
        self.aggregations = None if aggregations is None else _aggregations(aggregations)
        self.order = order if isinstance(order, str) else tuple(order)
        if not self.order and (columns or any(how not in UNORDERED for _, how in self._single.values())):
            raise DataError("GroupbyToSequence: name a column under order, which lists, first and last follow.")
        taken = sorted({*self.by, *self.columns}.intersection(self._single))
        if taken:
            raise DataError(
                f"GroupbyToSequence: {taken[0]!r} is a key or a list, and an aggregation too. Give it another name."
            )

    @property
    def _single(self) -> dict[str, tuple[str, str]]:
        return self.aggregations or {}

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().inputs, *(name for name, _ in self._single.values()))))

    @property
    def chosen(self) -> tuple[str, ...]:
        return (*super().chosen, *self._single)

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        # The number of rows is the same whatever they hold.
        single = (new for new, (name, how) in self._single.items() if name in names and how != "count")
        return (*(name for name in self.columns if name in names), *single)

    def columns_after(self, before: Sequence[str]) -> tuple[str, ...]:
        return (*self.by, *self.outputs)

    def transform(self, frame: Frame) -> Frame:
        xp = engine_of(frame).arrays
        groups, rows = self._sorted(frame)
        rows = rows[groups[rows] >= 0]
        is_last = xp.ones(len(rows), dtype=bool)
        is_last[:-1] = groups[rows[1:]] != groups[rows[:-1]]
        last = xp.nonzero(is_last)[0]
        out = frame[list(self.by)].take(rows[last]).reset_index(drop=True)
        for name in self.by:
            if str(out[name].dtype) == "category":  # sorted by value, not by the order of its categories
                out[name] = out[name].astype(out[name].cat.categories.dtype)
        if self.max_length is not None:
            counts = last.copy() + 1
            counts[1:] = last[1:] - last[:-1]
            counts = xp.minimum(counts, self.max_length)
            of = row_of_entry(xp, counts)
            # From the oldest entry that is kept to the latest, group after group.
            entries = rows[last[of] + 1 - counts[of] + xp.arange(len(of)) - (xp.cumsum(counts) - counts)[of]]
        for name in self.columns:
            values = self._values(frame[name]).take(entries).reset_index(drop=True)
            if self.separator is None:
                out[name] = list_column(values, counts, out)
            else:
                out[name] = join_lists(values, counts, self.separator)
        grouped = GroupsOfRows(frame, rows, last, "GroupbyToSequence")
        for new, (name, how) in self._single.items():
            out[new] = grouped.aggregate(name, how, out)
        return out.sort_values(list(self.by)).reset_index(drop=True)

    def _sorted(self, frame: Frame) -> tuple[Any, Any]:
        """As `sorted_groups`, without an order as the rows stand."""
        if self.order:
            return sorted_groups(frame, self.by, self.order, "GroupbyToSequence")
        engine = engine_of(frame)
        groups = group_codes(frame, frame, self.by, "GroupbyToSequence")[0]
        return groups, sorted_rows(engine, groups, engine.arrays.arange(len(frame)))

    def _values(self, column: Column) -> Any:
        """What the lists are made of; without nulls where they are text."""
        found = canonicalize(column, "GroupbyToSequence")
        kind = found.kind
        if kind in (WHOLE, FLOAT) and str(column.dtype) == "category":  # whole numbers become floats beside nulls
            engine = engine_of(column)
            null = engine.series(found.null, found.values.to_frame())
            column = engine.with_nulls(found.values, null) if bool(found.null.any()) else found.values
        if kind not in (TEXT, WHOLE, None) and not (kind == FLOAT and self.separator is None):
            raise DataError(
                f"GroupbyToSequence: column {column.name!r} is {column.dtype}, which engines write differently. Cast "
                "it to whole numbers or text, or make lists of it (separator=None)."
            )
        if self.separator is None:
            return column if kind in (WHOLE, FLOAT) else column.astype("str")
        text = column.astype("str").fillna("")
        if bool(text.str.contains(self.separator, regex=False).any()):
            raise DataError(
                f"GroupbyToSequence: column {column.name!r} holds text with the separator {self.separator!r}. Choose "
                "another separator."
            )
        return text


def _aggregations(given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """The aggregations in one form; `DataError` for what is none."""
    found = {}
    for new, pair in given.items():
        column, how = pair if not isinstance(pair, str) and len(pair) == 2 else (None, None)
        if not new or how not in AGGREGATIONS or not isinstance(column, str):
            raise DataError(
                f"GroupbyToSequence: an aggregation is a name with [column, one of {', '.join(AGGREGATIONS)}], found "
                f"{new!r}: {pair!r}."
            )
        found[new] = (column, how)
    return found
