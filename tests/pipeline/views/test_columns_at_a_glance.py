"""What a notebook says of columns: shares and values against counts by hand, odd names and values escaped."""

import html
import re

import numpy as np
import pyarrow as pa
import pytest

from gigabatch.pipeline.display import html_table
from gigabatch.pipeline.views.columns import column_rows
from gigabatch.pipeline.views.parts import bars, histogram_bars, percent, share_bar

ODD = "<b>x</b> & \"y\" '$z$'"


def text(part):
    """What a reader sees, and what is told under the pointer."""
    return html.unescape(re.sub(r"<[^>]*>", "", str(part))).replace("\xa0", " ").strip()


def column(values, role="categorical", dtype="string", kind=None):
    (row,) = column_rows(pa.table({"c": pa.array(values, kind)}), {"c": (role, dtype)})
    return row


def test_values_of_a_category_are_told_by_their_shares():
    row = column(["Oslo", None, "Bonn", "Oslo", "Rom", "Oslo", None, None, None, "Bonn"])
    assert text(row["first rows"]) == "Oslo, –, Bonn"
    assert text(row["nulls"]) == "40 %"
    assert row["values"] == 3
    assert text(row["distribution"]) == "Oslo: 50 %, Bonn: 33.3 %"
    assert "Rom: 16.7 %" in row["distribution"]  # under the pointer


def test_numbers_are_drawn_between_their_ends_and_nan_is_a_null():
    row = column([0.0, 10.0, float("nan"), 10.0, None], "continuous", "float32", pa.float32())
    assert text(row["nulls"]) == "40 %"
    assert row["values"] == 2
    assert text(row["distribution"]) == "10: 66.7 %, 0: 33.3 %"  # two values alone are values
    row = column(list(range(41)), "continuous", "int64")
    drawn = row["distribution"]
    assert text(drawn).endswith("0 to 40")
    heights = [float(height) for height in re.findall(r'width="3\.4" height="([\d.]+)"', drawn)]
    assert heights == [12.0] * 19 + [18.0]  # two whole numbers a bin, three in the last one


def test_a_long_tail_is_drawn_by_its_middle_and_says_so():
    values = np.r_[np.linspace(0, 1, 999), 1e6]
    drawn = column(values, "continuous", "float64")["distribution"]
    assert "drawn: the middle 99 %" in drawn
    assert "0 to 1,000,000" in text(drawn)


def test_times_are_dates():
    day = 86_400_000_000
    row = column([0, day, 2 * day + day // 2], "time", "datetime")
    assert text(row["first rows"]) == "1970-01-01, 1970-01-02, 1970-01-03 12:00"
    assert text(row["distribution"]).endswith("1970-01-01 to 1970-01-03 12:00")


def test_lists_are_told_by_their_lengths():
    row = column([["a"], [], ["a", "b", "c"], None], "list", "list[string]")
    assert text(row["first rows"]) == "[a], [], [a, b, c]"
    assert (text(row["nulls"]), row["values"]) == ("25 %", None)
    assert text(row["distribution"]).endswith("0 elements to 3 elements")


@pytest.mark.parametrize("values", [[], [None, None], [float("inf"), float("-inf"), 1.0, 2.0]])
def test_columns_with_nothing_to_draw_are_shown_all_the_same(values):
    row = column(values, "continuous", "float64", pa.float64())
    assert "<table" in html_table([row])


def test_odd_names_and_values_are_escaped():
    table = pa.table({ODD: pa.array([ODD, ODD, None])})
    page = html_table(column_rows(table, {ODD: ("categorical", "string")}))
    assert "<b>x" not in page
    assert '"y"' not in page
    assert text(page).count("<b>x</b> & \"y\" '$z$'") == 4  # the name, two first rows, the most frequent value
    assert "<i>" not in bars([("<i>x</i>", 0.5, "<i>1</i>")])


def test_long_values_are_cut():
    assert len(text(column(["x" * 500])["first rows"])) == 60


@pytest.mark.parametrize(
    ("share", "said"), [(0, "0 %"), (0.0001, "<0.1 %"), (0.034567, "3.46 %"), (0.99951, ">99.9 %"), (1.0, "100 %")]
)
def test_shares_are_percentages(share, said):
    assert text(share_bar(share)) == said
    assert percent(share) == said


def test_a_bin_with_few_rows_is_seen():
    drawn = histogram_bars([1000, 1, 0], "t")
    assert re.findall(r'width="3\.4" height="([\d.]+)"', drawn) == ["18.0", "0.8", "0.0"]
