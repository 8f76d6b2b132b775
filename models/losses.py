"""The loss that a table's targets ask for, and predictions from the same outputs.

Shapes: B rows, O outputs (`num_outputs`), K classes of a multiclass target.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require, require_known

TASKS = ("binary", "multiclass", "regression")
REGRESSION_LOSSES = ("mse", "huber", "quantile")
IGNORED_CLASS = -(2**63)  # the one label that torch ignores; no int32 holds it


@dataclass(frozen=True)
class RegressionLoss:
    """The loss of a regression target, of errors in standard deviations of the target in the train split.

    Parameters
    ----------
    kind : {'mse', 'huber', 'quantile'}, default 'mse'
        `mse`: the squared error, whose best prediction is the mean. `huber` (Huber 1964): half the squared error up to
        `delta`, linear beyond, so that outliers count less. `quantile` (Koenker and Bassett 1978): the best prediction
        is the value that a share `tau` of the targets is below.
    delta : float, default 1.0
        Of `huber`, in standard deviations.
    tau : float, default 0.5
        Of `quantile`, in (0, 1).

    Raises
    ------
    ModelError
        For an unknown kind, a delta that is not positive, or a tau outside (0, 1).

    Examples
    --------
    >>> from gigabatch.models.losses import RegressionLoss, TargetLoss
    >>> loss = TargetLoss([("regression", 1)], [RegressionLoss("quantile", tau=0.9)])
    >>> round(loss(torch.tensor([[0.0]]), [torch.tensor([2.0])]).item(), 6)
    1.8
    """

    kind: str = "mse"
    delta: float = 1.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        require_known("loss of a regression target", [self.kind], REGRESSION_LOSSES)
        require(0 < self.delta < math.inf, f"delta of the huber loss must be above 0, not {self.delta}.")
        require(0 < self.tau < 1, f"tau of the quantile loss must be in (0, 1), not {self.tau}.")

    def __str__(self) -> str:
        parameter = {"huber": f"(delta={self.delta:g})", "quantile": f"(tau={self.tau:g})"}
        return self.kind + parameter.get(self.kind, "")

    def of_rows(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss [B] float32 of outputs [B] against targets [B]."""
        if self.kind == "mse":
            return functional.mse_loss(output, target, reduction="none")
        if self.kind == "huber":
            return functional.huber_loss(output, target, reduction="none", delta=self.delta)
        error = target - output
        return torch.maximum(self.tau * error, (self.tau - 1) * error)


class TargetLoss(nn.Module):
    """Sum over the targets of each one's mean loss.

    tasks: (task, number of outputs) of each target, in the order of the outputs. `binary` is binary cross-entropy on
    a logit, `multiclass` softmax cross-entropy on K logits, `regression` what `regression` says; K is at least 2, the
    others take one output.
    regression: the loss of each target, looked at where its task is regression; None is the squared error of all. The
    targets and outputs of a regression are in standard deviations (`Model.standardised`), so losses of targets in
    other units, and of other tasks, are of one size, and none drowns the others.
    """

    def __init__(
        self, tasks: Sequence[tuple[str, int]], regression: Sequence[RegressionLoss | None] | None = None
    ) -> None:
        super().__init__()
        require(len(tasks) > 0, "a loss needs at least one target.")
        for task, size in tasks:
            _check_task(task, size)
        self.tasks = tuple((task, size) for task, size in tasks)
        given = (None,) * len(self.tasks) if regression is None else tuple(regression)
        require(
            len(given) == len(self.tasks),
            f"{len(given)} losses are given for {len(self.tasks)} targets; give each one.",
        )
        for (task, _), own in zip(self.tasks, given, strict=True):
            require(own is None or task == "regression", f"a {task} target has one loss; {own} is for regression.")
        self.regression = tuple(own or RegressionLoss() for own in given)

    @property
    def description(self) -> str:
        """What is summed, such as `log loss + mse in deviations`."""
        names = {"binary": "log loss", "multiclass": "log loss of classes"}
        parts = zip(self.tasks, self.regression, strict=True)
        return " + ".join(names.get(task) or f"{own} in deviations" for (task, _), own in parts)

    @property
    def num_outputs(self) -> int:
        """Outputs of all targets together: O."""
        return sum(size for _, size in self.tasks)

    def forward(self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None) -> Tensor:
        """Scalar float32 loss, computed in float32 also for half-precision outputs.

        outputs: [B, O]. targets: one [B] tensor each, float32 for binary and regression, int32 or int64 class numbers
        for multiclass. weight: [B] or None; each target's mean is then sum(weight loss) / sum(weight), which is 0 for
        a batch whose weights are all 0.

        A class outside [0, K) is an `IndexError` on a CPU, as of torch.
        """
        loss = outputs.new_zeros((), dtype=torch.float32)
        for losses in self._of_rows(outputs, targets, weight):
            loss = loss + weighted_mean(losses, weight)
        return loss

    def sums(self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the loss of many batches together is put together from, exact to float64; arguments as of `forward`.

        Returns
        -------
        Tensor, Tensor
            [targets] float64: sum(weight loss) of each target. [] float64: sum(weight), or the number of rows.

        Examples
        --------
        >>> from gigabatch.models.losses import TargetLoss
        >>> loss, outputs, labels = TargetLoss([("regression", 1)]), torch.tensor([[1.0], [2.0], [5.0]]), torch.zeros(3)
        >>> parts = [loss.sums(outputs[rows], [labels[rows]]) for rows in (slice(0, 2), slice(2, 3))]
        >>> (sum(total for total, _ in parts) / sum(count for _, count in parts)).sum().item()
        10.0
        """
        found = [losses.double() for losses in self._of_rows(outputs, targets, weight)]
        if weight is None:
            count = torch.full((), len(outputs), dtype=torch.float64, device=outputs.device)
            return torch.stack([losses.sum() for losses in found]), count
        return torch.stack([(losses * weight).sum() for losses in found]), weight.double().sum()

    def _of_rows(self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None) -> Iterator[Tensor]:
        """The losses [B] float32 of each target."""
        if len(targets) != len(self.tasks):
            raise ModelError(f"loss: {len(targets)} targets given, {len(self.tasks)} expected.")
        if weight is not None and weight.shape != outputs.shape[:1]:
            raise ModelError(f"loss: weight must be [{len(outputs)}], not {list(weight.shape)}.")
        for (task, _), own, output, target in zip(
            self.tasks, self.regression, self._split(outputs.float()), targets, strict=True
        ):
            if target.shape != output.shape[:1]:
                raise ModelError(f"loss: a target must be [{len(output)}], one value a row, not {list(target.shape)}.")
            yield _row_losses(task, own, output, target)

    def predict(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Predictions of each target: P(1) [B] for binary and [B, K] for multiclass, float32; for regression the value
        [B] float64, in the unit of the outputs (`Model.in_target_units` gives that of the target)."""
        return tuple(
            _prediction(task, output) for (task, _), output in zip(self.tasks, self._split(outputs), strict=True)
        )

    def _split(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """[B, O] -> outputs [B, size] of each target."""
        if outputs.dim() != 2 or outputs.shape[1] != self.num_outputs:
            raise ModelError(f"loss: outputs must be [rows, {self.num_outputs}], found {list(outputs.shape)}.")
        return outputs.split([size for _, size in self.tasks], dim=1)


def _check_task(task: str, size: int) -> None:
    require_known("task", [task], TASKS)
    if task == "multiclass":
        require(size >= 2, f"a multiclass target takes two or more outputs, not {size}.")
    else:
        require(size == 1, f"a {task} target takes one output, not {size}.")


def _row_losses(task: str, regression: RegressionLoss, output: Tensor, target: Tensor) -> Tensor:
    """Loss of each row [B] from its outputs [B, size] and target [B]."""
    if task == "multiclass":
        # By default torch ignores class -100, whose loss would be 0 where that of any other class outside is an error.
        return functional.cross_entropy(output, target.long(), reduction="none", ignore_index=IGNORED_CLASS)
    if task == "binary":
        return functional.binary_cross_entropy_with_logits(output[:, 0], target.float(), reduction="none")
    return regression.of_rows(output[:, 0], target.float())


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of losses [B] by their rows' weights [B], which is 0 where all of these are."""
    if weight is None:
        return losses.mean()
    return (losses * weight).sum() / weight.sum().clamp(min=torch.finfo(torch.float32).tiny)


def _prediction(task: str, output: Tensor) -> Tensor:
    if task == "multiclass":
        return torch.softmax(output.float(), dim=1)
    return torch.sigmoid(output[:, 0].float()) if task == "binary" else output[:, 0].double()
