"""Files that steps name (lookup tables, events, vocabularies), read by the rules of the recipe that holds the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gigabatch.features.columns.times import is_dates, is_text, microseconds
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.engines.protocols import Column
from gigabatch.features.errors import DataError, raise_of_machine
from gigabatch.features.reading.csv_records import csv_fields
from gigabatch.features.reading.encodings import UTF8, csv_source
from gigabatch.features.reading.sources import PARQUET_ENDINGS, cast, expand, read_files, without_null_words

TIME = "time"  # numbers, or moments
SHORT = r"[+-]?(0|[1-9][0-9]{0,17})$"  # inside int64 whatever the digits
WHOLE = r"[+-]?(0|[1-9][0-9]*)$"
NUMBER = r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class Reading:
    """Say how files that steps name are read.

    Parameters
    ----------
    null_values
        Texts that stand for null; numbers of Parquet files that equal one do too.
    separator
        Between the fields of CSV files. Blanks beside it are part of a field, unless one stands behind it here: `", "`.
    encoding
        Of CSV files.
    dtypes
        Types of columns, as `read_files` takes them; of `time`, that of the recipe's time, moments are a
        `datetime` and all else is as it is. In a CSV file a column without one is whole numbers or floats if
        every field that is not null is the plain text of one, a flag if every field is true or false, else text; so
        01234 is text.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.features.reading.tables import Reading
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "shops.csv")
    ...     _ = path.write_text("zip,country,staff\\n01234,NA,5\\n98765,,\\n")
    ...     Reading(null_values=("",)).table("pandas", str(path))
         zip country  staff
    0  01234      NA      5
    1  98765     NaN   <NA>
    """

    null_values: tuple[str, ...] = ("", "NA")
    separator: str = ","
    encoding: str = UTF8
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def table(self, engine: str, pattern: str, called: Mapping[str, str] | None = None) -> Any:
        """The one file that a path names, as a frame of all its columns.

        called: new names by those in the file, whose types hold too. Errors (`DataError`): none or several files, and
        what `read_files` refuses.
        """
        (path, *more) = expand(pattern)
        if more:
            raise DataError(f"table {pattern!r}: names {len(more) + 1} files, expected one.")
        parquet = path.endswith(PARQUET_ENDINGS)
        frame = load_engine(engine).read_parquet(path) if parquet else self.text(engine, path)
        if parquet:
            frame = without_null_words(frame, self.null_values, dict.fromkeys(frame.columns, ""))
        dtypes = {name: self._dtype(frame[name], name, called or {}, path) for name in frame.columns}
        return cast(frame, {name: dtype for name, dtype in dtypes.items() if dtype}, f"table {path}", tuple(dtypes))

    def text(self, engine: str, path: str) -> Any:
        """A CSV file as a frame of text, without blank lines. Errors (`DataError`): what `read_files` refuses."""
        try:
            source = csv_source(path, self.encoding, head=True)
            header = load_engine(engine).read_csv(source, nrows=0, **csv_fields(self.separator))
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise_of_machine(error, path)
            raise DataError(f"table {path}: cannot be read ({error}).") from error
        text = dict.fromkeys(header.columns, "string")
        return read_files(
            engine, path, text, null_values=self.null_values, separator=self.separator, encoding=self.encoding,
            blank_rows=False,
        )  # fmt: skip

    def _dtype(self, column: Column, name: str, called: Mapping[str, str], path: str) -> str | None:
        declared = self.dtypes.get(name, self.dtypes.get(called.get(name, name)))
        if declared == TIME:
            declared = "datetime" if _are_moments(column) else None
        return declared if declared or path.endswith(PARQUET_ENDINGS) else plain_type(column)


def _are_moments(column: Column) -> bool:
    """Whether each known field is a timestamp, a date or ISO 8601 text."""
    if not is_dates(column) and (not is_text(column) or plain_type(column) in ("int64", "float64")):
        return False
    try:
        microseconds(column.dropna())
    except DataError:
        return False
    return True


def plain_type(column: Column) -> str:
    """The type that every known field of a text column is the plain text of; `string` where there is none."""
    known = column.dropna()
    if len(known) == 0:
        return "string"
    if bool(known.str.match(SHORT).all()):
        return "int64"
    if bool(known.str.match(WHOLE).all()):
        try:
            return "int64" if bool((known.astype("int64").astype("str") == known).all()) else "string"
        except (ValueError, OverflowError):
            return "string"
    if bool(known.str.match(NUMBER).all()):
        return "float64"
    return "bool" if bool(known.str.lower().isin(["true", "false"]).all()) else "string"
