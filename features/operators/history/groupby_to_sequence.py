"""GroupbyToSequence: the rows of a group as one row of lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from gigabatch.features.columns.categories import FLOAT, TEXT, WHOLE, canonicalize
from gigabatch.features.columns.lists import list_column
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator, WithinGroups, listed
from gigabatch.features.operators.history.difference_lag import sorted_groups
from gigabatch.features.operators.lists.explode_lists import row_of_entry
from gigabatch.features.operators.lists.list_slice import join_lists


class GroupbyToSequence(WithinGroups, Operator):
    """Make one row of lists from the rows of each group.

    The result has one row a group, sorted by key on a new index: the keys, and per column the last values, the latest
    at the end: as text like '12|7|31', or, with `separator=None`, as a column of lists. A null becomes an empty entry,
    or a null in a list, so lists of one row stay equally long, as `ExplodeLists` wants them, which reads an empty entry
    as text alone (`string`), as no number. Rows with a null key are left out. Group-wise: needs every row of a group.

    Parameters
    ----------
    by
        Key columns.
    order
        Integer column that says what is earlier, or several, each of which settles the ties of those before it
        (`row_number` in the recipe `table`); together they are unique within a group.
    columns
        Columns of text or whole numbers, in lists fractions too, none of them a key.
    max_length
        How many values are kept at most.
    separator
        What stands between two values; None for columns of lists.

    Raises
    ------
    DataError
        No key or no column, a column that is both, a `max_length` below 1, an empty separator or one that a text holds;
        an order that holds nulls, is of another type than integers or repeats within a group; fractions as text; on
        cuDF more elements than a column holds.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import GroupbyToSequence
    >>> frame = pd.DataFrame({"user": [2, 1, 2, 2], "at": [3, 0, 1, 2], "item": [30, 5, 10, 20]})
    >>> GroupbyToSequence(["user"], "at", ["item"], max_length=2)(frame)
       user   item
    0     1      5
    1     2  20|30
    """

    reads, writes = ("by", "order", "columns"), ("columns",)

    changes_rows = True

    def __init__(
        self,
        by: Sequence[str],
        order: str | Sequence[str],
        columns: Sequence[str],
        max_length: int,
        separator: str | None = "|",
    ) -> None:
        if max_length < 1 or separator == "":
            raise DataError(
                f"GroupbyToSequence: max_length must be at least 1 and the separator not empty, found {max_length} "
                f"and {separator!r}."
            )
        self.by = listed(by, "GroupbyToSequence")
        self.columns = listed(columns, "GroupbyToSequence", "columns")
        shared = sorted(set(by).intersection(columns))
        if not by or not columns or shared:
            raise DataError(
                "GroupbyToSequence: give keys and columns, none of them both"
                + (f", found {', '.join(map(repr, shared))} in both." if shared else ".")
            )
        self.order = order if isinstance(order, str) else tuple(order)
        if not self.order:
            raise DataError("GroupbyToSequence: name a column under order.")
        self.max_length, self.separator = max_length, separator

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name in names)

    def columns_after(self, before: Sequence[str]) -> tuple[str, ...]:
        return (*self.by, *self.outputs)

    def transform(self, frame: Frame) -> Frame:
        xp = engine_of(frame).arrays
        groups, rows = sorted_groups(frame, self.by, self.order, "GroupbyToSequence")
        rows = rows[groups[rows] >= 0]
        is_last = xp.ones(len(rows), dtype=bool)
        is_last[:-1] = groups[rows[1:]] != groups[rows[:-1]]
        last = xp.nonzero(is_last)[0]
        counts = last.copy() + 1
        counts[1:] = last[1:] - last[:-1]
        counts = xp.minimum(counts, self.max_length)
        of = row_of_entry(xp, counts)
        # From the oldest entry that is kept to the latest, group after group.
        entries = rows[last[of] + 1 - counts[of] + xp.arange(len(of)) - (xp.cumsum(counts) - counts)[of]]
        out = frame[list(self.by)].take(rows[last]).reset_index(drop=True)
        for name in self.by:
            if str(out[name].dtype) == "category":  # sorted by value, not by the order of its categories
                out[name] = out[name].astype(out[name].cat.categories.dtype)
        for name in self.columns:
            values = self._values(frame[name]).take(entries).reset_index(drop=True)
            if self.separator is None:
                out[name] = list_column(values, counts, out)
            else:
                out[name] = join_lists(values, counts, self.separator)
        return out.sort_values(list(self.by)).reset_index(drop=True)

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
