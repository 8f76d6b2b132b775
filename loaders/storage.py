"""Packed tables on disk: `words.npy`, which can be memory-mapped, and `layout.json` beside it.

`layout.json` is written last, so a folder without it is one whose writer did not finish.
"""

import json
import warnings
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy_format
from torch import Tensor

from features.errors import UNREADABLE
from features.schema import TensorSchema
from loaders.columns import require_same_schema
from loaders.errors import LoaderError

if TYPE_CHECKING:
    from loaders.packed import PackedTable

FORMAT_NAME = "gigabatch-packed"
FORMAT_VERSION = 1
WORDS_FILE = "words.npy"
LAYOUT_FILE = "layout.json"
WRITE_BYTES = 64 << 20  # copied through host memory at a time


class PackedWriter:
    """Writes a packed table of `num_rows` rows part by part, so that it may be larger than memory.

    Rows are appended to the file with plain writes rather than through a memory map: a full disk is then an
    `OSError`, where a map would kill the process with SIGBUS. Use it in a `with` block; leaving the block checks that
    all rows were written. Where the block fails, the folder is left without `layout.json`.
    """

    def __init__(self, folder: Path | str, schema: TensorSchema, num_rows: int) -> None:
        if num_rows < 0:
            raise LoaderError(f"packed writer: num_rows must not be negative, found {num_rows}.")
        self.folder = Path(folder)
        self.schema = schema
        self.num_rows = num_rows
        self.num_written = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / LAYOUT_FILE).unlink(missing_ok=True)
        self._file: BinaryIO = (self.folder / WORDS_FILE).open("wb")
        header = {"descr": "<i4", "fortran_order": False, "shape": (num_rows, schema.num_words)}
        npy_format.write_array_header_1_0(self._file, header)

    def write(self, table: "PackedTable") -> None:
        """Append the rows of `table` (same schema, any device)."""
        require_same_schema(self.schema, table.schema, f"packed writer for {self.folder}")
        if self.num_written + table.num_rows > self.num_rows:
            raise LoaderError(
                f"packed writer for {self.folder}: {self.num_written} + {table.num_rows} rows are more than the "
                f"{self.num_rows} that were announced."
            )
        block_rows = max(1, WRITE_BYTES // (4 * self.schema.num_words))
        for block in table.words.split(block_rows):
            self._file.write(block.cpu().numpy().astype("<i4", copy=False))
        self.num_written += table.num_rows

    def close(self) -> None:
        """Finish the folder; `LoaderError` where rows are missing."""
        self._file.close()
        if self.num_written != self.num_rows:
            raise LoaderError(
                f"packed writer for {self.folder}: {self.num_written} rows were written and {self.num_rows} announced."
            )
        layout = {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "num_rows": self.num_rows,
            "schema": json.loads(self.schema.to_json()),
        }
        (self.folder / LAYOUT_FILE).write_text(json.dumps(layout, indent=1))

    def __enter__(self) -> "PackedWriter":
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.close()
        else:
            self._file.close()


def read_packed(folder: Path | str, mmap: bool) -> tuple[Tensor, TensorSchema]:
    """Words [N, W] int32 on the CPU and schema of the packed table in `folder`; see `PackedTable.load`."""
    folder = Path(folder)
    num_rows, schema = _read_layout(folder / LAYOUT_FILE)
    path = folder / WORDS_FILE
    shape = _read_shape(path)
    if shape != (num_rows, schema.num_words):
        raise LoaderError(
            f"{path}: holds a matrix of shape {shape}, {LAYOUT_FILE} says {(num_rows, schema.num_words)}. "
            "The two files are of different tables: run the encode stage again."
        )
    mapped = mmap and num_rows > 0  # an empty file region cannot be mapped
    array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(np.ndarray)), schema


def _read_layout(path: Path) -> tuple[int, TensorSchema]:
    try:
        layout = json.loads(path.read_text())
    except FileNotFoundError:
        raise LoaderError(
            f"{path}: not found, so {path.parent} holds no finished packed table. Run the encode stage first."
        ) from None
    except (ValueError, RecursionError) as error:
        raise LoaderError(f"{path}: damaged ({error}). Run the encode stage again.") from error
    if not isinstance(layout, dict) or layout.get("format") != FORMAT_NAME:
        raise LoaderError(f"{path}: not the layout of a packed table ({FORMAT_NAME!r} is not its format).")
    if layout.get("version") != FORMAT_VERSION:
        raise LoaderError(
            f"{path}: format version {layout.get('version')}, this code reads {FORMAT_VERSION}. "
            "Run the encode stage again."
        )
    num_rows = layout.get("num_rows")
    if isinstance(num_rows, bool) or not isinstance(num_rows, int) or num_rows < 0 or "schema" not in layout:
        raise LoaderError(f"{path}: damaged (num_rows or schema is missing). Run the encode stage again.")
    try:
        return num_rows, TensorSchema.from_json(json.dumps(layout["schema"]))
    except ValueError as error:
        raise LoaderError(f"{path}: {error}") from error


def _read_shape(path: Path) -> tuple[int, ...]:
    """Shape of the int32 matrix in `path`, whose size is checked to be just that of its header and data."""
    try:
        with path.open("rb") as file:
            version = npy_format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"numpy format {version}, expected (1, 0)")
            shape, fortran_order, dtype = npy_format.read_array_header_1_0(file)
            header_bytes = file.tell()
    except FileNotFoundError:
        raise LoaderError(f"{path}: not found. Run the encode stage again.") from None
    except (*UNREADABLE, TokenError) as error:  # NumPy reads a header by Python's own parser
        raise LoaderError(f"{path}: damaged header ({error}). Run the encode stage again.") from error
    if dtype != np.dtype("<i4") or fortran_order or len(shape) != 2:
        raise LoaderError(f"{path}: expected a row-major int32 matrix, found {dtype} of shape {shape}.")
    expected, found = header_bytes + 4 * shape[0] * shape[1], path.stat().st_size
    if found != expected:
        raise LoaderError(
            f"{path}: {found} bytes, expected {expected} for {shape[0]} rows: truncated or overwritten. "
            "Run the encode stage again."
        )
    return shape
