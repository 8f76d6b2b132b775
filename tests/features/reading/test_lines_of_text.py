"""Text among numbers of a CSV file: the error says in which line it is, and what to do."""

import gzip

import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.reading.blocks import read_blocks
from gigabatch.features.reading.sources import read_files

ROWS = ["shop_id,note", *(f'{number},"two\nlines"' for number in range(1, 5)), "", "A12,x", "A12,y"]  # A12 in line 11


@pytest.mark.parametrize(
    ("ending", "encoding", "separator"),
    [("csv", "utf-8", ","), ("csv.gz", "utf-8-sig", ", "), ("csv", "utf-16", ";"), ("csv", "cp1252", "\t")],
)
def test_text_among_ids_is_told_with_file_line_column_and_remedy(tmp_path, ending, encoding, separator):
    path = tmp_path / f"new.{ending}"
    content = "\n".join(ROWS).replace(",", separator).encode(encoding)
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    expected = (
        r"input .*new\.csv.*, line 11: column 'shop_id' is declared int64 but holds .*'A12' is not written as a number"
        r".* declare the column string and train again: ids that training has not seen are one category then\."
    )
    read_as = "utf-8" if encoding == "utf-8-sig" else encoding
    with pytest.raises(DataError, match=expected):
        read_files("pandas", str(path), {"note": "string", "shop_id": "int64"}, separator=separator, encoding=read_as)


def test_a_file_without_a_header_and_one_that_is_read_in_blocks_have_lines_too(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("".join(f"{number},{number}.5\n" for number in range(40)) + "40,ask\n")
    names, dtypes = ["id", "price"], {"price": "float32"}
    with pytest.raises(DataError, match=r"prices\.csv, line 41: column 'price' is declared float32 .*'ask'") as whole:
        read_files("pandas", str(path), dtypes, names=names)
    with pytest.raises(DataError, match=r"prices\.csv, line 41: column 'price' is declared float32 .*'ask'"):
        list(read_blocks(str(path), dtypes, 10, names=names))
    assert "null_values" in str(whole.value)
    assert "declare the column string" not in str(whole.value)


def test_a_parquet_file_has_no_lines(tmp_path):
    pd.DataFrame({"shop_id": ["1", "A12"]}).to_parquet(tmp_path / "new.parquet")
    with pytest.raises(DataError, match=r"new\.parquet: column 'shop_id' is declared int64 .*'A12'"):
        read_files("pandas", str(tmp_path / "new.parquet"), {"shop_id": "int64"})
