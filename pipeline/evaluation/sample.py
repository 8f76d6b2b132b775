"""Samples of rows that are the same each time: spread over a table, and of whole groups where it has them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.order.order import GOLDEN, splitmix64
from gigabatch.loaders.tables.packed import PackedTable, unpack

RARER_PART = 10


def spread(count: int, most: int) -> Tensor:
    """`most` of the numbers 0 ... count - 1, or all of them where there are fewer: int64, rising, one of each stratum.

    Strata are as long as one another. Which number of a stratum is taken follows from a hash, since rows at equal
    distances meet the period of a file: of one that has a positive and a negative in turn, they are all positives.

    Examples
    --------
    >>> found = spread(12, 3).tolist()
    >>> [number // 4 for number in found], spread(3, 5).tolist()
    ([0, 1, 2], [0, 1, 2])
    """
    if count <= most:
        return torch.arange(count)
    bounds = torch.arange(most + 1) * count // most
    return bounds[:-1] + hashed(most) % (bounds[1:] - bounds[:-1])


def hashed(count: int) -> Tensor:
    """A number from 0 to 2^62 - 1 for each of 0 ... count - 1, without a pattern: int64."""
    return splitmix64(torch.arange(1, count + 1) * GOLDEN) & ((1 << 62) - 1)


def equal_parts(values: np.ndarray, parts: int) -> np.ndarray:
    """Of each value [n > 0] which of `parts` parts of about as many rows it is in, in the values' order: int64 [n].

    Equal values are in one part, so there may be fewer.

    Examples
    --------
    >>> equal_parts(np.array([5.0, 1.0, 3.0, 2.0, 2.0, 9.0]), 3).tolist()
    [2, 0, 1, 0, 0, 2]
    """
    ends = np.sort(values)[np.maximum(np.arange(1, parts) * len(values) // parts - 1, 0)]
    return np.searchsorted(np.unique(ends), values)


def spread_rows(table: PackedTable, most: int) -> Tensor:
    """Row numbers of a spread sample of about `most` rows, in their order; with groups, whole groups.

    Rows of weight 0, and groups of such rows alone, are in no sample: they would leave those that count few places.
    """
    weight = unpack(table.schema, table.words).weight
    counted = None if weight is None else (weight > 0).cpu()
    if not table.schema.has_group:
        if counted is None:
            return spread(len(table), most)
        rows = counted.nonzero()[:, 0]
        return rows[spread(len(rows), most)]
    if counted is None and len(table) <= most:
        return torch.arange(len(table))
    group = table.words[:, table.schema.group_word].long().cpu()
    sizes = group.bincount()
    if counted is not None:
        sizes[group[counted].bincount(minlength=len(sizes)) == 0] = 0
    groups, rows_of_these = sizes.nonzero()[:, 0], int(sizes.sum())
    chosen = torch.zeros(len(sizes), dtype=torch.bool)
    chosen[groups[spread(len(groups), max(len(groups) * most // max(rows_of_these, 1), 1))]] = True
    return chosen[group].nonzero()[:, 0]


def rows_by_label(table: PackedTable, most: int) -> Tensor:
    """`spread_rows`, but of one binary target without groups a label that is rarer has a part in `RARER_PART` of the
    rows, or all that it has: an AUC is the same at any share of label 1, and as exact as its rarer label is frequent.

    Rising. They are for an AUC alone: their means are not those of the split.
    """
    rows = spread_rows(table, most)
    if table.schema.has_group or len(rows) < most or [target.task for target in table.schema.targets] != ["binary"]:
        return rows
    batch = unpack(table.schema, table.words)
    counted = torch.ones_like(batch.targets[0], dtype=torch.bool) if batch.weight is None else batch.weight > 0
    rarer, others = sorted(((counted & (batch.targets[0] == label)).cpu().nonzero()[:, 0] for label in (0, 1)), key=len)
    wanted = min(len(rarer), most // RARER_PART)
    if len(rarer) * most >= wanted * (len(rarer) + len(others)):
        return rows
    return torch.cat([rarer[spread(len(rarer), wanted)], others[spread(len(others), most - wanted)]]).sort().values


def rows_of_rarest_label(table: PackedTable) -> int | None:
    """How many rows have that label of a binary target that the fewest have; None without a binary target."""
    batch = unpack(table.schema, table.words)
    ones = [
        int((labels == 1).sum())
        for target, labels in zip(table.schema.targets, batch.targets, strict=True)
        if target.task == "binary"
    ]
    return min((min(count, len(table) - count) for count in ones), default=None)
