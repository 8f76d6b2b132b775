"""The shortcuts by which `init` looks at columns tell what the long ways tell."""

from __future__ import annotations

import random
import re
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.columns.time_types import of_type, time_type
from gigabatch.features.columns.times import ISO_8601, microseconds
from gigabatch.features.errors import DataError
from gigabatch.pipeline.init.columns import CLOCK, NULL_WORDS, PLAIN_NUMBER, Seen, _floats, column_seen
from gigabatch.pipeline.init.draft import _share_of_copies
from gigabatch.pipeline.init.leaks import _auc, leak
from gigabatch.pipeline.init.look import Table, look_at
from gigabatch.pipeline.init.texts import all_match, are_among, found_in

ODD = ["1:02", " 1:02 ", "1:02\n", "1:02\N{NO-BREAK SPACE}", "-12:30", "1:2", "1:02:03.5", "x1:02", "7", "7.5", " 7",
       "+7", "7\n", "7e3", ".5", "5.", "٣", "007", " 007", "inf", "nan", "", "2024-01-31", "2024-01-31 14:05",
       "2024-01-31Z", "2024-01-31T14:05:59.25+02:00", "2024-1-31", "NA", "größe"]  # fmt: skip


@pytest.mark.parametrize("pattern", [PLAIN_NUMBER, ISO_8601, CLOCK.pattern, "[0-9]", r"^[ \t]*0[0-9]+[ \t]*$"])
def test_patterns_find_what_those_of_pandas_find(pattern):
    texts = pd.Series(ODD, dtype="str")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that patterns have groups
        wanted = texts.str.contains(pattern).tolist()
    assert found_in(texts, pattern).tolist() == wanted
    for text in ODD:
        one = pd.Series([text], dtype="str")
        assert all_match(one, pattern) == bool(one.str.match(pattern).all()), text


def test_the_last_text_counts():
    assert not all_match(pd.Series(["7"] * 500 + ["x"]), "[0-9]")
    assert all_match(pd.Series([], dtype="str"), "[0-9]")


def test_words_are_whole_texts_and_no_null():
    texts = pd.Series([*ODD, None], dtype="str")
    assert are_among(texts, NULL_WORDS).tolist() == [text in NULL_WORDS for text in [*ODD, None]]


def test_floats_are_those_of_python():
    draw = random.Random(0)
    texts = [f"{draw.choice(['', '-'])}{draw.randrange(10**18)}.{draw.randrange(10**draw.randint(1, 20))}"
             f"e{draw.randint(-340, 320)}" for _ in range(20_000)]  # fmt: skip
    texts += ["5.", ".5", "-0", "9007199254740993", "4.9e-324", "1e999", "1e-999", "179769313486231580793e289"]
    for given in (texts, [*texts, " 7\t", "+7"]):
        assert all(re.match(PLAIN_NUMBER, text) for text in given)
        found = _floats(pd.Series(given, dtype="str"))
        np.testing.assert_array_equal(found.view("int64"), np.array([float(text) for text in given]).view("int64"))


def test_values_that_are_replaced_are_counted_again():
    seen = Seen("x", "number", np.array([1.0, 2.0, np.nan]))
    assert seen.num_values == 2
    assert seen.null.tolist() == [False, False, True]
    seen.values = np.array(["a", None, "a"], dtype=object)
    assert seen.num_values == 1
    assert seen.null.tolist() == [False, True, False]


@pytest.mark.parametrize("distinct", [1, 2, 7, 60, 1000])
def test_the_auc_of_scores_is_that_of_their_pairs_and_ties_count_half(distinct):
    rows = np.random.default_rng(distinct)
    label, score = rows.integers(0, 2, 300).astype("float64"), rows.integers(0, distinct, 300) / 7 - 0.3
    zeros, ones = score[label == 0][:, None], score[label == 1][None, :]
    twice = int((2 * (ones > zeros) + (ones == zeros)).sum())
    assert _auc(score, label) == pytest.approx(twice / (2 * zeros.size * ones.size), rel=1e-15)


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize("wrong", range(0, 80, 4))
def test_a_number_is_a_leak_from_the_bound_on(order, wrong):
    """Of 1,000 rows that a number orders but for some that are exchanged; the AUC is counted pair by pair."""
    rows = np.random.default_rng(wrong)
    label = np.repeat([0, 1], 500)
    values = np.arange(1000.0)
    left, right = rows.permutation(500)[:wrong] // 8, 500 + rows.permutation(500)[:wrong] // 8
    values[left], values[right] = values[right].copy(), values[left].copy()
    values = values if order == "up" else -values
    zeros, ones = values[label == 0][:, None], values[label == 1][None, :]
    auc = float(((ones > zeros) + 0.5 * (ones == zeros)).mean())
    assert _auc(values, label) == pytest.approx(auc)
    told = leak(values, label, "binary")
    if max(auc, 1 - auc) > 0.99:
        assert float(told.rpartition(" ")[2]) >= round(max(auc, 1 - auc), 3)


def share_of_copies(table, labelled=None):
    return _share_of_copies(table, np.ones(len(table.sample), bool) if labelled is None else np.array(labelled))


def test_rows_without_a_label_are_no_copies():
    frame = pd.DataFrame({"a": [1, 1, 1, 2], "b": [1, 1, 1, 2]})
    assert share_of_copies(Table({}, frame), [True, False, False, True]) == 0
    assert share_of_copies(Table({}, frame), [True, True, False, False]) == 0.5
    assert share_of_copies(Table({}, frame), [False] * 4) == 0


def test_a_table_of_copies_in_its_first_columns_alone_has_none():
    frame = pd.DataFrame({f"c{k}": [1, 1, 1, 1] for k in range(12)} | {"own": [1, 2, 3, 3]})
    assert share_of_copies(Table({}, frame)) == 0.25
    assert share_of_copies(Table({}, frame.assign(own=[1, 2, 3, 4]))) == 0.0


def test_rows_whose_lists_differ_are_no_copies():
    rows = pa.table({"y": [1, 1, 1, 0, 1, 1], "tags": [["a"], ["b", "a"], ["a"], ["a"], None, ["a", "b"]]})
    for given in ([], ["y"], ["tags"], ["y", "tags"]):
        assert share_of_copies(look_at(rows, 100, given)) == 1 / 6


@pytest.mark.parametrize(("most", "share"), [(9, 2 / 6), (3, 1 / 3)])
def test_rows_that_differ_in_columns_of_given_roles_are_no_copies(most, share):
    table = pa.table({"city": ["a"] * 6, "size": [1.0, 2.0, 1.0, 3.0, 4.0, 3.0], "tags": [["x"]] * 6})
    assert share_of_copies(look_at(table, most, ["size", "tags"])) == share
    assert share_of_copies(look_at(table.append_column("id", [list(range(6))]), most, ["id", "city"])) == 0
    assert share_of_copies(look_at(table.select(["size", "tags"]), most, ["size"])) == share
    assert share_of_copies(look_at(table.select(["tags"]), most)) == 0


@pytest.mark.parametrize("dtype", ["datetime", "datetime[%d.%m.%Y]", "datetime[%d.%m.%Y]?"])
def test_times_of_long_columns_are_those_of_each_row(dtype):
    """Long columns are read by their distinct texts; a row alone is not."""
    draw = random.Random(1)
    days = pd.date_range("2023-01-01", periods=300)
    texts = [draw.choice(days).strftime("%Y-%m-%d" if dtype == "datetime" else "%d.%m.%Y") for _ in range(2_000)]
    column = pd.Series([None if k % 7 == 0 else text for k, text in enumerate(texts)], dtype="str", name="at")
    column.index = column.index[::-1]
    wanted = [0 if text != text else int(pd.to_datetime(text, dayfirst="." in text).timestamp()) * 10**6
              for text in column.tolist()]  # fmt: skip
    if dtype == "datetime":
        found = microseconds(column)
    else:
        how = time_type(dtype)
        assert how is not None
        found, null = of_type(column, how)
        assert null.tolist() == column.isna().tolist()
        assert null.index.equals(column.index)
    assert found.tolist() == wanted
    assert str(found.dtype) == "int64"
    assert found.index.equals(column.index)


def test_a_wrong_time_of_a_long_column_is_named():
    how = time_type("datetime[%d.%m.%Y]")
    assert how is not None
    with pytest.raises(DataError, match=r"'at': '30\.02\.2024' is no time"):
        of_type(pd.Series(["29.02.2024"] * 1_500 + ["30.02.2024"], name="at", dtype="str"), how)
    with pytest.raises(DataError, match=r"'at'.*2024-02-30"):
        microseconds(pd.Series(["2024-02-29"] * 1_500 + ["2024-02-30"], name="at", dtype="str"))


def test_a_column_of_nulls_alone_and_one_of_one_odd_row():
    assert column_seen("x", pd.Series([""] * 2_000), None).kind == "other"
    assert column_seen("x", pd.Series(["7"] * 2_000 + ["seven!8"]), None).kind == "category"
