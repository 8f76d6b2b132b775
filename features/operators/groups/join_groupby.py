"""JoinGroupby: statistics of a row's group in the train split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.grouped_sums import GroupedSums, GroupTotals
from gigabatch.features.history.key_index import Indexed, values_at
from gigabatch.features.operators.base import FittedOperator, listed

STATISTICS = ("count", "sum", "mean", "min", "max", "std", "var")
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GroupTable(Indexed):
    """table: one row a group, sorted by key: the key columns and a float64 column an output."""

    table: Any


class JoinGroupby(FittedOperator):
    """Join the statistics of a row's group in the train split.

    The float32 columns are called `<value>_<statistic>_by_<key>_<key>`. Nulls of a value take no part; an unseen or
    null key, or a group without a known value, gives null. std and var are those of a sample (n - 1), null for one
    value. Sums are exact, so the state is the same for any partitioning; integers beyond 2^53 are rounded to float64
    first.

    A train row is part of its own group's statistic. If a value is the target, or tells it, that leaks the answer into
    the row: use TargetEncoding or AsOf there.

    Parameters
    ----------
    by
        Key columns.
    values
        Columns of numbers or booleans.
    statistics
        Any of count, sum, mean, min, max, std, var.

    Raises
    ------
    DataError
        No key, value or statistic, an unknown statistic; an infinity, a value beyond 1e30 or a column that is no
        number; a variance beyond float32.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import JoinGroupby
    >>> operator = JoinGroupby(["city"], ["price"], ["mean", "count"])
    >>> state = operator.fit([pd.DataFrame({"city": ["Oslo", "Bonn", "Oslo"], "price": [1, 5, 3]})])
    >>> operator.apply(pd.DataFrame({"city": ["Oslo", "Rome"]}), state)
       city  price_mean_by_city  price_count_by_city
    0  Oslo                 2.0                  2.0
    1  Rome                 NaN                  NaN
    """

    reads = ("by", "values")

    def __init__(self, by: Sequence[str], values: Sequence[str], statistics: Sequence[str]) -> None:
        self.by = listed(by, "JoinGroupby")
        self.values = listed(values, "JoinGroupby", "values")
        self.statistics = listed(statistics, "JoinGroupby", "statistics")
        unknown = [name for name in statistics if name not in STATISTICS]
        if unknown or not statistics or not by or not values:
            raise DataError(
                f"JoinGroupby: needs keys, values and statistics; unknown: {unknown}. Known: {', '.join(STATISTICS)}."
            )

    @property
    def applied_inputs(self) -> tuple[str, ...]:
        return self.by

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self._name(value, statistic) for value in self.values for statistic in self.statistics)

    def _name(self, value: str, statistic: str) -> str:
        return f"{value}_{statistic}_by_{'_'.join(self.by)}"

    def partial(self, frame: Frame) -> GroupedSums:
        return GroupedSums.of(frame, self.by, self.values, "JoinGroupby")

    def merge(self, left: GroupedSums, right: GroupedSums) -> GroupedSums:
        return left.merge(right)

    def finish(self, partial: GroupedSums) -> GroupTable:
        table, totals = partial.on_host()
        for value, total in zip(self.values, totals, strict=True):
            for statistic in self.statistics:
                table[self._name(value, statistic)] = found = _statistic(total, statistic)
                if (found > LARGEST).any():  # the square of a value, which alone may be so large
                    raise DataError(
                        f"JoinGroupby: the variance of column {value!r} leaves float32. Take std, or rescale it first."
                    )
        return GroupTable(engine_of(partial.keys).from_pandas(table))

    def columns(self, frame: Frame, state: GroupTable) -> dict[str, Column]:
        engine = engine_of(frame)
        xp = engine.arrays
        rows = state.rows_of(frame, self.by, "JoinGroupby")
        found = {}
        for name in self.outputs:
            values = values_at(xp, engine.array(state.table[name]), rows, math.nan)
            known = ~xp.isnan(values)
            found[name] = engine.series(xp.where(known, values, 0.0).astype("float32"), frame, valid=known)
        return found


def _statistic(total: GroupTotals, name: str) -> np.ndarray:
    """float64, one a group; NaN for a group without a known value."""
    found = {
        "count": lambda: total.count.astype("float64"),
        "sum": total.sum,
        "mean": total.mean,
        "min": lambda: total.low,
        "max": lambda: total.high,
        "std": total.std,
        "var": total.var,
    }[name]()
    return np.where(total.count > 0, found, np.nan)
