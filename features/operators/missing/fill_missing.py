"""FillMissing: the median, mean, mode or a constant in place of nulls, and a column that says where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import known_values, naming, ranked_values, require_finite, require_numbers
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import as_float32, rankable
from gigabatch.features.exact.quantiles import RadixHistogram, Search, middle_ranks
from gigabatch.features.exact.sums import UNIT_EXPONENT, ExactSum
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.rank_search import NextPass, RankingOperator, require_method
from gigabatch.features.schema import indicator_name
from gigabatch.features.setting_checks import INDICATORS

STRATEGIES = ("median", "mean", "mode", "constant")
MOST_DISTINCT = 1 << 20  # that a mode is found among: 16 MB
# Nulls that are fewer than both, in number and in the share of rows, teach nothing but those rows' own labels.
FEW_NULLS, FEW_OF_ROWS = 10, 1_000


@dataclass(frozen=True)
class Fill:
    """value: what stands in for null. indicator: whether the `_na` column exists. null_rate: at fit.

    error: how far the fit's exact median can be from `value`; 0 where the value is exact. silent: whether the `_na`
    column stays 0, because the fit saw no null, or too few (`few_nulls`) to learn from them what a 1 means.
    """

    value: float
    indicator: bool
    null_rate: float
    error: float = 0.0
    silent: bool = False

    def flags(self, null: Any) -> Any:
        """Of a bool column or array of nulls, those that the indicator tells."""
        return null & (not self.silent)


@dataclass(frozen=True, eq=False)
class Filling:
    """What partitions contribute. summary: of the known values, as the strategy asks; all of them can `merge`."""

    rows: int
    known: int
    summary: Any


def few_nulls(nulls: int, rows: int) -> bool:
    """Whether an `auto` indicator stays 0: there are fewer than 10 nulls, and at most one in 1,000 rows.

    A model learns the flag of two such rows in 100,000 by heart, and tells every later null what these two were.
    """
    return nulls < FEW_NULLS and nulls * FEW_OF_ROWS <= rows


class FillMissing(RankingOperator):
    """Replace the nulls of a column by one number that the fit finds, and say where.

    NaN counts as null. Any column of numbers or booleans will do; integers above 2^53 are ranked as the nearest
    float64. Which columns there are follows from the settings alone, whatever nulls the train split of one night holds.

    Parameters
    ----------
    column
        Numbers or booleans. It is replaced by a float32 column without nulls.
    indicator
        `all` adds the float32 column `<column>_na`, 1 where filled, else 0. So does `auto`, the default, but it stays 0
        if there were fewer than 10 nulls at fit and at most one in 1,000 rows, or none: a model that has hardly seen a
        1, or never, is not given one. `none` adds no column.
    strategy
        `median` or `mean`, both exact and rounded once, to float64; `mode`, the most frequent value, the smallest of
        equally frequent ones, for up to 1,048,576 distinct values; `constant`, the given `value`.
    value
        What fills the nulls with strategy `constant`; a finite float32.
    method
        `exact`, or `sketch`, which settles for a median from counts by leading bits, after one pass however many rows
        there are. It is within 2^-8 of the larger of the two middle values (2^-7 where it is given as 0); the state's
        `error` says how near it is.

    Raises
    ------
    DataError
        Settings that do not go together; a column without any known value, unless it is filled with a constant; an
        infinity; a column that is no number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import FillMissing
    >>> frame = pd.DataFrame({"price": [1.0, None, 4.0]})
    >>> operator = FillMissing("price")
    >>> operator.apply(frame, operator.fit([frame]))
       price  price_na
    0    1.0       0.0
    1    2.5       1.0
    2    4.0       0.0
    """

    reads, writes = ("column",), ("column",)

    def __init__(
        self,
        column: str,
        indicator: str = "auto",
        strategy: str = "median",
        value: float | None = None,
        method: str = "exact",
    ) -> None:
        if indicator not in INDICATORS:
            raise DataError(f"FillMissing: unknown indicator {indicator!r}. Known: {', '.join(INDICATORS)}.")
        if strategy not in STRATEGIES:
            raise DataError(f"FillMissing: unknown strategy {strategy!r}. Known: {', '.join(STRATEGIES)}.")
        require_method(method, "FillMissing")
        if method == "sketch" and strategy != "median":
            raise DataError(f"FillMissing of {column!r}: method sketch is for the median; {strategy} is always exact.")
        if (value is None) == (strategy == "constant"):
            raise DataError(
                f"FillMissing of {column!r}: strategy {strategy} takes {'a' if value is None else 'no'} value, "
                f"found {value!r}."
            )
        if isinstance(value, str):
            raise DataError(
                f"FillMissing of {column!r}: value is {value!r}, and only numbers are filled. Leave the step out of a "
                "category of text, whose null has an id of its own (Categorify)."
            )
        if value is not None and not math.isfinite(as_float32(value)):
            raise DataError(f"FillMissing of {column!r}: value {value!r} is not a finite float32.")
        self.column, self.indicator, self.strategy = column, indicator, strategy
        self.value, self.method = value, method

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.column,) if self.indicator == "none" else (self.column, indicator_name(self.column))

    def outputs_of(self, state: Fill) -> tuple[str, ...]:
        return self.outputs if state.indicator else (self.column,)

    def partial(self, frame: Frame) -> Filling:
        rows = len(frame)
        if self.strategy == "median":
            ranked = ranked_values(frame[self.column], keep=self.method == "exact")
            return Filling(rows, ranked.histogram.total, ranked)
        if self.strategy == "constant":
            return Filling(rows, rows - int(frame[self.column].isna().sum()), ExactSum())
        known = known_values(frame[self.column])
        if self.strategy == "mean":
            return Filling(rows, len(known), ExactSum.of(known))
        return self._bounded(Filling(rows, len(known), RadixHistogram.distinct(rankable(known))))

    def merge(self, left: Filling, right: Filling) -> Filling:
        summary = naming(self.column, left.summary.merge, right.summary)
        return self._bounded(Filling(left.rows + right.rows, left.known + right.known, summary))

    def following(self, partial: Filling) -> FittedOperator | None:
        if self.strategy != "median" or self.method == "sketch" or not partial.known:
            return None
        search = Search.start(partial.summary.histogram, middle_ranks(partial.known))
        return None if search.resolved or partial.summary.kept is not None else NextPass(self, partial, search)

    def finish(self, partial: Filling) -> Fill:
        if self.strategy == "constant":
            return self._fill(partial, float(self.value))  # type: ignore[arg-type]
        if not partial.known:
            raise DataError(
                f"column {self.column!r}: all {partial.rows} rows of the train split are null, so there is no "
                f"{self.strategy}. Remove the column from the configuration, repair the input, or fill it with a "
                "constant."
            )
        if self.strategy == "mean":
            return self._fill(partial, partial.summary.units / (partial.known << -UNIT_EXPONENT))
        if self.strategy == "mode":
            counts = partial.summary.counts
            return self._fill(partial, float(partial.summary.edges()[0][counts.argmax()]))  # the first of the largest
        if self.method == "sketch":
            return self._fill(partial, *partial.summary.histogram.sketched_quantile(0.5))
        return self.state_of(partial, partial.summary.search(middle_ranks(partial.known)))

    def state_of(self, partial: Filling, search: Search) -> Fill:
        """The state, from the two middle values of an exact median."""
        return self.median_fill(partial, *search.values().tolist())

    def median_fill(self, partial: Filling, low: float, high: float) -> Fill:
        """The state; low, high: the two middle values."""
        return self._fill(partial, (low + high) / 2)

    def _fill(self, partial: Filling, value: float, error: float = 0.0) -> Fill:
        nulls = partial.rows - partial.known
        null_rate = nulls / partial.rows if partial.rows else 0.0
        silent = self.indicator == "auto" and few_nulls(nulls, partial.rows)
        return Fill(value, self.indicator != "none", null_rate, error, silent)

    def _bounded(self, partial: Filling) -> Filling:
        if self.strategy == "mode" and len(partial.summary.bins) > MOST_DISTINCT:
            raise DataError(
                f"FillMissing: column {self.column!r} has more than {MOST_DISTINCT} distinct values, too many to find "
                "the mode among. Use strategy median, mean or constant."
            )
        return partial

    def columns(self, frame: Frame, state: Fill) -> dict[str, Column]:
        column = frame[self.column]
        require_numbers(column)
        with np.errstate(over="ignore"):  # what leaves float32 is refused by name below
            filled = column.astype("float32").fillna(as_float32(state.value))
        require_finite(filled)
        found = {self.column: filled}
        if state.indicator:
            found[indicator_name(self.column)] = state.flags(column.isna()).astype("float32")
        return found
