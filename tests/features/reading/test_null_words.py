"""Words for null among numbers and texts, against `pandas.read_csv` of the same values."""

import io

import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.reading.null_words import NullWords
from gigabatch.features.reading.sources import cast, read_files, without_null_words

KINDS = {
    "x": [
        "float64", "float32", "float16", "Float64", "double[pyarrow]", "float[pyarrow]", "halffloat[pyarrow]", "object",
        "category",
    ],
    "n": ["int64", "int32", "Int64", "int64[pyarrow]", "float64", "object", "category"],
    "t": ["str", "large_string[pyarrow]", "object", "category"],
}  # fmt: skip
NARROW = ("float32", "float16", "float[pyarrow]", "halffloat[pyarrow]")
VALUES = {"x": [-999.0, 7.5, 0.1, 2.0, float("inf")], "n": [-999, 7, 1, 2], "t": ["-999.0", "7.5", "a", "-999"]}


@pytest.mark.parametrize(
    "words",
    [["-999"], ["-999.0", "a"], ["-9.99e2"], ["0.1", "7"], ["inf", "nan", "?"], ["1e400"], ["2" * 309], ["1" * 5000]],
)
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in KINDS.items() for kind in kinds])
def test_a_frame_has_the_nulls_of_the_same_values_in_a_csv_file(name, kind, words):
    column = pd.Series(VALUES[name], name=name)
    column = column.astype(pd.ArrowDtype(pa.large_string()) if kind.startswith("large") else kind)
    text = pd.DataFrame({name: VALUES[name], "end": 0}).to_csv(index=False)
    dtype = {"t": "str"} if name == "t" else {}
    wanted = pd.read_csv(io.StringIO(text), na_values=words, keep_default_na=False, dtype=dtype)[name].isna()
    given = column.to_frame()
    found = without_null_words(given, words, {name: "string"})[name]
    assert found.isna().tolist() == wanted.tolist()
    assert found[~wanted].astype(column.dtype).tolist() == column[~wanted].tolist()
    assert not given[name].isna().any()  # it is not changed
    one_by_one = [value in NullWords(words) for value in column]
    assert one_by_one == wanted.tolist() or kind in NARROW


@pytest.mark.parametrize(
    ("given", "word", "dtype", "wanted"),
    [
        (["a", None, "?"], "?", "string", ["a", None, None]),
        (["-999", "3", "28.0"], "-999", "int64", [None, 3, 28]),
        (["-999", "3", "1.5"], "-999", "float32", [None, 3.0, 1.5]),
        (["true", "?", "0"], "?", "bool", [True, None, False]),
        (["1970-01-01", "?"], "?", "datetime", [0, None]),
        ([-999, 3, None], "-999", "int64", [None, 3, None]),
        ([-999, 3], "-999", "string", [None, "3"]),
        ([-999.0, 2.5], "-999", "float64", [None, 2.5]),
    ],
)
def test_null_words_are_found_and_values_cast_behind_arrows_dictionaries(given, word, dtype, wanted):
    frame = pd.DataFrame({"c": pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(given).dictionary_encode()]))})
    found = cast(without_null_words(frame, [word], {"c": dtype}), {"c": dtype}, "here", ["c"])["c"]
    assert [None if pd.isna(value) else value for value in found] == wanted
    assert without_null_words(frame, ["none"], {"c": dtype}) is frame  # which keeps its codes


def test_whole_numbers_beside_a_null_word_keep_their_digits_and_flags_are_no_numbers():
    frame = pd.DataFrame({"n": [2**62 + 1, -1, 2**62], "flag": [True, False, True], "big": [1, 2, 2**64 - 1]})
    frame["big"] = frame["big"].astype("uint64")
    mixed = pd.Series([True, 1, "1", 1.0, None, "2"], dtype=object)
    found = without_null_words(frame, ["-1", "1", "0", "1e30"], dict.fromkeys(frame, "string"))
    assert found["n"].tolist() == [2**62 + 1, pd.NA, 2**62]
    assert found["flag"].tolist() == [True, False, True]
    assert found["big"].tolist() == [pd.NA, 2, 2**64 - 1]
    assert without_null_words(mixed.to_frame("m"), ["1"], {"m": "string"})["m"].isna().tolist() == [
        False, True, True, True, True, False
    ]  # fmt: skip


def test_no_value_is_looked_at_by_itself_where_no_word_is_a_number(monkeypatch):
    given = pd.DataFrame({"m": pd.Series(["NA", None, "", "a", 1, True, b"NA", ["NA"], {"NA": 1}], dtype=object)})
    monkeypatch.delattr(NullWords, "__contains__")
    found = without_null_words(given, ["", "NA"], {"m": "string"})["m"].isna()
    assert found.tolist() == [True, True, True, *[False] * 6]


def test_what_is_neither_text_nor_number_is_left():
    frame = pd.DataFrame({
        "at": pd.to_datetime(["2024-01-01"]), "lists": [[-1]], "days": pd.Series([-1], dtype="timedelta64[s]"),
        "arrow": pd.Series([[-1]], dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    })  # fmt: skip
    assert without_null_words(frame, ["-1"], dict.fromkeys(frame, "string")) is frame


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_number_that_is_a_null_word_is_null_in_every_kind_of_file(tmp_path, ending):
    frame = pd.DataFrame({"x": [-999.0, 1.5], "n": [-999, 3], "c": [-999, 3]})
    path = tmp_path / f"rows.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    dtypes = {"x": "float32", "n": "int64", "c": "string"}
    found = read_files("pandas", str(path), dtypes, null_values=["-999"], nullable=["n"])
    assert found.isna().to_numpy().tolist() == [[True] * 3, [False] * 3]
    assert found.iloc[1].tolist() == [1.5, 3, "3"]
