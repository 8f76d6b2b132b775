"""DropNulls: only the rows that are known in given columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator


class DropNulls(Operator):
    """The rows without null (or NaN) in any of `columns`, in their order and with their index; nothing else changes.

    Row-wise, but the number of rows changes. Empty text is not null. No columns are a `DataError`.
    """

    reads = ("columns",)

    changes_rows = True

    def __init__(self, columns: Sequence[str]) -> None:
        if isinstance(columns, str) or not columns:
            raise DataError(f"DropNulls: give a list of one or more columns, found {columns!r}.")
        self.columns = tuple(columns)

    def transform(self, frame: Any) -> Any:
        known = frame[self.columns[0]].notna()
        for name in self.columns[1:]:
            known = known & frame[name].notna()
        return frame[known]
