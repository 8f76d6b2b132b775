"""Each float between two rows of its column's table, on all cores of a CPU, compiled by numba.

Shapes: B rows, F columns, E edges of the column that has most, w numbers in a row of a table.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loops import njit

BLOCK_ROWS = 256


@torch.no_grad()
def interpolate(values: Tensor, edges: Tensor, num_bins: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Interpolate values float32 [B, F] in table float32 [F, E, w], whose rows stand at edges float32 [F, E].

    num_bins: int64 [F]. Gives out float32 [B, F, w], and what `interpolate_backward` asks for: bins int32 [B, F], and
    how far up in them the values are, from 0 to 1 also for values beyond the outermost edges.
    """
    out = torch.empty(*values.shape, table.shape[2])
    bins, parts = torch.empty(values.shape, dtype=torch.int32), torch.empty(values.shape)
    arrays = (values.contiguous(), edges, num_bins, table.contiguous(), out, bins, parts)
    _interpolate(*(array.detach().numpy() for array in arrays))
    return out, bins, parts


@torch.no_grad()
def interpolate_backward(gradient: Tensor, bins: Tensor, parts: Tensor, num_edges: int) -> Tensor:
    """Gradient of the table, float32 [F, E, w]: sums over the rows in their order, whatever the number of threads."""
    sums = np.zeros((bins.shape[1], num_edges, gradient.shape[2]), np.float64)
    _add_rows(gradient.float().contiguous().numpy(), bins.numpy(), parts.numpy(), sums)
    return torch.from_numpy(sums).float()


@njit(parallel=True)
def _interpolate(values, edges, num_bins, table, out, bins, parts):
    num_rows, num_columns = values.shape
    for block in numba.prange(-(-num_rows // BLOCK_ROWS)):
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, num_rows)):
            for column in range(num_columns):
                value, ends = values[row, column], edges[column]
                low, high = np.int64(0), num_bins[column]  # the bin is the last whose start is not above the value
                while high - low > 1:
                    middle = (low + high) >> 1
                    if ends[middle] <= value:
                        low = middle
                    else:
                        high = middle
                part = (value - ends[low]) / (ends[low + 1] - ends[low])
                part = min(max(part, np.float32(0)), np.float32(1))
                bins[row, column], parts[row, column] = low, part
                below, above, found = table[column, low], table[column, low + 1], out[row, column]
                for place in range(found.shape[0]):
                    found[place] = below[place] + part * (above[place] - below[place])


@njit(parallel=True)
def _add_rows(gradient, bins, parts, sums):
    num_rows, num_columns, width = gradient.shape
    for column in numba.prange(num_columns):
        for row in range(num_rows):
            low, part, line = bins[row, column], parts[row, column], gradient[row, column]
            below, above = sums[column, low], sums[column, low + 1]
            for place in range(width):
                up = line[place] * part
                above[place] += up
                below[place] += line[place] - up
