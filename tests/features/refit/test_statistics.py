"""Fit statistics: equal to slow loops, whatever the partitions; saved, and refused when what was saved is damaged."""

import itertools
import json
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import example as pinned
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.quantiles import RadixHistogram
from gigabatch.features.refit.statistics import (
    CategoryStatistics,
    FitCategoryStatistics,
    FitContinuousStatistics,
    Statistics,
    median,
    quantile,
    statistics_operators,
)
from gigabatch.features.refit.statistics_files import load_statistics, possible_sums, save_statistics
from gigabatch.features.workflow.fit import fit_together
from tests.examples import examples
from tests.features.damage import damaged
from tests.features.partitioned import COUNTS, cut
from tests.features.statistics_columns import SCHEMA, continuous, numbers, slow_bin, words

WORD = st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "Ä", "", "0"]))
NUMBER = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 1.0, 1.0009765625, -2.5]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def plain(state):
    """A state in types that == compares."""
    if isinstance(state, CategoryStatistics):
        return state.rows, state.nulls, state.counts.to_dict("list")
    return state


@given(values=st.lists(WORD, max_size=40))
@settings(max_examples=examples(50), deadline=None)
def test_categories_equal_a_slow_loop(values):
    found = CategoryStatistics.of(words(values))
    known = Counter(value for value in values if value is not None)
    ordered = sorted(known, key=lambda value: (-known[value], value.encode()))
    assert (found.rows, found.nulls) == (len(values), values.count(None))
    assert found.counts["value"].tolist() == ordered
    assert found.counts["count"].tolist() == [known[value] for value in ordered]
    assert found.counts["last_version"].tolist() == [1] * len(ordered)


@given(values=st.lists(NUMBER, max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_continuous_equals_a_slow_loop(values):
    found = continuous(values)
    known = [value + 0.0 for value in values if value is not None]
    assert (found.rows, found.nulls, found.moments.count) == (len(values), values.count(None), len(known))
    assert Fraction(found.moments.total.units, 1 << 1074) == sum(map(Fraction, known))
    assert Fraction(found.moments.squares.units, 1 << 1074) == sum(Fraction(value) ** 2 for value in known)
    bins = sorted(Counter(map(slow_bin, known)).items())
    assert [*zip(found.histogram.bins.tolist(), found.histogram.counts.tolist(), strict=True)] == bins


def exact_quantile(values, percent):
    return sorted(values)[math.ceil(Fraction(percent * len(values), 100)) - 1]


@given(values=st.lists(st.integers(-255, 255).map(float), min_size=1, max_size=60), percent=st.integers(1, 99))
@settings(max_examples=examples(100), deadline=None)
def test_quantiles_of_small_whole_numbers_are_exact(values, percent):
    found = continuous(values)
    assert quantile(found, percent).value == exact_quantile(values, percent)
    assert median(found).value == float(np.median(values))


@given(
    values=st.lists(NUMBER.filter(lambda value: value is not None), min_size=1, max_size=60), percent=st.integers(1, 99)
)
@settings(max_examples=examples(200), deadline=None)
def test_quantiles_lie_within_their_bound(values, percent):
    ordered = sorted(map(Fraction, values))
    middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
    state = continuous(values)
    for found, exact in ((quantile(state, percent), exact_quantile(ordered, percent)), (median(state), middle)):
        assert abs(Fraction(found.value) - exact) <= Fraction(found.bound)


def test_bounds_are_less_than_a_percent():
    values = np.random.default_rng(3).lognormal(size=20_001).astype("float32")
    found = continuous(values)
    for percent in (1, 5, 25, 50, 75, 95, 99):
        exact = exact_quantile(values, percent)
        guess = quantile(found, percent)
        assert abs(guess.value - exact) <= guess.bound < exact / 127
    assert abs(median(found).value - np.median(values)) <= median(found).bound < np.median(values) / 127


@given(
    rows=st.lists(st.tuples(WORD, NUMBER), min_size=1, max_size=40),
    count=COUNTS,
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(60), deadline=None)
def test_statistics_do_not_depend_on_the_partitions_or_their_order(rows, count, seed):
    frame = pd.DataFrame({"word": words([word for word, _ in rows]), "x": numbers([x for _, x in rows])})
    parts = cut(frame.sample(frac=1, random_state=seed), count, seed)
    for operator in (FitCategoryStatistics("word"), FitContinuousStatistics("x")):
        one = operator.fit([frame])
        assert plain(operator.fit(parts)) == plain(one)
        merged = operator.fit(parts[:1])
        for part in parts[1:]:
            merged = merged.merge(operator.fit([part]))
        assert plain(merged) == plain(one)


def test_many_columns_are_fitted_in_one_pass_and_name_their_kind():
    frame = pd.DataFrame({"word": words(["a", None]), "number": [1, 2], "x": numbers([0.5, None])})
    passes = []
    states = fit_together(statistics_operators(SCHEMA), [frame], lambda part: passes.append(1) or part)
    found = Statistics.from_states(states)
    assert passes == [1]
    assert (found.rows, list(found.categories), list(found.numbers)) == (2, ["word", "number"], ["x"])


def test_tables_of_different_columns_do_not_merge():
    one = Statistics(1, {"a": CategoryStatistics.of(words(["x"]))}, {})
    other = Statistics(1, {"b": CategoryStatistics.of(words(["x"]))}, {})
    with pytest.raises(DataError, match=r"differ in columns \['a', 'b'\]"):
        one.merge(other)


def test_columns_of_different_tables_are_refused():
    with pytest.raises(DataError, match=r"of \[1, 2\] rows"):
        Statistics.of({"a": CategoryStatistics.of(words(["x"]))}, {"x": continuous([1, 2])})
    with pytest.raises(DataError, match=r"of no rows"):
        Statistics.of({}, {})


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_an_infinity_is_an_error_that_names_the_column(bad):
    with pytest.raises(DataError, match=r"column 'x' holds an infinity"):
        continuous([1.0, bad])


@pytest.mark.parametrize("ask", [median, lambda state: quantile(state, 5)])
def test_a_column_without_values_has_no_quantile(ask):
    with pytest.raises(DataError, match=r"no quantile"):
        ask(continuous([None]))


def example():
    many = np.random.default_rng(0).normal(size=9000)
    return Statistics(
        9000,
        {
            "word": CategoryStatistics.of(words(["a", "b", None] * 3000)),
            "none": CategoryStatistics.of(words([None] * 9000)),
        },
        {
            "few": continuous([1.5, -2.0, None] * 3000),
            "many": continuous(many),
            "null": continuous([None] * 9000),
        },
    )


def same(one, other):
    assert (one.rows, list(one.categories), list(one.numbers)) == (
        other.rows,
        list(other.categories),
        list(other.numbers),
    )
    for left, right in itertools.chain(
        zip(one.categories.values(), other.categories.values(), strict=True),
        zip(one.numbers.values(), other.numbers.values(), strict=True),
    ):
        assert plain(left) == plain(right)


def test_saved_statistics_load_equal(tmp_path):
    saved = example()
    save_statistics(saved, tmp_path)
    loaded = load_statistics(tmp_path)
    same(loaded, saved)
    assert isinstance(loaded.numbers["many"], ColumnStatistics)
    same(loaded.merge(saved), saved.merge(loaded))
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".parquet"}
    first = (tmp_path / "statistics.json").read_bytes()
    save_statistics(loaded, tmp_path)
    assert (tmp_path / "statistics.json").read_bytes() == first


def test_statistics_that_have_a_file_for_each_column_load_equal(tmp_path):
    """As earlier versions wrote them."""
    saved = example()
    save_statistics(saved, tmp_path)
    raw = json.loads((tmp_path / "statistics.json").read_text())
    (tmp_path / "statistics.json").write_text(json.dumps(raw | {"format": 1}))
    table, first = pd.read_parquet(tmp_path / "statistics-numbers.parquet"), len(raw["categories"])
    for place in range(len(raw["numbers"])):
        part = table.loc[table["column"] == place, ["bin", "count"]].reset_index(drop=True)
        part.to_parquet(tmp_path / f"statistics-{first + place:03d}.parquet", index=False)
    (tmp_path / "statistics-numbers.parquet").unlink()
    same(load_statistics(tmp_path), saved)


@given(
    st.dictionaries(
        st.integers(0x80, 0xFF7F) | st.sampled_from([0x7FFF, 0x8000, 0x8001]),
        st.integers(1, 2**40) | st.integers(1, 9) | st.just(2**31 - 1),
        max_size=30,
    )
)
@pinned({0x7FFF: 1, 0x8000: 1, 0x80: 2**31, 0xFF7F: 2**31})
@settings(max_examples=examples(200))
def test_the_sums_that_a_histogram_allows_are_those_of_a_slow_loop(counts):
    """Every number at the one end of its bin, or at the other; in fractions."""
    bins = sorted(counts)
    histogram = RadixHistogram.from_arrays("float32", np.array(bins, "int64"), np.array([counts[b] for b in bins]))
    ends = [
        (Fraction(low), Fraction(high)) for low, high in zip(*map(np.ndarray.tolist, histogram.edges()), strict=True)
    ]
    sums, squares = [0, 0], [0, 0]
    for (low, high), count in zip(ends, histogram.counts.tolist(), strict=True):
        small, large = sorted([low**2, high**2])
        sums = [sums[0] + low * count, sums[1] + high * count]
        squares = [squares[0] + small * count, squares[1] + large * count]
    units = Fraction(2) ** 1074
    assert possible_sums(histogram) == (tuple(x * units for x in sums), tuple(x * units for x in squares))


def damage_json(*path, value):
    def damage(folder):
        raw = json.loads((folder / "statistics.json").read_text())
        inside = raw
        for name in path[:-1]:
            inside = inside[name]
        inside[path[-1]] = value
        (folder / "statistics.json").write_text(json.dumps(raw))

    return damage


def damage_table(file, change):
    def damage(folder):
        table = pd.read_parquet(folder / f"{file}.parquet")
        change(table).to_parquet(folder / f"{file}.parquet", index=False)

    return damage


def damage_bins(name, change):
    """Of the rows of one column in the file of all numbers."""

    def damage(folder):
        numbers = json.loads((folder / "statistics.json").read_text())["numbers"]
        place, path = list(numbers).index(name), folder / "statistics-numbers.parquet"
        table = pd.read_parquet(path)
        parts = [part.reset_index(drop=True) for _, part in table.groupby("column")]
        parts[place] = change(parts[place])
        pd.concat(parts).to_parquet(path, index=False)

    return damage


def change_cell(column, row, value):
    def change(table):
        table = table.copy()
        table.loc[row, column] = table[column].dtype.type(value) if table[column].dtype.kind in "if" else value
        return table

    return change


DAMAGE = {
    "no json": lambda folder: (folder / "statistics.json").unlink(),
    "half a json": lambda folder: (folder / "statistics.json").write_text("{"),
    "another json": lambda folder: (folder / "statistics.json").write_text("[]"),
    "format": damage_json("format", value=3),
    "rows are text": damage_json("rows", value="9000"),
    "rows are true": damage_json("rows", value=True),
    "fewer rows": damage_json("rows", value=8999),
    "nulls below 0": damage_json("categories", "word", "nulls", value=-1),
    "more nulls than rows": damage_json("numbers", "few", "nulls", value=9001),
    "sum is a number": damage_json("numbers", "few", "sum", value=1),
    "sum is not hexadecimal": damage_json("numbers", "few", "sum", value="0xzz"),
    "another sum": damage_json("numbers", "few", "sum", value="0x1"),
    "squares too small": damage_json("numbers", "many", "sum_of_squares", value="0x1"),
    "squares too large": damage_json("numbers", "few", "sum_of_squares", value=hex(19000 * 3 << 1074)),
    "squares of nothing": damage_json("numbers", "null", "sum_of_squares", value="0x1"),
    "no table": lambda folder: (folder / "statistics-numbers.parquet").unlink(),
    "a column of numbers more": damage_table(
        "statistics-numbers", lambda table: table.assign(column=table["column"] + 1)
    ),
    "a column of numbers below 0": damage_table(
        "statistics-numbers", lambda table: table.assign(column=table["column"] - 1)
    ),
    "columns of numbers out of order": damage_table("statistics-numbers", lambda table: table.iloc[::-1]),
    "bins without columns": damage_table("statistics-numbers", lambda table: table[["bin", "count"]]),
    "a null column": damage_table(
        "statistics-numbers", lambda table: table.assign(column=table["column"].astype("Int64").mask(table.index == 0))
    ),
    "not a parquet file": lambda folder: (folder / "statistics-000.parquet").write_bytes(b"PAR1"),
    "a column less": damage_table("statistics-000", lambda table: table[["value", "count"]]),
    "a float count": damage_table("statistics-000", lambda table: table.astype({"count": "float64"})),
    "a null value": damage_table("statistics-000", change_cell("value", 0, None)),
    "a value twice": damage_table("statistics-000", change_cell("value", 0, "b")),
    "version 0": damage_table("statistics-000", change_cell("last_version", 0, 0)),
    "another order of values": damage_table("statistics-000", lambda table: table.iloc[::-1]),
    "a count more": damage_table("statistics-000", change_cell("count", 0, 3001)),
    "a count of 0": damage_bins("many", change_cell("count", 0, 0)),
    "a bin out of range": damage_bins("many", change_cell("bin", 0, -1)),
    "another order of bins": damage_bins("many", lambda table: table.iloc[::-1]),
    "a bin twice": damage_bins("many", lambda table: pd.concat([table, table.tail(1)])),
    "a bin of infinity": damage_bins("many", lambda table: table.assign(bin=[*table["bin"][:-1], 0xFF80])),
    "a float bin": damage_bins("many", lambda table: table.astype({"bin": "float64"})),
    "another bin": damage_bins("few", lambda table: table.assign(bin=table["bin"] + 1)),
    "another count": damage_bins("few", lambda table: table.assign(count=[2000, 4000])),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_statistics_are_refused(tmp_path, kind):
    save_statistics(example(), tmp_path)
    DAMAGE[kind](tmp_path)
    with pytest.raises(DataError, match=r"statistics"):
        load_statistics(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    save_statistics(example(), folder)
    return folder, sorted(path.name for path in folder.iterdir())


@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_damaged_bytes_are_refused_or_load_as_statistics(saved, data):
    folder, names = saved
    path = folder / data.draw(st.sampled_from(names))
    content = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(content)))
        found = load_statistics(folder)
    except DataError:
        return
    finally:
        path.write_bytes(content)
    assert isinstance(found, Statistics)
    same(found.merge(found), found.merge(found))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": 1, "rows": 1e999}', '{"format": 1, "rows": NaN}', "\x00"])
def test_hostile_json_is_refused(tmp_path, text):
    (tmp_path / "statistics.json").write_text(text)
    with pytest.raises(DataError, match=r"statistics"):
        load_statistics(tmp_path)


def test_numbers_beyond_reason_are_refused(tmp_path):
    for value in ("0x" + "f" * 100_000, "-0x1", "1e5", "0x1_0"):
        save_statistics(example(), tmp_path)
        damage_json("numbers", "few", "sum_of_squares", value=value)(tmp_path)
        with pytest.raises(DataError, match=r"column 'few'"):
            load_statistics(tmp_path)
