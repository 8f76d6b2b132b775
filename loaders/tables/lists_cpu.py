"""Gathering lists on the CPU, compiled by numba and spread over all cores; see `loaders/tables/lists.py`.

Each list is copied by itself, so the result does not depend on the number of threads.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError

NO_LIMIT = np.iinfo(np.int64).max


def gather(values: Tensor, offsets: Tensor, rows: Tensor, max_length: int | None) -> tuple[Tensor, Tensor]:
    """See `lists.gather_reference`; `LoaderError` for a row outside the column."""
    row_numbers = rows.contiguous().numpy()
    starts = torch.empty(len(rows), dtype=torch.int64)
    found = torch.empty(len(rows) + 1, dtype=torch.int64)
    limit = NO_LIMIT if max_length is None else max_length
    _require_inside(
        _measure(offsets.numpy(), row_numbers, limit, starts.numpy(), found.numpy()), rows, len(offsets) - 1
    )
    out = torch.empty(int(found[-1]), dtype=torch.int32)
    _copy(values.numpy(), starts.numpy(), found.numpy(), out.numpy())
    return out, found


def padded(values: Tensor, offsets: Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """See `lists.padded_reference`; `LoaderError` for a row outside the column."""
    out = torch.empty((len(rows), length), dtype=torch.int32)
    lengths = torch.empty(len(rows), dtype=torch.int32)
    arrays = values.numpy(), offsets.numpy(), rows.contiguous().numpy(), out.numpy(), lengths.numpy()
    _require_inside(_copy_padded(*arrays), rows, len(offsets) - 1)
    return out, lengths


def _require_inside(num_outside: int, rows: Tensor, num_rows: int) -> None:
    if num_outside:
        worst = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
        raise LoaderError(f"lists: {num_outside} of {len(rows)} rows are outside [0, {num_rows}), for example {worst}.")


@numba.njit(cache=True, nogil=True, parallel=True)
def _measure(offsets, rows, max_length, starts, found):
    """Fill starts [B], where each list's last `max_length` entries begin, and their own offsets, found [B+1]; how many
    rows are outside the column."""
    outside = 0
    found[0] = 0
    for i in numba.prange(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(offsets) - 1:
            outside += 1
            found[i + 1] = 0
        else:
            length = min(offsets[row + 1] - offsets[row], max_length)
            starts[i] = offsets[row + 1] - length
            found[i + 1] = length
    for i in range(len(rows)):
        found[i + 1] += found[i]
    return outside


@numba.njit(cache=True, nogil=True, parallel=True)
def _copy(values, starts, found, out):
    for i in numba.prange(len(starts)):
        source = starts[i] - found[i]
        for place in range(found[i], found[i + 1]):
            out[place] = values[source + place]


@numba.njit(cache=True, nogil=True, parallel=True)
def _copy_padded(values, offsets, rows, out, lengths):
    """Fill out [B, k] and lengths [B]; how many rows are outside the column."""
    outside = 0
    for i in numba.prange(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(offsets) - 1:
            outside += 1
        else:
            length = min(offsets[row + 1] - offsets[row], out.shape[1])
            start = offsets[row + 1] - length
            for k in range(length):
                out[i, k] = values[start + k]
            for k in range(length, out.shape[1]):
                out[i, k] = 0
            lengths[i] = length
    return outside
