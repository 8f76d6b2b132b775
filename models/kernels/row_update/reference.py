"""`update_rows` in plain torch: the oracle for the compiled versions, on any device and in any float dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gigabatch.models.kernels.row_update.rules import RowRule, State, bias_corrections, trust_ratio


@torch.no_grad()
def update_rows(
    tables: Sequence[Tensor], states: Sequence[State], ids: Tensor, gradient: Tensor, rule: RowRule
) -> None:
    """Sum the gradients of each row that `ids` name and move the row by `rule`, in place, table by table.

    tables: C of [V_c, D_c]. states: of each table, as `RowRule.new_state` makes them; num_steps grows by one here.
    ids: [B, C] int32, each inside its table. gradient: [B, at least W], unit stride along a row; the first W = sum of
    D_c columns are the gradients with respect to the looked up rows side by side.
    """
    start = 0
    for column, (table, state) in enumerate(zip(tables, states, strict=True)):
        width = table.shape[1]
        rows, place = torch.unique(ids[:, column].long(), return_inverse=True)
        part = gradient[:, start : start + width].to(table.dtype)
        summed = table.new_zeros(len(rows), width).index_add_(0, place, part)
        counts = table.new_zeros(len(rows), 1).index_add_(0, place, table.new_ones(len(place), 1))
        _move(table, state, rows, summed, counts, rule)
        start += width


@torch.no_grad()
def update_elements(
    table: Tensor, state: State, ids: Tensor, places: Tensor, scales: Tensor | None, gradient: Tensor, rule: RowRule
) -> None:
    """Move rows of one table as `update_rows` does, by elements of lists that share gradients.

    ids: [T] int32, the row of each element, inside the table. places: [T] int32, whose row of `gradient` [B, D], of
    unit stride along a row, it takes; scales: [T] float32 that it is multiplied with, None for 1. As `element_scales`
    of the kernel `pooled_lookup` writes them. table, state, rule: as in `update_rows`.
    """
    check_elements(table, ids, places, scales, gradient)
    spread = gradient[places.long()].to(table.dtype)
    if scales is not None:
        spread = spread * scales[:, None]
    update_rows([table], [state], ids[:, None], spread, rule)


def check_elements(table: Tensor, ids: Tensor, places: Tensor, scales: Tensor | None, gradient: Tensor) -> None:
    """What every version of `update_elements` asserts."""
    assert (ids.dtype, places.dtype) == (torch.int32, torch.int32), (ids.dtype, places.dtype)
    for own in (ids, places, *(() if scales is None else (scales,))):
        assert own.is_contiguous(), own.stride()
        assert own.shape == (len(ids),), (own.shape, ids.shape)
    assert scales is None or scales.dtype == torch.float32, scales
    assert gradient.shape[1] == table.shape[1], (gradient.shape, table.shape)
    assert not gradient.numel() or gradient.stride(1) == 1, gradient.stride()


def _move(table: Tensor, state: State, rows: Tensor, gradient: Tensor, counts: Tensor, rule: RowRule) -> None:
    """One step of the listed rows [U]; gradient [U, D], counts [U, 1]."""
    if rule.step == "row":
        state["num_steps"][rows] += 1
        steps = state["num_steps"][rows]
    else:
        steps = state["num_steps"].add_(1)
    weight = table[rows]
    gradient = clipped(gradient + rule.l2 * weight, weight, counts, rule)
    update = gradient
    if rule.has_mean:
        mean = rule.beta1 * state["exp_avg"][rows] + (1 - rule.beta1) * gradient
        state["exp_avg"][rows] = mean
    if rule.has_square:
        squared = gradient.square()
        if rule.second_moment == "scalar":
            squared = squared.mean(dim=1, keepdim=True)
        old = state["exp_avg_sq"][rows]
        square = old + squared if rule.method == "adagrad" else rule.beta2 * old + (1 - rule.beta2) * squared
        state["exp_avg_sq"][rows] = square
        if rule.method == "adagrad":
            update = gradient / (square.sqrt() + rule.eps)
        else:
            mean_scale, square_scale = bias_corrections(steps, rule.beta1, rule.beta2)
            update = (mean / mean_scale.to(mean)) / ((square / square_scale.to(mean)).sqrt() + rule.eps)
    update = update + rule.weight_decay * weight
    if rule.method == "lamb":
        weight_norm, update_norm = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (weight, update))
        least_norm = rule.trust_floor * weight.shape[1] ** 0.5
        update = trust_ratio(weight_norm, update_norm, rule.trust_clip, least_norm) * update
    table[rows] = weight - rule.lr * update


def clipped(gradient: Tensor, weight: Tensor, counts: Tensor, rule: RowRule) -> Tensor:
    """CowClip's bound on each row's gradient [U, D]."""
    if rule.clip_ratio is None:
        return gradient
    floor = rule.clip_floor * weight.shape[1] ** 0.5
    bound = rule.clip_ratio * torch.linalg.vector_norm(weight, dim=1, keepdim=True).clamp(min=floor) * counts
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return gradient * torch.where(norm > bound, bound / norm, 1.0)
