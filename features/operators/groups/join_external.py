"""JoinExternal: columns of another table, looked up by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.history.key_index import KeyIndex, take_or_null
from gigabatch.features.operators.base import ColumnOperator, own_table


class JoinExternal(ColumnOperator):
    """Look up columns of another table by key.

    This is a left join that keeps every row, its order and its index. A row finds null where its key is null or not in
    the table. A column's type follows from the table's own, not from what is found: whole numbers and booleans come in
    types that can be null (Int64 and boolean on pandas), so that ids keep every digit. Row-wise.

    Parameters
    ----------
    table
        The other frame, as of `arrow_table`, in a configuration the path of a CSV or Parquet file; each key is there
        once. Rows of it with a null key are never found.
    on
        Key columns, in both frames.
    columns
        What to take from the table: new names by its own.
    name
        What errors call the table.

    Raises
    ------
    DataError
        A column is missing from the table, or a key is there twice; the message shows one.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import JoinExternal
    >>> planes = pd.DataFrame({"tail": ["N1", "N2"], "seats": [50, 180]})
    >>> flights = pd.DataFrame({"tail": ["N2", "N9", "N1"]})
    >>> JoinExternal(planes, ["tail"], {"seats": "plane_seats"})(flights)
      tail  plane_seats
    0   N2          180
    1   N9         <NA>
    2   N1           50
    """

    reads, writes = ("on",), ("columns",)

    tables = ("table",)

    def __init__(self, table: Any, on: Sequence[str], columns: Mapping[str, str], name: str = "table") -> None:
        where = f"JoinExternal of {name}"
        if not isinstance(columns, Mapping):
            raise DataError(
                f"{where}: columns gives what to take from the table its name here, as in {{'year': 'film_year'}} or "
                f"{{'year': 'year'}}; found {columns!r}."
            )
        self.on, self.columns, self.name = tuple(on), dict(columns), name
        if not self.on or isinstance(on, str):
            raise DataError(f"{where}: on is a list of one or more key columns, found {on!r}.")
        table = own_table(table, where)
        require_columns(table, [*self.on, *self.columns], where)
        self.table = table[list(dict.fromkeys((*self.on, *self.columns)))]
        known = self.table[list(self.on)].dropna(subset=list(self.on))
        twice = known.duplicated()
        if twice.any():
            example = known[twice].head(1).to_dict("records")[0]
            raise DataError(
                f"{where}: {int(twice.sum())} duplicate key(s) in {list(self.on)}, for example {example}. A lookup "
                "table holds each key once: aggregate it or drop the repeats first."
            )
        self._index = KeyIndex(self.table, self.on, where)

    def dates(self, names: Collection[str], times: Collection[str]) -> tuple[str, ...]:
        return ()  # what a table says of a day, such as its holiday

    def compute(self, frame: Frame) -> dict[str, Column]:
        rows = self._index.rows(frame)
        return {new: take_or_null(self.table[name], rows, frame) for name, new in self.columns.items()}
