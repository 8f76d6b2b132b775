"""DateParts: calendar parts of a time column, as numbers or on a circle."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.columns.time_types import is_time_type
from gigabatch.features.columns.times import FIRST, LAST, SECOND, holds_text, is_dates, microseconds
from gigabatch.features.columns.zones import seconds_ahead, time_zone
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.setting_checks import TIME_UNITS, time_unit

PARTS = ("year", "month", "day", "weekday", "day_of_year", "hour", "minute", "minute_of_day", "month_day")
NO_CIRCLE = {"year": "years do not come round", "month_day": "its numbers have gaps; day_of_year has none"}
EARLY, LATE = -2_208_988_800, 4_133_980_799  # seconds since 1970 of the first of 1900 and the last of 2100


class DateParts(ColumnOperator):
    """Split a time column into calendar parts.

    Parts are those of UTC, or of local time in a zone. A null has null parts. Row-wise.

    Parameters
    ----------
    column
        Timestamps, dates, ISO 8601 text, or whole numbers since 1970-01-01 00:00.
    parts
        Any of year, month (1-12), day (1-31), weekday (0 is Monday), day_of_year (1-366), hour, minute, minute_of_day,
        month_day (1225 is 25 December in every year).
    prefix
        The new int32 columns are called `<prefix>_<part>`; in the engine's type for nulls (Int32 on pandas) where the
        column is of such a type or holds a null.
    unit
        Of whole numbers: `d`, `h`, `min`, `s`, `ms`, `us` or `ns`; also `days`, `hours` or `minutes`. Without it they
        are microseconds where a recipe, or a step `cast`, has read the column as a `datetime` of any kind, else
        minutes, which must then be of the years 1900 to 2100.
    cyclical
        Any of the parts but year and month_day, as a point on a circle, so that 23:59 lies beside 0:00: the new float32
        columns `<prefix>_<part>_sin` and `<prefix>_<part>_cos`. The circle of a month or a year is as long as that one
        is.
    zone
        Whose local time the parts are of, daylight saving included: a name of the time zone database, such as
        `Europe/Berlin`. Times that are written in local time, without an offset, have local parts without it.

    Raises
    ------
    DataError
        An unknown part, unit or zone, or no part at all; text that is no time; a number outside the years 1 to 9999,
        or 1900 to 2100 where no unit is given.

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
    >>> frame = pd.DataFrame({"at": ["2024-01-31T23:30Z", "2024-07-31T23:30Z"]})
    >>> DateParts("at", ["hour"], "at", zone="Europe/Berlin")(frame)["at_hour"].tolist()
    [0, 1]
    """

    reads = ("column",)
    by_value = True

    def __init__(
        self,
        column: str,
        parts: Sequence[str],
        prefix: str,
        unit: str | None = None,
        cyclical: Sequence[str] = (),
        zone: str | None = None,
    ) -> None:
        if unknown := [part for part in (*parts, *cyclical) if part not in PARTS]:
            raise DataError(f"DateParts: unknown part(s) {', '.join(unknown)}. Known: {', '.join(PARTS)}.")
        if not parts and not cyclical:
            raise DataError(f"DateParts: give parts or cyclical, any of {', '.join(PARTS)}.")
        if wrong := next((part for part in cyclical if part in NO_CIRCLE), None):
            raise DataError(f"DateParts: {wrong} cannot be cyclical, as {NO_CIRCLE[wrong]}. Leave it to parts.")
        self.column, self.parts, self.prefix, self.cyclical = column, tuple(parts), prefix, tuple(cyclical)
        self.unit = None if unit is None else time_unit(unit, "DateParts")
        self.zone = None if zone is None else time_zone(zone, "DateParts").key

    @property
    def outputs(self) -> tuple[str, ...]:
        circles = [f"{self.prefix}_{part}_{side}" for part in self.cyclical for side in ("sin", "cos")]
        return (*(f"{self.prefix}_{part}" for part in self.parts), *circles)

    @property
    def recurring(self) -> tuple[str, ...]:
        return tuple(name for name in self.outputs if name != f"{self.prefix}_year")

    def typed(self, dtypes: Mapping[str, str]) -> Self:
        if self.unit is None and is_time_type(dtypes.get(self.column, "")):
            return type(self)(**(self.settings() | {"unit": "us"}))
        return self

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine, column = engine_of(frame), frame[self.column]
        null = column.isna()
        seconds = self._seconds(column, null)
        if self.zone is not None:
            seconds = seconds + seconds_ahead(engine.arrays, seconds, self.zone)
        moment = engine.frames.to_datetime(engine.series(seconds, frame), unit="s").dt
        found: dict[str, Any] = {f"{self.prefix}_{part}": _part(moment, part).astype("int32") for part in self.parts}
        # A type that may hold nulls keeps to one that may, whether this partition has one or not.
        if bool(null.any()) or str(column.dtype).startswith(("Int", "UInt")):
            found = {name: engine.with_nulls(values, null) for name, values in found.items()}
        valid = engine.array(~null)
        for part in self.cyclical:
            # In whole steps of a circle of whole length, so that every engine has the same angle.
            angle = engine.array(_part(moment, part) - _first(part)) * (2 * math.pi) / _length(engine, moment, part)
            for side in ("sin", "cos"):
                values = getattr(engine.arrays, side)(angle).round(7).astype("float32")
                found[f"{self.prefix}_{part}_{side}"] = engine.series(values, frame, valid)
        return found

    def _seconds(self, column: Column, null: Column) -> Array:
        """int64 whole seconds since 1970, at or before each time; 0 where null."""
        engine = engine_of(column)
        if is_dates(column) or holds_text(column):
            return engine.array(microseconds(column) // SECOND)
        times = whole_values(column, "DateParts")
        known = times[engine.array(~null)]
        if not len(known):
            return times
        name = self.unit or "min"
        ends, first, last = (int(known.min()), int(known.max())), FIRST, LAST
        if self.unit is None:
            first, last = EARLY, LATE
        if not _within(ends, name, first, last):
            fits = [unit for unit in TIME_UNITS if _within(ends, unit, first, last)]
            hint = f" They are where the unit is {' or '.join(fits)}." if fits else ""
            if self.unit is None:
                hint = f" In {fits[0]} they are of {' to '.join(_years(ends, fits[0]))}." if fits else ""
                raise DataError(
                    f"DateParts: column {self.column!r} holds {ends[0]} to {ends[1]}, which in minutes since 1970, the "
                    f"unit where none is given, are not in the years 1900 to 2100.{hint} Set unit."
                )
            raise DataError(
                f"DateParts: column {self.column!r} holds {ends[0]} to {ends[1]}, which in {name} since 1970 are "
                f"not in the years 1 to 9999. Check its unit.{hint}"
            )
        unit, second = TIME_UNITS[name], TIME_UNITS["s"]
        return times * (unit // second) if unit >= second else times // (second // unit)


def _within(ends: Sequence[int], unit: str, first: int, last: int) -> bool:
    """Whether these times lie between two seconds since 1970."""
    low, high = (number * TIME_UNITS[unit] // TIME_UNITS["s"] for number in ends)
    return low >= first and high <= last


def _years(ends: Sequence[int], unit: str) -> tuple[str, ...]:
    """The year or the two years of these times."""
    start = datetime.datetime(1970, 1, 1)
    years = [(start + datetime.timedelta(seconds=one * TIME_UNITS[unit] // TIME_UNITS["s"])).year for one in ends]
    return tuple(map(str, dict.fromkeys(years)))


def _part(moment: Any, part: str) -> Any:
    """Column of whole numbers."""
    if part == "minute_of_day":
        return moment.hour * 60 + moment.minute
    if part == "month_day":
        return moment.month * 100 + moment.day
    return getattr(moment, "day_of_week" if part == "weekday" else part)  # whose other name pandas 3.1 deprecates


def _first(part: str) -> int:
    return 1 if part in ("month", "day", "day_of_year") else 0


def _length(engine: Any, moment: Any, part: str) -> Any:
    """How many values of the part there are before it begins anew."""
    if part == "day":
        return engine.array(moment.days_in_month)
    if part == "day_of_year":
        return engine.array(moment.is_leap_year.astype("int64") + 365)
    return {"month": 12, "weekday": 7, "hour": 24, "minute": 60, "minute_of_day": 1440}[part]
