"""What was known at a time: counts, exact sums and last values of earlier events of the same group.

Events are sorted by group and time, running sums are taken over the sorted values, and a question "group g, before time
t, not older than w" is two searches among the group's times and a difference of running sums, on NumPy and CuPy arrays
alike. The order of time is shared by all questions about the same rows, whatever the groups. Sums are of integers and
therefore exact: the answer does not depend on row order, partition count or engine. Fractions are cut into whole
numbers of 26 bits (`gigabatch.features.history.grouped_sums`), and their sum is rounded once, at the end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Frame
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.exact.float_order import exact_below
from gigabatch.features.exact.tally import tally
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.history.grouped_sums import exact_totals, unit_parts, whole_parts
from gigabatch.features.history.key_index import KeyIndex

EVENTS = "events__"  # of settled events by group: their number
Made = TypeVar("Made")


def known_name(column: str) -> str:
    """Of settled events: the column of how many values are known."""
    return f"known__{column}"


def sum_name(column: str, unit: int = 0) -> str:
    """Of settled events: the column of the sum of the values, or of their parts in multiples of 2^unit."""
    return f"sum{unit or ''}__{column}"


class Once:
    """Keep what several questions about the same rows ask for, such as the groups of a key, so that it is made once.

    Threads may share it.

    Examples
    --------
    >>> from gigabatch.features.history.asof import Once
    >>> once = Once()
    >>> once("three", lambda: [3]) is once("three", lambda: [3])
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._made: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gave when this key was first asked for; threads that ask meanwhile wait."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]


class AsOfJoin:
    """Answer questions about events strictly before each query's time, within the query's group.

    Answers are arrays of one entry a query, in query order. Ties in time are excluded: "before" is strict. A null in
    any key column belongs to no group: such queries find nothing, such events are never found.

    Parameters
    ----------
    queries, events
        Frames; they may be the same one.
    by
        Key columns, in both frames; none means one group of all.
    query_time, event_time
        Whole-number columns in one unit. An event whose time is null never becomes known; a query may not have a null
        time.
    order
        Column of `events`, unique within equal times, which settles what comes last there; without it, it is the row
        that stands last in `events`.
    exclude_self
        Whether queries and events are the same rows, so that a row must not find itself.
    settled
        What further events amount to that are not at hand: known before every query, older than every window, and
        none of them the last of its group where that is asked; see `gigabatch.features.history.past.settle`.
    once
        What other questions about these rows made already, where queries and events are the same frame.

    Raises
    ------
    DataError
        A missing column, a time or order that is null or no whole number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.history.asof import AsOfJoin
    >>> frame = pd.DataFrame({"user": ["a", "a", "a"], "at": [10, 20, 25], "clicks": [1, 2, 4]})
    >>> question = AsOfJoin(frame, frame, by=["user"], query_time="at", event_time="at")
    >>> question.count().tolist(), question.sum("clicks", window=6).tolist()
    ([0, 1, 2], [0, 0, 2])
    """

    def __init__(
        self,
        queries: Frame,
        events: Frame,
        *,
        by: Sequence[str],
        query_time: str,
        event_time: str,
        order: str | None = None,
        exclude_self: bool = False,
        settled: Frame | None = None,
        once: Once | None = None,
    ) -> None:
        self.once = once = Once() if once is None else once
        require_columns(queries, [*by, query_time], "as-of queries")
        require_columns(events, [*by, event_time, *([order] if order else [])], "as-of events")
        self.engine = engine_of(events)
        self.xp = self.engine.arrays
        self.events = events
        self.num_queries = len(queries)
        query_groups, event_groups = once(("groups", tuple(by)), lambda: group_codes(queries, events, by, "as-of"))
        at = once(("asks", query_time), lambda: _asked_at(queries[query_time]))
        times, in_time = once(("known", event_time), lambda: _known_at(events[event_time]))
        rows = once(("in order", event_time, order), lambda: self._in_order(times, in_time, order))
        self.first = int(times[rows[0]]) if len(rows) else 0
        groups = event_groups[rows]
        if not by or bool((groups >= 0).all()):
            known = in_time
        else:
            known, rows = in_time & (event_groups >= 0), rows[groups >= 0]
            groups = event_groups[rows]
        self.sorted_rows = rows[self.engine.stable_order(groups)] if by else rows
        self._times = times[self.sorted_rows]
        num_groups = max((int(codes.max()) + 1 for codes in (query_groups, event_groups) if len(codes)), default=0)
        self._begins = self.xp.zeros(num_groups + 1, dtype="int64")
        self._begins[1:] = self.xp.cumsum(tally(self.xp, groups, num_groups))
        self._starts: dict[int | None, Any] = {}
        self._own_inside: dict[int | None, Any] = {}
        self.found_group = query_groups >= 0
        self.in_time, self.event_time, self.order = in_time, event_time, order
        self.at, self.query_groups, self.event_groups = at, query_groups, event_groups
        self.own = (known, times) if exclude_self else None
        self.stop = self._search(at)
        self.settled = settled
        self.settled_rows: Any = None if settled is None else self._rows_of(settled, queries, by)

    def _rows_of(self, settled: Frame, queries: Frame, by: Sequence[str]) -> Any:
        """int64: the row of `settled` with each query's group, -1 for none."""
        if not by:
            return self.xp.zeros(self.num_queries, dtype="int64")
        return KeyIndex(settled, by, "as-of").rows(queries)

    def _add_settled(self, total: Any, name: str, window: int | None) -> Any:
        """The totals with those of settled events, which no window reaches."""
        if self.settled is None or window is not None:
            return total
        values = self.engine.array(self.settled[name])[self.xp.clip(self.settled_rows, 0, None)]
        return total + self.xp.where(self.settled_rows >= 0, values, 0)

    def _in_order(self, times: Any, in_time: Any, order: str | None) -> Any:
        """int64: the rows of the events that become known, in the order in which they do."""
        rows = self.xp.nonzero(in_time)[0]
        if order is None:
            return rows[self.engine.stable_order(times[rows])]  # equal times stay in the order of `events`
        if self.events[order].isna().any():
            raise DataError(f"as-of: order column {order!r} holds nulls. Drop those rows or give them a place.")
        ties = whole_values(self.events[order], "as-of order")[rows]
        return rows[sorted_rows(self.engine, times[rows], ties)]

    def _search(self, bound: Any) -> Any:
        """Position in the sorted events of each query's first event at or after `bound`; 0 without a group."""
        return self.engine.places_in_groups(self._begins, self._times, self.query_groups, bound)

    def _start(self, window: int | None) -> Any:
        if window not in self._starts:  # counts and sums ask for the same
            since = self._since(window)
            self._starts[window] = (
                self.xp.where(self.found_group, self._begins[self.query_groups], 0)
                if since is None
                else self._search(since)
            )
        return self._starts[window]

    def _since(self, window: int | None) -> Any:
        """int64: where each query's window begins; None if it holds all the past."""
        if window is None or not len(self.at) or window > int(self.at.max()) - self.first:
            return None
        # In halves and never before the first event: so nothing leaves int64.
        reach = self.xp.where(self.at >= self.first + window, self.at, self.first + window)
        return reach - window // 2 - (window - window // 2)

    def _inside(self, own: tuple[Any, Any], window: int | None) -> Any:
        """1 where a query's own event, known at its time, lies among the events that it asks about, else 0."""
        if window not in self._own_inside:
            known, times = own
            inside = self.found_group & known & (times < self.at)
            since = self._since(window)
            self._own_inside[window] = inside if since is None else inside & (times >= since)
        return self._own_inside[window]

    def count(self, window: int | None = None, of: str | None = None) -> Any:
        """int64 number of events with time in [at - window, at); with `of`, only those where that column is known."""
        if of is not None:
            known, whole = self.once(("told", of, self.event_time), lambda: self._told(of))
            if not whole:
                return self._add_settled(self._sum(known, window), known_name(of), window)
        number = self.stop - self._start(window)
        if self.own is not None:
            number = number - self._inside(self.own, window)
        name = EVENTS if of is None else known_name(of)
        return self._add_settled(self.xp.where(self.found_group, number, 0), name, window)

    def sum(self, column: str, window: int | None = None) -> Any:
        """int64 sum of an integer column over the same events; nulls add nothing."""
        values, largest, fractions = self.once(("summed", column), lambda: self._summed(column))
        # A running sum may leave int64: where it wraps around, differences wrap back, if a group's own sum fits.
        beyond = largest * len(values) >= 2**62 and not self._largest_sum(values) < 2.0**62
        if fractions or beyond:
            raise DataError(
                f"as-of sum: column {column!r} holds fractions or values beyond int64; running sums are exact for "
                "integers only. Scale and round it first (for example to cents or minutes)."
            )
        return self._add_settled(self._sum(values, window), sum_name(column), window)

    def total(self, column: str, window: int | None = None) -> Any:
        """`sum` of a column that may hold fractions: then float64, the nearest to each exact sum."""
        _, _, fractions = self.once(("summed", column), lambda: self._summed(column))
        units = self._settled_units(column)
        if not fractions and not set(units) - {0}:
            return self.sum(column, window)
        parts = self.once(("parts", column), lambda: unit_parts(self.events[column], "as-of sum"))
        found = {unit: self._sum(part, window) for unit, part in parts.items()}
        for unit in units if window is None else ():
            gone = self._add_settled(0, sum_name(column, unit), window)
            for own, part in (whole_parts(gone) if unit == 0 else {unit: gone}).items():
                found[own] = found.get(own, 0) + part
        on_host = {unit: self.engine.to_host(part) for unit, part in found.items()}
        return self.xp.asarray(exact_totals(on_host, self.num_queries))

    def _settled_units(self, column: str) -> list[int]:
        """The units in which settled events of the column are summed."""
        names = () if self.settled is None else self.settled.columns
        matches = (re.fullmatch(rf"sum(-?\d*)__{re.escape(column)}", name) for name in names)
        return [int(match[1] or 0) for match in matches if match]

    def _told(self, column: str) -> tuple[Any, bool]:
        """int64: 1 where an event's value is known, else 0; and whether it is of all events that become known."""
        known = self.engine.array(self.events[column].notna())
        return known.astype("int64"), bool((known | ~self.in_time).all())

    def _summed(self, column: str) -> tuple[Any, int, bool]:
        """A column's int64 values, the largest absolute one, and whether there are fractions or floats that may be
        rounded, of which nothing else is told."""
        summed = self.events[column]
        if holds_fractions(summed, "as-of sum"):
            return self.xp.zeros(0, dtype="int64"), 0, True
        values = whole_values(summed, "as-of sum")
        return values, max(int(values.max()), -int(values.min())) if len(values) else 0, False

    def _largest_sum(self, values: Any) -> float:
        """The sum of the absolute values of the group in which it is the largest."""
        grouped = self.event_groups >= 0
        weights = abs(values.astype("float64"))[grouped]
        return float(tally(self.xp, self.event_groups[grouped], 1, weights).max())

    def _sum(self, values: Any, window: int | None) -> Any:
        running = self.xp.zeros(len(self.sorted_rows) + 1, dtype="int64")
        running[1:] = self.xp.cumsum(values[self.sorted_rows])
        total = running[self.stop] - running[self._start(window)]
        if self.own is not None:
            total = total - values * self._inside(self.own, window)
        return self.xp.where(self.found_group, total, 0)

    def last_row(self, window: int | None = None) -> Any:
        """int64 row number in `events` of the last earlier event, -1 where there is none.

        Of events of one time it is the last by `order`, and without that the one that stands last in `events`.
        """
        start, position = self._start(window), self.stop - 1
        if len(self.sorted_rows) == 0:
            return self.xp.full(self.num_queries, -1, dtype="int64")
        rows = self.sorted_rows[self.xp.clip(position, 0, None)]
        if self.own is not None:
            itself = (rows == self.xp.arange(self.num_queries)) & (position >= start)
            position = position - itself
            rows = self.sorted_rows[self.xp.clip(position, 0, None)]
        return self.xp.where(self.found_group & (position >= start), rows, -1)

    def row_before(self, number: int) -> Any:
        """int64 row number in `events` of each query's last earlier event but `number` - 1; -1 where there are fewer.

        Settled events have no rows; errors as of `last_places`.
        """
        first, stop = self.last_places(number)
        if len(self.sorted_rows) == 0:
            return self.xp.full(self.num_queries, -1, dtype="int64")
        rows = self.sorted_rows[self.xp.clip(first, 0, len(self.sorted_rows) - 1)]
        return self.xp.where(stop - first == number, rows, -1)

    def row_at(self, back: int) -> Any:
        """int64 row number in `events` of each query's last event of the very time that lies `back` units, at least 1,
        before its own; -1 where there is none."""
        nothing = self.xp.full(self.num_queries, -1, dtype="int64")
        if not len(self.at) or not len(self.sorted_rows) or back > int(self.at.max()) - self.first:
            return nothing
        reached = self.found_group & (self.at >= self.first + back)
        times = self.xp.where(reached, self.at, self.first + back) - back
        place = self._search(times + 1) - 1
        begins = self.xp.where(self.found_group, self._begins[self.query_groups], 0)
        there = self.xp.clip(place, 0, None)
        found = reached & (place >= begins) & (self._times[there] == times)
        return self.xp.where(found, self.sorted_rows[there], nothing)

    def repeats(self) -> Any:
        """int64 row numbers in `events` of those behind another one of their group, time and `order`."""
        later, earlier = self.sorted_rows[1:], self.sorted_rows[:-1]
        same = (self._times[1:] == self._times[:-1]) & (self.event_groups[later] == self.event_groups[earlier])
        if self.order is not None and bool(same.any()):
            ties = whole_values(self.events[self.order], "as-of order")
            same &= ties[later] == ties[earlier]
        return later[same]

    def last_places(self, number: int) -> tuple[Any, Any]:
        """Where each query's last `number` earlier events stand: those of query n are the rows of `events` that
        `sorted_rows[first[n] : stop[n]]` says, the oldest first, and fewer where there are fewer.

        Returns (first, stop), int64 arrays; equal for a query without any. Settled events have no rows, so they are
        not among them.

        Errors (`DataError`): a number below 1, or `exclude_self`, of which a window knows nothing.
        """
        if number < 1 or self.own is not None:
            raise DataError(
                f"as-of: the last events of a query are at least 1, found {number}, and are asked for without "
                "exclude_self."
            )
        first = self.xp.maximum(self._start(None), self.stop - number)
        return self.xp.where(self.found_group, first, 0), self.xp.where(self.found_group, self.stop, 0)


def holds_fractions(column: Any, where: str) -> bool:
    """Whether a column holds fractions, infinities or floats so large that they may be another whole number rounded."""
    if column.dtype.kind != "f":
        return False
    values, xp = float_values(column, where), engine_of(column).arrays
    whole = (values == xp.rint(values)) & (abs(values) < exact_below(column.dtype))
    return not bool((whole | xp.isnan(values)).all())


def _asked_at(times: Any) -> Any:
    """int64 of the times at which queries ask."""
    if times.isna().any():
        raise DataError(f"as-of: column {times.name!r} holds nulls; every query needs a time.")
    return whole_values(times, "as-of time")


def _known_at(times: Any) -> tuple[Any, Any]:
    """int64 of the times at which events become known, 0 for null, and bool, where they are not null."""
    return whole_values(times, "as-of time"), engine_of(times).array(times.notna())


def sorted_rows(engine: Any, keys: Any, ties: Any) -> Any:
    """int64 row numbers by ascending key and then tie, equal ones in row order; both int64 arrays of one length.

    Where both fit into one int64 it is one radix sort of that; `lexsort` sorts once for each of them.
    """
    xp = engine.arrays
    if not len(keys):
        return xp.arange(0)
    falls = (ties[1:] < ties[:-1]).any().astype("int64")
    first, last, low, high, falls = xp.stack([keys.min(), keys.max(), ties.min(), ties.max(), falls]).tolist()
    if not falls:  # in the order of ties already, as rows mostly are
        return engine.stable_order(keys)
    span = high - low + 1
    if (last - first + 1) * span < 2**63:
        return engine.stable_order((keys - first) * span + (ties - low))
    return xp.lexsort(xp.stack([ties, keys]))
