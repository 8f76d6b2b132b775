"""What numbers of a column of times count, and how a moment is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gigabatch.features.setting_checks import TIME_UNITS

# Numbers are taken to be times since 1970 where their median lies between these, in seconds. In seconds,
# milliseconds, microseconds and nanoseconds these are four ranges far apart.
EARLIEST, LATEST = datetime(1990, 1, 1, tzinfo=UTC).timestamp(), datetime(2262, 1, 1, tzinfo=UTC).timestamp()
GUESSED = ("s", "ms", "us", "ns")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def guessed_unit(median: float) -> str | None:
    """The unit in which numbers with this median count from 1970, a key of `TIME_UNITS`; None where they only order."""
    return next((unit for unit in GUESSED if EARLIEST <= median * unit_seconds(unit) < LATEST), None)


def unit_seconds(unit: str) -> float:
    """Seconds of a unit of `TIME_UNITS`."""
    return TIME_UNITS[unit] / TIME_UNITS["s"]


def shown(moment: float, unit: str | None) -> str:
    """A time in ISO 8601, UTC; the number as it is where no unit is known."""
    if unit is None:
        return f"{moment:.15g}"
    try:
        return (EPOCH + timedelta(seconds=moment * unit_seconds(unit))).isoformat(timespec="seconds")
    except OverflowError:  # after the year 9999
        return f"{moment:.15g} {unit} after 1970"
