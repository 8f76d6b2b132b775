"""A straight way from floats to outputs: a linear regression that is fitted before training, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gigabatch.models.inputs import ModelInputs


class Line(NamedTuple):
    """A linear regression of one output on the floats: `weight . floats + bias`.

    weight: float64 [F], in the units of the floats as a model is given them. bias: in those of the output. rest: the
    deviation of what it leaves, in the same units.
    """

    weight: Tensor
    bias: float
    rest: float


class BesideLine(nn.Module):
    """Outputs of a network, in units of what a line leaves, beside that line: rest_o * output_o + w_o . floats + b_o.

    Lines are constant in training and saved with the weights. Until there are some (`set`), outputs are the network's.
    Computed in float64 also under autocast: weights of columns that are nearly alike are large and cancel, so that a
    sum in float32 would differ by more than `SCORE_RTOL` and `SCORE_ATOL` between a row alone and among others.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs
    >>> beside = BesideLine(ModelInputs(num_ids=(), num_floats=2))
    >>> beside.set({0: Line(torch.tensor([1.0, 0.0]), 3.0, 0.5)})
    >>> beside(torch.tensor([[4.0]]), torch.tensor([[10.0, 7.0]]))
    tensor([[15.]])
    """

    weight: Tensor
    bias: Tensor
    rest: Tensor

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(inputs.num_floats, inputs.num_outputs))
        self.register_buffer("bias", torch.zeros(inputs.num_outputs))
        self.register_buffer("rest", torch.ones(inputs.num_outputs))

    @torch.no_grad()
    def set(self, lines: Mapping[int, Line]) -> None:
        """The line of each of these outputs."""
        for output, line in lines.items():
            self.weight[:, output], self.bias[output], self.rest[output] = line.weight, line.bias, line.rest

    def forward(self, outputs: Tensor, floats: Tensor) -> Tensor:
        """outputs [B, O], or of k members [B, k, O], and floats [B, F] -> as the outputs."""
        with torch.autocast(floats.device.type, enabled=False):
            line = torch.addmm(self.bias.double(), floats.double(), self.weight.double()).to(self.weight.dtype)
            return outputs * self.rest + (line if outputs.dim() == 2 else line[:, None])
