"""The lists of a packed table on disk: for each list column three `.npy` arrays beside the words.

`list-000-ids.npy` (int32 [T]), `list-000-offsets.npy` (int64 [N+1]) and, where there are weights,
`list-000-weights.npy` (float32 [T]) hold the lists in the order of the table's rows; `layout.json` says how many ids
there are. They can be memory-mapped, so a batch of a streamed table reads the pages of its own lists.
"""

import io
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy_format
from torch import Tensor

from gigabatch.features.errors import UNREADABLE
from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import INT32_MAX, JaggedColumn
from gigabatch.loaders.tables.storage import LAYOUT_FILE, Layout, npy_header, start_and_size

DTYPES = {"ids": "<i4", "offsets": "<i8", "weights": "<f4"}
CHECKED_OFFSETS = 1 << 22  # at a time
WRITTEN_ROWS = 1 << 16  # whose lists are in memory at a time


def list_file(place: int, part: str) -> str:
    """Name of a file. place: of the list column in the schema; part: a key of `DTYPES`."""
    return f"list-{place:03d}-{part}.npy"


def _header(dtype: str, count: int) -> bytes:
    file = io.BytesIO()
    npy_format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": (count,)})
    return file.getvalue()


class ListWriter:
    """Appends the lists of packed rows to the files of a table, in a `with` block, and numbers the rows' list words.

    Parameters
    ----------
    folder
        That of the table's words.
    schema
        Of the table; it has list columns.
    """

    def __init__(self, folder: Path, schema: TensorSchema) -> None:
        self.folder, self.schema = folder, schema
        self.num_rows = 0
        self._num_ids = [0] * len(schema.lists)
        self._open = ExitStack()
        self._files: list[dict[str, BinaryIO]] = []

    def __enter__(self) -> "ListWriter":
        for place, column in enumerate(self.schema.lists):
            files: dict[str, BinaryIO] = {}
            for part, dtype in DTYPES.items():
                if part != "weights" or column.weighted:
                    files[part] = self._open.enter_context((self.folder / list_file(place, part)).open("wb"))
                    files[part].write(_header(dtype, 0))
            files["offsets"].write(np.zeros(1, "<i8").tobytes())
            self._files.append(files)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def write(self, words: Tensor, lists: Sequence[JaggedColumn]) -> Tensor:
        """Append the lists of rows `words` [B, W] of a table that has `lists`; the rows, whose words of lists are the
        numbers of these rows among those written."""
        numbered, first = words.clone(), self.schema.first_list
        stop = self.num_rows + len(words)
        if stop > INT32_MAX:
            raise LoaderError(
                f"packed table {self.folder}: rows with lists are numbered in 32 bits, and these are more than "
                f"{INT32_MAX:,}. Write several tables."
            )
        for start in range(0, len(words), WRITTEN_ROWS):
            part = words[start : start + WRITTEN_ROWS]
            for place, column in enumerate(lists):
                self._append(place, column.rows(part[:, first + place].to(column.ids.device)).to("cpu"))
        numbered[:, first:] = torch.arange(self.num_rows, stop, dtype=torch.int32, device=words.device)[:, None]
        self.num_rows = stop
        return numbered

    def _append(self, place: int, column: JaggedColumn) -> None:
        files = self._files[place]
        files["ids"].write(column.ids.numpy().astype("<i4", copy=False).data)
        files["offsets"].write((column.offsets[1:] + self._num_ids[place]).numpy().astype("<i8", copy=False).data)
        if column.weights is not None:
            files["weights"].write(column.weights.numpy().astype("<f4", copy=False).data)
        self._num_ids[place] += len(column.ids)

    def finish(self) -> tuple[int, ...]:
        """Write the headers; how many ids each column has, for the layout."""
        for files, num_ids in zip(self._files, self._num_ids, strict=True):
            for part, file in files.items():
                header = _header(DTYPES[part], self.num_rows + 1 if part == "offsets" else num_ids)
                assert len(header) == len(_header(DTYPES[part], 0)), "NumPy leaves room for a longer number"
                file.seek(0)
                file.write(header)
                file.flush()
        return tuple(self._num_ids)


def read_lists(folder: Path, layout: Layout) -> tuple[JaggedColumn, ...]:
    """The lists of a table in a local folder, mapped read-only; empty for a table without.

    Raises:
        LoaderError: naming the file that is missing, truncated, foreign, or whose offsets do not ascend from 0 to the
            number of ids.
    """
    found = []
    for place, (column, num_ids) in enumerate(zip(layout.schema.lists, layout.lists, strict=True)):
        counts = {"ids": num_ids, "offsets": layout.num_rows + 1} | ({"weights": num_ids} if column.weighted else {})
        arrays = {part: _read(folder / list_file(place, part), DTYPES[part], n) for part, n in counts.items()}
        _check_offsets(arrays["offsets"], num_ids, folder / list_file(place, "offsets"))
        found.append(JaggedColumn(arrays["ids"], arrays["offsets"], arrays.get("weights")))
    return tuple(found)


def save_list(folder: Path, place: int, column: JaggedColumn) -> None:
    """Write one list column, in its own order, as the files of list `place`."""
    for part, dtype in DTYPES.items():
        values = getattr(column, part)
        if values is not None:
            np.save(folder / list_file(place, part), values.cpu().numpy().astype(dtype, copy=False))


def map_list(folder: Path, place: int, num_ids: int, weighted: bool) -> JaggedColumn:
    """What `save_list` wrote, mapped read-only.

    Raises:
        LoaderError: for files that are missing, damaged, or hold no ids in [0, num_ids).
    """
    parts = {}
    for part, dtype in DTYPES.items():
        if part != "weights" or weighted:
            path = folder / list_file(place, part)
            parts[part] = _read(path, dtype, _length(path))
    column = JaggedColumn(parts["ids"], parts["offsets"], parts.get("weights"))
    column.require_fit(f"{folder / list_file(place, 'ids')}", num_ids, weighted)
    return column


def _length(path: Path) -> int:
    """Values of a one-dimensional `.npy` file, by its header."""
    try:
        with path.open("rb") as file:
            npy_format.read_magic(file)
            return int(npy_format.read_array_header_1_0(file)[0][0])
    except FileNotFoundError:
        raise LoaderError(f"{path}: not found.") from None
    except (*UNREADABLE, TokenError, IndexError) as error:
        raise LoaderError(f"{path}: damaged header ({error}).") from error


def _read(path: Path, dtype: str, count: int) -> Tensor:
    start = _check_file(path, dtype, count)
    if count == 0:  # an empty file region cannot be mapped
        return torch.from_numpy(np.empty(0, dtype))
    array = np.memmap(path, dtype, mode="r", offset=start, shape=(count,))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(np.ndarray))


def _check_file(path: Path, dtype: str, count: int) -> int:
    """Bytes before the first value; `LoaderError` where the file does not hold these values and nothing else."""
    again = "Run the encode stage again."
    head, size = start_and_size(path)
    shape, fortran_order, found, start = npy_header(head, str(path))
    if found != np.dtype(dtype) or fortran_order or len(shape) != 1:
        raise LoaderError(f"{path}: expected one column of {np.dtype(dtype)}, found {found} of shape {shape}. {again}")
    if shape[0] != count:
        raise LoaderError(
            f"{path}: holds {shape[0]} values, {LAYOUT_FILE} says {count}. The two files are of different tables: run "
            "the encode stage again."
        )
    expected = start + np.dtype(dtype).itemsize * count
    if size != expected:
        raise LoaderError(f"{path}: {size} bytes, expected {expected}: truncated or overwritten. {again}")
    return start


def _check_offsets(offsets: Tensor, num_ids: int, path: Path) -> None:
    ends = int(offsets[0]), int(offsets[-1])
    if ends != (0, num_ids):
        raise LoaderError(
            f"{path}: damaged, offsets go from {ends[0]} to {ends[1]} and must go from 0 to the {num_ids} ids. Run the "
            "encode stage again."
        )
    for start in range(0, len(offsets) - 1, CHECKED_OFFSETS):
        falling = offsets[start : start + CHECKED_OFFSETS + 1].diff() < 0
        if bool(falling.any()):
            row = start + int(falling.byte().argmax())
            raise LoaderError(f"{path}: damaged, offsets fall after row {row}. Run the encode stage again.")
