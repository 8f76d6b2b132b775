"""Codes of groups: rows that are equal in every key column have one code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.columns.categories import TEXT, canonicalize, require_unrounded, same_kind
from gigabatch.features.engines.frame import engine_of


def group_codes(left: Any, right: Any, by: Sequence[str], where: str = "key") -> tuple[Any, Any]:
    """int64 codes such that two rows of either frame are equal in every column of `by` exactly if their codes are.

    -1 where any of the columns is null. With no column every row has code 0. What counts as the same value, and which
    types there are: see `gigabatch.features.columns.categories`.
    """
    engine = engine_of(right)
    xp = engine.arrays
    same = left is right
    size = len(right) if same else len(left) + len(right)
    codes = xp.zeros(size, dtype="int64")
    null = xp.zeros(size, dtype=bool)
    for place, name in enumerate(dict.fromkeys(by)):
        column = _codes_of(right[name], where) if same else _column_codes(left[name], right[name], where)
        null |= column < 0
        if place == 0:
            codes = xp.clip(column, 0, None)  # dense already
            continue
        width = int(column.max()) + 1 if size else 1
        # Re-numbering after each further column keeps the product of two code ranges inside int64.
        codes = engine.codes(engine.frames.Series(codes * max(width, 1) + xp.clip(column, 0, None)))
    codes = xp.where(null, -1, codes)
    return (codes, codes) if same else (codes[: len(left)], codes[len(left) :])


def _codes_of(column: Any, where: str) -> Any:
    """int64 code of each value of a column, -1 for null."""
    engine = engine_of(column)
    side = canonicalize(column, where)
    if side.kind is None:
        return engine.arrays.full(len(column), -1, dtype="int64")
    return engine.arrays.where(side.null, -1, engine.codes(side.values))


def _column_codes(left: Any, right: Any, where: str) -> Any:
    """int64 code of each value of both columns, -1 for null."""
    engine = engine_of(right)
    xp = engine.arrays
    sides = canonicalize(left, where), canonicalize(right, where)
    null = xp.concatenate([side.null for side in sides])
    if bool(null.all()):
        return xp.full(len(null), -1, dtype="int64")
    if None in (sides[0].kind, sides[1].kind):  # one side without any value
        found = [xp.full(len(side.null), -1, dtype="int64") for side in sides]
        place = 0 if sides[1].kind is None else 1
        found[place] = engine.codes(sides[place].values)
        return xp.where(null, -1, xp.concatenate(found))
    require_unrounded(*sides, where)
    values: tuple[Any, ...] = tuple(side.values for side in sides)
    if values[0].dtype != values[1].dtype:
        if {side.kind for side in sides} == {TEXT}:
            values = tuple(column.astype("str") for column in values)
        values = same_kind(values[0], values[1], f"{where}: column {left.name!r}")
    codes = engine.codes(engine.frames.concat(list(values), ignore_index=True))
    return xp.where(null, -1, codes)
