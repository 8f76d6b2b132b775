"""Products whose rows have the same bits wherever they stand in a batch, in evaluation mode.

torch's product on CPU (MKL, torch 2.13, AVX-512) computes some rows of a block by another formula where the output has
2 to 11 columns and the inner width is no multiple of 4: about half of the rows then differ in their last bits from what
they are elsewhere in the block, also in blocks of whole 128 rows. With 12 columns or more, or with 1, they do not. So
weights are padded to 12 rows, with zeros, and the extra columns are cut off.
tests/models/test_linear.py holds it for all models of the shelf.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FEWEST_COLUMNS = 12


def row_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [..., K] and weight [N, K] to rows weight^T + bias [..., N], a row's bits independent of the others."""
    num_out, num_in = weight.shape
    if not 1 < num_out < FEWEST_COLUMNS or num_in % 4 == 0:
        return functional.linear(rows, weight, bias)
    missing = FEWEST_COLUMNS - num_out
    padded = None if bias is None else functional.pad(bias, (0, missing))
    return functional.linear(rows, functional.pad(weight, (0, 0, 0, missing)), padded)[..., :num_out]


class OutputLinear(nn.Linear):
    """A model's last layer: as `Linear`, and in float32 also under autocast, which would round logits to bfloat16."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training:
            return row_linear(rows, self.weight, self.bias)
        if not torch.is_autocast_enabled(rows.device.type):
            return super().forward(rows)
        with torch.autocast(rows.device.type, enabled=False):
            return super().forward(rows.float())


class Linear(nn.Linear):
    """`nn.Linear` that goes through `row_linear` in evaluation mode; in training it is the plain product."""

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            return super().forward(rows)
        return row_linear(rows, self.weight, self.bias)
