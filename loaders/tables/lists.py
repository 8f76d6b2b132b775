"""List columns (multi-hot ids, histories): side arrays beside a packed table, whose rows they are known by.

A `ListColumn` has one list of ids a row of the table, a `ListTable` several such columns by name. On the CPU
compiled loops gather (`loaders/tables/lists_cpu.py`), on a GPU torch does.

Shapes: N rows of the table, L entries of all lists, B rows of a batch, T entries of its lists, k entries when padded.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy_format
from torch import Tensor

from gigabatch.features.errors import UNREADABLE
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.kernels.threads import start_threads

FORMAT_NAME = "gigabatch-lists"
FORMAT_VERSION = 1
LISTS_FILE = "lists.json"
PADDING = 0  # the padding id of features/vocabulary/vocabulary.py's LAYOUT


class Lists(NamedTuple):
    """Lists one after another: list i is values[offsets[i] : offsets[i + 1]]. values [T] int32, offsets [B+1] int64.

    `torch.nn.functional.embedding_bag(values, weight, offsets, include_last_offset=True)` takes them as they are.
    """

    values: Tensor
    offsets: Tensor


class PaddedLists(NamedTuple):
    """ids [B, k] int32, each list from the left and then 0, the padding id; lengths [B] int32, at most k."""

    ids: Tensor
    lengths: Tensor


@dataclass(frozen=True, eq=False)
class ListColumn:
    """One list of ids a row: values [L] int32 and offsets [N+1] int64, contiguous, on one device.

    Making one looks at all offsets, since a wrong one would read foreign memory later; it waits for the device.
    """

    values: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        for name, array, dtype in (("values", self.values, torch.int32), ("offsets", self.offsets, torch.int64)):
            if array.dtype != dtype or array.dim() != 1 or not array.is_contiguous():
                raise LoaderError(
                    f"list column: {name} must be a contiguous array of {dtype}, found {array.dtype} of shape "
                    f"{tuple(array.shape)}."
                )
        if self.values.device != self.offsets.device:
            raise LoaderError(
                f"list column: values are on {self.values.device} and offsets on {self.offsets.device}. Use one device."
            )
        offsets, num_values = self.offsets, len(self.values)
        if (
            not len(offsets)
            or int(offsets[0]) != 0
            or int(offsets[-1]) != num_values
            or bool((offsets.diff() < 0).any())
        ):
            raise LoaderError(
                f"list column: offsets must begin with 0, never fall, and end with the number of values, {num_values}. "
                "From the lengths of the lists `ListColumn.from_lengths` makes them."
            )

    @classmethod
    def from_lengths(cls, values: Tensor, lengths: Tensor) -> ListColumn:
        """Entries of all lists one after another [L] int32, and whole numbers: the length of each list [N]."""
        if lengths.dim() != 1 or lengths.is_floating_point() or bool((lengths < 0).any()):
            raise LoaderError("list column: lengths must be one column of whole numbers from 0.")
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def concat(cls, columns: Sequence[ListColumn]) -> ListColumn:
        """The lists of `columns`, at least one and all on one device, one column after another."""
        if not columns:
            raise LoaderError("list column: no columns were given to concat.")
        starts = np.cumsum([0] + [len(column.values) for column in columns])
        offsets = [column.offsets[1:] + int(start) for column, start in zip(columns, starts, strict=False)]
        return cls(torch.cat([column.values for column in columns]), torch.cat([columns[0].offsets[:1], *offsets]))

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def device(self) -> torch.device:
        return self.values.device

    def to(self, device: torch.device | str) -> ListColumn:
        return ListColumn(self.values.to(device), self.offsets.to(device))

    def gather(self, rows: Tensor, max_length: int | None = None) -> Lists:
        """The lists of `rows` [B] int64, on the column's device; of longer ones the last `max_length` entries.

        On a GPU this waits for the device once, because it must know T; `padded` does not.

        Raises:
            LoaderError: on the CPU for a row outside [0, N). On a GPU rows are checked by torch's indexing there.
        """
        if max_length is not None and max_length < 0:
            raise LoaderError(f"lists: max_length must not be negative, found {max_length}.")
        if self.device.type != "cpu":
            return Lists(*gather_reference(self.values, self.offsets, rows, max_length))
        from gigabatch.loaders.tables import lists_cpu

        start_threads()
        return Lists(*lists_cpu.gather(self.values, self.offsets, _checked(rows), max_length))

    def padded(self, rows: Tensor, length: int) -> PaddedLists:
        """The lists of `rows` [B] int64 as a matrix of `length` columns; of longer ones the last entries.

        Raises:
            LoaderError: as `gather`.
        """
        if length < 1:
            raise LoaderError(f"lists: a padded list has 1 entry or more, found {length}.")
        if self.device.type != "cpu":
            return PaddedLists(*padded_reference(self.values, self.offsets, rows, length))
        from gigabatch.loaders.tables import lists_cpu

        start_threads()
        return PaddedLists(*lists_cpu.padded(self.values, self.offsets, _checked(rows), length))


def gather_reference(values: Tensor, offsets: Tensor, rows: Tensor, max_length: int | None) -> tuple[Tensor, Tensor]:
    """values [T] int32 and offsets [B+1] int64 of the lists of `rows`, in plain torch on any device."""
    stops = offsets[rows + 1]
    lengths = stops - offsets[rows]
    if max_length is not None:
        lengths.clamp_(max=max_length)
    found = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(lengths, 0, out=found[1:])
    total = int(found[-1])
    shifts = (stops - found[1:]).repeat_interleave(lengths, output_size=total)
    return values[shifts + torch.arange(total, device=rows.device)], found


def padded_reference(values: Tensor, offsets: Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """ids [B, k] int32 and lengths [B] int32 of the lists of `rows`, in plain torch on any device."""
    stops = offsets[rows + 1]
    lengths = (stops - offsets[rows]).clamp_max(length)
    column = torch.arange(length, device=rows.device)
    inside = column < lengths[:, None]
    if not len(values):
        return torch.full(inside.shape, PADDING, dtype=torch.int32, device=rows.device), lengths.int()
    place = torch.where(inside, (stops - lengths)[:, None] + column, 0)
    return torch.where(inside, values[place], PADDING), lengths.int()


@dataclass(frozen=True, eq=False)
class ListTable:
    """The list columns of a packed table by name: list i of each belongs to the table's row i."""

    lists: Mapping[str, ListColumn]

    def __post_init__(self) -> None:
        if not self.lists:
            raise LoaderError("list table: it has no columns. Give it at least one, or leave it out.")
        found = {name: (column.num_rows, str(column.device)) for name, column in self.lists.items()}
        if len(set(found.values())) > 1:
            raise LoaderError(f"list table: columns differ in rows or device: {found}. All belong to one packed table.")

    @classmethod
    def concat(cls, tables: Sequence[ListTable]) -> ListTable:
        """The rows of `tables` one after another; all must have the same columns, in any order."""
        if not tables:
            raise LoaderError("list table: no tables were given to concat.")
        for position, table in enumerate(tables):
            if set(table.lists) != set(tables[0].lists):
                raise LoaderError(
                    f"list table: concat of table {position}: its columns are {sorted(table.lists)}, those of the "
                    f"first are {sorted(tables[0].lists)}."
                )
        return cls({name: ListColumn.concat([table.lists[name] for table in tables]) for name in tables[0].lists})

    @property
    def num_rows(self) -> int:
        return next(iter(self.lists.values())).num_rows

    def to(self, device: torch.device | str) -> ListTable:
        return ListTable({name: column.to(device) for name, column in self.lists.items()})

    def gather(self, rows: Tensor, max_length: int | None = None) -> dict[str, Lists]:
        """`ListColumn.gather` of every column."""
        return {name: column.gather(rows, max_length) for name, column in self.lists.items()}

    def padded(self, rows: Tensor, length: int) -> dict[str, PaddedLists]:
        """`ListColumn.padded` of every column."""
        return {name: column.padded(rows, length) for name, column in self.lists.items()}

    def save(self, folder: Path | str) -> None:
        """Write to `folder`, which may be the packed table's: two `.npy` files a column, and `lists.json` last."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LISTS_FILE).unlink(missing_ok=True)
        for number, column in enumerate(self.lists.values()):
            for part, array in (("values", column.values), ("offsets", column.offsets)):
                np.save(folder / _file_name(number, part), array.cpu().numpy(), allow_pickle=False)
        columns = [{"name": name, "num_values": len(column.values)} for name, column in self.lists.items()]
        layout = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "num_rows": self.num_rows, "columns": columns}
        (folder / LISTS_FILE).write_text(json.dumps(layout, indent=1, allow_nan=False))

    @classmethod
    def load(cls, folder: Path | str, mmap: bool = True, num_rows: int | None = None) -> ListTable:
        """The list columns in `folder`, on the CPU; with `mmap` mapped read-only, so writing into them crashes.

        num_rows: of the packed table that they belong to, if it is to be checked.

        Raises:
            LoaderError: for a missing, truncated or foreign file, or one that does not fit `lists.json`.
        """
        path = Path(folder) / LISTS_FILE
        num_lists, columns = _read_layout(path)
        if num_rows not in (None, num_lists):
            raise LoaderError(
                f"{path}: lists of {num_lists} rows, the packed table has {num_rows}. Save the lists of this table."
            )
        found = {}
        for number, (name, num_values) in enumerate(columns):
            values = _read_array(path.parent / _file_name(number, "values"), np.dtype("<i4"), num_values, mmap)
            offsets = _read_array(path.parent / _file_name(number, "offsets"), np.dtype("<i8"), num_lists + 1, mmap)
            try:
                found[name] = ListColumn(values, offsets)
            except LoaderError as error:
                raise LoaderError(f"{path.parent}: column {name!r}: {error}") from error
        return cls(found)


def _checked(rows: Tensor) -> Tensor:
    assert rows.dtype == torch.int64, rows.dtype
    assert rows.dim() == 1, rows.shape
    return rows


def _file_name(number: int, part: str) -> str:
    return f"list-{number:03d}-{part}.npy"


def _read_layout(path: Path) -> tuple[int, list[tuple[str, int]]]:
    """Rows, and (name, number of values) of each column."""
    try:
        layout = json.loads(path.read_text())
    except FileNotFoundError:
        raise LoaderError(
            f"{path}: not found, so {path.parent} holds no finished list columns. Save them first."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoaderError(f"{path}: damaged ({error}). Save the list columns again.") from error
    if not isinstance(layout, dict) or layout.get("format") != FORMAT_NAME:
        raise LoaderError(f"{path}: not the layout of list columns ({FORMAT_NAME!r} is not its format).")
    if layout.get("version") != FORMAT_VERSION:
        raise LoaderError(f"{path}: format version {layout.get('version')}, this code reads {FORMAT_VERSION}.")
    try:
        columns = [(column["name"], column["num_values"]) for column in layout["columns"]]
        num_rows = layout["num_rows"]
    except (KeyError, TypeError) as error:
        raise LoaderError(f"{path}: damaged (columns or num_rows are missing). Save the list columns again.") from error
    names, counts = [name for name, _ in columns], [num_rows, *(count for _, count in columns)]
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise LoaderError(f"{path}: damaged (columns are named {names}). Save the list columns again.")
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise LoaderError(f"{path}: damaged (num_rows or num_values is no count). Save the list columns again.")
    return num_rows, columns


def _read_array(path: Path, dtype: np.dtype, length: int, mmap: bool) -> Tensor:
    """The array in a `.npy` file, which must hold just `length` numbers of `dtype`."""
    mapped: np.ndarray
    try:
        if length:
            mapped = npy_format.open_memmap(path, mode="r")
        else:  # an empty file region cannot be mapped
            with path.open("rb") as file:
                mapped = npy_format.read_array(file, allow_pickle=False)
        num_bytes = path.stat().st_size
    except FileNotFoundError:
        raise LoaderError(f"{path}: not found. Save the list columns again.") from None
    except (*UNREADABLE, TokenError) as error:  # NumPy reads a header by Python's own parser
        raise LoaderError(f"{path}: damaged or truncated ({error}). Save the list columns again.") from error
    if mapped.dtype != dtype or mapped.shape != (length,):
        raise LoaderError(
            f"{path}: expected {length} numbers of {dtype}, found {mapped.dtype} of shape {mapped.shape}. "
            "Save the list columns again."
        )
    if isinstance(mapped, np.memmap) and num_bytes != mapped.offset + mapped.nbytes:
        raise LoaderError(
            f"{path}: {num_bytes} bytes, expected {mapped.offset + mapped.nbytes}: overwritten. Save the list columns "
            "again."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(mapped.view(np.ndarray) if mmap else np.array(mapped))
