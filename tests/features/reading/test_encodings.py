"""CSV files that are not UTF-8: told by their bytes, read by the setting, refused with the byte."""

import gzip

import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.reading.encodings import file_encoding
from gigabatch.features.reading.sources import file_columns, read_files
from gigabatch.features.reading.tables import Reading
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.side_tables import SideTable

TEXT = "Größe;Preis\nCafé;1\n„Straße“;2\n"
TYPES = {"Größe": "string", "Preis": "int64"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "UTF8", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_of_an_encoding_are_read_as_those_of_utf8(tmp_path, encoding, packed):
    path = str(tmp_path / ("a.csv.gz" if packed else "a.csv"))
    content = TEXT.replace("\n", "\r\n").encode(encoding)
    with open(path, "wb") as file:
        file.write(gzip.compress(content) if packed else content)
    found = read_files("pandas", path, TYPES, separator=";", encoding=encoding)
    assert found["Größe"].tolist() == ["Café", "„Straße“"]
    assert found["Preis"].tolist() == [1, 2]
    assert file_columns("pandas", path, ";", encoding) == ["Größe", "Preis"]
    table = Reading(separator=";", encoding=encoding).table("pandas", path)
    assert table.astype("str").to_dict("list") == {"Größe": ["Café", "„Straße“"], "Preis": ["1", "2"]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,b\n", "utf-8"), (TEXT.encode(), "utf-8"), (TEXT.encode("utf-8-sig"), "utf-8"),
        ("Café".encode("latin-1"), "cp1252"), (TEXT.encode("cp1252"), "cp1252"), (TEXT.encode("utf-16"), "utf-16"),
        ("\ufeff".encode("utf-16-be") + TEXT.encode("utf-16-be"), "utf-16"), (TEXT.encode("utf-32"), "utf-32"),
        (b"a" * (1 << 22) + b"\xe9", "cp1252"), (b"a" * ((1 << 22) - 1) + "é".encode(), "utf-8"),
    ],
)  # fmt: skip
def test_an_encoding_is_told_by_the_bytes_of_the_whole_file(tmp_path, content, expected):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert file_encoding(str(path)) == expected


def test_bytes_of_another_encoding_are_named_with_their_place(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("name\nok\nCafé\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a.csv: not valid UTF-8: byte 11 \(0xe9, in line 3\).*Set encoding.*cp1252"):
        read_files("pandas", str(path), {"name": "string"})
    path.write_bytes("name\nok\n".encode("latin-1") + b"\x81\n")
    with pytest.raises(DataError, match=r"a.csv: not valid cp1252: byte 8 \(0x81, in line 3\).*Set encoding"):
        read_files("pandas", str(path), {"name": "string"}, encoding="cp1252")
    with pytest.raises(DataError, match=r"not valid UTF-8: byte 8"):
        file_encoding(str(path))
    path.write_bytes(TEXT.encode("utf-16-le"))
    with pytest.raises(DataError, match=r"a.csv: .*(NUL byte|not valid UTF-8).*Set encoding.*utf-16"):
        read_files("pandas", str(path), {"Größe": "string"})
    path.write_bytes("Größe\n1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a.csv: not valid UTF-8: byte 2 \(0xf6"):
        file_columns("pandas", str(path))


def test_one_name_of_two_columns_is_refused_in_another_encoding_too(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("ä,ä\n1,2\n".encode("utf-16"))
    with pytest.raises(DataError, match="'ä' are there more than once"):
        read_files("pandas", str(path), {"ä": "int64"}, encoding="utf-16")


def test_interactions_and_what_describes_them_are_read_by_their_settings(tmp_path):
    plays = [f"Jürgen{k % 20},song{k % 7},{k}" for k in range(200)]
    (tmp_path / "plays.csv").write_text("\n".join(["user,item,at", *plays]), encoding="cp1252")
    songs = [f"song{k},Würfel{k % 2}" for k in range(7)]
    (tmp_path / "songs.csv").write_text("\n".join(["item,genre", *songs]), encoding="utf-16")
    side = SideTable(str(tmp_path / "songs.csv"), categorical=("genre",), encoding="utf-16")
    chosen = InteractionsSettings(
        path=str(tmp_path / "plays.csv"), time="at", side_tables={"item": side}, encoding="cp1252"
    )
    train = InteractionsRecipe(chosen).build("pandas").splits["train"]
    assert set(train["user"]) == {f"Jürgen{k}" for k in range(20)}
    assert set(train["genre"]) == {"Würfel0", "Würfel1"}
    with pytest.raises(DataError, match=r"side table a\.csv: encoding 'klingon' is not known"):
        SideTable("a.csv", categorical=("genre",), encoding="klingon")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_a_file_of_utf8_is_refused_in_an_encoding_of_single_letters(tmp_path, mark, encoding):
    (tmp_path / "a.csv").write_bytes(mark + "city,n\nKöln,1\n".encode())
    with pytest.raises(DataError, match=encoding):
        read_files("pandas", str(tmp_path / "a.csv"), {"city": "string", "n": "int64"}, encoding=encoding)
    (tmp_path / "b.csv").write_bytes("city,n\nKöln,1\n".encode(encoding))
    (tmp_path / "c.csv").write_bytes(b"city,n\nBonn,1\n")
    found = read_files("pandas", str(tmp_path / "[bc].csv"), {"city": "string", "n": "int64"}, encoding=encoding)
    assert found["city"].tolist() == ["Köln", "Bonn"]
