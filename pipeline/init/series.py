"""Whether the rows of a table are series, one each hour or day of a key, and the steps that look back in these."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from gigabatch.features.operators.base import unused

FEWEST_ROWS, FEWEST_OF_KEY = 100, 20  # in all, and a key's on average
AT_A_STEP, TWICE = 0.8, 0.01  # share of rows that follow at the same distance, at least; and at once, at most
TOLD = 0.3  # correlation of a label with the one before, each less the mean of its key
MOST_CATEGORIES = 8  # whose pairs are tried
SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000  # microseconds
# Steps of the calendar: how many days they last, how many rows further back tell beside the last, and a mean's window.
CALENDAR = {
    "month": ((28, 31), (1, 12), "365d"), "quarter": ((90, 92), (1, 4), "365d"), "year": ((365, 366), (1,), "1830d")
}  # fmt: skip
SPANS = {"d": DAY, "h": HOUR, "min": 60 * SECOND, "s": SECOND}
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
    """

    by: tuple[str, ...]
    step: str
    microseconds: int = 0


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
        distances, counts = np.unique(apart[apart > 0], return_counts=True)
        enough = AT_A_STEP * len(apart)
        units = (
            unit for unit, ((least, most), *_) in CALENDAR.items()
            if counts[(distances >= least * DAY) & (distances <= most * DAY)].sum() >= enough
        )  # fmt: skip
        unit = next(units, "")
        if not unit and counts.max() < enough:
            continue
        own = values[order] - pd.Series(values[order]).groupby(group[order]).transform("mean").to_numpy()
        before, after = own[:-1][follows], own[1:][follows]
        known = ~np.isnan(before) & ~np.isnan(after)
        spread = np.sqrt((before[known] ** 2).sum() * (after[known] ** 2).sum())
        if not spread > 0 or (before[known] * after[known]).sum() < TOLD * spread:
            return None
        step = int(distances[counts.argmax()])
        return Series(by, unit) if unit else Series(by, _span(step), step)
    return None


def steps_back(found: Series, time: str, target: str, taken: Collection[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Steps that give each row earlier labels of its series and a mean of them, and the names of their columns, which
    are none of `taken`."""
    shared = {"by": list(found.by), "time": time, "column": target}
    if found.step in CALENDAR:
        _, back, window = CALENDAR[found.step]
        wanted: list[tuple[str, str, dict[str, Any]]] = [
            (f"{target}_{periods}_{found.step}s_before", "lag", {"periods": periods}) for periods in back
        ]
    else:
        seasons, window = next(rest for least, rest in reversed(SEASONS.items()) if found.microseconds >= least)
        spans = dict.fromkeys([found.step, *seasons])
        wanted = [(f"{target}_{span}_before", "lag", {"span": span}) for span in spans]
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


def _span(step: int) -> str:
    """Text of a span as steps take it: of the largest unit of which it is whole, else microseconds."""
    return next((f"{step // size}{unit}" for unit, size in SPANS.items() if step % size == 0), f"{step}us")
