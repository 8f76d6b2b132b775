"""Layers of several members at once: networks that share weights and differ by scales and biases of their own.

A member's linear layer is s_k * (W (r_k * x)) + b_k with one W for all (BatchEnsemble: Wen, Tran and Ba, ICLR 2020,
arXiv 2002.06715), so k members take k times the products of one network, and hardly more weights.

Shapes: B rows of a batch, k members, D numbers in, H numbers out, O outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional


class MemberScale(nn.Module):
    """A vector of factors for each member: [B, D] or [B, k, D] -> [B, k, D].

    chunks: widths of the parts of D that start with one factor each, those of one column, say; None starts all at 1.
    signs: these factors start at +1 or -1, else normal.
    """

    def __init__(self, members: int, width: int, chunks: Sequence[int] | None = None, signs: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, width))
        if chunks is not None:
            drawn = torch.randn(members, len(chunks))
            drawn = torch.where(drawn < 0, -1.0, 1.0) if signs else drawn
            sizes = torch.tensor(list(chunks), dtype=torch.int64)
            self.weight = nn.Parameter(drawn.repeat_interleave(sizes, dim=1, output_size=width))

    def forward(self, rows: Tensor) -> Tensor:
        """Times the members' factors."""
        return (rows[:, None] if rows.dim() == 2 else rows) * self.of(rows)

    def of(self, rows: Tensor) -> Tensor:
        """The factors [k, D] in the type of `rows`."""
        return self.weight.to(rows.dtype)


class MemberLinear(nn.Module):
    """A linear layer whose weights all members share: [B, k, D] -> [B, k, H].

    own: each member scales what comes in and what goes out and has a bias of its own; else all share one bias.
    first: what comes in is scaled already. All biases of a unit start equal, and weights as `nn.Linear`'s.
    """

    def __init__(self, members: int, num_in: int, num_out: int, own: bool = True, first: bool = False) -> None:
        super().__init__()
        bound = num_in**-0.5
        self.weight = nn.Parameter(torch.empty(num_out, num_in).uniform_(-bound, bound))
        bias = torch.empty(num_out).uniform_(-bound, bound)
        self.bias = nn.Parameter(bias.repeat(members, 1) if own else bias)
        self.scale_in = MemberScale(members, num_in) if own and not first else nn.Identity()
        self.scale_out = MemberScale(members, num_out) if own else None

    def forward(self, rows: Tensor) -> Tensor:
        """Each member's rows through the layer."""
        found = functional.linear(self.scale_in(rows), self.weight)
        bias = self.bias.to(found.dtype)  # under autocast what is kept for the backward pass stays in its type
        return found + bias if self.scale_out is None else torch.addcmul(bias, found, self.scale_out.of(found))


class MemberOutput(nn.Module):
    """A linear layer of each member's own, in float32 also under autocast: [B, k, D] -> [B, k, O]."""

    def __init__(self, members: int, num_in: int, num_out: int) -> None:
        super().__init__()
        bound = num_in**-0.5
        self.weight = nn.Parameter(torch.empty(members, num_in, num_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, num_out).uniform_(-bound, bound))

    def forward(self, rows: Tensor) -> Tensor:
        """Each member's rows through its layer."""
        with torch.autocast(rows.device.type, enabled=False):
            return torch.bmm(rows.to(self.weight.dtype).transpose(0, 1), self.weight).transpose(0, 1) + self.bias


def mean_of_members(outputs: Tensor, targets: Sequence[tuple[str, int]], logs: Collection[int] = ()) -> Tensor:
    """The outputs whose prediction is the mean of the members' predictions.

    Of a binary target it is the logit of the mean probability, of classes the logarithms of their mean probabilities,
    of a regression the mean value, or where the outputs are logarithms that of the mean value; all by sums of
    exponentials, so that no probability is rounded to 0 or 1 on the way.

    Parameters
    ----------
    outputs : Tensor
        [B, k, O] float32: logits, or values of a regression.
    targets : sequence of (str, int)
        Task and number of outputs of each target, in the order of the outputs.
    logs : collection of int, default ()
        Outputs of a regression that are logarithms of its value (losses with a log link).

    Returns
    -------
    Tensor
        [B, O] float32.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.layers.members import mean_of_members
    >>> members = torch.logit(torch.tensor([0.2, 0.6])).view(1, 2, 1)
    >>> round(torch.sigmoid(mean_of_members(members, [("binary", 1)])).item(), 6)
    0.4
    """
    parts, first = [], 0
    log_members = log(outputs.shape[1])
    for (task, _), part in zip(targets, outputs.split([size for _, size in targets], dim=2), strict=True):
        if task == "regression" and first in logs:
            parts.append(torch.logsumexp(part, dim=1) - log_members)
        elif task == "regression":
            parts.append(part.mean(dim=1))
        elif task == "binary":
            parts.append(
                torch.logsumexp(functional.logsigmoid(part), dim=1)
                - torch.logsumexp(functional.logsigmoid(-part), dim=1)
            )
        else:
            parts.append(torch.logsumexp(torch.log_softmax(part, dim=2), dim=1) - log_members)
        first += part.shape[2]
    return torch.cat(parts, dim=1)
