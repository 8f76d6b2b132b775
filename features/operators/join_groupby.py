"""JoinGroupby: statistics of a row's group in the train split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from features.asof import group_codes
from features.errors import DataError
from features.exact_sum import UNIT_EXPONENT, exact_pieces
from features.frame import engine_of
from features.operators.base import FittedOperator
from features.operators.fill_missing import require_finite

STATISTICS = ("count", "sum", "mean", "min", "max", "std")
LIMIT = 1e30  # sums of 3e8 such values stay inside float32, squares inside float64
_COUNT, _SUM, _SQUARES = range(3)
_BITS = 26  # int64 holds sums of 2^36 such pieces


@dataclass(frozen=True)
class GroupTable:
    """table: one row a group, sorted by key: the key columns and a float64 column an output."""

    table: Any


class JoinGroupby(FittedOperator):
    """float32 columns `<value>_<statistic>_by_<key>_<key>`: what the train rows of the row's group hold in `value`.

    Nulls of `value` take no part; an unseen or null key, or a group without a known value, gives null. std is that of
    a sample (n - 1) and null for one value. Sums are exact, so the state is the same for any partitioning; integers
    beyond 2^53 are rounded to float64 first. `finish` reads the grouped sums (not the rows) on the host.

    A train row is part of its own group's statistic. If `value` is the target, or tells it, that leaks the answer
    into the row: use TargetEncoding or AsOf there.
    """

    def __init__(self, by: Sequence[str], values: Sequence[str], statistics: Sequence[str]) -> None:
        unknown = [name for name in statistics if name not in STATISTICS]
        if unknown or not statistics or not by or not values:
            raise DataError(
                f"JoinGroupby: needs keys, values and statistics; unknown: {unknown}. Known: {', '.join(STATISTICS)}."
            )
        self.by, self.values, self.statistics = tuple(by), tuple(values), tuple(statistics)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.by, *self.values)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self._name(value, statistic) for value in self.values for statistic in self.statistics)

    def _name(self, value: str, statistic: str) -> str:
        return f"{value}_{statistic}_by_{'_'.join(self.by)}"

    def partial(self, frame: Any) -> tuple[Any, Any]:
        """(whole-number sums by key, column, kind and unit; smallest and largest value by key and column)."""
        sums, extremes = [], []
        for number, name in enumerate(self.values):
            known = frame[[*self.by, name]].dropna().reset_index(drop=True)
            require_finite(known[name])
            values = engine_of(frame).array(known[name]).astype("float64")
            if bool((abs(values) > LIMIT).any()):
                raise DataError(f"JoinGroupby: column {name!r} holds values beyond {LIMIT}. Clip or rescale it first.")
            keys = known[list(self.by)].assign(column__=number)
            extremes.append(keys.assign(low__=values, high__=values))
            for kind, unit, totals in whole_numbers(values):
                sums.append(self._grouped_sums(keys.assign(kind__=kind, unit__=unit, total__=totals)))
        concat = engine_of(frame).frames.concat
        return (
            self._grouped_sums(concat(sums, ignore_index=True)),
            self._grouped_extremes(concat(extremes, ignore_index=True)),
        )

    def _grouped_sums(self, frame: Any) -> Any:
        return frame.groupby([*self.by, "column__", "kind__", "unit__"]).agg({"total__": "sum"}).reset_index()

    def _grouped_extremes(self, frame: Any) -> Any:
        return frame.groupby([*self.by, "column__"]).agg({"low__": "min", "high__": "max"}).reset_index()

    def merge(self, left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        concat = engine_of(left[0]).frames.concat
        return (
            self._grouped_sums(concat([left[0], right[0]], ignore_index=True)),
            self._grouped_extremes(concat([left[1], right[1]], ignore_index=True)),
        )

    def finish(self, partial: tuple[Any, Any]) -> GroupTable:
        engine = engine_of(partial[0])
        sums, extremes = (engine.to_pandas(frame) for frame in partial)
        exact: dict[tuple, list[int]] = {}
        for *key, kind, unit, total in sums.itertuples(index=False, name=None):
            shift = 0 if kind == _COUNT else unit - UNIT_EXPONENT
            exact.setdefault(tuple(key), [0, 0, 0])[kind] += int(total) << shift
        found = {
            tuple(key): statistics_of(exact[tuple(key)], low, high)
            for *key, low, high in extremes.itertuples(index=False, name=None)
        }
        table = extremes[list(self.by)].drop_duplicates().sort_values(list(self.by)).reset_index(drop=True)
        keys = list(table.itertuples(index=False, name=None))
        for number, value in enumerate(self.values):
            for name in self.statistics:
                column = [found.get((*key, number), {}).get(name, math.nan) for key in keys]
                table[self._name(value, name)] = engine_array(column)
        return GroupTable(engine.from_pandas(table))

    def columns(self, frame: Any, state: GroupTable) -> dict[str, Any]:
        engine = engine_of(frame)
        xp = engine.arrays
        asked, there = group_codes(frame, state.table, self.by)
        size = max([int(codes.max()) for codes in (asked, there) if len(codes)], default=-1) + 1
        row_of = xp.full(size + 1, -1, dtype="int64")  # the last place, -1, is that of null keys
        row_of[there] = xp.arange(len(there))
        rows = row_of[asked]
        found = {}
        for name in self.outputs:
            values = xp.append(engine.array(state.table[name]), xp.full(1, math.nan))[rows]
            known = ~xp.isnan(values)
            found[name] = engine.series(xp.where(known, values, 0.0).astype("float32"), frame, valid=known)
        return found


def engine_array(values: list[float]) -> Any:
    """A float64 column of the host."""
    import numpy as np

    return np.array(values, dtype="float64")


def whole_numbers(values: Any) -> Any:
    """Triples (kind, unit, int64 array) that hold every value's count, itself and its square in multiples of 2^unit."""
    yield _COUNT, 0, (values == values).astype("int64")
    # Dekker 1971: the square is `square + error` exactly (down to squares of 2^-969, far below any sum's last bit).
    big = values * 134217729.0
    high = big - (big - values)
    low = values - high
    square = values * values
    error = ((high * high - square) + 2.0 * high * low) + low * low
    for kind, terms in ((_SUM, values), (_SQUARES, square), (_SQUARES, error)):
        for unit, pieces in exact_pieces(terms, _BITS, _BITS):
            half = -unit // 2
            yield kind, unit, (pieces * 2.0**half * 2.0 ** (-unit - half)).astype("int64")


def statistics_of(exact: list[int], low: float, high: float) -> dict[str, float]:
    """Every statistic from the exact sums, which are in units of 2^-1074; each quotient is rounded once."""
    (count, units, squares), one = exact, 1 << -UNIT_EXPONENT
    found = {"count": float(count), "sum": units / one, "mean": units / (count * one), "min": low, "max": high}
    if count > 1:
        found["std"] = math.sqrt((count * squares * one - units * units) / (count * (count - 1) * one * one))
    return found
