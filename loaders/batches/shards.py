"""Packed tables in shards, larger than memory: written in a global random order, read by ranges of rows.

A shard is a `.npy` matrix of words like `words.npy` (`loaders/tables/storage.py`), so each can be memory-mapped by
itself. They lie in a local folder or behind any fsspec URL; of a remote one only the bytes of the rows asked for are
read, and its lists, which any row may ask for, are copied to this machine's disk as a whole.

Shapes: N rows, W words in a row.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from gigabatch.features.errors import UNREADABLE
from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.blocks import derived_seed
from gigabatch.loaders.order.gather import gather_shuffled
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.tables import storage
from gigabatch.loaders.tables.columns import require_same_schema
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.list_files import DTYPES, ListWriter, list_file, read_lists
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.loaders.tables.storage import (
    HEADER_BYTES,
    LAYOUT_FILE,
    Layout,
    check_file,
    check_header,
    not_finished,
    open_unbuffered,
    read_exactly,
)

SOURCE_LISTS = "source-lists"
SHARD_BYTES = 256 << 20  # of a shard by default; one is in memory while it is written


@dataclass(frozen=True)
class Shard:
    """Rows [first_row, stop_row) of a table: in the file `path` from byte `data_start` on."""

    path: str
    first_row: int
    stop_row: int
    data_start: int


class PackedShards:
    """A packed table where it lies, on a local disk or behind an fsspec URL, checked and ready to be read in ranges.

    Opening reads `layout.json` and each shard's header and size, no rows. Files are opened for each read, so none is
    held open. One object may be used by several threads.

    Raises:
        LoaderError: naming the file that is missing, truncated, foreign or does not fit `layout.json`.
    """

    def __init__(self, location: Path | str) -> None:
        self.location = str(location)
        self._remote, folder = _filesystem(self.location)
        self.layout = Layout.read(Path(folder)) if self._remote is None else _remote_layout(self._remote, folder)
        self.schema = self.layout.schema
        if self._remote is None:
            self.lists = read_lists(Path(folder), self.layout)
        else:
            self.lists = _remote_lists(self._remote, folder, self.layout)
        paths = [f"{folder}/{name}" for name, _ in self.layout.shards]
        rows = [count for _, count in self.layout.shards]
        if self._remote is None:
            words = self.schema.num_words
            starts = [check_file(Path(path), count, words) for path, count in zip(paths, rows, strict=True)]
        else:
            starts = _check_remote(self._remote, paths, rows, self.schema.num_words)
        stops = np.cumsum(rows).tolist()
        self.shards = [
            Shard(path, stop - count, stop, start)
            for path, count, stop, start in zip(paths, rows, stops, starts, strict=True)
        ]
        self._stops = np.asarray(stops)

    @property
    def num_rows(self) -> int:
        return self.layout.num_rows

    @property
    def row_bytes(self) -> int:
        return 4 * self.schema.num_words

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    @property
    def is_remote(self) -> bool:
        return self._remote is not None

    def read_rows(self, ranges: Sequence[tuple[int, int]], out: Tensor) -> None:
        """Write rows [start, stop) of each range, one range after another, into `out` [K, W] int32 (CPU, contiguous).

        K is the sum of their lengths. Ranges of a remote table are asked for at once, which holds their bytes a second
        time while they are copied.

        Raises:
            LoaderError: naming the file that cannot be read or has become shorter.
        """
        assert out.shape == (sum(stop - start for start, stop in ranges), self.schema.num_words), out.shape
        pieces = [piece for start, stop in ranges for piece in self._pieces(start, stop)]
        if self._remote is not None:
            self._read_remote(pieces, out)
            return
        with ExitStack() as stack:
            files = {path: stack.enter_context(open_unbuffered(path)) for path, _, _ in pieces}
            first = 0
            for path, byte, rows in pieces:
                read_exactly(files[path], byte, out[first : first + rows])
                first += rows

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Ask the operating system to read these rows in the background; nothing where that cannot be asked."""
        if self._remote is not None or not hasattr(os, "posix_fadvise"):
            return
        pieces = [piece for start, stop in ranges for piece in self._pieces(start, stop)]
        with ExitStack() as stack:
            files = {path: stack.enter_context(open_unbuffered(path)) for path, _, _ in pieces}
            for path, byte, rows in pieces:
                os.posix_fadvise(files[path].fileno(), byte, rows * self.row_bytes, os.POSIX_FADV_WILLNEED)

    def parts(self, part_bytes: int = storage.WRITE_BYTES) -> Iterator[PackedTable]:
        """The table's rows in order, in tables of at most `part_bytes` that share one buffer: use each at once."""
        part_rows = max(1, part_bytes // self.row_bytes)
        buffer = torch.empty((min(part_rows, self.num_rows), self.schema.num_words), dtype=torch.int32)
        for start in range(0, self.num_rows, part_rows):
            stop = min(start + part_rows, self.num_rows)
            self.read_rows([(start, stop)], buffer[: stop - start])
            yield PackedTable(buffer[: stop - start], self.schema, self.lists)

    def _pieces(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        """(path, first byte, rows) of each file's part of rows [start, stop)."""
        assert 0 <= start <= stop <= self.num_rows, (start, stop, self.num_rows)
        found = []
        at = int(np.searchsorted(self._stops, start, side="right"))
        while start < stop:
            shard = self.shards[at]
            upto = min(stop, shard.stop_row)
            if upto > start:
                byte = shard.data_start + (start - shard.first_row) * self.row_bytes
                found.append((shard.path, byte, upto - start))
            start, at = upto, at + 1
        return found

    def _read_remote(self, pieces: Sequence[tuple[str, int, int]], out: Tensor) -> None:
        paths = [path for path, _, _ in pieces]
        starts = [byte for _, byte, _ in pieces]
        stops = [byte + rows * self.row_bytes for _, byte, rows in pieces]
        flat, first = out.view(-1), 0
        for (path, _, rows), content in zip(pieces, _ranges(self._remote, paths, starts, stops), strict=True):
            words = rows * self.schema.num_words
            if len(content) != 4 * words:
                raise LoaderError(
                    f"{self._remote.unstrip_protocol(path)}: {len(content)} bytes came of {4 * words} asked for: "
                    "truncated since it was opened."
                )
            flat[first : first + words].numpy()[:] = np.frombuffer(content, "<i4")
            first += words


def write_shuffled(
    parts: Iterable[PackedTable],
    folder: Path | str,
    schema: TensorSchema,
    num_rows: int,
    seed: int,
    shard_rows: int | None = None,
) -> None:
    """Write the rows of `parts` to `folder` in a global random order, as streaming needs them.

    A pure function of the rows' order in the source, (num_rows, shard_rows, seed): how the source is cut into parts
    does not matter. First each row is appended to the shard that `SampleOrder` deals it to, then each shard is permuted
    in place by a `SampleOrder` of its own; the two together are a uniform permutation as far as `SampleOrder` is one.
    They do not depend on `seed` in the way that a loader's order does, so the same seed may serve both.

    In memory at a time: one shard and about three blocks of `storage.WRITE_BYTES`, whatever the table's size. On disk:
    the table once, beside the one that it replaces, which may be its own source.

    Parameters
    ----------
    parts : iterable of PackedTable
        Host tables of one schema.
    folder : Path or str
        Where to; a packed table that is there is replaced at the end.
    schema : TensorSchema
        Of all parts.
    num_rows : int
        Of all parts together.
    seed : int
        Of the order.
    shard_rows : int or None, default None
        Rows of every shard but the last; by default `SHARD_BYTES` of them.

    Raises
    ------
    LoaderError
        For parts of another schema or another number of rows. The folder is then left as it was.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> from gigabatch import PackedTable
    >>> from gigabatch.features.schema import IdColumn, Target, TensorSchema
    >>> schema = TensorSchema(ids=(IdColumn("item", 9),), floats=("price",), targets=(Target("clicked", "binary"),))
    >>> items, clicked = torch.arange(9, dtype=torch.int32), torch.zeros(9)
    >>> table = PackedTable.from_columns(schema, ids=[items], floats=[items / 2], targets=[clicked])
    >>> from gigabatch.loaders.batches.shards import write_shuffled
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_shuffled([table], folder, schema, num_rows=9, seed=1, shard_rows=5)
    ...     shuffled = PackedTable.load(folder, mmap=False)
    >>> sorted(shuffled.unpack(shuffled.words).ids[:, 0].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    folder = Path(folder)
    shard_rows = max(1, SHARD_BYTES // (4 * schema.num_words)) if shard_rows is None else shard_rows
    if num_rows < 1 or shard_rows < 1:
        raise LoaderError(
            f"shuffled table in {folder}: num_rows and shard_rows must be at least 1, found {num_rows} and "
            f"{shard_rows}."
        )
    starts = range(0, num_rows, shard_rows)
    layout = Layout(
        num_rows,
        schema,
        tuple((f"words-{number:05d}.npy", min(shard_rows, num_rows - start)) for number, start in enumerate(starts)),
        shuffle_seed=seed,
    )
    with storage.replacing_table(folder) as beside:
        for name, rows in layout.shards:
            with (beside / name).open("wb") as file:
                storage.write_header(file, rows, schema.num_words)
        source_lists = _deal(parts, beside, layout, shard_rows, f"shuffled table in {folder}")
        for number, (name, rows) in enumerate(layout.shards):
            _permute_shard(beside / name, rows, schema.num_words, derived_seed("rows of a shard", seed, number))
        replace(layout, lists=_lists_in_order(beside, layout, source_lists)).write(beside)


def _deal(parts: Iterable[PackedTable], folder: Path, layout: Layout, shard_rows: int, where: str) -> tuple[int, ...]:
    """Append every row to its shard in `folder`, in the order of the source; `where` names the table in errors.

    Lists go to the folder `SOURCE_LISTS` within, in that order; returns how many ids each column has.
    """
    assert layout.shuffle_seed is not None
    order = SampleOrder(layout.num_rows, derived_seed("shards of rows", layout.shuffle_seed), 0)
    block_rows = max(1, storage.WRITE_BYTES // (4 * layout.schema.num_words))
    num_read = 0
    (folder / SOURCE_LISTS).mkdir()
    lists = ListWriter(folder / SOURCE_LISTS, layout.schema)
    with lists:
        for part in parts:
            num_read = _deal_part(part, lists, order, num_read, folder, layout, shard_rows, block_rows, where)
        counts = lists.finish()
    if num_read != layout.num_rows:
        raise LoaderError(f"{where}: the source has {num_read} rows and {layout.num_rows} were announced.")
    return counts


def _deal_part(
    part: PackedTable, lists: ListWriter, order: SampleOrder, num_read: int, folder: Path, layout: Layout,
    shard_rows: int, block_rows: int, where: str,
) -> int:  # fmt: skip
    """`_deal` of one part, given how many rows were read before; how many were read with it."""
    require_same_schema(layout.schema, part.schema, where)
    if num_read + part.num_rows > layout.num_rows:
        raise LoaderError(
            f"{where}: {num_read} + {part.num_rows} rows are more than the {layout.num_rows} that were announced."
        )
    for block in part.words.cpu().split(block_rows):
        if part.lists:
            block = lists.write(block, part.lists)
        shard_of = order(torch.arange(num_read, num_read + len(block))).numpy() // shard_rows
        # NumPy sorts 16-bit numbers by radix, several times as fast as wider ones.
        narrow = shard_of.astype(np.uint16 if len(layout.shards) <= 1 << 16 else np.int64)
        by_shard = torch.from_numpy(np.argsort(narrow, kind="stable"))
        counts = np.bincount(shard_of, minlength=len(layout.shards)).tolist()
        _append(folder, layout, torch.index_select(block, 0, by_shard), counts)
        num_read += len(block)
    return num_read


def _lists_in_order(folder: Path, layout: Layout, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Write the lists of the permuted shards in `folder` in the order of their rows, which are numbered anew, from
    those in the order of the source, which go away; how many ids each column has."""
    source = folder / SOURCE_LISTS
    if layout.schema.lists:
        lists = read_lists(source, replace(layout, lists=counts))
        block_rows = max(1, storage.WRITE_BYTES // (4 * layout.schema.num_words))
        with ListWriter(folder, layout.schema) as writer:
            for name, rows in layout.shards:
                start = check_file(folder / name, rows, layout.schema.num_words)
                with (folder / name).open("r+b") as file, open_unbuffered(folder / name) as read:
                    file.seek(start)
                    for first in range(0, rows, block_rows):
                        words = torch.empty((min(block_rows, rows - first), layout.schema.num_words), dtype=torch.int32)
                        read_exactly(read, start + 4 * first * layout.schema.num_words, words)
                        file.write(writer.write(words, lists).numpy().data)
            counts = writer.finish()
    shutil.rmtree(source)
    return counts


def _append(folder: Path, layout: Layout, words: Tensor, counts: Sequence[int]) -> None:
    """Append the next `counts[s]` rows of `words` to each shard s."""
    first = 0
    for (name, _), count in zip(layout.shards, counts, strict=True):
        if count:
            with (folder / name).open("ab") as file:
                file.write(words[first : first + count].numpy().data)
            first += count


def _permute_shard(path: Path, num_rows: int, num_words: int, seed: int) -> None:
    """Put the rows of a shard in the order of `SampleOrder(num_rows, seed, 0)`, in place."""
    start = check_file(path, num_rows, num_words)
    words = torch.empty((num_rows, num_words), dtype=torch.int32)
    with open_unbuffered(path) as source:
        read_exactly(source, start, words)
    order = SampleOrder(num_rows, seed, 0)
    block_rows = min(num_rows, max(1, storage.WRITE_BYTES // (4 * num_words)))
    buffer = torch.empty((block_rows, num_words), dtype=torch.int32)
    with path.open("r+b") as file:
        file.seek(start)
        for first in range(0, num_rows, block_rows):
            stop = min(first + block_rows, num_rows)
            file.write(gather_shuffled(words, order, first, stop, buffer[: stop - first]).numpy().data)


def _filesystem(location: str) -> tuple[Any, str]:
    """(fsspec filesystem, folder in it), or (None, path) for a local folder."""
    if "://" not in location:
        return None, location
    try:
        filesystem, folder = fsspec.url_to_fs(location)
    except (*UNREADABLE, ImportError) as error:
        raise LoaderError(f"{location}: cannot be opened ({error}). Check the URL and its fsspec package.") from error
    return (None if isinstance(filesystem, LocalFileSystem) else filesystem), folder.rstrip("/")


def _remote_layout(filesystem: Any, folder: str) -> Layout:
    path = f"{folder}/{LAYOUT_FILE}"
    where = filesystem.unstrip_protocol(path)
    try:
        content = filesystem.cat_file(path)
    except FileNotFoundError:
        raise not_finished(where, filesystem.unstrip_protocol(folder)) from None
    except UNREADABLE as error:
        raise LoaderError(f"{where}: cannot be read ({error}).") from error
    return Layout.parse(content, where)


def _remote_lists(filesystem: Any, folder: str, layout: Layout) -> tuple[JaggedColumn, ...]:
    """The lists of a remote table, copied to this machine and mapped from there. The copies have no name any more, so
    that their disk space is free as soon as nobody holds the lists."""
    if not layout.schema.lists:
        return ()
    with TemporaryDirectory(prefix="gigabatch-lists-") as name:
        for place, column in enumerate(layout.schema.lists):
            for part in DTYPES if column.weighted else ("ids", "offsets"):
                path = f"{folder}/{list_file(place, part)}"
                where = filesystem.unstrip_protocol(path)
                try:
                    filesystem.get_file(path, str(Path(name) / list_file(place, part)))
                except FileNotFoundError:
                    raise LoaderError(f"{where}: not found. Write the table again.") from None
                except UNREADABLE as error:
                    raise LoaderError(
                        f"{where}: cannot be copied to {tempfile.gettempdir()} ({error}). Lists of a table behind a "
                        "URL need room there; the variable TMPDIR names another folder."
                    ) from error
        try:
            return read_lists(Path(name), layout)
        except LoaderError as error:  # which names the copy
            raise LoaderError(str(error).replace(name, filesystem.unstrip_protocol(folder))) from None


def _check_remote(filesystem: Any, paths: Sequence[str], rows: Sequence[int], num_words: int) -> list[int]:
    """Bytes before the first row of each file, from its first bytes and its size."""
    heads = _ranges(filesystem, paths, [0] * len(paths), [HEADER_BYTES] * len(paths))
    try:
        sizes = filesystem.sizes(list(paths))
    except UNREADABLE as error:
        raise LoaderError(f"{filesystem.unstrip_protocol(paths[0])}: its size is not known ({error}).") from error
    return [
        check_header(head, size, count, num_words, filesystem.unstrip_protocol(path))
        for path, head, size, count in zip(paths, heads, sizes, rows, strict=True)
    ]


def _ranges(filesystem: Any, paths: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
    """Bytes [start, stop) of each file, asked for together."""
    found = filesystem.cat_ranges(list(paths), list(starts), list(stops), on_error="return")
    for path, content in zip(paths, found, strict=True):
        if isinstance(content, FileNotFoundError):
            raise LoaderError(f"{filesystem.unstrip_protocol(path)}: not found. Write the table again.") from None
        if isinstance(content, BaseException):
            raise LoaderError(f"{filesystem.unstrip_protocol(path)}: cannot be read ({content}).") from content
    return found
