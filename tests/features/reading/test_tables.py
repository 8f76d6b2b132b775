"""Files that steps name are read by the recipe's rules, whole and without guesses."""

import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators import Categorify
from gigabatch.features.reading.tables import Reading
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.workflow.steps import parse_steps

SHOPS = "zip;country;staff;id;open\n01234;NA;5;1152921504606846977;true\n00001;DE;-;1152921504606846979;false\n"


def read(tmp_path, text, **rules):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    return Reading(**rules).table("pandas", str(tmp_path / "t.csv"))


def test_null_values_and_separator_are_the_recipes(tmp_path):
    found = read(tmp_path, SHOPS, null_values=("-",), separator=";")
    assert found["zip"].tolist() == ["01234", "00001"]
    assert found["country"].tolist() == ["NA", "DE"]
    assert found["staff"].isna().tolist() == [False, True]
    assert found["id"].tolist() == [2**60 + 1, 2**60 + 3]
    assert found["open"].tolist() == [True, False]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_null_values_are_null_in_either_kind_of_file(tmp_path, ending):
    given = pd.DataFrame({"shop": [1, 2, 3], "staff": [5, -9, 7], "price": [0.5, 1.5, -9.0], "land": ["DE", "NA", ""]})
    path = tmp_path / f"t.{ending}"
    given.to_csv(path, index=False) if ending == "csv" else given.to_parquet(path, index=False)
    found = Reading(null_values=("", "NA", "-9")).table("pandas", str(path))
    assert found["shop"].tolist() == [1, 2, 3]
    assert found.isna().to_dict("list") == {
        "shop": [False] * 3, "staff": [False, True, False], "price": [False, False, True], "land": [False, True, True],
    }  # fmt: skip
    assert found["staff"].dropna().tolist() == [5, 7]
    join = {"join_external": {"table": str(path), "on": ["shop"], "columns": {"staff": "staff"}}}
    (step,) = parse_steps([join], reading=Reading(null_values=("-9",)))
    assert step(pd.DataFrame({"shop": [3, 2, 4]}))["staff"].fillna(0).tolist() == [7, 0, 0]


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        (["1", "20"], "Int64"), (["1", ""], "Int64"), (["1", "07"], "str"), (["0", "-3"], "Int64"),
        (["0.5", "1e3"], "float64"), (["0.5", "00.5"], "str"), (["1", "nan"], "str"), (["", "x"], "str"),
        (["9" * 18, "1"], "Int64"), ([str(2**63 - 1), "1"], "Int64"), ([str(2**63), "1"], "str"),
        (["True", "false"], "boolean"),
    ],
)  # fmt: skip
def test_a_column_is_numbers_only_where_every_field_is_a_plain_one(tmp_path, fields, dtype):
    text = "k,v\n" + "".join(f"{place},{value}\n" for place, value in enumerate(fields))
    assert str(read(tmp_path, text)["v"].dtype) == dtype


def test_a_declared_type_holds_for_the_tables_name_and_the_new_one(tmp_path):
    (tmp_path / "t.csv").write_text("k,v,w\n1,20,3\n", encoding="utf-8")
    steps = [{"join_external": {"table": str(tmp_path / "t.csv"), "on": ["k"], "columns": {"v": "code", "w": "w"}}}]
    (step,) = parse_steps(steps, reading=Reading(dtypes={"code": "string", "k": "string"}))
    assert step(pd.DataFrame({"k": ["1"]})).to_dict("list") == {"k": ["1"], "code": ["20"], "w": [3]}


def test_a_recipe_joins_by_its_own_rules(tmp_path):
    rows = pd.DataFrame({"zip": ["01234", "00001"] * 100, "y": [0, 1] * 100})
    rows.to_csv(tmp_path / "rows.csv", index=False, sep=";")
    (tmp_path / "shops.csv").write_text(SHOPS, encoding="utf-8")
    join = {"table": str(tmp_path / "shops.csv"), "on": ["zip"], "columns": {"country": "country", "staff": "staff"}}
    chosen = TableSettings(
        path=str(tmp_path / "rows.csv"), separator=";", null_values=("-",), categorical=("zip", "country"),
        continuous=("staff",), targets={"y": {"task": "binary"}}, steps=({"join_external": join},),
    )  # fmt: skip
    train = TableRecipe(chosen).build("pandas").splits["train"]
    assert set(zip(train["zip"], train["country"], train["staff"].fillna(-1), strict=True)) == {
        ("01234", "NA", 5.0), ("00001", "DE", -1.0),
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["txt", "csv"])
@pytest.mark.parametrize(
    ("values", "column", "ids"),
    [
        (["NA", "01234", "1234"], pd.Series(["NA", "01234", "1234", "DE"], dtype="str"), [3, 4, 5, 2]),
        (["a\u2028b", "c\x85d", "e"], pd.Series(["a\u2028b", "c\x85d", "e"], dtype="str"), [3, 4, 5]),
        (["7", "8"], pd.Series([8, 7, 9]), [4, 3, 2]),
        (["7", "8"], pd.Series([8.0, None, 7.0]), [4, 1, 3]),
        (["true", "false"], pd.Series([False, True]), [4, 3]),
        (["7", "8"], pd.Series([None, None], dtype="float64"), [1, 1]),
    ],
)
def test_a_vocabulary_is_what_its_file_says(tmp_path, ending, values, column, ids):
    path = tmp_path / f"v.{ending}"
    path.write_bytes(("value\n" * (ending == "csv") + "".join(f"{value}\r\n" for value in values)).encode())
    arguments = {"column": "c", "vocabulary": str(path)}
    (step,) = parse_steps([{"categorify": arguments}], reading=Reading(null_values=("",), separator=";"))
    frame = column.to_frame("c")
    state = step.fit([frame[:1], frame[1:]])
    assert len(state.values) == len(values)
    assert step.apply(frame, state)["c"].tolist() == ids


def test_fields_that_are_none_of_the_columns_kind_are_refused(tmp_path):
    (tmp_path / "v.txt").write_text("7\nx\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"Categorify of 'c', given vocabulary: .* is declared int64"):
        Categorify("c", vocabulary=str(tmp_path / "v.txt")).fit([pd.DataFrame({"c": [7]})])


def test_blanks_are_kept_unless_the_separator_has_one(tmp_path):
    assert read(tmp_path, "k,v\na, b\n")["v"].tolist() == [" b"]
    assert read(tmp_path, "k, v\na, b\n", separator=", ").to_dict("list") == {"k": ["a"], "v": ["b"]}
