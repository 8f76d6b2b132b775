"""In what CSV files are encoded: told by their bytes, checked, and turned into the UTF-8 that the readers take."""

from __future__ import annotations

import codecs
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, cast

import fsspec
import pyarrow as pa

from gigabatch.features.errors import UNREADABLE, DataError, raise_of_machine

UTF8 = "utf-8"
GUESS = "cp1252"  # Windows of Western Europe; Latin-1's letters are the same there
MARKS = (  # UTF-32's begins with that of UTF-16
    (codecs.BOM_UTF8, UTF8), (b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
SHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")  # of zip (.xlsx, .ods), and of .xls
CHUNK_BYTES = 1 << 22
HEAD_BYTES = 1 << 20
ZSTD = ".zst"


def require_encoding(encoding: str, where: str) -> None:
    """Raise `DataError` unless Python knows an encoding of text by this name.

    Examples
    --------
    >>> from gigabatch.features.reading.encodings import require_encoding
    >>> require_encoding("latin-1", "table")
    """
    try:
        is_text = codecs.lookup(encoding)._is_text_encoding
    except (LookupError, TypeError, ValueError):
        is_text = False
    if not is_text:
        raise DataError(
            f"{where}: encoding {encoding!r} is not known. Give one of Python's, such as utf-8, cp1252, latin-1 or "
            "utf-16."
        )


def is_utf8(encoding: str) -> bool:
    """Whether the readers take the files as they are."""
    return codecs.lookup(encoding).name == UTF8


def is_bytewise(encoding: str) -> bool:
    """Whether line breaks, quotes and separators are the bytes that they are in ASCII, so that files can be cut there.

    >>> is_bytewise("cp1252"), is_bytewise("utf-16")
    (True, False)
    """
    return ',"\n'.encode(encoding) == b',"\n'


def opened(path: str, content: bytes | None = None) -> BinaryIO:
    """The bytes of a file or URL, unpacked; or `content` in its place."""
    if content is not None:
        return io.BytesIO(content)
    if not path.endswith(ZSTD):
        return cast(BinaryIO, fsspec.open(path, "rb", compression="infer").open())
    # Arrow reads every frame of a file, and needs no other package.
    packed = pa.PythonFile(fsspec.open(path, "rb").open(), mode="r")
    return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(packed, "zstd")))


def csv_source(path: str, encoding: str, content: bytes | None = None, *, head: bool = False) -> Any:
    """What a reader of UTF-8 is given: the path as it is, or the text in UTF-8 of a file in another encoding, or that
    zstandard packed, for which pandas needs one more package.

    Parameters
    ----------
    path
        Path or URL; errors name it.
    encoding
        Of the file.
    content
        Bytes in place of the file's.
    head
        Whether the beginning is enough.

    Returns
    -------
    str or io.BytesIO
        For `read_csv`.

    Raises
    ------
    DataError
        A byte is no text in this encoding; the message names it.

    Examples
    --------
    >>> from gigabatch.features.reading.encodings import csv_source
    >>> csv_source("shop.csv", "cp1252", b"caf\\xe9").getvalue().decode()
    'café'
    """
    if is_utf8(encoding):
        if content is not None or not path.endswith(ZSTD):
            return path if content is None else io.BytesIO(content)
        with opened(path) as file:
            start = file.read(HEAD_BYTES) if head else b""
            whole_lines = start[: start.rfind(b"\n") + 1] if len(start) == HEAD_BYTES else b""
            return io.BytesIO(whole_lines or start + file.read())
    out = io.BytesIO()
    for text in _decoded(path, encoding, content):
        out.write(text.encode(UTF8))
        if head and out.tell() >= HEAD_BYTES:
            break
    out.seek(0)
    return out


def require_decodable(path: str, encoding: str, content: bytes | None = None) -> None:
    """Raise `DataError` for the first byte of a file that is no text in an encoding."""
    for _ in _decoded(path, encoding, content):
        pass


def not_text(path: str, encoding: str, content: bytes | None = None) -> DataError:
    """The error of a file that a reader could not decode: of its first byte that is no text in an encoding."""
    try:
        require_decodable(path, encoding, content)
        reason = f"some bytes are no text in {encoding}"
    except DataError as error:
        return error
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise_of_machine(error, path)
        reason = str(error)
    return unreadable(path, reason)


def unreadable(path: str, reason: object) -> DataError:
    """The error of a file that a reader gave up on. reason: of the reader, of which pandas' own says nothing of what is
    wrong at a carriage return that stands alone."""
    if twice := re.match(r"Multiple matches for FieldRef\.Name\((.*?)\) in ", str(reason)):
        return DataError(f"input {path}: column(s) {twice[1]!r} are there more than once. Rename them.")
    if "Buffer overflow" in str(reason):
        with suppress(OSError), opened(path) as file:  # bytes that were given may be of no file
            within = False  # quotes, which may span lines
            for number, line in enumerate(file, 1):
                parts = line.removesuffix(b"\n").removesuffix(b"\r").split(b'"')
                outside = parts[within::2]
                within ^= len(parts) % 2 == 0
                if any(b"\r" in part for part in outside):
                    return DataError(
                        f"input {path}, line {number}: holds a carriage return that no line feed follows, which "
                        "readers take for the end of a row. Delete it, or put the field in quotes."
                    )
    return DataError(f"input {path}: cannot be read, it may be truncated or of another format ({reason}).")


def file_encoding(path: str) -> str:
    """What a file is encoded in: what its byte order mark says, `utf-8` where all of it is that, else `cp1252`.

    Parameters
    ----------
    path
        Path or URL of a CSV file; it may be packed.

    Returns
    -------
    str
        `utf-8`, `utf-16`, `utf-32` or `cp1252`. Many bytes are letters in cp1252 whatever was meant: it is a guess.

    Raises
    ------
    DataError
        The file is none of these.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.features.reading.encodings import file_encoding
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "shop.csv")
    ...     _ = path.write_bytes("Café,1".encode("latin-1"))
    ...     file_encoding(str(path))
    'cp1252'
    """
    with opened(path) as file:
        start = file.read(4)
    for mark, encoding in MARKS:
        if start.startswith(mark):
            require_decodable(path, encoding)
            return encoding
    try:
        require_decodable(path, UTF8)
        return UTF8
    except DataError as error:
        try:
            require_decodable(path, GUESS)
            return GUESS
        except DataError:
            raise error from None


def _decoded(path: str, encoding: str, content: bytes | None) -> Iterator[str]:
    """The text of a file in pieces."""
    decoder = codecs.getincrementaldecoder(encoding)()
    utf8 = codecs.getincrementaldecoder(UTF8)() if _has_own_letters(encoding) else None
    plain, done, lines = True, 0, 1
    with opened(path, content) as file:
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not done and chunk.startswith(SHEETS):
                raise DataError(
                    f"input {path}: it is no text, but a workbook (.xlsx, .xls, .ods) or a packed file. Save the sheet "
                    "as CSV (UTF-8), or let the name of a packed CSV file end as it is packed (.zip)."
                )
            if utf8 is not None and not done and chunk.startswith(codecs.BOM_UTF8):
                raise DataError(f"input {path}: it begins with UTF-8's byte order mark, and encoding is {encoding}.")
            done += len(chunk)
            plain = plain and chunk.isascii()
            if utf8 is not None:
                try:
                    utf8.decode(chunk, final=not chunk)
                except UnicodeDecodeError:
                    utf8 = None
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _undecodable(path, encoding, error, done, lines) from error
            lines += text.count("\n")
            yield text
            if not chunk:
                break
    if utf8 is not None and not plain:
        raise DataError(
            f"input {path}: its bytes are UTF-8, and in encoding {encoding} its letters would be others. Files of one "
            "configuration have one encoding: convert this one, or the others."
        )


def _has_own_letters(encoding: str) -> bool:
    """Whether each byte is a letter of its own, so that text whose bytes happen to be UTF-8 is no text in it.

    >>> [_has_own_letters(encoding) for encoding in ("cp1252", "latin-1", "utf-8", "utf-16", "gb2312")]
    [True, True, False, False, False]
    """
    return codecs.lookup(encoding).name.startswith(("cp125", "iso8859", "cp437", "cp85", "mac"))


def _undecodable(path: str, encoding: str, error: UnicodeDecodeError, done: int, lines: int) -> DataError:
    """done: bytes read; lines: the line in which the text begins that was not decoded."""
    place = done - len(error.object) + error.start
    line = lines + error.object[: error.start].decode(encoding, "replace").count("\n")
    bad = " ".join(f"0x{byte:02x}" for byte in error.object[error.start : error.end][:4])
    advice = (
        "Set encoding to what the file is written in, such as cp1252 (Windows), latin-1 or utf-16 (Excel's Unicode "
        "text), or convert the file to UTF-8."
        if is_utf8(encoding)
        else "Set encoding to what the file is written in."
    )
    name = "UTF-8" if is_utf8(encoding) else encoding
    return DataError(
        f"input {path}: not valid {name}: byte {place:,} ({bad}, in line {line:,}) is no text there "
        f"({error.reason}). {advice}"
    )
