"""Raw files that are damaged, malicious or careless: a `DataError` that names the file, or exactly the rows in it."""

import csv
import gzip
import io
import re
import struct
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.parse_duration import ParseDuration
from gigabatch.features.reading.blocks import read_blocks
from gigabatch.features.reading.encodings import unreadable
from gigabatch.features.reading.sources import read_files
from tests.examples import examples
from tests.features.damage import damaged

TYPES = {"name": "string", "size": "int64", "price": "float64"}
ROWS = "name,size,price\n" + "".join(f"town {k},{k * 7},{k / 4}\n" for k in range(12))
NULLS = ("", "NA")
FUZZ = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(tmp_path, content, ending=".csv", dtypes=TYPES):
    path = tmp_path / f"raw{ending}"
    path.write_bytes(content)
    return read_files("pandas", str(path), dtypes)


def refused_or_read(tmp_path, content, ending):
    """The frame, or None where it was refused by the file's name; any other error passes through."""
    try:
        return read(tmp_path, content, ending)
    except DataError as error:
        refusal = str(error)
    assert f"raw{ending}" in refusal
    return None


def plain(frame):
    rows = frame.itertuples(index=False, name=None)
    return [tuple(None if pd.isna(value) else value for value in row) for row in rows]


def parsed(content):
    """The rows by Python's own csv module; None where a row has fields too many or a number is none."""
    reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
    header, *rows = [row for row in reader if any(cell for cell in row) or len(row) > 1]
    if any(header.count(name) != 1 for name in TYPES):
        return None
    places = [header.index(name) for name in TYPES]
    found = []
    for row in rows:
        if len(row) > len(header):
            return None
        cells = [row[place] if place < len(row) and row[place] not in NULLS else None for place in places]
        found.append((cells[0], int(float(cells[1])), None if cells[2] is None else float(cells[2])))
    return [(name, size, None if price != price else price) for name, size, price in found]


@FUZZ
@given(content=damaged(gzip.compress(ROWS.encode(), mtime=0)))
def test_a_damaged_gzip_file_is_refused_or_holds_the_rows(tmp_path, content):
    found = refused_or_read(tmp_path, content, ".csv.gz")
    assert found is None or plain(found) == parsed(ROWS.encode())  # gzip has a checksum


def parquet(table, **options):
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


NUMBERS = list(range(12))
TABLE = pa.table({"name": [f"town {k}" for k in NUMBERS], "size": NUMBERS, "price": [k / 4 for k in NUMBERS]})


@FUZZ
@given(content=damaged(ROWS.encode()))
@example(content=ROWS.encode())
def test_a_damaged_csv_file_is_refused_or_read_as_pythons_csv_module_reads_it(tmp_path, content):
    found = refused_or_read(tmp_path, content, ".csv")
    if found is None:
        return
    assert [str(kind) for kind in found.dtypes] == ["str", "int64", "float64"]
    # Rules of quotes, single carriage returns and byte order marks differ; they are tested below.
    if not set(content) & set(b'"\r') and not content.startswith(b"\xef\xbb\xbf"):
        assert plain(found) == parsed(content)


@FUZZ
@given(content=damaged(parquet(TABLE)))
@example(content=parquet(TABLE))
def test_a_damaged_parquet_file_is_refused_or_is_a_table_of_the_declared_types(tmp_path, content):
    found = refused_or_read(tmp_path, content, ".parquet")
    if found is None:
        return
    # Values in pages have no checksum unless the writer made one, so that other values can come out, of these types.
    assert [str(kind) for kind in found.dtypes] == ["str", "int64", "float64"]


@FUZZ
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(tmp_path, content):
    for ending in (".csv", ".parquet", ".csv.gz", ".csv.zip"):
        with pytest.raises(DataError, match="raw"):
            read(tmp_path, content, ending)


@pytest.mark.parametrize(("content", "rows"), [
    ("name,size,price\r\nx,1,2\r\ny,3,NA\r\n", [("x", 1, 2.0), ("y", 3, None)]),
    ("\ufeffname,size,price\nx,1,2\n", [("x", 1, 2.0)]),
    ('name,size,price\n"x\ny, z",1,2\n', [("x\ny, z", 1, 2.0)]),
    ('name,size,price\n"say ""hm""",1,2\n', [('say "hm"', 1, 2.0)]),
    ("size,extra,price,name\n1,?,2,x\n", [("x", 1, 2.0)]),
    ("name,size,price\nNaN,1,2\n", [("NaN", 1, 2.0)]),
    ("name,size,price\nnull,1,2\nNone,2,3\n", [("null", 1, 2.0), ("None", 2, 3.0)]),
    ("name,size,price\n007,1,2\n", [("007", 1, 2.0)]),
    ("name,size,price\n,1,\n", [(None, 1, None)]),
    ("name,size,price\n" + "x" * 300_000 + ",1,2\n", [("x" * 300_000, 1, 2.0)]),
    ("name,size,price\nx,9223372036854775807,1e308\n", [("x", 2**63 - 1, 1e308)]),
    ("name,size,price\nx,1,inf\n", [("x", 1, np.inf)]),
], ids=["CRLF", "BOM", "line break in quotes", "quotes in quotes", "other order", "NaN as text", "null as text",
        "leading zeros", "empty fields", "enormous field", "largest", "infinity"])  # fmt: skip
def test_unusual_csv_files_are_read_as_they_are_meant(tmp_path, content, rows):
    assert plain(read(tmp_path, content.encode())) == rows


@pytest.mark.parametrize("content", [
    b"name,size,price\n", b"\n\n\n", b"name;size;price\nx;1;2\n", b"name\tsize\tprice\nx\t1\t2\n",
    b"name,size,price\nx,1,2,3\n", b'name,size,price\n"x,1,2\ny,3,4\n', b"name,size,price\nx\xff,1,2\n",
    b"name,size,price\nx,one,2\n", b"name,size,price\nx,1.5,2\n", b"name,size,price\nx,,2\n",
    b"name,size,price\nx,9223372036854775808,2\n", b"name,size,price\nx,1,2..5\n", b"name,size,price\nx,1,1e999x\n",
    "name,size,price\nx,1,2\n".encode("utf-16"), b"name,size,size,price\nx,1,2,3\n",
    b"name,name,size,price\nx,y,2,3\n",
    b"name,size,price\nx\0y,1,2\n",
], ids=["header only", "blank lines", "semicolons", "tabs", "too many fields", "open quote", "bad UTF-8", "word",
        "fraction", "null", "beyond int64", "no number", "no number either", "UTF-16",
        "a header twice", "another twice", "NUL byte"])  # fmt: skip
def test_csv_files_that_cannot_be_right_are_refused(tmp_path, content):
    with pytest.raises(DataError, match=r"raw\.csv"):
        read(tmp_path, content)


@pytest.mark.parametrize("column", [
    pa.array([[1], [2, 3]]), pa.array([{"a": 1}, {"a": 2}]), pa.array([{"a": [1]}, None]),
    pa.array([b"\xff", b"x"]), pa.array([1, 2], pa.timestamp("us")), pa.array([1, 2], pa.timestamp("ns", "Asia/Tokyo")),
    pa.array([1, 2], pa.duration("s")), pa.array([1, 2], pa.date32()), pa.array(["1.5", "2"]).cast(pa.decimal128(5, 2)),
    pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), pa.array([1, 2], pa.time32("s")),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", ["string", "int64", "float64", "bool"])
def test_parquet_columns_of_other_kinds_are_refused_by_name(tmp_path, column, dtype):
    if dtype == "string" and (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        (text, _) = read(tmp_path, parquet(pa.table({"a": column})), ".parquet", {"a": dtype})["a"]
        assert text.startswith("1970-01-0")  # dates are ISO text
        return
    if dtype == "string" and (pa.types.is_duration(column.type) or pa.types.is_time(column.type)):
        texts = [*read(tmp_path, parquet(pa.table({"a": column})), ".parquet", {"a": dtype})["a"]]
        assert ParseDuration("a")(pd.DataFrame({"a": texts}))["a"].tolist() == [1.0, 2.0]
        return
    if dtype == "float64" and pa.types.is_decimal(column.type):
        return  # test_decimals_are_the_nearest_floats
    with pytest.raises(DataError, match=r"raw\.parquet: column 'a'"):
        read(tmp_path, parquet(pa.table({"a": column})), ".parquet", {"a": dtype})


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int64", [2**53 + 1, None, -7]), ("string", ["9007199254740993", None, "-7"]),
        ("datetime[s]?", [None, None, -7_000_000]), ("float64", [float(2**53), None, -7.0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [None, 2])
def test_decimals_without_a_fraction_are_whole_numbers(tmp_path, dtype, expected, rows):
    """As warehouses write ids: NUMBER(20, 0)."""
    column = pa.array([Decimal(2**53 + 1), None, Decimal(-7)], pa.decimal128(20, 0))
    pq.write_table(pa.table({"n": column}), tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    if rows is None:
        found = read_files("pandas", path, {"n": dtype}, nullable=("n",))
    else:
        found = pd.concat(read_blocks(path, {"n": dtype}, rows, nullable=("n",)))
    assert [None if pd.isna(value) else value for value in found["n"].tolist()] == expected


def test_decimals_beyond_whole_numbers_are_refused_but_as_floats(tmp_path):
    for place, column in enumerate([pa.array([2**63], pa.decimal128(20, 0)), pa.array([Decimal("1.5")])]):
        pq.write_table(pa.table({"n": column}), tmp_path / f"{place}.parquet")
        for dtype in ("int64", "string"):
            with pytest.raises(DataError, match="column 'n' is declared"):
                read_files("pandas", str(tmp_path / f"{place}.parquet"), {"n": dtype})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_decimals_are_the_nearest_floats(tmp_path, dtype):
    column = pa.array([Decimal("0.10"), None, Decimal("-12345.67")], pa.decimal128(10, 2))
    found = read(tmp_path, parquet(pa.table({"a": column})), ".parquet", {"a": dtype})["a"]
    assert str(found.dtype) == dtype
    assert found.tolist()[::2] == [np.dtype(dtype).type(value) for value in (0.1, -12345.67)]
    assert found.isna().tolist() == [False, True, False]


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path):
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match=r"raw\.parquet"):
        read(tmp_path, parquet(twice), ".parquet", {"a": "int64"})


@pytest.mark.parametrize("length", [0, 1, 8, 2**31 - 1, 2**32 - 1])
def test_a_parquet_footer_that_lies_about_its_length_is_refused(tmp_path, length):
    content = parquet(TABLE)
    with pytest.raises(DataError, match=r"raw\.parquet"):
        read(tmp_path, content[:-8] + struct.pack("<I", length) + b"PAR1", ".parquet")


def test_text_in_a_parquet_file_that_is_no_utf8_is_refused(tmp_path):
    name = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["ab", "cd"]).buffers()[:2], pa.py_buffer(b"a\xffcd")])
    with pytest.raises(DataError, match=r"raw\.parquet"):
        read(tmp_path, parquet(pa.table({"name": name})), ".parquet", {"name": "string"})


def test_metadata_of_pandas_in_a_parquet_file_is_not_trusted(tmp_path):
    """pandas' own metadata may name an index or a Python type; the declared columns come out as declared."""
    lies = TABLE.replace_schema_metadata(
        {b"pandas": b'{"index_columns": ["size"], "columns": [], "column_indexes": []}'}
    )
    found = refused_or_read(tmp_path, parquet(lies), ".parquet")
    assert found is None or plain(found) == plain(TABLE.to_pandas())


@pytest.mark.parametrize("sign", [";", "\t", "|", ","])
def test_a_file_of_another_separator_says_which(tmp_path, sign):
    """All columns were not found, and nothing was said of separators."""
    path, other = tmp_path / "rows.csv", ";" if sign == "," else ","
    path.write_text(f"city{sign}price\nOslo{sign}5\n")
    with pytest.raises(DataError, match=re.escape(f"separated by {sign!r}. Set separator: {sign!r}")):
        read_files("pandas", str(path), {"city": "string", "price": "float32"}, separator=other)
    path.write_text("town,cost\nOslo,5\n")
    with pytest.raises(DataError, match="Rename the column in the input"):
        read_files("pandas", str(path), {"city": "string"}, separator=";")


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_carriage_return_alone_is_named_with_its_line(tmp_path, ending):
    rows = [f'2025-01-{k % 28 + 1:02d} {k % 24:02d}:00:00,"a\rb",{k % 7}' for k in range(300)]
    rows[100] = "2025-01-05\r 04:00:00,a,1"
    content = ("name,size,price\n" + "\n".join(rows) + "\n").encode()
    content = gzip.compress(content) if ending.endswith("gz") else content
    with pytest.raises(DataError, match=r"line 102: holds a carriage return that no line feed follows"):
        read(tmp_path, content, ending, {"name": "string", "size": "string", "price": "float64"})


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'a,b\n"x\ry\nz",1\n2\r,3\n', 4),
        (b'a,b\n"x\ny\rz",1\n2\r,3\n', 4),
        (b'a,b\r\n"x\r\ny ""z""\r",1\r\n2,3\r4,5\r\n', 4),
        (b'a,b\n"x\n",1\r2,3\n', 3),
        (b'a,b\n"x\n\r\ny",1\n\r2,3\n', 5),
    ],
)
def test_a_carriage_return_within_quotes_of_several_lines_is_not_named(tmp_path, content, line):
    (tmp_path / "rows.csv").write_bytes(content)
    said = str(unreadable(str(tmp_path / "rows.csv"), "Buffer overflow caught"))
    assert f"rows.csv, line {line}: holds a carriage return that no line feed follows" in said


def test_a_name_that_a_parquet_file_has_twice_is_named(tmp_path):
    twice = pa.table(
        [pa.array(["x"]), pa.array([1]), pa.array([0.5]), pa.array([2])], ["name", "size", "price", "size"]
    )
    with io.BytesIO() as out:
        pq.write_table(twice, out)
        content = out.getvalue()
    with pytest.raises(DataError, match=r"raw\.parquet: column\(s\) 'size' are there more than once\. Rename them\.$"):
        read(tmp_path, content, ".parquet")
