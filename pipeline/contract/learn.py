"""Terms learned from history: what its files had, and how far they differ from one another.

With k files a bound is the extreme that was seen and a slack: three standard deviations between files, more where few
files have shown them, four of the sampling of so many rows, and a least one; of nulls at least what all rows together
leave possible for a file (`_sampled`). Fewer than three files show no spread, so their slacks are wide, and of a single
one what only several files tell (rows a file, unseen values, freshness) is left open.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigabatch.features.reading.sources import FileCache
from gigabatch.features.recipes.base import RawFiles, Recipe
from gigabatch.features.refit.churn import CategoryChurn, deviation
from gigabatch.features.refit.statistics import Statistics
from gigabatch.pipeline.contract.calendar_parts import calendar_part
from gigabatch.pipeline.contract.check import family
from gigabatch.pipeline.contract.clock import unit_seconds
from gigabatch.pipeline.contract.drift import class_shares, drift
from gigabatch.pipeline.contract.measure import Measured, measure_file
from gigabatch.pipeline.contract.terms import ColumnTerms, Contract, DriftTerms, KindTerms, column_types

SEVERAL = 3  # files, for what needs a spread between differences
MOST_CLASSES = 100
ONE_IN_100 = 0.99
# Of a column whose values hardly grow. Where each day brings new users, a day that is missing or in quarantine makes
# the next day's share twice as large, and a file would be refused for what happened to another: there the bound is what
# a week without files comes to. Values that are all spelt otherwise lie above it.
STABLE, MOST_UNSEEN = 0.05, 0.2
WEEK, NEARLY_ALL = 7, 0.95
RARE = 0.02  # by which a class's share may move in any case, or by its whole share where that is less
NEVER_NULL = ("time", "weight", "group", "key", "label")
LATE = 1.5  # of the longest time between two files
HALF_DAY = 43_200.0


@dataclass(frozen=True)
class History:
    """One kind's files in order of time, or of name where there is none, and the statistics of all of their rows."""

    kind: RawFiles
    files: dict[str, Measured]
    statistics: Statistics


def read_history(
    recipe: Recipe, engine: str, cache: FileCache | None = None, time_unit: str = "auto"
) -> dict[str, History]:
    """Measure all files that a recipe reads, but those of `leave_out`; by kind.

    Raises
    ------
    DataError
        A file cannot be read; all must be, to be learned from.
    """
    found = {}
    for kind in recipe.raw_files():
        files = {
            path: measure_file(kind, engine, path, cache, time_unit=time_unit) for path in recipe.files(kind.pattern)
        }
        name = str(kind.time)
        ordered = sorted(files.items(), key=lambda item: (item[1].ranges.get(name, (0, 0))[1], item[0]))
        whole = ordered[0][1].statistics
        for _, measured in ordered[1:]:
            whole = whole.merge(measured.statistics)
        found[kind.name] = History(kind, dict(ordered), whole)
    return found


def learn(
    recipe: str, histories: Sequence[History], max_future_seconds: float = 86_400.0, now: float | None = None
) -> Contract:
    """The contract of a history.

    Parameters
    ----------
    recipe
        Name of the recipe.
    histories
        Of all kinds of its files.
    max_future_seconds
        What clocks may differ by.
    now
        Seconds since 1970; the clock's where it is None.

    Returns
    -------
    Contract
        All files of the history keep it.
    """
    moment = time.time() if now is None else now
    files = {item.kind.name: _kind(item, moment) for item in histories}
    return Contract(recipe, files, max_future_seconds=max_future_seconds)


def _kind(history: History, now: float) -> KindTerms:
    kind, files = history.kind, list(history.files.values())
    unseen, measures = _between(kind, files)
    columns = {name: _column(kind, name, types, files, unseen, measures) for name, types in column_types(kind).items()}
    spans = [item.ranges[kind.time] for item in files if kind.time in item.ranges] if kind.time else []
    unit = files[0].unit
    known = [name for item in files for name in item.columns or ()]
    headless = any(item.columns is None for item in files)
    return KindTerms(
        columns,
        None if headless else tuple(dict.fromkeys(name for name in known if name not in kind.dtypes)),
        None if kind.fixed else _rows([item.rows for item in files]),
        unit,
        files[0].calendar if len({item.calendar for item in files}) == 1 else None,
        _freshness(spans, unit, now),
        None if kind.fixed else _overlap(spans),
        True if all(item.ends for item in files) else None,
        tuple(sorted({offset for item in files for offset in item.offsets or ()})) or None,
    )


def _column(
    kind: RawFiles,
    name: str,
    types: tuple[str, str],
    files: Sequence[Measured],
    unseen: dict[str, list[float]],
    measures: Mapping[str, Any],
) -> ColumnTerms:
    dtype, role = types
    calendar = calendar_part(kind, name, files)
    nulls = [item.nulls.get(name, 0) / item.rows for item in files]
    sampled = _sampled(sum(item.nulls.get(name, 0) for item in files), [item.rows for item in files])
    given: dict[str, Any] = {"calendar": calendar, "nulls": _most(nulls, sampled)}
    if name in kind.filled or (role in NEVER_NULL and max(nulls) == 0):
        given["nulls"] = 0.0
    stored = {item.columns[name] for item in files if item.columns and item.columns.get(name)}
    if stored and len({family(str(found)) for found in stored}) == 1:
        given["stored"] = sorted(map(str, stored))[0]
    ranges = [item.ranges[name] for item in files if name in item.ranges]
    if role in ("number", "weight", "label") and ranges and calendar is None:
        given["range"] = _range(ranges)
    if role in ("category", "list") and not kind.fixed and calendar is None:
        given["distinct"] = _distinct([item.distinct[name] for item in files])
        given["unseen"] = _unseen(unseen.get(name, []))
    if role == "label":
        given |= _label(kind, name, files)
    moved = measures.get(name, {})
    given["drift"] = _drift(moved if calendar is None else {key: moved[key] for key in moved if key == "nulls"})
    return ColumnTerms(dtype, role, **given)


def _between(kind: RawFiles, files: Sequence[Measured]) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """By column, of each file but the first against all before it: the shares of rows with unseen values, and all
    measures of drift, by name."""
    unseen: dict[str, list[float]] = {}
    measures: dict[str, Any] = {}
    before, labels = files[0].statistics, [name for name, role in kind.roles.items() if role == "label"]
    for item in files[1:]:
        found = drift(before, item.statistics, labels=labels)
        for column in found.columns:
            if isinstance(column, CategoryChurn):
                unseen.setdefault(column.column, []).append(column.unseen_rate)
        for measure in found.measures:
            measures.setdefault(measure.column, {}).setdefault(measure.measure, []).append(measure.value)
        before = before.merge(item.statistics)
    return unseen, measures


def _drift(measures: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]] | None:
    """Levels of a column that has moved by more than the usual ones in history, as users do where many are new."""
    usual, found = DriftTerms(), {}
    for name, values in measures.items():
        warn, far = getattr(usual, name)
        most = max(2.5 * max(values), max(values) + 3 * _spread(values))
        levels = (max(warn, _rounded(1.25 * max(values))), max(far, _rounded(most)))
        if len(values) >= SEVERAL - 1 and levels != (warn, far):
            found[name] = levels
    return found or None


def _spread(values: Sequence[float]) -> float:
    """The standard deviation, larger for few values, which tell little of it: as much as the value that one in a
    hundred passes lies farther off then (prediction interval of Student's t distribution)."""
    if len(values) < 2:
        return 0.0
    from scipy.special import ndtri, stdtrit  # here, as SciPy takes as long to load as pandas

    files = max(len(values), SEVERAL)  # of two values it would be 17 times the deviation
    farther = float(stdtrit(files - 1, ONE_IN_100) / ndtri(ONE_IN_100))
    return statistics.stdev(values) * farther * math.sqrt(1 + 1 / files)


def _sampled(count: int, rows: Sequence[int]) -> float:
    """How large the share of `count` of all rows may come out in the next file of the usual size: three standard errors
    above the upper end of the share itself (Wilson 1927, at three), which is not 0 where none was seen."""
    part, share = 9 / sum(rows), count / sum(rows)
    upper = (share + part / 2 + math.sqrt(part * share * (1 - share) + part**2 / 4)) / (1 + part)
    upper = min(upper, 1.0)  # where all are null, rounding may leave it a little above
    return upper + 3 * math.sqrt(upper * (1 - upper) / statistics.median(rows))


def _rounded(value: float) -> float:
    """Four significant digits, for a person's eyes."""
    return float(f"{value:.4g}")


def _most(shares: Sequence[float], sampled: float) -> float:
    """Upper bound of a share. sampled: as of `_sampled`."""
    most, least = max(shares), 0.01 if len(shares) >= SEVERAL else 0.05
    return min(_rounded(max(most + max(3 * _spread(shares), least), sampled)), 1.0)


def _range(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Half as wide again on both sides (twice with one or two files), and not below 0 where nothing was."""
    lows, highs = zip(*ranges, strict=True)
    low, high = min(lows), max(highs)
    width = high - low or max(abs(high), 1)
    part = 1 if len(ranges) < SEVERAL else 2
    below, above = (max(width / part, 3 * _spread(ends)) for ends in (lows, highs))
    # Rounded to six digits, and never to the inner side of what was seen.
    bottom, top = min(float(f"{low - below:.6g}"), low), max(float(f"{high + above:.6g}"), high)
    return 0.0 if 0 <= low < below else bottom, top


def _distinct(counts: Sequence[int]) -> int:
    if len(counts) == 1:
        return 3 * counts[0] + 10
    return math.ceil(1.5 * max(counts) + 3 * _spread([float(count) for count in counts])) + 10


def _unseen(found: Sequence[float]) -> float | None:
    if not found:
        return None
    if max(found) <= STABLE:
        return _rounded(max(found) + 3 * _spread(found) + MOST_UNSEEN)
    week = _rounded(1 - (1 - max(found)) ** WEEK)
    return week if week <= NEARLY_ALL else None


def _rows(rows: Sequence[int]) -> tuple[int, int] | None:
    """From the spread of logarithms, so that half a day is as far from a day as two days are."""
    if len(rows) < 2:
        return None
    spread = _spread([math.log(count) for count in rows])
    low, high = (math.exp(max(spread, math.log(least))) for least in (1.3, 1.5))
    return math.floor(min(rows) / low), math.ceil(max(rows) * high)


def _freshness(spans: Sequence[tuple[float, float]], unit: str | None, now: float) -> float | None:
    """None where the newest row is older already: of an archive that nothing comes to each night would warn."""
    lasts = sorted(last for _, last in spans)
    if unit is None or len(lasts) < SEVERAL:
        return None
    longest = max(later - earlier for earlier, later in itertools.pairwise(lasts))
    bound = float(math.ceil(LATE * longest * unit_seconds(unit) + HALF_DAY))
    return bound if now - lasts[-1] * unit_seconds(unit) <= bound else None


def _overlap(spans: Sequence[tuple[float, float]]) -> float | None:
    """How far a file reached back behind those before it; None where most of a file does, as in shards of users."""
    if not spans:
        return None
    reached, last = [0.0], spans[0][1]
    for first, end in spans[1:]:
        reached.append(max(last - first, 0))
        last = max(last, end)
    typical = statistics.median(end - first for first, end in spans)
    return None if max(reached) > 0.5 * typical else 1.5 * max(reached)


def _label(kind: RawFiles, name: str, files: Sequence[Measured]) -> dict[str, Any]:
    if kind.tasks.get(name) == "regression":
        states = [item.statistics.numbers[name] for item in files if item.statistics.numbers[name].moments.count]
        if not states:
            return {}
        means = [state.moments.scale().mean for state in states]
        sigma = max(deviation(state) or 0.0 for state in states)
        count = min(state.moments.count for state in states)
        slack = max(3 * _spread(means), 4 * sigma / math.sqrt(count), (0.05 if len(means) >= SEVERAL else 0.5) * sigma)
        return {"mean": (min(means) - slack, max(means) + slack)}
    found = [class_shares(state) for item in files if (state := item.statistics.categories[name]).rows > state.nulls]
    classes = sorted({label for shares in found for label in shares})
    if not classes or len(classes) > MOST_CLASSES:
        return {}
    rows = min(item.rows - item.nulls[name] for item in files if item.rows > item.nulls[name])
    bounds = {}
    for label in classes:
        shares = [item.get(label, 0.0) for item in found]
        middle = statistics.fmean(shares)
        least = min(RARE, middle) if len(found) >= SEVERAL else 0.1
        slack = max(3 * _spread(shares), 4 * math.sqrt(middle * (1 - middle) / rows), least)
        bounds[label] = (max(_rounded(min(shares) - slack), 0.0), min(_rounded(max(shares) + slack), 1.0))
    return {"shares": bounds}
