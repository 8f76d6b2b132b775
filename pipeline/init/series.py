"""Whether the rows of a table are series, one each hour or day of a key, and the steps that look back in these."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from gigabatch.features.operators.base import unused
from gigabatch.features.workflow.workflow import ROW

FEWEST_ROWS, FEWEST_OF_KEY = 100, 20  # in all, and a key's on average
AT_A_STEP, TWICE = 0.8, 0.01  # share of rows that follow at the same distance, at least; and at once, at most
AT_FEW_STEPS = 0.95  # where the distances differ by the days of the week
TOLD = 0.3  # correlation of a label with the one before, each less the mean of its key
MOST_CATEGORIES = 8  # whose pairs are tried
BUSINESS_DAY = "business day"
SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000  # microseconds
# Steps of the calendar: how many days they last, what further back tells beside the last row, as a number of rows or a
# span, and a mean's window.
CALENDAR: dict[str, tuple[tuple[int, int], tuple[int | str, ...], str]] = {
    "month": ((28, 31), (12,), "365d"), "quarter": ((90, 92), (4,), "365d"), "year": ((365, 366), (), "1830d"),
    BUSINESS_DAY: ((1, 4), ("7d",), "28d"),
}  # fmt: skip
SPANS = {"d": DAY, "h": HOUR, "min": 60 * SECOND, "s": SECOND, "ms": 1000}
# From this step of time on, the spans further back that tell beside it, and the window of a mean.
SEASONS = {0: (("1d", "7d"), "7d"), DAY: (("7d",), "28d"), DAY + 1: ((), "91d")}


@dataclass(frozen=True)
class Series:
    """What a table's rows are the series of.

    Parameters
    ----------
    by
        Columns of which each group is a series; empty where the table is one.
    step
        What lies between a row and the next: a span, such as `1d`, or a key of `CALENDAR`.
    microseconds
        Of a span.
    longest
        From the first row of a series to its last, in microseconds, of that which lasts the longest.
    repeats
        Whether some rows of a series have one time.
    gaps
        Whether months, quarters, years or business days lack rows or values.
    """

    by: tuple[str, ...]
    step: str
    microseconds: int = 0
    longest: int = 0
    repeats: bool = False
    gaps: bool = False


def series(times: np.ndarray, values: np.ndarray, categories: Mapping[str, np.ndarray]) -> Series | None:
    """Of what the rows are series whose values tell of the next one, by the fewest columns; None where they are none.

    Parameters
    ----------
    times
        (rows,) microseconds since 1970; no NaN.
    values
        (rows,) numbers; NaN where null.
    categories
        By name (rows,) values that may tell series apart, None where null.

    Examples
    --------
    >>> import numpy as np
    >>> days, shops = np.repeat(np.arange(100), 3), np.tile([0, 1, 2], 100)
    >>> sold = np.sin(days / 9) + shops
    >>> found = series(days * 86_400_000_000, sold, {"shop": shops, "sign": np.zeros(300)})
    >>> found.by, found.step
    (('shop',), '1d')
    """
    if len(times) < FEWEST_ROWS:
        return None
    codes = {name: pd.factorize(found)[0] for name, found in categories.items()}
    for by in _groupings(codes):
        group = np.zeros(len(times), np.int64)
        for name in by:
            group = group * (codes[name].max() + 2) + codes[name] + 1
        _, group, sizes = np.unique(group, return_inverse=True, return_counts=True)
        if len(times) < FEWEST_OF_KEY * len(sizes):
            continue
        order = np.lexsort((times, group))
        follows = group[order][1:] == group[order][:-1]
        apart = np.diff(times[order])[follows]
        if (apart == 0).mean() > TWICE:
            continue
        unit, step = _step(times, apart)
        if not unit:
            continue
        own = values[order] - pd.Series(values[order]).groupby(group[order]).transform("mean").to_numpy()
        before, after = own[:-1][follows], own[1:][follows]
        known = ~np.isnan(before) & ~np.isnan(after)
        spread = np.sqrt((before[known] ** 2).sum() * (after[known] ** 2).sum())
        if not spread > 0 or (before[known] * after[known]).sum() < TOLD * spread:
            return None
        ends = pd.Series(times).groupby(group)
        longest = int((ends.max() - ends.min()).max())
        gaps = unit in CALENDAR and (_share(apart, unit) < 1 or bool(np.isnan(values).any()))
        return Series(by, unit, step, longest, bool((apart == 0).any()), gaps)
    return None


def _step(times: np.ndarray, apart: np.ndarray) -> tuple[str, int]:
    """What lies between most rows and the next: a key of `CALENDAR` and 0, or a span and its microseconds; empty text
    where it varies. apart: microseconds between each row and the next of its group."""
    distances, counts = np.unique(apart[apart > 0], return_counts=True)
    if not len(distances):
        return "", 0
    step, often = int(distances[counts.argmax()]), counts.max() >= AT_A_STEP * len(apart)
    # One or two days of each week have no rows.
    weekdays = (np.bincount(times // DAY % 7, minlength=7) > TWICE * len(times)).sum()
    if step == DAY and weekdays in (5, 6) and _share(apart, BUSINESS_DAY) >= AT_FEW_STEPS:
        return BUSINESS_DAY, 0
    # Four weeks, always of one length, are no month; a year is of one length mostly.
    if often and step != 365 * DAY:
        return _span(step), step
    return next((unit for unit in ("month", "quarter", "year") if _share(apart, unit) >= AT_A_STEP), ""), 0


def _share(apart: np.ndarray, unit: str) -> float:
    """The share of rows that the next one follows a key of `CALENDAR` later."""
    (least, most), *_ = CALENDAR[unit]
    return float(((apart >= least * DAY) & (apart <= most * DAY)).mean())


def steps_back(found: Series, time: str, target: str, taken: Collection[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Steps that give each row earlier labels of its series and a mean of them, and the names of their columns, which
    are none of `taken`."""
    shared = {"by": list(found.by), "time": time, "column": target}
    order = {"order": ROW} if found.repeats else {}
    if found.step in CALENDAR:
        _, back, window = CALENDAR[found.step]
        back = (1, *back)
    else:
        seasons, window = next(rest for least, rest in reversed(SEASONS.items()) if found.microseconds >= least)
        # Of longer ones less than half of the rows have a value.
        back = tuple(dict.fromkeys([found.step, *(span for span in seasons if 2 * _length(span) <= found.longest)]))
    counted = "row" if found.gaps else found.step.replace(" ", "_")
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        (f"{target}_{one}_before", "lag", {"span": one, **order}) if isinstance(one, str)
        else (f"{target}_{one}_{counted}s_before", "lag", {"periods": one, **order}) for one in back
    ]  # fmt: skip
    wanted.append((f"{target}_mean_{window}", "rolling", {"window": window, "statistic": "mean"}))
    names = [unused(wished, taken) for wished, *_ in wanted]
    steps = [
        {operator: {**shared, **options, "output": name}}
        for name, (_, operator, options) in zip(names, wanted, strict=True)
    ]
    return steps, names


def _groupings(codes: Mapping[str, np.ndarray]) -> Iterator[tuple[str, ...]]:
    """No column, each, and each pair, those with the most values first."""
    names = sorted(codes, key=lambda name: -codes[name].max())[:MOST_CATEGORIES]
    yield ()
    yield from ((name,) for name in names)
    yield from combinations(names, 2)


def _length(span: str) -> int:
    """Microseconds of a span of days."""
    return int(span.removesuffix("d")) * DAY


def _span(step: int) -> str:
    """Text of a span as steps take it: of the largest unit of which it is whole, else microseconds."""
    return next((f"{step // size}{unit}" for unit, size in SPANS.items() if step % size == 0), f"{step}us")
