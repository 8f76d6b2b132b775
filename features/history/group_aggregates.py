"""One value a group of rows that lie group after group: its first, its number, its exact sum and the like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import sorted_rows
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.history.grouped_sums import added_in_groups, totals_in_groups

AGGREGATIONS = ("first", "last", "count", "nunique", "min", "max", "sum", "mean", "std", "var")
UNORDERED = AGGREGATIONS[2:]  # which are the same in any order


@dataclass(frozen=True, eq=False)
class GroupsOfRows:
    """rows: int64 row numbers of the frame, group after group, from the earliest to the latest of each. last: int64
    places in `rows` of each group's last one. where: who asks, for messages."""

    frame: Frame
    rows: Array
    last: Array
    where: str

    @cached_property
    def first(self) -> Any:
        """int64 places in `rows` of each group's first one."""
        found = self.last.copy() * 0
        found[1:] = self.last[:-1] + 1
        return found

    @cached_property
    def group(self) -> Any:
        """int64 number of the group of each of `rows`, ascending."""
        begins = engine_of(self.frame).arrays.zeros(len(self.rows), dtype="int64")
        begins[self.first[1:]] = 1
        return begins.cumsum()

    def aggregate(self, name: str, how: str, like: Frame) -> Column:
        """One of `AGGREGATIONS` of a column, a row a group, on the index of `like`.

        first, last: of those rows, null where they are; min, max: of the column's type, null without a known value.
        count: int64, of rows; nunique: int64, of known values. sum: int64 of whole numbers and flags, else float64;
        mean: float64; both exact, rounded once, and null without a known value. var: of a sample, exact and rounded
        once, null for fewer than two known values; std: its root; both float64.
        Errors (`DataError`): other types than numbers and flags where they are compared or added, and those that are no
        category where they are told apart; a sum of whole numbers that leaves int64, an infinity that is added.
        """
        engine = engine_of(self.frame)
        if how == "count":
            return engine.series(self.last - self.first + 1, like)
        if how == "nunique":
            return engine.series(self._distinct(name), like)
        if how in ("sum", "mean", "std", "var"):
            return self._total(name, how, like)
        places = self.first if how == "first" else self.last if how == "last" else self._extreme(name, how)
        found: Any = self.frame[name].take(self.rows[places]).reset_index(drop=True)
        found.index = like.index
        return found

    def _distinct(self, name: str) -> Any:
        engine = engine_of(self.frame)
        codes = group_codes(self.frame, self.frame, [name], self.where)[0][self.rows]
        groups, codes = self.group[codes >= 0], codes[codes >= 0]
        codes = codes[sorted_rows(engine, groups, codes)]
        new = engine.arrays.ones(len(codes), dtype="int64")
        new[1:] = ((codes[1:] != codes[:-1]) | (groups[1:] != groups[:-1])).astype("int64")
        return added_in_groups(engine.arrays, new, groups, len(self.last))

    def _known(self, name: str) -> tuple[Any, Any]:
        """(the column in the order of `rows`; int64 places in it of its known numbers)."""
        xp = engine_of(self.frame).arrays
        column = self.frame[name].take(self.rows).reset_index(drop=True)
        return column, xp.nonzero(~xp.isnan(float_values(column, self.where)))[0]

    def _extreme(self, name: str, how: str) -> Any:
        """Places in `rows` of each group's smallest or largest number; of one that is null where all are."""
        engine = engine_of(self.frame)
        xp = engine.arrays
        column, places = self._known(name)
        groups = self.group[places]
        if column.dtype.kind in "iub":
            order = sorted_rows(engine, groups, whole_values(column, self.where)[places])
        else:
            values = float_values(column, self.where)[places]
            order = xp.lexsort(xp.stack([values, groups.astype("float64")]))
        at_edge = xp.ones(len(places), dtype=bool)
        if how == "min":
            at_edge[1:] = groups[1:] != groups[:-1]
        else:
            at_edge[:-1] = groups[1:] != groups[:-1]
        found = self.last.copy()
        found[groups[at_edge]] = places[order][at_edge]
        return found

    def _total(self, name: str, how: str, like: Frame) -> Any:
        engine = engine_of(self.frame)
        xp = engine.arrays
        column, places = self._known(name)
        known, squares = column.take(places).reset_index(drop=True), how in ("std", "var")
        totals = totals_in_groups(known, self.group[places], len(self.last), self.where, squares)
        none = totals.count < (2 if squares else 1)
        if how != "sum" or column.dtype.kind not in "iub":
            found = getattr(totals, how)()
            found[none] = 0.0
            return engine.series(xp.asarray(found), like, valid=xp.asarray(~none))
        total, fits = totals.whole_sum()
        if not fits.all():
            raise DataError(
                f"{self.where}: column {name!r} holds whole numbers whose sum leaves int64. Take their mean, or cast "
                "them to float64 first."
            )
        whole = engine.series(xp.asarray(total), like)
        return engine.with_nulls(whole, engine.series(xp.asarray(none), like)) if none.any() else whole
