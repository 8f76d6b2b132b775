"""DropNulls: only the rows that are known in given columns."""

from __future__ import annotations

from collections.abc import Sequence

from gigabatch.features.engines.protocols import Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator


class DropNulls(Operator):
    """Keep only the rows that are known in the given columns.

    Rows stay in their order and keep their index; nothing else changes. NaN counts as null, empty text does not.

    Parameters
    ----------
    columns
        One or more columns. A row goes if any of them is null.

    Raises
    ------
    DataError
        No column is given.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import DropNulls
    >>> frame = pd.DataFrame({"price": [1.0, None, 3.0], "city": ["Oslo", "Bonn", None]})
    >>> DropNulls(["price"])(frame)
       price  city
    0    1.0  Oslo
    2    3.0   NaN
    """

    reads = ("columns",)

    changes_rows = True

    def __init__(self, columns: Sequence[str]) -> None:
        if isinstance(columns, str) or not columns:
            raise DataError(f"DropNulls: give a list of one or more columns, found {columns!r}.")
        self.columns = tuple(columns)

    def transform(self, frame: Frame) -> Frame:
        return frame.dropna(subset=list(self.columns))
