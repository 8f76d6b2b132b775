"""CSV files of one column: each line behind the header is a row, also a blank one, however the file is read."""

import gzip

import pandas as pd
import pytest

from gigabatch.features.reading.blocks import NotInParts, read_blocks
from gigabatch.features.reading.csv_blocks import csv_blocks
from gigabatch.features.reading.sources import read_files

TEXT = {"review": "string"}
FILES = {
    "blank lines": ("review\ngreat\n \nawful\n\ngood\n", ["great", None, "awful", None, "good"]),
    "no last line break": ("review\n\ngreat\n\t \ngood", [None, "great", None, "good"]),
    "blanks as the last line": ("review\ngreat\n  ", ["great", None]),
    "blank lines at the end": ("review\ngreat\n\n\n", ["great", None, None]),
    "only blank lines": ("review\n\n\n", [None, None]),
    "CRLF": ("review\r\ngreat\r\n\r\n \r\ngood\r\n", ["great", None, None, "good"]),
    "blank lines before the header": ("\n \nreview\ngreat\n\ngood\n", ["great", None, "good"]),
    "a byte order mark": ("\ufeffreview\ngreat\n\n", ["great", None]),
    "in quotes": ('"review"\n"a\n\n \nb"\n\n" "\n""\n" c"\n', ["a\n\n \nb", None, " ", None, " c"]),
    "none": ("review\ngreat\n good \n", ["great", " good "]),
}


def every_way(path, dtypes, **options):
    yield read_files("pandas", str(path), dtypes, **options)
    for rows in (1, 2, 100):
        yield pd.concat(list(read_blocks(str(path), dtypes, rows, **options)), ignore_index=True)
    if not options and path.suffix == ".csv":
        for size in (1, 9, 1000):
            parts = [block.read("pandas", dtypes) for block in csv_blocks(str(path), size)]
            yield pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("name", FILES)
def test_every_line_behind_the_header_is_a_row(tmp_path, name):
    text, expected = FILES[name]
    (tmp_path / "a.csv").write_bytes(text.encode())
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    for path in (tmp_path / "a.csv", tmp_path / "b.csv.gz"):
        for found in every_way(path, TEXT):
            assert [None if value != value else value for value in found["review"]] == expected


def test_numbers_and_files_without_a_header_or_in_another_encoding(tmp_path):
    (tmp_path / "a.csv").write_text("\n0.5\n \n2\n")
    for found in every_way(tmp_path / "a.csv", {"n": "float64"}, names=["n"]):
        assert found["n"].fillna(-1.0).tolist() == [-1.0, 0.5, -1.0, 2.0]
    (tmp_path / "b.csv").write_text("review\ncafé\n\nb\n", encoding="utf-16")
    found = read_files("pandas", str(tmp_path / "b.csv"), TEXT, encoding="utf-16")["review"]
    assert [None if value != value else value for value in found] == ["café", None, "b"]


def test_carriage_returns_alone_end_lines_too(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\rreview\rgreat\r \r\rgood\r \n\nbad\r\r")
    found = read_files("pandas", str(tmp_path / "a.csv"), TEXT)["review"]
    expected = ["great", None, None, "good", None, None, "bad", None]
    assert [None if value != value else value for value in found] == expected
    with pytest.raises(NotInParts):
        list(read_blocks(str(tmp_path / "a.csv"), TEXT, 2))


def test_of_several_columns_a_blank_line_is_passed_over(tmp_path):
    (tmp_path / "a.csv").write_text("review,n\ngreat,1\n \n\ngood,2\n\n")
    for dtypes in (TEXT, TEXT | {"n": "int64"}):
        for found in (
            read_files("pandas", str(tmp_path / "a.csv"), dtypes),
            *read_blocks(str(tmp_path / "a.csv"), dtypes, 100),
        ):
            assert found["review"].tolist() == ["great", "good"]
