"""Sums of gradients by row, by the kernel that moves rows: a step of plain descent of rate -1 from zero."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from gigabatch.models.kernels.row_update.rules import RowRule

SUM = RowRule(method="sgd", lr=-1.0)


def summed_rows(
    update: ModuleType, ids: Tensor, gradient: Tensor, sizes: Sequence[int], widths: Sequence[int]
) -> list[Tensor]:
    """The sum of the gradients of each row: of each of C tables [sizes[c], widths[c]] float32, 0 where there are none.

    update: a version of the kernel `row_update`; its order of sums, so the same on any number of threads. ids int32
    [B, C] and gradient [B, at least the widths' sum]: as `update_rows` takes them.
    """
    elements = [size * width for size, width in zip(sizes, widths, strict=True)]
    parts = torch.zeros(sum(elements), device=gradient.device).split(elements)
    tables = [part.view(size, width) for part, size, width in zip(parts, sizes, widths, strict=True)]
    if len(ids):
        update.update_rows(tables, [SUM.new_state(table[:0]) for table in tables], ids, gradient, SUM)
    return tables


def summed_elements(
    update: ModuleType, ids: Tensor, places: Tensor, scales: Tensor | None, gradient: Tensor, size: int
) -> Tensor:
    """As `summed_rows`, of one table of `size` rows by elements of lists that share gradients, as `update_elements`
    takes them: [size, D] float32."""
    table = torch.zeros(size, gradient.shape[1], device=gradient.device)
    if len(ids):
        update.update_elements(table, SUM.new_state(table[:0]), ids, places, scales, gradient, SUM)
    return table
