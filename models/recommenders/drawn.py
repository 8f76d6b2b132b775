"""Losses of positives against the negatives that were drawn for them (`train.negatives`), from the rows' scores alone.

A batch holds a positive's row, then those of its negatives, which are of the same user and context; `group` numbers the
positives. So a model that needs the whole row for a score, as one that crosses user and item does, scores each row once
and compares the scores. Shapes depend on the batch's size alone, so that all of it fits in a CUDA graph.

Shapes: N rows of a batch. Scores and losses are float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Rows
from gigabatch.models.recommenders.in_batch import positives_mean

LOSSES = ("bce", "bpr", "softmax")


class OutputScale(nn.Module):
    """exp(a) s + b: scores of a ranking loss, which knows differences alone, as logits that are right on the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, scores: Tensor) -> Tensor:
        """[B, 1] -> [B, 1], or of scores of any shape."""
        return torch.exp(self.log_scale) * scores + self.bias


def drawn_bpr(scores: Tensor, positive: Tensor, group: Tensor) -> Tensor:
    """Bayesian personalised ranking: mean over a positive's negatives of -log sigmoid(s_own - s_negative).

    Rendle et al., UAI 2009, BPR-Opt without its prior.

    scores [N]. positive [N] bool. group [N]. [N], of which the rows of positives mean something.
    """
    own, counts = _own_positive(positive, group)
    losses = functional.softplus(scores - scores.index_select(0, own)) * counts
    totals, negatives = (torch.zeros_like(rows).index_add(0, own, rows) for rows in (losses, counts))
    return totals / negatives.clamp(min=1)


def drawn_softmax(scores: Tensor, positive: Tensor, group: Tensor) -> Tensor:
    """Sampled softmax of a positive among itself and its negatives: log sum_j exp(s_j) - s_own; as `drawn_bpr`.

    With scores that `off_log_q` has corrected, or uniformly drawn negatives, whose log q is one number, they are
    log P(item | user) up to a constant of the user (Bengio and Senecal 2008; Wu et al., arXiv 2201.02327).
    """
    own, counts = _own_positive(positive, group)
    takes_part = (counts > 0) | positive
    difference = scores - scores.index_select(0, own)
    level = torch.where(takes_part, difference.detach(), torch.zeros_like(scores))
    level = torch.zeros_like(scores).scatter_reduce(0, own, level, "amax")  # from 0, the positive's own
    share = torch.where(takes_part, difference - level.index_select(0, own), torch.full_like(scores, float("-inf")))
    sums = torch.zeros_like(scores).index_add(0, own, share.exp())
    return level + torch.where(positive, sums, torch.ones_like(sums)).log()


def off_log_q(scores: Tensor, batch: Rows) -> Tensor:
    """Scores [N] less the logarithm of the share of draws that each row's item has, the positive's own too (Yi et al.,
    RecSys 2019); as they are where all items have one, which a softmax does not see."""
    log_q: Tensor | None = getattr(batch, "log_q", None)
    return scores if log_q is None else scores - log_q


def _own_positive(positive: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Row number of each row's positive, the last one up to it, int64 [N]; 1.0 for the rows that are its negatives."""
    places = torch.arange(len(positive), device=positive.device)
    own = torch.where(positive, places, torch.zeros_like(places)).cummax(0).values
    return own, (~positive & (group == group.index_select(0, own))).float()


BY_NAME: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "bpr": drawn_bpr,
    "softmax": drawn_softmax,
    "drawn": drawn_softmax,  # of a model whose softmax has the items of its batch
}


def drawn_training_loss(
    model: str, kind: str, batch: Rows, scores: Tensor, output: OutputScale, loss: TargetLoss
) -> Tensor:
    """Mean of the loss `kind` over a batch's positives, by weight, and what teaches `output` with scores held fixed.

    scores: [N, 1] of the rows.

    Raises:
        ModelError: for a target that is not binary, and for rows without drawn negatives.
    """
    group: Tensor | None = getattr(batch, "group", None)
    require_one_binary(model, kind, loss)
    positive = batch.targets[0] == 1
    if group is None or not (positive.device.type != "cpu" or _all_have_negatives(positive, group)):
        raise ModelError(
            f"{model}: the loss {kind} compares a positive with the negatives that are drawn for it, and rows came "
            "without any. Set train.negatives, or model.loss=bce to learn from the labels."
        )
    with torch.autocast(scores.device.type, enabled=False):  # differences of scores need float32
        single = scores.float()
        # BPR compares pairs: that negatives which are drawn more often count more is what they are drawn so for.
        compared = single[:, 0] if kind == "bpr" else off_log_q(single[:, 0], batch)
        losses = BY_NAME[kind](compared, positive, group)
        ranked = positives_mean(losses, positive, batch.weight)
        return ranked + loss(output(single.detach()), batch.targets, batch.weight)


def require_one_binary(model: str, kind: str, loss: TargetLoss) -> None:
    """Raise `ModelError` where the loss `kind`, which is of positives, is to learn another target."""
    if loss.tasks != (("binary", 1),):
        raise ModelError(
            f"{model}: the loss {kind} needs one binary target, whose 1 are the positives; the target is "
            f"{loss.tasks[0][0]}. Set model.loss=bce, or make the target 0 or 1."
        )


def _all_have_negatives(positive: Tensor, group: Tensor) -> bool:
    own, counts = _own_positive(positive, group)
    found = torch.zeros_like(counts).index_add(0, own, counts)
    return bool((found[positive] > 0).all())
