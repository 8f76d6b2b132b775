"""Drift: how new rows differ from those accepted before, column by column, against the thresholds of a contract.

The measures are those of `gigabatch.features.refit.churn`; here they are held against two levels. A measure warns
only above its noise, which is what chance alone reaches in one case of twenty: the index's own, or 1.96 standard errors
of the difference of two samples. It counts as drift where it reaches the level with its noise taken off, so that a
year of nights with a dozen columns each is not refused by chance.

Elements of one list are often alike, so as many of them tell less than as many rows do: the noise of a list column is
that of lists whose elements are all equal (the design effect of clusters, Kish 1965, "Survey Sampling").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.recipes.table.recipe import length_name
from gigabatch.features.refit.churn import (
    TWO_SIDED,
    CategoryChurn,
    ContinuousChurn,
    category_churn,
    continuous_churn,
    expected_unseen,
    share_noise,
)
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.pipeline.contract.terms import DriftTerms

LEVELS = ("ok", "warn", "drift")
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # whose quantiles are compared


@dataclass(frozen=True)
class Measure:
    """One measure of one column.

    Parameters
    ----------
    column
        Its name.
    measure
        `psi`, `quantile`, `nulls`, `unseen` or `label`, as in `DriftTerms`.
    value
        What was found.
    noise
        What chance alone reaches in one case of twenty.
    levels
        From which value on it warns, and counts as drift.
    verdict
        `ok`, `warn` or `drift`.
    """

    column: str
    measure: str
    value: float
    noise: float
    levels: tuple[float, float]
    verdict: str

    def __str__(self) -> str:
        limit = self.levels[1 if self.verdict == "drift" else 0]
        return f"column {self.column!r}: {self.measure} {self.value:.3g}, bound {limit:.3g} (noise {self.noise:.2g})"


@dataclass(frozen=True)
class Drift:
    """All measures, and the reports that they were taken from."""

    rows_old: int
    rows: int
    measures: tuple[Measure, ...]
    columns: tuple[CategoryChurn | ContinuousChurn, ...]

    @property
    def verdict(self) -> str:
        """The worst of all."""
        return LEVELS[max((LEVELS.index(item.verdict) for item in self.measures), default=0)]

    def verdicts(self) -> dict[str, str]:
        """The worst by column."""
        found: dict[str, str] = {}
        for item in self.measures:
            found[item.column] = max(found.get(item.column, "ok"), item.verdict, key=LEVELS.index)
        return found

    def sentences(self, verdict: str = "warn") -> tuple[str, ...]:
        """What reached that level."""
        return tuple(str(item) for item in self.measures if LEVELS.index(item.verdict) >= LEVELS.index(verdict))


class _Measures:
    """Collects measures, each held to its column's levels."""

    def __init__(self, terms: DriftTerms, own: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
        self.terms, self.own = terms, own
        self.measures: list[Measure] = []

    def levels(self, column: str, name: str) -> tuple[float, float]:
        own: tuple[float, float] = self.own.get(column, {}).get(name, getattr(self.terms, name))
        return own

    def add(self, column: str, name: str, value: float, noise: float) -> None:
        levels = self.levels(column, name)
        self.measures.append(Measure(column, name, value, noise, levels, _verdict(value, noise, levels)))

    def add_worst(self, column: str, name: str, found: Sequence[tuple[float, float]]) -> None:
        """Of several values with their noise the one of the worst verdict, the farthest above its noise."""
        levels = self.levels(column, name)
        self.add(
            column, name, *max(found, key=lambda one: (LEVELS.index(_verdict(one[0], one[1], levels)), one[0] - one[1]))
        )


def drift(
    old: Statistics,
    new: Statistics,
    terms: DriftTerms | None = None,
    labels: Collection[str] = (),
    own: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    calendar: Collection[str] = (),
    unmeasured: Collection[str] = (),
) -> Drift:
    """Compare new rows with old ones.

    Parameters
    ----------
    old, new
        Statistics of the same columns: of rows accepted before, and of the new rows alone.
    terms
        Thresholds; the defaults of `DriftTerms` where there are none.
    labels
        Columns that are labels: of classes among the categories, of numbers among the numbers.
    own
        Levels by column and measure, in place of those of `terms`.
    calendar
        Columns of which nulls alone are measured: their values follow from the days that rows are of.
    unmeasured
        Columns of text that are measured as the numbers that steps make of them.

    Returns
    -------
    Drift
        Every measure of every column with its verdict.

    Raises
    ------
    DataError
        The statistics are not of the same columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
    >>> from gigabatch.pipeline.contract.drift import drift
    >>> def of(cities):
    ...     return Statistics(len(cities), {"city": CategoryStatistics.of(pd.Series(cities, name="city"))}, {})
    >>> found = drift(of(["Oslo", "Bonn"] * 500), of(["Oslo", "Lima"] * 500))
    >>> found.verdict
    'drift'
    """
    kinds = ("categories", "numbers", "lists")
    if any(set(getattr(old, kind)) != set(getattr(new, kind)) for kind in kinds):
        raise DataError("drift: the old and the new statistics are not of the same columns.")
    found_by = _Measures(terms or DriftTerms(), own or {})
    columns: list[CategoryChurn | ContinuousChurn] = []
    of_rows = 1 / max(old.rows, 1) + 1 / max(new.rows, 1)
    for name, state in (old.categories | old.lists).items():
        fresh = new.categories[name] if name in new.categories else new.lists[name]
        if name in old.lists and not (state.rows and fresh.rows):  # no element of which a share could be told
            continue
        alike = _alike(name, old, new) if name in old.lists else (1.0, 1.0)
        either = alike[0] / state.rows + alike[1] / fresh.rows if name in old.lists else of_rows
        found = category_churn(name, state, fresh, state.vocabulary, alike=alike)
        columns.append(found)
        if name in unmeasured:
            continue
        _nulls(found_by, found, either)
        if name in calendar:
            continue
        if name in labels:
            value, noise = class_shift(state, fresh)
            found_by.add(name, "label", value, noise)
        elif state.rows > state.nulls:
            expected = found.unseen_rate_expected
            rise = max(found.unseen_rate - expected, 0.0)
            # A value that one list alone has brought would be as new, had that list not come.
            most = _longest(old.numbers[length_name(name)]) if name in old.lists else 1
            once = expected_unseen(state, state.vocabulary, most)
            found_by.add(name, "unseen", rise, once - expected + share_noise(once, either))
        if found.stability is not None:
            found_by.add(name, "psi", found.stability.psi, found.stability.noise)
    for name, numbers in old.numbers.items():
        shifted = continuous_churn(name, numbers, new.numbers[name])
        columns.append(shifted)
        _nulls(found_by, shifted, of_rows)
        if name in calendar:
            continue
        known = (numbers.moments.count, new.numbers[name].moments.count)
        if name in labels and shifted.mean_shift is not None:
            noise = TWO_SIDED * math.sqrt(sum(1 / max(count, 1) for count in known))
            found_by.add(name, "label", abs(shifted.mean_shift), noise)
        if shifted.std_old and all(known):
            shifts = [
                (value / shifted.std_old, noise / shifted.std_old)
                for value, noise in _shifts(numbers, new.numbers[name])
            ]
            found_by.add_worst(name, "quantile", shifts)
        if shifted.stability is not None:
            found_by.add(name, "psi", shifted.stability.psi, shifted.stability.noise)
    return Drift(old.rows, new.rows, tuple(found_by.measures), tuple(columns))


def _alike(name: str, old: Statistics, new: Statistics) -> tuple[float, float]:
    """How many elements of a list column, of the old rows and of the new ones, tell as much as one that is independent
    of the others, if those of each list are equal."""
    # n lists of lengths L: the variance of a share is that of sum(L)^2 / sum(L^2) elements.
    moments = [side.numbers[length_name(name)].moments for side in (old, new)]
    first, second = (item.squares.units / item.total.units for item in moments)
    return first, second


def _longest(lengths: ColumnStatistics) -> int:
    """How long the lists are at most in which 95 % of the elements lie."""
    ends = lengths.histogram.edges()[1]
    elements = (lengths.histogram.counts * ends).cumsum()
    return int(ends[np.searchsorted(elements, 0.95 * elements[-1])])


def class_shift(old: CategoryStatistics, new: CategoryStatistics) -> tuple[float, float]:
    """The largest change of a class's share of the known rows, and the noise of that class; 0 without known rows."""
    before, after = class_shares(old), class_shares(new)
    if not before or not after:
        return 0.0, 0.0
    either = 1 / (old.rows - old.nulls) + 1 / (new.rows - new.nulls)
    changes = {name: abs(after.get(name, 0.0) - before.get(name, 0.0)) for name in {**before, **after}}
    name = max(changes, key=lambda key: changes[key])
    return changes[name], share_noise(before.get(name, 0.0), either)


def class_shares(state: CategoryStatistics) -> dict[str, float]:
    """Share of the known rows by class."""
    counts: Any = engine_of(state.counts).to_pandas(state.counts)
    known = state.rows - state.nulls
    pairs = zip(counts["value"].tolist(), counts["count"].tolist(), strict=True)
    return {str(value): count / known for value, count in pairs}


def _nulls(measures: _Measures, found: Any, either: float) -> None:
    change = abs(found.null_rate - found.null_rate_old)
    measures.add(found.column, "nulls", change, share_noise(found.null_rate_old, either))


def _verdict(value: float, noise: float, levels: tuple[float, float]) -> str:
    if value <= noise:
        return "ok"
    return "drift" if value - noise >= levels[1] else "warn" if value >= levels[0] else "ok"


def _shifts(old: ColumnStatistics, new: ColumnStatistics) -> list[tuple[float, float]]:
    """How far each of `SHARES`' quantiles has moved at least, and the noise of that, in the column's unit.

    Mid-quantiles (Ma, Genton and Parzen 2011, "Asymptotic properties of sample quantiles of discrete distributions"):
    those of few distinct values move with the values' shares, where the usual ones jump from one value to the next.
    Noise is how far the old quantiles lie apart within 1.96 standard errors of the share (Woodruff 1952), whatever the
    distribution is.
    """
    either, found = 1 / old.moments.count + 1 / new.moments.count, []
    for share in SHARES:
        before, after = (_mid_quantile(side, share) for side in (old, new))
        shift, bound = after[0] - before[0], before[1] + after[1]
        end, _ = _mid_quantile(old, share + math.copysign(share_noise(share, either), shift))
        found.append((max(abs(shift) - bound, 0.0), abs(end - before[0])))
    return found


def _mid_quantile(state: ColumnStatistics, share: float) -> tuple[float, float]:
    """The quantile, and how far off the histogram's bins may have put it."""
    low, high = state.histogram.edges()
    counts = state.histogram.counts
    places = (counts.cumsum() - counts / 2) / counts.sum()
    after = int(np.searchsorted(places, share))
    width = (high - low)[max(after - 1, 0) : after + 1].max()
    # The end of a bin that is nearer to 0 is the likeliest number in it, see `features.refit.statistics`.
    return float(np.interp(share, places, np.where(low >= 0, low, high))), float(width)
