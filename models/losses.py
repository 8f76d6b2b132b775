"""The loss that a table's targets ask for, and predictions from the same outputs.

Shapes: B rows, O outputs (`num_outputs`), K classes of a multiclass target.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require, require_known, require_rows

TASKS = ("binary", "multiclass", "regression")
REGRESSION_LOSSES = ("mse", "huber", "quantile", "poisson", "tweedie")
LOG_LINKED = ("poisson", "tweedie")
CLASS_LOSSES = ("log_loss", "focal")
BALANCED = "balanced"
FOCAL_FLOOR = 1e-12
IGNORED_CLASS = -(2**63)  # the one label that torch ignores; no int32 holds it


@dataclass(frozen=True)
class RegressionLoss:
    """The loss of a regression target: of errors in standard deviations of the target in the train split, or, of
    `poisson` and `tweedie`, of values over its mean there.

    Parameters
    ----------
    kind : {'mse', 'huber', 'quantile', 'poisson', 'tweedie'}, default 'mse'
        `mse`: the squared error, whose best prediction is the mean. `huber` (Huber 1964): half the squared error up to
        `delta`, linear beyond, so that outliers count less. `quantile` (Koenker and Bassett 1978): the best prediction
        is the value that a share `tau` of the targets is below. `poisson`, `tweedie`: the unit deviance of a Poisson,
        or of a Tweedie distribution (Jørgensen 1987: a sum of a Poisson number of gamma amounts), for targets of 0 and
        more, many of them 0; outputs are logarithms of the mean (`log_link`).
    delta : float, default 1.0
        Of `huber`, in standard deviations.
    tau : float, default 0.5
        Of `quantile`, in (0, 1).
    taus : tuple of float, default ()
        Of `quantile`, in place of `tau`: one an output of the target, rising. The loss is the mean of theirs, and
        predictions are sorted, so that they do not cross (Chernozhukov, Fernández-Val and Galichon, Econometrica 2010:
        that brings them nearer to the true quantiles, and the loss does not grow).
    power : float, default 1.5
        Of `tweedie`, in (1, 2): the variance is the mean to this power. Near 1 as counts, near 2 as gamma amounts.

    Raises
    ------
    ModelError
        For an unknown kind, a delta that is not positive, or a tau outside (0, 1) or a power outside (1, 2).

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
    power: float = 1.5
    taus: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_known("loss of a regression target", [self.kind], REGRESSION_LOSSES)
        require(0 < self.delta < math.inf, f"delta of the huber loss must be above 0, not {self.delta}.")
        require(0 < self.tau < 1, f"tau of the quantile loss must be in (0, 1), not {self.tau}.")
        require(1 < self.power < 2, f"power of the tweedie loss must be in (1, 2), not {self.power}.")
        require(all(0 < tau < 1 for tau in self.taus), f"taus of the quantile loss must be in (0, 1): {self.taus}.")

    def __str__(self) -> str:
        if self.taus:
            return f"quantile(tau={', '.join(f'{tau:g}' for tau in self.taus)})"
        values = {"huber": ("delta", self.delta), "quantile": ("tau", self.tau), "tweedie": ("power", self.power)}
        name, value = values.get(self.kind, ("", 0.0))
        return f"{self.kind}({name}={value:g})" if name else self.kind

    @property
    def log_link(self) -> bool:
        """Whether outputs are logarithms of the predicted mean over the target's mean in the train split."""
        return self.kind in LOG_LINKED

    @property
    def deviance_power(self) -> float:
        """Of a log link: which power of the mean the variance is."""
        return 1.0 if self.kind == "poisson" else self.power

    def of_rows(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss [B] float32 of outputs [B] against targets [B]; with `taus` outputs are [B, Q]."""
        if self.taus:
            losses = [replace(self, tau=tau, taus=()).of_rows(output[:, place], target)
                      for place, tau in enumerate(self.taus)]  # fmt: skip
            return torch.stack(losses).mean(0)
        if self.kind == "mse":
            return functional.mse_loss(output, target, reduction="none")
        if self.kind == "huber":
            return functional.huber_loss(output, target, reduction="none", delta=self.delta)
        if self.kind == "poisson":
            return 2 * (output.exp() - target * output + torch.xlogy(target, target) - target)
        if self.kind == "tweedie":
            low, high = 1 - self.power, 2 - self.power
            constant = target.pow(high) / (low * high)
            return 2 * (constant - target * (low * output).exp() / low + (high * output).exp() / high)
        error = target - output
        return torch.maximum(self.tau * error, (self.tau - 1) * error)


@dataclass(frozen=True)
class ClassLoss:
    """The loss of a binary or multiclass target, of each row with the probability p of its own label.

    Parameters
    ----------
    kind : {'log_loss', 'focal'}, default 'log_loss'
        `log_loss`: -log p. `focal` (Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, equation 4):
        -(1 - p)^gamma log p, so that rows which are right already count less.
    gamma : float, default 2.0
        Of `focal`, 0 or more; 0 is the log loss.
    class_weights : tuple of float, 'balanced' or None, default None
        By class, which the loss of its rows is multiplied by; of a binary target that of 0, then that of 1. `balanced`:
        (weight of all train rows) / (K * that of the class's), as of scikit-learn. None: 1.

    Raises
    ------
    ModelError
        For an unknown kind, a negative gamma, or weights that are not all above 0.

    Examples
    --------
    >>> from gigabatch.models.losses import ClassLoss, TargetLoss
    >>> loss = TargetLoss([("binary", 1)], classes=[ClassLoss(class_weights=(1.0, 3.0))])
    >>> round(loss(torch.zeros(1, 1), [torch.ones(1)]).item(), 6), round(3 * math.log(2), 6)
    (2.079442, 2.079442)
    """

    kind: str = "log_loss"
    gamma: float = 2.0
    class_weights: tuple[float, ...] | str | None = None

    def __post_init__(self) -> None:
        require_known("loss of a binary or multiclass target", [self.kind], CLASS_LOSSES)
        require(0 <= self.gamma < math.inf, f"gamma of the focal loss must be 0 or more, not {self.gamma}.")
        given = self.class_weights
        if isinstance(given, str):
            require(given == BALANCED, f"class_weights are numbers by class, or balanced, not {given!r}.")
        elif given is not None:
            object.__setattr__(self, "class_weights", tuple(given))  # JSON knows only lists
            require(all(0 < weight < math.inf for weight in given), f"class_weights must be above 0: {given}.")

    def __str__(self) -> str:
        parts = [f"gamma={self.gamma:g}"] if self.kind == "focal" else []
        if isinstance(self.class_weights, str):
            parts.append("balanced classes")
        elif self.class_weights is not None:
            parts.append(f"class weights {', '.join(f'{weight:g}' for weight in self.class_weights)}")
        return ("focal" if self.kind == "focal" else "log loss") + (f" ({'; '.join(parts)})" if parts else "")


class TargetLoss(nn.Module):
    """Sum over the targets of each one's mean loss.

    tasks: (task, number of outputs) of each target, in the order of the outputs. `binary` is binary cross-entropy on
    a logit, `multiclass` softmax cross-entropy on K logits, `regression` what `regression` says; K is at least 2, the
    others take one output.
    regression: the loss of each target, looked at where its task is regression; None is the squared error of all. The
    targets and outputs of a regression are in standard deviations (`Model.standardised`), so losses of targets in
    other units, and of other tasks, are of one size, and none drowns the others.
    label_smoothing: a share of each label that is dealt out evenly over the target's classes, two where it is binary
    (Szegedy et al., arXiv 1512.00567), in [0, 1). It is of the loss that is learnt by, not of `sums`, which measure.
    """

    def __init__(
        self,
        tasks: Sequence[tuple[str, int]],
        regression: Sequence[RegressionLoss | None] | None = None,
        classes: Sequence[ClassLoss | None] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        require(len(tasks) > 0, "a loss needs at least one target.")
        self.tasks = tuple((task, size) for task, size in tasks)
        none = (None,) * len(self.tasks)
        values: tuple[RegressionLoss | None, ...] = none if regression is None else tuple(regression)
        labels: tuple[ClassLoss | None, ...] = none if classes is None else tuple(classes)
        for given in (values, labels):
            require(
                len(given) == len(self.tasks),
                f"{len(given)} losses are given for {len(self.tasks)} targets; give each one.",
            )
        for (task, size), value, label in zip(self.tasks, values, labels, strict=True):
            _check_task(task, size, 1 if value is None else len(value.taus) or 1)
            require(value is None or task == "regression", f"{value} is for regression, and a target is {task}.")
            require(label is None or task != "regression", f"{label} is for classes, and a target is a regression.")
            weights = None if label is None else label.class_weights
            require(
                not isinstance(weights, tuple) or len(weights) == max(size, 2),
                f"class_weights: {weights} for a {task} target of {max(size, 2)} classes.",
            )
        self.regression = tuple(value or RegressionLoss() for value in values)
        self.classes = tuple(label or ClassLoss() for label in labels)
        self._weights: dict[tuple[int, torch.device], Tensor] = {}
        require(0 <= label_smoothing < 1, f"label_smoothing must be in [0, 1), not {label_smoothing}.")
        of_classes = [own for (task, _), own in zip(self.tasks, self.classes, strict=True) if task != "regression"]
        require(
            not label_smoothing or bool(of_classes),
            "label_smoothing is for binary and multiclass targets; there is none.",
        )
        require(
            not label_smoothing or all(own.kind != "focal" for own in of_classes),
            "label_smoothing and the focal loss do not go together: take one of them.",
        )
        self.label_smoothing = label_smoothing

    def balanced(self, counts: Sequence[Tensor | None]) -> "TargetLoss":
        """The loss with each target's `balanced` weights as numbers. counts: of each target the train rows [K] of each
        class, or the sums of their weights; None where its loss asks for none."""
        found: list[ClassLoss | None] = []
        for (task, _), own, count in zip(self.tasks, self.classes, counts, strict=True):
            if own.class_weights == BALANCED:
                if count is None or not bool((count > 0).all()):
                    raise ModelError("class_weights: balanced needs train rows of each class.")
                share = count.double() * len(count) / count.double().sum()
                own = replace(own, class_weights=tuple((1 / share).tolist()))
            found.append(None if task == "regression" else own)
        values = [
            own if task == "regression" else None for (task, _), own in zip(self.tasks, self.regression, strict=True)
        ]
        return TargetLoss(self.tasks, values, found, self.label_smoothing)

    @property
    def asks_for_counts(self) -> tuple[int, ...]:
        """Places of the targets whose `balanced` weights are yet to be found."""
        return tuple(place for place, own in enumerate(self.classes) if own.class_weights == BALANCED)

    @property
    def description(self) -> str:
        """What is summed, such as `20 x log loss + mse in deviations`."""
        found = []
        for (task, _), value, label in zip(self.tasks, self.regression, self.classes, strict=True):
            if task == "regression":
                found.append(f"{value} over the mean" if value.log_link else f"{value} in deviations")
            else:
                found.append(f"{label} of classes" if task == "multiclass" else str(label))
        counts = Counter(found)  # in the order of the targets
        return " + ".join(text if count == 1 else f"{count} x {text}" for text, count in counts.items())

    @property
    def of_labels(self) -> "TargetLoss":
        """The loss without what peers teach (`CodistilledLoss`)."""
        return self

    @property
    def num_outputs(self) -> int:
        """Outputs of all targets together: O."""
        return sum(size for _, size in self.tasks)

    def forward(
        self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None, smoothed: bool = True
    ) -> Tensor:
        """Scalar float32 loss, computed in float32 also for half-precision outputs.

        outputs: [B, O]. targets: one [B] tensor each, float32 for binary and regression, int32 or int64 class numbers
        for multiclass. weight: [B] or None; each target's mean is then sum(weight loss) / sum(weight), which is 0 for
        a batch whose weights are all 0. smoothed: False for targets that are probabilities already, without
        `label_smoothing`.

        A class outside [0, K) is an `IndexError` on a CPU, as of torch; a batch of 0 rows a `ModelError`.
        """
        require_rows(len(outputs))
        loss = outputs.new_zeros((), dtype=torch.float32)
        for losses in self._of_rows(outputs, targets, weight, self.label_smoothing if smoothed else 0.0):
            loss = loss + weighted_mean(losses, weight)
        return loss

    def of_members(self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None) -> Tensor:
        """The mean [] float32 of members' losses, from each one's outputs, [B, k, O] together; else as `forward`."""
        repeated = [target.repeat_interleave(outputs.shape[1]) for target in targets]
        own = None if weight is None else weight.repeat_interleave(outputs.shape[1])
        return self(outputs.flatten(0, 1), repeated, own)

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
        return torch.stack([weighted(losses, weight).sum() for losses in found]), weight.double().sum()

    def of_rows(self, outputs: Tensor, targets: Sequence[Tensor]) -> Tensor:
        """The loss [B] float32 of each row, of all targets together; arguments as of `forward`."""
        return torch.stack(list(self._of_rows(outputs, targets, None))).sum(0)

    def _of_rows(
        self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None, smoothing: float = 0.0
    ) -> Iterator[Tensor]:
        """The losses [B] float32 of each target."""
        if len(targets) != len(self.tasks):
            raise ModelError(f"loss: {len(targets)} targets given, {len(self.tasks)} expected.")
        if weight is not None and weight.shape != outputs.shape[:1]:
            raise ModelError(f"loss: weight must be [{len(outputs)}], not {list(weight.shape)}.")
        for place, (output, target) in enumerate(zip(self._split(weighing(outputs, weight)), targets, strict=True)):
            if target.shape != output.shape[:1]:
                raise ModelError(f"loss: a target must be [{len(output)}], one value a row, not {list(target.shape)}.")
            task = self.tasks[place][0]
            if task == "regression":
                value = self.regression[place]
                yield value.of_rows(output if value.taus else output[:, 0], target.float())
                continue
            losses, own = _row_losses(task, output, target, smoothing), self.classes[place]
            if own.kind == "focal":  # p is exp(-log loss); the floor, since the slope of a root at 0 has no bound
                losses = losses * (-torch.expm1(-losses)).clamp(min=FOCAL_FLOOR).pow(own.gamma)
            if own.class_weights is not None:
                losses = losses * self._class_weights(place, losses.device)[target.long()]
            yield losses

    def _class_weights(self, place: int, device: torch.device) -> Tensor:
        """[K] float32, on the device from the first step on: a copy in a later one would make it wait."""
        if (place, device) not in self._weights:
            given = self.classes[place].class_weights
            require(isinstance(given, tuple), "class_weights: balanced is yet to be fitted; see TargetLoss.balanced.")
            self._weights[place, device] = torch.tensor(given, dtype=torch.float32, device=device)
        return self._weights[place, device]

    def predict(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Predictions of each target: P(1) [B] for binary and [B, K] for multiclass, float32; for regression the value
        [B] float64, or of several quantiles [B, Q], in the unit of the outputs (`Model.in_target_units` gives that of
        the target)."""
        return tuple(
            _prediction(task, output) for (task, _), output in zip(self.tasks, self._split(outputs), strict=True)
        )

    def _split(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """[B, O] -> outputs [B, size] of each target."""
        if outputs.dim() != 2 or outputs.shape[1] != self.num_outputs:
            raise ModelError(f"loss: outputs must be [rows, {self.num_outputs}], found {list(outputs.shape)}.")
        return outputs.split([size for _, size in self.tasks], dim=1)


def _check_task(task: str, size: int, values: int) -> None:
    require_known("task", [task], TASKS)
    if task == "multiclass":
        require(size >= 2, f"a multiclass target takes two or more outputs, not {size}.")
    else:
        require(size == values, f"a {task} target takes {'one output' if values == 1 else values}, not {size}.")


def _row_losses(task: str, output: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Log loss of each row [B] from its outputs [B, size] and target [B]."""
    if task == "multiclass":
        # By default torch ignores class -100, whose loss would be 0 where that of any other class outside is an error.
        labels = target.long()
        return functional.cross_entropy(
            output, labels, reduction="none", ignore_index=IGNORED_CLASS, label_smoothing=smoothing
        )
    label = target.float() if not smoothing else target.float() * (1 - smoothing) + smoothing / 2
    return functional.binary_cross_entropy_with_logits(output[:, 0], label, reduction="none")


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of losses [B] by their rows' weights [B], which is 0 where all of these are."""
    if weight is None:
        return losses.mean()
    return weighted(losses, weight).sum() / weight.sum().clamp(min=torch.finfo(torch.float32).tiny)


def weighing(outputs: Tensor, weight: Tensor | None) -> Tensor:
    """float32 outputs [B, O], 0 in rows of weight 0: a gradient of 0 times an infinite slope would be no number."""
    outputs = outputs.float()
    return outputs if weight is None else outputs.masked_fill((weight == 0)[:, None], 0.0)


def weighted(losses: Tensor, weight: Tensor) -> Tensor:
    """losses [B] times weight [B]: 0 where the weight is, also of a loss that is no number, as of a count below 0."""
    return losses.masked_fill(weight == 0, 0.0) * weight


def _prediction(task: str, output: Tensor) -> Tensor:
    if task == "multiclass":
        return torch.softmax(output.float(), dim=1)
    if task == "binary":
        return torch.sigmoid(output[:, 0].float())
    return (output[:, 0] if output.shape[1] == 1 else output).double()
