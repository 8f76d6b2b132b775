"""Metrics of rankings, and those of click models, on the device of their inputs; sums in float64.

Rows are grouped: scores [n], labels [n] of 0 and 1 in any dtype and groups [n] of integers, where rows of a group need
not lie together. `RankedGroups` sorts them once and gives every metric by group; a group without a positive is NaN, or
left out. Where each query has one positive, `PositiveRanks` needs no sort.

Ties. Metrics of the first k places are expected values over all orders of tied rows, as in scikit-learn's `ndcg_score`
(McSherry and Najork, ECIR 2008): a scorer that gives every row the same score has what a random one has on average.
The reciprocal rank is that of the mean rank of tied rows, which is at most the expected one.
Nothing depends on the order of rows, and of the scores only on their order.

Shapes: n rows, G groups, T runs of equal scores within a group, Q queries, K other candidates of a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.models.errors import ModelError, require
from gigabatch.models.metrics.pointwise import as_positives, check_rows, log_loss


class GroupAuc(NamedTuple):
    """auc: weighted mean of the groups' AUC. left_out: share of the rows in groups of one class. Both float64 []."""

    auc: Tensor
    left_out: Tensor


def gauc(scores: Tensor, labels: Tensor, groups: Tensor, weight: Tensor | None = None) -> GroupAuc:
    """Group AUC: the mean of each group's AUC, weighted by its rows, or by the sum of their weights [n].

    Zhou et al., "Deep Interest Network", arXiv 1706.06978, section on metrics. Groups of one class, which have no AUC,
    are left out; NaN if that is all of them.
    """
    ranked = RankedGroups(scores, labels, groups, weight)
    auc = ranked.auc()
    has_both = ~auc.isnan()
    mass = ranked.weight.double()
    left_out = 1 - mass[has_both].sum() / mass.sum()
    return GroupAuc((auc * mass)[has_both].sum() / mass[has_both].sum(), left_out)


def grouped_mrr(scores: Tensor, labels: Tensor, groups: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean reciprocal rank of the best-ranked positive, over the groups that have one.

    Tied rows have their mean rank.

    Parameters
    ----------
    scores : Tensor
        [n] floats; only their order within a group counts.
    labels : Tensor
        [n] of 0 and 1, any dtype.
    groups : Tensor
        [n] integers; rows of a group need not lie together.
    weight : Tensor or None, default None
        [n], not negative: a group counts by the mean weight of its rows. None counts all groups alike.

    Returns
    -------
    Tensor
        0-d float64; NaN if no group of some weight has a positive.

    Raises
    ------
    ModelError
        As `RankedGroups`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.metrics.ranking import grouped_mrr
    >>> scores, labels = torch.tensor([0.9, 0.5, 0.7, 0.2]), torch.tensor([1, 0, 0, 1])
    >>> grouped_mrr(scores, labels, groups=torch.tensor([1, 1, 2, 2])).item()
    0.75
    """
    ranked = RankedGroups(scores, labels, groups, weight)
    share = ranked.share_of_ranks()
    return (ranked.reciprocal_rank() * share).sum() / share.sum()


def normalised_entropy(probabilities: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Log loss over that of always predicting the share of positives: 1 tells nothing, 0 is perfect.

    He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014, equation 1. probabilities:
    P(1) [n]; weight [n] or None. 0-d float64; NaN if there is only one class.
    """
    loss = log_loss(probabilities, labels, weight)
    positive = (labels == 1).double()
    weight = torch.ones_like(positive) if weight is None else weight.double()
    rate = (positive * weight).sum() / weight.sum()
    entropy = -(torch.special.xlogy(rate, rate) + torch.special.xlog1py(1 - rate, -rate))
    return torch.where(entropy > 0, loss / entropy, torch.nan)


def log_chance_of_absence(scores: Tensor, k: int) -> Tensor:
    """Of a matrix of scores [Q, N], a query by row and an item by column: float64 [N], the logarithm of each item's
    chance to be among the first k of no query.

    1 - mean(exp) of it, summed over blocks of queries, is the coverage: the expected share of the items that are among
    the first k of any query.

    A score of minus infinity marks an item that is no candidate of the query.
    """
    _check_k(k)
    last = scores.topk(min(k, scores.shape[1]), dim=1).values[:, -1:]
    above, level = scores > last, (scores == last) & (last > -torch.inf)
    chance = chance_of_places(above.sum(1), level.sum(1).clamp_min(1), k)
    log_absent = scores.new_zeros((), dtype=torch.float64).where(~level, (-chance).log1p()[:, None])
    return log_absent.where(~above, -torch.inf).sum(0)


class RankedGroups:
    """Rows of each group by falling score, as runs of equal scores. Groups in ascending order of their numbers.

    By run, int64 [T]: group_of_run, start (rows of its group above it), size (rows), positives (among them). By group,
    int64 [G]: num_rows, num_positives; weight, the sum of its rows' weights, float64 [G] where rows have weights.

    Parameters
    ----------
    scores : Tensor
        [n] floats; only their order within a group counts.
    labels : Tensor
        [n] of 0 and 1, any dtype.
    groups : Tensor
        [n] integers; rows of a group need not lie together.
    weight : Tensor or None, default None
        [n], not negative. Of `auc` alone: a rank counts rows, whatever they weigh.

    Raises
    ------
    ModelError
        For no rows, other shapes, scores or weights that are NaN, labels other than 0 and 1, groups that are floats.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.metrics.ranking import RankedGroups
    >>> scores, labels = torch.tensor([0.9, 0.5, 0.7, 0.2]), torch.tensor([1, 0, 0, 1])
    >>> ranked = RankedGroups(scores, labels, groups=torch.tensor([1, 1, 2, 2]))
    >>> ranked.hit_rate(1).tolist(), ranked.recall(2).tolist()
    ([1.0, 0.0], [1.0, 1.0])
    """

    def __init__(self, scores: Tensor, labels: Tensor, groups: Tensor, weight: Tensor | None = None) -> None:
        check_rows("ranking", scores, labels, weight)
        positive = as_positives("ranking", labels)
        if groups.shape != scores.shape or groups.is_floating_point():
            raise ModelError(
                f"ranking: groups must be integers {list(scores.shape)}, found {groups.dtype} {list(groups.shape)}."
            )
        order = scores.argsort(descending=True, stable=True)
        order = order[groups[order].argsort(stable=True)]
        scores, positive, groups = scores[order], positive[order].long(), groups[order]
        new_group = _starts_run(groups)
        new_run = new_group | _starts_run(scores)
        group_of_row = new_group.cumsum(0) - 1
        run_of_row = new_run.cumsum(0) - 1
        first_of_run, first_of_group = new_run.nonzero()[:, 0], new_group.nonzero()[:, 0]
        self.group_of_run = group_of_row[first_of_run]
        self.start = first_of_run - first_of_group[self.group_of_run]
        self.size = torch.bincount(run_of_row)
        self.positives = torch.zeros_like(self.size).index_add_(0, run_of_row, positive)
        self.num_rows = torch.bincount(group_of_row)
        self.num_positives = self._sum(self.positives)
        # Counts stay whole numbers, and so exact, where no row has a weight.
        self._masses, self.weight = (self.positives, self.size - self.positives), self.num_rows
        if weight is not None:
            none, mass = weight.new_zeros(len(self.size), dtype=torch.float64), weight.double()[order]
            masses = [none.index_add(0, run_of_row, mass * of_class) for of_class in (positive, 1 - positive)]
            self.weight = self._sum(masses[0] + masses[1])
            self._masses = self._shares(masses[0]), self._shares(masses[1])

    def hit_rate(self, k: int) -> Tensor:
        """Chance that a positive is among the first k rows, float64 [G]; NaN of a group without a positive.

        Of a run that reaches over place k, r of its m rows are above: none of its p positives is with the chance
        C(m - p, r) / C(m, r).
        """
        _check_k(k)
        places = (k - self.start).clamp(0).minimum(self.size).double()
        size, positives = self.size.double(), self.positives.double()
        others = size - positives
        log_none = (others + 1).lgamma() - (others - places + 1).clamp_min(1).lgamma()
        log_none += (size - places + 1).lgamma() - (size + 1).lgamma()
        none = torch.where(self.positives == 1, 1 - places / size, log_none.exp())  # exact for one positive
        none = torch.where(places > others, 0.0, none).where(self.positives > 0, 1.0)
        none_of_group = none.new_ones(len(self.num_rows)).scatter_reduce_(0, self.group_of_run, none, "prod")
        return self._of_groups_with_positives(1 - none_of_group)

    def recall(self, k: int) -> Tensor:
        """Expected share of the positives that are among the first k rows, float64 [G]; NaN where there are none."""
        return self._expected_hits(k) / self.num_positives

    def precision(self, k: int) -> Tensor:
        """Expected positives among the first k rows, over k, float64 [G]; NaN of a group without a positive."""
        return self._of_groups_with_positives(self._expected_hits(k) / k)

    def ndcg(self, k: int) -> Tensor:
        """Expected gain of the first k rows over that of the best order, float64 [G]; NaN where no row is positive."""
        _check_k(k)
        gains = gains_up_to(min(k, int(self.num_rows.max())), self.start.device)
        found = self._sum(self.positives * mean_gain(self.start, self.size, gains))
        return found / gains[self.num_positives.clamp_max(len(gains) - 1)]

    def auc(self) -> Tensor:
        """Chance that a positive outranks a negative, a tie counting half, float64 [G]; NaN of a group of one class."""
        positives, negatives = self._masses
        above = positives.cumsum(0) - positives
        first_of_group = torch.searchsorted(self.group_of_run, torch.arange(len(self.num_rows), device=above.device))
        above = above - above[first_of_group][self.group_of_run]
        twice_won = self._sum(negatives * (2 * above + positives))
        pairs = self._sum(positives) * self._sum(negatives)
        return torch.where(pairs > 0, twice_won.double() / (2 * pairs), torch.nan)

    def reciprocal_rank(self) -> Tensor:
        """1 / mean rank of the best-ranked positive, float64, of the groups that have one only."""
        has_positive = self.positives > 0
        rank = self.start + (self.size + 1).double() / 2
        best = rank.new_full((len(self.num_rows),), torch.inf)
        best.scatter_reduce_(0, self.group_of_run[has_positive], rank[has_positive], "amin")
        return best[best.isfinite()].reciprocal()

    def share_of_ranks(self) -> Tensor:
        """How much each of `reciprocal_rank` counts, float64: the mean weight of its group's rows, else 1."""
        return (self.weight.double() / self.num_rows)[self.num_positives > 0]

    def _expected_hits(self, k: int) -> Tensor:
        _check_k(k)
        return self._sum(self.positives * chance_of_places(self.start, self.size, k))

    def _sum(self, by_run: Tensor) -> Tensor:
        return by_run.new_zeros(len(self.num_rows)).index_add_(0, self.group_of_run, by_run)

    def _shares(self, by_run: Tensor) -> Tensor:
        """Of the sum of the group, float64 [T]; 0 where that is 0.

        A group's AUC depends on these alone, and they are of one size in all groups: in a sum that runs over weights, a
        group would be lost in the roundings of the heavy ones before it.
        """
        total = self._sum(by_run)
        return by_run / torch.where(total > 0, total, 1.0)[self.group_of_run]

    def _of_groups_with_positives(self, by_group: Tensor) -> Tensor:
        return by_group.where(self.num_positives > 0, torch.nan)


@dataclass(frozen=True, eq=False)
class PositiveRanks:
    """Where the one positive of each query stands: better, tied [Q] int64, the other candidates above it and level."""

    better: Tensor
    tied: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> PositiveRanks:
        """From scores [Q, 1 + K], those of the positives first; `ModelError` for another shape or NaN."""
        if scores.dim() != 2 or scores.shape[1] < 1:
            raise ModelError(f"ranks: scores must be [queries, 1 + candidates], found {list(scores.shape)}.")
        require(not bool(scores.isnan().any()), f"ranks: {int(scores.isnan().sum())} of the scores are NaN.")
        positive, others = scores[:, :1], scores[:, 1:]
        return cls((others > positive).sum(1), (others == positive).sum(1))

    @classmethod
    def concat(cls, parts: list[PositiveRanks]) -> PositiveRanks:
        """The queries of `parts` one after another."""
        return cls(torch.cat([part.better for part in parts]), torch.cat([part.tied for part in parts]))

    def hit_rate(self, k: int) -> Tensor:
        """Chance that the positive is among the first k, float64 [Q]; with one positive this is recall@k too."""
        _check_k(k)
        return chance_of_places(self.better, self.tied + 1, k)

    def ndcg(self, k: int) -> Tensor:
        """Expected 1 / log2(1 + rank) of a positive among the first k, else 0: float64 [Q]."""
        _check_k(k)
        most = int((self.better + self.tied).max()) + 1 if len(self.better) else 1
        return mean_gain(self.better, self.tied + 1, gains_up_to(min(k, most), self.better.device))

    def reciprocal_rank(self) -> Tensor:
        """1 / mean rank, float64 [Q]."""
        return (self.better + self.tied.double() / 2 + 1).reciprocal()


def chance_of_places(start: Tensor, size: Tensor, k: int) -> Tensor:
    """Chance of each row of a run to be among the first k, float64: `start` rows stand above, `size` are tied."""
    return (k - start).clamp(0).minimum(size).double() / size


def mean_gain(start: Tensor, size: Tensor, gains: Tensor) -> Tensor:
    """Expected gain of a row of a run, float64; gains: `gains_up_to` k."""
    last = len(gains) - 1
    return (gains[(start + size).clamp_max(last)] - gains[start.clamp_max(last)]) / size


def gains_up_to(k: int, device: torch.device) -> Tensor:
    """Sums of the first 0 ... k gains 1 / log2(1 + rank), float64 [k + 1]."""
    ranks = torch.arange(1, k + 1, dtype=torch.float64, device=device)
    return torch.cat([ranks.new_zeros(1), (1 + ranks).log2().reciprocal().cumsum(0)])


def _check_k(k: int) -> None:
    require(isinstance(k, int) and not isinstance(k, bool) and k >= 1, f"k must be a whole number from 1, not {k!r}.")


def _starts_run(values: Tensor) -> Tensor:
    """Whether each element [n] differs from the one before it; the first does."""
    return torch.cat([values.new_ones(1, dtype=torch.bool), values[1:] != values[:-1]])
