"""Packed tables on disk: matrices of words in `.npy` files, which can be memory-mapped, and `layout.json` beside them.

Version 1 of the layout is one file, `words.npy`, in the order of the source. Version 2 (`loaders/batches/shards.py`)
lists shards and, where the rows were written in a global random order, the seed of it. Version 3 is either with list
columns, whose files `loaders/tables/list_files.py` describes. All are read here.

A table is written beside the one that it replaces (`replacing_table`). `layout.json` comes last, so a folder without
it is one whose writer did not finish.
"""

import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from tokenize import TokenError
from types import TracebackType
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.lib import format as npy_format
from torch import Tensor

from gigabatch.features.errors import UNREADABLE
from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.errors import LoaderError

FORMAT_NAME = "gigabatch-packed"
WORDS_FILE = "words.npy"
WORDS_FILES = "words*.npy"  # of a table in one file or in shards
LIST_FILES = "list-*.npy"  # of its list columns
LAYOUT_FILE = "layout.json"
HEADER_BYTES = 4096  # the header of a `.npy` file of version 1.0 is found within them
WRITE_BYTES = 64 << 20  # copied through host memory at a time


@dataclass(frozen=True)
class Layout:
    """What `layout.json` says. shards: name and rows of each file, in row order; shuffle_seed: of the global random
    order in which the rows were written, None where they lie in the order of their source; lists: how many ids each
    list column has."""

    num_rows: int
    schema: TensorSchema
    shards: tuple[tuple[str, int], ...]
    shuffle_seed: int | None = None
    lists: tuple[int, ...] = ()

    def write(self, folder: Path) -> None:
        """Finish `folder`, whose files are there."""
        layout: dict[str, Any] = {
            "format": FORMAT_NAME,
            "version": 1,
            "num_rows": self.num_rows,
            "schema": json.loads(self.schema.to_json()),
        }
        if self.shards != ((WORDS_FILE, self.num_rows),) or self.shuffle_seed is not None:
            shards = [{"file": name, "rows": rows} for name, rows in self.shards]
            layout |= {"version": 2, "shuffle_seed": self.shuffle_seed, "shards": shards}
        if self.lists:
            layout |= {"version": 3, "lists": list(self.lists)}
        (folder / LAYOUT_FILE).write_text(json.dumps(layout, indent=1, allow_nan=False))

    @classmethod
    def read(cls, folder: Path) -> "Layout":
        """The layout of a finished packed table in a local folder."""
        path = folder / LAYOUT_FILE
        try:
            return cls.parse(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise not_finished(str(path), str(folder)) from None

    @classmethod
    def parse(cls, content: bytes, where: str) -> "Layout":
        """From the bytes of `layout.json`, which `where` names in errors."""
        try:
            layout = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise LoaderError(f"{where}: damaged ({error}). Run the encode stage again.") from error
        if not isinstance(layout, dict) or layout.get("format") != FORMAT_NAME:
            raise LoaderError(f"{where}: not the layout of a packed table ({FORMAT_NAME!r} is not its format).")
        version, num_rows = layout.get("version"), layout.get("num_rows")
        if version not in (1, 2, 3):
            raise LoaderError(f"{where}: format version {version}, this code reads 1 to 3. Run the encode stage again.")
        if not _is_count(num_rows) or "schema" not in layout:
            raise LoaderError(f"{where}: damaged (num_rows or schema is missing). Run the encode stage again.")
        try:
            schema = TensorSchema.from_json(json.dumps(layout["schema"], allow_nan=False))
        except ValueError as error:
            raise LoaderError(f"{where}: {error}") from error
        lists = _parse_lists(layout, len(schema.lists), where)
        if version == 1 or (version == 3 and "shards" not in layout):
            return cls(num_rows, schema, ((WORDS_FILE, num_rows),), lists=lists)
        return cls(num_rows, schema, _parse_shards(layout, where), _parse_seed(layout, where), lists)


@contextmanager
def replacing_table(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for the files of a packed table, which replaces that in `folder` at the end of the block.

    Until then the files that are there stay as they are, since the new rows may come from them; those that are mapped
    or open live on. An error in the block leaves them and nothing else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=folder) as name:
        beside = Path(name)
        yield beside
        (folder / LAYOUT_FILE).unlink(missing_ok=True)  # first, and the new one last: it says what files there are
        for old in (*folder.glob(WORDS_FILES), *folder.glob(LIST_FILES)):
            old.unlink()
        for new in (*beside.glob(WORDS_FILES), *beside.glob(LIST_FILES), beside / LAYOUT_FILE):
            new.replace(folder / new.name)


def write_header(file: BinaryIO, num_rows: int, num_words: int) -> None:
    """The header of an int32 matrix, as NumPy writes it."""
    header = {"descr": "<i4", "fortran_order": False, "shape": (num_rows, num_words)}
    npy_format.write_array_header_1_0(file, header)


class FlushBehind:
    """Has the disk take a file in while it is being written; else it begins when all is there, and somebody waits.

    One thread at a time, in a `with` block within that of the file. What the disk refuses is raised by the next call
    or at the end of the block, since a later flush by another name of the file need not tell it again.

    Parameters
    ----------
    file : BinaryIO
        Open for writing; without a buffer, or what lies there waits for the next call.

    Examples
    --------
    >>> import tempfile
    >>> from gigabatch.loaders.tables.storage import FlushBehind
    >>> with tempfile.TemporaryFile(buffering=0) as file, FlushBehind(file) as flush:
    ...     _ = file.write(bytes(1000))
    ...     flush()
    """

    def __init__(self, file: BinaryIO) -> None:
        self._handle = file.fileno()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def __call__(self) -> None:
        """Begin with what has been written, unless a flush is under way."""
        if self._thread is None or not self._thread.is_alive():
            self._end()
            self._thread = threading.Thread(target=self._flush, name="flush")
            self._thread.start()

    def _flush(self) -> None:
        try:
            os.fsync(self._handle)
        except OSError as error:
            self._error = error

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "FlushBehind":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is None:
            self._end()
        elif self._thread is not None:
            self._thread.join()


def check_file(path: Path, num_rows: int, num_words: int) -> int:
    """Bytes before the first row in `path`; `LoaderError` where it does not hold these rows and nothing else."""
    head, size = start_and_size(path)
    return check_header(head, size, num_rows, num_words, str(path))


def start_and_size(path: Path) -> tuple[bytes, int]:
    """The first `HEADER_BYTES` of a file, and how many there are; `LoaderError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES), path.stat().st_size
    except FileNotFoundError:
        raise LoaderError(f"{path}: not found. Run the encode stage again.") from None
    except OSError as error:
        raise LoaderError(f"{path}: cannot be read ({error}).") from error


def check_header(head: bytes, file_bytes: int, num_rows: int, num_words: int, where: str) -> int:
    """The same from the first `HEADER_BYTES` of a file and its size."""
    shape, fortran_order, dtype, start = npy_header(head, where)
    if dtype != np.dtype("<i4") or fortran_order or len(shape) != 2:
        raise LoaderError(f"{where}: expected a row-major int32 matrix, found {dtype} of shape {shape}.")
    expected = start + 4 * shape[0] * shape[1]
    if file_bytes != expected:
        raise LoaderError(
            f"{where}: {file_bytes} bytes, expected {expected} for {shape[0]} rows: truncated or overwritten. "
            "Run the encode stage again."
        )
    if shape != (num_rows, num_words):
        raise LoaderError(
            f"{where}: holds a matrix of shape {shape}, {LAYOUT_FILE} says {(num_rows, num_words)}. "
            "The two files are of different tables: run the encode stage again."
        )
    return start


def npy_header(head: bytes, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether it is in Fortran's order, and dtype of the array in a `.npy` file, and the bytes before it."""
    file = io.BytesIO(head)
    try:
        version = npy_format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"numpy format {version}, expected (1, 0)")
        return *npy_format.read_array_header_1_0(file), file.tell()
    except (*UNREADABLE, TokenError) as error:  # NumPy reads a header by Python's own parser
        raise LoaderError(f"{where}: damaged header ({error}). Run the encode stage again.") from error


def read_exactly(file: io.FileIO, offset: int, out: Tensor) -> None:
    """Fill `out` (contiguous, CPU) with the bytes of an unbuffered file from `offset`; other threads go on."""
    if not out.numel():
        return
    buffer, done = out.numpy().data.cast("B"), 0
    try:
        file.seek(offset)
        while done < len(buffer):  # one read gives 2 GiB at most
            count = file.readinto(buffer[done:])
            if not count:
                raise LoaderError(f"{file.name}: ends before byte {offset + len(buffer)}: truncated while it was read.")
            done += count
    except OSError as error:
        raise LoaderError(f"{file.name}: cannot be read ({error}).") from error


def open_unbuffered(path: Path | str) -> io.FileIO:
    """For `read_exactly`."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise LoaderError(f"{path}: cannot be opened ({error}).") from error


def not_finished(layout: str, folder: str) -> LoaderError:
    return LoaderError(f"{layout}: not found, so {folder} holds no finished packed table. Run the encode stage first.")


def _parse_shards(layout: dict[str, Any], where: str) -> tuple[tuple[str, int], ...]:
    shards = layout.get("shards")
    found = []
    for shard in shards if isinstance(shards, list) else []:
        name, rows = (shard.get("file"), shard.get("rows")) if isinstance(shard, dict) else (None, None)
        if not isinstance(name, str) or Path(name).name != name or not _is_count(rows):
            raise LoaderError(f"{where}: damaged (shard {shard!r} is not a file of this folder with its rows).")
        found.append((name, rows))
    if not found or sum(rows for _, rows in found) != layout["num_rows"]:
        raise LoaderError(
            f"{where}: damaged (shards of {sum(rows for _, rows in found)} rows, num_rows is {layout['num_rows']}). "
            "Write the table again."
        )
    return tuple(found)


def _parse_lists(layout: dict[str, Any], num_lists: int, where: str) -> tuple[int, ...]:
    counts = layout.get("lists", [])
    if not isinstance(counts, list) or len(counts) != num_lists or not all(map(_is_count, counts)):
        raise LoaderError(f"{where}: damaged (lists is {counts!r}, no number of ids for each of {num_lists}).")
    return tuple(counts)


def _parse_seed(layout: dict[str, Any], where: str) -> int | None:
    seed = layout.get("shuffle_seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise LoaderError(f"{where}: damaged (shuffle_seed is {seed!r}, no whole number). Write the table again.")
    return seed


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
