"""What `gigabatch init` and `fit` make of dates, numbers and names as people write them."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.frame import draft_frame
from gigabatch.pipeline.init.write import init
from gigabatch.pipeline.stages.stages import Pipeline

ROWS = 400
DAYS = pd.date_range("2023-01-01", periods=ROWS, freq="7h")
FIRST = DAYS[DAYS.day <= 12]  # of these day and month may change places
FAST = {
    "train.epochs": 1, "model.layers": [8], "device": "cpu", "engine": "pandas",
    "evaluate": {"importance": False, "baselines": []},
}  # fmt: skip


def drafted(tmp_path, values, name="x", **options):
    """The draft of a CSV file of this column, and the column as the recipe then reads it, in the file's order."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: values, "y": rng.integers(0, 2, len(values)), "z": rng.normal(size=len(values))})
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False, sep=options.get("sep", ","))
    made = draft_config(str(path), "y", None, 10_000)
    made.features |= {"path": str(path)}
    splits = TableRecipe(TableSettings(**made.features)).build("pandas").splits
    found = pd.concat(splits.values())
    return made, found.sort_values("row_number").reset_index(drop=True) if "row_number" in found else found


@pytest.mark.parametrize(
    ("form", "days", "dtype", "either"),
    [
        ("%d.%m.%Y", DAYS, "datetime[%d.%m.%Y]", None),
        ("%d.%m.%Y", FIRST, "datetime[%d.%m.%Y]", "day"),
        ("%m/%d/%Y", DAYS, "datetime[%m/%d/%Y]", None),
        ("%d/%m/%Y %H:%M", DAYS, "datetime[%d/%m/%Y %H:%M]", None),
        ("%d/%m/%Y", FIRST, "datetime[%m/%d/%Y]", "month"),
        ("%d-%m-%y", DAYS, "datetime[%d-%m-%y]", None),
        ("%d %b %Y, %I:%M %p", DAYS, "datetime[%d %b %Y, %I:%M %p]", None),
        ("%Y/%m/%d %H:%M:%S.%f", DAYS, "datetime[%Y/%m/%d %H:%M:%S.%f]", None),
        ("%d.%m.%YT%H:%M+02:00", DAYS, "datetime[%d.%m.%YT%H:%M%z]", None),
        ("%Y-%m-%dT%H:%M:%S+02:00", DAYS, None, None),
        ("%s", DAYS, "datetime[s]", None),
        ("%s000", DAYS, "datetime[ms]", None),
        ("%Y%m%d", DAYS, "datetime[%Y%m%d]", None),
    ],
)
def test_dates_as_people_write_them_are_times(tmp_path, form, days, dtype, either):
    made, found = drafted(tmp_path, days.strftime(form), "sold_at")
    assert made.features["time"] == "sold_at"
    assert made.features.get("inputs", {}) == ({"sold_at": dtype} if dtype else {})
    ahead = pd.Timedelta("2h") if "+02:00" in form else pd.Timedelta(0)
    read = [day - ahead for day in pd.to_datetime(days.strftime(form), format=dtype[9:-1])] if (
        dtype and "%" in dtype and "%z" not in dtype) else [day - ahead for day in days]  # fmt: skip
    if "%z" in (dtype or "") or form.startswith("%Y-%m-%dT"):
        read = [day.floor("min" if "%z" in (dtype or "") else "s") - ahead for day in days]
    expected = sorted((day - pd.Timestamp(0)) // pd.Timedelta("1us") for day in read)
    assert sorted(found["sold_at"]) == expected
    said = [remark for remark in made.remarks if "day and month could be either" in remark]
    assert len(said) == (either is not None)
    if either:
        assert f"the {either} is taken to stand first" in said[0]


def test_words_among_dates_are_null_and_named(tmp_path):
    texts = DAYS.strftime("%d.%m.%Y").to_series().reset_index(drop=True)
    texts[::50] = "k.A."
    made, found = drafted(tmp_path, texts, "sold")
    assert made.features["inputs"] == {"sold": "datetime[%d.%m.%Y]?"}
    assert "'k.A.' is null" in made.notes["inputs.sold"]
    days = found["sold_days"].astype("float64")
    assert days.isna().sum() == 8
    first = (pd.to_datetime(texts[1], format="%d.%m.%Y") - pd.Timestamp(0)).days
    assert days.min() == first
    out, _ = init(str(tmp_path / "table.csv"), "y", tmp_path / "o.yaml")
    assert "# written %d.%m.%Y" in out.read_text()


@pytest.mark.parametrize("name", ["price", "version", "phone"])
def test_what_only_looks_like_a_time_is_none(tmp_path, name):
    rng = np.random.default_rng(1)
    values = {
        "price": rng.integers(1_000_000_000, 2_900_000_000, 300),  # as many digits as seconds have
        "version": [f"{k % 4}.{k % 5}.{k % 7 % 3}" for k in range(300)],
        "phone": rng.choice(rng.integers(10**12, 2 * 10**12, 40), 300),
    }[name]
    made, _ = drafted(tmp_path, values, name)
    assert "time" not in made.features
    assert name in [*made.features["continuous"], *made.features.get("categorical", [])]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1.234,50", "2.500", "17"], [1234.5, 2500, 17]),
        (["1.234.567", "2.500", "17"], [1234567, 2500, 17]),
        (["1.234", "2.500", "3.125"], [1.234, 2.5, 3.125]),
        (["1,234", "2,500", "17"], [1234, 2500, 17]),
        (["0,5", "2,25", "1.000"], [0.5, 2.25, 1000]),
        (["1.234,50 €", "-3,00 €", "17 €"], [1234.5, -3, 17]),
    ],
)
def test_thousands_are_decided_by_the_whole_column(tmp_path, texts, expected):
    _, found = drafted(tmp_path, texts * 40, sep=";")
    assert np.allclose(found["x"], expected * 40)


@pytest.mark.parametrize("word", ["k.A.", "n/a", "-", "unknown", "siehe Anhang"])
def test_a_few_words_among_numbers_are_null_in_files_and_frames(tmp_path, word):
    numbers = np.arange(300) * 0.5
    texts = pd.Series(numbers).astype("str")
    texts[::20] = word
    made, found = drafted(tmp_path, texts)
    assert made.features["continuous"] == ["x", "z"]
    assert np.allclose(found["x"], np.where(np.arange(300) % 20 == 0, np.nan, numbers), equal_nan=True)
    of_frame = draft_frame(arrow_table(pd.DataFrame({"x": texts}), "rows"))
    assert of_frame.features["steps"] == [{"parse_number": {"column": "x", "null_values": [word]}}]


def test_many_words_among_numbers_are_categories(tmp_path):
    texts = [str(k % 30) if k % 5 else "k.A." for k in range(300)]
    made, _ = drafted(tmp_path, texts)
    assert made.features["categorical"] == ["x"]


@pytest.mark.parametrize(
    "name",
    ["isbn", "phone", "plz", "account_number", "kontonummer", "Invoice No", "ean", "customerId", "Artikelnummer"],
)
def test_numbers_that_are_names_are_categories(tmp_path, name):
    values = np.random.default_rng(2).choice(np.arange(10**6, 10**6 + 40), 300)
    made, found = drafted(tmp_path, values, name)
    assert made.features["categorical"] == [name]
    assert sorted(found[name]) == sorted(values.astype(str))
    of_frame = draft_frame(arrow_table(pd.DataFrame({name: values.astype(str)}), "rows"))
    assert of_frame.categories == {name: "string"}


def test_a_zip_code_stays_the_same_whatever_type_it_comes_as(tmp_path):
    rng = np.random.default_rng(3)
    codes = rng.choice(["01067", "01069", "10115", "80331"], 300)
    table = pd.DataFrame({"plz": codes, "z": rng.normal(size=300), "y": np.where(codes < "02", "east", "west")})
    table.loc[::9, "y"] = "east"
    table.to_csv(tmp_path / "t.csv", index=False)
    out, made = init(str(tmp_path / "t.csv"), "y", tmp_path / "o.yaml")
    assert made.features["steps"] == [{"clean_text": {"column": "plz", "width": 5}}]
    places = {"runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts")}
    run = Pipeline.from_config(out, FAST, places).train()
    text = pd.DataFrame({"plz": ["01067", "80331"], "z": [0.0, 0.0]})
    numbers, floats = text.assign(plz=[1067, 80331]), text.assign(plz=[1067.0, 80331.0])
    expected = run.predict(text)["y"].tolist()
    assert expected[0] != expected[1]
    assert run.predict(numbers)["y"].tolist() == run.predict(floats)["y"].tolist() == expected


def test_ids_as_floats_beside_a_null_are_the_whole_numbers(tmp_path):
    ids = pd.Series(np.random.default_rng(4).integers(1, 30, 300).astype(float))
    whole, with_null = ids.astype("int64"), ids.where(ids.index != 7)
    kinds = [draft_frame(arrow_table(pd.DataFrame({"shop_id": column}), "rows")).categories
             for column in (whole, with_null)]  # fmt: skip
    assert kinds == [{"shop_id": "int64"}] * 2


def test_a_later_date_of_another_form_is_an_error_that_names_it(tmp_path):
    made, _ = drafted(tmp_path, DAYS.strftime("%d.%m.%Y"), "sold")
    workflow = TableRecipe(TableSettings(**made.features)).build("pandas").workflow
    serving = workflow.serving(["sold_weekday"])
    asked = pd.DataFrame({"sold": ["02.01.2023"]})
    assert serving.transform(serving.typed(asked))["sold_weekday"].tolist() == [0]
    with pytest.raises(DataError, match=r"'sold'.*'2023-01-02' is no time in the format '%d.%m.%Y'"):
        serving.typed(asked.assign(sold="2023-01-02"))


def test_whole_numbers_that_count_the_rows_are_no_feature(tmp_path):
    rng = np.random.default_rng(5)
    numbers = 7000 + np.arange(300)
    numbers[::30] = 7000
    made, _ = drafted(tmp_path, rng.permutation(numbers), "ref")
    assert made.left_out["ref"] == "whole numbers that count the rows, some twice"
    assert "keys" not in made.features
    made, _ = drafted(tmp_path, rng.integers(0, 600, 300), "ref")
    assert "ref" in made.features["continuous"]


def test_a_date_that_is_always_the_same_is_shown_as_one(tmp_path):
    made, _ = drafted(tmp_path, ["31.12.2024"] * 300, "exported")
    assert made.left_out["exported"] == "one value alone, 2024-12-31"


def test_seconds_in_a_column_named_created_are_times(tmp_path):
    made, found = drafted(tmp_path, 1_700_000_000 + 5000 * np.arange(300), "created")
    assert made.features["inputs"] == {"created": "datetime[s]"}
    assert found["created"].max() == (1_700_000_000 + 5000 * 299) * 10**6


def test_checks_of_files_take_numbers_in_text_as_the_text_that_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(6)
    table = pd.DataFrame({
        "price": [f"{k}.{k % 900 + 100},50 €" for k in range(300)], "day": DAYS[:300].strftime("%d.%m.%Y"),
        "y": rng.integers(0, 2, 300),
    })  # fmt: skip
    table.to_csv("t.csv", index=False, sep=";")
    out, made = init("t.csv", "y")
    assert (made.features["continuous"], made.features["time"]) == (["price"], "day")
    assert main(["contract", "--config", str(out)]) == 0
    learned = (tmp_path / "runs/t/contract.yaml").read_text()
    assert '"price": {type: "string", role: "category"' in learned
    assert '"day": {type: "datetime[%d.%m.%Y]", role: "time"' in learned
    assert main(["contract", "--config", str(out), "--check"]) == 0
