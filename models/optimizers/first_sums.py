"""What a visit adds to the sums of squares of row-wise Adagrad, so that these may begin at those of some visits.

A sum that begins at zero lets the first gradient of a row, however small, move it by the whole learning rate, and the
k-th by a share of 1 / sqrt(k). A row that few examples have then learns these by heart. Adagrad's remedy is an initial
sum (`initial_accumulator_value` of torch and TensorFlow), whose unit is that of a squared gradient and so depends on
the batch, the loss and the layers behind the table. Here the unit is the table's own: the mean, over the rows that a
step touches, of the square of a row's gradient. With sums of at least v visits a row of n < v visits moves by less than
n / sqrt(v): rare rows stay near where they start, frequent ones move as before.

Gradients of a model that has just been made may be smaller by powers of ten than those of later (products of vectors
that are still near zero). So sums are raised to v visits in the steps 1, 2, 4, ... 1,024 (`RowOptimizer`), by what a
visit is then; a sum that is above stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.models.kernels import kernel
from gigabatch.models.kernels.row_update.sums import SUM, summed_rows
from gigabatch.models.layers.embeddings import EmbeddingTables, RowGradient
from gigabatch.models.optimizers.row_gradients import gradients_together


class Touched(NamedTuple):
    """Of the table at `place`, the rows [n] int64 that a step touches, each once, and the mean square of the gradient
    of each [n]."""

    place: int
    rows: Tensor
    squares: Tensor


def touched_rows(module: EmbeddingTables, version: str | None = None) -> Iterator[Touched]:
    """What the backward pass, or the exchange with other ranks, left for the rows of each table that is trained."""
    weights = module.weights
    if module.row_sums is not None:
        for place, sums in enumerate(module.row_sums):
            if sums is not None and weights[place].requires_grad:
                yield from _touched(weights, [place], RowGradient(sums.rows[:, None], sums.gradient), version)
        return
    for places, left in gradients_together(module):
        yield from _touched(weights, places, left, version)


def _touched(
    weights: Sequence[Tensor], places: Sequence[int], left: RowGradient, version: str | None
) -> Iterator[Touched]:
    found = [column.long().unique(return_inverse=True) for column in left.ids.unbind(1)]
    own, sizes = [weights[place] for place in places], [len(rows) for rows, _ in found]
    inverses = torch.stack([inverse for _, inverse in found], 1).int()
    update = kernel("row_update", left.ids.device, version)  # whose order of sums is the same each time
    if left.places is None:
        summed = summed_rows(update, inverses, left.gradient, sizes, [weight.shape[1] for weight in own])
    else:  # elements of lists, which share the gradients of their lists
        summed = [torch.zeros(sizes[0], own[0].shape[1], device=left.ids.device)]
        elements = (inverses[:, 0].contiguous(), left.places, left.scales)
        update.update_elements(summed[0], SUM.new_state(summed[0][:0]), *elements, left.gradient, SUM)
    for place, weight, (rows, _), sums in zip(places, own, found, summed, strict=True):
        inside = (rows >= 0) & (rows < len(weight))
        yield Touched(place, rows[inside], sums[inside].square().mean(1))


def squares_of_visits(
    module: EmbeddingTables, version: str | None = None, factor: Tensor | None = None
) -> list[list[float]]:
    """What one visit adds to a row's sum of squares: of each table a number for each of its spans of rows
    (`EmbeddingTables.row_spans`), 0 where the step touches none.

    factor: of the gradients. Where the rows lie on several ranks (`row_ranks`), all must call it together, and the
    numbers are those of all rows.
    """
    ends = [module.row_spans(place)[1:] for place in range(len(module.tables))]
    sizes = [len(one) for one in ends]
    totals = torch.zeros(sum(sizes), 2, dtype=torch.float64, device=module.tables[0].device)
    of_table = totals.split(sizes)
    for place, rows, squares in touched_rows(module, version):
        spans = torch.bucketize(rows, torch.tensor(ends[place], device=rows.device), right=True)
        values = torch.stack([squares.double(), torch.ones_like(squares, dtype=torch.float64)], 1)
        for span, total in enumerate(of_table[place]):
            total.copy_(values[spans == span].sum(0))
    if module.row_ranks is not None:
        module.row_ranks.all_reduce(totals, "squares of visits")
    means = totals[:, 0] / totals[:, 1].clamp(min=1)
    if factor is not None:
        means = means * factor.double() ** 2
    return [one.tolist() for one in means.split(sizes)]
