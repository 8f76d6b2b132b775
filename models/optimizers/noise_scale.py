"""The gradient noise scale (McCandlish et al., arXiv 1812.06162): up to which batch size larger batches pay.

A gradient of B rows is the true gradient G plus noise of covariance Sigma / B. The simple noise scale
tr(Sigma) / |G|^2 (B_simple there) is the batch at which noise and gradient have the same size: far below it, twice the
batch does nearly the work of two steps; far above it, nearly that of one.

Shapes: K small batches of b rows make one large batch of K b rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.layers.embeddings import EmbeddingTables


@dataclass(frozen=True)
class NoiseScale:
    """squared_gradient: |G|^2. trace: tr(Sigma) of a single row's gradient. Both are estimates without bias, so that
    the first may fall below zero where noise is all that was seen.

    standard_error: of `simple`, by the jackknife over large batches; NaN of fewer than two.
    """

    squared_gradient: float
    trace: float
    standard_error: float = math.nan

    @property
    def simple(self) -> float:
        """tr(Sigma) / |G|^2 in rows; infinite where the gradient cannot be told from zero."""
        return self.trace / self.squared_gradient if self.squared_gradient > 0 else math.inf


def noise_scale_of_norms(
    small: Sequence[float], large: Sequence[float], small_rows: int, large_rows: int
) -> NoiseScale:
    """The estimates of appendix A.1 from squared gradient norms.

    small, large: expectations of |G_B|^2 at `small_rows` and `large_rows` rows, one pair a large batch; several pairs
    are averaged before the ratio is taken, because the ratio of two estimates without bias has one.
    """
    require(
        1 <= small_rows < large_rows,
        f"noise scale: it takes two batch sizes, the small one first, not {small_rows} and {large_rows}.",
    )
    require(
        len(small) == len(large) > 0,
        f"noise scale: {len(small)} norms of small and {len(large)} of large batches; give as many of both.",
    )
    gradients = [
        (large_rows * big - small_rows * little) / (large_rows - small_rows)
        for little, big in zip(small, large, strict=True)
    ]
    traces = [(little - big) / (1 / small_rows - 1 / large_rows) for little, big in zip(small, large, strict=True)]
    return NoiseScale(_mean(gradients), _mean(traces), _jackknife_error(traces, gradients))


def measure_noise_scale(
    model: nn.Module,
    batch_loss: Callable[[Any], Tensor],
    batches: Iterable[Any],
    *,
    num_small: int,
    num_large: int,
) -> NoiseScale:
    """The noise scale of `model` where it stands, from num_small x num_large batches; its gradients are left None, and
    the running statistics of batch norm as they were.

    batch_loss: the mean loss of a batch, a scalar that leads back to the model's parameters, whose gradients must be
    dense. batches: of equal size with a `num_rows`; `num_small` (K) of them make a large batch, whose gradient is
    their mean. Batch norm uses the statistics of each small batch, as training at that size does, so small batches
    should not be tiny. Nothing waits for the device before the end.

    Raises:
        ModelError: too few batches, batches of different sizes, a gradient that is not finite, or tables whose
            gradients are `rows`, which cannot be summed here.
    """
    require(num_small >= 2, f"noise scale: a large batch takes at least 2 small ones, not {num_small}.")
    require(num_large >= 1, f"noise scale: at least one large batch is needed, not {num_large}.")
    by_rows = [
        name or "the model"
        for name, module in model.named_modules()
        if isinstance(module, EmbeddingTables)
        and module.gradients == "rows"
        and any(table.requires_grad for table in module.weights)
    ]
    require(
        not by_rows,
        f"noise scale: the gradients of {', '.join(by_rows)} are rows, which are no gradients of the tables. Set "
        "gradients = 'dense', or measure a copy of the model.",
    )
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    try:
        return _measure(model, batch_loss, batches, num_small, num_large)
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)


def _measure(
    model: nn.Module, batch_loss: Callable[[Any], Tensor], batches: Iterable[Any], num_small: int, num_large: int
) -> NoiseScale:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    source = iter(batches)
    norms: list[Tensor] = []
    rows: set[int] = set()
    for _ in range(num_large):
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        small: list[Tensor] = []
        for batch in islice(source, num_small):
            rows.add(batch.num_rows)
            gradients = torch.autograd.grad(batch_loss(batch), parameters, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient
            small.append(_squared_norm([gradient for gradient in gradients if gradient is not None]))
        require(len(small) == num_small, f"noise scale: {num_small * num_large} batches are needed, there were fewer.")
        norms.append(torch.stack([torch.stack(small).mean(), _squared_norm(sums) / num_small**2]))
    require(len(rows) == 1, f"noise scale: batches must have the same number of rows, found {sorted(rows)}.")
    found = torch.stack(norms).cpu()
    require(bool(found.isfinite().all()), "noise scale: a gradient is not finite. Lower the learning rate before it.")
    (size,) = rows
    return noise_scale_of_norms(found[:, 0].tolist(), found[:, 1].tolist(), size, num_small * size)


def _squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of squares over all tensors, float64 scalar on their device."""
    return torch.stack([norm.double() for norm in torch._foreach_norm(list(tensors))]).square().sum()


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _jackknife_error(traces: Sequence[float], gradients: Sequence[float]) -> float:
    """Standard error of mean(traces) / mean(gradients), leaving out one pair at a time (Efron and Tibshirani 1993,
    equation 11.5)."""
    count = len(traces)
    if count < 2:
        return math.nan
    trace, gradient = math.fsum(traces), math.fsum(gradients)
    left = [gradient - own for own in gradients]
    if any(value <= 0 for value in left):
        return math.nan
    ratios = [(trace - own) / rest for own, rest in zip(traces, left, strict=True)]
    centre = _mean(ratios)
    return math.sqrt((count - 1) / count * math.fsum((ratio - centre) ** 2 for ratio in ratios))
