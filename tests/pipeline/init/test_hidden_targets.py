"""The target in the text of another column, and dates that are numbers: `gigabatch init` names them."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.frame import draft_frame
from gigabatch.pipeline.init.leaks import in_text

ROWS = 600


def quakes():
    draw = np.random.default_rng(0)
    size = draw.gamma(4, 1, ROWS).round(1)
    places = draw.choice(["Adak, Alaska", "Ridgecrest, CA", "Volcano, Hawaii", "Guam"], ROWS)
    km = draw.integers(1, 90, ROWS)
    return pd.DataFrame({"mag": size, "depth": draw.gamma(2, 20, ROWS).round(1), "place": places, "km": km})


def titles(form, table):
    return [form.format(mag=mag, cents=round(mag * 100), km=km, place=place, comma=str(mag).replace(".", ","))
            for mag, km, place in zip(table["mag"], table["km"], table["place"], strict=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("M {mag} - {km} km N of {place}", "the target"),
        ("{km} km N of {place}; Stärke {comma}", "the target"),
        ("{place} ({mag}00)", "the target"),
        ("{place}: {cents} ct, {km} km", "100 times the target"),
        ("{km} km N of {place}", ""),
        ("{place} 7.5 and {km}", ""),
        ("{place}", ""),
    ],
)
def test_a_text_that_holds_the_target_is_a_possible_leak(tmp_path, form, said):
    table = quakes()
    table["title"] = titles(form, table)
    table.to_csv(tmp_path / "quakes.csv", index=False)
    made = draft_config(str(tmp_path / "quakes.csv"), "mag", None, 10_000)
    expected = {"title": f"a possible leak: a number in its text is {said} in 100.0% of the rows"} if said else {}
    assert {name: why for name, why in made.left_out.items() if "leak" in why} == expected
    assert made.leaks == list(expected)


def test_a_frame_whose_texts_hold_the_target_in_most_rows_is_told():
    table = quakes()
    told = np.arange(ROWS) % 4 > 0
    table["title"] = np.where(told, titles("M {mag} - {km} km N of {place}", table), "no title")
    made = draft_frame(arrow_table(table, "rows"), labels={"mag": None})
    assert made.left_out == {"title": "a possible leak: a number in its text is the target in 75.0% of the rows"}


def test_small_numbers_that_meet_by_chance_are_no_leak():
    draw = np.random.default_rng(1)
    stars = draw.integers(1, 6, ROWS).astype("float64")
    texts = np.array([f"{a} and {b} of {c}" for a, b, c in draw.integers(1, 6, (ROWS, 3))], dtype=object)
    assert in_text(texts, stars) == ""
    told = np.array([f"{star:.0f} stars" for star in stars], dtype=object)
    assert in_text(told, stars) == "a number in its text is the target in 100.0% of the rows"
    assert in_text(np.full(ROWS, None, dtype=object), stars) == ""


DAYS = pd.date_range("2023-02-01", periods=ROWS, freq="D")


@pytest.mark.parametrize(
    ("name", "form", "dtype", "by_size"),
    [
        ("date", "%Y%j", "datetime[%Y%j]", False),
        ("obs", "%Y%j", "datetime[%Y%j]?", True),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_days_of_a_year_are_times(tmp_path, name, form, dtype, by_size, ending):
    table = quakes().assign(**{name: DAYS.strftime(form).astype("int64")})
    path = tmp_path / f"quakes.{ending}"
    if ending == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    made = draft_config(str(path), "mag", None, 10_000)
    assert made.features["time"] == name
    assert made.features["inputs"][name] == dtype
    assert any(f"The numbers of {name} are taken for days such as 2024123" in one for one in made.remarks) == by_size
    made.features |= {"path": str(path)}
    splits = TableRecipe(TableSettings(**made.features)).build("pandas").splits
    found = pd.concat(splits.values())[name].sort_values()
    assert found.tolist() == ((DAYS - pd.Timestamp(0)) // pd.Timedelta("1us")).tolist()


@pytest.mark.parametrize(
    ("name", "days"),
    [
        ("amount", range(1, 366)),  # named as a quantity
        ("obs", range(1, 300)),  # no December, as of numbers that count in each year
        ("obs", range(1, 400)),
        ("date", range(1, 367)),  # 2023 has no 366th day
    ],
)
def test_numbers_that_are_no_days_of_a_year_stay_numbers(tmp_path, name, days):
    draw = np.random.default_rng(3)
    table = quakes().assign(**{name: 1000 * draw.integers(2022, 2024, ROWS) + draw.choice(days, ROWS)})
    table.loc[:1, name] = 2_023_000 + days[-1]
    table.to_csv(tmp_path / "quakes.csv", index=False)
    made = draft_config(str(tmp_path / "quakes.csv"), "mag", None, 10_000)
    assert name in made.features["continuous"]


def test_years_with_fractions_are_told(tmp_path):
    table = quakes()
    table["decyear"] = (2020 + np.arange(ROWS) / 120).round(3)
    table["mass"] = table["decyear"]
    table["year"] = 2020 + np.arange(ROWS) // 120
    table.to_csv(tmp_path / "quakes.csv", index=False)
    made = draft_config(str(tmp_path / "quakes.csv"), "mag", None, 10_000)
    assert {"decyear", "mass", "year"} <= set(made.features["continuous"])
    (remark,) = [one for one in made.remarks if "fractions" in one]
    assert remark == (
        "Numbers of decyear are years with fractions, which go on growing. To split rows by them take decyear from "
        "continuous and set time: decyear."
    )


@pytest.mark.parametrize(
    "labels",
    [np.arange(60) % 2, np.arange(60) % 2 + 1, np.arange(60) % 4, np.arange(60) / 7 + 3],
    ids=["0 and 1", "1 and 2", "classes", "numbers"],
)
def test_numbers_that_are_the_target_are_left_out_of_a_table_of_few_rows_too(tmp_path, labels):
    table = pd.DataFrame({"y": labels, "again": labels.astype("float64"), "z": np.arange(60) % 7})
    table.to_csv(tmp_path / "t.csv", index=False)
    made = draft_config(str(tmp_path / "t.csv"), "y", None, 1000)
    assert made.left_out == {"again": "a copy of the target"}
    table.to_parquet(tmp_path / "t.parquet")
    assert draft_config(str(tmp_path / "t.parquet"), "y", None, 1000).left_out == made.left_out


def test_a_target_of_durations_has_no_other_unit(tmp_path):
    texts = [f"{k % 7}:{k % 60:02d}" for k in range(ROWS)]
    pd.DataFrame({"y": texts, "z": np.arange(ROWS) % 7}).to_csv(tmp_path / "t.csv", index=False)
    made = draft_config(str(tmp_path / "t.csv"), "y", None, 1000)
    assert made.features["targets"] == {"y": {"task": "regression", "label_steps": [{"parse_duration": {}}]}}
    assert not [remark for remark in made.remarks if "unit" in remark]
