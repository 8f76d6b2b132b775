"""Churn from fit statistics: equal to slow loops over the raw rows of both tables."""

import json
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.refit import statistics
from gigabatch.features.refit.churn import (
    Churn,
    Thresholds,
    category_churn,
    churn,
    churn_text,
    continuous_churn,
    decile_counts,
    expected_unseen,
    stability,
)
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from tests.examples import examples
from tests.features.statistics_columns import continuous, slow_bin, words

WORDS = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "Ä", "", "0"])), max_size=30)
NUMBERS = st.lists(
    st.one_of(st.none(), st.sampled_from([0.0, 1.0, -2.5]), st.floats(-(2.0**100), 2.0**100, width=32)), max_size=40
)


def vocabulary(values):
    return Vocabulary(words(values), pd.Series([0] * len(values), dtype="int64"))


def known(values):
    return [value for value in values if value is not None]


def psi(old, new):
    """The formula of the module's docstring over two dicts of rows by cell."""
    cells = set(old) | set(new)
    total = 0.0
    for cell in cells:
        before = (old.get(cell, 0) + 0.5) / (sum(old.values()) + 0.5 * len(cells))
        after = (new.get(cell, 0) + 0.5) / (sum(new.values()) + 0.5 * len(cells))
        total += (after - before) * math.log(after / before)
    return total


@given(old=WORDS, new=WORDS, cut=st.integers(1, 3))
@settings(max_examples=examples(100), deadline=None)
def test_a_categorical_column_equals_a_slow_loop(old, new, cut):
    counts = Counter(known(old))
    fitted = [value for value in counts if counts[value] >= cut]
    found = category_churn(
        "word", CategoryStatistics.of(words(old)), CategoryStatistics.of(words(new)), vocabulary(fitted)
    )
    for rows, null_rate, unseen_rate in (
        (old, found.null_rate_old, found.unseen_rate_old),
        (new, found.null_rate, found.unseen_rate),
    ):
        assert null_rate == (rows.count(None) / len(rows) if rows else 0.0)
        assert unseen_rate == (sum(value not in fitted for value in known(rows)) / len(rows) if rows else 0.0)
    for values, table, other in ((found.new, new, old), (found.vanished, old, new)):
        missing = Counter(value for value in known(table) if value not in other)
        assert values.count == len(missing)
        assert values.share == (sum(missing.values()) / len(table) if table else 0.0)
        assert values.examples == tuple(sorted(missing.items(), key=lambda item: (-item[1], item[0].encode())))
    assert found.absent_since == ({1: found.vanished.count} if found.vanished.count else {})
    if known(old) and known(new):
        cells = Counter(value if value in counts else "other" for value in known(new))
        assert math.isclose(found.stability.psi, psi(counts, cells), abs_tol=1e-12)
    else:
        assert found.stability is None


@given(rows=WORDS, cut=st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_the_expected_share_of_the_unseen_is_that_of_leaving_each_row_out(rows, cut):
    counts = Counter(known(rows))
    fitted = [value for value in counts if counts[value] >= cut]
    out = sum((counts - Counter([value]))[value] < cut for value in known(rows))
    found = expected_unseen(CategoryStatistics.of(words(rows)), vocabulary(fitted), cut)
    assert found == (out / len(rows) if rows else 0.0)


@given(items=WORDS.filter(known), history=WORDS.filter(known), cut=st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_lists_that_share_a_vocabulary_expect_what_both_columns_hold(items, history, cut):
    """A value that is once in the lists and often in the column whose vocabulary they take was expected to be unseen,
    so that what really was unseen there raised no flag."""
    counts = Counter(known([*items, *history]))
    fitted = vocabulary([value for value in counts if counts[value] >= cut])
    elements = CategoryStatistics.of(words(known(history)))
    old = Statistics.of({"item": CategoryStatistics.of(words(items))}, {}, {"seen": elements}, {"seen": "item"})
    report = churn(old, old, {"item": fitted}, min_counts={"item": cut})
    for found, rows in zip(report.categories, (items, known(history)), strict=True):
        out = sum((counts - Counter([value]))[value] < cut for value in known(rows))
        assert found.unseen_rate_expected == out / len(rows)
    never = churn(old, old, {"item": vocabulary([*counts, "never"])}).categories
    assert [found.never_seen for found in never] == [1, 1]  # not what the other column holds


@pytest.mark.parametrize("min_count", [1, 2, 5])
def test_a_stable_tail_of_rare_values_raises_no_flag_and_a_growing_one_does(min_count):
    """F12: every update of a column with a long tail was flagged."""
    random = np.random.default_rng(0)
    old, same = ([f"v{n}" for n in random.zipf(1.5, 4000)] for _ in range(2))
    more = [value if random.random() < 0.85 else f"new{n}" for n, value in enumerate(same)]
    counts = Counter(old)
    fitted = vocabulary([value for value in counts if counts[value] >= min_count])
    for new, flagged in ((same, False), (more, True)):
        states = [Statistics.of({"word": CategoryStatistics.of(words(rows))}, {}) for rows in (old, new)]
        report = churn(*states, {"word": fitted}, min_counts={"word": min_count})
        assert report.categories[0].unseen_rate >= 0.05  # the absolute share, which was flagged
        assert ("unseen rate" in [flag.measure for flag in report.flags]) == flagged


def test_only_the_most_frequent_values_are_cells_of_their_own():
    old = [f"v{i:02d}" for i in range(30) for _ in range(31 - i)]
    new = [f"v{i:02d}" for i in range(10, 40) for _ in range(3)]
    top = {f"v{i:02d}" for i in range(20)}
    cells = [Counter(value if value in top else "other" for value in rows) for rows in (old, new)]
    found = category_churn(
        "word", CategoryStatistics.of(words(old)), CategoryStatistics.of(words(new)), vocabulary(["v00"])
    )
    assert found.stability.cells == 21
    assert math.isclose(found.stability.psi, psi(*cells), rel_tol=1e-12)
    assert len(found.new.examples) == len(found.vanished.examples) == 10
    assert (found.new.count, found.vanished.count) == (10, 10)


def test_values_are_absent_since_the_version_that_last_held_them():
    old = CategoryStatistics.of(words(["a", "b", "c", "d"]))
    old = old.merge(CategoryStatistics.of(words(["b", "c", "e"])).at_version(2))
    old = old.merge(CategoryStatistics.of(words(["c", "f"])).at_version(3))
    new = CategoryStatistics.of(words(["c", "g"])).at_version(4)
    found = category_churn("word", old, new, vocabulary(["a", "b", "c", "d", "given", "g"]))
    assert found.absent_since == {1: 2, 2: 2, 3: 1}  # a d, b e, f
    assert found.vanished.count == 5
    assert found.never_seen == 1
    assert found.new.examples == (("g", 1),)


def slow_deciles(old, new):
    """Cells of whole bins, by the raw values: a cell ends with the bin of the value at a decile's rank."""
    ordered = sorted(old)
    ends = sorted({slow_bin(ordered[math.ceil(Fraction(i * len(old), 10)) - 1]) for i in range(1, 10)})
    return [Counter(sum(slow_bin(value) > end for end in ends) for value in rows) for rows in (old, new)]


@given(old=NUMBERS, new=NUMBERS)
@settings(max_examples=examples(100), deadline=None)
def test_a_continuous_column_equals_a_slow_loop(old, new):
    states = [continuous(rows) for rows in (old, new)]
    found = continuous_churn("x", *states)
    for rows, null_rate, mean, std, ends in (
        (old, found.null_rate_old, found.mean_old, found.std_old, found.range_old),
        (new, found.null_rate, found.mean, found.std, found.range),
    ):
        values = [Fraction(value) for value in known(rows)]
        assert null_rate == (rows.count(None) / len(rows) if rows else 0.0)
        if not values:
            assert (mean, std, ends) == (None, None, None)
            continue
        middle = sum(values) / len(values)
        assert mean == float(middle)
        assert std == math.sqrt(sum((value - middle) ** 2 for value in values) / len(values))
        assert ends[0] <= min(values)
        assert slow_bin(ends[0]) == slow_bin(float(min(values)))
        assert ends[1] >= max(values)
        assert slow_bin(ends[1]) == slow_bin(float(max(values)))
    if not known(old) or not known(new):
        assert (found.stability, found.quantiles, found.mean_shift) == (None, (), None)
        return
    assert found.mean_shift == ((found.mean - found.mean_old) / found.std_old if found.std_old else None)
    cells = slow_deciles(known(old), known(new))
    assert [sum(side) for side in decile_counts(*states)] == [len(known(old)), len(known(new))]
    assert math.isclose(found.stability.psi, psi(*cells), abs_tol=1e-12)
    for shift in found.quantiles:
        before, after = (
            Fraction(sorted(known(rows))[math.ceil(Fraction(shift.percent * len(known(rows)), 100)) - 1])
            for rows in (old, new)
        )
        # The bound is of the two estimates; their difference is rounded once more.
        slack = Fraction(2.0**-52) * (abs(Fraction(shift.old)) + abs(Fraction(shift.new)))
        assert abs(Fraction(shift.shift) - (after - before)) <= Fraction(shift.bound) + slack


def test_a_shifted_normal_has_the_index_of_its_theory_and_no_shift_none():
    random = np.random.default_rng(0)
    old, same, moved = (random.normal(shift, size=100_000) for shift in (0, 0, 0.5))
    states = [continuous(values) for values in (old, same, moved)]
    cuts = scipy.stats.norm.ppf(np.arange(1, 10) / 10)
    shares = np.diff([0, *scipy.stats.norm.cdf(cuts - 0.5), 1])
    theory = float(((shares - 0.1) * np.log(shares / 0.1)).sum())
    found = continuous_churn("x", states[0], states[2])
    assert found.stability.cells == 10
    assert math.isclose(found.stability.psi, theory, rel_tol=0.03)
    assert math.isclose(found.mean_shift, 0.5, abs_tol=0.02)
    assert [math.isclose(shift.shift, 0.5, abs_tol=0.1) for shift in found.quantiles] == [True] * 7
    still = continuous_churn("x", states[0], states[1])
    assert still.stability.psi < still.stability.noise < 0.001


def test_noise_is_the_95th_percentile_of_the_index_without_a_shift():
    cells = 5
    random = np.random.default_rng(cells)
    shares = np.full(cells, 1 / cells)
    found = [
        stability(random.multinomial(4000, shares).tolist(), random.multinomial(1000, shares).tolist())
        for _ in range(2000)
    ]
    assert 0.03 < np.mean([item.psi > item.noise for item in found]) < 0.07
    exact = (1 / 4000 + 1 / 1000) * scipy.stats.chi2.ppf(0.95, cells - 1)
    assert math.isclose(found[0].noise, exact, rel_tol=1e-9)


@pytest.mark.parametrize(("old", "new"), [(2000, 5), (5, 5), (4, 300)])
def test_few_rows_shift_no_mean_by_chance(old, new):
    """`update` with 5 rows flagged the mean of every fourth column: half a deviation is what they miss by."""
    random = np.random.default_rng(3)
    flags = shifts = 0
    for _ in range(400):
        given = [random.normal(7, 3, size=size) for size in (old, new)]
        found = continuous_churn("x", *map(continuous, given))
        # Student's test, with the deviation of the old sample alone.
        t = (given[1].mean() - given[0].mean()) / (given[0].std(ddof=1) * math.sqrt(1 / old + 1 / new))
        chance = scipy.stats.t.sf(abs(t), old - 1) * 2 >= 0.05
        assert (abs(found.mean_shift) <= found.mean_noise) == chance
        flagged = {flag.measure for flag in Churn(1, old, new, (), (found,)).flags} & {"mean shift"}
        flags += len(flagged)
        shifts += abs(found.mean_shift) >= 0.5
    assert flags / 400 < 0.08 < shifts / 400
    moved = continuous_churn("x", *map(continuous, (random.normal(7, 3, 2000), np.full(5, 13.0))))
    assert next(flag.measure for flag in Churn(1, 2000, 5, (), (moved,)).flags) == "mean shift"


def test_few_rows_change_no_share_by_chance():
    """One null among 5 rows is a fifth of them; where a tenth are null that is no change."""
    old = continuous([None] * 200 + [1.0, 2.0] * 900)
    few = continuous([None] + [1.0, 2.0] * 2)
    more = continuous([None] * 20 + [1.0, 2.0] * 40)
    for new, flagged in ((few, []), (more, ["null rate"])):
        report = Churn(1, 2000, new.rows, (), (continuous_churn("x", old, new),))
        assert [flag.measure for flag in report.flags] == flagged
        assert Churn.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    ("nulls", "old", "new"), [(40, 2000, 5), (0, 20, 10), (1, 20, 10), (100, 2000, 30), (0, 2000, 40), (300, 2000, 500)]
)
def test_chance_alone_flags_a_share_in_one_case_of_forty(nulls, old, new):
    """Of 2 % nulls it did in 9.6 % of 5 rows, and one null of 10 rows was a change where 20 rows had none."""
    before = continuous([None] * nulls + [1.0] * (old - nulls))
    flagged = 0.0
    for count in range(new + 1):
        after = continuous([None] * count + [1.0] * (new - count))
        noise = Churn(1, old, new, (), ()).null_noise(item := continuous_churn("x", before, after))
        if item.null_rate - item.null_rate_old > noise:
            flagged += scipy.stats.binom.pmf(count, new, (nulls + 0.5) / (old + 1))
    assert flagged <= 0.025
    assert item.null_rate - item.null_rate_old > noise  # all are null


def test_one_cell_has_no_index():
    found = stability([5], [7])
    assert (found.psi, found.cells, found.noise) == (0.0, 1, 0.0)


def example():
    random = np.random.default_rng(1)
    old = Statistics(
        2000,
        {"word": CategoryStatistics.of(words(["a", "b"] * 1000)), "still": CategoryStatistics.of(words(["a"] * 2000))},
        {
            "x": continuous(random.normal(size=2000)),
            "steady": continuous(np.arange(2000) % 7),
        },
    )
    new = Statistics(
        1000,
        {
            "word": CategoryStatistics.of(words(["a", "c"] * 400 + [None] * 200)),
            "still": CategoryStatistics.of(words(["a"] * 1000)),
        },
        {
            "x": continuous(random.normal(0.9, size=1000)),
            "steady": continuous(np.arange(1000) % 7),
        },
    )
    return old, new, {"word": vocabulary(["a", "b"]), "still": vocabulary(["a"])}


def test_flags_name_what_reached_its_threshold_and_nothing_else():
    found = churn(*example(), version=3)
    assert [(flag.column, flag.measure, flag.threshold) for flag in found.flags] == [
        ("word", "null rate", 0.05),
        ("word", "unseen rate", 0.05),
        ("word", "PSI, large", 0.25),
        ("x", "mean shift", 0.5),
        ("x", "PSI, large", 0.25),
    ]
    assert [flag.value for flag in found.flags][:2] == [0.2, 0.4]
    assert replace(found, thresholds=Thresholds(9, 99, 9, 9, 9)).flags == ()
    moderate = replace(found, thresholds=Thresholds(0.1, 99, 9, 9, 9)).flags
    assert [(flag.column, flag.measure) for flag in moderate] == [("word", "PSI, moderate"), ("x", "PSI, moderate")]


def test_few_rows_raise_no_flag_by_their_index_alone():
    old = continuous(np.random.default_rng(0).normal(size=1000))
    new = continuous([-0.1, 0.2, 0.7, -0.9])
    found = continuous_churn("x", old, new)
    assert 0.25 < found.stability.psi < found.stability.noise
    report = churn(Statistics(1000, {}, {"x": old}), Statistics(4, {}, {"x": new}), {})
    assert report.flags == ()


def test_the_report_is_json_and_text():
    found = churn(*example(), version=3)
    raw = json.loads(found.to_json())
    assert (raw["version"], raw["rows_old"], raw["rows"]) == (3, 2000, 1000)
    assert raw["categories"][0]["new"] == {"count": 1, "share": 0.4, "examples": [["c", 400]]}
    assert raw["categories"][0]["vanished"] == {"count": 1, "share": 0.5, "examples": [["b", 1000]]}
    assert [shift["percent"] for shift in raw["numbers"][0]["quantiles"]] == [1, 5, 25, 50, 75, 95, 99]
    assert len(raw["flags"]) == 5
    text = churn_text(found).splitlines()
    assert text[0] == "1,000 new rows against 2,000 of version 3"
    assert any(line.split()[:4] == ["word", "0.00%", ">", "20.00%"] and "1 (40.00%)" in line for line in text)
    assert "word: unseen rate 0.4 (threshold 0.05)" in text
    quiet = churn_text(churn(example()[0], example()[0], example()[2]))
    assert quiet.splitlines()[-1] == "no flag"


def test_whole_numbers_and_empty_tables_are_reported():
    old = CategoryStatistics.of(pd.Series([7, 7, 8], name="n"))
    new = CategoryStatistics.of(pd.Series([], dtype="int64", name="n"))
    known_values = Vocabulary(pd.Series([7, 8]), pd.Series([2, 1]))
    found = category_churn("n", old, new, known_values)
    assert (found.vanished.examples, found.stability, found.null_rate) == (((7, 2), (8, 1)), None, 0.0)
    report = churn(Statistics(3, {"n": old}, {}), Statistics(0, {"n": new}, {}), {"n": known_values})
    assert json.loads(report.to_json())["categories"][0]["vanished"]["examples"] == [[7, 2], [8, 1]]


def test_other_columns_are_an_error():
    old, new, vocabularies = example()
    with pytest.raises(DataError, match=r"not of the same columns"):
        churn(old, statistics.replace(new, numbers={}), vocabularies)
