"""Codistillation: a loss that draws a model's predictions towards those of its peers, as they were some steps ago.

Copies of a model are trained on rows of their own, each as if it were alone, and from some step on learn from labels
and from the averaged predictions of the others (Anil et al., Large scale distributed neural network training through
online distillation, ICLR 2018, arXiv 1804.03235, algorithm 1). No gradient crosses, only weights, now and then.

Shapes: B rows of a batch, O outputs, K classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.models.errors import require
from gigabatch.models.losses import RegressionLoss, TargetLoss, weighing, weighted_mean
from gigabatch.models.model import Model, Rows, lists_of, model_call


class CodistilledLoss(TargetLoss):
    """phi + weight * psi: the targets' own loss, and that of the peers' averaged predictions, by target.

    psi is the cross-entropy to the mean of the peers' probabilities (binary, and softmax for classes), for regression
    the squared difference to the mean of their values, in deviations, or the loss's own deviance from it where outputs
    are logarithms. Rows weigh in it as in the loss. What a model teaches itself (`smoothed` is False) has none.

    Parameters
    ----------
    loss
        Of the targets.
    peers
        What each peer predicts of the batch, [B, O] without a graph; at least one.
    weight
        Of psi.

    Examples
    --------
    >>> loss = CodistilledLoss(TargetLoss([("regression", 1)]), [torch.tensor([[3.0]]), torch.tensor([[5.0]])], 0.5)
    >>> loss(torch.tensor([[1.0]]), [torch.tensor([2.0])]).item()  # (1 - 2)^2 + 0.5 (1 - 4)^2
    5.5
    """

    def __init__(self, loss: TargetLoss, peers: Sequence[Tensor], weight: float) -> None:
        regression = [
            own if task == "regression" else None for (task, _), own in zip(loss.tasks, loss.regression, strict=True)
        ]
        classes = [
            None if task == "regression" else own for (task, _), own in zip(loss.tasks, loss.classes, strict=True)
        ]
        super().__init__(loss.tasks, regression, classes, loss.label_smoothing)
        require(len(peers) > 0, "codistillation: there is no peer.")
        self.weight, self.was_used, self._of_labels = weight, False, loss
        self._taught = [
            torch.stack([_prediction(task, own, output) for output in outputs]).mean(0)
            for (task, _), own, *outputs in zip(self.tasks, self.regression, *map(self._split, peers), strict=True)
        ]

    @property
    def of_labels(self) -> TargetLoss:
        """As of `TargetLoss`."""
        return self._of_labels

    def forward(
        self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None, smoothed: bool = True
    ) -> Tensor:
        """Scalar float32 loss of the rows that the peers have predicted; see `TargetLoss`."""
        self.was_used = True
        loss = super().forward(outputs, targets, weight, smoothed)
        if not smoothed:
            return loss
        parts = zip(self.tasks, self.regression, self._split(weighing(outputs, weight)), self._taught, strict=True)
        for (task, _), own, output, taught in parts:
            loss = loss + self.weight * weighted_mean(_distance(task, own, output, taught), weight)
        return loss

    def of_members(self, outputs: Tensor, targets: Sequence[Tensor], weight: Tensor | None = None) -> Tensor:
        """As of `TargetLoss`, of members one by one: peers have predicted each row once."""
        return torch.stack([self(member, targets, weight) for member in outputs.unbind(1)]).mean()


def _prediction(task: str, own: RegressionLoss, output: Tensor) -> Tensor:
    """Of outputs [B, size]: probabilities [B], [B, K] of classes, or values [B, size], float32."""
    if task == "multiclass":
        return torch.softmax(output.float(), dim=1)
    if task == "binary":
        return torch.sigmoid(output[:, 0].float())
    return output.float().exp() if own.log_link else output.float()


def _distance(task: str, own: RegressionLoss, output: Tensor, taught: Tensor) -> Tensor:
    """psi of each row [B]."""
    if task == "multiclass":
        return functional.cross_entropy(output, taught, reduction="none")
    if task == "binary":
        return functional.binary_cross_entropy_with_logits(output[:, 0], taught, reduction="none")
    if own.log_link:
        return own.of_rows(output[:, 0], taught[:, 0])
    return functional.mse_loss(output, taught, reduction="none").mean(1)


def _in_scales_of(own: Model, peer: Model, outputs: Tensor) -> Tensor:
    """A peer's outputs [B, O] as `own` would give them: scales of regression targets are those of a group's rows."""
    if peer.target_scales == own.target_scales:
        return outputs
    columns = list(outputs.double().unbind(1))
    for theirs, ours in zip(peer.target_scales, own.target_scales, strict=True):
        value, ratio = columns[theirs.output], theirs.std / ours.std
        columns[theirs.output] = (
            value + math.log(ratio) if ours.log else value * ratio + (theirs.mean - ours.mean) / ours.std
        )
    return torch.stack(columns, dim=1).to(outputs.dtype)


class Peers:
    """Copies of a model with the weights that other groups had some steps ago, on the device of the first.

    Parameters
    ----------
    model : Model
        That is trained, on its device. Each peer takes its memory once more.
    groups : iterable of int
        Numbers of the peers.
    weight : float
        Of psi.

    Examples
    --------
    >>> from gigabatch import LogisticRegression, ModelInputs
    >>> model = LogisticRegression(ModelInputs(num_ids=(), num_floats=1), LogisticRegression.Settings())
    >>> peers = Peers(model, groups=[1, 2], weight=1.0)
    >>> peers.put(1, model.state_dict())
    >>> sorted(peers.known)
    [1]
    """

    def __init__(self, model: Model, groups: Iterable[int], weight: float) -> None:
        self._model = model
        self._models = {group: copy.deepcopy(model).requires_grad_(False).eval() for group in groups}
        self.known: set[int] = set()
        self.is_teaching = False
        self.weight = weight

    @torch.no_grad()
    def put(self, group: int, tensors: dict[str, Tensor], rows: dict[str, Tensor] | None = None) -> None:
        """Weights that have come of a group: by name whole tensors, or values of the `rows` [n] of those named there.

        Without `rows` the tensors are all that the model has."""
        if rows is None:
            self._models[group].load_state_dict(tensors)
            self.known.add(group)
            return
        own = self._models[group].state_dict()
        for name, values in tensors.items():
            if name in rows:
                own[name][rows[name].to(own[name].device)] = values.to(own[name].device)
            else:
                own[name].copy_(values)

    @torch.no_grad()
    def loss(self, loss: TargetLoss, batch: Rows) -> TargetLoss:
        """What a batch is trained by: `loss`, with psi where the burn-in is over and a peer has come."""
        if not self.is_teaching or not self.known:
            return loss
        given = batch.ids, batch.floats, lists_of(batch)
        peers = [self._models[group] for group in sorted(self.known)]
        outputs = [_in_scales_of(self._model, peer, model_call(peer, *given)) for peer in peers]
        return CodistilledLoss(loss, outputs, self.weight)
