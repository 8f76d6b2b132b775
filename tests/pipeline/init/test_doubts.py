"""Times as `init` finds them in other spellings, and what its head says of numbers that may mean something else."""

import datetime

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.init.columns import column_seen
from gigabatch.pipeline.init.draft import draft_config

ROWS = 400
TIMES = [datetime.datetime(2025, 1, 1) + datetime.timedelta(hours=17 * k, minutes=7 * k) for k in range(ROWS)]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def of(texts, name="x"):
    return column_seen(name, pd.Series(texts, dtype="str"), None)


def head(tmp_path, texts, name="x", sep=","):
    """The draft of a file with this column, read by the recipe too; and what the head says of the column."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: texts, "y": rng.integers(0, 2, len(texts)), "z": rng.normal(size=len(texts)).round(3)})
    table.to_csv(tmp_path / "t.csv", index=False, sep=sep)
    made = draft_config(str(tmp_path / "t.csv"), "y", None, 10_000)
    splits = TableRecipe(TableSettings(**made.features | {"path": str(tmp_path / "t.csv")})).build("pandas").splits
    return made, [remark for remark in made.remarks if name in remark], pd.concat(splits.values())


@pytest.mark.parametrize(
    ("spell", "dtype"),
    [
        (lambda t: f"{t.day:02}. {MONTHS[t.month - 1]} {t.year}", "datetime[%d. %b %Y]"),
        (lambda t: f"{t.day:02}/{MONTHS[t.month - 1]}/{t.year}:{t:%H:%M:%S} +0000", "datetime[%d/%b/%Y:%H:%M:%S %z]"),
        (lambda t: f"{t.day:02}/{t.month:02}/{t.year} {t.hour:02}h{t.minute:02}", "datetime[%d/%m/%Y %Hh%M]"),
        (lambda t: f"{t.year}{t.month:02}{t.day:02}", "datetime[%Y%m%d]?"),
        (lambda t: f"{t.year}{t.month:02}{t.day:02}{t:%H%M%S}", "datetime[%Y%m%d%H%M%S]?"),
    ],
)
def test_times_in_other_spellings_are_times(spell, dtype):
    seen = of([spell(time) for time in TIMES])
    assert (seen.kind, seen.dtype) == ("date", dtype)
    exact = "%H" in dtype, "%S" in dtype
    kept = [
        time.replace(hour=time.hour * exact[0], minute=time.minute * exact[0], second=time.second * exact[1])
        for time in TIMES
    ]
    expected = [(time - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1) for time in kept]
    assert seen.values.tolist() == expected


def test_days_as_numbers_are_times_under_any_name_and_the_head_says_how_to_undo_it(tmp_path):
    days = [f"{time:%Y%m%d}" for time in TIMES]
    made, said, rows = head(tmp_path, days, "BUDAT")
    assert made.features["inputs"]["BUDAT"] == "datetime[%Y%m%d]?"
    assert any("by their size alone (2025-01-01 to" in remark and "out of inputs" in remark for remark in said)
    assert len(rows) == ROWS
    table = pd.read_csv(tmp_path / "t.csv")
    table.assign(BUDAT=[0, 99_999_999, *table["BUDAT"][2:]]).to_csv(tmp_path / "t.csv", index=False)  # later rows
    given = {name: value for name, value in made.features.items() if name != "time"}  # which holds no null
    splits = TableRecipe(TableSettings(**given | {"path": str(tmp_path / "t.csv")})).build("pandas").splits
    assert sum(map(len, splits.values())) == ROWS
    made, said, rows = head(tmp_path, ["99999999", *days[1:]], "BUDAT")
    assert made.features["inputs"]["BUDAT"] == "datetime[%Y%m%d]?"
    assert len(rows) == ROWS
    assert any("times such as 20250101, 99999999 and others that are none (1 rows) being null" in one for one in said)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("x", [20_250_101 + 31 * k for k in range(ROWS)]),  # mostly no days
        ("x", [20_250_101, 20_250_131] * (ROWS // 2)),  # of few different numbers nobody knows
        ("salary", [int(f"{time:%Y%m%d}") for time in TIMES]),
    ],
)
def test_other_numbers_of_eight_digits_stay_numbers(name, numbers):
    assert of(list(map(str, numbers)), name).kind == "number"


def test_typographic_apostrophes_part_thousands_as_those_of_ascii(tmp_path):
    amounts = [round(1000.25 + 37.5 * k, 2) for k in range(ROWS)]
    texts = [f"CHF {amount:,.2f}".replace(",", "\N{RIGHT SINGLE QUOTATION MARK}") for amount in amounts]
    assert of(texts).values.tolist() == amounts
    made, _, rows = head(tmp_path, texts, "betrag")
    assert made.features["continuous"] == ["betrag", "z"]
    assert sorted(rows["betrag"]) == pytest.approx(amounts)


@pytest.mark.parametrize(
    ("name", "least", "told"),
    [("sample_weight", 0.5, True), ("CaseWeight", 0, True), ("weight", 0.5, False), ("sample_weight", -1, False)],
)
def test_numbers_named_as_weights_of_rows_are_told(tmp_path, name, least, told):
    texts = [f"{least + place % 40 / 4}" for place in range(400)]
    made, said, _ = head(tmp_path, texts, name)
    assert name in made.features["continuous"]
    assert "weight" not in made.features
    assert any("says how much each row counts, set it as weight" in remark for remark in said) == told


@pytest.mark.parametrize("written", ["{:.4f}", "{:.0f}"])
def test_numbers_in_a_column_of_dates_may_be_days_of_excel(tmp_path, written):
    serials = [(time - datetime.datetime(1899, 12, 30)) / datetime.timedelta(days=1) for time in TIMES]
    texts = [written.format(serial).replace(".", ",") for serial in serials]
    _, said, _ = head(tmp_path, texts, "Retourendatum", ";")
    last = TIMES[-1].date()
    assert any(
        "may be days as Excel counts them, 2025-01-01 to" in remark and str(last)[:8] in remark for remark in said
    )
    assert not [remark for remark in head(tmp_path, texts, "distance", ";")[1] if "Excel" in remark]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([*range(90), -999, -999], ["-999 in w stands in 2 rows, far from all other numbers (0 to 89)."]),
        ([0.5, 1.5, 2.5] * 9 + [9999, 9999, 8888, 8888], ["8888 in w stands", "9999 in w stands"]),
        ([*range(90), 99, 99], []),  # near
        ([*range(90), 999], []),  # once
        ([*range(100, 2000)] * 2, []),
        ([0, 0, 5000, 5001], []),
    ],
)
def test_a_number_for_unknown_far_from_all_others_is_said(tmp_path, numbers, said):
    rows = (numbers * (200 // len(numbers) + 1)) if numbers.count(999) != 1 else numbers + numbers[:90] * 3
    found = [remark for remark in head(tmp_path, rows, "w")[1] if "far from" in remark]
    assert len(found) == len(said)
    for remark, start in zip(found, said, strict=True):
        assert remark.split(" stands")[0] == start.split(" stands")[0]
        assert "add it to null_values as the file writes it" in remark


@pytest.mark.parametrize(("sign", "told"), [("/", True), (" x ", True), ("/0", False), ("/a", False)])
def test_texts_of_two_numbers_are_said(tmp_path, sign, told):
    texts = [f"{110 + k % 37}{sign}{70 + k % 11}" for k in range(ROWS)]
    said = head(tmp_path, texts, "pressure")[1]
    assert (
        any("pressure holds two numbers in each text" in remark and "lambda_function" in remark for remark in said)
        == told
    )


@pytest.mark.parametrize("units", ["UTC,kg,", ",kg,-", "-,kg,"])
def test_a_row_of_units_is_left_out_for_want_of_a_label_and_costs_no_split_by_time(tmp_path, units):
    rows = [f"{time:%Y-%m-%d %H:%M:%S},{k % 7 + 0.5},{k % 3 % 2}" for k, time in enumerate(TIMES)]
    (tmp_path / "t.csv").write_text("\n".join(["read_at,w,y", units, *rows]) + "\n")
    made = draft_config(str(tmp_path / "t.csv"), "y", None, 10_000)
    assert made.features["time"] == "read_at"
    splits = TableRecipe(TableSettings(**made.features | {"path": str(tmp_path / "t.csv")})).build("pandas").splits
    assert sum(map(len, splits.values())) == ROWS
    assert splits["train"]["read_at"].max() < splits["test"]["read_at"].min()
    rows[7] = f",{rows[7].partition(',')[2]}"  # a row with a label, and without a time
    (tmp_path / "t.csv").write_text("\n".join(["read_at,w,y", units, *rows]) + "\n")
    assert "time" not in draft_config(str(tmp_path / "t.csv"), "y", None, 10_000).features


def test_names_and_values_with_blanks_at_the_edges_are_told_as_such(tmp_path):
    texts = [f"{'abcdefghij'[k % 10]} " for k in range(ROWS)]
    made, said, _ = head(tmp_path, texts, "Sale_Type")
    assert made.notes["Sale_Type"] == "10 values, without blanks around it"
    assert said == []
    _, said, _ = head(tmp_path, [-999, -999, *range(ROWS - 2)], "kg ")
    assert any(remark.startswith("-999 in 'kg ' stands in 2 rows") for remark in said)


def test_won_is_positive_in_german(tmp_path):
    outcome = np.where(np.arange(ROWS) % 3 == 0, "verloren", "gewonnen")
    pd.DataFrame({"y": outcome, "z": np.arange(ROWS) % 7}).to_csv(tmp_path / "t.csv", index=False)
    made = draft_config(str(tmp_path / "t.csv"), "y", None, 10_000)
    assert made.features["targets"]["y"]["positive"] == "gewonnen"


def test_a_number_for_unknown_in_many_columns_is_one_line(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"ch{k}": [-999.0, -999.0, *rng.normal(size=ROWS - 2).round(3)] for k in range(30)})
    table.assign(y=rng.integers(0, 2, ROWS)).to_csv(tmp_path / "t.csv", index=False)
    said = [one for one in draft_config(str(tmp_path / "t.csv"), "y", None, 10_000).remarks if "-999" in one]
    assert len(said) == 1
    assert said[0].startswith("-999 in ch0 stands in 2 rows")
    assert "and so in 29 more columns" in said[0]
