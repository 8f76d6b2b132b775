"""Churn: how new data differs from the data of the fit, column by column, from the statistics of both alone.

The population stability index of shares e_i (old) and a_i (new) over cells i is sum((a_i - e_i) * ln(a_i / e_i))
(Siddiqi 2006, "Credit Risk Scorecards", chapter 8; he calls less than 0.1 no change, up to 0.25 a small one, and more
a shift). Every cell is given half a row first, so that an empty one has a logarithm. Without any shift the index of B
cells is about (1/n + 1/m) times a chi-square with B - 1 degrees of freedom (Yurdakul 2018, "Statistical Properties of
Population Stability Index"), so few rows alone can pass a threshold: `noise` is what they pass in one case of twenty,
and no flag is raised below it. That of a mean is of Student's t with the old deviation, that of a share 1.96 standard
errors of the difference of two samples.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import UNREADABLE, DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics, deviation, quantile
from gigabatch.features.vocabulary.vocabulary import Vocabulary

TWO_SIDED = 1.96  # standard errors, 95 %
TOP_VALUES = 20  # cells of a categorical column's index, the most frequent old values; the rest is one more
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
EXAMPLES = 10
# Headings of the tables of `churn_text`.
CATEGORIES = ("categorical", "null", "unseen", "PSI", "noise", "new", "vanished", "longest gone")
NUMBERS = ("continuous", "null", "mean", "std", "PSI", "noise", "1 %", "50 %", "99 %")


@dataclass(frozen=True)
class Thresholds:
    """What raises a flag, all of them reached or passed, where the measure also passes its noise.

    psi_moderate, psi_large: of the index. null_rate: change of the share of nulls, up
    or down. unseen_rate: share of new rows that the old vocabulary does not know, above what more rows of the old
    data would have. mean_shift: change of the mean in old standard deviations.
    """

    psi_moderate: float = 0.1
    psi_large: float = 0.25
    null_rate: float = 0.05
    unseen_rate: float = 0.05
    mean_shift: float = 0.5


@dataclass(frozen=True)
class Flag:
    """One measure of one column that reached its threshold."""

    column: str
    measure: str
    value: float
    threshold: float


@dataclass(frozen=True)
class Stability:
    """psi: the index. cells: how many it is over. noise: the 95th percentile of the index without any shift."""

    psi: float
    cells: int
    noise: float


@dataclass(frozen=True)
class Values:
    """Some values of a categorical column. count: how many. share: of the rows of the table that holds them.

    examples: the most frequent, with their rows.
    """

    count: int
    share: float
    examples: tuple[tuple[Any, int], ...]


@dataclass(frozen=True)
class CategoryChurn:
    """new: values that no earlier data held. vanished: values of earlier data that the new data lacks.

    absent_since: for every version, how many vanished values it was the last to hold; after the first fit they are
    rows of an embedding table that nothing has trained since. never_seen: values of the vocabulary that no data held
    at all. unseen_rate: share of rows that the old vocabulary does not know, null rows not among them.
    unseen_rate_expected: what more rows of the old data would have, by leave-one-out (see `expected_unseen`).
    stability: over the old data's most frequent values and the rest; None where either side has no known value.
    """

    column: str
    null_rate_old: float
    null_rate: float
    unseen_rate_old: float
    unseen_rate: float
    unseen_rate_expected: float
    new: Values
    vanished: Values
    absent_since: dict[int, int]
    never_seen: int
    stability: Stability | None


@dataclass(frozen=True)
class QuantileShift:
    """One quantile of the old and the new data; the true shift lies within shift - bound and shift + bound."""

    percent: int
    old: float
    new: float
    shift: float
    bound: float


@dataclass(frozen=True)
class ContinuousChurn:
    """Means and standard deviations are exact, of known values; None where there is none.

    range_old, range: the known values lie within, to the ends of the outermost bins.
    mean_shift: in old standard deviations, None where the old data is constant. stability: over the deciles of the
    old data, cut between the bins of the histograms, so that the cells' counts are exact. mean_noise: of mean_shift, in
    its unit; None as that is, and in reports of earlier versions.
    """

    column: str
    null_rate_old: float
    null_rate: float
    mean_old: float | None
    mean: float | None
    std_old: float | None
    std: float | None
    mean_shift: float | None
    range_old: tuple[float, float] | None
    range: tuple[float, float] | None
    quantiles: tuple[QuantileShift, ...]
    stability: Stability | None
    mean_noise: float | None = None


@dataclass(frozen=True)
class Churn:
    """New data against the data that version `version` of a preprocessor was fitted on."""

    version: int
    rows_old: int
    rows: int
    categories: tuple[CategoryChurn, ...]
    numbers: tuple[ContinuousChurn, ...]
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What reached its threshold, in the order of the columns."""
        found: list[Flag] = []
        limits = self.thresholds
        columns: list[CategoryChurn | ContinuousChurn] = [*self.categories, *self.numbers]
        for item in columns:
            if self.rows_old:  # else there was no rate
                change = item.null_rate - item.null_rate_old
                _flag(found, item.column, "null rate", change, limits.null_rate, self.null_noise(item))
            if isinstance(item, CategoryChurn):
                rise = max(item.unseen_rate - item.unseen_rate_expected, 0.0)
                _flag(found, item.column, "unseen rate", rise, limits.unseen_rate, self.unseen_noise(item))
            elif item.mean_shift is not None:
                _flag(found, item.column, "mean shift", item.mean_shift, limits.mean_shift, item.mean_noise or 0.0)
            if item.stability is not None and item.stability.psi > item.stability.noise:
                large = item.stability.psi >= limits.psi_large
                limit = limits.psi_large if large else limits.psi_moderate
                _flag(found, item.column, "PSI, large" if large else "PSI, moderate", item.stability.psi, limit)
        return tuple(found)

    def null_noise(self, item: CategoryChurn | ContinuousChurn) -> float:
        """What chance alone raises the share of nulls by in one case of forty at most, about."""
        return count_noise(item.null_rate_old, self.rows_old, self.rows)

    def unseen_noise(self, item: CategoryChurn) -> float:
        """How far chance alone puts the share of unseen values above what was expected."""
        return count_noise(item.unseen_rate_expected, self.rows_old, self.rows)

    def to_json(self) -> str:
        """The whole report with its flags."""
        return json.dumps(
            asdict(self) | {"flags": [asdict(flag) for flag in self.flags]}, indent=1, default=_plain, allow_nan=False
        )

    @classmethod
    def from_json(cls, text: str) -> Churn:
        """From what `to_json` gave; `DataError` where it is none."""
        try:
            raw = json.loads(text)
            categories = tuple(_category_of(item) for item in raw["categories"])
            numbers = tuple(_continuous_of(item) for item in raw["numbers"])
            return cls(
                raw["version"], raw["rows_old"], raw["rows"], categories, numbers, Thresholds(**raw["thresholds"])
            )
        except UNREADABLE as error:
            raise DataError(f"churn: this is no report of it ({error}).") from error


def _category_of(raw: Any) -> CategoryChurn:
    found = {side: Values(raw[side]["count"], raw[side]["share"], _pairs(raw[side])) for side in ("new", "vanished")}
    since = {int(version): count for version, count in raw["absent_since"].items()}
    return CategoryChurn(**raw | found | {"absent_since": since, "stability": _stability_of(raw)})


def _continuous_of(raw: Any) -> ContinuousChurn:
    ranges = {name: None if raw[name] is None else tuple(raw[name]) for name in ("range_old", "range")}
    quantiles = tuple(QuantileShift(**item) for item in raw["quantiles"])
    return ContinuousChurn(**raw | ranges | {"quantiles": quantiles, "stability": _stability_of(raw)})


def _pairs(raw: Any) -> tuple[tuple[Any, int], ...]:
    return tuple((value, count) for value, count in raw["examples"])


def _stability_of(raw: Any) -> Stability | None:
    return None if raw["stability"] is None else Stability(**raw["stability"])


def churn(
    old: Statistics,
    new: Statistics,
    vocabularies: dict[str, Vocabulary],
    version: int = 1,
    thresholds: Thresholds | None = None,
    min_counts: Mapping[str, int] | None = None,
) -> Churn:
    """The report. vocabularies: of the preprocessor that was fitted on `old`, its version being `version`.

    min_counts: how often a value must be counted to enter, by categorical column; 1 where none is given.
    """
    if (
        set(old.lists) != set(new.lists)
        or set(old.categories) != set(new.categories)
        or set(old.numbers) != set(new.numbers)
    ):
        raise DataError("churn: the old and the new statistics are not of the same columns.")
    fresh = new.categories | new.lists
    owners = {name: old.owners.get(name, name) for name in (*old.categories, *old.lists)}
    told = {owner: (old.of_values(owner), new.of_values(owner)) for owner in owners.values()}
    categories = []
    for name, state in (old.categories | old.lists).items():
        owner = owners[name]
        least = (min_counts or {}).get(owner, 1)
        categories.append(category_churn(name, state, fresh[name], vocabularies[owner], least, told[owner]))
    numbers = tuple(continuous_churn(name, state, new.numbers[name]) for name, state in old.numbers.items())
    return Churn(version, old.rows, new.rows, tuple(categories), numbers, thresholds or Thresholds())


def category_churn(
    name: str,
    old: CategoryStatistics,
    new: CategoryStatistics,
    vocabulary: Vocabulary,
    min_count: int = 1,
    told: tuple[CategoryStatistics, CategoryStatistics] | None = None,
    alike: tuple[float, float] = (1.0, 1.0),
) -> CategoryChurn:
    """The report of one categorical column; min_count: how often a value must be counted to enter the vocabulary.
    told: what the vocabulary counts in the old data and in the new, where it is that of several columns. alike: of how
    many rows of `old` and of `new` each tells as much as one does that is independent of the others."""
    told = (old, new) if told is None else told
    arrived, gone = new.unseen(old.vocabulary), old.unseen(new.vocabulary)
    since = gone.groupby("last_version").agg({"count": "count"}).reset_index().sort_values("last_version")
    absent = [seen.positions(vocabulary.values) < 0 for seen in (told[0].vocabulary, told[1].vocabulary)]
    return CategoryChurn(
        name,
        _share(old.nulls, old.rows),
        _share(new.nulls, new.rows),
        _share(int(old.unseen(vocabulary)["count"].sum()), old.rows),
        _share(int(new.unseen(vocabulary)["count"].sum()), new.rows),
        expected_unseen(old, vocabulary, min_count, told[0]),
        _values(arrived, new.rows),
        _values(gone, old.rows),
        dict(zip(_host(since["last_version"]).tolist(), _host(since["count"]).tolist(), strict=True)),
        int((absent[0] & absent[1]).sum()),
        _category_stability(old, new, alike),
    )


def expected_unseen(
    old: CategoryStatistics,
    vocabulary: Vocabulary,
    min_count: int = 1,
    told: CategoryStatistics | None = None,
) -> float:
    """Share of the old rows whose value the vocabulary does not hold, or would not without this very row.

    That is what more rows of the same kind have, however long their tail of rare values: with `min_count` 1 the share
    of values that were counted once (Good 1953, "The population frequencies of species and the estimation of population
    parameters"). told: what the vocabulary counts in the old data, where it is that of several columns.
    """
    engine, values = engine_of(old.counts), old.counts["value"]
    counts = total = engine.array(old.counts["count"])
    if told is not None and told is not old:
        total = engine.array(told.counts["count"])[told.vocabulary.positions(values)]
    return _share(int(counts[(vocabulary.positions(values) < 0) | (total <= min_count)].sum()), old.rows)


def continuous_churn(name: str, old: ColumnStatistics, new: ColumnStatistics) -> ContinuousChurn:
    """The report of one continuous column."""
    scales = [state.moments.scale() if state.moments.count else None for state in (old, new)]
    deviations = [deviation(state) for state in (old, new)]
    means = [None if scale is None else scale.mean for scale in scales]
    shift = noise = None
    if means[0] is not None and means[1] is not None and deviations[0]:
        shift = (means[1] - means[0]) / deviations[0]
        noise = _mean_noise(old.moments.count, new.moments.count)
    both = old.moments.count > 0 and new.moments.count > 0
    return ContinuousChurn(
        name,
        _share(old.nulls, old.rows),
        _share(new.nulls, new.rows),
        means[0],
        means[1],
        deviations[0],
        deviations[1],
        shift,
        _range(old),
        _range(new),
        tuple(_quantile_shift(old, new, percent) for percent in PERCENTILES) if both else (),
        stability(*decile_counts(old, new)) if both else None,
        noise,
    )


def share_noise(share: float, either: float) -> float:
    """1.96 standard errors of the difference of two samples' shares; either: 1/n + 1/m."""
    return TWO_SIDED * math.sqrt(share * (1 - share) * either)


def count_noise(share: float, old: int, new: int) -> float:
    """How far above the old share that of the new rows is by chance in one case of forty: of few rows by the binomial
    distribution of their count, whose probability (k + 1/2) / (n + 1) is none of 0 where no old row was one."""
    from scipy.special import betainc  # here, as SciPy takes as long to load as pandas

    old, new = max(old, 1), max(new, 1)
    chance = (share * old + 0.5) / (old + 1)
    most = bisect_left(range(new), 0.975, key=lambda count: float(betainc(new - count, count + 1, 1 - chance)))
    return max(most / new - share, share_noise(share, 1 / old + 1 / new))


def _mean_noise(old: int, new: int) -> float:
    """Of the difference of two samples' means, in population deviations of the old one."""
    from scipy.special import stdtrit  # here, as SciPy takes as long to load as pandas

    return float(stdtrit(old - 1, 0.975)) * math.sqrt(old / (old - 1) * (1 / old + 1 / new))


def stability(old: Sequence[float], new: Sequence[float]) -> Stability:
    """The index over cells of rows; cells that are empty on both sides do not count."""
    kept = [(before, after) for before, after in zip(old, new, strict=True) if before or after]
    totals = [sum(column) for column in zip(*kept, strict=True)]
    cells = len(kept)
    psi = 0.0
    for before, after in kept:
        expected, actual = (before + 0.5) / (totals[0] + 0.5 * cells), (after + 0.5) / (totals[1] + 0.5 * cells)
        psi += (actual - expected) * math.log(actual / expected)
    from scipy.special import chdtri  # here, as SciPy takes as long to load as pandas

    percentile = float(chdtri(cells - 1, 0.05)) if cells > 1 else 0.0  # the 95th of the chi-square distribution
    return Stability(psi, cells, (1 / totals[0] + 1 / totals[1]) * percentile)


def decile_counts(old: ColumnStatistics, new: ColumnStatistics) -> tuple[list[int], list[int]]:
    """Rows of both in cells of whole bins: each ends with the bin in which a decile of the old data falls."""
    reached = old.histogram.counts.cumsum()
    ranks = [-(-decile * old.moments.count // 10) for decile in range(1, 10)]
    ends = np.unique(old.histogram.bins[np.searchsorted(reached, ranks)])
    before, after = (
        np.bincount(np.searchsorted(ends, found.bins), found.counts, minlength=len(ends) + 1).astype(int).tolist()
        for found in (old.histogram, new.histogram)
    )
    return before, after


def _category_stability(
    old: CategoryStatistics, new: CategoryStatistics, alike: tuple[float, float]
) -> Stability | None:
    known = [state.rows - state.nulls for state in (old, new)]
    if min(known) == 0:
        return None
    top = old.counts.iloc[:TOP_VALUES].reset_index(drop=True)
    vocabulary = new.vocabulary
    positions = vocabulary.positions(top["value"])
    found = _host(new.counts["count"])
    cells = [_host(top["count"]).tolist(), [int(found[place]) if place >= 0 else 0 for place in positions.tolist()]]
    whole = ([*cell, rows - sum(cell)] for cell, rows in zip(cells, known, strict=True))
    return stability(*([count / rows for count in cell] for cell, rows in zip(whole, alike, strict=True)))


def _range(state: ColumnStatistics) -> tuple[float, float] | None:
    low, high = state.histogram.edges()
    return (float(low[0]), float(high[-1])) if len(low) else None


def _quantile_shift(old: ColumnStatistics, new: ColumnStatistics, percent: int) -> QuantileShift:
    before, after = quantile(old, percent), quantile(new, percent)
    return QuantileShift(percent, before.value, after.value, after.value - before.value, before.bound + after.bound)


def _values(counts: Any, rows: int) -> Values:
    first = engine_of(counts).to_pandas(counts.iloc[:EXAMPLES])
    examples = tuple(zip(first["value"].tolist(), first["count"].tolist(), strict=True))
    return Values(len(counts), _share(int(counts["count"].sum()), rows), examples)


def _share(part: int, rows: int) -> float:
    return part / rows if rows else 0.0


def _host(column: Any) -> Any:
    engine = engine_of(column)
    return engine.to_host(engine.array(column))


def _plain(value: Any) -> Any:
    return value.item()  # a NumPy scalar among the examples


def _flag(found: list[Flag], column: str, measure: str, value: float, threshold: float, noise: float = 0.0) -> None:
    if abs(value) >= threshold and abs(value) > noise:
        found.append(Flag(column, measure, value, threshold))


def churn_text(churn: Churn) -> str:
    """The report as plain text: a table a kind of column, old and new parted by `>` (of the unseen: expected and
    found), and a line a flag."""
    lines = [f"{churn.rows:,} new rows against {churn.rows_old:,} of version {churn.version}"]
    if churn.categories:
        lines += ["", *_aligned([CATEGORIES, *map(_category_row, churn.categories)])]
    if churn.numbers:
        lines += ["", *_aligned([NUMBERS, *map(_continuous_row, churn.numbers)])]
    flags = [f"{flag.column}: {flag.measure} {flag.value:.3g} (threshold {flag.threshold:g})" for flag in churn.flags]
    return "\n".join([*lines, "", *(flags or ["no flag"])])


def _category_row(item: CategoryChurn) -> tuple[str, ...]:
    gone = min(item.absent_since, default=None)
    return (
        item.column,
        _rates(item.null_rate_old, item.null_rate),
        _rates(item.unseen_rate_expected, item.unseen_rate),
        *_psi(item.stability),
        f"{item.new.count:,} ({item.new.share:.2%})",
        f"{item.vanished.count:,} ({item.vanished.share:.2%})",
        "" if gone is None else f"{item.absent_since[gone]:,} since version {gone}",
    )


def _continuous_row(item: ContinuousChurn) -> tuple[str, ...]:
    shifts = {shift.percent: f"{shift.old:.4g} > {shift.new:.4g}" for shift in item.quantiles}
    return (
        item.column,
        _rates(item.null_rate_old, item.null_rate),
        _pair(item.mean_old, item.mean),
        _pair(item.std_old, item.std),
        *_psi(item.stability),
        *(shifts.get(percent, "") for percent in (1, 50, 99)),
    )


def _rates(old: float, new: float) -> str:
    return f"{old:.2%} > {new:.2%}"


def _pair(old: float | None, new: float | None) -> str:
    return " > ".join("none" if value is None else f"{value:.4g}" for value in (old, new))


def _psi(found: Stability | None) -> tuple[str, str]:
    return ("", "") if found is None else (f"{found.psi:.4f}", f"{found.noise:.4f}")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
