"""Large CSV files in pieces that can be read apart from each other: byte ranges that end with a whole record."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError, raise_of_machine
from gigabatch.features.reading.csv_records import NotInParts, csv_records, ends_in_quotes
from gigabatch.features.reading.sources import TEXT_ENDINGS, kept_files, read_bytes, read_files


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
            raise_of_machine(error, self.path)
            raise DataError(f"input {self.path}: cannot be read here ({error}). Every worker must see it.") from error
        return read_bytes(load_engine(engine), self.path, content, dtypes, null_values=null_values, nullable=nullable)


def csv_blocks(pattern: str, block_bytes: int, leave_out: Collection[str] = (), separator: str = ",") -> list[CsvBlock]:
    """Cut the files of a pattern into blocks that can be read apart from each other.

    The files are scanned once for fields in quotes, as `csv_records` does: a line break ends a record unless it is in
    one.

    Parameters
    ----------
    pattern
        What `expand` takes.
    block_bytes
        A block ends at the first end of a record after so many bytes. Compressed files, Parquet and URLs are one block
        each.
    leave_out
        Files that are not read, as `kept_files` takes them.
    separator
        Of fields.

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
        local = "://" not in path and path.endswith(TEXT_ENDINGS)
        found += (
            _blocks_of(path, block_bytes, separator)
            if local and Path(path).stat().st_size > block_bytes
            else [CsvBlock(path)]
        )
    return found


def _blocks_of(path: str, block_bytes: int, separator: str) -> list[CsvBlock]:
    is_open = ends_in_quotes(separator)
    with open(path, "rb") as file:
        try:
            header, _ = csv_records(file, separator, has_header=True)
        except NotInParts:  # where its header ends readers alone know
            return [CsvBlock(path)]
        blocks, start = [], file.seek(len(header))
        while lines := file.read(block_bytes) + file.readline():
            stop, inside = start + len(lines), is_open(lines, False)
            while inside and (line := file.readline()):
                stop, inside = stop + len(line), is_open(line, True)
            blocks.append(CsvBlock(path, start, stop, header))
            start = stop
    return blocks
