"""A table as one matrix of 4-byte words, so that one gather fetches whole rows and unpacking costs nothing.

A row is: ids (int32) | floats (float32 bits) | targets (float32 bits; int32 for multiclass) | weight (float32 bits) |
group (int32) | of each list the number of its row in the column's own arrays (int32), in the order of its
`TensorSchema`. So rows are shuffled, sampled and streamed without their lists, which a batch fetches last. Its files
are described in `loaders/tables/storage.py` and `list_files.py`.

Shapes: N rows, W words in a row, B rows in a batch, C id columns, F float columns.
"""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.columns import check_columns, column_specs, require_same_schema
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.list_files import ListWriter, read_lists
from gigabatch.loaders.tables.shown import table_html
from gigabatch.loaders.tables.storage import (
    WORDS_FILE,
    WRITE_BYTES,
    FlushBehind,
    Layout,
    check_file,
    open_unbuffered,
    read_exactly,
    replacing_table,
    write_header,
)

# Rows that are interleaved at once. On CPU a block of 46 columns (1.5 MB) stays in the L2 cache: packing then runs at
# the speed of a plain copy, five times faster than filling one strided column after another. On GPU large blocks
# keep launches few.
CPU_BLOCK_ROWS = 8192
GPU_BLOCK_ROWS = 1 << 20
ROWS_SHOWN = 5  # in a notebook


class Batch(NamedTuple):
    """Rows as a model takes them; from `PackedTable.unpack` every field is a view of the same words.

    ids [B, C] int32; floats [B, F] float32; targets: one [B] per target, float32 (int32 for multiclass);
    weight [B] float32 or None; group [B] int32 or None; lists: one of B rows per list column, in memory of their own;
    log_q [B] float32, of rows with negatives that are not drawn uniformly: the logarithm of the item's share of draws;
    copies: so many rows follow each other that are a positive and the negatives drawn for it, 1 where none were drawn.
    """

    ids: Tensor
    floats: Tensor
    targets: tuple[Tensor, ...]
    weight: Tensor | None = None
    group: Tensor | None = None
    lists: tuple[JaggedColumn, ...] = ()
    log_q: Tensor | None = None
    copies: int = 1

    @property
    def num_rows(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """This batch on `device`; one copy a field, so move words before unpacking where speed counts."""

        def move(column: Tensor | None) -> Tensor | None:
            return None if column is None else column.to(device, non_blocking=non_blocking)

        return Batch(
            self.ids.to(device, non_blocking=non_blocking),
            self.floats.to(device, non_blocking=non_blocking),
            tuple(target.to(device, non_blocking=non_blocking) for target in self.targets),
            move(self.weight),
            move(self.group),
            tuple(column.to(device, non_blocking=non_blocking) for column in self.lists),
            move(self.log_q),
            self.copies,
        )


def rows_of_lists(schema: TensorSchema, words: Tensor, lists: Sequence[JaggedColumn]) -> tuple[JaggedColumn, ...]:
    """The lists of packed rows `words` [B, W], from those of their table, on whose device the lists then are."""
    first = schema.first_list
    found = []
    for place, column in enumerate(lists, first):
        numbers = words[:, place]
        found.append(column.rows(numbers.to(column.ids.device)))
    return tuple(found)


def unpack(schema: TensorSchema, words: Tensor, lists: Sequence[JaggedColumn] = ()) -> Batch:
    """Views of `words` [B, W] int32 as the columns of `schema`. Nothing is copied but the lists.

    lists: of the rows' table, on any device; without them the batch has none, which suits what looks at labels alone.
    """
    assert words.dtype == torch.int32, words.dtype
    assert words.shape[1] == schema.num_words, (words.shape, schema.num_words)
    first_float = len(schema.ids)
    first_target = first_float + len(schema.floats)
    weight_at = first_target + len(schema.targets)
    targets = tuple(
        column if target.task == "multiclass" else column.view(torch.float32)
        for target, column in zip(schema.targets, words[:, first_target:weight_at].unbind(1), strict=True)
    )
    return Batch(
        ids=words[:, :first_float],
        floats=words[:, first_float:first_target].view(torch.float32),
        targets=targets,
        weight=words[:, weight_at].view(torch.float32) if schema.has_weight else None,
        group=words[:, weight_at + schema.has_weight] if schema.has_group else None,
        lists=tuple(column.to(words.device) for column in rows_of_lists(schema, words, lists)) if lists else (),
    )


@dataclass(frozen=True, eq=False)
class PackedTable:
    """A table as one matrix of 4-byte words, and the schema that says what each word is.

    Parameters
    ----------
    words : Tensor
        [N, W] int32, contiguous: ids, floats, targets, weight and group of each row, those that are floats by their
        bits.
    schema : TensorSchema
        Names and kinds of the columns.
    lists : tuple of JaggedColumn, default ()
        Of each list column all lists, of which a row's last words say which are its own; on the device of `words`, or
        on the host.

    Raises
    ------
    LoaderError
        For words of another dtype, shape or width than the schema asks for, or another number of lists.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import PackedTable
    >>> from gigabatch.features.schema import IdColumn, Target, TensorSchema
    >>> schema = TensorSchema(ids=(IdColumn("item", 9),), floats=("price",), targets=(Target("clicked", "binary"),))
    >>> items, clicked = torch.arange(9, dtype=torch.int32), torch.zeros(9)
    >>> table = PackedTable.from_columns(schema, ids=[items], floats=[items / 2], targets=[clicked])
    >>> batch = table.unpack(table.words[[4, 7]])
    >>> batch.ids.tolist(), batch.floats.tolist()
    ([[4], [7]], [[2.0], [3.5]])
    """

    words: Tensor
    schema: TensorSchema
    lists: tuple[JaggedColumn, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lists", tuple(self.lists))
        if len(self.lists) != len(self.schema.lists):
            raise LoaderError(
                f"packed table: the schema has {len(self.schema.lists)} list column(s) and {len(self.lists)} were "
                "given. Take rows of a table by with_words, which keeps its lists."
            )
        if self.words.dtype != torch.int32 or self.words.dim() != 2 or not self.words.is_contiguous():
            raise LoaderError(
                f"packed table: expected a contiguous int32 matrix, found {self.words.dtype} of shape "
                f"{tuple(self.words.shape)}."
            )
        if self.words.shape[1] != self.schema.num_words:
            raise LoaderError(
                f"packed table: rows have {self.words.shape[1]} words and the schema asks for {self.schema.num_words}. "
                "Use the schema that the table was packed with."
            )

    @classmethod
    def from_columns(
        cls,
        schema: TensorSchema,
        ids: Sequence[Tensor],
        floats: Sequence[Tensor],
        targets: Sequence[Tensor],
        weight: Tensor | None = None,
        group: Tensor | None = None,
        device: torch.device | str | None = None,
        lists: Sequence[JaggedColumn] = (),
    ) -> "PackedTable":
        """Pack 1-d columns into a table. Checking values waits for the device once.

        Parameters
        ----------
        schema : TensorSchema
            Names and kinds of the columns.
        ids : sequence of Tensor
            [N] int32 each, in [0, num_ids) of their column. Columns may be views of a frame's memory; they are only
            read.
        floats : sequence of Tensor
            [N] float32 each, finite.
        targets : sequence of Tensor
            [N] float32 each; int32 for multiclass.
        weight : Tensor or None, default None
            [N] float32, finite and not negative.
        group : Tensor or None, default None
            [N] int32.
        device : torch.device or str or None, default None
            Where the table is made; by default where the columns are.
        lists : sequence of JaggedColumn, default ()
            Of N rows each, ids in [0, num_ids) of their column.

        Returns
        -------
        PackedTable
            The rows in the order of the columns.

        Raises
        ------
        LoaderError
            Naming the column, for a wrong count, dtype, length or device; an id or class out of range; a float,
            regression target or weight that is NaN or infinite; a binary target other than 0 and 1; a negative weight.
        """
        specs = column_specs(schema)
        columns = [*ids, *floats, *targets]
        columns += [column for column in (weight, group) if column is not None]
        counts = (len(ids), len(floats), len(targets), weight is not None, group is not None, len(lists))
        _check_counts(schema, counts)
        check_columns(specs, columns)
        for column, given in zip(schema.lists, lists, strict=True):
            given.require_fit(f"list column {column.name!r}", column.num_ids, column.weighted)
            if given.num_rows != len(columns[0]):
                raise LoaderError(
                    f"list column {column.name!r}: {given.num_rows} rows, the first column has {len(columns[0])}."
                )
        numbers = torch.arange(len(columns[0]), dtype=torch.int32, device=columns[0].device)
        where = torch.device(device) if device else columns[0].device
        words = _interleave([*columns, *[numbers] * len(schema.lists)], where)
        return cls(words, schema, tuple(given.to(where) for given in lists))

    @classmethod
    def from_rows(cls, schema: TensorSchema, words: Tensor, lists: Sequence[JaggedColumn] = ()) -> "PackedTable":
        """Rows [N, W] int32 that a preprocessor wove, as they are; its ids and floats fit the schema by construction.

        lists: of the schema's list columns, of N rows each.

        Raises:
            LoaderError: for a target or weight outside its range, which only the data can answer for.
        """
        table = cls(words, schema, tuple(lists))
        first = len(schema.ids) + len(schema.floats)
        specs = [spec for spec in column_specs(schema)[first:] if spec.dtype == torch.float32 or spec.low == 0]
        columns = [words[:, first + i].contiguous().view(spec.dtype) for i, spec in enumerate(specs)]
        if columns:
            check_columns(specs, columns)
        return table

    def __repr__(self) -> str:
        schema = self.schema
        columns = (f"{len(schema.ids)} ids", f"{len(schema.floats)} floats", f"{len(schema.lists)} lists")
        targets = ", ".join(target.name for target in schema.targets)
        return (
            f"PackedTable({self.num_rows:,} rows of {schema.num_words} words: {', '.join(columns)}, targets {targets}; "
            f"{self.num_bytes:,} bytes on {self.device})"
        )

    def _repr_html_(self) -> str:
        return table_html(self.schema, self.unpack(self.words[:ROWS_SHOWN]), repr(self))

    @property
    def num_rows(self) -> int:
        return self.words.shape[0]

    @property
    def device(self) -> torch.device:
        return self.words.device

    @property
    def num_bytes(self) -> int:
        words = self.words.numel() * self.words.element_size()
        return words + sum(column.num_bytes for column in self.lists)

    def __len__(self) -> int:
        return self.num_rows

    def unpack(self, words: Tensor) -> Batch:
        """Rows `words` [B, W] int32 of this table as a `Batch` of views. Nothing is copied."""
        return unpack(self.schema, words, self.lists)

    def counted(self) -> "PackedTable":
        """The rows that weigh something; the table itself where all do."""
        weight = unpack(self.schema, self.words).weight
        if weight is None:
            return self
        above = weight > 0
        return self if bool(above.all()) else self.with_words(self.words[above])

    def with_words(self, words: Tensor) -> "PackedTable":
        """A table of these rows [M, W] of this one, with its lists."""
        return PackedTable(words, self.schema, self.lists)

    @classmethod
    def concat(cls, tables: Sequence["PackedTable"]) -> "PackedTable":
        """The rows of these tables one after the other, with their lists, on the device of the first's words.

        Raises:
            LoaderError: for tables of several schemas.
        """
        first = tables[0]
        if any(table.schema != first.schema for table in tables):
            raise LoaderError("packed table: tables of several schemas are not one table.")
        parts, before = [], [0] * len(first.lists)
        for table in tables:
            words = table.words.to(first.device, copy=bool(first.lists))
            for place, column in enumerate(table.lists):
                words[:, first.schema.first_list + place] += before[place]
                before[place] += column.num_rows
            parts.append(words)
        lists = [
            JaggedColumn.concat([column.to(columns[0].ids.device) for column in columns])
            for columns in zip(*(table.lists for table in tables), strict=True)
        ]
        return cls(torch.cat(parts), first.schema, tuple(lists))

    def to(self, device: torch.device | str) -> "PackedTable":
        return PackedTable(self.words.to(device), self.schema, tuple(column.to(device) for column in self.lists))

    def save(self, folder: Path | str) -> None:
        """Write this table to `folder`, replacing a packed table that is there: this one too, which stays mapped."""
        with PackedWriter(folder, self.schema, self.num_rows) as writer:
            writer.write(self)

    @classmethod
    def load(cls, folder: Path | str, mmap: bool = True) -> "PackedTable":
        """Open the packed table in `folder`, on the CPU.

        Parameters
        ----------
        folder : Path or str
            Where `save` or `write_shuffled` wrote it.
        mmap : bool, default True
            Map words and lists read-only: pages are read when rows are, and writing into `words` crashes the process,
            so copy before changing anything. Without, words are read into memory, as a table in several shards must
            be; lists are mapped all the same.

        Returns
        -------
        PackedTable
            The table that was saved.

        Raises
        ------
        LoaderError
            For a missing, truncated or foreign file, or one that does not fit its layout.
        """
        layout = Layout.read(Path(folder))
        return cls(_read_words(Path(folder), layout, mmap), layout.schema, read_lists(Path(folder), layout))


class PackedWriter:
    """Writes a packed table of `num_rows` rows part by part, so that it may be larger than memory.

    Rows are appended to the file with plain writes rather than through a memory map: a full disk is then an
    `OSError`, where a map would kill the process with SIGBUS. Use it in a `with` block; leaving the block checks that
    all rows were written. They are written beside a table that is in the folder, which is replaced at the end and stays
    where the block fails.
    """

    def __init__(self, folder: Path | str, schema: TensorSchema, num_rows: int) -> None:
        if num_rows < 0:
            raise LoaderError(f"packed writer: num_rows must not be negative, found {num_rows}.")
        self.folder = Path(folder)
        self.schema = schema
        self.num_rows = num_rows
        self.num_written = 0
        self._open = ExitStack()
        self._beside = self._open.enter_context(replacing_table(self.folder))
        self._file: BinaryIO = self._open.enter_context((self._beside / WORDS_FILE).open("wb"))
        self._flush = self._open.enter_context(FlushBehind(self._file))
        self._lists = self._open.enter_context(ListWriter(self._beside, schema)) if schema.lists else None
        write_header(self._file, num_rows, schema.num_words)

    def write(self, table: PackedTable) -> None:
        """Append the rows of `table` (same schema, any device)."""
        require_same_schema(self.schema, table.schema, f"packed writer for {self.folder}")
        if self.num_written + table.num_rows > self.num_rows:
            raise LoaderError(
                f"packed writer for {self.folder}: {self.num_written} + {table.num_rows} rows are more than the "
                f"{self.num_rows} that were announced."
            )
        block_rows = max(1, WRITE_BYTES // (4 * self.schema.num_words))
        for block in table.words.split(block_rows):
            if self._lists is not None:
                block = self._lists.write(block, table.lists)
            self._file.write(block.cpu().numpy().astype("<i4", copy=False))
            if len(block) == block_rows:  # a table of less is flushed by whoever keeps it
                self._flush()
        self.num_written += table.num_rows

    def close(self) -> None:
        """Finish the folder; `LoaderError` where rows are missing."""
        with self._open:
            if self.num_written != self.num_rows:
                raise LoaderError(
                    f"packed writer for {self.folder}: {self.num_written} rows were written and {self.num_rows} "
                    "announced."
                )
            lists = () if self._lists is None else self._lists.finish()
            Layout(self.num_rows, self.schema, ((WORDS_FILE, self.num_rows),), lists=lists).write(self._beside)

    def __enter__(self) -> "PackedWriter":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is None:
            self.close()
        else:
            self._open.__exit__(error_type, error, trace)


def _check_counts(schema: TensorSchema, counts: tuple[int, ...]) -> None:
    expected = (
        len(schema.ids), len(schema.floats), len(schema.targets), schema.has_weight, schema.has_group, len(schema.lists)
    )  # fmt: skip
    names = ("ids", "floats", "targets", "weight", "group", "lists")
    for what, wanted, got in zip(names, expected, counts, strict=True):
        if wanted != got:
            raise LoaderError(f"packed table: the schema has {int(wanted)} column(s) of {what}, {int(got)} were given.")


def _interleave(columns: Sequence[Tensor], device: torch.device) -> Tensor:
    """Columns as the word matrix [N, W], transposed block by block."""
    num_rows = columns[0].shape[0]
    words = torch.empty((num_rows, len(columns)), dtype=torch.int32, device=device)
    block_rows = CPU_BLOCK_ROWS if columns[0].device.type == "cpu" else GPU_BLOCK_ROWS
    bits = [column.view(torch.int32) for column in columns]
    for start in range(0, num_rows, block_rows):
        block = torch.stack([column[start : start + block_rows] for column in bits])
        words[start : start + block_rows] = block.T
    return words


def _read_words(folder: Path, layout: Layout, mmap: bool) -> Tensor:
    """Words [N, W] int32 on the CPU; see `PackedTable.load`."""
    shape = (layout.num_rows, layout.schema.num_words)
    starts = [check_file(folder / name, rows, shape[1]) for name, rows in layout.shards]
    if mmap and len(starts) > 1:
        raise LoaderError(
            f"{folder}: the table lies in {len(starts)} shards, which no single map covers. Use mmap=False to read it "
            "into memory, or stream it: residency=stream."
        )
    if not mmap or layout.num_rows == 0:  # an empty file region cannot be mapped
        words = torch.empty(shape, dtype=torch.int32)
        first = 0
        for (name, rows), start in zip(layout.shards, starts, strict=True):
            with open_unbuffered(folder / name) as file:
                read_exactly(file, start, words[first : first + rows])
            first += rows
        return words
    array = np.memmap(folder / layout.shards[0][0], "<i4", mode="r", offset=starts[0], shape=shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(np.ndarray))
