"""Calibration with intervals: bins of scores with enough rows each, and how sure their share of label 1 is."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit
from torch import Tensor

from gigabatch.pipeline.reports.charts import Calibration

FEWEST_ROWS = 50  # of a bin; with fewer it is joined with its neighbour
FEWEST_BINS = 5  # of equal width, for a chart to show more than a few dots
CONFIDENCE = 0.95


def wilson_interval(
    share: np.ndarray, rows: np.ndarray, confidence: float = CONFIDENCE, units: np.ndarray | None = None
) -> tuple[np.ndarray, ...]:
    """Lower and upper end of a share's interval, float64 [n] each (Wilson, JASA 1927, as statsmodels has it).

    Parameters
    ----------
    share
        Observed, float64 [n] in [0, 1].
    rows
        That it is of, float64 [n] above 0; of weighted rows (sum of w)² / (sum of w²).
    confidence
        Of the interval.
    units
        Where `rows` was found from the spread of so many groups, float64 [n], their number: the fewer they are, the
        wider the interval is, by Student's t (Korn and Graubard, Survey Methodology 1998). None: it is known.

    Examples
    --------
    >>> [round(float(end[0]), 4) for end in wilson_interval(np.array([0.0]), np.array([10.0]))]
    [0.0, 0.2775]
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2) if units is None else student(units, confidence)
    middle = share + z * z / (2 * rows)
    half = z * np.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    scale = 1 + z * z / rows
    return ((middle - half) / scale).clip(0, 1), ((middle + half) / scale).clip(0, 1)


def student(units: Any, confidence: float = CONFIDENCE) -> Any:
    """How many standard errors an interval reaches to either side whose error was found from so many independent
    values, a number or an array; of one and less as of two."""
    return stdtrit(np.maximum(units - 1, 1.0), (1 + confidence) / 2)


def calibration_with_intervals(
    confidence: Tensor,
    hits: Tensor,
    num_bins: int,
    weight: Tensor | None = None,
    negatives: float = 1.0,
    group: Tensor | None = None,
) -> Calibration:
    """Mean score, share of hits and its 95 % interval, by bins of equal width, or of equally many rows where these show
    less than `FEWEST_BINS`, as those of a rare label do. Neighbours are joined until each has `FEWEST_ROWS`.

    Parameters
    ----------
    confidence
        Scores [n] in [0, 1] on the host.
    hits
        [n] of 0 and 1.
    num_bins
        Before they are joined; a bin is closed above.
    weight
        [n] or None. A bin's rows are then (sum of w)² / (sum of w²).
    negatives
        How often a row that is no hit counts in the mean score and the share of hits. Rows and intervals are of the
        rows that are there: an interval's ends are moved as the share is.
    """
    scores, found = confidence.double().numpy(), hits.double().numpy()
    mass = np.ones(len(scores)) if weight is None else weight.double().numpy()
    served = mass * np.where(found > 0, 1.0, negatives)
    parts = np.stack([mass, mass * mass, served * scores, mass * found, served])
    shares = np.linspace(0, 1, num_bins + 1)[1:-1]
    joined, place = _joined(np.searchsorted(shares, scores), parts)
    if len(joined) < FEWEST_BINS and len(known := scores[mass > 0]):
        edges = np.unique(np.quantile(known, shares, method="inverted_cdf"))
        joined, place = max(
            (joined, place), _joined(np.searchsorted(edges, scores), parts), key=lambda one: len(one[0])
        )
    if not joined:
        return Calibration((), (), ())
    total, _, score, hit, of_served = np.array(joined).T
    share = (hit / total).clip(0, 1)
    rows, units = np.array([_rows(own) for own in joined]), None
    if group is not None:
        some = mass > 0
        rows, units = _of_groups(place[some], mass[some], found[some], group.numpy()[some], share, rows)
    ends = share, *wilson_interval(share, rows, units=units)
    share, low, high = (end if negatives == 1 else end / (end + (1 - end) * negatives) for end in ends)
    return Calibration(score / of_served, share, total, low, high)


def _of_groups(
    bins: np.ndarray, mass: np.ndarray, found: np.ndarray, group: np.ndarray, share: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """By bin how many independent rows its `rows` tell as much as, and how many groups of one weight it has.

    bins, mass, found, group: of each row its bin, weight, whether it is a hit, and group; share, rows: of each bin.
    """
    names = np.unique(group, return_inverse=True)[1]
    pairs, pair = np.unique(bins * (names.max(initial=0) + 1) + names, return_inverse=True)
    bin_of = pairs // (names.max(initial=0) + 1)
    total, missed = np.bincount(pair, mass), np.bincount(pair, mass * (found - share[bins]))
    sums, squares, spread = np.array(
        [np.bincount(bin_of, part, minlength=len(share)) for part in (total, total**2, missed**2)]
    )
    groups = sums**2 / squares
    alone = share * (1 - share) * sums**2 / rows  # what the spread would be, were rows independent
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = spread * groups / (groups - 1)
        several = groups > 1 + 1e-9
        pooled = spread[several].sum() / alone[several].sum()
        effect = np.where(alone > 0, spread / alone, pooled)  # of hits that are all alike that of all bins
        told = np.where(several, rows / effect, 1.0)
    return np.fmin(np.fmax(told, groups), rows), groups


def _joined(bins: np.ndarray, parts: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Sums of the parts by bin, of neighbours that are joined, and of each row which of these it is in."""
    joined: list[np.ndarray] = []
    open_bin, place = np.zeros(len(parts)), list[int]()
    for own in np.stack([np.bincount(bins, part) for part in parts], axis=1):
        open_bin = open_bin + own
        place.append(len(joined))
        if _rows(open_bin) >= FEWEST_ROWS:
            joined.append(open_bin)
            open_bin = np.zeros(len(parts))
    if open_bin[0] > 0 and joined:
        joined[-1] = joined[-1] + open_bin
    elif open_bin[0] > 0:
        joined.append(open_bin)
    return joined, np.minimum(place, max(len(joined) - 1, 0))[bins]


def _rows(sums: np.ndarray) -> float:
    return float(sums[0] ** 2 / sums[1]) if sums[1] > 0 else 0.0
