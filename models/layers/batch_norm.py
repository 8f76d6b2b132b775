"""Batch norm over the whole batch, where several ranks share it, whose evaluation stays where training was."""

from __future__ import annotations

from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.whole_batch import WholeBatch, whole_batch

UNBOUNDED = torch.finfo(torch.float32).max  # deviations; times a weight of 0 it is 0, which infinity is not


class BatchNorm1d(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d`, which takes the moments of the whole batch where several ranks train on parts of it, and
    in evaluation puts no value farther from the running mean than training could.

    In training a row is in the variance that it is divided by, so that of n rows none is farther than sqrt(n - 1)
    deviations: 23 of 512. By the running variance a flag that one row in 100,000 has lies at 300, where no later layer
    was trained. So evaluation is bounded by the n of the largest batch, the buffer `batch_rows`; with 0, as in bundles
    from before, by nothing.

    Over several ranks sums and squares go over all of them in float64, forward and backward: one small all-reduce each.
    (torch's SyncBatchNorm does so on GPUs alone.) All else is torch's own, to the bit.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.layers.batch_norm import BatchNorm1d
    >>> norm = BatchNorm1d(2)
    >>> norm(torch.tensor([[1.0, 9.0], [3.0, 5.0]])).detach().round().tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    >>> norm.eval()(torch.tensor([[1e6, 0.0]])).tolist()[0][0]  # two rows are one deviation from their mean
    1.0
    """

    batch_rows: Tensor

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.register_buffer("batch_rows", torch.zeros((), dtype=torch.int64))

    def forward(self, values: Tensor) -> Tensor:
        """[B, N], or [B, N, L] but over several ranks -> the same of the same type."""
        batch = None if torch.compiler.is_compiling() else whole_batch()
        if not self.training:
            found = super().forward(values)
            return found if self.running_var is None else self._bounded(found)
        if batch is None:
            self.trained_on(len(values) * prod(values.shape[2:]))
            return super().forward(values)
        require(values.dim() == 2, f"batch norm over several ranks takes [rows, columns], not {list(values.shape)}.")
        require(
            len(values) == batch.own_rows,
            f"batch norm over several ranks takes tensors of one row a row of the batch, {batch.own_rows} here, not "
            f"{len(values)}, since it divides by the batch's rows.",
        )
        return cast(Tensor, _WholeBatchNorm.apply(values, self.weight, self.bias, self, batch))

    def trained_on(self, rows: int) -> None:
        """A batch of so many rows, or places of rows, was normed."""
        self.batch_rows.clamp_(min=rows)

    def _bounded(self, found: Tensor) -> Tensor:
        rows = self.batch_rows.float()
        unbounded = min(UNBOUNDED, torch.finfo(found.dtype).max)
        farthest = torch.where(rows > 1, (rows - 1).clamp(min=0).sqrt(), unbounded)
        low, high = -farthest, farthest
        if self.weight is not None:
            of_column = (-1, *(1,) * (found.dim() - 2))
            weight, bias = self.weight.view(of_column), self.bias.view(of_column)
            farthest = farthest * weight.abs()
            low, high = bias - farthest, bias + farthest
        return found.clamp_(low.to(found.dtype), high.to(found.dtype))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *further: Any) -> None:
        state.setdefault(f"{prefix}batch_rows", torch.zeros((), dtype=torch.int64))
        super()._load_from_state_dict(state, prefix, *further)


def advance_running(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor, rows: int) -> None:
    """The running statistics go on as torch's batch norm moves them; variance [N] is the unbiased one, of so many
    rows."""
    if not norm.track_running_stats:
        return
    if isinstance(norm, BatchNorm1d):
        norm.trained_on(rows)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None, "a cumulative average would need the number of batches on the host"
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), norm.momentum)


class _WholeBatchNorm(torch.autograd.Function):
    """With x^ = (x - mean) / deviation over the n rows of all ranks, and sums over them:

    dx = weight / deviation (dy - sum dy / n - x^ sum(dy x^) / n)        dweight, dbias: this rank's part of the sums
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, norm: BatchNorm1d, batch: WholeBatch
    ) -> Tensor:
        exact = values.double()
        sums, squares = batch.sums([exact.sum(0), exact.square().sum(0)], "batch norm")
        count = batch.num_rows
        require(count > 1, f"batch norm: more than one row is needed in training, the batch has {count}.")
        mean = sums / count
        variance = (squares / count - mean.square()).clamp_(min=0)
        advance_running(norm, mean, variance * (count / (count - 1)), count)
        inverse = (variance + norm.eps).rsqrt()
        normed = ((exact - mean) * inverse).to(torch.promote_types(values.dtype, torch.float32))
        ctx.save_for_backward(normed, inverse, weight)
        ctx.batch, ctx.has_bias = batch, bias is not None
        out = normed if weight is None else normed * weight
        return (out if bias is None else out + bias).to(values.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normed, inverse, weight = ctx.saved_tensors
        exact = gradient.double()
        own = exact.sum(0), (exact * normed).sum(0)
        sums, products = (part / ctx.batch.num_rows for part in ctx.batch.sums(own, "batch norm"))
        scale = inverse if weight is None else inverse * weight
        moved = (scale * (exact - sums - normed * products)).to(gradient.dtype)
        grad_bias, grad_weight = (None if weight is None else part.to(weight.dtype) for part in own)
        return moved, grad_weight, grad_bias if ctx.has_bias else None, None, None
