"""Checks of settings that operators and the preprocessor share. A configuration is checked by them before any work, so
nothing heavy is imported here."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

from gigabatch.features.errors import DataError

INDICATORS = ("auto", "all", "none")  # of FillMissing
# Nanoseconds of each unit in which numbers count time. A configuration or a saved step may also hold a long name.
TIME_UNITS = {
    "d": 86_400 * 10**9, "h": 3600 * 10**9, "min": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1
}  # fmt: skip
SPAN = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
LONG_NAMES = {"days": "d", "hours": "h", "minutes": "min"}


def time_unit(name: Any, where: str) -> str:
    """The key of `TIME_UNITS` that a unit's name stands for; `DataError` for a name that is none."""
    found = LONG_NAMES.get(name, name)
    if found not in TIME_UNITS:
        raise DataError(f"{where}: unknown unit {name!r}. Known: {', '.join(TIME_UNITS)}.")
    return found


def time_span(value: Any, where: str, name: str) -> tuple[float, str | None]:
    """(number above 0, key of `TIME_UNITS`) of text such as 30d; a number, in the unit of the times that it is held
    against, has no unit. `DataError` for anything else."""
    number, unit = value, None
    if isinstance(value, str):
        found = SPAN.fullmatch(value.strip())
        if found is None:
            raise DataError(
                f"{where}: {name} is {value!r}. Write a number and a unit, such as 30d or 12h (units "
                f"{', '.join(TIME_UNITS)}), or, where times are plain numbers, a number in their unit."
            )
        number, unit = float(found[1]), time_unit(found[2], f"{where}: {name}")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {name} must be text such as 30d or a number, found {value!r}.")
    if not (math.isfinite(number) and number > 0):
        raise DataError(f"{where}: {name} must be above 0, found {value!r}.")
    return float(number), unit


def require_smoothing(where: str, **weights: float) -> None:
    """Raise `DataError` for the weight of a prior that is not finite, or below 0."""
    for name, weight in weights.items():
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not (is_number and math.isfinite(weight) and weight >= 0):
            raise DataError(f"{where}: {name} must be a number, finite and not negative, found {weight!r}.")


def require_whole(where: str, name: str, value: Any, most: int) -> None:
    """Raise `DataError` for a setting that is no whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise DataError(f"{where}: {name} is a whole number from 1 to {most}, found {value!r}.")


def require_counts(where: str, **counts: Any) -> None:
    """Raise `DataError` for a setting that is no whole number from 1; `max_size` may be None, for no bound."""
    for name, value in counts.items():
        if value is None and name == "max_size":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{where}: {name} must be at least 1, found {value!r}.")
