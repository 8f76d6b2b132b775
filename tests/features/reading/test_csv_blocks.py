"""CSV files in blocks: the rows of the whole file, wherever it is cut."""

import csv
import io
from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.reading.csv_blocks import CsvBlock, csv_blocks
from gigabatch.features.reading.csv_records import NotInParts, csv_records, record_blocks
from gigabatch.features.reading.sources import read_files

DTYPES = {"name": "string", "number": "int64"}
TEXT = st.text(st.sampled_from('ab",\n é'), max_size=6)


def written(path, rows):
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["name", "number"], *rows])
    path.write_text(out.getvalue(), newline="")
    return path


@given(rows=st.lists(st.tuples(TEXT, st.integers(-9, 999)), min_size=1, max_size=30), block_bytes=st.integers(1, 200))
def test_blocks_are_the_whole_file_whatever_is_quoted_and_wherever_it_is_cut(tmp_path_factory, rows, block_bytes):
    path = written(tmp_path_factory.mktemp("csv") / "data.csv", rows)
    blocks = csv_blocks(str(path), block_bytes)
    parts = [block.read("pandas", DTYPES, null_values=()) for block in blocks]
    found = pd.concat(parts, ignore_index=True)
    assert list(found.itertuples(index=False, name=None)) == [(name, number) for name, number in rows]
    content = path.read_bytes()
    if len(content) > block_bytes:
        assert blocks[0].header == b'"name","number"\n'
        assert b"".join(content[block.start : block.stop] for block in blocks) == content[len(blocks[0].header) :]
        assert all(block.stop - block.start >= block_bytes for block in blocks[:-1])


@given(
    text=st.lists(
        st.sampled_from(["\ufeff", "a", "a", " ", ",", ",", '"', '"', "\n", "\n", "\r\n", "\r"]), max_size=60
    ),
    separator=st.sampled_from([",", ", "]),
    rows=st.integers(1, 5),
    has_header=st.booleans(),
)
def test_blocks_of_records_are_those_that_are_cut_line_by_line(text, separator, rows, has_header):
    """Blocks are cut from many lines at once; what lies between two records is found for each line by itself."""
    content = "".join(text).encode()

    def cut(function, *given):
        try:
            head, parts = function(io.BytesIO(content), separator, *given, has_header=has_header)
            return head, list(parts)
        except NotInParts:
            return None

    expected, found = cut(csv_records), cut(record_blocks, rows)
    if expected is None or found is None:
        assert expected == found
        return
    head, records = expected
    assert found[0] == head
    assert b"".join(found[1]) == b"".join(records)
    ends = {len(b"".join(records[:number])): number for number in range(len(records) + 1)}
    stops = [ends[len(b"".join(found[1][:number]))] for number in range(len(found[1]) + 1)]  # each at a record's end
    assert all(0 < stop - start <= rows for start, stop in pairwise(stops))


@pytest.mark.parametrize("separator", [",", ";", "\t", ", "])
@pytest.mark.parametrize("block_bytes", [1, 9, 12, 21, 30, 40])
def test_a_quote_within_a_field_is_part_of_it_and_opens_nothing(tmp_path, separator, block_bytes):
    """An inch sign made the number of quotes odd, so that blocks ended within a field in quotes."""
    path = tmp_path / "data.csv"
    lines = [
        "name,number",
        '5" screen,1',
        '"one\ntwo, ""3""",2',
        'x"y"z",3',
        '"",4',
        '"\n",5',
        "é,6",
        '"\n""",7',
        'z"","\n8"',
        "a,9",
    ]
    path.write_text("\n".join(lines).replace(",", separator) + "\n", newline="")
    blocks = csv_blocks(str(path), block_bytes, separator=separator)
    content = path.read_bytes()
    records = [blocks[0].header] + [content[block.start : block.stop] for block in blocks]
    assert b"".join(records) == content
    how = {"delimiter": separator[0], "skipinitialspace": separator[1:] == " "}
    expected = list(csv.reader(io.StringIO(content.decode(), newline=""), **how))
    found = [row for text in records for row in csv.reader(io.StringIO(text.decode(), newline=""), **how)]
    assert found == expected
    assert len(blocks) > 1


def test_a_header_that_ends_in_a_carriage_return_alone_is_one_block(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("name,number\r" + "a,1\n" * 9, newline="")
    blocks = csv_blocks(str(path), 8)
    assert [len(block.read("pandas", {"name": "string", "number": "int64"})) for block in blocks] == [9]


def test_a_byte_order_mark_before_a_quote_hides_no_field(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text('"na\nme",number\n' + "a,1\n" * 9, encoding="utf-8-sig")
    (first, *others) = csv_blocks(str(path), 8)
    assert first.header == b'\xef\xbb\xbf"na\nme",number\n'
    assert sum(len(block.read("pandas", {"na\nme": "string"})) for block in (first, *others)) == 9


def test_a_file_without_a_last_line_break_keeps_its_last_row(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("name,number\na,1\nb,2\nc,3")
    parts = [block.read("pandas", DTYPES) for block in csv_blocks(str(path), 4)]
    assert pd.concat(parts)["number"].tolist() == [1, 2, 3]
    assert len(parts) == 2  # a block ends at the first record end after so many bytes


def test_small_compressed_and_parquet_files_are_one_block_each(tmp_path):
    frame = pd.DataFrame({"name": ["a", "b"], "number": [1, 2]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv.gz", index=False)
    frame.to_parquet(tmp_path / "c.parquet")
    blocks = csv_blocks(str(tmp_path), 1_000)
    assert [block.stop for block in blocks] == [None] * 3
    for block in blocks:
        pd.testing.assert_frame_equal(block.read("pandas", DTYPES), frame.astype({"name": "str"}))
    assert csv_blocks(str(tmp_path / "b.csv.gz"), 1) == [CsvBlock(str(tmp_path / "b.csv.gz"))]


def test_paths_are_absolute_for_workers_that_run_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "data.csv").write_text("name,number\na,1\n")
    monkeypatch.chdir(tmp_path)
    assert csv_blocks("data.csv", 100)[0].path == str(tmp_path / "data.csv")


def test_what_is_wrong_in_a_block_is_said_with_the_name_of_the_file(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("name,number\n" + "a,1\n" * 50 + "b,x\n")
    last = csv_blocks(str(path), 100)[-1]
    with pytest.raises(DataError, match=r"input .*data.csv: column 'number' is declared int64"):
        last.read("pandas", DTYPES)
    path.write_text("name,count\n" + "a,1\n" * 50)
    with pytest.raises(DataError, match=r"data.csv: column\(s\) 'number' not found"):
        csv_blocks(str(path), 100)[0].read("pandas", DTYPES)


def test_blocks_are_read_as_the_whole_file_is(tmp_path):
    """Nulls, text that looks like a number, blanks beside the separator: one set of rules."""
    path = tmp_path / "data.csv"
    path.write_text("name,number\n" + "007, 1\n,2\nNA,3\n x,4\n" * 5)
    whole = read_files("pandas", str(path), DTYPES, null_values=("",))
    parts = [block.read("pandas", DTYPES, null_values=("",)) for block in csv_blocks(str(path), 7)]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole)
    assert whole["name"].isna().sum() == 5
    assert whole["name"].tolist()[:4:3] == ["007", " x"]


def test_a_block_size_below_one_is_refused():
    with pytest.raises(DataError, match="block_bytes must be at least 1, found 0"):
        csv_blocks("x.csv", 0)


def test_a_file_that_a_worker_does_not_see_is_named(tmp_path):
    block = CsvBlock(str(tmp_path / "gone.csv"), 0, 10, b"name,number\n")
    with pytest.raises(DataError, match=r"input .*gone.csv: cannot be read here .*Every worker must see it"):
        block.read("pandas", DTYPES)
