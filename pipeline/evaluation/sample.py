"""Samples of rows that are the same each time: evenly spread over a table, and of whole groups where it has them."""

from __future__ import annotations

import torch
from torch import Tensor

from gigabatch.loaders.tables.packed import PackedTable


def spread(count: int, most: int) -> Tensor:
    """`most` of the numbers 0 ... count - 1, or all of them where there are fewer: int64, rising, evenly spread.

    The first and the last are among them. In whole numbers, since float32 has none between 2^24 and 2^24 + 2.

    Examples
    --------
    >>> spread(11, 3).tolist(), spread(3, 5).tolist()
    ([0, 5, 10], [0, 1, 2])
    """
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // max(most - 1, 1)


def spread_rows(table: PackedTable, most: int) -> Tensor:
    """Row numbers of an evenly spread sample of about `most` rows, in their order; with groups, whole groups."""
    if len(table) <= most or not table.schema.has_group:
        return spread(len(table), most)
    group = table.words[:, -1].long().cpu()
    count = int(group.max()) + 1
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[spread(count, max(count * most // len(table), 1))] = True
    return chosen[group].nonzero()[:, 0]
