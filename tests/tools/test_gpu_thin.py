"""Wheels that keep the device code of one chip: fat binaries laid out by hand, beside what is none."""

import struct
import zipfile

import pytest

from tools import gpu_thin

PTX, CODE, OTHER = 1, 2, 8
LARGE = gpu_thin.SMALL_BYTES


def fat(*entries):
    """A fat binary of entries (kind, chip, content)."""
    body = b""
    for kind, chip, content in entries:
        content += bytes(-len(content) % 8)
        body += (
            struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(content), len(content), 0, 7, 0, chip) + bytes(32) + content
        )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def entries(library):
    """Kind, chip and content of what is in the fat binary at the beginning."""
    _, _, _, size = struct.unpack_from("<IHHQ", library)
    found, at = [], 16
    while at < 16 + size:
        kind, _, head, length, *_, chip = struct.unpack_from("<HHIQIIHHI", library, at)
        found.append((kind, chip, library[at + head : at + head + length]))
        at += head + length
    return found


@pytest.mark.parametrize("before", [b"", b"\x7fELF" + bytes(60)], ids=["first", "later"])
def test_a_fat_binary_keeps_what_the_chip_loads_in_its_place(before):
    whole = fat((CODE, 80, b"a" * 40), (CODE, 90, b"b" * 24), (PTX, 120, b"c" * 16), (OTHER, 75, b"d" * 8))
    second = fat((CODE, 90, b"e" * 8), (CODE, 75, b"f" * 8))
    library = before + whole + second + b"the end"
    found = gpu_thin.without_other_chips(library, 90)
    assert len(found) == len(library)
    assert found.startswith(before)
    assert found.endswith(b"the end")
    assert entries(found[len(before) :]) == [(CODE, 90, b"b" * 24), (OTHER, 75, b"d" * 8)]
    assert entries(found[len(before) + len(whole) :]) == [(CODE, 90, b"e" * 8)]


def test_ptx_stays_where_there_is_no_code_for_the_chip():
    library = fat((CODE, 80, b"a" * 8), (PTX, 80, b"p" * 8))
    assert entries(gpu_thin.without_other_chips(library, 90)) == [(PTX, 80, b"p" * 8)]


@pytest.mark.parametrize("cut", [3, 17, 40, 90])
def test_what_does_not_parse_to_its_last_byte_stays(cut):
    library = fat((CODE, 80, b"a" * 40), (CODE, 90, b"b" * 24))[:-cut]
    assert gpu_thin.without_other_chips(library, 90) == library
    text = b"no library, with the magic number " + struct.pack("<I", 0xBA55ED50) * 3
    assert gpu_thin.without_other_chips(text, 90) == text


def test_a_wheel_keeps_its_files_and_their_modes(tmp_path):
    code = b"\x7fELF" + bytes(LARGE) + fat((CODE, 80, bytes(range(256)) * 4000), (CODE, 90, b"b" * 24))
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        entry = zipfile.ZipInfo("a/lib.so", (2026, 1, 2, 3, 4, 6))
        entry.external_attr = 0o100755 << 16
        wheel.writestr(entry, code)
        wheel.writestr("a/__init__.py", "answer = 42\n")
        wheel.writestr("a/data.bin", code[4:])  # no library
    before, after = gpu_thin.thin(tmp_path / "a.whl", tmp_path / "b.whl", 90)
    assert (before, after) == tuple((tmp_path / name).stat().st_size for name in ("a.whl", "b.whl"))
    with zipfile.ZipFile(tmp_path / "b.whl") as wheel:
        assert wheel.namelist() == ["a/lib.so", "a/__init__.py", "a/data.bin"]
        assert wheel.getinfo("a/lib.so").external_attr == 0o100755 << 16
        assert wheel.read("a/lib.so") == gpu_thin.without_other_chips(code, 90) != code
        assert wheel.read("a/__init__.py") == b"answer = 42\n"
        assert wheel.read("a/data.bin") == code[4:]
