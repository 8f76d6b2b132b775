"""Fit statistics: what a table's columns were like, in one pass, the same for any partitioning.

They are kept beside the preprocessor, so that new data can be compared with the data of the fit and added to it
without reading that again (`gigabatch.features.refit.churn`, `gigabatch.features.refit.update`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any

import numpy as np

from gigabatch.features.columns.categories import same_kind
from gigabatch.features.columns.numbers import naming
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.bin_edges import bin_edges, edge_ranks
from gigabatch.features.exact.column_statistics import ColumnStatistics, Moments, Ranked, RobustScale, Scale
from gigabatch.features.exact.quantiles import Counts, RadixHistogram, Search, interpolated, linear_place, middle_ranks
from gigabatch.features.exact.sums import ExactSum
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.missing.fill_missing import Fill, Filling, FillMissing
from gigabatch.features.operators.rank_search import NextPass, RankingOperator
from gigabatch.features.schema import Schema
from gigabatch.features.vocabulary.vocabulary import Vocabulary

ROWS = ("rows", "")  # the key of the number of rows among the states of columns
SLACK = 1 + 2.0**-40  # times a bound, which a few operations may have rounded down


@dataclass(frozen=True)
class CategoryStatistics:
    """A categorical column. counts: a frame of every distinct value that was seen, with columns

    value (the column's type), count (int64 rows) and last_version (int32, the version whose data last held it), by
    descending count, ties by ascending value. No value is left out: those that `min_count` keeps from a vocabulary
    are counted too, so they may enter it with a later version. A count of 0 is that of a value which earlier data held
    and the table of a growth does not.
    """

    rows: int
    nulls: int
    counts: Any

    @classmethod
    def of(cls, column: Any) -> CategoryStatistics:
        """What counts as null and as the same value: see `gigabatch.features.columns.categories`."""
        name = str(column.name)
        return cls.of_counts(len(column), Categorify(name).partial(column.to_frame(name)))

    @classmethod
    def of_counts(cls, rows: int, counted: Any, version: int = 1) -> CategoryStatistics:
        """Of so many rows with these columns value and count, which `Categorify` finds before its cuts."""
        counts = engine_of(counted).sort_counts(counted[["value", "count"]])
        return cls(rows, rows - int(counts["count"].sum()), _stamped(counts, version))

    @classmethod
    def beside(cls, vocabulary: Vocabulary, rows: int, counted: Any) -> CategoryStatistics:
        """`of_counts`, given the vocabulary that was made of the same counts; where no value was cut, its order is
        the one that is wanted, and nothing is sorted."""
        if len(vocabulary.values) < len(counted):
            return cls.of_counts(rows, counted)
        frame = engine_of(vocabulary.values).frames.DataFrame({"value": vocabulary.values, "count": vocabulary.counts})
        return cls(rows, rows - int(vocabulary.counts.sum()), _stamped(frame, 1))

    def merge(self, other: CategoryStatistics) -> CategoryStatistics:
        """Of both, each value with the later of its versions."""
        values = same_kind(self.counts["value"], other.counts["value"], "statistics")
        sides = [side.counts.assign(value=value) for side, value in zip((self, other), values, strict=True)]
        both = engine_of(self.counts).frames.concat(sides, ignore_index=True)
        counts = both.groupby("value").agg({"count": "sum", "last_version": "max"}).reset_index()
        counts = counts.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)
        return CategoryStatistics(self.rows + other.rows, self.nulls + other.nulls, counts)

    def at_version(self, version: int) -> CategoryStatistics:
        """The same rows as the data of that version."""
        return replace(self, counts=_stamped(self.counts, version))

    def grown(self, old: CategoryStatistics, vocabulary: Vocabulary, version: int) -> CategoryStatistics:
        """The same rows as the data of that version, and beside them, counted 0 times, the values of the vocabulary
        that only `old` knows, with the version that last held them."""
        engine, counts = engine_of(self.counts), _stamped(self.counts, version)
        gone = old.unseen(self.vocabulary)
        kept = vocabulary.positions(gone["value"]) >= 0
        gone = gone[engine.series(kept, gone)].sort_values("value").reset_index(drop=True)
        if len(gone):
            gone = gone.assign(count=engine.arrays.zeros(len(gone), dtype="int64"))
            values = same_kind(counts["value"], gone["value"], "statistics")
            sides = [side.assign(value=value) for side, value in zip((counts, gone), values, strict=True)]
            counts = engine.frames.concat(sides, ignore_index=True)
        return replace(self, counts=counts)

    def equals(self, other: CategoryStatistics) -> bool:
        """Whether both are of as many rows with as many of each value; whatever the versions."""
        if (self.rows, self.nulls) != (other.rows, other.nulls):
            return False
        mine, others = (state.counts[state.counts["count"] > 0].reset_index(drop=True) for state in (self, other))
        if len(mine) != len(others) or not bool((mine["count"] == others["count"]).all()):
            return False
        values = same_kind(mine["value"], others["value"], "statistics")
        return bool((values[0] == values[1]).all())

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Of all values that were seen; kept, because its look-up table takes a while to make."""
        return Vocabulary(self.counts["value"], self.counts["count"])

    def unseen(self, vocabulary: Vocabulary) -> Any:
        """The rows of `counts` whose value the vocabulary does not hold, in the same order."""
        unknown = vocabulary.positions(self.counts["value"]) < 0
        return self.counts[engine_of(self.counts).series(unknown, self.counts)].reset_index(drop=True)


@dataclass(frozen=True)
class Quantile:
    """The true quantile lies within value - bound and value + bound."""

    value: float
    bound: float


def quantile(state: ColumnStatistics, percent: int) -> Quantile:
    """The smallest known value with at least `percent` % of the known values at or below it (Hyndman and Fan 1996,
    definition 1), from the histogram.

    Values of up to 8 significant bits, such as whole numbers below 256, come out exactly, though the bound does not
    know it: less than 2^-7 of the value. A column without a known value is a `DataError`.
    """
    _require_known(state)
    (low,), (high,) = state.histogram.bounds([max(-(-percent * state.moments.count // 100), 1) - 1])
    return Quantile(float(_nearer(low, high)), float(high - low) * SLACK)


def median(state: ColumnStatistics) -> Quantile:
    """As `FillMissing` defines it, the mean of the two middle values where their number is even.

    It is exact where all values have up to 8 significant bits, such as whole numbers below 256: the sum of squares
    tells, which is larger for any others in the same bins. Else it is the number nearest to the mean that the bins
    allow, off by at most the standard deviation of the known values, and by less than 2^-7 of the median.
    """
    _require_known(state)
    low, high = state.histogram.edges()
    near = _nearer(low, high)
    ends = state.histogram.bounds(middle_ranks(state.moments.count))
    if state.moments.squares == ExactSum.of(near * near * state.histogram.counts):
        return Quantile(float(_nearer(*ends).mean()), 0.0)
    first, last = (float(side.mean()) for side in ends)
    value, spread = min(max(state.moments.scale().mean, first), last), deviation(state)
    assert spread is not None
    if not spread:
        return Quantile(value, 0.0)
    # |mean - median| <= E|x - median| <= E|x - mean| <= deviation; and the mean was rounded.
    return Quantile(value, min(max(last - value, value - first), spread) * SLACK + abs(value) * 2.0**-50)


def deviation(state: ColumnStatistics) -> float | None:
    """Population standard deviation of the known values, the exact variance rounded once; 0 for a constant."""
    count = state.moments.count
    if count == 0:
        return None
    units = count * (state.moments.squares.units << 1074) - state.moments.total.units**2
    return math.sqrt(units / (count**2 << 2148))


def _nearer(low: Any, high: Any) -> Any:
    """The ends of bins that are nearer to 0: all bits beyond the leading ones are clear, the likeliest numbers."""
    return np.where(low >= 0, low, high)


def _require_known(state: ColumnStatistics) -> None:
    if not state.moments.count:
        raise DataError("statistics: a column without a known value has no quantile.")


@dataclass(frozen=True)
class Statistics:
    """Of all columns of a table that feed the model, by name. rows: of the table. lists: of list columns, whose rows
    are their known elements; owners: by the name of a list the column whose vocabulary it takes."""

    rows: int
    categories: dict[str, CategoryStatistics]
    numbers: dict[str, ColumnStatistics]
    lists: dict[str, CategoryStatistics] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        categories: dict[str, CategoryStatistics],
        numbers: dict[str, ColumnStatistics],
        lists: Mapping[str, CategoryStatistics] = MappingProxyType({}),
        owners: Mapping[str, str] = MappingProxyType({}),
        table_rows: int | None = None,
    ) -> Statistics:
        """From the columns' statistics, all of the same rows. table_rows: of the table, for one that has lists alone,
        which know of their elements only."""
        rows = {state.rows for state in categories.values()} | {state.rows for state in numbers.values()}
        if not rows and lists and table_rows is not None:
            rows = {table_rows}
        if len(rows) != 1:
            raise DataError(f"statistics: the columns are of {sorted(rows) or 'no'} rows, not of one table.")
        return cls(rows.pop(), categories, numbers, dict(lists), dict(owners))

    @classmethod
    def from_states(cls, states: Mapping[Any, Any], owners: Mapping[str, str] = MappingProxyType({})) -> Statistics:
        """From what `fit_together` makes of `statistics_operators`, and of list columns."""
        kinds: dict[str, dict[str, Any]] = {
            "category statistics": {},
            "continuous statistics": {},
            "list statistics": {},
        }
        for (kind, name), state in states.items():
            if kind in kinds:
                kinds[kind][name] = state
        return cls.of(
            kinds["category statistics"],
            kinds["continuous statistics"],
            kinds["list statistics"],
            owners,
            states.get(ROWS),
        )

    def of_values(self, owner: str) -> CategoryStatistics:
        """Of all values that the vocabulary of the column `owner` is made of: its own, and those of the lists that
        share it."""
        own = [self.categories[owner]] if owner in self.categories else []
        own += [self.lists[name] for name, column in self.owners.items() if column == owner]
        return reduce(CategoryStatistics.merge, own)

    @classmethod
    def none_of(cls, vocabularies: Mapping[str, Vocabulary], numbers: Iterable[str]) -> Statistics:
        """Of no rows: what is known of the data that a given state was fitted on elsewhere. numbers: the continuous
        columns."""
        nothing = ColumnStatistics(0, RadixHistogram.empty(), Moments(0, ExactSum(0), ExactSum(0)))
        return cls(
            0,
            {name: CategoryStatistics(0, 0, _stamped(_no_counts(item), 1)) for name, item in vocabularies.items()},
            dict.fromkeys(numbers, nothing),
        )

    def equals(self, other: Statistics) -> bool:
        """Whether both are of as many rows, and each column of the same values as often; whatever the versions."""
        return (
            self.rows == other.rows
            and self.numbers == other.numbers
            and all(state.equals(other.categories[name]) for name, state in self.categories.items())
            and all(state.equals(other.lists[name]) for name, state in self.lists.items())
        )

    def merge(self, other: Statistics) -> Statistics:
        """Of both tables one after the other; they must have the same columns."""
        mine, others = ({*table.categories, *table.numbers, *table.lists} for table in (self, other))
        if mine != others or set(self.categories) != set(other.categories) or self.owners != other.owners:
            raise DataError(f"statistics: the tables differ in columns {sorted(mine ^ others)} or in their roles.")
        return Statistics(
            self.rows + other.rows,
            {name: state.merge(other.categories[name]) for name, state in self.categories.items()},
            {name: state.merge(other.numbers[name]) for name, state in self.numbers.items()},
            {name: state.merge(other.lists[name]) for name, state in self.lists.items()},
            self.owners,
        )

    def at_version(self, version: int) -> Statistics:
        """The same rows as the data of that version."""
        categories, lists = (
            {name: state.at_version(version) for name, state in states.items()}
            for states in (self.categories, self.lists)
        )
        return replace(self, categories=categories, lists=lists)


class FitStatistics(FittedOperator):
    """What the operators below share. They add no column."""

    is_step = False
    reads = ("column",)

    def __init__(self, column: str) -> None:
        self.column = column

    def columns(self, frame: Any, state: Any) -> dict[str, Any]:
        return {}


class FitRows(FitStatistics):
    """The number of a table's rows, of any of its columns."""

    def partial(self, frame: Any) -> int:
        return len(frame)

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finish(self, partial: int) -> int:
        return partial


class FitCategoryStatistics(FitStatistics):
    """Fits `CategoryStatistics`, of version 1."""

    def partial(self, frame: Any) -> tuple[int, Any]:
        """The partition's rows, and columns value and count."""
        return len(frame), Categorify(self.column).partial(frame)

    def merge(self, left: tuple[int, Any], right: tuple[int, Any]) -> tuple[int, Any]:
        return left[0] + right[0], Categorify(self.column).merge(left[1], right[1])

    def finish(self, partial: tuple[int, Any]) -> CategoryStatistics:
        return CategoryStatistics.of_counts(*partial)


@dataclass(frozen=True)
class FittedCategory:
    """A categorical column's vocabulary and the statistics of all of its values."""

    vocabulary: Vocabulary
    statistics: CategoryStatistics


class FitCategory(FitCategoryStatistics):
    """What the preprocessor fits on a categorical column, whose values are counted once; operator: its `Categorify`."""

    def __init__(self, operator: Categorify) -> None:
        self.column, self.operator = str(operator.column), operator

    def finish(self, partial: tuple[int, Any]) -> FittedCategory:  # type: ignore[override]
        vocabulary = self.operator.finish(partial[1])
        assert isinstance(vocabulary, Vocabulary)  # one column, not a combination
        return FittedCategory(vocabulary, CategoryStatistics.beside(vocabulary, *partial))


class FitContinuousStatistics(FitStatistics):
    """Fits `ColumnStatistics` of a float32 column."""

    def partial(self, frame: Any) -> ColumnStatistics:
        return naming(self.column, engine_of(frame).column_statistics, frame[self.column])

    def together(self, frame: Any) -> tuple[Any, Any]:
        return engine_of(frame).statistics_together, frame[self.column]

    def merge(self, left: ColumnStatistics, right: ColumnStatistics) -> ColumnStatistics:
        return left.merge(right)

    def finish(self, partial: ColumnStatistics) -> ColumnStatistics:
        return partial


@dataclass(frozen=True)
class FilledScale:
    """A continuous column's state. scale: None where the column is only filled. edges: of its bins, unscaled."""

    fill: Fill
    scale: Scale | None
    statistics: ColumnStatistics
    edges: tuple[float, ...] = ()


class FillAndScale(FitContinuousStatistics, RankingOperator):
    """What the preprocessor fits on a float32 column: the state that `FillMissing(column, indicator)` and, with
    `scale`, a `Normalize` after it would have, without reading the filled column again, or with `robust` the
    `RobustScale` of the known values; and the edges of `bins`, or of each value of at most `distinct`."""

    def __init__(
        self, column: str, indicator: str = "auto", scale: bool | str = True, bins: int = 0, distinct: int = 0
    ) -> None:
        self.column, self.indicator, self.scale, self.bins, self.distinct = column, indicator, scale, bins, distinct

    @property
    def _filling(self) -> FillMissing:
        return FillMissing(self.column, self.indicator)

    def following(self, partial: ColumnStatistics) -> FittedOperator | None:
        if not partial.moments.count:
            return None
        ranks = [*self._ranks(partial), *edge_ranks(partial.histogram, self.bins, self.distinct)]
        return EdgesPass(self, partial, Search.start(partial.histogram, ranks))

    def _ranks(self, found: ColumnStatistics) -> list[int]:
        """Of the two middle values; for a robust scale also of the two about each quartile, and of both ends."""
        count = found.moments.count
        ranks = [*middle_ranks(count)]
        if self.scale == "robust":
            ranks += [*linear_place(0.25, count)[:2], *linear_place(0.75, count)[:2], 0, count - 1]
        return ranks

    def finish(self, partial: ColumnStatistics) -> FilledScale:  # type: ignore[override]
        return self.state_of(partial, None)

    def count(self, frame: Any, search: Search) -> Counts:
        """Of the next pass: `search.count` of the partition's values."""
        return engine_of(frame).column_count(frame[self.column], search)

    def count_together(self, frame: Any, search: Search) -> tuple[Any, Any]:
        return engine_of(frame).counts_together, (frame[self.column], search)

    def state_of(
        self, found: ColumnStatistics, search: Search | None, looked_into: Counts | None = None
    ) -> FilledScale:
        """search: for the values at `_ranks` and those of the edges, resolved; None where there is no value (an error,
        by FillMissing). looked_into: what the last pass counted."""
        filling = Filling(found.rows, found.moments.count, Ranked(found.histogram, None))
        if search is None:
            return FilledScale(self._filling.finish(filling), None, found)
        values = search.values()
        fill = self._filling.median_fill(filling, *values[:2].tolist())
        ranks, first = edge_ranks(found.histogram, self.bins, self.distinct), len(self._ranks(found))
        edges = bin_edges(ranks, values[first:], self.bins, looked_into, self.distinct)
        scale = found.filled_scale(fill.value) if self.scale else None
        if self.scale == "robust":
            low, low_next, high, high_next, lowest, highest = values[2:first].tolist()
            quartiles = (
                interpolated(low, low_next, linear_place(0.25, found.moments.count)[2]),
                interpolated(high, high_next, linear_place(0.75, found.moments.count)[2]),
            )
            scale = RobustScale.of_quantiles(fill.value, quartiles, (lowest, highest))
        return FilledScale(fill, scale, found, edges)


class EdgesPass(NextPass):
    """The next pass of `FillAndScale`, which is told what the last one counted."""

    operator: FillAndScale

    def finish(self, partial: Counts) -> FilledScale:
        return self.operator.state_of(self.first, self.narrowed(partial), partial)


def statistics_operators(schema: Schema) -> dict[tuple[str, str], FittedOperator]:
    """For `fit_together`, alone or beside others and those of list columns."""
    return {
        **rows_operator(schema),
        **{("category statistics", name): FitCategoryStatistics(name) for name in schema.names("categorical")},
        **{("continuous statistics", name): FitContinuousStatistics(name) for name in schema.names("continuous")},
    }


def rows_operator(schema: Schema) -> dict[tuple[str, str], FittedOperator]:
    """For `fit_together`, where no column but lists, whose statistics are of elements, tells of how many rows it is."""
    if schema.names("categorical", "continuous") or not schema.lists:
        return {}
    return {ROWS: FitRows(schema.lists[0].name)}


def _no_counts(vocabulary: Vocabulary) -> Any:
    """Columns value and count without a row, of the vocabulary's type."""
    engine = engine_of(vocabulary.values)
    counts = engine.frames.Series(engine.arrays.zeros(0, dtype="int64"))
    return engine.frames.DataFrame({"value": vocabulary.values.head(0), "count": counts})


def _stamped(counts: Any, version: int) -> Any:
    return counts.assign(last_version=engine_of(counts).arrays.full(len(counts), version, dtype="int32"))
