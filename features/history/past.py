"""What earlier rows leave behind for later ones: the rows that are still looked at, and sums of those that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gigabatch.features.columns.stacking import stacked
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import EVENTS, known_name, sum_name
from gigabatch.features.history.group_codes import group_codes


class NotLater(DataError):
    """Rows that do not come after those that were carried; the message says what does not fit. All is made anew."""


@dataclass(frozen=True)
class Past:
    """Hold what an operator needs of earlier rows to give later ones their columns.

    Parameters
    ----------
    rows
        Earlier rows that later ones may still look at, with the columns that the operator reads.
    settled
        By the question that is asked, what the other earlier rows amount to: a row a group, with its keys, int64
        `EVENTS` and of each column the number of known values and their sum (`known_name`, `sum_name` by unit).
    until
        The last time at which an earlier row asked; later rows must neither ask nor become known before it. None where
        the operator compares in another way.
    size
        The sum of absolute values so far, over all that is summed; running sums stay exact below 2^62.
    """

    rows: Frame
    settled: Mapping[str, Frame] = field(default_factory=dict)
    until: int | None = None
    size: float = 0.0


def settle(
    events: Frame,
    by: Sequence[str],
    values: Mapping[str, tuple[Any, Mapping[int, Any]]],
    before: Frame | None,
    counted: Any = None,
    groups: Any = None,
) -> Frame | None:
    """What events amount to by group, those of `before` among them.

    Parameters
    ----------
    events
        The frame of N events with the columns `by`. Those with a null key belong to no group.
    by
        Key columns; none means one group of all.
    values
        By column int64 arrays [N]: whether the value is known (0 or 1), and by unit the multiples of 2^unit that add up
        to it, 0 for null.
    before
        What an earlier call gave with the same columns, or None.
    counted
        bool array [N]: which rows are events at all; None for all of them.
    groups
        int64 array [N]: `group_codes` of the events, where these are known already.

    Returns
    -------
    data frame or None
        A row a group: `by`, `EVENTS` and the columns that `known_name` and `sum_name` say. None for no group.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from gigabatch.features.history.past import settle
    >>> events = pd.DataFrame({"user": ["a", "b", "a"]})
    >>> clicks = (np.array([1, 1, 0]), {0: np.array([2, 5, 0])})
    >>> settle(events, ["user"], {"clicks": clicks}, None).iloc[:, :3]
      user  events__  known__clicks
    0    a         2              1
    1    b         1              1
    """
    engine = engine_of(events)
    xp = engine.arrays
    keys = events[list(by)].reset_index(drop=True)
    counted = xp.ones(len(events), dtype=bool) if counted is None else counted
    totals = {EVENTS: xp.ones(len(events), dtype="int64")}
    for name, (known, parts) in values.items():
        totals |= {known_name(name): known, **{sum_name(name, unit): part for unit, part in parts.items()}}
    if before is not None:
        keys = stacked([before[list(by)], keys], "history", by) if by else keys
        earlier = {name: engine.array(before[name]) for name in before.columns if name not in by}
        totals = {
            name: xp.concatenate([side.get(name, xp.zeros(size, dtype="int64")) for side, size in (
                (earlier, len(before)), (totals, len(events)))])
            for name in {**totals, **earlier}
        }  # fmt: skip
        counted = xp.concatenate([xp.ones(len(before), dtype=bool), counted])
    if not by:
        sums = {name: part[counted].sum().reshape(1) for name, part in totals.items()}
        return engine.frames.DataFrame(sums) if bool(counted.any()) else None
    codes = group_codes(keys, keys, by, "history")[0] if groups is None or before is not None else groups
    rows = xp.nonzero(counted & (codes >= 0))[0]
    order = rows[engine.stable_order(codes[rows])]
    if len(order) == 0:
        return None
    ends = xp.ones(len(order), dtype=bool)
    ends[:-1] = codes[order[1:]] != codes[order[:-1]]
    last = xp.nonzero(ends)[0]
    found = {}
    for name, part in totals.items():
        running = xp.cumsum(part[order])[last]
        found[name] = running.copy()
        found[name][1:] -= running[:-1]
    table = keys.take(order[last]).reset_index(drop=True)
    return table.assign(**{name: engine.series(part, table) for name, part in found.items()})
