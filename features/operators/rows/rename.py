"""Rename: other names for columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gigabatch.features.engines.protocols import Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator


class Rename(Operator):
    """Rename columns, all at once.

    Two columns may swap their names. Order and values stay. Row-wise.

    Parameters
    ----------
    mapping
        New names by old ones.

    Raises
    ------
    DataError
        The mapping is empty, two columns would get one name, or a column that is not renamed has a new name already.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Rename
    >>> Rename({"a": "b", "b": "a"})(pd.DataFrame({"a": [1], "b": [2]}))
       b  a
    0  1  2
    """

    reads, writes = ("mapping",), ("mapping",)

    def __init__(self, mapping: Mapping[str, str]) -> None:
        names = list(mapping.values())
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names or twice:
            found = f"{', '.join(map(repr, twice))} is the new name of several columns" if twice else "found none"
            raise DataError(f"Rename: give one or more columns, each with a new name of its own; {found}.")
        self.mapping = dict(mapping)

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(new for old, new in self.mapping.items() if old in names)

    def types_after(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        return {self.mapping.get(name, name): dtype for name, dtype in dtypes.items()}

    def columns_after(self, before: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.mapping.get(name, name) for name in before)

    def transform(self, frame: Frame) -> Frame:
        staying = [name for name in frame.columns if name not in self.mapping]
        clash = [name for name in self.outputs if name in staying]
        if clash:
            raise DataError(
                f"Rename: column(s) {', '.join(map(repr, clash))} exist already and are not renamed. Choose another "
                f"name, or rename or drop them. Columns there: {', '.join(map(repr, frame.columns))}."
            )
        return frame.rename(columns=self.mapping)
