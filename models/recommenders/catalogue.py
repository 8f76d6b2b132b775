"""A softmax over the whole catalogue in blocks of users, so that never all scores are there at once; of a large
catalogue over some of its items.

Shapes: B users, V items, N of them that are compared, d numbers of a vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Rows
from gigabatch.models.recommenders.drawn import OutputScale, require_one_binary
from gigabatch.models.recommenders.in_batch import positives_mean

BLOCK_SCORES = 1 << 22  # scores that are in memory at a time: 16 MiB


def catalogue_logsumexp(users: Tensor, items: Tensor) -> Tensor:
    """log sum_j exp <u_b, v_j> of each user over all items.

    Scores of a block of users are made, summed up and forgotten, and made again for the gradients: memory is that of
    `BLOCK_SCORES` (at least one user's V scores) instead of B V, for half as much work again.

    Parameters
    ----------
    users : Tensor
        float32 [B, d].
    items : Tensor
        float32 [V, d], V at least 1.

    Returns
    -------
    Tensor
        float32 [B], with gradients of both once.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.recommenders.catalogue import catalogue_logsumexp
    >>> catalogue_logsumexp(torch.zeros(1, 2), torch.zeros(4, 2)).exp()
    tensor([4.])
    """
    return cast(Tensor, _LogSumExp.apply(users, items, max(1, BLOCK_SCORES // len(items))))


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, users: Tensor, items: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(users, items)
        ctx.block = block
        found = [(part @ items.t()).logsumexp(1) for part in users.split(block)]
        return torch.cat(found) if found else users.new_zeros(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        users, items = ctx.saved_tensors
        of_users, of_items = torch.empty_like(users), torch.zeros_like(items)
        for start in range(0, len(users), ctx.block):
            rows = slice(start, start + ctx.block)
            shares = (users[rows] @ items.t()).softmax(1).mul_(gradient[rows, None])
            torch.mm(shares, items, out=of_users[rows])
            of_items.addmm_(shares.t(), users[rows])
        return of_users, of_items, None


class Catalogue(nn.Module):
    """The items among which a positive's is to be found: all of them, or some that are drawn for each batch.

    A catalogue of more than `most` items is cut into `most` runs of neighbouring ids, of nearly the same length, and
    each draw takes one item of each run, with torch's generator. It stands for its run: an item's exp(score) is counted
    as often as its run is long, so that the expected denominator is that of the whole catalogue. Ids go by how often
    items occur, so popular and rare ones come in the same proportion each time.

    Parameters
    ----------
    first : int
        The first item's id; those below are no one of them.
    stop : int
        The id behind the last one's.
    most : int
        So many items are compared at most.

    Examples
    --------
    >>> from gigabatch.models.recommenders.catalogue import Catalogue
    >>> Catalogue(first=3, stop=7, most=10).draw()
    tensor([3, 4, 5, 6])
    >>> Catalogue(first=3, stop=103, most=10).draw().shape
    torch.Size([10])
    """

    starts: Tensor
    lengths: Tensor

    def __init__(self, first: int, stop: int, most: int) -> None:
        super().__init__()
        require(
            stop > first,
            "the loss over the catalogue has no item to compare with: the vocabulary of the items is empty. Lower "
            "preprocess.min_count, or give more rows.",
        )
        self.first, runs = first, min(most, stop - first)
        bounds = first + torch.arange(runs + 1) * (stop - first) // max(runs, 1)
        self.is_whole = runs == stop - first
        self.register_buffer("starts", bounds[:-1], persistent=False)
        self.register_buffer("lengths", bounds.diff(), persistent=False)

    def draw(self) -> Tensor:
        """Ids of the items to compare with [N] int64, ascending and each once."""
        if self.is_whole:
            return self.starts
        shares = torch.rand(self.starts.shape, device=self.starts.device, dtype=torch.float64)
        return self.starts + (shares * self.lengths).long()

    def losses(self, users: Tensor, items: Tensor, drawn: Tensor, scores: Tensor, keys: Tensor) -> Tensor:
        """-log softmax of each user's own item among the catalogue: [B] float32.

        With c_j the length of j's run, log(exp(s_i) + sum_j c_j exp(s_j)) - s_i, j over the drawn items but i.

        Parameters
        ----------
        users : Tensor
            float32 [B, d].
        items : Tensor
            float32 [N, d], of the items drawn.
        drawn : Tensor
            Their ids, as `draw` gave them.
        scores : Tensor
            float32 [B], the product of each user with the own item.
        keys : Tensor
            int [B], ids of the own items, from `first`.
        """
        if self.is_whole:
            return catalogue_logsumexp(users, items) - scores
        counts = self.lengths.float()
        ones = torch.ones(len(users), 1, device=users.device)
        with_counts = torch.cat([items, counts.log()[:, None]], dim=1)
        sums = catalogue_logsumexp(torch.cat([users, ones], dim=1), with_counts)
        run = torch.searchsorted(self.starts, keys.long(), right=True).sub(1).clamp(min=0)
        is_drawn = drawn.index_select(0, run) == keys
        # Where it was drawn it is there c times instead of once. In floats its share may come out above the whole.
        above = 1 - 1 / counts.index_select(0, run)
        share = (scores + counts.index_select(0, run).log() - sums).clamp(max=0).exp()
        once = sums + torch.log1p(-torch.where(is_drawn, above * share, torch.zeros_like(share)))
        return torch.where(is_drawn, once, torch.logaddexp(sums, scores)) - scores


class Vectors(NamedTuple):
    """What `catalogue_training_loss` compares, of N rows of which every `copies_of`-th is a positive, P of them.

    users, own: [P, d] float32, of the positives' users and items. items: [M, d] of the ids `drawn` [M]. scores: [N, 1]
    of all rows.
    """

    users: Tensor
    own: Tensor
    items: Tensor
    drawn: Tensor
    scores: Tensor


def copies_of(batch: Rows) -> int:
    """Rows for each positive and its drawn negatives, which follow it; 1 where none are drawn."""
    found: int = getattr(batch, "copies", 1)
    return found


def catalogue_training_loss(
    model: str,
    kind: str,
    catalogue: Catalogue,
    batch: Rows,
    vectors: Vectors,
    keys: Tensor,
    output: OutputScale,
    loss: TargetLoss,
) -> Tensor:
    """Mean of the catalogue's losses over a batch's positives, by weight, and what teaches `output` with scores held
    fixed. What is null or unseen is none to be found.

    keys: [N] ids of the rows' items.

    Raises:
        ModelError: for a target that is not binary.
    """
    require_one_binary(model, kind, loss)
    copies = copies_of(batch)
    users, own, items, drawn, scores = vectors
    with torch.autocast(users.device.type, enabled=False):  # differences of scores need float32
        own_keys = keys[::copies]
        positive = (batch.targets[0][::copies] == 1) & (own_keys >= catalogue.first)
        weight = None if batch.weight is None else batch.weight[::copies]
        losses = catalogue.losses(users, items, drawn, (users * own).sum(1), own_keys)
        learnt = loss(output(scores.detach()), batch.targets, batch.weight)
        return positives_mean(losses, positive, weight) + learnt
