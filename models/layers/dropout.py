"""Dropout that computes its mask instead of drawing and keeping it."""

from __future__ import annotations

from math import cos, pi
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import require
from gigabatch.models.kernels import FLOATS, kernel
from gigabatch.models.kernels.dropout.reference import draw_seeds
from gigabatch.models.whole_batch import whole_batch


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, on a CPU in one pass over the values without a mask in memory.

    Torch draws its CPU masks number by number on one core, which can take longer than the products beside it; here a
    hash of an element's number and of a seed says whether it stays (`models/kernels/dropout/reference.py`), on all
    cores, in the backward pass again. A seed comes from torch's generator, so `torch.manual_seed` fixes the masks,
    whatever the number of threads. On a GPU, under `torch.compile`, and for types that are not in `FLOATS` it is
    torch's own. Where several ranks share a batch it is this one on a GPU too, and elements are numbered by their rows
    in the whole batch, so that ranks with equal seeds have the masks of one rank.

    Parameters
    ----------
    p : float, default 0.5
        Probability of an element to be dropped, in [0, 1].

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.layers.dropout import Dropout
    >>> found = Dropout(0.25)(torch.ones(4, 1000))
    >>> found.unique().tolist(), 0.7 < float(found.bool().float().mean()) < 0.8
    ([0.0, 1.3333333730697632], True)
    """

    def forward(self, values: Tensor) -> Tensor:
        """[..., N] -> [..., N] of the same type; the values themselves in evaluation mode."""
        if not self.training:
            return super().forward(values)
        return dropped(values, self.p)


class FallingDropout:
    """Dropout of a whole model that stays for half of a training and then falls to 0 along half a cosine.

    RealMLP's (Holzmueller et al., arXiv 2407.04491): late steps fit the rows without noise. The rate of a step follows
    from its number alone, so a resumed training has the same.

    Parameters
    ----------
    model : nn.Module
        Whose `nn.Dropout` modules, all of those here among them, get a new `p` before each step.
    num_steps : int
        Of the whole training.

    Examples
    --------
    >>> from torch import nn
    >>> from gigabatch.models.layers.dropout import Dropout, FallingDropout
    >>> model = nn.Sequential(Dropout(0.2))
    >>> falling = FallingDropout(model, num_steps=8)
    >>> for step in (0, 4, 6):
    ...     falling.begin(step)
    ...     print(round(model[0].p, 6))
    0.2
    0.2
    0.1
    """

    def __init__(self, model: nn.Module, num_steps: int) -> None:
        self.num_steps = num_steps
        self._given = [(module, module.p) for module in model.modules() if isinstance(module, nn.Dropout)]

    def begin(self, step: int) -> None:
        """Set the rates of update number `step`, from 0."""
        done = max(2 * step / self.num_steps - 1, 0.0)
        for module, rate in self._given:
            module.p = rate * (1 + cos(pi * done)) / 2

    def end(self) -> None:
        """Set the rates that the model came with."""
        for module, rate in self._given:
            module.p = rate


def dropped(values: Tensor, rate: float) -> Tensor:
    """Values [..., N] some of which are 0, and the others 1 / (1 - rate) times what they were, as `Dropout` has it."""
    if torch.compiler.is_compiling():  # first, so that the compiler meets nothing that it cannot follow
        return functional.dropout(values, rate)
    batch = whole_batch()
    if not values.numel() or not draws_own(values, rate):
        require(
            batch is None or values.dtype in FLOATS or rate in (0, 1),
            f"dropout over several ranks takes float32, bfloat16 and float16, not {values.dtype}: torch's own would "
            "draw other masks than on one rank.",
        )
        return functional.dropout(values, rate)
    start = 0 if batch is None else batch.first_element(values)
    return values if rate == 0 else _Dropout.apply(values, rate, start)


def draws_own(values: Tensor, rate: float) -> bool:
    """Whether the mask is a hash of elements' numbers, not torch's."""
    known = values.dtype in FLOATS and rate < 1
    return known and (values.device.type == "cpu" or whole_batch() is not None)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rate: float, start: int) -> Tensor:
        (ctx.seed,), ctx.rate, ctx.start = draw_seeds(1, values.device), rate, start
        ctx.drops = kernel("dropout", values.device)
        return _masked(ctx.drops, values, ctx.seed, rate, start)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _masked(ctx.drops, gradient, ctx.seed, ctx.rate, ctx.start), None, None


def _masked(drops: ModuleType, values: Tensor, seed: Tensor, rate: float, start: int) -> Tensor:
    values = values.contiguous()
    found = torch.empty_like(values)
    width = values.shape[-1] if values.dim() else 1
    rows, out = (part.view(-1, width) for part in (values, found))
    drops.dropout(rows, out, seed, rate, start=start)
    return found
