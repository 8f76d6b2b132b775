"""The row of a table that holds a key: indexed once, however many frames ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gigabatch.features.columns.categories import (
    FLAG,
    FLOAT,
    TEXT,
    WHOLE,
    Canonical,
    canonicalize,
    comparable,
    nullable,
)
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import EXACT


class KeyIndex:
    """Find the rows of a table by its key columns.

    What counts as the same value: see `gigabatch.features.columns.categories`. A null in any key column is no key.

    Parameters
    ----------
    table
        A frame in which each key is there once.
    by
        Its key columns; the frames that ask have columns of the same names.
    where
        Who asks, for messages.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.history.key_index import KeyIndex
    >>> index = KeyIndex(pd.DataFrame({"city": ["Oslo", "Bonn"], "hour": [3, 4]}), ["city", "hour"])
    >>> index.rows(pd.DataFrame({"city": ["Bonn", "Oslo", None], "hour": [4, 4, 3]})).tolist()
    [1, -1, -1]
    """

    def __init__(self, table: Frame, by: Sequence[str], where: str = "key") -> None:
        self.engine, self.by, self.where = engine_of(table), tuple(by), where
        xp = self.engine.arrays
        self._columns = [_Values(table[name], where) for name in self.by]
        self._pairs: list[Any] = []  # of every further column: the codes that the columns so far have together
        codes = self._columns[0].codes(table[self.by[0]])
        for name, values in zip(self.by[1:], self._columns[1:], strict=True):
            found = values.codes(table[name])
            together = codes * values.size + found
            self._pairs.append(xp.unique(together[(codes >= 0) & (found >= 0)]))
            codes = self._together(codes, found, values.size, self._pairs[-1])
        self._row_of = xp.full(int(codes.max() if len(codes) else -1) + 2, -1, dtype="int64")
        self._row_of[codes] = xp.arange(len(codes))
        self._row_of[-1] = -1  # the last place is that of null keys

    def rows(self, frame: Frame) -> Any:
        """int64 array: the table's row with the key of each row of the frame; -1 for none.

        Errors (`DataError`): a key column of another kind than the table's.
        """
        codes = self._columns[0].codes(frame[self.by[0]])
        for name, values, pairs in zip(self.by[1:], self._columns[1:], self._pairs, strict=True):
            codes = self._together(codes, values.codes(frame[name]), values.size, pairs)
        return self._row_of[codes]

    def _together(self, left: Any, right: Any, width: int, pairs: Any) -> Any:
        places = _places(self.engine.arrays, left * width + right, pairs)
        return self.engine.arrays.where((left >= 0) & (right >= 0), places, -1)


class Indexed:
    """Mixin of a frozen state whose `table` is asked by key: the index is made once and not saved."""

    table: Any

    def rows_of(self, frame: Frame, by: Sequence[str], where: str) -> Any:
        """`KeyIndex.rows` of the table."""
        index = self.__dict__.get("_index")
        if index is None:
            index = self.__dict__["_index"] = KeyIndex(self.table, by, where)
        return index.rows(frame)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_index"}


class _Values:
    """The distinct values of one key column, and how they are found."""

    def __init__(self, column: Column, where: str) -> None:
        self.engine, self.where = engine_of(column), where
        canonical = canonicalize(column, where)
        self.kind, self.exact = canonical.kind, canonical.exact
        known = canonical.known()
        self.values = known.astype("str") if str(known.dtype) == "category" else known
        if self.kind in (TEXT, WHOLE):
            self.values = self.values.drop_duplicates().reset_index(drop=True)
            self.table = self.engine.lookup(self.values)
        else:
            self.table = self.engine.arrays.unique(self._array(self.values)) if self.kind else None
        whole = self.engine.array(self.values) if self.kind == WHOLE else None
        self.below_2_53 = whole is not None and int(whole.min()) > -EXACT and int(whole.max()) < EXACT
        self.size = 0 if self.kind is None else len(self.values if self.kind in (TEXT, WHOLE) else self.table)

    def codes(self, column: Column) -> Any:
        """int64 [N] below `size`, -1 for null and for a value that is not there."""
        xp = self.engine.arrays
        asked = canonicalize(column, self.where)
        if None in (asked.kind, self.kind):
            return xp.full(len(column), -1, dtype="int64")
        self._require_alike(asked)
        if asked.kind == FLOAT and self.below_2_53:  # such a float, whatever it was before rounding, is not there
            array = self.engine.array(asked.values)
            asked = replace(asked, null=asked.null | (abs(array) >= EXACT))
        values, known, foreign = comparable(asked, self.values, self.where, self.exact)
        if self.kind in (TEXT, WHOLE):
            found = self.engine.positions_in(values, known, self.table)
        else:
            found = _places(xp, self._array(values), self.table)
        missing = asked.null if foreign is None else asked.null | foreign
        return xp.where(missing, -1, found)

    def _array(self, values: Column) -> Any:
        return self.engine.array(values.astype("int64") if self.kind == FLAG else values.astype("float64"))

    def _require_alike(self, asked: Canonical) -> None:
        kinds = {asked.kind, self.kind}
        if len(kinds) > 1 and not kinds.isdisjoint({TEXT, FLAG}):
            raise DataError(
                f"{self.where}: column {asked.values.name!r} holds {asked.kind} ({asked.values.dtype}) in the rows and "
                f"{self.kind} ({self.values.dtype}) in the table. Cast one of them to the other's type."
            )


def _places(xp: Any, asked: Any, known: Any) -> Any:
    """int64 [N] place of each number in the ascending `known`, -1 where it is not there."""
    if len(known) == 0:
        return xp.full(len(asked), -1, dtype="int64")
    places = xp.searchsorted(known, asked)
    places[places == len(known)] = 0
    return xp.where(known[places] == asked, places, -1)


def values_at(xp: Any, values: Any, rows: Any, nothing: float) -> Any:
    """float64: the value of the array at each row number, `nothing` where that is -1."""
    if len(values) == 0:
        return xp.full(len(rows), nothing, dtype="float64")
    return xp.where(rows >= 0, values[rows], nothing).astype("float64")


def take_or_null(column: Column, rows: Any, like: Frame) -> Column:
    """The value of `column` in each row number of `rows`, null where that is -1, on the index of the frame `like`.

    The type follows from that of `column` alone, never from what was found: whole numbers and flags come in the
    engine's types that can be null (Int64 and boolean on pandas), with or without a null.
    """
    engine = engine_of(column)
    missing = engine.series(rows < 0, like)
    if len(column) == 0:
        if getattr(column.dtype, "kind", "O") not in "iub":
            return engine.frames.Series([None] * len(like), index=like.index, dtype=column.dtype)
        taken = engine.series(engine.arrays.zeros(len(like), dtype="int64"), like).astype(column.dtype)
    else:
        taken = column.take(engine.arrays.clip(rows, 0, None))
        taken.index = like.index
    return nullable(taken, missing)
