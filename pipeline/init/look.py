"""A bounded look at the files of a table: which there are, how they are written, and a sample of their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.columns.numbers import FLOAT_TEXT
from gigabatch.features.engines.arrow_types import usual_types
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import UNREADABLE, DataError, raise_of_machine
from gigabatch.features.reading.csv_blocks import CsvBlock, csv_blocks
from gigabatch.features.reading.csv_records import csv_fields
from gigabatch.features.reading.encodings import (
    GUESS,
    UTF8,
    csv_source,
    file_encoding,
    is_bytewise,
    not_text,
    opened,
    require_encoding,
    unreadable,
)
from gigabatch.features.reading.plain_csv import read_plain
from gigabatch.features.reading.sources import CSV_ENDINGS, PARQUET_ENDINGS, expand, file_columns, unknown_kind
from gigabatch.features.workflow.workflow import ROW

SEPARATORS = (",", ";", "\t", "|")
BLOCK_BYTES = 1 << 20
MOST_CELLS = 30_000_000
HEAD_CHARACTERS = 1 << 16
MOST_ABOVE = 30  # lines, among which a header is looked for
SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing", "holdout"),
}


@dataclass
class Table:
    """Hold what was seen of a table.

    Parameters
    ----------
    paths
        The settings `path`, or `train_path` and `test_path` (and `valid_path`).
    sample
        Rows of all files. Columns of CSV files are text as it is written, those of Parquet files of Arrow's types.
    arrow
        Types of a Parquet file's columns; empty for CSV files.
    separator
        As the recipe takes it.
    encoding
        Of CSV files.
    whole
        Whether the sample is all rows.
    rows
        Number of all rows, where a Parquet file says so or all were read; else None.
    left_out
        By the name of a column that cannot be named in a configuration: why.
    beside
        Other columns of the sample's rows, whose roles are given; None where there are none.
    """

    paths: dict[str, str]
    sample: pd.DataFrame
    arrow: dict[str, pa.DataType] = field(default_factory=dict)
    separator: str = ","
    encoding: str = UTF8
    whole: bool = True
    rows: int | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    beside: pa.Table | None = None


def look(pattern: str, most_rows: int, encoding: str | None = None) -> Table:
    """Read a sample of a table.

    Parameters
    ----------
    pattern
        Path, folder, glob or URL of CSV or Parquet files. Of two or three files whose names say train, valid and test
        each is that split.
    most_rows
        About how many rows are read; of many files an even share each, of large files pieces all over it.
    encoding
        Of CSV files; by default what `file_encoding` tells by their bytes.

    Returns
    -------
    Table
        The sample, and how the files are read.

    Raises
    ------
    DataError
        No file, an empty or a broken one, or files of several kinds or encodings.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.pipeline.init.look import look
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "shop.csv").write_text("city; sold\\nBonn; yes\\n")
    ...     table = look(f"{folder}/shop.csv", most_rows=100)
    >>> table.separator, table.sample["sold"].tolist()
    ('; ', ['yes'])
    """
    files = expand(pattern)
    parquet = [path.endswith(PARQUET_ENDINGS) for path in files]
    if any(parquet) != all(parquet):
        raise DataError(f"input {pattern!r}: holds CSV and Parquet files. Name those of one kind, such as a glob.")
    paths = _paths(pattern, files)
    files = files if "path" in paths else list(paths.values())  # train first
    encoding = UTF8 if parquet[0] else _encoding(files, encoding)
    separator = "," if parquet[0] else _separator(files[0], encoding)
    names = {path: file_columns("pandas", path, separator, encoding) for path in files}
    first = names[files[0]]
    if not first:
        raise DataError(f"input {files[0]}: it has no columns.")
    left_out = _unusable(first)
    known = set(first)
    for path in files[1:]:
        there = set(names[path])
        for name in first:
            if name not in there and name not in left_out:
                left_out[name] = f"not a column of {path}"
        left_out |= {name: f"not a column of {files[0]}" for name in names[path] if name not in known}
    kept = [name for name in first if name not in left_out]
    share = max(min(most_rows, MOST_CELLS // len(first)) // len(files), 100)
    parts: list[pd.DataFrame] = []
    arrow: dict[str, pa.DataType] = {}
    by_file: dict[str, dict[str, pa.DataType]] = {}
    differing: dict[str, str] = {}
    whole = True
    rows: int | None = 0
    of_file: int | None
    for path in files:
        if parquet[0]:
            part, types, of_file = _parquet_sample(path, kept, share)
            for name in kept:
                if name in left_out or (known := arrow.setdefault(name, types[name])) == types[name]:
                    continue
                common = _common_type(known, types[name])
                differing.setdefault(name, "")
                if common is None or not (differing[name] or pa.types.is_null(types[name])):
                    differing[name] = _told_apart(name, {**by_file, path: types})
                if common is None:
                    left_out[name] = differing[name]
                else:
                    arrow[name] = common
            by_file[path] = types
        else:
            part, complete = _csv_sample(path, names[path], separator, encoding, share)
            of_file = len(part) if complete else None
        whole = whole and of_file == len(part)
        rows = None if rows is None or of_file is None else rows + of_file
        parts.append(part)
    for name, told in differing.items():
        if name in left_out:
            continue
        try:
            for part in parts:
                part[name] = part[name].astype(pd.ArrowDtype(arrow[name]))
        except (pa.ArrowException, TypeError, ValueError):  # such as ids of 2^53 and beyond beside floats
            left_out[name] = told
    kept = [name for name in kept if name not in left_out]
    sample = pd.concat([part[kept] for part in parts], ignore_index=True) if len(parts) > 1 else parts[0][kept]
    if not len(sample):
        raise DataError(f"input {pattern!r}: it has columns but no rows.")
    return Table(paths, sample, arrow, separator, encoding, whole, rows, left_out)


def look_at(table: pa.Table, most_rows: int, beside: Collection[str] = ()) -> Table:
    """A sample of a table in memory, as `look` takes it of a Parquet file: `most_rows` of its rows, evenly over it.

    beside: columns that are not looked at, since their roles are given.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from gigabatch.pipeline.init.look import look_at
    >>> found = look_at(pa.table({"x": range(10)}), most_rows=4)
    >>> found.sample["x"].tolist(), found.whole, found.rows
    ([0, 3, 6, 9], False, 10)
    """
    others = table.select(list(beside)) if beside else None
    table = table.drop_columns(list(beside))
    step = -(-len(table) // max(min(most_rows, MOST_CELLS // max(table.num_columns, 1)), 1))
    places = np.arange(0, len(table), step) if step > 1 else None
    part = table if places is None else table.take(places)
    others = others if others is None or places is None else others.take(places)
    arrow = dict(zip(table.column_names, table.schema.types, strict=True))
    left_out = _unusable(table.column_names)
    sample = part.drop_columns(list(left_out)).to_pandas(types_mapper=pd.ArrowDtype)
    return Table({}, sample, arrow, whole=step <= 1, rows=len(table), left_out=left_out, beside=others)


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a column that files hold as these two: as the recipe reads them, numbers are numbers, and nulls
    alone are of any type. None where there is none."""
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)]
    schemas = [pa.schema([("column", kind)]) for kind in plain]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("column").type
    except pa.ArrowException:
        return None


def _told_apart(name: str, by_file: Mapping[str, Mapping[str, pa.DataType]]) -> str:
    """The type of a column in the last file and another one in an earlier file, if there is one with which it does not
    go together; empty where those are of nulls alone, with which all types do."""
    *earlier, last = ((path, types[name]) for path, types in by_file.items())
    others = [found for found in earlier if found[1] != last[1]]
    other = min(others, key=lambda found: (_common_type(found[1], last[1]) is not None, pa.types.is_null(found[1])))
    return "" if pa.types.is_null(other[1]) else ", ".join(f"{kind} in {path}" for path, kind in (other, last))


def _unusable(names: Sequence[str]) -> dict[str, str]:
    """Columns that a configuration cannot name, and why."""
    found = {}
    for name, count in Counter(names).items():
        if count > 1:
            found[name] = f"{count} columns have this name; rename them"
        elif name == ROW:
            found[name] = "the recipe makes a column of this name; rename yours"
        elif not name.strip():
            found[name] = "it has no name"
    return found


def _paths(pattern: str, files: list[str]) -> dict[str, str]:
    """The settings that name the files: splits apart where each of two or three files is one."""
    if len(files) in (2, 3):
        named: dict[str, str] = {}
        for path in files:
            words = re.split(r"[^a-z]+", Path(path).name.lower())
            split = next((split for split, those in SPLIT_WORDS.items() if set(those) & set(words)), "train")
            named.setdefault(split, path)
        if len(named) == len(files) and {"train", "test"} <= set(named):
            return {f"{split}_path": named[split] for split in SPLIT_WORDS if split in named}
    return {"path": pattern}


def _encoding(files: Sequence[str], given: str | None) -> str:
    """The one encoding of all files; ASCII is UTF-8 and cp1252 alike."""
    for path in files:
        if not path.endswith(CSV_ENDINGS + PARQUET_ENDINGS):
            raise unknown_kind(path)  # before its bytes are taken for text
    if given is not None:
        require_encoding(given, "init")
        return given
    try:
        found = {path: file_encoding(path) for path in files}
    except DataError:
        raise
    except UNREADABLE as error:
        raise_of_machine(error, files[0])
        raise DataError(f"input {files[0]}: cannot be read ({error}).") from error
    told = sorted(set(found.values()))
    if told == sorted({UTF8, GUESS}) and all(_is_ascii(path) for path in files if found[path] == UTF8):
        return GUESS
    if len(told) > 1:
        shown = ", ".join(f"{next(path for path in files if found[path] == name)} ({name})" for name in told)
        raise DataError(f"input: files in several encodings: {shown}. Convert them to one, or name those of one alone.")
    return told[0]


def _is_ascii(path: str) -> bool:
    with opened(path) as file:
        return all(chunk.isascii() for chunk in iter(lambda: file.read(1 << 22), b""))


def header_below(pattern: str, target: str, encoding: str | None) -> int:
    """The number of the line of the first CSV file that names its columns, the target among them, where other lines
    stand above it; else 0."""
    path = expand(pattern)[0]
    if path.endswith(PARQUET_ENDINGS):
        return 0
    lines = _head(path, _encoding([path], encoding)).splitlines()[:MOST_ABOVE]
    tables = [[[field.strip(' "') for field in line.split(sign)] for line in lines] for sign in SEPARATORS]
    there = {number for rows in tables for number, row in enumerate(rows) if target in row and len(row) > 1}
    if len(there) != 1 or re.match(FLOAT_TEXT, target):  # what stands in several lines, or is a number, is a value
        return 0
    (number,) = there
    full = ([sum(map(bool, row)) for row in rows[: number + 1]] for rows in tables if target in rows[number])
    # A line above that is as full is a header, or a row.
    return number + 1 if number and any(max(above) < own for *above, own in full) else 0


def _head(path: str, encoding: str) -> str:
    """The first text of a file."""
    try:
        with TextIOWrapper(opened(path), encoding=encoding, newline="") as file:
            return file.read(HEAD_CHARACTERS)
    except UnicodeDecodeError as error:
        raise not_text(path, encoding) from error
    except UNREADABLE as error:
        raise_of_machine(error, path)
        raise DataError(f"input {path}: cannot be read ({error}).") from error


def _separator(path: str, encoding: str) -> str:
    """What stands between the fields of a CSV file, by its first lines; a blank behind it if one always does."""
    head = _head(path, encoding)
    lines = re.sub(r'"[^"]*"', '""', head).splitlines()
    if len(head) == HEAD_CHARACTERS and len(lines) > 1:  # the last one is cut, as is a header of thousands of names
        lines = lines[:-1]
    lines = [line for line in lines[:200] if line]
    if not lines:
        raise DataError(f"input {path}: the file is empty.")
    counts = {sign: [line.count(sign) for line in lines] for sign in SEPARATORS}
    # As many in every line as in the header; of several the most frequent.
    steady = [sign for sign in SEPARATORS if counts[sign][0] and len(set(counts[sign])) == 1]
    if not steady and lines[0].count("::") and len({line.count("::") for line in lines}) == 1:
        raise DataError(
            f"input {path}: parts its fields by '::', and a separator is one sign. Write them with another; the recipe "
            "movielens reads files of MovieLens as downloaded (docs/recommenders.md)."
        )
    there = steady or [sign for sign in SEPARATORS if counts[sign][0]]
    if not there:
        return ","
    sign = max(there, key=lambda sign: counts[sign][0])
    text = "\n".join(lines)
    return f"{sign} " if sign != "\t" and text.count(sign) == text.count(f"{sign} ") else sign


def _csv_sample(path: str, names: list[str], separator: str, encoding: str, share: int) -> tuple[pd.DataFrame, bool]:
    """About `share` rows of a CSV file as text, and whether those are all."""
    module = load_engine("pandas")

    def parse(source: Any, rows: int | None) -> pd.DataFrame:
        if rows is None and isinstance(source, BytesIO) and len(set(names)) == len(names):
            plain: Any = read_plain(source.getvalue(), separator, dict.fromkeys(names, "string"), names, [""])
            if plain is not None:
                return pd.DataFrame(plain.fillna(""))
        frame: Any = module.read_csv(
            source, **csv_fields(separator), dtype="str", keep_default_na=False, na_values=[], nrows=rows
        )
        if type(frame.index).__name__ != "RangeIndex" or len(frame.columns) != len(names):
            raise DataError(
                f"input {path}: its rows have more fields than its header has names ({', '.join(map(repr, names[:5]))}"
                f"{', ...' if len(names) > 5 else ''}). Delete lines that stand above the header, or repair header or "
                "rows."
            )
        frame.columns = names
        return pd.DataFrame(frame)

    try:
        if not is_bytewise(encoding):  # bytes of such a text say nothing of where a row ends
            frame = parse(csv_source(path, encoding), None)
            step = -(-len(frame) // share)
            return frame.iloc[:: max(step, 1)], step <= 1
        blocks = csv_blocks(path, BLOCK_BYTES, separator=separator)
        if len(blocks) == 1:
            frame = parse(csv_source(path, encoding), share + 1)
            return frame.head(share), len(frame) <= share
        with open(path, "rb") as file:

            def rows_of(chosen: Sequence[CsvBlock]) -> pd.DataFrame:
                """Parsed at once: of thousands of columns a block holds few rows, and each takes its time a block."""
                content = [blocks[0].header]
                for block in chosen:
                    file.seek(block.start)
                    content.append(file.read((block.stop or 0) - block.start))
                return parse(csv_source(path, encoding, b"".join(content)), None)

            first = rows_of(blocks[:1])
            wanted = min(max(share // max(len(first), 1), 1), len(blocks))
            if wanted == 1:
                return first, len(blocks) == 1
            return rows_of([blocks[number * len(blocks) // wanted] for number in range(wanted)]), wanted == len(blocks)
    except DataError:
        raise
    except UNREADABLE as error:
        raise_of_machine(error, path)
        raise unreadable(path, error) from error


def _parquet_sample(path: str, names: list[str], share: int) -> tuple[pd.DataFrame, dict[str, pa.DataType], int]:
    """About `share` rows of a Parquet file, of row groups all over it; its types, and how many rows it has."""
    try:
        with fsspec.open(path, "rb") as source:
            file = pq.ParquetFile(source)
            groups, num_rows = file.num_row_groups, file.metadata.num_rows
            wanted = min(max(share * groups // max(num_rows, 1), 1), groups)
            chosen = [number * groups // wanted for number in range(wanted)]
            batches, left = [], share
            for batch in file.iter_batches(min(share, 65_536), chosen, columns=names):
                batches.append(batch[:left])
                left -= len(batches[-1])
                if left <= 0:
                    break
            schema = pa.schema([file.schema_arrow.field(name) for name in names])
            table = usual_types(pa.Table.from_batches(batches, schema))
            types = dict(zip(names, table.schema.types, strict=True))
            return table.to_pandas(types_mapper=pd.ArrowDtype), types, num_rows
    except DataError:
        raise
    except UNREADABLE as error:
        raise_of_machine(error, path)
        raise unreadable(path, error) from error
