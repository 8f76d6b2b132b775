"""Drift against slow loops and evidently's number; what is noise, and what each threshold does."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.pipeline.contract.drift import drift
from gigabatch.pipeline.contract.terms import DriftTerms
from tests.pipeline.contract.evidently_numbers import sides

EVIDENTLY = 0.07043517212560445  # evidently_numbers.py, evidently 0.7.23


def statistics(frame):
    categories, numbers = {}, {}
    for name in frame:
        if frame[name].dtype.kind == "f":
            numbers[name] = ColumnStatistics.of(frame[name].to_numpy("float32"))
        else:
            categories[name] = CategoryStatistics.of(frame[name])
    return Statistics(len(frame), categories, numbers)


def values(old, new, **options):
    found = drift(statistics(old), statistics(new), **options)
    return {(item.column, item.measure): item for item in found.measures}


def test_measures_are_those_of_a_slow_loop_and_of_evidently():
    old, new = sides()
    old["city"] = old["city"].astype("object").where(np.arange(len(old)) % 50 > 0)
    found = values(old, new)
    whole, fresh = sides()
    assert values(whole, fresh)["city", "psi"].value == pytest.approx(EVIDENTLY, abs=2e-4)  # without half a row a cell
    assert found["city", "nulls"].value == pytest.approx(0.02)
    before, after = np.sort(old["price"].to_numpy()), np.sort(new["price"].to_numpy())
    shifts = [
        abs(after[math.ceil(q * len(after)) - 1] - before[math.ceil(q * len(before)) - 1])
        for q in (0.05, 0.25, 0.5, 0.75, 0.95)
    ]
    # A quantile is known to its histogram's bin, less than 1 % of its value, and the shift is given less that.
    expected = max(shifts) / before.std()
    assert expected - 0.05 < found["price", "quantile"].value <= expected
    assert (found["price", "quantile"].verdict, found["price", "psi"].verdict) == ("warn", "warn")
    deciles = [before[math.ceil(k * len(before) / 10) - 1] for k in range(1, 10)]
    shares = []
    for side in (before, after):
        counts = [0] * 10
        for value in side:
            counts[sum(value > cut for cut in deciles)] += 1
        shares.append([count / len(side) for count in counts])
    index = sum((a - e) * math.log(a / e) for e, a in zip(*shares, strict=True))
    assert found["price", "psi"].value == pytest.approx(index, rel=0.05)


def test_unseen_values_count_above_what_a_long_tail_brings():
    random = np.random.default_rng(0)
    tail = pd.DataFrame({"user": [f"u{n}" for n in random.zipf(1.5, 20_000)]})
    more = pd.DataFrame({"user": [f"u{n}" for n in random.zipf(1.5, 5000)]})
    known = set(tail["user"])
    rate = sum(user not in known for user in more["user"]) / len(more)
    assert rate > 0.01
    assert values(tail, more)["user", "unseen"].verdict == "ok"
    other = more.assign(user=more["user"].where(np.arange(5000) % 4 > 0, [f"new{n}" for n in range(5000)]))
    assert values(tail, other)["user", "unseen"].verdict == "drift"


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_kind_are_no_drift(seed):
    random = np.random.default_rng(seed)

    def rows(count):
        return pd.DataFrame({
            "city": random.choice(list("abcdefghij"), count), "label": random.choice(["0", "1"], count, p=[0.7, 0.3]),
            "price": random.gamma(2, 5, count), "amount": random.normal(100, 15, count),
            "zero": np.where(random.random(count) < 0.9, 0.0, random.random(count)),
        })  # fmt: skip

    found = drift(statistics(rows(20_000)), statistics(rows(300)), labels=["label", "amount"])
    assert [str(item) for item in found.measures if item.verdict == "drift"] == []


def test_labels_are_held_to_their_own_threshold():
    old = pd.DataFrame({"late": ["0"] * 800 + ["1"] * 200, "cost": np.linspace(0, 100, 1000)})
    new = pd.DataFrame({"late": ["0"] * 600 + ["1"] * 400, "cost": np.linspace(20, 120, 1000)})
    found = values(old, new, labels=["late", "cost"])
    assert found["late", "label"].value == pytest.approx(0.2)
    assert found["late", "label"].verdict == "drift"
    assert found["cost", "label"].value == pytest.approx(20 / old["cost"].std(ddof=0))
    assert ("late", "unseen") not in found
    wide = values(old, new, labels=["late", "cost"], terms=DriftTerms(label=(0.3, 0.9)), own={"late": {"psi": (5, 9)}})
    assert wide["late", "label"].verdict == "ok"
    assert wide["cost", "label"].verdict == "warn"
    assert wide["late", "psi"].verdict == "ok"


def test_columns_without_values_and_constants():
    old = pd.DataFrame(
        {"none": [None] * 500, "empty": np.full(500, np.nan), "same": np.full(500, 7.0), "one": ["a"] * 500}
    )
    same = drift(statistics(old.astype({"none": "str"})), statistics(old.astype({"none": "str"})))
    assert same.verdict == "ok"
    assert all(math.isfinite(item.value) for item in same.measures)
    new = old.assign(empty=1.0, same=8.0, one="b")
    found = drift(statistics(old.astype({"none": "str"})), statistics(new.astype({"none": "str"}))).verdicts()
    assert found == {"none": "ok", "one": "drift", "empty": "drift", "same": "drift"}


def test_other_columns_are_an_error():
    with pytest.raises(DataError, match="not of the same columns"):
        drift(statistics(pd.DataFrame({"a": ["x"]})), statistics(pd.DataFrame({"b": ["x"]})))


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.95, 0.05), (0.748, 0.252), (0.5, 0.25, 0.15, 0.05, 0.05)])
def test_numbers_of_few_values_have_no_quantile_that_jumps(shares):
    """Where a value ends just at a quantile, chance alone turned it into the next value: by 4 deviations of a flag."""
    found = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        sides = (random.choice(len(shares), rows, p=shares) for rows in (50_000, 2000))
        old, new = (pd.DataFrame({"x": side.astype("float64")}) for side in sides)
        found.append(values(old, new)["x", "quantile"].verdict)
    assert found.count("ok") == 20


@pytest.mark.parametrize(("before", "after"), [(0.06, 0.04), (0.26, 0.24), (0.47, 0.53)])
def test_the_quantiles_of_a_flag_move_as_its_share_does(before, after):
    old, new = (pd.DataFrame({"x": (np.arange(10_000) < share * 10_000) * 1.0}) for share in (before, after))
    found = values(old, new)["x", "quantile"]
    # The mid-quantile of share p is p's place between (1 - share) / 2 and 1 - share / 2, which lie one half apart.
    assert found.value == pytest.approx(abs(after - before) / math.sqrt(before * (1 - before)), abs=0.02 / 0.22)
    assert found.verdict == "ok"


def test_quantiles_are_mid_quantiles_of_a_slow_loop():
    """Ma, Genton and Parzen 2011: places (rows below + half of those that are equal) / rows, straight lines between."""

    def mid_quantile(column, share):
        distinct = sorted(set(column))
        places = [(sum(x < value for x in column) + sum(x == value for x in column) / 2) / len(column)
                  for value in distinct]  # fmt: skip
        return float(np.interp(share, places, distinct))

    random = np.random.default_rng(3)
    old, new = random.integers(0, 9, 400).astype("float64"), random.integers(4, 13, 300).astype("float64")
    found = values(pd.DataFrame({"x": old}), pd.DataFrame({"x": new}))["x", "quantile"]
    shifts = [abs(mid_quantile(new, share) - mid_quantile(old, share)) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
    assert found.value == pytest.approx(max(shifts) / old.std(), abs=0.1)  # less two bins' widths
    assert found.verdict == "drift"


def test_a_gap_in_the_values_is_no_shift():
    """Two prices, half of the rows each: the median is anywhere between them."""
    verdicts = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        sides = (np.where(random.random(rows) < 0.5, 10, 100) + random.normal(size=rows) for rows in (20_000, 1000))
        verdicts.append(values(*(pd.DataFrame({"x": side}) for side in sides))["x", "quantile"].verdict)
    assert verdicts.count("drift") == 0
    assert verdicts.count("ok") >= 17
