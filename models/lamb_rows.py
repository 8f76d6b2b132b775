"""The arithmetic of LAMB on the rows of an embedding table, and the two quantities that it shares with dense LAMB.

`step_listed_rows` and `step_nonzero_rows` update a table [V, D] and its `state` in place:
num_steps [] or [V, 1], exp_avg [V, D], exp_avg_sq [V, 1] or [V, D]. U is the number of touched rows; `group` is the
parameter group of `Lamb`, whose docstring has the equations.
"""

from typing import Any

import torch
from torch import Tensor

SECOND_MOMENTS = ("scalar", "full")
ROW_STEPS = ("global", "row")
Group = dict[str, Any]
State = dict[str, Tensor]


def trust_ratio(weight_norm: Tensor, update_norm: Tensor, trust_clip: float | None) -> Tensor:
    """min(weight_norm / update_norm, trust_clip) elementwise, 1 where either norm is 0 (new or dead weights)."""
    ratio = weight_norm / update_norm
    if trust_clip is not None:
        ratio = ratio.clamp(max=trust_clip)
    return torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)


def bias_corrections(steps: Tensor, beta1: float | Tensor, beta2: float) -> tuple[Tensor, Tensor]:
    """(1 - beta1^t, 1 - beta2^t) in float64: in float32 the second is off by 3e-5 at the first step."""
    counts = steps.double()
    return 1 - beta1**counts, 1 - beta2**counts


def step_listed_rows(table: Tensor, gradient: Tensor, state: State, group: Group) -> None:
    """Update the rows that a sparse gradient lists; duplicates are summed first."""
    gradient = gradient.coalesce()
    rows = gradient.indices()[0]
    steps = state["num_steps"]
    if group["rowwise_step"] == "row":
        steps.index_add_(0, rows, steps.new_ones(len(rows), 1))
        steps = steps[rows]
    old = (table, state["exp_avg"], state["exp_avg_sq"])
    weight, mean, square = (tensor[rows] for tensor in old)
    new = _updated_rows(weight, mean, square, gradient.values(), steps, group)
    for tensor, updated in zip(old, new, strict=True):
        tensor.index_copy_(0, rows, updated)


def step_nonzero_rows(table: Tensor, gradient: Tensor, state: State, group: Group) -> None:
    """Update the rows whose dense gradient is not all zero, without asking the device which they are."""
    touched = (gradient != 0).any(dim=1, keepdim=True)
    if group["rowwise_step"] == "row":
        state["num_steps"].add_(touched)
    old = (table, state["exp_avg"], state["exp_avg_sq"])
    new = _updated_rows(*old, gradient, state["num_steps"], group)
    for tensor, updated in zip(old, new, strict=True):
        tensor.copy_(torch.where(touched, updated, tensor))


def _updated_rows(
    weight: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, steps: Tensor, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """The next (weight, mean, square) of rows.

    weight, mean, gradient [U, D]; square [U, 1] or [U, D]; steps, this one included, [] or [U, 1].
    """
    beta1, beta2 = group["betas"]
    squared = gradient.square()
    if group["rowwise_second_moment"] == "scalar":
        squared = squared.mean(dim=1, keepdim=True)
    mean = beta1 * mean + (1 - beta1) * gradient
    square = beta2 * square + (1 - beta2) * squared

    mean_scale, square_scale = (scale.to(weight.dtype) for scale in bias_corrections(steps, beta1, beta2))
    update = (mean / mean_scale) / ((square / square_scale).sqrt() + group["eps"]) + group["weight_decay"] * weight
    weight_norm, update_norm = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (weight, update))
    ratio = trust_ratio(weight_norm, update_norm, group["trust_clip"])
    return weight - group["lr"] * ratio * update, mean, square
