"""ListLength: how many entries each row's list has."""

from __future__ import annotations

from typing import Any

from gigabatch.features.columns.categories import TEXT, canonicalize
from gigabatch.features.columns.lists import list_entries
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.operators.lists.explode_lists import split_lists


class ListLength(ColumnOperator):
    """Count the entries of each row's list, null entries among them.

    Lists are delimited text such as '12|7|31'; empty text is a list of one empty entry, as in `ListSlice`. With
    `separator=None` the column holds lists (see `gigabatch.features.columns.lists`). A null list has no entry, and its
    length is 0. Row-wise.

    Parameters
    ----------
    column
        Delimited text, or lists.
    output
        Name of the new int64 column.
    separator
        What stands between two entries; None for a column of lists.

    Raises
    ------
    DataError
        An empty separator; a column that is no text or holds no lists.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import ListLength
    >>> frame = pd.DataFrame({"items": ["12|7|31", "5", None]})
    >>> ListLength("items", "length")(frame)["length"].tolist()
    [3, 1, 0]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, output: str, separator: str | None = "|") -> None:
        if separator == "":
            raise DataError(f"ListLength of {column!r}: the separator must not be empty; None means a column of lists.")
        self.column, self.output, self.separator = column, output, separator

    def compute(self, frame: Frame) -> dict[str, Column]:
        return {self.output: engine_of(frame).series(self._lengths(frame[self.column]), frame)}

    def _lengths(self, column: Column) -> Any:
        if self.separator is None:
            return list_entries(column, "ListLength")[1]
        if canonicalize(column, "ListLength").kind not in (TEXT, None):
            raise DataError(
                f"ListLength: column {column.name!r} is {column.dtype}, not delimited text. Cast it to string, or set "
                "separator=None for a column of lists."
            )
        return split_lists(column.astype("str"), "string", self.separator)[1]
