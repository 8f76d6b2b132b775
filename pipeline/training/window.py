"""Which rows a warm start trains on: those that its start has not seen, and a sample of the older ones.

Rows are told by their time. A run keeps how many train rows lay in each of some hundred intervals of time, and a
fingerprint of their times; an interval that holds more rows now, or as many of other times, has got late ones, and all
of its rows are trained on, since these cannot be told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.errors import DataError
from gigabatch.pipeline.clock import guessed_unit, shown

INTERVALS = 512
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64 (Steele, Lea and Flood 2014), as Stafford's variant 13


class NothingNew(DataError):
    """No row of the train split is new to the run to start from."""


@dataclass(frozen=True)
class Window:
    """Rows of the train split that are trained on.

    rows: int64, ascending places in the split. new: rows later than the start's last train row. late: rows that have
    come since into the times that the start was trained on, and `late_trained` those of the intervals that hold them,
    or all of those times where the start does not tell which rows it held.
    replayed: older rows that were drawn. gone: rows that the start held and that are no longer there.
    Where an interval has lost as many rows as it has got, one of each is counted, the least that it can be.
    """

    rows: np.ndarray
    new: int
    late: int
    late_trained: int
    replayed: int
    gone: int

    def counts(self) -> dict[str, int]:
        """The numbers, and that of all `rows`, for summaries."""
        names = ("new", "late", "late_trained", "replayed", "gone")
        return {"rows": len(self.rows)} | {name: getattr(self, name) for name in names}

    def note(self) -> str:
        """In words, for the log and the report."""
        late = f", {self.late_trained:,} of the intervals in which {self.late:,} late ones came" if self.late else ""
        if self.late_trained and not self.late:
            late = f", {self.late_trained:,} others, since the start does not tell which of them it was trained on"
        gone = f" {self.gone:,} rows that it held are gone." if self.gone else ""
        return (
            f"Trained on {len(self.rows):,} rows: {self.new:,} later than those of the start{late}, and "
            f"{self.replayed:,} older ones, drawn.{gone}"
        )


def times_held(times: np.ndarray) -> dict[str, list[Any]]:
    """How many rows lie in each of at most `INTERVALS` intervals of about as many rows, as JSON types.

    times: [N], whole numbers or floats; NaN, no time, counts nowhere. `until`: the last time of each interval,
    ascending; `rows`: of each interval; `times`: of each interval a fingerprint of its rows' times, 16 hex digits.

    Examples
    --------
    >>> held = times_held(np.array([3, 1, 1, 7]))
    >>> held["until"], held["rows"]
    ([1, 3, 7], [2, 1, 1])
    """
    ordered = np.sort(times[~np.isnan(times)])
    places = np.linspace(0, len(ordered), min(INTERVALS, len(ordered)) + 1).astype("int64")[1:] - 1
    until = np.unique(ordered[places])
    rows = np.diff(np.searchsorted(ordered, until, side="right"), prepend=0)
    prints = _prints(ordered, np.arange(len(until)).repeat(rows), len(until))
    return {"until": until.tolist(), "rows": rows.tolist(), "times": prints}


def _prints(times: np.ndarray, interval: np.ndarray, number: int) -> list[str]:
    """Of each interval the sum of its times' 64-bit hashes, modulo 2^64, as 16 hex digits."""
    hashed = (times.astype("float64") + 0.0).view("uint64")  # one zero, and the same for whole numbers and floats
    for shift, factor in zip((30, 27), MIX, strict=True):
        hashed = (hashed ^ (hashed >> np.uint64(shift))) * np.uint64(factor)
    sums = np.zeros(number, "uint64")
    np.add.at(sums, interval, hashed ^ (hashed >> np.uint64(31)))
    return [f"{value:016x}" for value in sums.tolist()]


def choose_rows(times: np.ndarray, info: Mapping[str, Any], replay: float, seed: int) -> Window:
    """The rows to train on after the run whose bundle has this `info`.

    Parameters
    ----------
    times
        Of tonight's train split, [N], in the split's order. A row without a time (NaN) counts as old.
    info
        Of the start; `train_times` are its train rows, as `times_held` has them. One of an older version has
        `trained_until` alone, the last time of its train and valid rows. Its valid rows, which gave no gradient, cannot
        be told from its train rows, so all rows are trained on.
    replay
        Rows to be drawn from the older ones, over the number of those that the start has not seen; all where fewer.
    seed
        Of the draw.

    Returns
    -------
    Window
        The rows.

    Raises
    ------
    NothingNew
        Where there is no row that the start has not seen.
    DataError
        Where its bundle tells no times.

    Examples
    --------
    >>> window = choose_rows(np.arange(10), {"train_times": times_held(np.arange(6))}, replay=0.5, seed=1)
    >>> window.new, window.replayed, len(window.rows)
    (4, 2, 6)
    """
    held = info.get("train_times")
    if held is None and "trained_until" not in info:
        raise DataError(
            "train.window: the run to start from tells no times, as one trained without a time column. Set "
            "train.window=null, which trains on all rows."
        )
    if held is None:
        new = int((times > info["trained_until"]).sum())
        return Window(np.arange(len(times)), new, 0, len(times) - new, 0, 0)
    until = np.asarray(held["until"])
    interval = np.searchsorted(until, times, side="left")  # that of times after the last one is len(until)
    fresh = (interval == len(until)) & ~np.isnan(times)
    new = int(fresh.sum())
    more = np.bincount(interval, minlength=len(until) + 1)[:-1] - np.asarray(held["rows"])
    late, gone = int(more.clip(min=0).sum()), int((-more).clip(min=0).sum())
    old = interval < len(until)
    # A run of an older version tells no fingerprints.
    prints = np.asarray(_prints(times[old], interval[old], len(until)))
    other = (more == 0) & (prints != np.asarray(held.get("times", prints)))
    late, gone = late + int(other.sum()), gone + int(other.sum())
    fresh |= np.append((more > 0) | other, False)[interval]
    if not fresh.any():
        latest = float(until[-1])
        raise NothingNew(
            "train.window: no row of the train split is later than those of the run to start from "
            f"({shown(latest, guessed_unit(latest))}), so there is nothing new to train on."
        )
    older = np.flatnonzero(~fresh)
    number = min(round(replay * int(fresh.sum())), len(older))
    drawn = _generator(seed, until).choice(older, number, replace=False) if number else older[:0]
    rows = np.sort(np.concatenate([np.flatnonzero(fresh), drawn]))
    return Window(rows, new, late, int(fresh.sum()) - new, number, gone)


def _generator(seed: int, until: np.ndarray) -> np.random.Generator:
    """Another one each night, as of one seed every night would draw the same of the oldest rows."""
    digest = hashlib.blake2b(until.tobytes() + str(seed).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
