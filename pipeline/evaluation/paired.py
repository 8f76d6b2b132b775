"""Whether one set of predictions is worse than another on the same rows by more than the noise.

A metric of n rows is to first order a sum of n influence values, whose spread is its standard error (the delta method;
Hampel, JASA 1974). Of the difference of two predictions of the same rows these are subtracted row by row, so what both
share does not count as noise. For AUC this is the test of DeLong, DeLong and Clarke-Pearson (Biometrics 1988). Rows of
a group are not independent: their values are added first. Unlike a bootstrap this needs one pass and no seed.

Rows vary less about their own mean than about the true one, the more so the fewer there are and the more of all weight
one has: that is made up for (`of_sample`), in each label apart where a metric compares two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.models.metrics.pointwise import PROBABILITY_CLIP
from gigabatch.models.metrics.ranking import RankedGroups
from gigabatch.pipeline.evaluation.reliability import student
from gigabatch.pipeline.evaluation.told import NOISE

SMALLEST = 1e-6  # of a metric's size: less is float32's rounding
ALONE = 1e-6  # more units than one: fewer are one row or group that has all weight, but for what rounding tells
MORE_IS_BETTER = frozenset({"auc", "mrr"})
METRICS = {"binary": ("logloss", "auc", "mrr"), "multiclass": ("logloss",), "regression": ("rmse",)}


@dataclass(frozen=True)
class Labelled:
    """The rows that predictions are compared on: task and labels [n] of a target; weight [n] and group [n], or None."""

    task: str
    labels: Tensor
    weight: Tensor | None = None
    group: Tensor | None = None

    @property
    def mass(self) -> Tensor:
        """Weight of each row, float64 [n]."""
        return torch.ones(len(self.labels), dtype=torch.float64) if self.weight is None else self.weight.double()

    @property
    def units(self) -> float:
        """Of how many groups of one weight, or rows where there are none, a standard error is as certain as that of
        these (Kish 1965, "Survey Sampling", section 11.7); of a binary target those of its rarer label."""
        if self.task != "binary":
            return units_of(self.mass, self.group)
        return min(units_of(self.mass * (self.labels == label), self.group) for label in (0, 1))

    def of(self, chosen: Tensor) -> Labelled:
        """Those of bool [n]."""
        labels, weight, group = (
            None if part is None else part[chosen] for part in (self.labels, self.weight, self.group)
        )
        assert labels is not None
        return Labelled(self.task, labels, weight, group)


def units_of(mass: Tensor, group: Tensor | None) -> float:
    """(sum of w)² / (sum of w²) of the weights [n] of rows, or of groups: float64; 0 where nothing weighs anything."""
    if group is not None:
        mass = group.unique(return_inverse=True)[1].bincount(mass)
    squares = float(mass.square().sum())
    return float(mass.sum()) ** 2 / squares if squares > 0 else 0.0


def of_sample(influence: Tensor, mass: Tensor, group: Tensor | None = None) -> Tensor:
    """Influence values [n] of rows of these weights, so that their squares, or those of their sums by group, add up to
    the variance without bias where all vary alike (HC2 of MacKinnon and White, Journal of Econometrics 1985, of a mean:
    n / (n - 1) of equal weights); NaN of one row or group."""
    share = mass / mass.sum()
    of = torch.arange(len(mass)) if group is None else group.unique(return_inverse=True)[1]
    shares = of.bincount(share)
    if units_of(shares, None) <= 1 + ALONE:
        return torch.full_like(influence, math.nan)
    # x less the mean of all has the variance of x times this.
    left = (1 - shares).square() + (shares.square().sum() - shares.square())
    return influence / left.sqrt()[of]


def beyond_noise(error: float, units: float) -> float:
    """From which size on a difference is told: `NOISE` standard errors, more where they were found from few units, by
    Student's t at 95 %."""
    return max(NOISE, float(student(units))) * error


@dataclass(frozen=True)
class Difference:
    """A metric of the model and of a baseline; gain: the model's less the baseline's, turned so that more is better;
    error: its standard error; units: rows or groups of one weight that it was found from, of AUC of the rarer label."""

    metric: str
    model: float
    baseline: float
    gain: float
    error: float
    units: float

    @property
    def is_worse(self) -> bool:
        """Whether the model is worse by more than the noise."""
        least = SMALLEST * max(abs(self.model), abs(self.baseline))
        return self.gain < -max(beyond_noise(self.error, self.units), least)


def difference(metric: str, model: Tensor, baseline: Tensor, rows: Labelled) -> Difference | None:
    """The paired difference of a metric; None where it cannot be told (AUC of one class or of a single row of one, a
    single row or group).

    Parameters
    ----------
    metric
        logloss, auc, mrr or rmse.
    model, baseline
        Predictions of all rows, [n] or [n, classes]; for auc and mrr any scores.
    rows
        What they predict.

    Examples
    --------
    >>> labels = torch.tensor([0.0, 1.0] * 50)
    >>> found = difference("logloss", torch.full((100,), 0.9), torch.full((100,), 0.5), Labelled("binary", labels))
    >>> round(found.model, 3), round(found.baseline, 3), found.is_worse
    (1.204, 0.693, True)
    """
    found = [influence_of(metric, scores, rows) for scores in (model, baseline)]
    (own, of_model, units), (other, of_baseline, _) = found
    error = float((of_model - of_baseline).norm())
    if not all(map(math.isfinite, (own, other, error))):
        return None
    sign = 1 if metric in MORE_IS_BETTER else -1
    return Difference(metric, own, other, sign * (own - other), error, units)


def with_error(metric: str, scores: Tensor, rows: Labelled) -> tuple[float, float]:
    """The metric and its standard error; NaN where one cannot be told, as of `difference`."""
    value, influence, _ = influence_of(metric, scores, rows)
    return value, float(influence.norm()) if math.isfinite(value) else math.nan


def influence_of(metric: str, scores: Tensor, rows: Labelled) -> tuple[float, Tensor, float]:
    """The metric (logloss, auc, mrr or rmse), the influence on it of each row or group that weighs something, float64,
    as `of_sample`, and of how many units that is."""
    if metric == "mrr":
        assert rows.group is not None
        ranked = RankedGroups(scores, rows.labels, rows.group, rows.weight)
        share, ranks = ranked.share_of_ranks(), ranked.reciprocal_rank()
        share, ranks = share[share > 0], ranks[share > 0]
        value = (ranks * share).sum() / share.sum()
        return float(value), of_sample(share * (ranks - value) / share.sum(), share), units_of(share, None)
    if rows.weight is not None:  # rows of weight 0 would be taken for rows that are alike, and the error for less
        scores, rows = scores[rows.weight > 0], rows.of(rows.weight > 0)
    mass = rows.mass
    units = rows.units if metric == "auc" else units_of(mass, rows.group)
    if metric == "auc":
        value, influence = _auc(scores.double(), rows.labels == 1, mass)
        for label in (0, 1):
            own = rows.labels == label
            influence[own] = of_sample(influence[own], mass[own], None if rows.group is None else rows.group[own])
    else:
        loss = _losses(scores, rows)
        mean = (loss * mass).sum() / mass.sum()
        influence = of_sample(mass * (loss - mean) / mass.sum(), mass, rows.group)
        value = mean
        if metric == "rmse":
            value = mean.sqrt()
            influence = influence / (2 * value) if value > 0 else influence
    if rows.group is not None:
        group = rows.group.unique(return_inverse=True)[1]
        influence = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, influence)
    return float(value), influence, units


def _losses(scores: Tensor, rows: Labelled) -> Tensor:
    """The loss of each row, float64: log loss, or squared error."""
    if rows.task == "regression":
        return (scores.double() - rows.labels.double()).square()
    if rows.task == "multiclass":
        chance = scores.gather(1, rows.labels.long()[:, None])[:, 0].double()
    else:
        chance = torch.where(rows.labels == 1, scores.double(), 1 - scores.double())
    return -chance.clamp(PROBABILITY_CLIP, 1 - PROBABILITY_CLIP).log()


def _auc(scores: Tensor, positive: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """AUC and DeLong's structural components as influence values."""

    def share_below(asked: Tensor, others: Tensor, weight: Tensor) -> Tensor:
        """Of each of `asked`: the share of `others` below it, a tie counting half."""
        others, order = others.sort()
        below = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)])
        places = (torch.searchsorted(others, asked, right=right) for right in (False, True))
        return sum(below[place] for place in places) / (2 * below[-1])

    of_positives = share_below(scores[positive], scores[~positive], mass[~positive])
    of_negatives = 1 - share_below(scores[~positive], scores[positive], mass[positive])
    value = (of_positives * mass[positive]).sum() / mass[positive].sum()
    influence = torch.zeros_like(mass)
    influence[positive] = mass[positive] / mass[positive].sum() * (of_positives - value)
    influence[~positive] = mass[~positive] / mass[~positive].sum() * (of_negatives - value)
    return value, influence
