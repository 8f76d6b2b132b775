"""Columns that tell of the calendar: a month, a weekday, a date. Their values follow from the days that rows are of, so
what a winter's files hold says nothing about a summer's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gigabatch.features.columns.time_types import MONTHS, is_time_type, time_type
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.recipes.base import RawFiles, number_name
from gigabatch.pipeline.contract.measure import Measured

DATE = "date"  # a time with a date, which only grows
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SEASONS = ("winter", "spring", "summer", "autumn", "fall")


@dataclass(frozen=True)
class Part:
    """names: how columns of it are called, in small letters without signs; numbers: the least and the greatest, counted
    from 0 or 1; words: their beginnings; round: after how many it comes again, None where it never does."""

    names: tuple[str, ...]
    numbers: tuple[tuple[int, int], ...]
    words: tuple[str, ...] = ()
    round: int | None = None


PARTS = {
    "year": Part(("year", "yr"), ((0, 99), (1900, 2200))),
    "season": Part(("season",), ((0, 4),), SEASONS, 4),
    "quarter": Part(("quarter", "qtr"), ((0, 4),), ("q1", "q2", "q3", "q4"), 4),
    "month": Part(("month", "mnth", "mon", "monthofyear"), ((0, 12),), MONTHS, 12),
    "week": Part(("week", "woy", "weekofyear", "isoweek"), ((0, 53),), (), 53),
    "weekday": Part(("weekday", "wday", "dow", "dayofweek"), ((0, 7),), WEEKDAYS, 7),
    "day": Part(("day", "mday", "dom", "dayofmonth"), ((0, 31),), (), 31),
    "day_of_year": Part(("yday", "doy", "dayofyear"), ((0, 366),), (), 366),
}


def calendar_part(kind: RawFiles, name: str, files: Sequence[Measured]) -> str | None:
    """Which part of the calendar a column tells: `DATE`, or a key of `PARTS`, by its name and by all of its values.

    A part that comes round within a file (the weekdays of a month) is none: its shares are alike in every file.
    """
    dtype, called = kind.dtypes.get(name, ""), name.removesuffix(number_name(""))
    if kind.role(name) == "number" and is_time_type(dtype):
        how = time_type(dtype)
        return None if how is not None and how.of_day else DATE
    if kind.role(name) not in ("number", "category"):
        return None
    plain = re.sub(r"[^a-z]", "", called.lower())
    found = next((part for part, told in PARTS.items() if plain in told.names), None)
    if found is None:
        return None
    part = PARTS[found]
    shown = [_values(item, name) for item in files]
    few = part.round is None or all(len(values) <= part.round / 2 for values in shown)
    known = set().union(*shown)
    return found if few and known and _are(part, known) else None


def _values(item: Measured, name: str) -> set[str]:
    """What a file holds, as text; of numbers all whole ones of their range."""
    state = item.statistics.categories.get(name)
    if state is None:
        low, high = item.ranges.get(name, (1, 0))
        whole = low == int(low) and high - low <= PARTS["day_of_year"].numbers[0][1]
        return set(map(str, range(int(low), int(high) + 1))) if whole else {str(low)}
    return set(map(str, engine_of(state.counts).to_pandas(state.counts)["value"]))


def _are(part: Part, values: set[str]) -> bool:
    texts = [re.sub(r"\.0$", "", value.strip().lower()) for value in values]
    if all(re.fullmatch(r"\d{1,4}", text) for text in texts):
        return any(all(low <= int(text) <= high for text in texts) for low, high in part.numbers)
    return all(any(text.startswith(word) for word in part.words) for text in texts)
