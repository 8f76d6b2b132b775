"""Raw inputs: where they lie and how they are read, with errors that name the file."""

from __future__ import annotations

import datetime
import importlib.util
import io
import os
import re
import reprlib
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.columns.lists import is_list_type, of_arrow, typed_lists
from gigabatch.features.columns.numbers import NotWritten, require_digits, without_zeros
from gigabatch.features.columns.objects import unboxed
from gigabatch.features.columns.time_types import of_type, time_type
from gigabatch.features.columns.times import is_dates, is_text, iso_text, microseconds, require_calendar
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.engines.protocols import Column, Engine, Frame
from gigabatch.features.errors import UNREADABLE, DataError, WrongTextError, raise_of_machine, require_columns
from gigabatch.features.exact.float_order import exact_below
from gigabatch.features.reading.csv_records import csv_fields, csv_header, line_of, one_column_records
from gigabatch.features.reading.encodings import UTF8, ZSTD, csv_source, not_text, opened, unreadable
from gigabatch.features.reading.null_words import TEXT_TYPES, NullWords, number_of
from gigabatch.features.reading.plain_csv import read_plain

BESIDE = (".user", ".item")  # RecBole's other tables of a folder, none of which has the rows of its .inter file
TEXT_ENDINGS = (".csv", ".tsv", ".dat", ".data", ".test", ".txt", ".inter", *BESIDE)
PACKED = (".gz", ".zip", ZSTD)  # behind them
CSV_ENDINGS = tuple(ending + packed for ending in TEXT_ENDINGS for packed in ("", *PACKED))
PARQUET_ENDINGS = (".parquet", ".pq")
IN_FOLDERS = tuple(ending for ending in CSV_ENDINGS if not ending.startswith(BESIDE)) + PARQUET_ENDINGS
KNOWN_ENDINGS = (
    f"{', '.join(TEXT_ENDINGS)}, each with {', '.join(PACKED[:-1])} or {PACKED[-1]} behind or not, "
    f"{', '.join(PARQUET_ENDINGS)}"
)
SHEET_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods")
PANDAS_ENDINGS = (".json", ".jsonl", ".feather", ".pkl", ".pickle", ".dta", ".sav", ".sas7bdat")
MOST_BELOW = 10_000  # names below a folder that are looked at for one of a data file
SAME_TABLE = (".csv", ".tsv", *PARQUET_ENDINGS)  # of files that may be one table each way
PACKAGES = {  # what fsspec's protocols need
    "http": "'gigabatch[remote]'", "https": "'gigabatch[remote]'", "s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs",
    "abfs": "adlfs", "az": "adlfs", "sftp": "paramiko", "ssh": "paramiko", "hdfs": "pyarrow",
}  # fmt: skip
AS_TEXT = ("string", "datetime", "time")  # what a CSV file is not asked to guess
WHOLE = ("int32", "int64")
EXPONENT = re.compile(rb"[0-9.][eE][+-]?[0-9]")
FLOATS = (float, np.floating)
PLAIN = (str, bool, int, float, np.bool_, np.integer, np.floating)


class FileCache(Protocol):
    """Keeps what files were parsed to; the pipeline has one (`gigabatch.pipeline.store.parsed_files`)."""

    def read(self, path: str, how: Mapping[str, Any], parse: Callable[[str], Any]) -> Any:
        """The rows of the file: kept ones, or what `parse` makes of it. how: every setting that they depend on."""

    def read_directly(self, path: str) -> None:
        """The file is read by the recipe itself, block by block, and its rows are not kept."""

    def start_again(self) -> None:
        """Files that were read so far are read again."""


def expand(pattern: str) -> list[str]:
    """List the files that a path names.

    Parameters
    ----------
    pattern
        Path, glob, folder or fsspec URL. `package://NAME/PATH` is a file shipped inside an installed Python package,
        found without importing it.

    Returns
    -------
    list of str
        Paths or URLs, sorted; of a folder those with the ending of a data file.

    Raises
    ------
    DataError
        Nothing is found, or the package is not installed.
    """
    if pattern.startswith("package://"):
        pattern = _in_package(pattern)
    if "://" in pattern:
        filesystem, inside = file_system(pattern)
        try:
            found = [filesystem.unstrip_protocol(name) for name in sorted(filesystem.glob(inside))]
        except OSError as error:
            raise DataError(
                f"input {pattern!r}: cannot be reached ({error}). Check the URL and the network."
            ) from error
    else:
        path = Path(pattern).expanduser()
        if path.is_dir():
            found = [str(item) for item in sorted(path.iterdir()) if item.name.endswith(IN_FOLDERS)]
            if not found and any(path.iterdir()):
                raise DataError(_no_file_in(pattern, path))
        elif path.exists():
            found = [str(path)]
        else:
            # A folder that is there is meant as it is written, whatever in its name might be a pattern.
            folder = next(folder for folder in path.parents if folder.exists())
            found = sorted(str(item) for item in folder.glob(str(path.relative_to(folder))))
    if not found:
        hint = " In it [ begins a set of letters; [[] stands for the bracket itself." if "[" in pattern else ""
        raise DataError(f"input {pattern!r}: no such file. Check the path.{hint}")
    return found


def _no_file_in(pattern: str, folder: Path) -> str:
    """What is said of a folder that holds something, and no data file."""
    endings = IN_FOLDERS
    below = next((item for item in islice(_names_below(folder), MOST_BELOW) if item.name.endswith(endings)), None)
    if below is None:
        return f"input {pattern!r}: the folder holds no file with a known ending ({KNOWN_ENDINGS})."
    ending = next(ending for ending in endings if below.name.endswith(ending))
    return (
        f"input {pattern!r}: the folder holds no data file itself, but folders in it do, such as {below}. Give a glob, "
        f"such as {folder / '**' / f'*{ending}'}."
    )


def _names_below(folder: Path) -> Iterator[Path]:
    """Files and folders in a folder and those in it, but for what begins with a dot, such as caches."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in (*folders, *files) if not name.startswith("."))


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a path or URL, and the path there.

    Parameters
    ----------
    url
        Path, or URL of a protocol that fsspec knows: http, https, s3, gs, abfs, sftp, zip and more.

    Returns
    -------
    tuple[Any, str]
        The file system, and where on it.

    Raises
    ------
    DataError
        The protocol is not known, or the package that it needs is not installed.

    Examples
    --------
    >>> from gigabatch.features.reading.sources import file_system
    >>> file_system("memory://folder/rows.csv")[1]
    '/folder/rows.csv'
    """
    protocol = url.partition("://")[0]
    try:
        filesystem, path = fsspec.url_to_fs(url)
    except ImportError as error:
        packages = PACKAGES.get(protocol, "")
        advice = f"Try: pip install {packages}." if packages else "Install what it names."
        raise DataError(
            f"input {url!r}: {protocol}:// needs a package that is not installed ({error}). {advice}"
        ) from error
    except ValueError as error:
        raise DataError(f"input {url!r}: {error}. Give a path, or a URL of a protocol that fsspec knows.") from error
    return filesystem, path


def _in_package(pattern: str) -> str:
    package, _, inside = pattern.removeprefix("package://").partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"input {pattern!r}: package {package!r} is not installed. Try: pip install 'gigabatch[data]'.")
    return str(Path(spec.submodule_search_locations[0]) / inside)


def read_files(
    engine: str,
    pattern: str | Sequence[str],
    dtypes: Mapping[str, str],
    *,
    null_values: Sequence[str] = ("", "NA"),
    separator: str = ",",
    encoding: str = UTF8,
    names: Sequence[str] | None = None,
    nullable: Collection[str] = (),
    cache: FileCache | None = None,
    leave_out: Collection[str] = (),
    without: Mapping[str, Sequence[int]] | None = None,
    blank_rows: bool = True,
    decimal_marks: Mapping[str, str] | None = None,
) -> Any:
    """Read files as one frame of declared columns and types.

    Parameters
    ----------
    engine
        `auto`, `pandas` or `cudf`.
    pattern
        What `expand` takes: CSV (also compressed) and Parquet files. Or a list of files as `expand` gives them.
    dtypes
        Type by column: int32, int64, float32, float64, string, bool, or datetime: timestamps, dates and ISO 8601 text
        as int64 microseconds since 1970 in UTC, whole numbers as they are; `datetime[%d.%m.%Y]` and `datetime[ms]` are
        times written by a format or counted in a unit (`time_type`). A column of type time may hold any of these
        and comes for `gigabatch.features.columns.times.moments`. Lists are `list[string]`, `list[int64]` or
        `list[float32]`; in CSV files they are text, split at what stands behind the bracket: `list[string]|`. The
        frame holds exactly these columns, in this order.
    null_values
        Whole fields of text, in CSV and Parquet files, that are null. Numbers that equal a word are null too.
    separator
        What stands between two fields of CSV files. Blanks beside it are part of a field (RFC 4180), unless one stands
        behind it here, as in `", "`: then those after it are left out.
    encoding
        Of CSV files, one of Python's: `utf-8`, `cp1252`, `utf-16` and more.
    names
        Column names for CSV files without a header row.
    nullable
        As in `cast`.
    cache
        Asked for the rows of each file first; recipes pass their own.
    leave_out
        Files that are not read, as `kept_files` takes them.
    without
        Rows that are left out, by file: their places, 0 the first; by the names that `same_file` gives.
    blank_rows
        Whether each blank line behind the header of a CSV file of one column is a row, with a null; of several columns
        they are passed over.
    decimal_marks
        As in `cast`, of Parquet files.

    Returns
    -------
    Frame
        The rows of all files, in the files' order, on a new index.

    Raises
    ------
    DataError
        No file, an empty or broken one, bytes that are no text in `encoding`, a missing column, a value that does not
        fit its type. Each names the file, and the column where there is one.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.features.reading.sources import read_files
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "planes.csv").write_text("tail,seats\\nN1,50\\nN2,180\\n")
    ...     read_files("pandas", f"{folder}/*.csv", {"tail": "string", "seats": "int64"})
      tail  seats
    0   N1     50
    1   N2    180
    """
    module = load_engine(engine)
    nulls, header = list(null_values), None if names is None else list(names)

    def parse(path: str) -> Any:
        frame = _read_one(module, path, dtypes, nulls, separator, encoding, header, blank_rows=blank_rows)
        with naming_lines(path, separator, encoding, header):
            return cast(frame, dtypes, f"input {path}", nullable, decimal_marks)

    how = {
        "dtypes": list(dtypes.items()),
        "null_values": nulls,
        "separator": separator,
        "encoding": encoding,
        "names": header,
        "nullable": sorted(nullable),
        "blank_rows": blank_rows,
        "decimal_marks": sorted((decimal_marks or {}).items()),
    }
    parts = []
    for path in kept_files(pattern, leave_out):
        rows = parse(path) if cache is None else cache.read(path, how, parse)
        parts.append(drop_rows(rows, path, (without or {}).get(same_file(path), ())))
    return parts[0] if len(parts) == 1 else module.frames.concat(parts, ignore_index=True)


def file_columns(engine: str, path: str, separator: str = ",", encoding: str = UTF8) -> list[str]:
    """Names of the columns of a file with a header, or of a Parquet file, as far as it can be read.

    Raises:
        DataError: an unknown ending, or a file that cannot be read.
    """
    module = load_engine(engine)
    try:
        if path.endswith(PARQUET_ENDINGS):
            with fsspec.open(path, "rb") if "://" in path else nullcontext(path) as source:
                return list(pq.read_schema(source).names)
        if path.endswith(CSV_ENDINGS):
            _refuse_empty(path)
            source = csv_source(path, encoding, head=True)
            return csv_header(module, source, separator)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise not_text(path, encoding) from error
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise_of_machine(error, path)
        raise unreadable(path, error) from error
    raise unknown_kind(path)


def unknown_kind(path: str) -> DataError:
    """What to raise of a file whose name has none of the known endings."""
    small, advice = path.lower(), ""
    if small.endswith(SHEET_ENDINGS):
        advice = " Save the sheet as CSV (UTF-8)."
    elif small.endswith(PANDAS_ENDINGS):
        advice = " Read it with pandas and save it by to_parquet."
    elif small.endswith(CSV_ENDINGS + PARQUET_ENDINGS):
        advice = " Rename it to end in small letters."
    return DataError(f"input {path}: unknown kind of file.{advice} Known endings: {KNOWN_ENDINGS}.")


def same_file(path: str) -> str:
    """A file's name by which two paths to it are equal: absolute, links as they are; a URL is its own."""
    return path if "://" in path else os.path.abspath(Path(path).expanduser())


def kept_files(pattern: str | Sequence[str], leave_out: Collection[str] = ()) -> list[str]:
    """The files of a pattern, but those that are left out.

    Parameters
    ----------
    pattern
        What `expand` takes, or a list of files as it gives them.
    leave_out
        Paths or URLs; see `same_file`.

    Returns
    -------
    list of str
        As of `expand`.

    Raises
    ------
    DataError
        There is no file, or all of them are left out.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.features.reading.sources import kept_files
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a.csv", "b.csv"):
    ...         _ = Path(folder, name).write_text("n\\n1\\n")
    ...     [Path(path).name for path in kept_files(folder, [f"{folder}/b.csv"])]
    ['a.csv']
    """
    found = expand(pattern) if isinstance(pattern, str) else list(pattern)
    out = {same_file(path) for path in leave_out}
    kept = [path for path in found if same_file(path) not in out]
    if not kept:
        raise DataError(
            f"input {pattern!r}: all of its {len(found)} file(s) are left out, for example {found[0]}. Correct it, or "
            "take it back (gigabatch contract --accept FILE)."
        )
    return kept


def require_once(paths: Sequence[str]) -> None:
    """Raise `DataError` where two files are one table by their names, packed or not, or CSV and Parquet, so that each
    row would count twice.

    Parameters
    ----------
    paths
        Of the files of one kind.

    Examples
    --------
    >>> from gigabatch.features.reading.sources import require_once
    >>> require_once(["day-1.csv", "day-2.csv.gz"])
    """
    seen: dict[str, str] = {}
    for path in paths:
        name = path
        for endings in (PACKED, SAME_TABLE):
            name = name.removesuffix(next((ending for ending in endings if name.endswith(ending)), ""))
        if (first := seen.setdefault(name, path)) != path:
            raise DataError(
                f"input {first}: {path.rpartition('/')[2]} is there too, by its name the same table, so that each row "
                "would count twice. Move one of them away, or name those that you mean by a glob, such as *.csv."
            )


def drop_rows(rows: Any, path: str, places: Sequence[int]) -> Any:
    """A file's rows without those at some places; `DataError` where one of them is not there."""
    if not places:
        return rows
    if max(places) >= len(rows):
        raise DataError(f"input {path}: row {max(places)} is to be left out, but it has {len(rows)} rows.")
    arrays = engine_of(rows).arrays
    kept = arrays.ones(len(rows), dtype="bool")
    kept[arrays.asarray(list(places))] = False
    return rows[engine_of(rows).series(kept, rows)].reset_index(drop=True)


def read_bytes(
    module: Engine,
    path: str,
    content: bytes,
    dtypes: Mapping[str, str],
    *,
    null_values: Sequence[str] = ("", "NA"),
    nullable: Collection[str] = (),
) -> Any:
    """Read the bytes of a CSV file, a header among them, as `read_files` reads the file.

    Parameters
    ----------
    module
        The engine.
    path
        What errors call the file.
    content
        The bytes.
    dtypes, null_values, nullable
        As in `read_files`.

    Returns
    -------
    Frame
        The rows.

    Raises
    ------
    DataError
        As `read_files`.
    """
    frame = _read_one(module, path, dtypes, list(null_values), ",", UTF8, None, content)
    return cast(frame, dtypes, f"input {path}", nullable)


def _read_one(
    module: Engine,
    path: str,
    dtypes: Mapping[str, str],
    null_values: list[str],
    separator: str,
    encoding: str,
    names: list[str] | None,
    content: bytes | None = None,
    blank_rows: bool = True,
) -> Any:
    def parse(text: Collection[str], **columns: Any) -> Any:
        """The CSV file; text: columns that are left as they are written."""
        given = path if content is None else io.BytesIO(content)
        return module.read_csv(given, **csv_options(separator, names, null_values, text, as_rows), **columns)

    def as_text(columns: list[str]) -> Any:
        return parse(columns, usecols=columns)

    as_rows = False
    with naming(path):
        if path.endswith(PARQUET_ENDINGS):
            frame = _with_exact_lists(module, module.read_parquet(path), path, dtypes)
            frame = with_plain_decimals(frame, path, dtypes)
            frame = without_null_words(frame, null_values, dtypes)
        elif path.endswith(CSV_ENDINGS):
            _refuse_empty(path)
            source = csv_source(path, encoding, content)
            content = None if isinstance(source, str) else source.getvalue()
            if blank_rows and len(dtypes) == 1:  # it may be a file of one column
                with opened(path, content) as file:
                    lines = (part for line in file for part in line.splitlines(keepends=True))  # \r alone ends one
                    alone = one_column_records(module, lines, separator, names)
                    records = b"" if alone is None else b"".join((alone[0], *alone[1]))
                if re.search(rb"(^|[\r\n])\r\n", records):
                    content, as_rows = records, True
            # Text columns are read as text: a guess would turn the id 007 into the number 7.
            text = text_columns(dtypes)
            if module.NAME == "pandas" and names is None and not as_rows:
                with opened(path, content) as file:
                    plain = read_plain(file.read(), separator, dtypes, text, null_values)
                if plain is not None:
                    return module.from_pandas(plain)
            frame = parse(text)
        else:
            raise unknown_kind(path)
    require_columns(frame, dtypes, f"input {path}")
    refuse_guesses(module, frame, path, dtypes, names, separator, content)
    if len(frame) == 0:
        raise DataError(f"input {path}: it has a header but no rows.")
    if not path.endswith(PARQUET_ENDINGS):
        with naming(path):
            exponents = columns_with_exponents(frame, dtypes, path, content, as_text)
            if unsure := sorted({*rounded_columns(frame, dtypes), *exponents}):
                written = as_text(unsure)
                for name in unsure:
                    frame[name] = _as_written(written[name], frame[name], null_values)
    return frame[list(dtypes)]


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Within the block, whatever a reader raises of a file that it cannot read is a `DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise not_text(path, UTF8) from error
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise_of_machine(error, path)
        raise unreadable(path, error) from error


@contextmanager
def naming_lines(path: str, separator: str, encoding: str, names: Sequence[str] | None) -> Iterator[None]:
    """Within the block, an error of `cast` about text of a CSV file names the first line that holds it."""
    try:
        yield
    except WrongTextError as error:
        line = None
        if not path.endswith(PARQUET_ENDINGS):
            with io.TextIOWrapper(opened(path), encoding=encoding, newline="") as file:
                line = line_of(file, separator, names, error.column, error.text)
        if line is None:
            raise
        raise WrongTextError(f"input {path}, line {line:,}", error.column, error.text, error.what) from error


def csv_options(
    separator: str, names: Sequence[str] | None, null_values: Sequence[str], text: Collection[str], blank_rows: bool
) -> dict[str, Any]:
    """How a CSV file is read; text: columns that are left as they are written; blank_rows: empty lines are rows."""
    return {
        **csv_fields(separator),
        "header": "infer" if names is None else None,
        "names": names,
        "na_values": null_values,
        "keep_default_na": False,
        "dtype": dict.fromkeys(text, "str"),
        "skip_blank_lines": not blank_rows,
    }


def text_columns(dtypes: Mapping[str, str]) -> list[str]:
    """Columns of CSV files that are read as they are written."""
    return [name for name, dtype in dtypes.items() if is_read_as_text(dtype)]


def is_read_as_text(dtype: str) -> bool:
    return dtype in AS_TEXT or is_list_type(dtype) or time_type(dtype) is not None


def _with_exact_lists(module: Engine, frame: Any, path: str, dtypes: Mapping[str, str]) -> Any:
    """The frame of a Parquet file, whose lists of whole numbers are as the file has them: beside a null pandas makes
    floats of them, which skip whole numbers from 2^53."""
    names = [name for name, dtype in dtypes.items() if is_list_type(dtype) and name in frame.columns]
    if not names or module.NAME != "pandas":
        return frame
    with fsspec.open(path, "rb") if "://" in path else nullcontext(path) as source:
        table = pq.read_table(source, columns=names)
    for field, column in zip(table.schema, table.columns, strict=True):
        kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
        if any(kind(field.type) for kind in kinds) and field.type.value_type in (pa.int64(), pa.uint64()):
            lists = column.cast(pa.large_list(field.type.value_type))
            frame[field.name] = of_arrow(lists, frame.index, field.name)
    return frame


def without_null_words(frame: Frame, words: Collection[str], dtypes: Mapping[str, str]) -> Any:
    """The frame with null in place of words that stand for it, as files are read.

    Parameters
    ----------
    frame
        The frame; it is not changed.
    words
        Whole texts that are null. Of numbers those that equal a word are.
    dtypes
        Types by column; other columns and those of lists are left as they are.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.reading.sources import without_null_words
    >>> without_null_words(pd.DataFrame({"age": ["7", "?"]}), ["?"], {"age": "float32"})["age"].tolist()
    ['7', nan]
    >>> without_null_words(pd.DataFrame({"age": [7.0, -1.0]}), ["-1"], {"age": "float32"})["age"].tolist()
    [7.0, nan]
    """
    out, nulls = frame, NullWords(words)
    for name, dtype in dtypes.items():
        if name not in frame.columns or is_list_type(dtype):
            continue
        column = engine_of(frame).decoded(frame[name])
        hit = nulls.among(column)
        if hit is not None and bool(hit.any()):
            out = out.copy(deep=False) if out is frame else out
            whole = str(column.dtype) != "category" and column.dtype.kind in "iu"
            out[name] = engine_of(column).with_nulls(column, hit) if whole else column.where(~hit)
    return out


def with_plain_decimals(frame: Any, path: str, dtypes: Mapping[str, str]) -> Any:
    """The frame of a Parquet file, whose decimals are float64 where floats are declared, the nearest ones, and int64
    where their type has no place behind the point, as ids of a warehouse."""
    names = [name for name in frame.columns if name in dtypes]
    if not any(str(frame[name].dtype).startswith(("object", "decimal")) for name in names):
        return frame
    with fsspec.open(path, "rb") if "://" in path else nullcontext(path) as source:
        schema = pq.read_schema(source)
    for name in names:
        kind = schema.field(name).type
        if not pa.types.is_decimal(kind):
            continue
        if dtypes[name] in ("float32", "float64"):
            frame[name] = frame[name].astype("float64")
        elif kind.scale <= 0:
            with suppress(OverflowError):  # of more digits: refused like decimals with a fraction
                frame[name] = _whole_decimals(frame[name])
    return frame


def _whole_decimals(column: Column) -> Any:
    """Decimals without a fraction as int64."""
    engine = engine_of(column)
    if engine.NAME != "pandas":
        return column.astype("int64")
    null = column.isna()
    whole = column.where(~null, 0).astype("int64")
    return engine.with_nulls(whole, null) if bool(null.any()) else whole


def columns_with_exponents(
    frame: Frame, dtypes: Mapping[str, str], path: str, content: bytes | None, as_text: Callable[[list[str]], Frame]
) -> list[str]:
    """Columns of integers of a CSV file that the reader made floats of, and that hold numbers with exponents: 1e3 is no
    whole number in text, as 1.23457E+12 was one with more digits.

    as_text: reads columns of the file as they are written, which is asked only where the file may hold exponents.
    """
    floats = [name for name in _read_as_floats(frame, dtypes) if bool(frame[name].notna().any())]
    if not floats or not _may_hold_exponents(path, content):
        return []
    written = as_text(floats)
    return [name for name in floats if bool(written[name].str.contains("[eE]").fillna(False).any())]


def _may_hold_exponents(path: str, content: bytes | None) -> bool:
    """Whether any field of the file looks as if it did, an id such as 68fd1e64 too."""
    with opened(path, content) as file:
        end = b""
        while chunk := file.read(1 << 22):
            if EXPONENT.search(end + chunk):
                return True
            end = chunk[-3:]
    return False


def _as_written(text: Column, floats: Column, null_values: Collection[str]) -> Any:
    """A column as it is written, with null where the floats that the reader made of it are null or a null word, unless
    rounding alone made them one."""
    words, null = NullWords(null_values), floats.isna()
    if (hit := words.among(floats)) is not None:
        null = null | hit
    hidden = engine_of(text).to_pandas(without_zeros(text[null & text.notna()]).drop_duplicates().to_frame("text"))
    others = [one for one in hidden["text"] if number_of(one) not in words]
    return text.where(~null | without_zeros(text).isin(others)) if others else text.where(~null)


def _read_as_floats(frame: Frame, dtypes: Mapping[str, str]) -> list[str]:
    """Columns of integers that the reader made floats of, because of a null, a point or an exponent."""
    return [name for name in frame.columns if dtypes.get(name) in WHOLE and frame[name].dtype.kind == "f"]


def rounded_columns(frame: Frame, dtypes: Mapping[str, str]) -> list[str]:
    """Columns of integers that the reader made floats of, though floats skip some of their size."""
    floats = _read_as_floats(frame, dtypes)
    return [name for name in floats if bool((frame[name].abs() >= exact_below(frame[name].dtype)).any())]


def refuse_guesses(
    module: Engine,
    frame: Frame,
    path: str,
    dtypes: Mapping[str, str],
    names: list[str] | None,
    separator: str,
    content: bytes | None,
) -> None:
    """Raise `DataError` where the reader has made sense of a file that has none."""
    if path.endswith(PARQUET_ENDINGS):
        for name in (name for name, dtype in dtypes.items() if dtype in AS_TEXT and module.NAME == "pandas"):
            try:
                pa.array(frame[name], from_pandas=True).validate(full=True)
            except (ValueError, TypeError) as error:
                raise DataError(f"input {path}: column {name!r} is not valid UTF-8 ({error}).") from error
        return
    refuse_nul(path, content)
    if type(frame.index).__name__ != "RangeIndex":  # readers take a first field too many for it
        raise DataError(f"input {path}: its rows have more fields than its header has names. Repair one of them.")
    if names is None and any(f"{name}.1" in frame.columns for name in dtypes):  # how readers rename a second one
        given = path if content is None else io.BytesIO(content)
        there = csv_header(module, given, separator)
        twice = [name for name in dtypes if there.count(name) > 1]
        if twice:
            raise DataError(f"input {path}: column(s) {', '.join(map(repr, twice))} are there more than once.")


def refuse_nul(path: str, content: bytes | None) -> None:
    """pandas would end a field at a NUL byte, so that the text `x NUL y` became another category, `x`."""
    with opened(path, content) as file:
        while chunk := file.read(1 << 22):
            if b"\0" in chunk:
                raise DataError(
                    f"input {path}: it holds a NUL byte, so it is no text in UTF-8. Set encoding where it is written "
                    "in another, such as utf-16-le, or repair it."
                )


def _refuse_empty(path: str) -> None:
    if "://" not in path and Path(path).stat().st_size == 0:
        raise DataError(f"input {path}: the file is empty (0 bytes).")


def cast(
    frame: Frame,
    dtypes: Mapping[str, str],
    where: str,
    nullable: Collection[str] = (),
    decimal_marks: Mapping[str, str] | None = None,
) -> Any:
    """Cast columns to declared types, where every value fits.

    bool takes booleans, the numbers 0 and 1, and the texts true, false, 0, 1, 0.0 and 1.0 in upper or lower case.
    Numbers in text are written with the digits 0 to 9; Python's 1_000 and digits of other scripts are refused. Text is
    an integer with or without a point and zeros behind it, as in 28.0, which is exact at any size. Floats are integers
    below 2^53 (float32: 2^24), where they begin to skip some. string takes timestamps as ISO 8601 text, durations and
    times of day as `parse_duration` reads them. A column of nulls alone may be of any type.

    Parameters
    ----------
    frame
        The frame; it is not changed.
    dtypes
        Type by column, as in `read_files`.
    where
        Who asks, for messages.
    nullable
        Integer, bool and datetime columns that may hold nulls; others that do are an error. With or without a null they
        come in the engine's types for that (Int64 and boolean on pandas, or Arrow's).
    decimal_marks
        By column of text, what floats in it are written with in place of a point, as its texts are.

    Returns
    -------
    Frame
        The frame with these columns replaced.

    Raises
    ------
    DataError
        A value does not fit; the message names the column.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.reading.sources import cast
    >>> cast(pd.DataFrame({"id": [3.0, 4.0]}), {"id": "int64"}, "here")["id"].tolist()
    [3, 4]
    """
    out = frame.copy(deep=False)
    for name, dtype in dtypes.items():
        column = frame[name]
        engine = engine_of(frame)
        try:
            if is_list_type(dtype):
                out[name] = typed_lists(column, dtype, partial(_cast_elements, where=where))
                continue
            typed = engine.as_typed(column, dtype, name in nullable)
            if typed is None:
                mark = (decimal_marks or {}).get(name, ".")
                typed = _cast_column(column, dtype, name in nullable, mark)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            what = f"is declared {dtype} but holds {column.dtype} values that do not fit ({error})."
            if not isinstance(error, NotWritten):
                raise DataError(f"{where}: column {name!r} {what} Correct the data or the declared type.") from error
            advice = "Correct it, or name it under null_values where it stands for null."
            if dtype in WHOLE:
                advice += (
                    " Where it is an id like the others, declare the column string and train again: ids that training "
                    "has not seen are one category then."
                )
            raise WrongTextError(where, name, error.text, f"{what} {advice}") from error
        # The type follows from the setting, not from tonight's nulls: what comes after computes otherwise with another.
        has_nulls = name in nullable and str(typed.dtype) in ("int32", "int64", "bool")
        out[name] = engine.with_nulls(typed, typed.isna()) if has_nulls else typed
    return out


def cast_text(frame: Frame, name: str, where: str, decimal_marks: Mapping[str, str] | None = None) -> Any:
    """A column as text of the engine's one storage, which methods of text are to be called on; null stays null.

    Parameters
    ----------
    frame
        The frame that holds it.
    name
        Of the column.
    where, decimal_marks
        As of `cast`.

    Raises
    ------
    DataError
        As of `cast` to string.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.reading.sources import cast_text
    >>> cast_text(pd.DataFrame({"id": [3.0, 4.0]}), "id", "here").tolist()
    ['3', '4']
    """
    found = cast(frame[[name]], {name: "string"}, where, decimal_marks=decimal_marks)
    return engine_of(frame).text(found[name])


def _cast_elements(entries: Column, dtype: str, where: str) -> Any:
    """The elements of a column of lists, null ones among them."""
    name = str(entries.name)
    return cast(entries.to_frame(name), {name: dtype}, f"{where}, elements of lists", (name,))[name]


def _cast_column(column: Column, dtype: str, nullable: bool, mark: str = ".") -> Any:
    engine = engine_of(column)
    column = engine.decoded(column)
    other = column.dtype.kind not in "iuf" and not TEXT_TYPES.fullmatch(str(column.dtype))
    if other and bool(column.isna().all()):
        empty = engine.arrays.full(len(column), float("nan"))
        column = engine.series(empty, column.to_frame("column")).rename(column.name)
    if dtype != "string" and str(column.dtype) == "category" and is_text(column.cat.categories):
        column = column.astype("str")
    if (how := time_type(dtype)) is not None:
        found, null = of_type(_plain(column, "string") if not is_dates(column) else column, how)
        _refuse_nulls(int(null.sum()), nullable)
        return engine_of(column).with_nulls(found, null) if bool(null.any()) else found
    if dtype in AS_TEXT and is_dates(column):
        if dtype == "datetime":
            return _cast_datetime(column, nullable)
        return column if dtype == "time" else iso_text(column)
    column = _plain(column, dtype)
    if dtype == "datetime":
        if is_text(column):
            return _cast_datetime(column, nullable)
        found = _cast_column(column, "int64", nullable)
        require_calendar(found, column)
        return found
    if dtype == "time":
        return column
    if dtype == "string":
        return _cast_text(column, mark)
    if dtype == "bool":
        return _cast_bool(column, nullable)
    if str(column.dtype) == "category":
        column = _numbers_of_category(column)
    if column.dtype.kind in "OU" and str(column.dtype) != "category":
        column = without_zeros(column) if dtype in WHOLE and is_text(column) else column
        _require_digits(column, dtype)
    if dtype not in ("int32", "int64"):
        # A number beyond float32 becomes an infinity, which the preprocessor refuses by the column's name.
        if str(column.dtype) == "object" and engine.NAME == "pandas":
            column = column.where(column.notna(), float("nan"))  # pandas.NA is no float
        with np.errstate(over="ignore"):
            return column.astype(dtype)
    nulls = int(column.isna().sum())
    if nulls and not nullable:
        raise ValueError(f"{nulls} null(s); a float64 column may hold nulls")
    if column.dtype.kind == "u" and bool((column.fillna(0) > 2**63 - 1).any()):
        raise ValueError("some values are outside the range of int64")
    zero = "0" if is_text(column) else False if column.dtype.kind == "b" else 0
    try:
        whole = column.fillna(zero).astype("int64") if nulls else column.astype("int64")
    except OverflowError as error:  # of a text, whose own message speaks of C
        raise ValueError("some values are outside the range of int64") from error
    if column.dtype.kind == "f":
        _require_whole(column, whole)
    narrow = whole.astype(dtype)
    if bool((narrow.astype("int64") != whole).any()):
        raise ValueError(f"some values are outside the range of {dtype}")
    return engine_of(column).with_nulls(narrow, column.isna()) if nulls else narrow


def _numbers_of_category(column: Column) -> Any:
    """A column of categories that are numbers as one of these numbers, which are checked like others."""
    engine, categories, null = engine_of(column), column.cat.categories, column.isna()
    if getattr(categories.dtype, "kind", "O") not in "iufb" or not len(categories):
        return column
    codes = engine.arrays.clip(engine.array(column.cat.codes).astype("int64"), 0, None)
    values = engine.frames.Series(categories, name=column.name).take(codes)
    values.index = column.index
    return engine.with_nulls(values, null) if bool(null.any()) else values


def _cast_datetime(column: Column, nullable: bool) -> Any:
    """Timestamps or text as int64 microseconds since 1970."""
    null = column.isna()
    nulls = int(null.sum())
    _refuse_nulls(nulls, nullable)
    found = microseconds(column)
    return engine_of(column).with_nulls(found, null) if nulls else found


def _refuse_nulls(nulls: int, nullable: bool) -> None:
    if nulls and not nullable:
        raise ValueError(f"{nulls} null(s); fill them, or drop those rows")


def _require_digits(column: Column, dtype: str) -> None:
    """Of a column of text, or of Python's objects, of which those that are numbers already are let through."""
    if str(column.dtype) == "object" and engine_of(column).NAME == "pandas":
        column = column[column.map(lambda value: isinstance(value, str))]
    if len(column):
        require_digits(column, dtype)


def _require_whole(column: Column, whole: Any) -> None:
    """Raise `ValueError` unless the floats (nulls apart) are the integers `whole`, beyond doubt."""
    if bool((whole.astype("float64") != column.fillna(0).astype("float64")).any()):
        raise ValueError("some values have a fraction")
    _require_exact(column, whole)


def _require_exact(column: Column, numbers: Any) -> None:
    """Raise `ValueError` where the floats of the column's type skip whole numbers."""
    exact = exact_below(column.dtype)
    if bool((numbers.abs() >= float("inf")).any()):
        raise ValueError("it holds an infinity; clip it, or make it null")
    if bool((numbers.abs() >= exact).any()):
        reached = f"2^{exact.bit_length() - 1}, where {column.dtype} skips whole numbers"
        raise ValueError(f"some values reach {reached}; read the column as a string")


def _cast_text(column: Column, mark: str) -> Any:
    """Text of a whole float is that of the integer: 7.0 (an integer read with nulls) is "7", the same category as 7.

    mark: what stands for the point of other floats."""
    if str(column.dtype) == "category":
        inner = column.cat.categories.dtype
        if getattr(inner, "kind", "O") == "f":
            column = column.astype(inner)
        elif engine_of(column).NAME == "pandas" and (str(inner) == "object" or not is_text(column.cat.categories)):
            column = column.astype("object")  # text of 28 beside a null would be 28.0
    if str(column.dtype) == "object" and engine_of(column).NAME == "pandas":
        kinds = column.map(lambda value: type(value) if isinstance(value, FLOATS) and value == value else None)
        column = column.copy()
        for kind in kinds.dropna().unique():
            floats = kinds == kind
            text = _cast_text(column[floats].astype("float64" if issubclass(kind, float) else kind), mark)
            column[floats] = text.astype("object")
    if column.dtype.kind != "f":
        return column.astype("str")
    null = column.isna()
    _require_exact(column, column.fillna(0))
    whole = column.fillna(0).astype("int64")
    fraction = whole.astype(column.dtype) != column.fillna(0)
    text = whole.astype("str")
    if bool(fraction.any()):
        written = engine_of(column).float_text(column)
        text = text.where(~fraction, written if mark == "." else written.str.replace(".", mark, regex=False))
    return text.where(~null)


def _of_decimals(column: Column) -> str:
    name = repr(str(column.name))
    return f"it holds decimals; make floats of them: frame[{name}] = frame[{name}].astype('float64')"


def _plain(column: Column, dtype: str) -> Any:
    """The column if it is of text, numbers or booleans, else `TypeError`; one of Python's numbers as their own type."""
    kind = str(column.dtype)
    if kind != "object" or engine_of(column).NAME != "pandas":
        inner = column.cat.categories.dtype if kind == "category" else column.dtype
        words = ("list", "struct", "decimal", "binary", "complex", "interval")
        kinds = "OUiufbm" if dtype == "string" else "OUiufb"
        if getattr(inner, "kind", "O") not in kinds or any(word in str(inner) for word in words):
            raise TypeError(
                _of_decimals(column)
                if "decimal" in str(inner)
                else "only text, numbers and booleans can be cast; read timestamps as the type datetime, and make "
                "features of them with date_parts"
            )
        return column
    known = column[column.notna()]
    types = {type(value) for value in known}
    fitting = (*PLAIN, datetime.time, datetime.timedelta) if dtype == "string" else PLAIN
    strange = sorted(found.__name__ for found in types if not issubclass(found, fitting))
    if strange == ["Decimal"]:
        raise TypeError(_of_decimals(column))
    if set(strange) & {"list", "ndarray"}:
        raise TypeError("it holds lists, and a column of lists is named under lists alone; docs/lists.md")
    if strange:
        raise TypeError(f"it holds Python objects of type {', '.join(strange)}; only text, numbers and booleans fit")
    has_text = any(issubclass(found, str) for found in types)
    if has_text and len(types) > 1 and dtype not in ("string", "bool"):
        raise TypeError(f"it holds text beside {', '.join(sorted(t.__name__ for t in types if t is not str))}")
    if dtype not in ("int32", "int64") or not types or has_text:
        return column
    if len(types) > 1:  # flags beside floats are of no one type, whose fractions would be cut off without a word
        column = column.map(lambda value: int(value) if isinstance(value, bool | np.bool_) else value)
    return unboxed(column.where(column.notna(), None))


def _cast_bool(column: Column, nullable: bool) -> Any:
    null = column.isna()
    nulls = int(null.sum())
    if nulls and not nullable:
        raise ValueError(f"{nulls} null(s), which are neither true nor false; fill them, or cast to float64")
    kind = "O" if str(column.dtype) == "category" else column.dtype.kind
    if kind == "b":
        found = column.fillna(False).astype("bool")
        return engine_of(column).with_nulls(found, null) if nulls else found
    if kind in ("i", "u", "f"):
        filled = column.fillna(0)
        true, strange = (filled == 1).astype("bool"), (filled != 0) & (filled != 1)
    elif kind in ("O", "U"):
        text = column.astype("str").fillna("false").str.lower()
        true, strange = text.isin(["true", "1", "1.0"]), ~text.isin(["true", "1", "1.0", "false", "0", "0.0"])
    else:
        raise TypeError("only booleans, the numbers 0 and 1 and text can become bool")
    if bool(strange.any()):
        shown = engine_of(column).to_pandas(column[strange].head(1).to_frame("value"))["value"].tolist()[0]
        raise ValueError(
            f"{int(strange.sum())} value(s) other than true, false, 0 and 1, such as {reprlib.repr(shown)}"
        )
    return engine_of(column).with_nulls(true, null) if nulls else true
