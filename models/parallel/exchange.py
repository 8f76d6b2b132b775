"""Rows and sums that cross between ranks inside a model, with the way back of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from gigabatch.models.parallel.ranks import Ranks


class Exchange:
    """Collectives with gradients. Ranks must run the same graph, so that they meet in the same order on the way back.

    Parameters
    ----------
    ranks : Ranks
        Who exchanges.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.exchange import Exchange
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> Exchange(Ranks()).reduce_scatter(torch.ones(2, 3), "sums").shape  # one rank alone
    torch.Size([2, 3])
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def reduce_scatter(self, partial: Tensor, name: str) -> Tensor:
        """Partial results [N n, a] -> the sum over ranks of this rank's rows [n, a]; gradients are all-gathered."""
        return cast(Tensor, _ReduceScatter.apply(partial, self.ranks, name))

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], name: str) -> Tensor:
        """As `Ranks.all_to_all`; gradients go back to where rows came from."""
        return cast(Tensor, _AllToAll.apply(rows, self.ranks, list(send), list(receive), name))


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, ranks: Ranks, name: str) -> Tensor:
        ctx.ranks, ctx.name = ranks, name
        return ranks.reduce_scatter(partial, name) if ranks.num_ranks > 1 else partial.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return torch.cat(ctx.ranks.all_gather(gradient.contiguous(), f"{ctx.name} gradient")), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, send: list[int], receive: list[int], name: str) -> Tensor:
        ctx.ranks, ctx.send, ctx.receive, ctx.name = ranks, send, receive, name
        return ranks.all_to_all(rows, send, receive, name) if ranks.num_ranks > 1 else rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        back = ctx.ranks.all_to_all(gradient.contiguous(), ctx.receive, ctx.send, f"{ctx.name} gradient")
        return back, None, None, None, None
