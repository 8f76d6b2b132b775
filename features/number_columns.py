"""Columns of numbers as arrays of one type; whatever else a column holds is refused by its name."""

from __future__ import annotations

from typing import Any

from features.errors import DataError
from features.frame import engine_of

EXACT = 2**53  # from here on a float64 may stand for several integers


def float_values(column: Any, where: str) -> Any:
    """The numeric or boolean column as a float64 array with NaN for null; a column of nulls alone may be of any type.

    where: who asks, for the `DataError` about another type.
    """
    if _is_null(column, "iubf", where):
        return engine_of(column).arrays.full(len(column), float("nan"))
    return engine_of(column).array(column.astype("float64"))


def whole_values(column: Any, where: str) -> Any:
    """The column of whole numbers, whatever their type, as an int64 array with 0 for null.

    Errors (`DataError`): text, dates, durations, decimals and other types; fractions, infinities, floats of 2^53 and
    beyond, which may be another number rounded; integers of 2^63 and beyond.
    """
    engine = engine_of(column)
    if _is_null(column, "iubf", where):
        return engine.arrays.zeros(len(column), dtype="int64")
    kind = column.dtype.kind
    known = column.fillna(False if kind == "b" else 0)
    if kind == "f" and bool((~((known == known.round()) & (known.abs() < EXACT))).any()):
        raise DataError(
            f"{where}: column {column.name!r} is {column.dtype} and holds fractions, infinities or numbers of 2^53 and "
            "beyond where whole numbers belong. Round it, or cast it to int64."
        )
    if kind == "u" and len(known) and int(known.max()) >= 2**63:
        raise DataError(f"{where}: column {column.name!r} holds integers of 2^63 and beyond.")
    return engine.array(known.astype("int64"))


def _is_null(column: Any, kinds: str, where: str) -> bool:
    """Whether a column of another type than these is without any value; `DataError` if it has one."""
    kind = "category" if str(column.dtype) == "category" else column.dtype.kind
    if kind in kinds and len(kind) == 1:
        return False
    if bool(column.notna().any()):
        raise DataError(f"{where}: column {column.name!r} is {column.dtype}, not a number. Cast it first.")
    return True
