"""Columns of numbers as arrays of one type; whatever else a column holds is refused by its name."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Ranked
from gigabatch.features.exact.float_order import EXACT, InfinityFound, exact_below, rankable

log = logging.getLogger(__name__)


def float_values(column: Column, where: str) -> Any:
    """The numeric or boolean column as a float64 array with NaN for null; a column of nulls alone may be of any type.

    where: who asks, for the `DataError` about another type.
    """
    if is_empty(column, "iubf", where):
        return engine_of(column).arrays.full(len(column), float("nan"))
    return engine_of(column).array(column.astype("float64"))


def number_parts(column: Column, where: str) -> tuple[Any, Any]:
    """The column as two float64 arrays whose exact sum it is, NaN in the first for null; so differences of integers of
    2^53 and beyond, which one float64 rounds, are right.

    where: who asks, for the `DataError` about another type.
    """
    engine = engine_of(column)
    high = float_values(column, where)
    if column.dtype.kind not in "iu" or not bool((abs(high) >= EXACT).any()):
        return high, engine.arrays.zeros(len(column), dtype="float64")
    whole = engine.array(column, fill=0)
    rest = whole & whole.dtype.type(2047)  # the last 11 bits; without them 53 are left
    large = abs(high) >= EXACT
    return (
        engine.arrays.where(large, (whole - rest).astype("float64"), high),
        engine.arrays.where(large, rest.astype("float64"), 0.0),
    )


def loses_digits(column: Column, floats: Any = None) -> bool:
    """Whether a whole number of the column has digits that float64 loses. floats: of `float_values`, if it is there."""
    if column.dtype.kind not in "iu":
        return False
    floats = float_values(column, "float64") if floats is None else floats
    if not bool((abs(floats) >= EXACT).any()):
        return False
    high, rest = number_parts(column, "float64")
    return bool((((high + rest) - high - rest)[~engine_of(column).arrays.isnan(high)] != 0).any())


def tell_of_rounding(column: Column, where: str, floats: Any = None) -> None:
    """Log, once a process, that a column which `where` takes as float64 loses digits so; see `loses_digits`."""
    if loses_digits(column, floats):
        _log_rounding(str(column.name), where)


@cache
def _log_rounding(name: str, where: str) -> None:
    log.warning(
        "%s: column %r holds whole numbers of 2^53 and beyond, which float64 rounds. Subtract a constant or another "
        "column first (difference is exact), or cast it to float64 to have it so.", where, name,
    )  # fmt: skip


def whole_values(column: Column, where: str) -> Any:
    """The column of whole numbers, whatever their type, as an int64 array with 0 for null.

    Errors (`DataError`): text, dates, durations, decimals and other types; fractions, infinities, floats of 2^53 (2^24
    for float32) and beyond, which may be another number rounded; integers of 2^63 and beyond.
    """
    engine = engine_of(column)
    if is_empty(column, "iubf", where):
        return engine.arrays.zeros(len(column), dtype="int64")
    kind = column.dtype.kind
    known = column.fillna(False if kind == "b" else 0)
    if kind == "f":
        numbers, exact = engine.array(known), exact_below(column.dtype)
        if not bool(((numbers == engine.arrays.rint(numbers)) & (abs(numbers) < exact)).all()):
            raise DataError(
                f"{where}: column {column.name!r} is {column.dtype} and holds fractions, infinities or numbers of "
                f"2^{exact.bit_length() - 1} and beyond where whole numbers belong. Round it, or cast it to int64."
            )
        return numbers.astype("int64")
    if kind == "u" and len(known) and int(known.max()) >= 2**63:
        raise DataError(f"{where}: column {column.name!r} holds integers of 2^63 and beyond.")
    return engine.array(known.astype("int64"))


def is_empty(column: Column, kinds: str, where: str) -> bool:
    """Whether a column of another type than these is without any value; `DataError` if it has one."""
    kind = "category" if str(column.dtype) == "category" else column.dtype.kind
    if kind in kinds and len(kind) == 1:
        return False
    if bool(column.notna().any()):
        raise DataError(f"{where}: column {column.name!r} is {column.dtype}, not a number. Cast it first.")
    return True


def known_values(column: Column) -> Any:
    """The column's values without nulls and NaN, as an array of its own type; an infinity is an error."""
    require_numbers(column)
    engine = engine_of(column)
    known = column[column.notna()]
    if known.dtype.kind not in "biuf":  # without a value, so of no type that tells
        return engine.arrays.empty(0, dtype="float32")
    require_finite(known)
    return engine.array(known)


def filled_values(frame: Frame, column: str, operator: str, wide: bool = True) -> Any:
    """The known values of a column that must have no other; as float64, unless not `wide`."""
    if frame[column].isna().any():
        raise DataError(f"{operator}: column {column!r} holds nulls. Fill them first.")
    values = known_values(frame[column])
    return values.astype("float64") if wide else values


def float32_column(values: Array, frame: Frame, name: str) -> Column:
    """A float64 array as a float32 column of the frame; `DataError` by the column's name for what leaves float32."""
    with np.errstate(over="ignore"):
        found = engine_of(frame).series(values.astype("float32"), frame).rename(name)
    require_finite(found)
    return found


def rankable_values(column: Column) -> Any:
    """The column as a float32 array if it is of that type, else as float64; its nulls are NaN or left out.

    A NumPy column of floats comes as it is, without a copy.
    """
    if engine_of(column).NAME == "pandas" and column.dtype in (np.float32, np.float64):
        return column.to_numpy()
    return rankable(known_values(column))


def ranked_values(column: Column, keep: bool) -> Ranked:
    """`Ranked` of the column; an infinity is an error."""
    return naming(column.name, Ranked.of, rankable_values(column), keep)


# Digits are those of ASCII alone: Python would also take 1_000 and digits of other scripts, other readers of the same
# file would not.
WHOLE_TEXT = r"^[ \t]*[+-]?[0-9]+[ \t]*$"
POINT_TEXT = r"^[ \t]*[+-]?[0-9]+[.]0*[ \t]*$"  # 28.0, as pandas writes whole numbers beside a null
FLOAT_TEXT = (
    r"^[ \t]*[+-]?([0-9]+[.]?[0-9]*([eE][+-]?[0-9]+)?|[.][0-9]+([eE][+-]?[0-9]+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?|"
    r"[nN][aA][nN])[ \t]*$"
)


class NotWritten(ValueError):
    """Text stands where a number belongs. text: which."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text!r} is not written as {why}")
        self.text = text


def without_zeros(column: Column) -> Any:
    """A column of text, in which whole numbers have no point: `28.0` becomes `28`, other text stays as it is.

    >>> import pandas as pd
    >>> without_zeros(pd.Series(["28.0", "7", "1.5", None])).tolist()[:3]
    ['28', '7', '1.5']
    """
    if not bool(column.str.contains(".", regex=False).fillna(False).any()):
        return column
    found = column.str.match(POINT_TEXT).fillna(False).astype("bool")
    return column.where(~found, column.str.replace(r"[.]0*[ \t]*$", "", regex=True))


def require_digits(column: Column, dtype: str) -> None:
    """Raise `NotWritten` if text holds what Python may take for a number, and a reader of files would not."""
    text, whole = engine_of(column).text(column.dropna()), dtype.startswith("int")
    wrong = text[~text.str.match(WHOLE_TEXT if whole else FLOAT_TEXT)]
    if len(wrong):
        example = engine_of(column).to_pandas(wrong.head(1).to_frame("text"))["text"].tolist()[0]
        if whole and re.match(FLOAT_TEXT, example):
            raise NotWritten(
                example,
                "a whole number: digits 0 to 9, a sign, a point with zeros. Where all are whole, cast to float64 first",
            )
        raise NotWritten(example, "a number: digits 0 to 9, a sign, a point, an exponent")


def require_numbers(column: Column) -> None:
    """Raise `DataError` if the column holds values that are neither numbers nor booleans."""
    if column.dtype.kind not in "biuf" and bool(column.notna().any()):
        raise DataError(f"column {column.name!r} is {column.dtype}, not numbers. Cast or encode it before this stage.")


def require_finite(column: Column) -> None:
    """Raise `DataError` if the column, which has no nulls, holds an infinity."""
    engine = engine_of(column)
    if not bool(engine.arrays.isfinite(engine.array(column)).all()):
        raise DataError.infinity(column.name)


def naming(column: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns; where it refuses the values, the `DataError` names the column."""
    try:
        return function(*arguments)
    except InfinityFound:
        raise DataError.infinity(column) from None
    except DataError as error:
        raise DataError(f"column {column!r}: {error}") from error
