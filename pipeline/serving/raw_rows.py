"""Raw rows, as they stand in files, to rows of the features stage: what `Bundle.predict_raw` computes of a frame, with
each value cast by itself, so that a row's features are the same alone and among others, and an error names the row.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from gigabatch.features.columns.lists import ARROW_TYPES, is_list_type, list_types, of_arrow, require_separated
from gigabatch.features.columns.time_types import time_type
from gigabatch.features.encoding.online import cast_value
from gigabatch.features.engines.arrow_columns import exact_frame_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import EXACT
from gigabatch.features.reading.null_words import NullWords
from gigabatch.features.reading.sources import cast
from gigabatch.features.setting_checks import TIME_UNITS
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.serving.errors import Refusal

# Values of these types are of the declared type as they are; others are cast.
AS_DECLARED: dict[str, type] = {"string": str, "int64": int, "float32": float, "float64": float, "bool": bool}
FLOATS = ("float32", "float64")
NULLABLE = {"string": "str", "int32": "Int32", "int64": "Int64", "bool": "boolean"}  # types that `Workflow.typed` gives
LONGEST_MESSAGE = 1_000


class RawRows:
    """`raw_rows(rows)` gives the rows of the features stage that the bundle's workflow makes of raw ones.

    columns: the raw ones that every row must have; steps: whether any step changes them.

    Errors: `DataError` where the bundle has no workflow.
    """

    def __init__(self, bundle: Bundle, features: Sequence[str]) -> None:
        self._workflow, self._features = bundle.raw_workflow, tuple(features)
        self.steps = bool(self._workflow.steps)
        self.columns = self._workflow.raw_columns_of(features)
        self._nulls = NullWords(bundle.info.get("null_values", ()))
        self._marks = self._workflow.decimal_marks
        self._bundle, self._dated = bundle, bundle.dated_column

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """Values of the feature columns, in their order, of each row; `Refusal` 422 names the row that is wrong.

        rows: column name to JSON value, each with every one of `columns`; others are left out of account.
        """
        values = {name: self._values(name, [row[name] for row in rows]) for name in self.columns}
        if not self.steps:  # the columns are those of the features stage
            return list(zip(*(values[name] for name in self._features), strict=True))
        frame = pd.DataFrame(self._typed(values), copy=False)
        if self._dated in values:
            try:
                self._bundle.require_dates(frame[self._dated], _kind(values[self._dated]) == "str")
            except DataError as error:
                raise Refusal.invalid("rows", str(error)) from None
        try:
            made = self._workflow.of_few_rows(dict(frame.items()))
        except DataError:  # which row and column it is shows below
            made = None
        if made is None:
            try:
                made = self._workflow.transform(frame)
            except DataError as error:
                raise blame(error, len(rows), lambda count: self._workflow.transform(frame.head(count))) from None
        return list(zip(*(list(made[name].array) for name in self._features), strict=True))

    def example(self) -> dict[str, Any]:
        """A raw row of nulls, but for times, which many steps want."""
        times = {name: _a_time(dtype) for name, dtype in self._workflow.dtypes.items() if _is_time(dtype)}
        return {name: times.get(name) for name in self.columns}

    def _values(self, name: str, given: list[Any]) -> list[Any]:
        """A column's values with None for null, those of plain types and of lists cast to what is declared."""
        dtype = self._workflow.dtypes.get(name)
        if dtype is None:
            return given
        if is_list_type(dtype):
            return [_list(name, dtype, one, place) for place, one in enumerate(given)]
        found = [None if value in self._nulls else value for value in given]
        if _is_time(dtype):
            return self._require_one_kind(name, found)
        kind, is_float, mark = AS_DECLARED.get(dtype), dtype in FLOATS, self._marks.get(name, ".")
        return [
            value
            if value is None or type(value) is kind or (is_float and type(value) is int and abs(value) <= EXACT)
            else _cast(name, dtype, value, place, mark)
            for place, value in enumerate(found)
        ]

    def _require_one_kind(self, name: str, values: list[Any]) -> list[Any]:
        """Times that are all text or all numbers, for the column is cast as a whole."""
        known = {place: type(value) is str for place, value in enumerate(values) if value is not None}
        first = next(iter(known), 0)
        for place, is_text in known.items():
            if type(values[place]) not in (str, int, float):
                raise Refusal.invalid(f"rows[{place}]", f"time column {name!r} holds {values[place]!r:.60}, no time.")
            if is_text != known[first]:
                raise Refusal.invalid(
                    f"rows[{place}]", f"time column {name!r} holds text in some rows and numbers in others, such as "
                    f"rows[{first}]. Write all times of a request in one way."
                )  # fmt: skip
        return values

    def _typed(self, values: Mapping[str, list[Any]]) -> dict[str, Any]:
        """The columns as `Workflow.typed` gives them, by those of `_values`; times of one type and kind are cast as one
        column, end to end, as a cast costs as much for one as for hundreds."""
        alike: dict[tuple[str, str], list[str]] = {}
        for name, given in values.items():
            dtype = self._workflow.dtypes.get(name)
            if dtype is not None and _is_time(dtype):
                alike.setdefault((dtype, _kind(given)), []).append(name)
        found: dict[str, Any] = {}
        for names in (names for names in alike.values() if len(names) > 1):
            try:
                times = self._column(names[0], [value for name in names for value in values[name]]).array
            except Refusal:  # each for itself below, which names the column and the row
                continue
            size = len(values[names[0]])
            found |= {name: times[place * size : (place + 1) * size] for place, name in enumerate(names)}
        return {name: found[name] if name in found else self._column(name, given) for name, given in values.items()}

    def _column(self, name: str, values: list[Any]) -> Any:
        """The column as `Workflow.typed` gives it. values: those of `_values`."""
        dtype = self._workflow.dtypes.get(name)
        if dtype is None:
            try:
                return exact_frame_of(pa.table({name: pa.array(values)}))[name]
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise Refusal.invalid("rows", f"column {name!r} holds values of no one type ({error}).") from None
        if is_list_type(dtype):
            lists = pa.array(values, pa.large_list(ARROW_TYPES[list_types(dtype)[0]]))
            return of_arrow(pa.chunked_array([lists]), None, name)
        if dtype in FLOATS:
            with np.errstate(over="ignore"):  # an infinity is refused by the column's name where it is used
                return np.array(values, np.float64).astype(dtype)
        if not _is_time(dtype):
            return pd.array(values, dtype=NULLABLE[dtype])
        kind, is_whole = _kind(values), [type(value) is int for value in values]
        if kind == "Float64" and any(is_whole):  # as a float a whole number may become another one
            found, others = (
                self._column(
                    name, [one if whole is wanted else None for one, whole in zip(values, is_whole, strict=True)]
                )
                for wanted in (True, False)
            )
            return found.where(is_whole, others)
        try:
            frame = pd.DataFrame({name: pd.array(values, dtype=kind)})
        except OverflowError:
            raise Refusal.invalid("rows", f"column {name!r} holds a number beyond int64, which is no time.") from None

        def typed(count: int) -> Any:
            return cast(frame.head(count), {name: dtype}, "raw rows", (name,))[name]

        try:
            return typed(len(values))
        except DataError as error:
            raise blame(error, len(values), typed) from None


def _kind(values: list[Any]) -> str:
    """pandas' type of times as they were sent: text, whole numbers or numbers."""
    if any(type(value) is str for value in values):
        return "str"
    return "Int64" if all(value is None or type(value) is int for value in values) else "Float64"


def _is_time(dtype: str) -> bool:
    return dtype == "datetime" or time_type(dtype) is not None


def _a_time(dtype: str) -> str | int:
    """The beginning of 2000, written as the type says."""
    how = time_type(dtype)
    if how is not None and not how.pattern:
        return 946_684_800 * TIME_UNITS["s"] // TIME_UNITS[how.form]
    return datetime(2000, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S" if how is None else how.form)


def _cast(name: str, dtype: str, value: Any, place: int, mark: str = ".") -> Any:
    """The value as one of the declared type; `Refusal` 422 with row and column for what does not fit."""
    try:
        return cast_value(value, dtype, mark)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refusal.invalid(
            f"rows[{place}]",
            f"column {name!r} is declared {dtype} but holds {reprlib.repr(value)}, which does not fit ({error}). "
            "Correct the row or the declared type.",
        ) from None


def _list(name: str, dtype: str, given: Any, place: int) -> list[Any] | None:
    """A list with its elements cast, of text as the separator behind its type splits it; None for null."""
    elements, separator = list_types(dtype)
    if type(given) is str and separator:
        try:
            require_separated(given, separator)
        except ValueError as error:
            raise Refusal.invalid(f"rows[{place}]", f"list column {name!r}: {error}.") from None
        given = [part or None for part in given.split(separator)] if given else []
    elif given is not None and type(given) is not list:
        how = f"a list, or text whose elements {separator!r} separates" if separator else "a list"
        raise Refusal.invalid(f"rows[{place}]", f"list column {name!r} holds {reprlib.repr(given)}. Give {how}.")
    if given is None:
        return None
    found = [None if one is None else _cast(name, elements, one, place) for one in given]
    return [None if one != one else one for one in found]  # NaN, which text may say, is a null


def blame(error: DataError, count: int, work: Callable[[int], Any]) -> Refusal:
    """422 with the row at which `work` begins to fail. work: does the first n rows; error: what it says of `count`."""
    done = 0  # so many rows can be done, `count` cannot
    while count - done > 1:
        middle = (done + count) // 2
        try:
            work(middle)
            done = middle
        except DataError as sooner:
            count, error = middle, sooner
    text = str(error)
    return Refusal.invalid(f"rows[{done}]", text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…")
