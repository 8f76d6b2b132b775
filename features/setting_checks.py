"""Checks of settings that operators and the preprocessor share. A configuration is checked by them before any work, so
nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

from gigabatch.features.errors import DataError

INDICATORS = ("auto", "all", "none")  # of FillMissing
# Nanoseconds of each unit in which numbers count time. A configuration or a saved step may also hold a long name.
TIME_UNITS = {
    "d": 86_400 * 10**9, "h": 3600 * 10**9, "min": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1
}  # fmt: skip
LONG_NAMES = {"days": "d", "hours": "h", "minutes": "min"}


def time_unit(name: Any, where: str) -> str:
    """The key of `TIME_UNITS` that a unit's name stands for; `DataError` for a name that is none."""
    found = LONG_NAMES.get(name, name)
    if found not in TIME_UNITS:
        raise DataError(f"{where}: unknown unit {name!r}. Known: {', '.join(TIME_UNITS)}.")
    return found


def require_counts(where: str, **counts: Any) -> None:
    """Raise `DataError` for a setting that is no whole number from 1; `max_size` may be None, for no bound."""
    for name, value in counts.items():
        if value is None and name == "max_size":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{where}: {name} must be at least 1, found {value!r}.")
