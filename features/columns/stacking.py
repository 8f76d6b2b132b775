"""Frames below each other, whose columns may be of several types."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

from gigabatch.features.columns.categories import (
    FLAG,
    FLOAT,
    WHOLE,
    Canonical,
    canonical_column,
    canonicalize,
    category_kind,
    nullable,
    nulls_like,
    reaching,
    require_exact,
    require_unrounded,
)
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.exact.float_order import EXACT


def stacked(frames: Sequence[Any], where: str, keys: Collection[str] = ()) -> Any:
    """The frames below each other, on a new index.

    Where the types of a column differ, its whole numbers stay as they are, which libraries round beside floats and
    unsigned numbers, and one without any value takes the type of another one.

    Parameters
    ----------
    frames
        One or more, of the same columns.
    where
        Who asks, for messages.
    keys
        Columns whose values are compared from one frame to another.

    Raises
    ------
    DataError
        Whole numbers of 2^53 and beyond beside floats that are none, or may be others rounded; in `keys` whatever
        `require_unrounded` refuses.

    Examples
    --------
    >>> import pandas as pd
    >>> stacked([pd.DataFrame({"id": [2**53 + 1]}), pd.DataFrame({"id": [7.0, None]})], "here")["id"].tolist()
    [9007199254740993, 7, <NA>]
    """
    frames = [frame.copy(deep=False) for frame in frames]
    concat = engine_of(frames[0]).frames.concat
    if all(frame.columns.is_unique for frame in frames):
        for name in frames[0].columns:
            held = [frame for frame in frames if name in frame.columns]
            if len({str(frame[name].dtype) for frame in held}) > 1:
                made = _of_one_type([frame[name].reset_index(drop=True) for frame in held], where, name in keys)
                for frame, column in zip(held, made, strict=True):
                    column.index = frame.index
                    frame[name] = column
    return concat(frames, ignore_index=True)


def _of_one_type(columns: list[Any], where: str, compared: bool) -> list[Any]:
    """The columns, for `stacked`; those of kinds that no rule is known for stay as they are."""
    known = [place for place, column in enumerate(columns) if bool(column.notna().any())]
    kinds = {category_kind(columns[place]) for place in known}
    if all(getattr(columns[place].dtype, "kind", "?") == "u" for place in known):
        for place in known:
            columns[place] = _unsigned(columns[place])
    elif WHOLE in kinds <= {WHOLE, FLOAT} or (compared and kinds == {FLOAT}):
        sides = {place: canonicalize(columns[place], where) for place in known}
        if compared:
            for left, right in combinations(sides.values(), 2):
                require_unrounded(left, right, where)
        mixed = len({columns[place].dtype.kind for place in known}) > 1
        if mixed and any(side.kind == WHOLE and bool(reaching(side, EXACT).any()) for side in sides.values()):
            for place, side in sides.items():
                columns[place] = _whole(side, where)
    stored = {_storage(columns[place].dtype) for place in known}
    if kinds <= {WHOLE, FLOAT, FLAG} and stored >= {"Arrow", "masked"}:  # of which pandas makes Python's objects
        for place in known:
            columns[place] = canonical_column(canonicalize(columns[place], where))
    like = columns[known[0]] if known else None
    if str(getattr(like, "dtype", "")).startswith("interval"):  # of whole numbers it has no null
        return columns
    return [
        column if like is None or place in known else nulls_like(len(column), like)
        for place, column in enumerate(columns)
    ]


def _storage(dtype: Any) -> str:
    """How pandas stores a column of this type, as far as it matters where several stand below each other."""
    if hasattr(dtype, "pyarrow_dtype"):
        return "Arrow"
    return "masked" if hasattr(dtype, "numpy_dtype") else "other"


def _unsigned(column: Any) -> Any:
    """As uint64 with its nulls: 2^63 and beyond are no int64."""
    engine, null = engine_of(column), column.isna()
    values = (column.fillna(0) if bool(null.any()) else column).astype("uint64")
    return engine.with_nulls(values, null) if bool(null.any()) else values


def _whole(side: Canonical, where: str) -> Any:
    """A column of numbers as int64 with its nulls; `DataError` where one is none, or may be another one rounded."""
    engine = engine_of(side.values)
    if side.kind == FLOAT:
        values = engine.array(side.values)
        none = (values != engine.arrays.floor(values)) | (abs(values) == float("inf"))
        require_exact(side.values, reaching(side, side.exact) | none, where)
    return nullable(side.values.astype("int64"), engine.frames.Series(side.null))
