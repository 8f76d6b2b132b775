"""DateParts: calendar parts of a time column, as numbers or on a circle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.columns.times import FIRST, LAST, SECOND, is_dates, is_text, microseconds
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.setting_checks import TIME_UNITS, time_unit

PARTS = ("year", "month", "day", "weekday", "day_of_year", "hour", "minute", "minute_of_day")


class DateParts(ColumnOperator):
    """Split a time column into calendar parts.

    Numbers are taken as they are: give local time to get local parts. Timestamps with a zone, and text with an offset,
    give the parts of UTC. Row-wise.

    Parameters
    ----------
    column
        Timestamps, dates, ISO 8601 text, or whole numbers since 1970-01-01 00:00.
    parts
        Any of year, month (1-12), day (1-31), weekday (0 is Monday), day_of_year (1-366), hour, minute, minute_of_day.
    prefix
        The new int32 columns are called `<prefix>_<part>`.
    unit
        Of whole numbers: `d`, `h`, `min`, `s`, `ms`, `us` or `ns`; also `days`, `hours` or `minutes`. The recipes make
        microseconds (`us`) of timestamps, dates and ISO 8601 text.
    cyclical
        Any of the parts but year, as a point on a circle, so that 23:59 lies beside 0:00: the new float32 columns
        `<prefix>_<part>_sin` and `<prefix>_<part>_cos`. The circle of a month or a year is as long as that one is.

    Raises
    ------
    DataError
        An unknown part or unit, or none at all; a null, because an event has a time; text that is no time; a number
        outside the years 1 to 9999.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import DateParts
    >>> frame = pd.DataFrame({"at": [0, 60 * 24 * 31 + 90]})
    >>> DateParts("at", ["month", "weekday", "minute_of_day"], "dep")(frame)
          at  dep_month  dep_weekday  dep_minute_of_day
    0      0          1            3                  0
    1  44730          2            6                 90
    >>> DateParts("at", ["hour"], "at", cyclical=["hour"])(pd.DataFrame({"at": ["2013-01-31T06:00"]}))
                     at  at_hour  at_hour_sin  at_hour_cos
    0  2013-01-31T06:00        6          1.0          0.0
    """

    reads = ("column",)

    def __init__(
        self, column: str, parts: Sequence[str], prefix: str, unit: str = "min", cyclical: Sequence[str] = ()
    ) -> None:
        if unknown := [part for part in (*parts, *cyclical) if part not in PARTS]:
            raise DataError(f"DateParts: unknown part(s) {', '.join(unknown)}. Known: {', '.join(PARTS)}.")
        if not parts and not cyclical:
            raise DataError(f"DateParts: give parts or cyclical, any of {', '.join(PARTS)}.")
        if "year" in cyclical:
            raise DataError("DateParts: years do not come round, so year cannot be cyclical. Leave it to parts.")
        self.column, self.parts, self.prefix, self.unit = column, tuple(parts), prefix, time_unit(unit, "DateParts")
        self.cyclical = tuple(cyclical)

    @property
    def outputs(self) -> tuple[str, ...]:
        circles = [f"{self.prefix}_{part}_{side}" for part in self.cyclical for side in ("sin", "cos")]
        return (*(f"{self.prefix}_{part}" for part in self.parts), *circles)

    @property
    def recurring(self) -> tuple[str, ...]:
        return tuple(name for name in self.outputs if name != f"{self.prefix}_year")

    def compute(self, frame: Frame) -> dict[str, Column]:
        if frame[self.column].isna().any():
            raise DataError(f"DateParts: column {self.column!r} holds nulls. Drop or fill those rows first.")
        engine = engine_of(frame)
        moment = engine.frames.to_datetime(engine.series(self._seconds(frame), frame), unit="s").dt
        found: dict[str, Any] = {f"{self.prefix}_{part}": _part(moment, part).astype("int32") for part in self.parts}
        for part in self.cyclical:
            # In whole steps of a circle of whole length, so that every engine has the same angle.
            angle = engine.array(_part(moment, part) - _first(part)) * (2 * math.pi) / _length(engine, moment, part)
            for side in ("sin", "cos"):
                values = getattr(engine.arrays, side)(angle).round(7).astype("float32")
                found[f"{self.prefix}_{part}_{side}"] = engine.series(values, frame)
        return found

    def _seconds(self, frame: Frame) -> Array:
        """int64 whole seconds since 1970, at or before each time."""
        column = frame[self.column]
        if is_dates(column) or is_text(column):
            return engine_of(frame).array(microseconds(column) // SECOND)
        times = whole_values(column, "DateParts")
        if not len(times):
            return times
        ends = int(times.min()), int(times.max())
        if not _on_calendar(ends, self.unit):
            fits = [unit for unit in TIME_UNITS if _on_calendar(ends, unit)]
            hint = f" They are where the unit is {' or '.join(fits)}." if fits else ""
            raise DataError(
                f"DateParts: column {self.column!r} holds {ends[0]} to {ends[1]}, which in {self.unit} since 1970 are "
                f"not in the years 1 to 9999. Check its unit.{hint}"
            )
        unit, second = TIME_UNITS[self.unit], TIME_UNITS["s"]
        return times * (unit // second) if unit >= second else times // (second // unit)


def _on_calendar(ends: Sequence[int], unit: str) -> bool:
    """Whether these times lie in the years 1 to 9999."""
    low, high = (number * TIME_UNITS[unit] // TIME_UNITS["s"] for number in ends)
    return low >= FIRST and high <= LAST


def _part(moment: Any, part: str) -> Any:
    """Column of whole numbers."""
    if part == "minute_of_day":
        return moment.hour * 60 + moment.minute
    return getattr(moment, "dayofyear" if part == "day_of_year" else part)


def _first(part: str) -> int:
    return 1 if part in ("month", "day", "day_of_year") else 0


def _length(engine: Any, moment: Any, part: str) -> Any:
    """How many values of the part there are before it begins anew."""
    if part == "day":
        return engine.array(moment.days_in_month)
    if part == "day_of_year":
        return engine.array(moment.is_leap_year.astype("int64") + 365)
    return {"month": 12, "weekday": 7, "hour": 24, "minute": 60, "minute_of_day": 1440}[part]
