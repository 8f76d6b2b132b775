"""Rename: other names for columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator


class Rename(Operator):
    """The frame with columns renamed by `{old: new}`, all at once (so two may swap); order and values stay. Row-wise.

    Errors (`DataError`): an empty mapping, two columns that would get one name, a new name that a column which is not
    renamed already has.
    """

    reads, writes = ("mapping",), ("mapping",)

    def __init__(self, mapping: Mapping[str, str]) -> None:
        names = list(mapping.values())
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names or twice:
            found = f"{', '.join(map(repr, twice))} is the new name of several columns" if twice else "found none"
            raise DataError(f"Rename: give one or more columns, each with a new name of its own; {found}.")
        self.mapping = dict(mapping)

    def columns_after(self, before: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.mapping.get(name, name) for name in before)

    def transform(self, frame: Any) -> Any:
        staying = [name for name in frame.columns if name not in self.mapping]
        clash = [name for name in self.outputs if name in staying]
        if clash:
            raise DataError(
                f"Rename: column(s) {', '.join(map(repr, clash))} exist already and are not renamed. Choose another "
                f"name, or rename or drop them. Columns there: {', '.join(map(repr, frame.columns))}."
            )
        return frame.rename(columns=self.mapping)
