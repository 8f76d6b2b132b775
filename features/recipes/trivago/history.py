"""Running history of groups over a log that is cut in time: exact totals whatever the cuts.

A chunk is a range of moments. What a row may know of its group is what earlier chunks left behind plus the group's
earlier events in its own chunk. So history is a scan in three passes:

1. every chunk by itself: `Family` gathers the totals of each group that occurs in it;
2. one after the other: `Ledger` tells each chunk what its groups carried over from before, then adds its totals;
3. every chunk by itself again: carried totals plus earlier events (`Events`) answer each question.

Passes 1 and 3 run on any number of workers. Totals are integers, so nothing depends on where the cuts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gigabatch.features.exact.tally import tally
from gigabatch.features.recipes.trivago.log import atomic_path

NONE = -(2**62)  # no first or last value
SUM, FIRST, LAST = "sum", "first", "last"
ITEM_BITS = 31  # of a key of a group and an item


class Family:
    """Groups of one kind in one chunk.

    keys: int64 arrays by a name of the caller's, one entry a row of some table; equal keys are one group, negative ones
    belong to no group. carried: what `Ledger.carry` told of this chunk.

    codes[name]: the group number of every row, -1 for none. distinct: the key of every group.
    """

    def __init__(self, engine: Any, keys: Mapping[str, Any], carried: Mapping[str, np.ndarray] | None = None) -> None:
        self.engine, self.xp = engine, engine.arrays
        xp = self.xp
        whole = xp.concatenate(list(keys.values()))
        codes = xp.where(whole >= 0, engine.codes(engine.frames.Series(whole)), -1)
        self.num_groups = int(codes.max()) + 1 if len(codes) else 0
        self.distinct = xp.full(self.num_groups, -1, dtype="int64")
        self.distinct[codes[codes >= 0]] = whole[codes >= 0]
        ends = np.cumsum([0, *(len(values) for values in keys.values())])
        self.codes = {name: codes[ends[i] : ends[i + 1]] for i, name in enumerate(keys)}
        self.carried = carried

    def before(self, column: str, rule: str = SUM) -> Any:
        """int64 [groups]: the carried value of a column."""
        xp = self.xp
        default = 0 if rule == SUM else NONE
        if self.carried is None or len(self.carried["key"]) == 0:
            return xp.full(self.num_groups, default, dtype="int64")
        keys, values = xp.asarray(self.carried["key"]), xp.asarray(self.carried[column])
        place = xp.clip(xp.searchsorted(keys, self.distinct), 0, len(keys) - 1)
        return xp.where(keys[place] == self.distinct, values[place], default)

    def events(self, name: str, moments: Any, where: Any = None) -> Events:
        """Those rows of `keys[name]` (of them, those of the mask `where`) that are events, in order of moment."""
        codes = self.codes[name] if where is None else self.xp.where(where, self.codes[name], -1)
        return Events(self.engine, codes, moments, self.num_groups)


class Events:
    """Events of a family's groups, and questions about them. Rows must come in order of moment."""

    def __init__(self, engine: Any, codes: Any, moments: Any, num_groups: int) -> None:
        self.engine, self.xp, self.codes, self.num_groups = engine, engine.arrays, codes, num_groups
        xp = self.xp
        rows = xp.nonzero(codes >= 0)[0]
        self.rows = rows[engine.stable_order(codes[rows])]
        self.moments = moments[self.rows]
        self.offsets = xp.zeros(num_groups + 1, dtype="int64")
        self.offsets[1:] = xp.cumsum(tally(xp, codes[rows], num_groups))

    def ask(self, codes: Any, moments: Any) -> Question:
        """What is known of each asked group (-1: nothing) before each moment."""
        stop = self.engine.places_in_groups(self.offsets, self.moments, codes, moments)
        return Question(self, codes, self.xp.where(codes >= 0, self.offsets[codes], stop), stop)

    def ask_own(self) -> Question:
        """`ask` of each event's own group and moment, where every row is an event or belongs to no group."""
        stop = self.xp.zeros(len(self.codes), dtype="int64")
        own = self.codes[self.rows]
        stop[self.rows] = self.engine.places_in_groups(self.offsets, self.moments, own, self.moments)
        return Question(self, self.codes, self.xp.where(self.codes >= 0, self.offsets[self.codes], stop), stop)

    def running(self, values: Any | None) -> Any:
        """int64 [events + 1]: sums of a row value over the first so many events, in their order."""
        xp = self.xp
        out = xp.zeros(len(self.rows) + 1, dtype="int64")
        out[1:] = xp.arange(1, len(out)) if values is None else xp.cumsum(values[self.rows])
        return out

    def total(self, values: Any | None = None) -> Any:
        """int64 [groups]: the sum of a row value over each group's events; their number without one."""
        running = self.running(values)
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    def first(self, values: Any) -> Any:
        """int64 [groups]: the value of each group's first event, NONE where it has none."""
        return self._value_at(values, self.offsets[:-1])

    def last(self, values: Any) -> Any:
        """int64 [groups]: the value of each group's last event, NONE where it has none."""
        return self._value_at(values, self.offsets[1:] - 1)

    def _value_at(self, values: Any, places: Any) -> Any:
        xp = self.xp
        if len(self.rows) == 0:
            return xp.full(self.num_groups, NONE, dtype="int64")
        found = values[self.rows[xp.clip(places, 0, len(self.rows) - 1)]].astype("int64")
        return xp.where(self.offsets[1:] > self.offsets[:-1], found, NONE)


@dataclass
class Question:
    """Each asker's group, and where its known events begin and end among the sorted ones."""

    events: Events
    codes: Any
    start: Any
    stop: Any

    def _of_group(self, values: Any, default: int) -> Any:
        """Each asker's entry of an array with one a group; asking of no group gives `default`."""
        if len(values) == 0:
            return self.events.xp.full(len(self.codes), default, dtype="int64")
        return self.events.xp.where(self.codes >= 0, values[self.codes], default)

    def count(self, before: Any) -> Any:
        """int64: earlier events, those of earlier chunks as `before` [groups] among them."""
        return self.stop - self.start + self._of_group(before, 0)

    def sum(self, before: Any, values: Any) -> Any:
        """int64: the sum of a row value over them."""
        running = self.events.running(values)
        return running[self.stop] - running[self.start] + self._of_group(before, 0)

    def last(self, before: Any, values: Any) -> Any:
        """int64: the value of the last of them, NONE where there is none."""
        xp, events = self.events.xp, self.events
        earlier = self._of_group(before, NONE)
        if len(events.rows) == 0:
            return earlier
        row = events.rows[xp.clip(self.stop - 1, 0, len(events.rows) - 1)]
        return xp.where(self.stop > self.start, values[row].astype("int64"), earlier)

    def first(self, before: Any, values: Any) -> Any:
        """int64: the value of the first of them, NONE where there is none."""
        xp, events = self.events.xp, self.events
        earlier = self._of_group(before, NONE)
        if len(events.rows) == 0:
            return earlier
        row = events.rows[xp.clip(self.start, 0, len(events.rows) - 1)]
        return xp.where((earlier == NONE) & (self.stop > self.start), values[row].astype("int64"), earlier)


@dataclass
class Ledger:
    """Totals of a family's groups over all chunks so far, on the host. rules: sum, first or last by column."""

    rules: Mapping[str, str]
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # ascending
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = self.columns or {name: np.empty(0, dtype=np.int64) for name in self.rules}

    def carry(self, keys: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Of ascending `keys` (None: of all) those that are known, as `key`, and their columns."""
        if keys is None:
            return {"key": self.keys.copy(), **{name: values.copy() for name, values in self.columns.items()}}
        found = self._find(keys)
        place = found[found >= 0]
        return {"key": keys[found >= 0], **{name: values[place] for name, values in self.columns.items()}}

    def add(self, keys: np.ndarray, totals: Mapping[str, np.ndarray]) -> None:
        """A chunk's totals at ascending `keys`."""
        found = self._find(keys)
        known, fresh = found >= 0, found < 0
        place = found[known]
        for name, rule in self.rules.items():
            self.columns[name][place] = _combined(rule, self.columns[name][place], totals[name][known])
        merged = np.concatenate([self.keys, keys[fresh]])
        order = np.argsort(merged, kind="stable")  # two sorted runs: a merge
        self.keys = merged[order]
        for name in self.rules:
            self.columns[name] = np.concatenate([self.columns[name], totals[name][fresh]])[order]

    def keep(self, mask: np.ndarray) -> None:
        """Forget the groups outside `mask`, a bool a key."""
        self.keys = self.keys[mask]
        self.columns = {name: values[mask] for name, values in self.columns.items()}

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """The place of each key, -1 for an unknown one."""
        if len(self.keys) == 0:
            return np.full(len(keys), -1, dtype=np.int64)
        place = np.clip(np.searchsorted(self.keys, keys), 0, len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)


def _combined(rule: str, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    if rule == SUM:
        return earlier + later
    if rule == FIRST:
        return np.where(earlier == NONE, later, earlier)
    return np.where(later == NONE, earlier, later)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays by name as one file, whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_arrays(path: Path, only: str | None = None) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote; only: the one array that is wanted, if it is there."""
    with np.load(path, allow_pickle=False) as found:
        return dict(found) if only is None else {name: found[name] for name in (only,) if name in found}
