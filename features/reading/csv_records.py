"""The records of CSV files, cut without a parser, and files of one column, where a blank line is one of them."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from gigabatch.features.engines.protocols import Engine
from gigabatch.features.errors import DataError


class NotInParts(DataError):
    """Rows cannot be had block by block without another result; the message says why. All are read at once."""


def ends_in_quotes(separator: str) -> Callable[[bytes, bool], bool]:
    """Make the function that tells whether text of a CSV file ends within a field in quotes.

    Parameters
    ----------
    separator
        Of fields.

    Returns
    -------
    callable
        Of whole lines, and of whether they begin within such a field.

    Examples
    --------
    >>> is_open = ends_in_quotes(",")
    >>> is_open(b'5" screen,1\\n', False), is_open(b'1,"two\\n', False), is_open(b'lines",3\\n', True)
    (False, True, False)
    """
    sign, inner = re.escape(separator[0].encode()), rb'[^"]*(?:""[^"]*)*'
    # A quote that no other character stands before; a search that begins with the quote is the faster one.
    opening = rb"(?:^|" + sign + rb') *"' if separator[1:] else rb'"(?<![^\n' + sign + rb']")'
    quoted, closing = re.compile(opening + inner + rb'("?)', re.MULTILINE), re.compile(inner + rb'"(?!")')

    def is_open(lines: bytes, inside: bool) -> bool:
        start = 0
        if inside:
            end = closing.match(lines)
            if end is None:
                return True
            start = end.end()
        return quoted.findall(lines, start)[-1:] == [b""]  # one that is not closed reaches to the end

    return is_open


def csv_records(file: Iterable[bytes], separator: str, *, has_header: bool) -> tuple[bytes, Iterator[bytes]]:
    """Cut the text of a CSV file after each record.

    A line break ends a record unless it is in quotes, which begin a field and are doubled within it (RFC 4180). Blocks
    are parsed with the header before them, since a reader that goes on within a file does not hold the first row of
    what it reads next against the number of columns.

    Parameters
    ----------
    file
        Its lines, unpacked, each with what ends it.
    separator
        Of fields.
    has_header
        Whether the first record names the columns.

    Returns
    -------
    bytes, iterator of bytes
        The header with blank lines before it, or nothing; the other records, blank lines among them.

    Raises
    ------
    NotInParts
        At a carriage return alone outside of quotes, also while records are taken: readers begin a row behind it.

    Examples
    --------
    >>> import io
    >>> head, records = csv_records(io.BytesIO(b'a,b\\n1,"x\\ny"\\n2,z\\n'), ",", has_header=True)
    >>> head, list(records)
    (b'a,b\\n', [b'1,"x\\ny"\\n', b'2,z\\n'])
    """
    found = _records(file, separator)
    head = b""
    while has_header and not head.strip():
        record = next(found, None)
        if record is None:
            break
        head += record
    return head, found


def _records(file: Iterable[bytes], separator: str, mark: bytes = codecs.BOM_UTF8) -> Iterator[bytes]:
    """The records; mark: what is passed over where the first line begins with it."""
    is_open = ends_in_quotes(separator)
    parts: list[bytes] = []
    inside = False
    for line in file:
        text, mark = line.removeprefix(mark), b""
        if b"\r" in text.removesuffix(b"\n").removesuffix(b"\r") and _returns(text, inside):
            raise NotInParts("a line ends in a carriage return alone, which readers take for a line break")
        if inside or b'"' in text:
            inside = is_open(text, inside)
        if inside:
            parts.append(line)
        elif parts:
            yield b"".join((*parts, line))
            parts = []
        else:
            yield line
    if parts:
        yield b"".join(parts)


def record_blocks(
    file: Iterable[bytes], separator: str, rows: int, *, has_header: bool
) -> tuple[bytes, Iterator[bytes]]:
    """Cut the text of a CSV file as `csv_records` does, into blocks of at most so many records.

    Lines without a carriage return among them are looked at all at once, which takes a fraction of the time.

    Parameters
    ----------
    file, separator, has_header
        As of `csv_records`.
    rows
        Records of a block, at most; one with line breaks in quotes may hold fewer.

    Returns
    -------
    bytes, iterator of bytes
        The header as `csv_records` gives it; the blocks.

    Raises
    ------
    NotInParts
        As `csv_records`.

    Examples
    --------
    >>> import io
    >>> head, blocks = record_blocks(io.BytesIO(b'a,b\\n1,"x\\ny"\\n2,z\\n3,z\\n'), ",", 2, has_header=True)
    >>> head, list(blocks)
    (b'a,b\\n', [b'1,"x\\ny"\\n', b'2,z\\n3,z\\n'])
    """
    lines_left = iter(file)
    head = csv_records(lines_left, separator, has_header=True)[0] if has_header else b""
    is_open = ends_in_quotes(separator)

    def blocks() -> Iterator[bytes]:
        mark = b"" if has_header else codecs.BOM_UTF8
        while lines := list(islice(lines_left, rows)):
            block = b"".join(lines)
            inside = b'"' in block and is_open(block.removeprefix(mark), False)
            while inside and (line := next(lines_left, b"")):
                lines.append(line)
                inside = is_open(line, True)
            block = b"".join(lines)
            if b"\r" in block.replace(b"\r\n", b""):
                block = b"".join(islice(_records(chain(lines, lines_left), separator, mark), rows))
            del lines  # while the block is read
            yield block
            mark = b""

    return head, blocks()


def _returns(text: bytes, inside: bool) -> bool:
    """Whether a carriage return that no line feed follows stands outside of quotes. inside: whether these are open
    where the text begins."""
    pieces = text.replace(b"\r\n", b"").split(b'"')
    return any(b"\r" in piece for piece in pieces[inside::2])


def csv_fields(separator: str) -> dict[str, Any]:
    """Options of a CSV reader for a separator as `read_files` takes it."""
    blanks = len(separator) > 1 and separator.endswith(" ")
    return {"sep": separator[:-1] if blanks else separator, "skipinitialspace": blanks}


def line_of(file: Iterable[str], separator: str, names: Sequence[str] | None, column: str, text: str) -> int | None:
    """The line, 1 the first, in which the first record begins that holds a text in a column.

    Parameters
    ----------
    file
        Lines of a CSV file, with what ends them.
    separator
        Of fields.
    names
        Of the columns, where the file has no header.
    column, text
        What is looked for.

    Returns
    -------
    int or None
        None where no record is found to hold it.

    Examples
    --------
    >>> from gigabatch.features.reading.csv_records import line_of
    >>> line_of(["a,b\\n", '1,"x\\n', 'y"\\n', "?,z\\n"], ",", None, "a", "?")
    4
    """
    how = csv_fields(separator)
    if len(how["sep"]) != 1:
        return None
    reader, begins = csv.reader(file, delimiter=how["sep"], skipinitialspace=how["skipinitialspace"]), 1
    place = None if names is None else list(names).index(column)
    try:
        for record in reader:
            line, begins = begins, reader.line_num + 1
            if place is None and record:
                header = [name.removeprefix("\ufeff") for name in record]
                if column not in header:  # a reader's name for a column without one
                    return None
                place = header.index(column)
            elif place is not None and record[place : place + 1] == [text]:
                return line
    except (csv.Error, UnicodeDecodeError):  # a field that is longer than the module takes; a reader's lenience
        pass
    return None


def csv_header(module: Engine, source: Any, separator: str) -> list[str]:
    """The fields of the first record of a CSV file, blank lines apart."""
    header = module.read_csv(source, header=None, nrows=1, dtype="str", keep_default_na=False, **csv_fields(separator))
    return [str(name) for name in module.to_pandas(header).iloc[0].tolist()]


def one_column_records(
    module: Engine, file: Iterable[bytes], separator: str, names: Sequence[str] | None
) -> tuple[bytes, Iterator[bytes]] | None:
    """The records of a CSV file of one column, of which those of blanks alone are empty: each is a row.

    Parameters
    ----------
    module
        The engine.
    file
        Its lines, as `csv_records` takes them.
    separator
        Of fields.
    names
        Of the columns, where the file has no header.

    Returns
    -------
    tuple[bytes, iterator of bytes] or None
        As of `csv_records`, without blank lines before the header; None where there are several columns, so that
        readers pass blank lines over.

    Examples
    --------
    >>> import io
    >>> from gigabatch.features.engines.frame import load_engine
    >>> from gigabatch.features.reading.csv_records import one_column_records
    >>> head, records = one_column_records(load_engine("pandas"), io.BytesIO(b"\\na\\nx\\n \\ny\\n"), ",", None)
    >>> head, list(records)
    (b'a\\n', [b'x\\n', b'\\r\\n', b'y\\n'])
    """
    head, records = csv_records(file, separator, has_header=names is None)
    head = re.sub(rb"^\s*[\r\n]", b"", head.removeprefix(codecs.BOM_UTF8))
    if names is None:
        names = csv_header(module, io.BytesIO(head), separator) if head else ()
    if len(names) != 1:
        return None
    return head, (b"\r\n" if record.isspace() else record for record in records)  # behind a carriage return, too
