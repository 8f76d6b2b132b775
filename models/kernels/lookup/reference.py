"""`lookup` in plain torch: the oracle for the compiled versions, on any device and in any float dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def lookup(
    ids: Tensor,
    tables: Sequence[Tensor],
    out: Tensor,
    floats: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """Write the model's input rows into `out` [B, K]: the looked up rows side by side, then scaled floats, then zeros.

    ids: [B, C] int32, each inside its table; any strides. tables: C of [V_c, D_c] float32, contiguous. floats: [B, F]
    float32 with unit stride along a row, or None; they are written as floats * scale + shift, computed in float32
    (scale, shift [F] float32; None leaves the floats as they are). out: of a type in `FLOATS`, K >= sum of D_c + F.
    """
    at = 0
    for column, table in enumerate(tables):
        out[:, at : at + table.shape[1]] = table[ids[:, column].long()]
        at += table.shape[1]
    if floats is not None:
        values = floats if scale is None or shift is None else floats * scale + shift
        out[:, at : at + floats.shape[1]] = values
        at += floats.shape[1]
    out[:, at:] = 0
