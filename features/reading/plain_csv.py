"""CSV files of text and whole numbers, which Arrow reads in a third of pandas' time, to the very frame of pandas.

What the two might read otherwise is left to pandas: fractions, which its fast parser rounds in its own way, and all
that is unusual. The first lines tell whether a file may be plain, before anything is looked for in all of it.
"""

from __future__ import annotations

import codecs
import csv as stdlib_csv
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from gigabatch.features.exact.float_order import EXACT
from gigabatch.features.reading.null_words import number_of

SEPARATORS = (",", ";", "|")
BEFORE = np.frombuffer(b',;|\n" \t', np.uint8)
HEAD_BYTES, PIECE_BYTES = 1 << 15, 1 << 18
FEW = 20_000  # fields of text that look like such a number, which are looked at one after another
NUMBERS = ("int32", "int64", "float32", "float64")


def read_plain(
    content: bytes, separator: str, dtypes: Mapping[str, str], text: Sequence[str], null_values: Sequence[str]
) -> Any | None:
    """The declared columns of a CSV file with a header, as pandas reads them: text in the columns `text`, and numbers.

    Parameters
    ----------
    content
        The bytes of the file.
    separator, dtypes, null_values
        As of `read_files`.
    text
        Columns that are left as they are written.

    Returns
    -------
    pandas data frame or None
        None where pandas must read it.
    """
    header = content[: content.find(b"\n")]
    names = header.split(separator.encode())
    if separator not in SEPARATORS or "" not in null_values or len(names) == 1 or not dtypes:
        return None
    if any(number_of(word) is not None for word in null_values):  # pandas compares the values of these: 9.0 is 9
        return None
    if any(dtype not in NUMBERS for name, dtype in dtypes.items() if name not in text) or len({*names}) < len(names):
        return None
    if b'"' in header or content.startswith(codecs.BOM_UTF8):
        return None
    types = {name: pa.large_string() if name in text else pa.int64() for name in dtypes}
    convert = csv.ConvertOptions(
        column_types=types, include_columns=list(dtypes), null_values=list(null_values), strings_can_be_null=True
    )
    parsed = csv.ParseOptions(delimiter=separator)
    try:
        csv.read_csv(pa.BufferReader(content[: content.rfind(b"\n", 0, HEAD_BYTES) + 1]), None, parsed, convert)
        if b"\r" in content or b"\0" in content or _ends_in_quotes(content, separator):
            return None
        numbers = [names.index(name.encode()) for name in dtypes if name not in text]
        if content.count(b'"') % 2 or (numbers and _number_begins(content, b"0x", separator, numbers)):
            return None
        if not content.isascii():
            content.decode()
        table = csv.read_csv(pa.BufferReader(content), None, parsed, convert)
    except (pa.ArrowInvalid, KeyError, UnicodeDecodeError):
        return None
    num_lines = content.count(b"\n") - content.endswith(b"\n")  # of rows
    if not table.num_rows or table.num_rows != num_lines:  # blank lines, or breaks within quotes
        return None
    for name in text:  # text in one piece, as pandas has it
        table = table.set_column(table.schema.get_field_index(name), name, [table[name].combine_chunks()])
    frame = table.to_pandas()
    floats = [frame[name] for name in dtypes if frame[name].dtype.kind == "f"]  # whole numbers beside nulls
    if any(bool((abs(column) >= EXACT).any()) for column in floats):
        return None
    zeros = any(bool((column == 0).any()) for column in floats)
    return None if zeros and _number_begins(content, b"-0", separator, numbers) else frame


def _ends_in_quotes(content: bytes, separator: str) -> bool:
    """Whether a field of the last line is quoted and not closed, as in a file that was cut off; Arrow closes it.

    A quote within a field that does not begin with one is text, so that their number does not tell. What is open from
    an earlier line on has breaks within quotes, which the number of rows tells.
    """
    last = content[content.rfind(b"\n", 0, -1) + 1 :].removesuffix(b"\n").decode("latin-1")
    try:
        return not list(stdlib_csv.reader([last], delimiter=separator, strict=True))
    except stdlib_csv.Error:
        return True


def _number_begins(content: bytes, text: bytes, separator: str, numbers: Sequence[int]) -> bool:
    """Whether a field of the columns `numbers`, by place, begins with these two characters, `-0` or `0x`, blanks and
    quotes before them and case apart; True too where very many fields of other columns do."""
    looked_at, last = 0, -1
    for start in range(0, len(content), PIECE_BYTES):  # so that nothing large is made
        held = np.frombuffer(content, np.uint8, min(PIECE_BYTES + 2, len(content) - start), start)
        places = np.flatnonzero((held[1:-1] == text[0]) & (held[2:] | 32 == text[1]))
        for place in (places[np.isin(held[places], BEFORE)] + start).tolist():
            if place < last:
                continue  # in the line that was looked at
            looked_at, begin = looked_at + 1, content.rfind(b"\n", 0, place + 1) + 1
            last = content.find(b"\n", place + 1)
            last = len(content) if last < 0 else last
            try:
                fields = next(stdlib_csv.reader([content[begin:last].decode("latin-1")], delimiter=separator), [])
            except stdlib_csv.Error:  # a field that is longer than it takes
                return True
            found = (
                fields[number].strip(' \t"').lower().encode("latin-1") for number in numbers if number < len(fields)
            )
            if looked_at > FEW or any(field.startswith(text) for field in found):
                return True
    return False
