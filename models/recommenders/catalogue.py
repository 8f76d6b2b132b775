"""The denominator of a softmax over the whole catalogue, in blocks of users: exact, and never all scores at once.

Shapes: B users, V items, d numbers of a vector.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

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
        found = [(part @ items.t()).logsumexp(1) for part in users.split(block)]
        sums = torch.cat(found) if found else users.new_zeros(0)
        ctx.save_for_backward(users, items, sums)
        ctx.block = block
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        users, items, sums = ctx.saved_tensors
        of_users, of_items = torch.empty_like(users), torch.zeros_like(items)
        for start in range(0, len(users), ctx.block):
            rows = slice(start, start + ctx.block)
            shares = (users[rows] @ items.t()).sub_(sums[rows, None]).exp_().mul_(gradient[rows, None])
            torch.mm(shares, items, out=of_users[rows])
            of_items.addmm_(shares.t(), users[rows])
        return of_users, of_items, None
