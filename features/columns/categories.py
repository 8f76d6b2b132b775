"""Which values are the same category, however a frame holds them: text, whole numbers, floats and flags.

- Text is compared by its UTF-8 bytes; it is never read as a number: "7" and 7 are different, and a column of the one
  kind against a vocabulary of the other is an error.
- Whole numbers are compared as int64 whatever their width. A column of floats (integers read with nulls) finds whole
  numbers by value; a float with a fraction or an infinity is none of them, and one of 2^53 and beyond (2^24 where the
  column is float32) is an error, since it may be another number rounded.
- Flags are true and false, not 1 and 0.
- A category type counts by its values, never by its codes. NaN is null. -0.0 is 0.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import EXACT, exact_below

TEXT, WHOLE, FLOAT, FLAG = "text", "whole numbers", "floats", "flags"
KINDS = {"O": TEXT, "U": TEXT, "i": WHOLE, "u": WHOLE, "f": FLOAT, "b": FLAG}


@dataclass(frozen=True)
class Canonical:
    """A column of one kind.

    values: a column of str, int32, int64, float64 or bool; a category type only of text. Text keeps its nulls, other
    kinds hold an arbitrary value there. null: bool array. kind: one of KINDS, None where every row is null. exact: from
    here on the floats that came in may be other whole numbers, rounded.
    """

    values: Column
    null: Array
    kind: str | None
    exact: int = EXACT

    def known(self) -> Any:
        """The values that are not null, on a new index."""
        return self.values[~self.null].reset_index(drop=True)


def canonicalize(column: Column, where: str) -> Canonical:
    """The column as one of the four kinds.

    where: who asks, for messages. Errors (`DataError`): dates, lists, bytes, decimals, mixed objects and other types;
    integers of 2^63 and beyond.
    """
    engine = engine_of(column)
    null = engine.array(column.isna())
    if bool(null.all()):
        return Canonical(column, null, None)
    if str(column.dtype) == "category":
        if category_kind(column.cat.categories) == TEXT:
            return Canonical(column, null, TEXT)
        codes = engine.arrays.clip(engine.array(column.cat.codes).astype("int64"), 0, None)
        column = engine.frames.Series(column.cat.categories, name=column.name).take(codes).reset_index(drop=True)
    elif str(column.dtype) == "object" and engine.NAME == "pandas":
        column = _unboxed(column, where)
    kind = category_kind(column)
    if kind == WHOLE:
        return Canonical(_whole(column, where), null, WHOLE)
    if kind == FLOAT:
        floats = column.fillna(0.0).astype("float64") + 0.0  # -0.0 + 0.0 is 0.0
        null = null | engine.array(floats != floats)
        exact = exact_below(column.dtype)
        return Canonical(floats.fillna(0.0), null, None if bool(null.all()) else FLOAT, exact)
    if kind == FLAG:
        return Canonical(column.fillna(False).astype("bool"), null, FLAG)
    if kind == TEXT and "list" not in str(column.dtype) and "struct" not in str(column.dtype):
        return Canonical(column, null, TEXT)
    raise unknown_type(column, where)


def category_kind(column: Column) -> str | None:
    """The kind that a column's type stands for, None for a type that holds no categories (dates, lists)."""
    return KINDS.get(getattr(column.dtype, "kind", "?"))


def unknown_type(column: Column, where: str) -> DataError:
    return DataError(
        f"{where}: column {column.name!r} is {column.dtype}. Types that can be categories: text, integers, floats, "
        "booleans, and a category type of these. Make dates text, or seconds since 1970, and cast others."
    )


def _unboxed(column: Column, where: str) -> Any:
    """A pandas column of Python objects as the type that all of them have."""
    try:
        typed = column.convert_dtypes()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: column {column.name!r} holds text that is no Unicode ({error}).") from error
    if str(typed.dtype) == "object":
        types = sorted({type(value).__name__ for value in column[column.notna()].head(1000)})
        raise DataError(
            f"{where}: column {column.name!r} holds Python objects of type(s) {', '.join(types)}. Make it one of text, "
            "whole numbers, floats or booleans first."
        )
    return typed


def _whole(column: Column, where: str) -> Any:
    filled = column.fillna(0) if bool(column.isna().any()) else column
    if str(filled.dtype) in ("int64", "int32"):
        return filled
    if column.dtype.kind == "u" and len(filled) and int(filled.max()) >= 2**63:
        raise DataError(f"{where}: column {column.name!r} holds integers of 2^63 and beyond. Read them as text.")
    return filled.astype("int32" if str(filled.dtype) == "Int32" else "int64")


def comparable(column: Canonical, known: Any, where: str) -> tuple[Any, Any, Any]:
    """(column's values, known's values, bool array of rows that equal no value of `known` or None).

    The two columns are of one type; `known` holds no nulls. Errors (`DataError`): another kind, floats of 2^53 and
    beyond against whole numbers, and the other way round; a fraction in float32 that the other holds in float64.
    """
    engine = engine_of(known)
    values, kind = column.values, category_kind(known)
    if column.kind == kind == FLOAT:
        _require_one_width(column, engine.array(known), where)
    if column.kind == kind == WHOLE and values.dtype != known.dtype:
        return values.astype("int64"), known.astype("int64"), None
    if column.kind == kind:
        return values, known, None
    if column.kind == FLOAT and kind == WHOLE:
        array = engine.array(values)
        wrong = ~column.null & (abs(array) >= column.exact) & (abs(array) < float("inf"))
        _require_exact(values, wrong, where, column.exact)
        whole = (array == engine.arrays.floor(array)) & (abs(array) < column.exact)
        return engine.frames.Series(engine.arrays.where(whole, array, 0).astype("int64")), known.astype("int64"), ~whole
    if column.kind == WHOLE and kind == FLOAT:
        array = engine.array(values.astype("int64"))
        _require_exact(values, ~column.null & ((array >= EXACT) | (array <= -EXACT)), where)
        return values.astype("float64"), known, None
    raise DataError(
        f"{where}: column {values.name!r} holds {column.kind} ({values.dtype}), the vocabulary {kind} "
        f"({known.dtype}). Cast the column to the type that the fit saw."
    )


def _require_exact(values: Any, wrong: Any, where: str, exact: int = EXACT) -> None:
    if bool(wrong.any()):
        raise DataError(
            f"{where}: column {values.name!r} and its vocabulary are floats and whole numbers, and {int(wrong.sum())} "
            f"value(s) reach 2^{exact.bit_length() - 1}, where a float may be another number rounded. Read the ids as "
            "integers or as text."
        )


def _require_one_width(column: Canonical, known: Any, where: str) -> None:
    """Raise `DataError` where float32 made another number of a value that the other side holds in float64."""
    xp, values = engine_of(column.values).arrays, column.known()
    asked = engine_of(values).array(values)
    if column.exact < EXACT:
        narrow, wide, types = asked, known, ("float32", "float64")
    elif bool((_as_float32(known) == known).all()):
        # Fractions of few bits (0.5, 0.25) do not tell that they were float32 once, nor do whole numbers.
        with np.errstate(over="ignore"):
            telling = (known != xp.floor(known)) & (known.astype("float16").astype("float64") != known)
        narrow, wide, types = known[telling], asked, ("float64", "float32")
    else:
        return
    rounded = _as_float32(wide)
    found = xp.isin(narrow, rounded[rounded != wide])
    if bool(found.any()):
        cure = "Read it as float64 from its source, as a cast does not bring digits back, or fit again."
        raise DataError(
            f"{where}: column {column.values.name!r} is {types[0]} and what it is looked up in {types[1]}, and "
            f"{int(found.sum())} fraction(s) in float32 are float64 ones rounded, such as {float(narrow[found][0])!r}, "
            f"and would not be found. {'Cast it to float32.' if types[0] == 'float64' else cure}"
        )


def _as_float32(values: Any) -> Any:
    """float64 of the nearest float32, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return values.astype("float32").astype("float64")


def same_kind(left: Any, right: Any, where: str) -> tuple[Any, Any]:
    """Two columns as one type, so that they can stand below each other; one without any value takes the other's.

    Whole numbers beside floats become floats (a file whose integers have nulls reads as floats). Errors
    (`DataError`): other kinds beside each other; whole numbers of 2^53 and beyond beside floats.
    """
    if bool(left.isna().all()):
        return _nulls(len(left), right), right
    if bool(right.isna().all()):
        return left, _nulls(len(right), left)
    kinds = {category_kind(left), category_kind(right)}
    if len(kinds) == 1:
        wide = kinds == {WHOLE} and left.dtype != right.dtype
        return (left.astype("int64"), right.astype("int64")) if wide else (left, right)
    if kinds != {WHOLE, FLOAT}:
        raise DataError(
            f"{where}: some rows hold {category_kind(left)} ({left.dtype}), others {category_kind(right)} "
            f"({right.dtype}). Cast the column to one type before the fit."
        )
    whole = left if category_kind(left) == WHOLE else right
    array = engine_of(whole).array(whole.fillna(0).astype("int64"))
    _require_exact(whole, (array >= EXACT) | (array <= -EXACT), where)
    return left.astype("float64"), right.astype("float64")


def _nulls(length: int, like: Any) -> Any:
    return engine_of(like).frames.Series([None] * length, dtype=like.dtype)


def canonical_column(canonical: Canonical) -> Any:
    """The column with its nulls, on a new index and of a type that keeps each value: see `nullable`."""
    values = canonical.values.reset_index(drop=True)
    if str(values.dtype) == "category":
        return values.astype("str")
    if canonical.kind in (TEXT, None):
        return values
    return nullable(values, engine_of(values).frames.Series(canonical.null))


def nullable(values: Any, null: Any) -> Any:
    """The column with nulls where `null` is True; integers stay integers and flags flags, which pandas needs its
    masked types for. Both on a new index."""
    engine = engine_of(values)
    if category_kind(values) == WHOLE:
        return engine.with_nulls(values, null)
    if category_kind(values) == FLAG and engine.NAME == "pandas":
        return values.astype("boolean").mask(null)
    return values.where(~null)
