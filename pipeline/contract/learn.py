"""Terms learned from history: what its files had, and how far they differ from one another.

What differs from file to file (rows, nulls, shares of classes, means, how far files reach back) is bounded by one rule,
`_ends`: what one ordinary file in some thousands passes, by how far files differ, with a prediction interval that is
wide where few files tell it, and by how few rows a file has; and at least by a slack around the extremes. A file of few
rows counts for less, and one that is far beyond the others, which may be the first Sunday, only moves the bound on its
own side until it lies within. Fewer than three files show no spread, so their slacks are wide, and of a single one what
only several files tell (rows a file, unseen values, freshness) is left open.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigabatch.features.reading.sources import FileCache
from gigabatch.features.recipes.base import RawFiles, Recipe
from gigabatch.features.refit.churn import CategoryChurn
from gigabatch.features.refit.statistics import Statistics, deviation
from gigabatch.pipeline.clock import unit_seconds
from gigabatch.pipeline.contract.calendar_parts import calendar_part
from gigabatch.pipeline.contract.check import family
from gigabatch.pipeline.contract.drift import class_shares, drift
from gigabatch.pipeline.contract.measure import Measured, measure_file
from gigabatch.pipeline.contract.terms import ColumnTerms, Contract, DriftTerms, KindTerms, column_types

SEVERAL = 3  # files, for what needs a spread between differences
MOST_CLASSES = 100
ORDINARY = 0.9998  # of files, whose value lies below an upper bound
# Of a column whose values hardly grow. Where each day brings new users, a day that is missing or in quarantine makes
# the next day's share twice as large, and a file would be refused for what happened to another: there the bound is what
# a week without files comes to. Values that are all spelt otherwise lie above it.
STABLE, MOST_UNSEEN = 0.05, 0.2
WEEK, NEARLY_ALL = 7, 0.95
HALF = 0.5  # of the usual rows, below which a file's value is no extreme
TINY = 0.1  # of the usual rows, below which no other file of that size is expected
NEAR = 0.05  # of a file's time, by which any may begin before the end of those before it
LEAST_ROWS, MOST_ROWS = math.log(1.5), math.log(2)  # by which the rows of a file may differ from those of any before
MOST_SHARE = 0.2  # by which a share may lie beyond those before it, however few files there were
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
    rows, nulls = [item.rows for item in files], [item.nulls.get(name, 0) for item in files]
    shares = [count / of for count, of in zip(nulls, rows, strict=True)]
    top = _ends(shares, 0.01 if len(files) >= SEVERAL else 0.05, MOST_SHARE, _sampled(sum(nulls), rows), rows)[1]
    given: dict[str, Any] = {"calendar": calendar, "nulls": min(_rounded(top), 1.0)}
    if name in kind.filled or (role in NEVER_NULL and not any(nulls)):
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
        most = max(values) + min(max(1.5 * max(values), _width(values)), 3 * max(values))
        levels = (max(warn, _rounded(1.25 * max(values))), max(far, _rounded(most)))
        if len(values) >= SEVERAL - 1 and levels != (warn, far):
            found[name] = levels
    return found or None


def _width(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """How far above the mean of files `ORDINARY` of the next ones lie, by how far these differ: the prediction interval
    of Student's t distribution, wide where few files tell it. weights: of files of few rows less than 1."""
    if len(values) < 2:
        return 0.0
    from scipy.special import stdtrit  # here, as SciPy takes as long to load as pandas

    weights = weights or [1.0] * len(values)
    number, middle = sum(weights), _mean(values, weights)
    squares = sum(weight * (value - middle) ** 2 for value, weight in zip(values, weights, strict=True))
    freedom = max(number, SEVERAL) - 1  # of two values it would be 3,000 times the deviation
    return float(stdtrit(freedom, ORDINARY)) * math.sqrt(squares / (number - 1) * (1 + 1 / number))


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(map(operator.mul, values, weights)) / sum(weights)


def _ends(
    values: Sequence[float], least: float, most: float, sampled: float = 0.0, rows: Sequence[int] = ()
) -> tuple[float, float]:
    """Between which the next file's value lies, if it is an ordinary one.

    values: of files. least, most: the slacks around the extremes, whatever `_width` says. sampled: how far the value
    of a file of the usual size may lie from the mean by chance alone. rows: of the files; of fewer than usual a value
    tells less. Values that do not count lie within as well, with what chance may do to another file of that size: the
    one small day of the first week comes again.
    """
    usual = statistics.median(rows) if rows else 1
    weights = [min(1.0, count / usual) for count in rows] or [1.0] * len(values)
    seen = list(zip(values, weights, strict=True))
    if len(values) > SEVERAL:  # without the farthest one, where it lies twice as far as the others would let it
        middle = _mean(values, weights)
        far = max(range(len(values)), key=lambda place: abs(values[place] - middle))
        rest = [place for place in range(len(values)) if place != far]
        others, known = [values[place] for place in rest], [weights[place] for place in rest]
        if abs(values[far] - _mean(others, known)) > 2 * max(least, sampled, _width(others, known)):
            values, weights = others, known
    middle, slack = _mean(values, weights), max(_width(values, weights), sampled)
    extremes = [value for value, weight in zip(values, weights, strict=True) if weight >= HALF]
    low, high, most = min(extremes), max(extremes), max(most, sampled)
    bottom = max(min(middle - slack, low - least), low - most)
    top = min(max(middle + slack, high + least), high + most)
    around = [(value, max(least, sampled / math.sqrt(weight) if weight > TINY else 0.0)) for value, weight in seen]
    return (
        min([bottom, *(value - reach for value, reach in around if value < low)]),
        max([top, *(value + reach for value, reach in around if value > high)]),
    )


def _sampled(count: float, rows: Sequence[int]) -> float:
    """How far above the share of `count` of all rows that of the next file of the usual size may lie by chance: three
    standard errors of it, above the upper end of the share itself (Wilson 1927, at three), which is not 0 where none
    was seen."""
    part, share = 9 / sum(rows), count / sum(rows)
    upper = (share + part / 2 + math.sqrt(part * share * (1 - share) + part**2 / 4)) / (1 + part)
    upper = min(upper, 1.0)  # where all are, rounding may leave it a little above
    return upper - share + 3 * math.sqrt(upper * (1 - upper) / statistics.median(rows))


def _rounded(value: float) -> float:
    """Four significant digits, for a person's eyes."""
    return float(f"{value:.4g}")


def _range(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Half as wide again on both sides (twice with one or two files), and not below 0 where nothing was."""
    lows, highs = zip(*ranges, strict=True)
    low, high = min(lows), max(highs)
    width = high - low or max(abs(high), 1)
    part = 1 if len(ranges) < SEVERAL else 2
    below, above = (max(width / part, min(_width(ends), 2 * width)) for ends in (lows, highs))
    # Rounded to six digits, and never to the inner side of what was seen.
    bottom, top = min(float(f"{low - below:.6g}"), low), max(float(f"{high + above:.6g}"), high)
    return 0.0 if 0 <= low < below else bottom, top


def _distinct(counts: Sequence[int]) -> int:
    if len(counts) == 1:
        return 3 * counts[0] + 10
    most = max(counts)
    return math.ceil(1.5 * most + min(_width([float(count) for count in counts]), most)) + 10


def _unseen(found: Sequence[float]) -> float | None:
    if not found:
        return None
    if max(found) <= STABLE:
        return _rounded(_ends(found, 0.0, MOST_SHARE)[1] + MOST_UNSEEN)
    week = _rounded(1 - (1 - max(found)) ** WEEK)
    return week if week <= NEARLY_ALL else None


def _rows(rows: Sequence[int]) -> tuple[int, int] | None:
    """Of logarithms, so that half a day is as far from a day as two days are."""
    if len(rows) < 2:
        return None
    low, high = _ends([math.log(count) for count in rows], LEAST_ROWS, MOST_ROWS)
    return math.floor(math.exp(low)), math.ceil(math.exp(high))


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
    return None if max(reached) > 0.5 * typical else max(_ends(reached, NEAR * typical, typical)[1], 1.5 * max(reached))


def _label(kind: RawFiles, name: str, files: Sequence[Measured]) -> dict[str, Any]:
    if kind.tasks.get(name) == "regression":
        states = [item.statistics.numbers[name] for item in files if item.statistics.numbers[name].moments.count]
        if not states:
            return {}
        means = [state.moments.scale().mean for state in states]
        counts = [int(state.moments.count) for state in states]
        sigma = statistics.median(deviation(state) or 0.0 for state in states)
        least, sampled = (
            (0.05 if len(means) >= SEVERAL else 0.5) * sigma,
            4 * sigma / math.sqrt(statistics.median(counts)),
        )
        return {"mean": _ends(means, least, 2 * sigma, sampled, counts)}
    labelled = [(item.rows - item.nulls[name], item.statistics.categories[name]) for item in files]
    found = [(rows, class_shares(state)) for rows, state in labelled if rows]
    classes = sorted({label for _, shares in found for label in shares})
    if not classes or len(classes) > MOST_CLASSES:
        return {}
    rows, bounds = [count for count, _ in found], {}
    for label in classes:
        shares = [item.get(label, 0.0) for _, item in found]
        count = sum(map(operator.mul, shares, rows))
        share = count / sum(rows)
        least = min(RARE, share) if len(found) >= SEVERAL else 0.1
        low, high = _ends(shares, least, max(least, min(MOST_SHARE, share / 2)), _sampled(count, rows), rows)
        bounds[label] = (max(_rounded(low), 0.0), min(_rounded(high), 1.0))
    return {"shares": bounds}
