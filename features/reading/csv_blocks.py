"""Large CSV files in pieces that can be read apart from each other: byte ranges that end with a whole record."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import kept_files, read_bytes, read_files

SPLITTABLE = (".csv",)  # compressed files, Parquet and URLs are one block each


@dataclass(frozen=True)
class CsvBlock:
    """Bytes [start, stop) of a file; stop None: the whole file, whatever its kind. header: the file's first record."""

    path: str
    start: int = 0
    stop: int | None = None
    header: bytes = b""

    def read(self, engine: str, dtypes: Mapping[str, str], *, null_values: Sequence[str] = ("", "NA"),
             nullable: Collection[str] = ()) -> Any:  # fmt: skip
        """The rows of the block as `read_files` gives them."""
        if self.stop is None:
            return read_files(engine, self.path, dtypes, null_values=null_values, nullable=nullable)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                content = self.header + file.read(self.stop - self.start)
        except OSError as error:
            raise DataError(f"input {self.path}: cannot be read here ({error}). Every worker must see it.") from error
        return read_bytes(load_engine(engine), self.path, content, dtypes, null_values=null_values, nullable=nullable)


def csv_blocks(pattern: str, block_bytes: int, leave_out: Collection[str] = ()) -> list[CsvBlock]:
    """Cut the files of a pattern into blocks that can be read apart from each other.

    The files are scanned once for quotes, at the speed of the disk: RFC 4180 doubles a quote inside a quoted field, so
    a line break ends a record exactly where the number of quotes before it is even.

    Parameters
    ----------
    pattern
        What `expand` takes.
    block_bytes
        A block ends at the first end of a record after so many bytes. Compressed files, Parquet and URLs are one block
        each.
    leave_out
        Files that are not read, as `kept_files` takes them.

    Returns
    -------
    list of CsvBlock
        In the order of the files and their rows, with absolute paths.

    Raises
    ------
    DataError
        A `block_bytes` below 1, or no file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.features.reading.csv_blocks import csv_blocks
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("n\\n1\\n2\\n3\\n")
    ...     blocks = csv_blocks(f"{folder}/a.csv", block_bytes=4)
    ...     [block.read("pandas", {"n": "int64"})["n"].tolist() for block in blocks]
    [[1, 2, 3]]
    """
    if block_bytes < 1:
        raise DataError(f"csv blocks: block_bytes must be at least 1, found {block_bytes}.")
    found = []
    for path in kept_files(pattern, leave_out):
        if "://" not in path:
            path = os.path.abspath(path)  # a task may run in a process that works elsewhere
        local = "://" not in path and path.endswith(SPLITTABLE)
        found += (
            _blocks_of(path, block_bytes) if local and Path(path).stat().st_size > block_bytes else [CsvBlock(path)]
        )
    return found


def _blocks_of(path: str, block_bytes: int) -> list[CsvBlock]:
    with open(path, "rb") as file:
        header_stop = _next_record(file, 0)
        file.seek(0)
        header = file.read(header_stop)
        size = file.seek(0, io.SEEK_END)
        blocks, start = [], header_stop
        while start < size:
            stop = start + block_bytes
            stop = size if stop >= size else _next_record(file, start, stop)
            blocks.append(CsvBlock(path, start, stop, header))
            start = stop
    return blocks


def _next_record(file: io.BufferedReader, start: int, at_least: int = 0) -> int:
    """Where the first record after `at_least` begins, given that one begins at `start`."""
    file.seek(start)
    quoted = file.read(max(at_least - start, 0)).count(b'"') % 2 == 1
    position = max(at_least, start)
    while line := file.readline():
        position += len(line)
        quoted ^= line.count(b'"') % 2 == 1
        if not quoted and line.endswith(b"\n"):
            break
    return position
