"""Words that stand for null, held against text and numbers as `pandas.read_csv` does."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

import numpy as np

from gigabatch.features.columns.times import is_dates
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column

TEXT_TYPES = re.compile(r"object|str|string|(large_)?string(_view)?\[pyarrow\]")
FLAGS = (bool, np.bool_)
TEXT_OR_NUMBER = (str, int, float, np.integer, np.floating)


def number_of(word: str) -> int | float | None:
    """The number that a word is, whole ones exactly; None where it is none, or NaN."""
    try:
        number = float(word)
    except ValueError:
        return None
    if not math.isfinite(number):  # as a whole number of more digits than a float holds
        return None if math.isnan(number) else number
    try:
        return int(word)
    except ValueError:
        return int(number) if abs(number) < 2**63 and number.is_integer() else number


class NullWords:
    """`value in words` says whether a text or a number stands for null.

    Among numbers a word is held against their values: -999 is -999.0 too. Among texts it is the word itself, and of a
    whole number also its plain text, with `.0` behind it and without.

    words: whole texts that are null.
    """

    def __init__(self, words: Collection[str]) -> None:
        numbers = [number for number in map(number_of, words) if number is not None]
        self.texts = {*words} | {text for one in numbers if isinstance(one, int) for text in (str(one), f"{one}.0")}
        self.numbers = numbers
        self._known = frozenset((*self.texts, *numbers))

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, TEXT_OR_NUMBER) and not isinstance(value, FLAGS) and value in self._known

    def among(self, column: Column) -> Any | None:
        """A bool column, True where a value stands for null; None where the column's type has no such value."""
        if self.numbers and str(column.dtype) == "object" and engine_of(column).NAME == "pandas":
            return None if is_dates(column) else column.map(self.__contains__).astype("bool")
        values = column.cat.categories if str(column.dtype) == "category" else column
        kind = getattr(values.dtype, "kind", "O")
        wanted: list[Any] = []
        if kind == "f":
            # Of the column's own floats, of which none may be the number itself.
            own = np.dtype(f"f{values.dtype.itemsize}")
            with np.errstate(over="ignore"):
                floats = [(number, float(own.type(float(number)))) for number in self.numbers]
            wanted = [one for number, one in floats if math.isfinite(one) or math.isinf(number)]
            if str(column.dtype) == "halffloat[pyarrow]":  # which Arrow does not compare
                column = column.astype("float[pyarrow]")
        elif kind in "iu":
            first = 0 if kind == "u" else -(2**63)
            wanted = [one for one in self.numbers if isinstance(one, int) and first <= one < 2**63]
        elif TEXT_TYPES.fullmatch(str(values.dtype)):
            wanted = list(self.texts)
        return column.isin(wanted).fillna(False).astype("bool") if wanted else None
