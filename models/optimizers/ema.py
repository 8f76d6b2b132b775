"""The exponential moving average of a model's weights, which often scores better than the weights of the last step."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gigabatch.models.errors import require


class WeightAverage:
    """average <- average + rate (weights - average) after every update, with rate = 1 - min(decay, (1 + t) / (10 + t)).

    t counts the updates before this one, so that the first steps do not average with the initial weights for long
    (TensorFlow's `ExponentialMovingAverage` with `num_updates`). The floating-point buffers, that is the running mean
    and variance of batch norm, are averaged with the weights that they belong to, except where that gives no finite
    number (the infinity that fills up the edges of a column); others are copied.

    model: a second model that holds the average, on the device of the first, in evaluation mode and without gradients.
        It takes the memory of the weights once more, and an update reads and writes all of them.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        require(0 < decay < 1, f"ema_decay must be in (0, 1), not {decay}.")
        self.decay = decay
        self.num_updates = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._live = model
        self._pair()
        self._rate = torch.zeros((), device=self._averaged[0][0].device if self._averaged else None)

    def _pair(self) -> None:
        """Each tensor of the average beside the live one."""
        weights = dict(self._live.named_parameters())
        self._averaged = [(own, weights[name]) for name, own in self.model.named_parameters()]
        buffers = dict(self._live.named_buffers())
        pairs = [(own, buffers[name]) for name, own in self.model.named_buffers()]
        self._buffers = [pair for pair in pairs if pair[0].is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    def begin_update(self) -> None:
        """The host's part of an update: count it and fill in its rate, a tensor for the sake of CUDA graphs.

        The first one starts from the model as it is then, which may have loaded weights or remembered rows meanwhile.
        """
        if self.num_updates == 0:
            self.model.load_state_dict(self._live.state_dict())
            self._pair()
        self._rate.fill_(1 - min(self.decay, (1 + self.num_updates) / (10 + self.num_updates)))
        self.num_updates += 1

    @torch.no_grad()
    def update(self) -> None:
        """The device's part, after `begin_update` and the optimizer's step; it does not wait for the device."""
        for average, weight in self._averaged:
            average.lerp_(weight, self._rate.to(average.dtype))
        for own, live in self._buffers:
            mean = own.lerp(live, self._rate.to(own.dtype))
            own.copy_(torch.where(mean.isfinite(), mean, live))
        for own, live in self._copied:
            own.copy_(live)

    def state_dict(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_updates = int(state["num_updates"])
        self.model.load_state_dict(state["model"])
        self._pair()
