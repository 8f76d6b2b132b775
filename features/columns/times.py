"""Times in a column: dates, timestamps of any unit and zone and ISO 8601 text, as microseconds since 1970 in UTC."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import require_digits
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column
from gigabatch.features.errors import DataError

ISO_8601 = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:[0-5]\d(\.\d+)?)?(Z|[+-]([01]\d|2[0-3]):?[0-5]\d)?|Z)?$"
OFFSET = r"[T ].*([+-])(\d{2}):?(\d{2})$"
FEWEST_ROWS = 1_000  # of fewer, to find the distinct ones takes longer than they save
EPOCH = np.datetime64(0, "us")
SECOND = 1_000_000
FIRST, LAST = -62_135_596_800, 253_402_300_799  # seconds since 1970 of the first of the year 1 and the last of 9999
NOT_A_TIME = (ValueError, TypeError, RuntimeError, OverflowError)  # what libraries raise for a text that is none


def is_dates(column: Column) -> bool:
    """Whether the column is of timestamps or dates: by its type, and of a column of Python objects by what they are."""
    if str(column.dtype).startswith("date32"):  # Arrow's
        return True
    if column.dtype.kind != "O" or str(column.dtype) == "category":
        return column.dtype.kind == "M"
    if str(column.dtype) != "object" or engine_of(column).NAME != "pandas":
        return False
    known = column[column.notna()]
    return len(known) > 0 and all(isinstance(value, datetime.date) for value in known)


def is_text(column: Column) -> bool:
    """Whether the column is of text."""
    return column.dtype.kind in "OUT" and str(column.dtype) not in ("category",) and not is_dates(column)


def holds_text(column: Column) -> bool:
    """Whether the column is of text, or of a category type of texts."""
    return is_text(column.cat.categories if str(column.dtype) == "category" else column)


def microseconds(column: Column) -> Any:
    """Timestamps, dates, ISO 8601 text or categories of it as an int64 column of microseconds since 1970-01-01 in UTC.

    A time without a zone is taken to be UTC. What is finer than a microsecond is cut. A null becomes 0.

    Parameters
    ----------
    column
        See `is_dates` and `is_text`.

    Returns
    -------
    Column
        int64, on the same index.

    Raises
    ------
    DataError
        A text of another form, no date of the calendar, or a time that lies outside the years 1 to 9999 in UTC; the
        message names the column.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.columns.times import microseconds
    >>> microseconds(pd.Series(["1970-01-01T00:00:01Z", "1970-01-01 02:00+02:00"])).tolist()
    [1000000, 0]
    >>> microseconds(pd.Series(pd.to_datetime(["1970-01-01 00:00:02"]))).tolist()
    [2000000]
    """
    try:
        if is_dates(column):
            found = _of_dates(column)
        else:  # a null is as the day zero, whatever else is there
            (found,) = over_distinct(column, lambda texts: (_of_text(texts),))
            found = found.where(~column.isna(), 0)
        require_calendar(found, column)
        return found
    except NOT_A_TIME as error:
        raise DataError(
            f"time column {column.name!r}: neither numbers nor ISO 8601 times ({_first_line(error)}). Write them "
            "like 2013-01-31T23:59:00, with Z or an offset such as +02:00 where they are not in UTC, or as numbers."
        ) from error


def require_calendar(found: Column, column: Column) -> None:
    """Raise `ValueError` where microseconds since 1970, found of the column, lie outside the years 1 to 9999."""
    known = found.fillna(0)
    outside = (known < FIRST * SECOND) | (known >= (LAST + 1) * SECOND)
    if bool(outside.any()):
        example = engine_of(column).to_pandas(column[outside].head(1).astype("str")).tolist()[0]
        raise ValueError(f"{example} is not in the years 1 to 9999 in UTC")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _of_dates(column: Column) -> Any:
    if str(column.dtype) == "object":
        column = engine_of(column).frames.to_datetime(column, utc=True)
    if str(column.dtype).startswith("date32"):
        column = column.astype("datetime64[us]")
    kind: Any = getattr(column.dtype, "pyarrow_dtype", column.dtype)  # of Arrow's timestamps, which have a zone too
    if getattr(kind, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column.astype("datetime64[us]").fillna(EPOCH).astype("int64")


def over_distinct(column: Column, make: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Columns that `make` gives of a column, each value of which follows from that of its row alone.

    A long one of pandas' text that holds its texts twice or more on average is read by its distinct texts. Of nulls the
    columns say nothing.
    """
    engine = engine_of(column)
    if engine.NAME != "pandas" or len(column) < FEWEST_ROWS or str(column.dtype) != "str":
        return make(column)
    codes, texts = engine.frames.factorize(column)
    if not 0 < 2 * len(texts) <= len(column):
        return make(column)
    made = make(engine.frames.Series(texts, name=column.name))
    like = column.to_frame("time")
    return tuple(engine.series(engine.array(one)[codes], like).rename(column.name) for one in made)


def _of_text(column: Column) -> Any:
    text = engine_of(column).text(column).fillna("1970-01-01")
    wrong = text[~text.str.match(ISO_8601)]
    if len(wrong):
        raise ValueError(f"{engine_of(column).to_pandas(wrong.head(1)).tolist()[0]!r} has not that form")
    clock = text.str.slice(11, 19)
    # A time of day may be left out, or its seconds.
    short = ~clock.str.match(r"^\d{2}:\d{2}:\d{2}")
    clock = clock.where(~short, clock.str.slice(0, 5) + ":00").where(text.str.len() > 11, "00:00:00")
    whole = text.str.slice(0, 10) + "T" + clock
    try:
        moment = engine_of(column).frames.to_datetime(whole, format="%Y-%m-%dT%H:%M:%S")
    except NOT_A_TIME:
        for value in engine_of(column).to_pandas(whole).tolist():
            try:
                datetime.datetime.fromisoformat(value)
            except ValueError as error:
                raise ValueError(f"{value!r}: {error}") from error
        raise
    found = moment.astype("datetime64[us]").astype("int64")
    if bool(text.str.contains(".", regex=False).any()):
        digits = text.str.extract(r"\.(\d{1,6})")[0].fillna("")
        found = found + digits.str.ljust(6, "0").astype("int64")
    if bool(text.str.match(r"^.*[T ].*[+-]").any()):
        parts = text.str.extract(OFFSET)
        minutes = parts[1].fillna("0").astype("int64") * 60 + parts[2].fillna("0").astype("int64")
        ahead = (parts[0].fillna("-") == "+").astype("int64") * 2 - 1
        found = found - ahead * minutes * (60 * SECOND)
    return found


def iso_text(column: Column) -> Any:
    """Timestamps, dates, or whole microseconds since 1970 as ISO 8601 text in UTC; null stays null.

    Parameters
    ----------
    column
        See `is_dates`, or int64.

    Returns
    -------
    Column
        Text such as 2013-01-31T23:59:00, with six digits of a second where there is a fraction.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.columns.times import iso_text
    >>> iso_text(pd.Series([0, 86_400_000_000, 500_000])).tolist()
    ['1970-01-01T00:00:00', '1970-01-02T00:00:00', '1970-01-01T00:00:00.500000']
    """
    null = column.isna()
    whole: Any = microseconds(column) if is_dates(column) else column.fillna(0).astype("int64")
    moment = engine_of(column).frames.to_datetime(whole // SECOND, unit="s")
    text = moment.dt.strftime("%Y-%m-%dT%H:%M:%S").str.zfill(19)  # some C libraries give the year 999 three digits
    fraction = whole % SECOND
    if bool((fraction != 0).any()):
        text = text.where(fraction == 0, text + "." + fraction.astype("str").str.zfill(6))
    return text.where(~null)


def timestamps(column: Column) -> Any:
    """int64 microseconds since 1970 as timestamps without a zone; null stays null.

    Parameters
    ----------
    column
        int64, or its kind that holds nulls.

    Returns
    -------
    Column
        datetime64[us].

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.columns.times import timestamps
    >>> timestamps(pd.Series([86_400_000_000])).tolist()
    [Timestamp('1970-01-02 00:00:00')]
    """
    null = column.isna()
    whole: Any = column.fillna(0).astype("int64")
    return whole.astype("datetime64[us]").where(~null)


def moments(column: Column) -> Any:
    """A column of times as numbers that sort alike.

    Parameters
    ----------
    column
        Without nulls: numbers or text of numbers, in any unit; or what `microseconds` takes.

    Returns
    -------
    Column
        int64 or float64 numbers as they are, other times as int64 microseconds since 1970.

    Raises
    ------
    DataError
        A value that is no time; the message names the column.
    """
    if is_dates(column):
        return microseconds(column)
    for dtype in ("int64", "float64"):
        if dtype == "int64" and column.dtype.kind == "f":
            continue
        try:
            if is_text(column):
                require_digits(column, dtype)
            numbers = column.astype(dtype)
        except NOT_A_TIME:
            continue
        if not bool((abs(numbers) < float("inf")).all()):
            raise DataError(f"time column {column.name!r}: holds NaN or an infinity. Give every row a time.")
        return numbers
    return microseconds(column)


def is_calendar(column: Column) -> bool:
    """Whether `moments` gives microseconds since 1970 of the column, and not its own numbers."""
    if column.dtype.kind in "biuf":
        return False
    return is_dates(column) or bool(column.astype("str").head(1).str.match(ISO_8601).all())
