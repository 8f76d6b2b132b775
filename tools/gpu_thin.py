"""Wheels without the device code of other chips: what makes cuDF's three hundred megabytes fit a slow way to a box.

A shared library that nvcc linked holds one fat binary for each source, and in each the machine code of every chip that
it was built for, and PTX for later ones. `thin` leaves in each what a chip of one compute capability loads, with zeros
behind it, and packs the wheel again by LZMA, which leaves nothing of zeros. Fat binaries stay where they are, so the
library loads as before, on that chip alone. Standard library only.

The layout of a fat binary is not documented by NVIDIA; it is as `cuobjdump` reads it and as
https://github.com/n-eiling/cuda-fatbin-decompression describes it. What does not parse to its last byte stays as it is.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
ENTRY = struct.Struct("<HHIQIIHHI")  # kind, -, bytes of this header, of the code, ..., compute capability times ten
PTX, MACHINE_CODE = 1, 2
SMALL_BYTES = 1 << 20  # a library below is not looked into


def thin(wheel: Path, made: Path, chip: int) -> tuple[int, int]:
    """Write `wheel` as `made`, with device code for compute capability `chip` (90: Hopper) alone; bytes of both."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "x", zipfile.ZIP_LZMA) as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.file_size >= SMALL_BYTES and content.startswith(b"\x7fELF"):
                content = without_other_chips(content, chip)
            again = zipfile.ZipInfo(entry.filename, entry.date_time)
            again.external_attr, again.compress_type = entry.external_attr, zipfile.ZIP_LZMA
            target.writestr(again, content)
    return wheel.stat().st_size, made.stat().st_size


def without_other_chips(library: bytes, chip: int) -> bytes:
    """A library of the same length whose fat binaries hold only entries that `chip` may load, with zeros behind them.

    A fat binary keeps its PTX where it has no machine code for the chip, and whatever is of another kind (code that is
    linked on the device).
    """
    found = bytearray(library)
    place = 0
    while (place := library.find(MAGIC, place)) >= 0:
        entries = _entries(library, place)
        if not entries:
            place += len(MAGIC)
            continue
        there = any(kind == MACHINE_CODE and of == chip for kind, of, _, _ in entries)
        kept = b"".join(
            library[first:last]
            for kind, of, first, last in entries
            if not (kind == MACHINE_CODE and of != chip) and not (kind == PTX and there)
        )
        first, end = entries[0][2], entries[-1][3]
        HEADER.pack_into(found, place, *HEADER.unpack_from(library, place)[:3], len(kept))
        found[first:end] = kept + bytes(end - first - len(kept))
        place = end
    return bytes(found)


def _entries(library: bytes, place: int) -> list[tuple[int, int, int, int]]:
    """Kind, chip, first and last byte of each entry of the fat binary at `place`; none where there is no fat binary."""
    if place + HEADER.size > len(library):
        return []
    _, version, header, size = HEADER.unpack_from(library, place)
    at, end = place + header, place + header + size
    if version != 1 or header != HEADER.size or end > len(library):
        return []
    found = []
    while at + ENTRY.size <= end:
        kind, _, head, code, _, _, _, _, chip = ENTRY.unpack_from(library, at)
        if head < ENTRY.size or at + head + code > end:
            return []
        found.append((kind, chip, at, at + head + code))
        at += head + code
    return found if at == end else []
