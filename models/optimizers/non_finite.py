"""Steps whose gradient is not finite: found on the device, and skipped there by every optimizer of `registry.py`.

One NaN among the gradients would make a NaN of every weight by way of their common norm, and of the moments for good.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gigabatch.models.optimizers.lamb import Lamb
from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer, parts_of


@torch.no_grad()
def mark_non_finite(optimizer: Optimizer | Optimizers, loss: Tensor) -> Tensor:
    """Tell all parts of `optimizer` whether their next step is to be skipped; to be called after the backward pass.

    The step is skipped where the loss or any gradient of any part is NaN or infinite. Each part gets the answer as its
    `found_inf`, as torch's gradient scaler gives it to a fused optimizer, and forgets it when it steps: a step that
    nobody marked is not skipped by an older mark. Nothing waits for the device.

    Returns
    -------
    Tensor
        [] float32 on the device of the loss: 1 where the step will be skipped, else 0.
    """
    parts = parts_of(optimizer)
    found_inf = (~all_finite(optimizer, loss)).float()
    for part in parts:
        if isinstance(part, (Lamb, RowOptimizer)):
            part.found_inf = found_inf
        elif part.param_groups[0].get("fused"):  # torch's others refuse it
            if "found_inf" not in vars(part):  # the first time; a copy has neither the mark nor the hook
                part.register_step_post_hook(_forget_mark)
            part.found_inf = found_inf
    return found_inf


@torch.no_grad()
def all_finite(optimizer: Optimizer | Optimizers, loss: Tensor) -> Tensor:
    """Whether the loss and the gradients that the next step of `optimizer` takes are finite: a bool [] on the device of
    the loss."""
    parts = parts_of(optimizer)
    sums = [loss.detach().float()]
    dense = [p.grad for part in parts for group in part.param_groups for p in group["params"] if p.grad is not None]
    if dense:
        sums.append(torch.stack([norm.float() for norm in torch._foreach_norm(dense)]).sum())
    for part in parts:
        if isinstance(part, RowOptimizer):
            sums += [found.gradient.sum(dtype=torch.float32) for m in part.modules for found in m.row_gradients]
            sums += [found.gradient.sum() for m in part.modules for found in m.row_sums or () if found is not None]
    return torch.stack(sums).isfinite().all()


def _forget_mark(part: Any, *_: Any) -> None:
    part.found_inf = None
