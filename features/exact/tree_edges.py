"""Edges of bins at the splits of a decision tree that sees one column alone (Gorishniy, Rubachev and Babenko 2022, "On
Embeddings for Numerical Features in Tabular Deep Learning", section 3.2.2).

The tree sees cells of the column, in ascending order, and of each the exact sums of its rows. So it depends on neither
the order of rows nor partitions.
"""

from __future__ import annotations

import heapq

import numpy as np

LEAF_ROWS = 64  # as the example of `rtdl_num_embeddings` has it
NOISE = 1e-12  # of the sums' own differences: a gain below it may be rounding


def tree_splits(rows: np.ndarray, weights: np.ndarray, sums: np.ndarray, most_leaves: int) -> list[int]:
    """Where a tree that is grown best gain first cuts a line of cells.

    Parameters
    ----------
    rows
        int64 [C]: of each cell, from 1.
    weights
        float64 [C]: their sum of weights.
    sums
        float64 [C, O]: of each output, their sum of weight times label.
    most_leaves
        The tree stops at so many leaves, and where no cut lessens the squared error (over outputs that are 0 and 1 it
        is Gini's impurity) or each leaves fewer than `LEAF_ROWS` rows on a side.

    Returns
    -------
    list of int
        Ascending; c for a cut between the cells c - 1 and c. Of equal gains the lowest cut is taken.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.features.exact.tree_edges import tree_splits
    >>> rows = np.array([100, 100, 100])
    >>> tree_splits(rows, rows * 1.0, np.array([[10.0], [10.0], [90.0]]), most_leaves=8)
    [2]
    """
    known = weights > 0  # a row without weight teaches nothing, and still counts as one
    means = sums[known].sum(axis=0) / weights.sum() if known.any() else np.zeros(sums.shape[1])
    centred = sums - weights[:, None] * means
    least = NOISE * float((centred[known] ** 2 / weights[known, None]).sum())
    rows_before, weight_before, sum_before = (
        np.concatenate([np.zeros_like(part[:1]), np.cumsum(part, axis=0)]) for part in (rows, weights, centred)
    )
    leaves: list[tuple[float, int, int, int]] = []

    def consider(start: int, end: int) -> None:
        """Offer the best cut of these cells, if there is one."""
        cuts = np.arange(start + 1, end)
        fewest = np.minimum(rows_before[cuts] - rows_before[start], rows_before[end] - rows_before[cuts])
        left, right = weight_before[cuts] - weight_before[start], weight_before[end] - weight_before[cuts]
        fits = (fewest >= LEAF_ROWS) & (left > 0) & (right > 0)
        if not fits.any():
            return
        cuts, left, right = cuts[fits], left[fits, None], right[fits, None]
        apart = (sum_before[cuts] - sum_before[start]) / left - (sum_before[end] - sum_before[cuts]) / right
        gains = (left * right / (left + right) * apart**2).sum(axis=1)
        best = int(gains.argmax())
        if gains[best] > least:
            heapq.heappush(leaves, (-float(gains[best]), start, int(cuts[best]), end))

    consider(0, len(rows))
    found: list[int] = []
    while leaves and len(found) + 1 < most_leaves:
        _, start, cut, end = heapq.heappop(leaves)
        found.append(cut)
        consider(start, cut)
        consider(cut, end)
    return sorted(found)
