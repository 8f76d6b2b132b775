"""List columns of the recipe `table`: from Parquet and CSV files through the features stage to packed tables."""

import random
import re

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.columns.lists import typed_lists
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import read_files
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.stages.stages import Pipeline

LISTS = {"tags": {"weights": "w"}, "seen": {"shares": "item", "max_length": 4}}
COLUMNS = {"categorical": {"item": "int64"}, "targets": {"clicked": {"task": "binary"}}}


def rows_of(number: int) -> pd.DataFrame:
    draw = random.Random(1)
    lists = [[draw.choice("xyz|") for _ in range(draw.randrange(4))] for _ in range(number)]
    lists = [[text.replace("|", "a b") for text in row] for row in lists]
    seen = [None if draw.random() < 0.2 else [draw.randrange(2**60, 2**60 + 9) for _ in range(draw.randrange(7))]
            for _ in range(number)]  # fmt: skip
    return pd.DataFrame(
        {
            "item": [2**60 + place % 9 for place in range(number)],
            "clicked": [place % 2 for place in range(number)],
            "tags": lists,
            "w": [[place / 8 for place in range(len(row))] for row in lists],
            "seen": seen,
        }
    )


def write_csv(frame: pd.DataFrame, path) -> None:
    text = frame.copy()
    for name in ("tags", "w", "seen"):
        text[name] = ["" if row is None else "|".join(map(str, row)) for row in frame[name]]
    text.to_csv(path, index=False)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_lists_come_from_files_to_packed_tables(tmp_path, kind):
    frame = rows_of(2000)
    path = tmp_path / f"rows.{kind}"
    frame.to_parquet(path) if kind == "parquet" else write_csv(frame, path)
    config = RunConfig(
        name="lists", recipe="table", artifacts=str(tmp_path / "artifacts"), runs=str(tmp_path / "runs"),
        features={"path": str(path), "lists": LISTS, **COLUMNS},
    )  # fmt: skip
    features = Pipeline(config).features()
    encoded = features.encode()
    for split in ("train", "valid", "test"):
        rows = features.frame(split)
        numbers = rows["row_number"].tolist()
        assert [[] if row is pd.NA else list(row) for row in rows["tags"]] == frame["tags"].iloc[numbers].tolist()
        table = encoded.table(split)
        batch = table.unpack(table.words)
        vocabularies = encoded.preprocessor.vocabularies
        tags, seen = batch.lists
        assert vocabularies["tags"].decode(tags.ids.numpy()).dropna().tolist() == [
            value for row in frame["tags"].iloc[numbers] for value in row
        ]
        expected = [(row or [])[-4:] for row in frame["seen"].iloc[numbers].where(frame["seen"].notna(), None)]
        assert seen.offsets.diff().tolist() == [len(row) for row in expected]
        assert vocabularies["item"].decode(seen.ids.numpy()).tolist() == [value for row in expected for value in row]
        assert tags.weights.tolist() == [value for row in frame["w"].iloc[numbers] for value in row]


def test_text_of_lists_as_csv_files_have_it(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n1|2,x\n,"x||y"\n3,\n 4,NA\n')
    found = read_files("pandas", str(tmp_path / "rows.csv"), {"a": "list[int64]|", "b": "list[string]|"})
    lists = [None if row is pd.NA else list(row) for row in found["a"]]
    assert lists == [[1, 2], None, [3], [4]]
    assert [None if row is pd.NA else list(row) for row in found["b"]] == [["x"], ["x", None, "y"], None, None]


@pytest.mark.parametrize("elements", ["int64", "string"])
@pytest.mark.parametrize("item", [pa.int64(), pa.uint64()], ids=str)
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda item: pa.list_(item, 2)])
def test_whole_numbers_beside_nulls_stay_what_a_parquet_file_has(tmp_path, kind, item, elements):
    rows = [[2**60 + 1, None], [2**60 + 2, 7], None]
    pq.write_table(pa.table({"a": pa.array(rows, kind(item))}), tmp_path / "rows.parquet")
    found = read_files("pandas", str(tmp_path / "rows.parquet"), {"a": f"list[{elements}]"})
    lists = [None if row is pd.NA else list(row) for row in found["a"]]
    typed = {"int64": int, "string": str}[elements]
    assert lists == [row and [value if value is None else typed(value) for value in row] for row in rows]


@pytest.mark.parametrize("elements", ["string", "int64"])
@pytest.mark.parametrize(
    ("separator", "text"),
    [
        ("|", "[3, 5, 7]"), (",", '"[3, 5, 7]"'), ("|", " ['a','b'] "), ("|", "3 5 7"), ("|", "3,5,7"),
        ("|", "3, 5, 7"), ("|", '"3;5;7"'), (",", "3|5|7"), (" ", "12,5,7,8"),
    ],
)  # fmt: skip
def test_lists_in_another_form_than_the_separators_are_refused(tmp_path, separator, text, elements):
    (tmp_path / "rows.csv").write_text(f"n;seen\n1;{text}\n")
    value = re.escape(text.strip('"'))
    said = rf"rows\.csv: column .seen. .*{value}.*list separator {re.escape(repr(separator))}.*features\.list_separator"
    with pytest.raises(DataError, match=said):
        read_files("pandas", str(tmp_path / "rows.csv"), {"seen": f"list[{elements}]{separator}"}, separator=";")


def test_two_numbers_or_numbers_of_other_signs_are_one_element(tmp_path):
    (tmp_path / "rows.csv").write_text("n;seen\n1;030 1234|3 5 7\n2;030 1234\n3;3-5-7\n4;1 a 3\n")
    found = read_files("pandas", str(tmp_path / "rows.csv"), {"seen": "list[string]|"}, separator=";")["seen"]
    assert [list(row) for row in found] == [["030 1234", "3 5 7"], ["030 1234"], ["3-5-7"], ["1 a 3"]]


def test_elements_in_brackets_are_elements(tmp_path):
    (tmp_path / "rows.csv").write_text("n;seen\n1;[a, b]|[c, d]\n2;[a]\n3;[a, b\n")
    found = read_files("pandas", str(tmp_path / "rows.csv"), {"seen": "list[string]|"}, separator=";")["seen"]
    assert [list(row) for row in found] == [["[a, b]", "[c, d]"], ["[a]"], ["[a, b"]]


def test_empty_text_is_an_empty_list():
    found = typed_lists(pd.Series(["", "x", None], dtype="str"), "list[string]|", lambda column, dtype: column)
    assert [None if row is pd.NA else list(row) for row in found] == [[], ["x"], None]


BAD = {
    "an unknown key": ({"lists": {"tags": {"lenght": 3}}}, "unknown key.s. lenght. Known: elements, shares"),
    "an unknown type": ({"lists": {"tags": {"elements": "float32"}}}, "Known: string, int64"),
    "no such column": ({"lists": {"seen": {"shares": "thing"}}}, "shares the vocabulary of 'thing'"),
    "no settings": ({"lists": {"tags": 3}}, "expected settings by name"),
    "no mapping": ({"lists": ["tags"]}, "lists are settings by column"),
    "no separator": ({"lists": LISTS, "list_separator": ""}, "text that is not empty"),
    "a list that only steps read, of no type": ({"inputs": {"tags": "list[float]"}}, "Known: .*list.string."),
    "a step that reads no column": (
        {"lists": {"last": {}}, "steps": ({"list_slice": {"column": "tags", "output": "last", "separator": None}},)},
        "column 'tags' comes from no earlier step",
    ),
    "a split by lists": ({"lists": {"tags": {}}, "split_key": "tags"}, "split_key 'tags' is a column of lists"),
    "a split by weights": (
        {"lists": {"tags": {"weights": "w"}}, "split_key": "w"},
        "split_key 'w' is a column of lists",
    ),
    "a column of the name that lengths have": (
        {"lists": {"tags": {}}, "continuous": ("tags (length)",)},
        "what checks of files call the lengths of a list column",
    ),
    "inputs": ({"lists": {"tags": {}}, "inputs": {"tags": "string"}}, "inputs 'tags' is a column of lists"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_fit_no_list_are_refused(name):
    given, message = BAD[name]
    with pytest.raises(DataError, match=message):
        TableSettings(path="rows.csv", **COLUMNS, **given)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, float("nan")], "hold a null, NaN or infinity in row 13"),
        ([0.5], "row 13 has 2 elements .* and 1 weights"),
    ],
)
def test_weights_that_cannot_be_are_refused_with_the_row_of_the_file(tmp_path, weights, message):
    """Of a file whose third row is left out, as its label is null."""
    frame = rows_of(20)
    frame["clicked"] = frame["clicked"].astype("float64").mask(frame.index == 2)
    frame.at[13, "tags"], frame.at[13, "w"] = ["x", "y"], weights
    frame.to_parquet(tmp_path / "rows.parquet")
    chosen = TableSettings(path=str(tmp_path / "rows.parquet"), **COLUMNS, lists=LISTS, drop_null_targets=True)
    with pytest.raises(DataError, match=rf"input .*rows\.parquet: .*{message}"):
        TableRecipe(chosen).build("pandas")


def test_values_that_do_not_fit_are_refused_by_column(tmp_path):
    rows_of(20).assign(tags=[["x"], 3][0:1] * 20).to_parquet(tmp_path / "rows.parquet")
    chosen = TableSettings(path=str(tmp_path / "rows.parquet"), **COLUMNS, lists={"tags": {"elements": "int64"}})
    with pytest.raises(DataError, match="column 'tags' is declared"):
        TableRecipe(chosen).build("pandas")


HISTORY = {"by": ["user"], "time": "at", "order": "row_number", "column": "item", "length": 3, "output": "history"}


def log_of(number: int) -> pd.DataFrame:
    draw = random.Random(2)
    return pd.DataFrame(
        {
            "user": [draw.choice("abc") for _ in range(number)],
            "item": [draw.randrange(2**60, 2**60 + 9) for _ in range(number)],
            "at": pd.Timestamp("2024-03-01") + pd.to_timedelta([draw.randrange(number) for _ in range(number)], "h"),
            "clicked": [draw.randrange(2) for _ in range(number)],
            "tags": [[draw.choice("xyz") for _ in range(draw.randrange(4))] for _ in range(number)],
        }
    )


def test_lists_of_steps_go_to_the_features_stage(tmp_path):
    """A history of what was clicked, with weights, and part of a list that only steps read, of a CSV file's text."""
    log = log_of(300)
    log.assign(tags=["|".join(row) for row in log["tags"]]).to_csv(tmp_path / "log.csv", index=False)
    chosen = TableSettings(
        path=str(tmp_path / "log.csv"), categorical={"user": "string", "item": "int64"}, time="at",
        targets={"clicked": {"task": "binary"}}, inputs={"tags": "list[string]"},
        lists={"history": {"shares": "item", "weights": "history_weights"}, "last": {}},
        steps=(
            {"history": HISTORY | {"where": "clicked", "half_life": "1d"}},
            {"list_slice": {"column": "tags", "start": -2, "separator": None, "output": "last"}},
        ),
    )  # fmt: skip
    tables = TableRecipe(chosen).build("pandas")
    assert [column.name for column in tables.schema.lists] == ["history", "last"]
    found = pd.concat(tables.splits.values())
    assert sorted(found["row_number"]) == list(range(300))
    user, item, at, clicked = (log[name].tolist() for name in ("user", "item", "at", "clicked"))
    order = sorted(range(300), key=lambda row: (at[row], row))
    for number, history, weights, last in zip(
        found["row_number"], found["history"], found["history_weights"], found["last"], strict=True
    ):
        own = log.iloc[number]
        seen = [
            row for row in order
            if user[row] == own["user"] and at[row] < own["at"] and clicked[row]
        ][-3:]  # fmt: skip
        assert list(history) == [item[row] for row in seen]
        ages = [(own["at"] - at[row]).total_seconds() / 86400 for row in seen]
        assert list(weights) == pytest.approx([0.5**age for age in ages], rel=1e-6)
        assert list(last) == own["tags"][-2:]


def test_what_a_step_makes_of_a_list_of_the_files_takes_its_place(tmp_path):
    frame = rows_of(200).drop(columns="w")
    frame.to_parquet(tmp_path / "rows.parquet")
    chosen = TableSettings(
        path=str(tmp_path / "rows.parquet"), **COLUMNS, lists={"tags": {}},
        steps=({"list_slice": {"column": "tags", "stop": 1, "separator": None}},),
    )  # fmt: skip
    found = pd.concat(TableRecipe(chosen).build("pandas").splits.values())
    expected = [frame["tags"][number][:1] for number in found["row_number"]]
    assert [list(row) for row in found["tags"]] == expected


def test_a_list_that_a_step_makes_must_be_one(tmp_path):
    frame = rows_of(20).assign(place=["a|b"] * 20).drop(columns="tags")
    frame.to_parquet(tmp_path / "rows.parquet")
    step = {"list_slice": {"column": "place", "stop": 1, "output": "tags"}}
    chosen = TableSettings(
        path=str(tmp_path / "rows.parquet"), **COLUMNS, inputs={"place": "string"}, lists={"tags": {}}, steps=(step,)
    )
    with pytest.raises(DataError, match=r"after the steps: column 'tags' is declared list\[string\] but holds"):
        TableRecipe(chosen).build("pandas")
