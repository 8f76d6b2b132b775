"""JoinExternal: columns of another table, looked up by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.history.grouped_sums import row_of_key
from gigabatch.features.operators.base import ColumnOperator

_ROW, _KEY = "__row__", "__key__"


class JoinExternal(ColumnOperator):
    """Look up columns of another table by key.

    This is a left join that keeps every row, its order and its index. A row finds null where its key is null or not in
    the table. Row-wise.

    Parameters
    ----------
    table
        The other frame; each key is there once. Rows of it with a null key are never found.
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
    0   N2        180.0
    1   N9          NaN
    2   N1         50.0
    """

    reads, writes = ("on",), ("columns",)

    tables = ("table",)

    def __init__(self, table: Any, on: Sequence[str], columns: dict[str, str], name: str = "table") -> None:
        self.on, self.columns, self.name = tuple(on), dict(columns), name
        require_columns(table, [*self.on, *self.columns], f"JoinExternal of {name}")
        self.table = table[[*self.on, *self.columns]]
        table = self.table.dropna(subset=list(self.on))
        twice = table[list(self.on)].duplicated()
        if twice.any():
            example = table[list(self.on)][twice].head(1).to_dict("records")[0]
            raise DataError(
                f"JoinExternal of {name}: {int(twice.sum())} duplicate key(s) in {list(self.on)}, for example "
                f"{example}. A lookup table holds each key once: aggregate it or drop the repeats first."
            )
        self._lookup = table.rename(columns=self.columns)

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        keys = row_of_key(frame, self._lookup, self.on, f"JoinExternal of {self.name}")
        left = engine.frames.DataFrame({_ROW: engine.arrays.arange(len(frame)), _KEY: keys})
        right = self._lookup[list(self.outputs)].assign(**{_KEY: engine.arrays.arange(len(self._lookup))})
        # A join does not promise row order (cuDF does not keep it), so the row number comes along and sorts it back.
        joined = left.merge(right, on=_KEY, how="left").sort_values(_ROW).reset_index(drop=True)
        found = {}
        for name in self.outputs:
            column = joined[name]
            column.index = frame.index
            found[name] = column
        return found
