"""Elementwise passes of the folded network in plain torch: the oracle for the compiled versions.

Each reads and writes every activation once. h and gradients are [B, N], float32 or bfloat16, unit stride along a row.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
def norm_relu_backward(gradient: Tensor, hidden: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """gradient <- gradient + slope hidden + offset where hidden > 0, else 0; in place. Returns its column sums.

    gradient, hidden: [B, N]. slope, offset: [N] float32. Computed in float32 and rounded once; the sums [N] float64
    are of the rounded values.
    """
    moved = torch.addcmul(offset, slope, hidden.to(slope.dtype)).add_(gradient)
    gradient.copy_(moved.masked_fill_(hidden <= 0, 0))
    return gradient.double().sum(0)
