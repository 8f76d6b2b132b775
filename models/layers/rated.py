"""A parameter with a learning rate of its own, under any optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rated(nn.Module):
    """A tensor that is learnt `rate` times as fast as others, as if it were in a parameter group of its own.

    It is kept divided by its rate and multiplied when it is used. A step of Adam, whose size does not depend on that of
    gradients, then moves it `rate` times as far; so the rate holds for every optimizer that steps so, with its
    schedules, averages and checkpoints, and none has to know of it. It never decays, and LAMB takes it for no layer.

    Parameters
    ----------
    value : Tensor
        Where it starts.
    rate : float
        Times the learning rate of the rest; above 0.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.layers.rated import Rated
    >>> scale = Rated(torch.ones(2), rate=6.0)
    >>> torch.optim.Adam(scale.parameters(), lr=0.01).step(lambda: (3 * scale()).sum().backward())
    >>> scale().detach()
    tensor([0.9400, 0.9400])
    """

    def __init__(self, value: Tensor, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(value / rate)

    def forward(self) -> Tensor:
        """The tensor itself."""
        return self.rate * self.weight

    @torch.no_grad()
    def set(self, value: Tensor) -> None:
        """Make it this."""
        self.weight.copy_(value / self.rate)
