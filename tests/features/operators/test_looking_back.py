"""Operators that look back give later rows, from what earlier ones leave, the columns that all together get."""

import itertools

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.history.past import NotLater, settle
from gigabatch.features.operators.history.asof import AsOf, Count, Last, Mean
from gigabatch.features.operators.history.difference_lag import DifferenceLag
from gigabatch.features.operators.history.history import History
from gigabatch.features.operators.history.lag import Lag
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.operators.history.target_encoding import TargetEncoding
from gigabatch.features.operators.history.waiting import Waiting

ITEMS = [
    Count("all"), Count("recent", window=4), Mean("delay", "mean"), Mean("delay", "shrunk", smoothing=2.0),
    Mean("late", "windowed", window=7, smoothing=3.0), Last({"delay": "last"}), Last({"known": "at_last"}, "float64"),
]  # fmt: skip
OPERATORS = [
    AsOf(["tail"], "at", "known", ITEMS, "row"),
    AsOf(["tail", "place"], "at", "known", [Last({"delay": "last"})], "row"),
    AsOf([], "at", "known", [Count("all"), Mean("delay", "mean"), Last({"delay": "last"})], "row"),
    Rolling(["tail"], "at", "delay", 5, "mean", "out"),
    AsOf(["tail"], "at", "known", [Mean("fraction", "mean"), Mean("fraction", "shrunk", smoothing=2.0)], "row"),
    AsOf(["tail"], "at", "known", [Mean("turns", "mean"), Mean("turns", "recent", window=9)], "row"),
    Rolling(["tail"], "at", "fraction", 3, "min", "out"),
    Rolling(["tail"], "at", "fraction", 5, "mean", "out"),
    Lag(["tail"], "at", "delay", "out", periods=3, order="row"),
    Lag(["tail", "place"], "at", "tail", "out", order="row"),
    Lag(["place"], "at", "fraction", "out", span=4, order="row"),
    TargetEncoding(["tail"], "late", "out", at="at", fold="place"),
    Waiting(["place"], "at", "known", "queue"),
    History(["tail"], "at", "row", "place", 3, "seen", half_life=4.0),
    History(["tail", "place"], "at", "row", "tail", 2, "seen", where="late"),
    DifferenceLag(["tail"], "row", "fraction", "out", lag=3),
]


def rows_of(seed: int, size: int = 160) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    at = np.sort(random.integers(0, 60, size))
    known = (at + random.integers(-2, 12, size)).astype(float)  # some are known before they are due
    known[random.random(size) < 0.2] = np.nan
    return pd.DataFrame(
        {
            "at": at, "row": np.arange(size), "known": known, "late": random.integers(0, 2, size),
            "tail": pd.Series(random.choice(list("abcde"), size)).where(random.random(size) > 0.1),
            "place": random.integers(0, 3, size),
            "fraction": random.normal(size=size) * 10.0 ** random.integers(-9, 9, size),
            "turns": np.where(at > 20, random.normal(size=size), random.integers(-(2**52), 2**52, size)),  # whole first
            "delay": np.where(random.random(size) < 0.2, np.nan, random.integers(-9, 50, size)),
        }
    )  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_later_rows_get_what_all_rows_together_get(operator):
    for seed in range(6):
        rows = rows_of(seed)
        whole, past = operator(rows), None
        random = np.random.default_rng([seed, 1])
        bounds = [0, *np.sort(random.choice(np.arange(5, 55), 4, replace=False)).tolist(), 60]
        for first, stop in itertools.pairwise(bounds):
            later = rows[rows["at"] >= first].reset_index(drop=True)
            found = operator(later) if past is None else later.assign(**operator.following(later, past))
            expected = whole[whole["at"] >= first].reset_index(drop=True)
            pd.testing.assert_frame_equal(found, expected, check_exact=True)
            if past is not None:
                operator.require_later(later, np.zeros(len(later), dtype=bool), past)
            past = operator.leave(later[later["at"] < stop], past)
            if type(operator) is not Waiting:  # whose rows that never happen stay
                assert len(past.rows) < 60


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_a_row_that_would_have_been_seen_is_refused(operator):
    rows = rows_of(1)
    past = operator.leave(rows[rows["at"] < 30], None)
    later = rows[rows["at"] >= 30].reset_index(drop=True)
    new = np.ones(len(later), dtype=bool)
    if isinstance(operator, AsOf):
        late = later.assign(known=np.where(later.index == 3, 20.0, later["known"]))
        with pytest.raises(NotLater, match="a new row is known at 20, before 29"):
            operator.require_later(late, new, past)
        operator.require_later(late, ~new, past)  # earlier rows were computed with it
    if not isinstance(operator, DifferenceLag):
        with pytest.raises(NotLater, match="a row asks at 28, before 29"):
            operator.require_later(later.assign(at=later["at"] - 2), new, past)
    else:
        with pytest.raises(NotLater, match="a row stands before one of its group"):
            operator.require_later(later.assign(row=-later["row"]), new, past)


def test_sums_near_the_end_of_64_bits_are_left_to_all_rows_together():
    rows = rows_of(2).assign(delay=float(2**52))
    operator = Rolling(["tail"], "at", "delay", 5, "sum", "out")
    past = operator.leave(rows[rows["at"] < 30], None)
    with pytest.raises(NotLater, match="64 bits"):
        operator.following(pd.concat([rows[rows["at"] >= 30]] * 3), past)


def test_settled_sums_are_those_of_a_slow_loop():
    rows = rows_of(4)
    known, values = rows["delay"].notna().astype("int64").to_numpy(), rows["delay"].fillna(0).astype("int64").to_numpy()
    half, table = len(rows) // 2, None
    for part in (slice(0, half), slice(half, None)):
        table = settle(rows[part], ["tail", "place"], {"delay": (known[part], {0: values[part]})}, table)
    slow: dict[tuple, list[int]] = {}
    for tail, place, delay in rows[["tail", "place", "delay"]].itertuples(index=False):
        if isinstance(tail, str):
            counts = slow.setdefault((tail, place), [0, 0, 0])
            for position, value in enumerate((1, int(delay == delay), int(delay) if delay == delay else 0)):
                counts[position] += value
    assert {(row[0], row[1]): list(row[2:]) for row in table.itertuples(index=False)} == slow
    assert settle(rows.assign(tail=None), ["tail"], {}, None) is None
