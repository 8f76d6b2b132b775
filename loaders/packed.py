"""A table as one matrix of 4-byte words, so that one gather fetches whole rows and unpacking costs nothing.

A row is: ids (int32) | floats (float32 bits) | targets (float32 bits; int32 for multiclass) | weight (float32 bits) |
group (int32), in the order of its `TensorSchema`. Its files are described in `loaders/storage.py`.

Shapes: N rows, W words in a row, B rows in a batch, C id columns, F float columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from features.schema import TensorSchema
from loaders.columns import ColumnSpec, check_columns, column_specs, require_same_schema
from loaders.errors import LoaderError
from loaders.storage import PackedWriter, read_packed

# Rows that are interleaved at once. On CPU a block of 46 columns (1.5 MB) stays in the L2 cache: packing then runs at
# the speed of a plain copy, five times faster than filling one strided column after another. On GPU large blocks
# keep launches few.
CPU_BLOCK_ROWS = 8192
GPU_BLOCK_ROWS = 1 << 20


class Batch(NamedTuple):
    """Rows as a model takes them; from `PackedTable.unpack` every field is a view of the same words.

    ids [B, C] int32; floats [B, F] float32; targets: one [B] per target, float32 (int32 for multiclass);
    weight [B] float32 or None; group [B] int32 or None.
    """

    ids: Tensor
    floats: Tensor
    targets: tuple[Tensor, ...]
    weight: Tensor | None = None
    group: Tensor | None = None

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
        )


def unpack(schema: TensorSchema, words: Tensor) -> Batch:
    """Views of `words` [B, W] int32 as the columns of `schema`. Nothing is copied."""
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
    )


@dataclass(frozen=True, eq=False)
class PackedTable:
    """`words` [N, W] int32, row-major, and the schema that says what each word is."""

    words: Tensor
    schema: TensorSchema

    def __post_init__(self) -> None:
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
    ) -> "PackedTable":
        """Pack 1-d columns of N rows, all on one device, into a table on `device` (the columns' own by default).

        Columns may be views of a frame's memory; they are only read. Dtypes are exact: int32 for ids, group and
        multiclass targets, float32 for the rest.

        Raises:
            LoaderError: naming the column, for a wrong count, dtype, length or device; an id or class out of range; a
                float, regression target or weight that is NaN or infinite; a binary target outside [0, 1]; a negative
                weight. Checking values waits for the device once.
        """
        specs = column_specs(schema)
        columns = [*ids, *floats, *targets]
        columns += [column for column in (weight, group) if column is not None]
        counts = (len(ids), len(floats), len(targets), weight is not None, group is not None)
        _check_counts(schema, counts)
        check_columns(specs, columns)
        return cls(_interleave(specs, columns, torch.device(device) if device else columns[0].device), schema)

    @classmethod
    def from_rows(cls, schema: TensorSchema, words: Tensor) -> "PackedTable":
        """Rows [N, W] int32 that a preprocessor wove, as they are; its ids and floats fit the schema by construction.

        Raises:
            LoaderError: for a target or weight outside its range, which only the data can answer for.
        """
        table = cls(words, schema)
        first = len(schema.ids) + len(schema.floats)
        specs = [spec for spec in column_specs(schema)[first:] if spec.dtype == torch.float32 or spec.low == 0]
        columns = [words[:, first + i].contiguous().view(spec.dtype) for i, spec in enumerate(specs)]
        if columns:
            check_columns(specs, columns)
        return table

    @classmethod
    def concat(cls, tables: Iterable["PackedTable"]) -> "PackedTable":
        """The rows of `tables` one after another; all must have the same schema and device."""
        parts = list(tables)
        if not parts:
            raise LoaderError("concat: no packed tables were given.")
        for position, part in enumerate(parts):
            require_same_schema(parts[0].schema, part.schema, f"concat: table {position}")
        return cls(torch.cat([part.words for part in parts]), parts[0].schema)

    @property
    def num_rows(self) -> int:
        return self.words.shape[0]

    @property
    def device(self) -> torch.device:
        return self.words.device

    @property
    def num_bytes(self) -> int:
        return self.words.numel() * self.words.element_size()

    def __len__(self) -> int:
        return self.num_rows

    def unpack(self, words: Tensor) -> Batch:
        """Rows `words` [B, W] int32 of this table as a `Batch` of views. Nothing is copied."""
        return unpack(self.schema, words)

    def to(self, device: torch.device | str) -> "PackedTable":
        return PackedTable(self.words.to(device), self.schema)

    def save(self, folder: Path | str) -> None:
        """Write this table to `folder`, replacing a packed table that is there."""
        with PackedWriter(folder, self.schema, self.num_rows) as writer:
            writer.write(self)

    @classmethod
    def load(cls, folder: Path | str, mmap: bool = True) -> "PackedTable":
        """The packed table in `folder`, on the CPU.

        With `mmap` its words are mapped read-only: pages are read when rows are, and writing into `words` crashes the
        process, so copy before changing anything. Without, they are read into memory, as a table in several shards
        must be.

        Raises:
            LoaderError: for a missing, truncated or foreign file, or one that does not fit its layout.
        """
        return cls(*read_packed(folder, mmap))

    def pin_memory(self) -> "PackedTable":
        """This table in page-locked host memory, from which copies to a GPU run beside other work."""
        if not torch.cuda.is_available():
            raise LoaderError("pin_memory: no CUDA device was found. Leave the table in ordinary memory.")
        return PackedTable(self.words.pin_memory(), self.schema)


def _check_counts(schema: TensorSchema, counts: tuple[int, ...]) -> None:
    expected = (len(schema.ids), len(schema.floats), len(schema.targets), schema.has_weight, schema.has_group)
    for what, wanted, got in zip(("ids", "floats", "targets", "weight", "group"), expected, counts, strict=True):
        if wanted != got:
            raise LoaderError(f"packed table: the schema has {int(wanted)} column(s) of {what}, {int(got)} were given.")


def _interleave(specs: Sequence[ColumnSpec], columns: Sequence[Tensor], device: torch.device) -> Tensor:
    """Columns as the word matrix [N, W], transposed block by block."""
    num_rows = columns[0].shape[0]
    words = torch.empty((num_rows, len(specs)), dtype=torch.int32, device=device)
    block_rows = CPU_BLOCK_ROWS if columns[0].device.type == "cpu" else GPU_BLOCK_ROWS
    bits = [column.view(torch.int32) for column in columns]
    for start in range(0, num_rows, block_rows):
        block = torch.stack([column[start : start + block_rows] for column in bits])
        words[start : start + block_rows] = block.T
    return words
