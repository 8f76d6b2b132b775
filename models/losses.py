"""The loss that a table's targets ask for, and predictions from the same outputs.

Shapes: B rows, O outputs (`num_outputs`), K classes of a multiclass target.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require, require_known

TASKS = ("binary", "multiclass", "regression")


class TargetLoss(nn.Module):
    """Sum over the targets of each one's mean loss.

    tasks: (task, number of outputs) of each target, in the order of the outputs. `binary` is binary cross-entropy on
    a logit, `multiclass` softmax cross-entropy on K logits, `regression` squared error; K is at least 2, the others
    take one output.
    """

    def __init__(self, tasks: Sequence[tuple[str, int]]) -> None:
        super().__init__()
        require(len(tasks) > 0, "a loss needs at least one target.")
        for task, size in tasks:
            _check_task(task, size)
        self.tasks = tuple((task, size) for task, size in tasks)

    @property
    def num_outputs(self) -> int:
        """Outputs of all targets together: O."""
        return sum(size for _, size in self.tasks)

    def forward(self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None) -> Tensor:
        """Scalar float32 loss, computed in float32 also for half-precision outputs.

        outputs: [B, O]. targets: one [B] tensor each, float32 for binary and regression, int32 or int64 class numbers
        for multiclass. weight: [B] or None; each target's mean is then sum(weight loss) / sum(weight), which is 0 for
        a batch whose weights are all 0.
        """
        if len(targets) != len(self.tasks):
            raise ModelError(f"loss: {len(targets)} targets given, {len(self.tasks)} expected.")
        if weight is not None and weight.shape != outputs.shape[:1]:
            raise ModelError(f"loss: weight must be [{len(outputs)}], not {list(weight.shape)}.")
        loss = outputs.new_zeros((), dtype=torch.float32)
        for (task, _), output, target in zip(self.tasks, self._split(outputs), targets, strict=True):
            if target.shape != output.shape[:1]:
                raise ModelError(f"loss: a target must be [{len(output)}], one value a row, not {list(target.shape)}.")
            loss = loss + _weighted_mean(_row_losses(task, output, target), weight)
        return loss

    def predict(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Predictions of each target, float32: P(1) [B] for binary, [B, K] for multiclass, the value [B] otherwise."""
        return tuple(
            _prediction(task, output) for (task, _), output in zip(self.tasks, self._split(outputs), strict=True)
        )

    def _split(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """[B, O] -> float32 outputs [B, size] of each target."""
        if outputs.dim() != 2 or outputs.shape[1] != self.num_outputs:
            raise ModelError(f"loss: outputs must be [rows, {self.num_outputs}], found {list(outputs.shape)}.")
        return outputs.float().split([size for _, size in self.tasks], dim=1)


def _check_task(task: str, size: int) -> None:
    require_known("task", [task], TASKS)
    if task == "multiclass":
        require(size >= 2, f"a multiclass target takes two or more outputs, not {size}.")
    else:
        require(size == 1, f"a {task} target takes one output, not {size}.")


def _row_losses(task: str, output: Tensor, target: Tensor) -> Tensor:
    """Loss of each row [B] from its outputs [B, size] and target [B]."""
    if task == "multiclass":
        return functional.cross_entropy(output, target.long(), reduction="none")
    if task == "binary":
        return functional.binary_cross_entropy_with_logits(output[:, 0], target.float(), reduction="none")
    return functional.mse_loss(output[:, 0], target.float(), reduction="none")


def _weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return losses.mean()
    return (losses * weight).sum() / weight.sum().clamp(min=torch.finfo(torch.float32).tiny)


def _prediction(task: str, output: Tensor) -> Tensor:
    if task == "multiclass":
        return torch.softmax(output, dim=1)
    return torch.sigmoid(output[:, 0]) if task == "binary" else output[:, 0]
