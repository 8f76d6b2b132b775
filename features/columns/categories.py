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

from gigabatch.features.columns.objects import unboxed
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import EXACT, exact_below

TEXT, WHOLE, FLOAT, FLAG = "text", "whole numbers", "floats", "flags"
FLOATS = {2**11: "float16", 2**24: "float32", EXACT: "float64"}
# How names of types of text begin; of the kind "O" are lists, decimals and dates of Arrow and periods of pandas too.
TEXTS = ("object", "string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
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
    if kind == TEXT and (str(column.dtype) == "str" or str(column.dtype).startswith(TEXTS)):
        return Canonical(column, null, TEXT)
    raise unknown_type(column, where)


def category_kind(column: Column) -> str | None:
    """The kind that a column's type stands for, None for a type that holds no categories (dates, lists)."""
    return KINDS.get(getattr(column.dtype, "kind", "?"))


def unknown_type(column: Column, where: str) -> DataError:
    if str(column.dtype).startswith(("list", "large_list", "fixed_size_list")):
        return _is_of_lists(column, where)
    return DataError(
        f"{where}: column {column.name!r} is {column.dtype}. Types that can be categories: text, integers, floats, "
        "booleans, and a category type of these. Make dates text, or seconds since 1970, and cast others."
    )


def _is_of_lists(column: Column, where: str) -> DataError:
    return DataError(
        f"{where}: column {column.name!r} holds lists, and one of text, whole numbers, floats or booleans is needed a "
        "row. Categorify takes lists with lists=True, ListSlice and ListLength with separator=None, and "
        "`features.lists` of a configuration encodes them without a step."
    )


def _unboxed(column: Column, where: str) -> Any:
    """A pandas column of Python objects as the type that all of them have."""
    try:
        typed = unboxed(column)
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: column {column.name!r} holds text that is no Unicode ({error}).") from error
    except ValueError as error:
        raise DataError(f"{where}: column {column.name!r} {error}.") from error
    if str(typed.dtype) == "object":
        types = sorted({type(value).__name__ for value in column[column.notna()].head(1000)})
        if set(types) <= {"list", "tuple", "ndarray"}:
            raise _is_of_lists(column, where)
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


def comparable(column: Canonical, known: Any, where: str, exact: int = EXACT) -> tuple[Any, Any, Any]:
    """(column's values, known's values, bool array of rows that equal no value of `known` or None).

    The two columns are of one type; `known` holds no nulls, and `exact` is that of its floats, as in `Canonical`.
    Errors (`DataError`): another kind, floats of 2^53 and beyond against whole numbers, and the other way round; what
    `require_unrounded` refuses.
    """
    engine = engine_of(known)
    values, kind = column.values, category_kind(known)
    if kind == FLOAT:
        require_unrounded(column, Canonical(known, engine.arrays.zeros(len(known), dtype=bool), FLOAT, exact), where)
    if column.kind == kind == WHOLE and values.dtype != known.dtype:
        return values.astype("int64"), known.astype("int64"), None
    if column.kind == kind:
        return values, known, None
    if column.kind == FLOAT and kind == WHOLE:
        array = engine.array(values)
        require_exact(values, reaching(column, column.exact), where, column.exact)
        whole = (array == engine.arrays.floor(array)) & (abs(array) < column.exact)
        return engine.frames.Series(engine.arrays.where(whole, array, 0).astype("int64")), known.astype("int64"), ~whole
    if column.kind == WHOLE and kind == FLOAT:
        require_exact(values, reaching(column, EXACT), where)
        return values.astype("float64"), known, None
    raise DataError(
        f"{where}: column {values.name!r} holds {column.kind} ({values.dtype}), the vocabulary {kind} "
        f"({known.dtype}). Cast the column to the type that the fit saw."
    )


def require_exact(values: Any, wrong: Any, where: str, exact: int = EXACT) -> None:
    """Raise `DataError` where a value is `wrong`: a float that may be another number rounded, beside whole numbers."""
    if bool(wrong.any()):
        raise DataError(
            f"{where}: column {values.name!r} and what it is compared with are floats and whole numbers, and "
            f"{int(wrong.sum())} value(s) reach 2^{exact.bit_length() - 1}, where a float may be another number "
            "rounded. Read the ids as integers or as text."
        )


def require_unrounded(left: Canonical, right: Canonical, where: str) -> None:
    """Raise `DataError` where floats of one column may be numbers of the other one, rounded, and would not be found."""
    kinds = {left.kind, right.kind}
    if kinds == {FLOAT}:
        _require_one_width(left, right, where)
    elif kinds == {FLOAT, WHOLE}:
        floats, whole = (left, right) if left.kind == FLOAT else (right, left)
        if bool(reaching(whole, floats.exact).any()):
            require_exact(left.values, reaching(floats, floats.exact), where, floats.exact)


def reaching(side: Canonical, bound: int) -> Any:
    """bool array: which values are finite and of this size or beyond."""
    array = engine_of(side.values).array(side.values.astype("int64") if side.kind == WHOLE else side.values)
    return ~side.null & ((array >= bound) | (array <= -bound)) & (abs(array) < float("inf"))


def _require_one_width(left: Canonical, right: Canonical, where: str) -> None:
    xp = engine_of(left.values).arrays
    sides = [(side.exact, engine_of(side.values).array(side.known())) for side in (left, right)]
    for place, ((exact, narrow), (other, wide)) in enumerate((sides, sides[::-1])):
        kept, full = FLOATS[exact], FLOATS[other]
        if exact == other == EXACT and bool((_rounded(narrow, "float32") == narrow).all()):
            # It may have been float32 once. Fractions of few bits (0.5, 0.25) do not tell, nor do whole numbers.
            narrow = narrow[(narrow != xp.floor(narrow)) & (_rounded(narrow, "float16") != narrow)]
            kept = "float32"
        elif exact >= other:
            continue
        rounded = _rounded(wide, kept)
        found = xp.isin(narrow, rounded[rounded != wide])
        if bool(found.any()):
            types = (kept, full) if place == 0 else (full, kept)
            cure = f"Read it as {full} from its source, as a cast does not bring digits back, or fit again."
            raise DataError(
                f"{where}: column {left.values.name!r} is {types[0]} and what it is compared with {types[1]}, and "
                f"{int(found.sum())} value(s) in {kept} are {full} ones rounded, such as {float(narrow[found][0])!r}, "
                f"and would not be found. {cure if place == 0 else f'Cast it to {kept}.'}"
            )


def _rounded(values: Any, dtype: str) -> Any:
    """float64 of the nearest value of a narrower type, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return values.astype(dtype).astype("float64")


def same_kind(left: Any, right: Any, where: str) -> tuple[Any, Any]:
    """Two columns as one type, so that they can stand below each other; one without any value takes the other's.

    Whole numbers beside floats become floats (a file whose integers have nulls reads as floats). Errors
    (`DataError`): other kinds beside each other; whole numbers of 2^53 and beyond beside floats, and of 2^63 and beyond
    beside others of another type; what `require_unrounded` refuses.
    """
    if bool(left.isna().all()):
        return nulls_like(len(left), right), right
    if bool(right.isna().all()):
        return left, nulls_like(len(right), left)
    kinds = {category_kind(left), category_kind(right)}
    if len(kinds) > 1 and TEXT in kinds:  # what Python's objects and category types hold tells, not their type
        left, right = (canonical_column(canonicalize(column, where)) for column in (left, right))
        kinds = {category_kind(left), category_kind(right)}
    if FLOAT in kinds:
        require_unrounded(canonicalize(left, where), canonicalize(right, where), where)
    if len(kinds) == 1:
        wide = kinds == {WHOLE} and left.dtype != right.dtype
        return (_as_int64(left, where), _as_int64(right, where)) if wide else (left, right)
    if kinds != {WHOLE, FLOAT}:
        raise DataError(
            f"{where}: some rows hold {category_kind(left)} ({left.dtype}), others {category_kind(right)} "
            f"({right.dtype}). Cast the column to one type before the fit."
        )
    whole = left if category_kind(left) == WHOLE else right
    array = engine_of(whole).array(whole.fillna(0).astype("int64"))
    require_exact(whole, (array >= EXACT) | (array <= -EXACT), where)
    return left.astype("float64"), right.astype("float64")


def _as_int64(column: Any, where: str) -> Any:
    null, whole = column.isna(), _whole(column, where).astype("int64")
    return engine_of(column).with_nulls(whole, null) if bool(null.any()) else whole


def nulls_like(length: int, like: Any) -> Any:
    """A column of nulls that can stand below another one and leaves its values as they are."""
    engine = engine_of(like)
    if length and category_kind(like) in (WHOLE, FLAG):
        return engine.with_nulls(
            engine.frames.Series([0] * length, dtype=like.dtype), engine.frames.Series([True] * length, dtype="bool")
        )
    return engine.frames.Series([None] * length, dtype=like.dtype)


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
