"""Filter: only the rows for which a condition on one column is known to be true."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from gigabatch.features.columns.categories import TEXT, canonicalize
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator

COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MEMBERSHIPS = ("in", "not_in")
NULL_TESTS = ("is_null", "not_null")
OPS = (*COMPARISONS, *MEMBERSHIPS, *NULL_TESTS)
LIMIT = 2.0**1023  # so that every number given has a float64 near it
# What a number below every value of the column's type answers to `value op number`, and one above every value.
BELOW = {"==": False, "!=": True, "<": False, "<=": False, ">": True, ">=": True}
ABOVE = {"==": False, "!=": True, "<": True, "<=": True, ">": False, ">=": False}

Value = str | float | bool


class Filter(Operator):
    """Keep only the rows for which a condition on one column is known to be true.

    Rows stay in their order and keep their index. A null (NaN is one) satisfies `is_null` alone: neither `!=` nor
    `not_in` keeps it. Numbers compare as numbers, without rounding: an integer is never below 2.5 by cutting the
    fraction off, and a float32 is compared as the float64 that it equals, so that 0.1 is not found in a float32 column.
    Text compares by code point, booleans only by equality, categories as their values. Row-wise, but the number of rows
    changes.

    Parameters
    ----------
    column
        Text, numbers, booleans or a category type of these.
    op
        One of == != < <= > >=, with a number, text or boolean; `in` and `not_in`, with a list of those; `is_null` and
        `not_null`, without a value.
    value
        What the column is compared with.

    Raises
    ------
    DataError
        An unknown op, a value that does not suit the op or is not finite; a number asked of a text column and the like;
        a whole number that a float column skips (above 2^53).

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Filter
    >>> frame = pd.DataFrame({"price": [5, 20, 80]})
    >>> Filter("price", ">=", 10)(frame)
       price
    1     20
    2     80
    """

    reads = ("column",)

    changes_rows: ClassVar[bool] = True

    def __init__(self, column: str, op: str, value: Value | Sequence[Value] | None = None) -> None:
        where = f"Filter of {column!r} by {op!r}"
        if op not in OPS:
            raise DataError(f"{where}: unknown op. Known: {', '.join(OPS)}.")
        several = isinstance(value, list | tuple)
        if op in NULL_TESTS and value is not None:
            raise DataError(f"{where}: takes no value, found {value!r}.")
        if op in MEMBERSHIPS and (not several or not value):
            raise DataError(f"{where}: give a list of one or more values, found {value!r}.")
        if op not in NULL_TESTS:
            _require_plain(value if several and op in MEMBERSHIPS else [value], where)
        self.column, self.op = column, op
        self.value: Any = list(value) if isinstance(value, list | tuple) else value

    def transform(self, frame: Frame) -> Frame:
        column = frame[self.column]
        if self.op in NULL_TESTS:
            return frame[column.isna() if self.op == "is_null" else column.notna()]
        # Only known values are compared: what a comparison with null gives differs between pandas and cuDF.
        xp = engine_of(frame).arrays
        known = xp.nonzero(engine_of(frame).array(column.notna()))[0]
        if len(known) == 0:  # a column of nulls alone may be of any type
            return frame.take(known)
        return frame.take(known[self._keeps(_plain(column.take(known)))])

    def _keeps(self, column: Column) -> Any:
        """Bool array: whether each value of the column, none of them null, satisfies the condition."""
        if self.op in COMPARISONS:
            return _compare(column, self.op, self.value)
        found = engine_of(column).arrays.zeros(len(column), dtype=bool)
        for value in self.value:
            found |= _compare(column, "==", value)
        return found if self.op == "in" else ~found


def _require_plain(values: Any, where: str) -> None:
    for value in values:
        number = isinstance(value, int | float)
        if not (number or isinstance(value, str)) or (number and not abs(value) < LIMIT):
            raise DataError(
                f"{where}: compares with text, finite numbers and booleans, found {value!r}. For nulls there are "
                "is_null and not_null."
            )


def _plain(column: Column) -> Any:
    """The column, which has no nulls, without its category or masked type."""
    if str(column.dtype) == "category":
        column = column.astype(column.dtype.categories.dtype)
    # pandas calls its masked types Int64, boolean and so on.
    masked = str(column.dtype) == "boolean" or str(column.dtype)[:1].isupper()
    return column.astype("bool" if str(column.dtype) == "boolean" else str(column.dtype).lower()) if masked else column


def _compare(column: Column, op: str, value: Any) -> Any:
    kind = "O" if column.dtype.kind == "U" else column.dtype.kind  # of Arrow's text
    wanted = "b" if isinstance(value, bool) else "O" if isinstance(value, str) else "iuf"
    if kind not in wanted or (kind == "b" and op not in ("==", "!=")):
        raise DataError(
            f"Filter: column {column.name!r} is {column.dtype}, which cannot be compared by {op!r} with {value!r}. "
            "Compare text with text, numbers with numbers, booleans by == and != with true and false; or Cast it."
        )
    engine = engine_of(column)
    if kind == "O":
        text = canonicalize(column, "Filter")
        if text.kind not in (TEXT, None):
            raise DataError(f"Filter: column {column.name!r} holds {text.kind}, not text. Cast it first.")
        return engine.array(COMPARISONS[op](text.values.astype("str"), value)).astype(bool)
    values = engine.array(column)
    if kind in "iu":
        return _compare_integers(engine.arrays, values, op, value)
    if kind == "f":
        if float(value) != value:
            raise DataError(
                f"Filter: column {column.name!r} is {column.dtype}, which skips the number {value}. Cast the column "
                "to int64, or compare with a number that it can hold."
            )
        return COMPARISONS[op](values.astype("float64"), float(value))
    return COMPARISONS[op](values, value)


def _compare_integers(xp: Any, values: Any, op: str, value: float) -> Any:
    """Exactly: a bound with a fraction becomes the next whole number, one beyond the type decides for all."""
    whole = math.floor(value)
    if whole != value:
        if op in ("==", "!="):
            return xp.full(len(values), op == "!=", dtype=bool)
        # x < 2.5 and x <= 2.5 mean x <= 2; x > 2.5 and x >= 2.5 mean x > 2.
        op = "<=" if op in ("<", "<=") else ">"
    limits = np.iinfo(np.dtype(str(values.dtype)))
    if not int(limits.min) <= whole <= int(limits.max):
        return xp.full(len(values), (BELOW if whole < 0 else ABOVE)[op], dtype=bool)
    return COMPARISONS[op](values, values.dtype.type(whole))
