"""How much of a shuffle an order is, as one number that can be printed beside it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError

SMALLEST_BLOCK_ROWS = 2  # at this size the statistic is about neighbours that come into one batch
BLOCK_GROWTH = 8
LEAST_FREEDOM = 1000  # degrees of freedom; the ratio of a uniform permutation is then 1 within 4.5 % (one sigma)


def shuffle_quality(order: Callable[[Tensor], Tensor], num_rows: int, batch_size: int = 4096) -> float:
    """1 for an order that mixes like a uniform permutation (.9 to 1.1 by chance), towards 0 the less it mixes.

    It is the geometric mean of `block_mixing` over blocks of 2, 16, 128, ... stored rows, as long as there are enough
    blocks to tell. A quality of 1/4 says that the composition of batches, by where their rows were stored, varies
    four times as much as under a uniform permutation; the order of storage itself is below 1 / 100 at a million rows.
    Above 1, batches are more even than by chance.

    order: positions [K] int64 of an epoch -> rows [K] int64, a bijection of [0, num_rows), as `SampleOrder`. It is
    called for all positions at once, so a quality costs memory and a sort of the whole epoch.

    Raises:
        LoaderError: where there are too few rows or batches to tell.
    """
    rows = order(torch.arange(num_rows))
    num_batches = -(-num_rows // batch_size)
    logs = []
    block_rows = SMALLEST_BLOCK_ROWS
    while (-(-num_rows // block_rows) - 1) * (num_batches - 1) >= LEAST_FREEDOM:
        logs.append(math.log(block_mixing(rows, block_rows, batch_size)))
        block_rows *= BLOCK_GROWTH
    if not logs:
        raise LoaderError(
            f"shuffle quality: {num_rows} rows in {num_batches} batches of {batch_size} are too few to tell. "
            "Take a smaller batch_size or more rows."
        )
    return math.exp(sum(logs) / len(logs))


def block_mixing(rows: Tensor, block_rows: int, batch_size: int) -> float:
    """How evenly the rows of every stored block spread over the batches, as under a uniform permutation: 1.

    rows: [N] int64, the row at each position of an epoch. Let c be how many rows of a block come into a batch, for all
    blocks of `block_rows` neighbours and all batches of `batch_size` positions, and e what is expected of it. The
    result is E[X^2] / X^2 for Pearson's X^2 = sum (c - e)^2 / e. In a table with given margins, as this is, a uniform
    permutation has E[X^2] = (num_blocks - 1) (num_batches - 1) N / (N - 1) (Haldane 1940, "The mean and variance of
    chi^2, when used as a test of homogeneity, when expectations are small"), also where e is far below 1.
    """
    num_rows = len(rows)
    num_blocks, num_batches = -(-num_rows // block_rows), -(-num_rows // batch_size)
    cells = (rows // block_rows) * num_batches + torch.arange(num_rows) // batch_size
    # Cells without rows add nothing to sum c^2 / e, so only those with rows are counted.
    cells, counts = cells.unique(return_counts=True)
    block_sizes = torch.full((num_blocks,), float(block_rows), dtype=torch.float64)
    block_sizes[-1] = num_rows - (num_blocks - 1) * block_rows
    batch_sizes = torch.full((num_batches,), float(batch_size), dtype=torch.float64)
    batch_sizes[-1] = num_rows - (num_batches - 1) * batch_size
    expected = block_sizes[cells // num_batches] * batch_sizes[cells % num_batches] / num_rows
    statistic = float((counts**2 / expected).sum()) - num_rows
    if statistic <= 0:  # every block is spread as evenly as can be
        return math.inf
    return (num_blocks - 1) * (num_batches - 1) * num_rows / (num_rows - 1) / statistic
