"""Lists of single rows to ids, offsets and weights: the same bits as `Preprocessor.pack_lists` of a frame."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from gigabatch.features.encoding.lists import PackedList
from gigabatch.features.errors import DataError
from gigabatch.features.schema import ListColumn

EXACT_KINDS = "biufUO"  # kinds of arrays whose `tolist` gives the values that they hold


class Encoder(Protocol):
    """What finds the ids of a column's values (`features/encoding/online.py`)."""

    known: dict[Any, int]

    def encode(self, value: Any) -> int: ...


class OnlineList:
    """Encodes one list column row by row.

    category: of the vocabulary that the column takes. null: the id that `category` gives a null; no value has it.
    as_weight: a number that is no null to the float that float32 holds, `ValueError` or `TypeError` for what is none.
    is_null: whether a value is a null of Python, NumPy or pandas. direct: types of which a dict finds what the column
    holds and no more.
    """

    def __init__(
        self,
        column: ListColumn,
        category: Encoder,
        null: int,
        as_weight: Callable[[Any], float],
        is_null: Callable[[Any], bool],
        direct: frozenset[type],
        where: str,
    ) -> None:
        self.column, self._category, self._null, self._where = column, category, null, where
        self._as_weight, self._is_null, self._direct = as_weight, is_null, direct

    def pack(self, rows: Sequence[tuple[Any, ...]]) -> PackedList:
        """The lists of rows, given as values of the column's `columns`; `DataError` names the row, if there are many,
        and the column."""
        ids: list[int] = []
        lengths: list[int] = []
        weights: list[float] = []
        for place, values in enumerate(rows):
            try:
                found, own = self._row(*values)
            except DataError as error:
                if len(rows) == 1:
                    raise
                raise DataError(f"{self._where}, row {place}{str(error).removeprefix(self._where)}") from error
            ids += found
            lengths.append(len(found))
            weights += own
        offsets = np.array([0, *accumulate(lengths)], np.int64)
        given = None if self.column.weights is None else np.array(weights, np.float32)
        return PackedList(np.array(ids, np.int32), offsets, given)

    def _row(self, given: Any, given_weights: Any = None) -> tuple[list[int], list[float]]:
        """Ids of the elements that are not null, the last `max_length` of them, and their weights."""
        column = self.column
        values = self._elements(given, column.name)
        ids = self._ids(values)
        weights: list[float] = []
        if column.weights is not None:
            weights = [self._weight(value) for value in self._elements(given_weights, column.weights)]
            if len(weights) != len(values):
                raise DataError(
                    f"{self._where}: list column {column.name!r} has {len(values)} elements and {len(weights)} weights "
                    f"in {column.weights!r}. Every element has one weight."
                )
        if self._null in ids:
            kept = [place for place, id in enumerate(ids) if id != self._null]
            ids, weights = [ids[place] for place in kept], [weights[place] for place in kept] if weights else weights
        if column.max_length is not None and len(ids) > column.max_length:
            ids, weights = ids[-column.max_length :], weights[-column.max_length :]
        if not all(map(math.isfinite, weights)):
            raise DataError(
                f"{self._where}: the weights {column.weights!r} of list column {column.name!r} hold a null, NaN or "
                "infinity. Give every element a finite weight, or take the element out."
            )
        return ids, weights

    def _elements(self, given: Any, name: str) -> list[Any]:
        """A list as Python's, without nulls looked at; a null is empty."""
        if isinstance(given, list):
            return given
        if isinstance(given, tuple):
            return list(given)
        if isinstance(given, np.ndarray) and given.ndim == 1:
            plain = given.dtype.kind in EXACT_KINDS and given.dtype.type in self._direct
            return given.tolist() if plain else list(given)  # a float32 that skips whole numbers stays one
        if self._is_null(given):
            return []
        raise DataError(
            f"{self._where}: list column {name!r} holds {reprlib.repr(given)} of {type(given).__name__}. Give a list, "
            "a tuple or an array of one dimension, empty or null where there are no elements."
        )

    def _ids(self, values: list[Any]) -> list[int]:
        find, encode = self._category.known.get, self._category.encode
        try:
            found = [find(value) for value in values]
        except TypeError:  # one that cannot be looked up; `encode` names it
            found = [None] * len(values)
        if not self._direct.issuperset(map(type, values)):
            found = [known if type(value) in self._direct else None for known, value in zip(found, values, strict=True)]
        if None not in found:
            return found  # type: ignore[return-value]
        return [encode(value) if known is None else known for known, value in zip(found, values, strict=True)]

    def _weight(self, value: Any) -> float:
        """The weight, NaN for a null; an infinity for what float32 cannot hold."""
        if type(value) is float:
            if not math.isfinite(value):
                return value
        elif self._is_null(value):
            return math.nan
        try:
            return self._as_weight(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"{self._where}: the weights {self.column.weights!r} of list column {self.column.name!r} hold "
                f"{reprlib.repr(value)}, which is no float32 ({error}). Give numbers."
            ) from error


def values_of(row: Mapping[str, Any] | Sequence[Any], names: Sequence[str], places: Sequence[int]) -> tuple[Any, ...]:
    """A row's values of these columns: by place of a list or tuple, else by name, None for a name that is not there."""
    if isinstance(row, (list, tuple)):
        return tuple([row[place] for place in places])
    there = row.keys()  # type: ignore[union-attr]
    return tuple([row[name] if name in there else None for name in names])  # type: ignore[call-overload]
