"""Edges of quantile bins, from exact ranks: the ends of a piecewise-linear encoding of a float column.

The ranks that are looked up follow from the first pass's histogram alone, and the values that stand there are exact, so
the edges do not depend on partitions.
"""

from __future__ import annotations

import numpy as np

from gigabatch.features.exact.quantiles import Counts, RadixHistogram

RANKS_PER_BIN = 4  # so that an edge is at most a quarter of a bin from where it would leave equal shares
ROWS_PER_VALUE = 30  # on average, where each value is an edge, such as a year of epidemics: fewer teach their noise


def edge_ranks(histogram: RadixHistogram, bins: int, distinct: int = 0) -> np.ndarray:
    """Ranks whose values `bin_edges` chooses from: int64, ascending, without repeats.

    They are those of evenly spaced quantiles; the same of the values outside the histogram's bins that hold more than a
    share of 1 / `bins`, since a value as frequent as that would leave one quantile to all others (a capital gain is 0
    in nine rows of ten); and the first and last of each bin where these are few, so that the next pass looks into all.
    distinct: how many values may each be an edge of their own.
    """
    total = histogram.total
    distinct = min(distinct, total // ROWS_PER_VALUE)
    if not total or not bins:
        return np.empty(0, np.int64)
    steps = RANKS_PER_BIN * bins
    spread = np.arange(steps + 1, dtype=np.int64)
    found = [spread * (total - 1) // steps]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(histogram.counts)])
    light = histogram.counts * bins <= total
    if light.any() and not light.all():
        counts = histogram.counts[light]
        ends = np.cumsum(counts)
        wanted = spread * (int(ends[-1]) - 1) // steps
        place = np.searchsorted(ends, wanted, side="right")
        found.append(before[:-1][light][place] + wanted - (ends - counts)[place])
    if len(histogram.bins) <= max(RANKS_PER_BIN * bins, distinct):
        found += [before[:-1], before[1:] - 1]
    return np.unique(np.concatenate(found))


def bin_edges(
    ranks: np.ndarray, values: np.ndarray, bins: int, looked_into: Counts | None = None, distinct: int = 0
) -> tuple[float, ...]:
    """At most `bins` + 1 or `distinct` ascending edges; none where the column has fewer than two values.

    ranks: as `edge_ranks` gave them; values: float64, what stands there. looked_into: of the last pass; where it
    counted all of the column's values and they are at most `bins` + 1, or `distinct` of `ROWS_PER_VALUE` rows each on
    average, each is an edge. Else a value that holds at least 1.6 times the share of a bin is one, and the other edges
    leave equally many of the remaining rows between them, as near as the values that were looked up tell.
    """
    if not len(values):
        return ()
    if looked_into is not None and looked_into.exact and looked_into.total == int(ranks[-1]) + 1:
        distinct = min(distinct, looked_into.total // ROWS_PER_VALUE)
        if bins and 1 < looked_into.num_values <= max(bins + 1, distinct):
            return tuple(looked_into.edges()[0].tolist())
    edges, first = np.unique(values, return_index=True)
    last = np.append(first[1:], len(values)) - 1
    if len(edges) > bins + 1:
        lowest, highest = ranks[first], ranks[last]
        kept = (highest - lowest) * bins > int(ranks[-1])
        kept[[0, -1]] = True
        between = np.concatenate([np.zeros(1, np.int64), np.cumsum(lowest[1:] - highest[:-1])])
        more = bins + 1 - int(kept.sum())
        if more > 0:
            wanted = between[-1] * np.arange(1, more + 1) / (more + 1)
            kept[np.searchsorted(between, wanted)] = True
        edges = edges[kept]
    return tuple(edges.tolist()) if len(edges) > 1 else ()
