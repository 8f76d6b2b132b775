"""CSV files that zstandard packed are read as they are unpacked, with Arrow alone."""

import fsspec
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.reading.blocks import about_rows, read_blocks
from gigabatch.features.reading.encodings import HEAD_BYTES
from gigabatch.features.reading.sources import file_columns, read_files
from gigabatch.features.reading.tables import Reading
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.init.draft import draft_config

TYPES = {"city": "string", "price": "float64", "n": "int64"}


def packed(path, *parts):
    """Each part is a frame of its own, as parallel packers write them and `cat a.zst b.zst` does."""
    with open(path, "wb") as out:
        for part in parts:
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "zstd") as file:
                file.write(part)
            out.write(sink.getvalue())
    return str(path)


def text_of(rows):
    return "city,price,n\n" + "".join(f'"Köln, {k % 7}",{k}.25,{k}\n' for k in range(rows))


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_rows_are_those_of_the_unpacked_file(tmp_path, encoding):
    content = text_of(3000).encode(encoding)
    (tmp_path / "a.csv").write_bytes(content)
    path = packed(tmp_path / "a.csv.zst", content[:20_000], content[20_000:])
    expected = read_files("pandas", str(tmp_path / "a.csv"), TYPES, encoding=encoding)
    pd.testing.assert_frame_equal(read_files("pandas", path, TYPES, encoding=encoding), expected)
    assert file_columns("pandas", path, encoding=encoding) == list(TYPES)
    if encoding == "utf-8":
        blocks = list(read_blocks(path, TYPES, 700))
        assert len(blocks) == 5
        pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), expected)
        assert about_rows(path) > 0
        with fsspec.open("memory://a.csv.zst", "wb") as file:
            file.write((tmp_path / "a.csv.zst").read_bytes())
        pd.testing.assert_frame_equal(read_files("pandas", "memory://a.csv.zst", TYPES), expected)


def test_names_of_a_long_file_and_of_a_long_header(tmp_path):
    rows = "ä,b\n" + "ö,1\n" * (HEAD_BYTES // 4)
    assert file_columns("pandas", packed(tmp_path / "long.csv.zst", rows.encode())) == ["ä", "b"]
    names = [f"a column of a wide table {number:,}".replace(",", "") for number in range(40_000)]
    header = ",".join(names)
    assert len(header) > HEAD_BYTES
    wide = packed(tmp_path / "wide.csv.zst", f"{header}\n{','.join('1' * len(names))}\n".encode())
    assert file_columns("pandas", wide) == names


def test_damaged_files_are_refused_by_name(tmp_path):
    whole = packed(tmp_path / "a.csv.zst", text_of(3000).encode())
    content = (tmp_path / "a.csv.zst").read_bytes()
    for number, broken in enumerate((content[:-100], b"no zstd", b"", content[:3])):
        path = tmp_path / f"{number}.csv.zst"
        path.write_bytes(broken)
        with pytest.raises(DataError, match=f"input .*{number}.csv.zst"):
            read_files("pandas", str(path), TYPES)
        with pytest.raises(DataError, match=f"{number}.csv.zst"):
            draft_config(str(path), "n", None, 100)
    assert len(read_files("pandas", whole, TYPES)) == 3000


def test_a_draft_and_side_tables_take_them(tmp_path):
    text = "day,price,sold\n" + "".join(f"{k % 28 + 1}. März 20{k % 20:02},{k}.5,{k % 2}\n" for k in range(400))
    path = packed(tmp_path / "shop.csv.zst", text.encode())
    made = draft_config(path, "sold", None, 1000)
    assert made.features["inputs"] == {"day": "datetime[%d. %b %Y]"}
    splits = TableRecipe(TableSettings(**(made.features | {"path": path}))).build("pandas").splits
    assert sum(map(len, splits.values())) == 400
    assert len(Reading().table("pandas", path)) == 400
