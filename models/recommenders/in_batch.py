"""Losses of users and items whose negatives are the items of other rows of the batch.

Row i holds a user and an item; what a loss gives for it means something where the row is a positive. An item that is
the row's own, from whatever row, is no negative. Shapes depend on the batch's size alone, not on labels, so that all of
it fits in a CUDA graph.

Shapes: B rows, d numbers of a vector, K negatives of a row. Vectors, scores and losses are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.models.errors import require_rows


def window_softmax(
    users: Tensor, items: Tensor, keys: Tensor, log_q: Tensor, positive: Tensor, temperature: float, window: int
) -> Tensor:
    """Sampled softmax of each row's own item among the items of `window` rows of the batch, its own among them: [B].

        l_i = log sum_{j in W_i} exp(s_ij - log q_j) - (s_ii - log q_i),    s_ij = <u_i, v_j> / temperature

    W_i: row i, and of the other rows of i's stretch of `window` rows (for the stretch that is left over at the end the
    last `window` rows of the batch) the positive ones with another item. Positives of a shuffled batch hold items in
    proportion to how often they occur; taking the logarithm of that probability off the scores makes the softmax one
    over all items (Bengio and Senecal, IEEE Trans. Neural Networks 19(4), 2008; Yi et al., RecSys 2019: s_ij - log q_j
    for all j, the row's own item among them).

    users, items [B, d]. keys [B]: the items' ids. log_q [B]: log of an item's share of positives; zeros for no
    correction. positive [B] bool.
    """
    num_rows = len(users)
    require_rows(num_rows)
    whole = num_rows // window * window
    rows = (items, keys, log_q, positive)
    found = []
    if whole:
        blocks = [part[:whole].unflatten(0, (-1, window)) for part in rows]
        found.append(_block_softmax(users[:whole].unflatten(0, (-1, window)), blocks, temperature).flatten())
    if whole < num_rows:
        last = [part[None, max(num_rows - window, 0) :] for part in rows]
        found.append(_block_softmax(users[None, whole:], last, temperature)[0])
    return torch.cat(found)


def _block_softmax(users: Tensor, rows: Sequence[Tensor], temperature: float) -> Tensor:
    """users [G, r, d] against rows [G, c, ...], of which the last r are the users' own. [G, r]."""
    items, keys, log_q, positive = rows
    offset = items.shape[1] - users.shape[1]
    logits = torch.baddbmm(-log_q[:, None], users, items.mT, alpha=1 / temperature)
    left_out = (keys[:, offset:, None] == keys[:, None]) | ~positive[:, None]
    left_out.diagonal(offset, 1, 2).fill_(False)
    logits = logits.masked_fill(left_out, float("-inf"))
    return logits.logsumexp(2) - logits.diagonal(offset, 1, 2)


def beside(rows: Tensor, num_negatives: int) -> Tensor:
    """Each row and the `num_negatives` after it, around the end: [B, ...] -> [B, 1 + K, ...], K at most B - 1."""
    require_rows(len(rows))
    count = min(num_negatives, len(rows) - 1)
    return torch.stack([rows.roll(-shift, 0) for shift in range(count + 1)], dim=1)


def pair_softmax(scores: Tensor, keys: Tensor, log_q: Tensor, positive: Tensor) -> Tensor:
    """As `window_softmax`, among own item and K others: [B, 1 + K] each -> [B]."""
    logits = scores - log_q
    left_out = (keys == keys[:, :1]) | ~positive
    left_out[:, 0] = False
    return logits.masked_fill(left_out, float("-inf")).logsumexp(1) - logits[:, 0]


def pair_bpr(scores: Tensor, keys: Tensor) -> Tensor:
    """Bayesian personalised ranking: mean over the negatives of -log sigmoid(s_own - s_other); [B, 1 + K] each -> [B].

    Rendle et al., UAI 2009, equation of BPR-Opt without its prior. A row without negatives has loss 0.
    """
    counts = keys[:, 1:] != keys[:, :1]
    losses = functional.softplus(scores[:, 1:] - scores[:, :1])
    return (losses * counts).sum(1) / counts.sum(1).clamp(min=1)


def log_shares(items: Tensor, num_items: int) -> Tensor:
    """log q: the logarithm of each item's share of the rows, float64 [V], of the rows' items [N]; one that does not
    occur counts once, as it may yet come."""
    counts = torch.bincount(items, minlength=num_items).clamp_min(1).double()
    return (counts / counts.sum()).log()


def positives_first(positive: Tensor) -> Tensor:
    """An order of the rows [B] int64 in which positives come first, each group as it was."""
    return positive.to(torch.uint8).argsort(descending=True, stable=True)


def positives_mean(losses: Tensor, positive: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of the losses [B] over the positive rows, weighted by `weight` [B]; 0 where there are none."""
    counts = positive.float()
    if weight is not None:
        counts = counts * weight
    return (losses * counts).sum() / counts.sum().clamp(min=torch.finfo(torch.float32).tiny)
