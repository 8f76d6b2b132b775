"""Elementwise passes of the folded network in plain torch: the oracle for the compiled versions.

Each reads and writes every activation once. h and gradients are [B, N], of a type in `FLOATS`, unit stride along a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gigabatch.models.kernels.dropout.reference import kept


@torch.no_grad()
def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of each column of [B, N], each [N] float64."""
    exact = values.double()
    return exact.sum(0), exact.square().sum(0)


@torch.no_grad()
def relu_moments(values: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """values <- max(values + bias, 0) in place; sum and sum of squares of each column of the result, each [N] float64.

    values: [B, N]. bias: [N] float32 or None. Computed in float32 and rounded once, before the sums are taken.
    """
    if bias is not None:
        values.copy_(values.to(bias.dtype) + bias)
    values.clamp_(min=0)
    return column_moments(values)


@torch.no_grad()
def dropped_sums(gradient: Tensor, hidden: Tensor, seed: Tensor, rate: float, start: int = 0) -> tuple[Tensor, Tensor]:
    """Column sums, each [N] float64, of what dropout leaves of the gradient, and of that times hidden.

    gradient, hidden: [B, N]. seed: [2] int64. start: number of the first element. What stays is divided by 1 - rate.
    """
    left = gradient.double() * (kept(seed, rate, len(gradient), gradient.shape[1], start) / (1 - rate))
    return left.sum(0), (left * hidden.double()).sum(0)


@torch.no_grad()
def norm_relu_backward(
    gradient: Tensor,
    hidden: Tensor,
    slope: Tensor,
    offset: Tensor,
    scale: Tensor | None = None,
    seed: Tensor | None = None,
    rate: float = 0.0,
    start: int = 0,
) -> Tensor:
    """gradient <- gradient + slope hidden + offset where hidden > 0, else 0; in place. Returns its column sums.

    gradient, hidden: [B, N]. slope, offset: [N] float32. With scale [N] float32, seed [2] int64, rate and
    start (number of the first element) the gradient goes through dropout and that scale first. Computed in float32 and
    rounded once; the sums [N] float64 are of the rounded values.
    """
    moved = gradient
    if scale is not None and seed is not None:
        stays = kept(seed, rate, len(gradient), gradient.shape[1], start)
        moved = gradient * (scale * (stays / (1 - rate)).to(scale.dtype))
    moved = torch.addcmul(offset, slope, hidden.to(slope.dtype)).add_(moved)
    gradient.copy_(moved.masked_fill_(hidden <= 0, 0))
    return gradient.double().sum(0)
