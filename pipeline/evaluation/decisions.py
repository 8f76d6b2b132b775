"""What comes of deciding by a binary target's score: precision, recall, lift and cost of every threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.models.metrics.pointwise import threshold_counts

FLAGGED_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of the rows, by the highest scores, that the table shows
SHARE_POINTS = 200  # of the curves by share of rows


@dataclass(frozen=True)
class Costs:
    """Of one wrong decision, in any one unit; not negative, and not both 0."""

    false_positive: float = 1.0
    false_negative: float = 1.0

    @property
    def threshold(self) -> float:
        """From which on flagging costs less in the mean, if the score is the chance of label 1 (Elkan, The Foundations
        of Cost-Sensitive Learning, IJCAI 2001, equation 2)."""
        return self.false_positive / (self.false_positive + self.false_negative)


@dataclass(frozen=True)
class Decisions:
    """Rows flagged at each threshold, from none to all.

    A row is flagged if its score is at least the threshold. Counts are sums of weights where rows have some.

    Parameters
    ----------
    threshold
        Distinct scores, falling, after infinity: float64 [n].
    flagged, found
        Rows that are flagged, and those with label 1 among them: float64 [n].

    Examples
    --------
    >>> found = Decisions.of(torch.tensor([0.9, 0.6, 0.6, 0.1]), torch.tensor([1, 0, 1, 0]))
    >>> found.threshold.tolist(), found.flagged.tolist(), found.found.tolist()
    ([inf, 0.8999999761581421, 0.6000000238418579, 0.10000000149011612], [0.0, 1.0, 3.0, 4.0], [0.0, 1.0, 2.0, 2.0])
    >>> round(found.least_cost(Costs(false_positive=1, false_negative=3)), 2)
    0.6
    """

    threshold: Tensor
    flagged: Tensor
    found: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> Decisions:
        """scores [n], labels [n] of 0 and 1, weight [n] or None; errors as of `roc_auc`."""
        threshold, false_positives, true_positives = threshold_counts("thresholds", scores, labels, weight)
        found = true_positives.double()
        return cls(threshold, found + false_positives.double(), found)

    @property
    def rows(self) -> float:
        return float(self.flagged[-1])

    @property
    def positives(self) -> float:
        return float(self.found[-1])

    @property
    def has_both(self) -> bool:
        """Whether there are rows of both labels."""
        return 0 < self.positives < self.rows

    def cost(self, costs: Costs) -> Tensor:
        """Mean cost of a row at each threshold, float64 [n]."""
        wrong = costs.false_positive * (self.flagged - self.found) + costs.false_negative * (
            self.positives - self.found
        )
        return wrong / self.rows

    def least_cost(self, costs: Costs) -> float:
        """The threshold of least cost, infinite where none should be flagged; of several the highest."""
        return float(self.threshold[int(self.cost(costs).argmin())])

    def best_f1(self) -> float:
        """The threshold of the highest F1, twice the found over the flagged and the positives together."""
        return float(self.threshold[int((2 * self.found / (self.flagged + self.positives)).argmax())])

    def place(self, threshold: float) -> int:
        """Which of the points a threshold is: the last whose own is not below it."""
        return int((self.threshold >= threshold).sum()) - 1

    def at(self, threshold: float, costs: Costs) -> dict[str, Any]:
        """A row of a table: what flagging from this threshold on comes to."""
        place = self.place(threshold)
        flagged, found = float(self.flagged[place]), float(self.found[place])
        return {
            "threshold": threshold if math.isfinite(threshold) else None,
            "flagged": flagged / self.rows,
            "precision": found / flagged if flagged else None,
            "recall": found / self.positives if self.positives else None,
            "false_positives": _count(flagged - found),
            "false_negatives": _count(self.positives - found),
            "cost_per_1000_rows": 1000 * float(self.cost(costs)[place]),
        }

    def by_share(self) -> tuple[Tensor, Tensor]:
        """Shares of rows (0, 1] and the recall of flagging so many by falling score: float64 [points] each.

        Among equal scores positives are taken to be spread evenly, so that the order of rows does not count.
        """
        shares = torch.linspace(0, 1, SHARE_POINTS + 1, dtype=torch.float64)[1:]
        wanted = shares * self.rows
        above = torch.searchsorted(self.flagged.contiguous(), wanted).clamp(1, len(self.flagged) - 1)
        start, end = self.flagged[above - 1], self.flagged[above]
        part = ((wanted - start) / (end - start)).clamp(0, 1)
        found = self.found[above - 1] + part * (self.found[above] - self.found[above - 1])
        return shares, found / self.positives

    def precision_recall(self, max_points: int = 400) -> tuple[Tensor, Tensor]:
        """Recall, rising, and precision, thinned to about `max_points` evenly spaced recalls: float64 [points] each.

        Of the points of one recall the first, whose precision is highest, and the last stay.
        """
        recall, precision = self.found[1:] / self.positives, self.found[1:] / self.flagged[1:]
        ends = torch.ones(1, dtype=torch.bool)
        moves = recall.diff() > 0
        keep = (torch.cat([ends, moves]) | torch.cat([moves, ends])).nonzero()[:, 0]
        if len(keep) > max_points:
            places = torch.searchsorted(recall[keep], torch.linspace(0, 1, max_points, dtype=torch.float64))
            keep = keep[places.clamp(max=len(keep) - 1).unique()]
        return recall[keep], precision[keep]


def as_written(threshold: float) -> float:
    """A threshold that is a float32 score, as a number of nine digits that takes the same rows of scores that were
    written, as float32 or as its decimals, and read again: it lies at or below both, above the next lower score.

    >>> from gigabatch.pipeline.evaluation.decisions import as_written
    >>> as_written(float(np.float32(0.6))), as_written(float(np.float32(0.9)))
    (0.6, 0.899999976)
    """
    if not math.isfinite(threshold):
        return threshold
    least = min(Decimal(threshold), Decimal(str(np.float32(threshold))))
    return float(Context(prec=9, rounding=ROUND_FLOOR).plus(least))


def _count(value: float) -> float | int:
    """A whole number as one, for tables."""
    return int(value) if value.is_integer() else value


@dataclass(frozen=True)
class Thresholds:
    """The rows of a table of thresholds, by falling threshold, and in words which of them costs least."""

    rows: Sequence[Mapping[str, Any]]
    text: str


def threshold_table(
    decided: Decisions, costs: Costs, split: str, chosen_on: Decisions | None = None, chosen_split: str = ""
) -> Thresholds:
    """What comes of some thresholds on the rows of `split`.

    Parameters
    ----------
    decided
        Of the rows that the table tells of.
    costs
        Of wrong decisions.
    split
        Name of these rows.
    chosen_on, chosen_split
        Other rows, with both labels, on which the thresholds of least cost and of the best F1 are found; None finds
        them on the rows themselves, which flatters them, and the text says so.
    """
    source, name = (decided, split) if chosen_on is None else (chosen_on, chosen_split)
    least = source.least_cost(costs)
    named = {f"least cost on {name}": as_written(least), f"highest F1 on {name}": as_written(source.best_f1())}
    alone = float(f"{costs.threshold:.9g}")
    score = float(np.float32(alone))  # the one that may be written on either side of it
    named["the costs alone" if costs.threshold != 0.5 else "one half"] = (
        as_written(score) if bool((decided.threshold == score).any()) else alone
    )
    for share in FLAGGED_SHARES:
        place = int((decided.flagged <= share * decided.rows * (1 + 1e-12)).sum()) - 1
        if place > 0:  # of few rows, or equal scores, none is so small a share
            named[f"the highest {100 * share:g} %"] = as_written(float(decided.threshold[place]))
    rows = [{"chosen_by": text} | decided.at(threshold, costs) for text, threshold in named.items()]
    rows.sort(key=lambda row: -(math.inf if row["threshold"] is None else row["threshold"]))
    cost = 1000 * decided.cost(costs)
    own = decided.at(least, costs)["cost_per_1000_rows"]
    what = f"flag a row from a score of {as_written(least):.9g} on" if math.isfinite(least) else "flag no row"
    text = (
        f"Least cost on {name}: {what}. That costs {own:,.4g} per 1,000 rows of {split}; flagging none costs "
        f"{float(cost[0]):,.4g}, all {float(cost[-1]):,.4g}. A false positive costs {costs.false_positive:g}, a false "
        f"negative {costs.false_negative:g} (evaluate.false_positive_cost, evaluate.false_negative_cost)."
    )
    if chosen_on is None:
        text += " It was found on the rows that it is told of, which flatters it."
    return Thresholds(rows, text)
