"""DateParts: calendar parts of an epoch time column."""

from __future__ import annotations

from collections.abc import Sequence

from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator

PARTS = ("year", "month", "day", "weekday", "day_of_year", "hour", "minute", "minute_of_day")
FIRST, LAST = -62_135_596_800, 253_402_300_799  # seconds since 1970 of the first of the year 1 and the last of 9999


class DateParts(ColumnOperator):
    """Split a time column into calendar parts.

    The column is taken as it is: give local time to get local parts. Row-wise.

    Parameters
    ----------
    column
        Whole minutes (or seconds) since 1970-01-01 00:00.
    parts
        Any of year, month (1-12), day (1-31), weekday (0 is Monday), day_of_year (1-366), hour, minute, minute_of_day.
    prefix
        The new int32 columns are called `<prefix>_<part>`.
    unit
        `min` or `s`.

    Raises
    ------
    DataError
        An unknown part or unit; a null, because an event has a time; dates, which come in many units and zones; a
        number outside the years 1 to 9999.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import DateParts
    >>> frame = pd.DataFrame({"at": [0, 60 * 24 * 31 + 90]})
    >>> DateParts("at", ["month", "weekday", "minute_of_day"], "dep")(frame)
          at  dep_month  dep_weekday  dep_minute_of_day
    0      0          1            3                  0
    1  44730          2            6                 90
    """

    reads = ("column",)

    def __init__(self, column: str, parts: Sequence[str], prefix: str, unit: str = "min") -> None:
        unknown = [part for part in parts if part not in PARTS]
        if unknown:
            raise DataError(f"DateParts: unknown part(s) {', '.join(unknown)}. Known: {', '.join(PARTS)}.")
        if unit not in ("min", "s"):
            raise DataError(f"DateParts: unknown unit {unit!r}. Known: min, s.")
        self.column, self.parts, self.prefix, self.unit = column, tuple(parts), prefix, unit

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}_{part}" for part in self.parts)

    def compute(self, frame: Frame) -> dict[str, Column]:
        if frame[self.column].isna().any():
            raise DataError(f"DateParts: column {self.column!r} holds nulls. Drop or fill those rows first.")
        engine, unit = engine_of(frame), 60 if self.unit == "min" else 1
        times = whole_values(frame[self.column], "DateParts")
        if len(times) and not (int(times.min()) * unit >= FIRST and int(times.max()) * unit <= LAST):
            raise DataError(
                f"DateParts: column {self.column!r} holds {int(times.min())} to {int(times.max())}, which as "
                f"{'minutes' if unit == 60 else 'seconds'} since 1970 are not in the years 1 to 9999. Check its unit."
            )
        moment = engine.frames.to_datetime(engine.series(times * unit, frame), unit="s").dt
        found = {}
        for part, name in zip(self.parts, self.outputs, strict=True):
            if part == "minute_of_day":
                values = moment.hour * 60 + moment.minute
            else:
                values = getattr(moment, "dayofyear" if part == "day_of_year" else part)
            found[name] = values.astype("int32")
        return found
