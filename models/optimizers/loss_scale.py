"""Loss scaling for float16, whose gradients below 6e-8 would be 0 (Micikevicius et al., arXiv 1710.03740)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer, parts_of

START = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_STEPS = 2000  # without an overflow, after which the scale is tried twice as large; torch's number


class LossScale:
    """The factor that a loss is multiplied by before its backward pass, found while training: halved by a step whose
    gradient is not finite, doubled after `GROWTH_STEPS` others. It lives on the device, which nothing waits for.

    It is a power of two, so scaling and its undoing round nothing but what float16 does not hold.

    Parameters
    ----------
    device : torch.device or str
        Of the gradients.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.optimizers.loss_scale import LossScale
    >>> scale = LossScale("cpu")
    >>> scale.update(torch.tensor(1.0))  # a step that overflowed
    >>> scale(torch.tensor(0.5)).item()
    16384.0
    """

    def __init__(self, device: torch.device | str) -> None:
        self.scale = torch.full((), START, device=device)
        self.steps = torch.zeros((), dtype=torch.int32, device=device)  # since it last changed

    def __call__(self, loss: Tensor) -> Tensor:
        """The loss [] scaled, float32."""
        return loss.float() * self.scale

    @torch.no_grad()
    def unscale(self, optimizer: Optimizer | Optimizers) -> None:
        """Take the scale off the gradients that the next step of `optimizer` takes; call it once after the backward
        pass. Gradients of rows, which may be float16, are unscaled in float32 when their optimizer steps."""
        inverse = 1 / self.scale
        parts = parts_of(optimizer)
        for part in parts:
            if isinstance(part, RowOptimizer):
                part.gradient_factor = inverse
        dense = [p.grad for part in parts for group in part.param_groups for p in group["params"] if p.grad is not None]
        if dense:
            torch._foreach_mul_(dense, inverse)

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """To be called after the step. skipped: [], 1 where the step's gradient was not finite, else 0."""
        self.steps.add_(1)
        grows = self.steps >= GROWTH_STEPS
        factor = torch.where(skipped > 0, BACKOFF, torch.where(grows, GROWTH, 1.0))
        self.scale.copy_((self.scale * factor).clamp(1.0, torch.finfo(torch.float32).max / 2))
        self.steps.mul_(~((skipped > 0) | grows))

    def state_dict(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.scale.copy_(state["scale"])
        self.steps.copy_(state["steps"])
