"""Numbers that could be read with either decimal sign are read with that which the other columns of the file prove."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.workflow.steps import parse_steps
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.frame import draft_frame
from tests.pipeline.serving.small_bundles import raw_rows_of

COMMA = {"decimal": ",", "thousands": "."}
COMMAS = {"temp": ["16,0", "3,9", "-5,9", "7,25"]}  # which prove a decimal comma
POINTS = {"lat": ["48.1", "3.9", "-5.9", "7.25"]}
ROWS = 300


def file_of(tmp_path, columns, sep=";"):
    """A CSV file of columns that repeat these texts, whose rows are told apart by a class `y`."""
    texts = {name: (list(found) * ROWS)[:ROWS] for name, found in columns.items()}
    path = tmp_path / "table.csv"
    labels = {} if "y" in texts else {"y": np.random.default_rng(0).choice(["a", "b"], ROWS)}
    pd.DataFrame({**texts, **labels}).to_csv(path, index=False, sep=sep)
    return path


def read(path, sep=";"):
    """The draft, and the numbers that the recipe makes of each column, in the order in which they first come."""
    made = draft_config(str(path), "y", None, 10_000)
    splits = TableRecipe(TableSettings(**made.features)).build("pandas").splits
    return made, pd.concat(splits.values())


def as_slow(text, decimal):
    """A text as a person reads it who knows the decimal sign."""
    text = text.rstrip(" %€")
    other = {",": ".", ".": ","}[decimal]
    return float(text.replace(other, "").replace(decimal, "."))


@pytest.mark.parametrize(
    "texts",
    [
        ["755", "583", "1.262", "12.001"],
        ["76.205", "16.483", "1.234", "2.345"],
        ["825,145", "495,990", "1,157", "17,031"],
        ["825,145 €", "495,990 €", "1,157 €", "17 €"],
        ["1.262 €", "755 €", "7 €", "8 €"],
        ["5 %", "0 %", "10 %", "7 %"],
        ["1.262", "755", "k.A.", "7", *["8"] * 40],
        ["12", "0", "999", "45"],
    ],
)
@pytest.mark.parametrize("sep", [";", ","])
def test_a_decimal_comma_of_another_column_decides(tmp_path, texts, sep):
    path = file_of(tmp_path, {"x": texts, **COMMAS}, sep)
    made, frame = read(path)
    expected = {np.float32(as_slow(text, ",")) for text in texts if text != "k.A."}
    assert {np.float32(value) for value in frame["x"].dropna()} == expected
    (options,) = [step["parse_number"] for step in made.features["steps"] if step["parse_number"]["column"] == "x"]
    assert {key: options[key] for key in COMMA} == COMMA
    (remark,) = [text for text in made.remarks if "decimal comma" in text] or [""]
    assert bool(remark) == any(sign in text for text in texts if text != "k.A." for sign in ",.")
    if remark:
        first = next(text for text in texts if set(text) & {",", "."})
        assert f"{first!r} in x is taken for {as_slow(first, ','):g}, as '16,0' in temp has a decimal comma." in remark


def test_a_later_file_is_read_with_the_same_sign(tmp_path):
    columns = {"menge": ["755", "583", "12"], "rabatt": ["5 %", "0 %", "10 %"], **COMMAS}
    made, _ = read(file_of(tmp_path, columns))
    later = {"menge": ["1.196", "1,5", "755"], "rabatt": ["2,5 %", "12,500 %", "5 %"], **COMMAS}
    frame = pd.concat(TableRecipe(TableSettings(**made.features | {"path": str(file_of(tmp_path, later))}))
                      .build("pandas").splits.values())  # fmt: skip
    assert {float(np.float32(value)) for value in frame["menge"]} == {1196.0, 1.5, 755.0}
    assert {float(np.float32(value)) for value in frame["rabatt"]} == {2.5, 12.5, 5.0}


@pytest.mark.parametrize("texts", [["0.125", "3.250", "1.262"], ["1234.567", "1.262"], ["1.5", "2.262"]])
def test_a_column_that_proves_a_point_keeps_it_beside_commas(tmp_path, texts):
    _, frame = read(file_of(tmp_path, {"x": texts, "temp": COMMAS["temp"], "menge": ["1.262", "755"], "z": ["2,5"],
                                          "preis": ["3,5", "4,75"]}))  # fmt: skip
    assert {np.float32(value) for value in frame["x"]} == {np.float32(text) for text in texts}
    assert set(frame["menge"]) == {1262.0, 755.0}  # two columns and the semicolon outweigh one


def test_the_target_proves_the_sign_of_its_features(tmp_path):
    amounts = [f"{k}.{k * 7 % 900 + 100}" for k in range(1, 40)]
    numbers = [f"{k * 37 % 101},{k % 10}" for k in range(ROWS)]
    _, frame = read(file_of(tmp_path, {"menge": ["755", *amounts], "y": numbers}))
    assert set(frame["menge"]) == {755.0, *(as_slow(text, ",") for text in amounts)}


@pytest.mark.parametrize(
    "labels",
    [
        [str(k * 7 % 900) if k % 2 else f"{k}.{k * 7 % 900 + 100}" for k in range(1, 90)],
        [f"{k * 7 % 900} €" if k % 2 else f"{k}.{k * 7 % 900 + 100} €" for k in range(1, 90)],
        [f"{k},{k * 7 % 900 + 100}" for k in range(1, 90)],
        [str(k) for k in range(1, 90)],
    ],
)
def test_features_prove_the_sign_of_the_target(tmp_path, labels):
    path = file_of(tmp_path, {"x": COMMAS["temp"], "menge": ["755", "1.262"], "y": labels})
    made, frame = read(path)
    assert set(frame["y"].astype("float32")) == {np.float32(as_slow(text, ",")) for text in labels}
    assert {"parse_number": COMMA} in [
        {"parse_number": {key: step["parse_number"][key] for key in COMMA}}
        for step in made.features["targets"]["y"]["label_steps"]
    ]


def test_a_decimal_point_of_another_column_decides(tmp_path):
    made, frame = read(file_of(tmp_path, {"a": ["825,145", "755"], "b": ["1.262", "2.500"], **POINTS}))
    assert set(frame["a"]) == {825145.0, 755.0}
    assert {np.float32(value) for value in frame["b"]} == {np.float32(1.262), np.float32(2.5)}
    assert not any("decimal" in text for text in made.remarks)


def test_signs_that_contradict_each_other_decide_nothing_and_are_told(tmp_path):
    columns = {"x": ["1.262", "755"], "w": ["5 %", "7 %"], **COMMAS, **POINTS}
    made, frame = read(file_of(tmp_path, columns))
    assert {np.float32(value) for value in frame["x"]} == {np.float32(1.262), np.float32(755)}
    (remark,) = [text for text in made.remarks if "decimal" in text]
    assert remark.startswith(
        "'1.262' in x is taken for 1.262, though '16,0' in temp has a decimal comma and '48.1' in lat has a decimal "
        "point, and could be another number."
    )


@pytest.mark.parametrize(("texts", "number"), [(["825,145", "7"], "825145"), (["1.262", "755"], "1.262")])
def test_a_column_that_nothing_explains_is_told(tmp_path, texts, number):
    made, _ = read(file_of(tmp_path, {"x": texts, "w": ["4", "5"]}))
    (remark,) = [text for text in made.remarks if "decimal" in text]
    assert remark.startswith(f"'{texts[0]}' in x is taken for {number}, and could be another number.")


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_parquet_files_with_nulls_is_told_too(tmp_path, kind):
    texts = [None, "1.262", "755"] * 100
    table = pa.table({"x": pa.array(texts).cast(kind), "y": [k % 2 for k in range(300)]})
    pq.write_table(table, tmp_path / "rows.parquet")
    made = draft_config(str(tmp_path / "rows.parquet"), "y", None, 1000)
    (remark,) = [text for text in made.remarks if "decimal" in text]
    assert remark.startswith("'1.262' in x is taken for 1.262, and could be another number.")


def test_ids_and_labels_and_years_stay_what_they_are_beside_commas(tmp_path):
    columns = {"kunden_id": [str(k % 90) for k in range(ROWS)], "jahr": ["2019", "2020", "2021"], **COMMAS,
               "y": ["0", "1", "2"]}  # fmt: skip
    made, _ = read(file_of(tmp_path, columns))
    assert made.categories["kunden_id"] == "int64"
    assert made.features["targets"] == {"y": {"task": "multiclass"}}
    assert [step["parse_number"]["column"] for step in made.features["steps"]] == ["temp"]


def test_a_frame_of_text_is_read_alike_and_its_numbers_are_left_alone():
    rng = np.random.default_rng(1)
    texts = {"menge": rng.choice(["1.262", "755"], ROWS), "klein": rng.choice(["7", "1250"], ROWS)}
    texts |= {
        "preis": rng.choice(["3,5", "4,75", "1.000,25"], ROWS),
        "y": [f"{1 + k % 9}.{100 + k}" for k in range(ROWS)],
    }
    frame = pd.DataFrame({**texts, "zahl": rng.choice([1.262, 2.5], ROWS), "whole": rng.integers(0, 90, ROWS)})
    made = draft_frame(arrow_table(frame, "fit"), labels={"y": None})
    read = {step["parse_number"]["column"]: step["parse_number"] for step in made.features["steps"]}
    assert read == {name: {"column": name, **COMMA} for name in ("menge", "klein", "preis")}
    assert made.features["targets"]["y"]["label_steps"] == [{"parse_number": COMMA}]
    assert {"zahl", "whole"} <= set(made.features["continuous"])
    numbers = draft_frame(arrow_table(frame.assign(y=rng.choice([1.262, 2.5, 3.625], ROWS)), "fit"), labels={"y": None})
    assert numbers.features["targets"] == {"y": {"task": "regression"}}


def test_rows_of_the_service_may_hold_numbers_where_the_file_has_text(tmp_path):
    made, _ = read(file_of(tmp_path, {"menge": ["755", "583", "1.262"], "klein": ["1", "2"], **COMMAS}))
    workflow = Workflow(parse_steps(made.features["steps"]), (), made.features["inputs"])
    workflow.fit([workflow.typed(pd.DataFrame({"menge": ["755"], "klein": ["1"], "temp": ["16,0"]}))])
    names = ["menge", "klein", "temp"]
    raw = raw_rows_of(workflow.serving(names), names)
    for row in ([1262, 3, 16.5], ["1.262", "3", "16,5"], [1262.0, 3.0, 16.5]):
        assert raw([dict(zip(names, row, strict=True))]) == [(1262.0, 3.0, 16.5)]


def test_a_time_of_day_with_the_german_word_for_it_is_one(tmp_path):
    hours, minutes = np.arange(ROWS) % 24, np.arange(ROWS) * 7 % 60
    texts = [f"{hour:02d}:{minute:02d} Uhr" for hour, minute in zip(hours, minutes, strict=True)]
    made, frame = read(file_of(tmp_path, {"zeit": texts, **COMMAS}))
    assert made.features["inputs"]["zeit"] == "datetime[%H:%M Uhr]"
    assert set(frame["zeit_minute_of_day"]) == set((hours * 60 + minutes).astype("float64"))
