"""Metrics of targets: those of an evaluation, of which one may choose the epoch (`train.select_by`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.schema import Target
from gigabatch.loaders.tables.packed import Batch, PackedTable
from gigabatch.models.losses import RegressionLoss, TargetLoss
from gigabatch.models.metrics.pointwise import (
    accuracy,
    expected_calibration_error,
    log_loss,
    mae,
    multiclass_log_loss,
    pinball_loss,
    r2,
    rmse,
    roc_auc,
    tweedie_deviance,
)
from gigabatch.models.metrics.ranking import gauc, grouped_mrr, normalised_entropy
from gigabatch.pipeline.config.config import LOSS_METRICS, SELECTABLE
from gigabatch.pipeline.training.checkpoint import TrainingError

IN_UNITS = ("rmse", "mae", *LOSS_METRICS)  # of the target
ECE_BINS = 15  # which no choice of an epoch looks at


def metrics_of_targets(
    targets: Sequence[Target],
    predictions: Sequence[Tensor],
    rows: Batch,
    bins: int = ECE_BINS,
    loss: TargetLoss | None = None,
    negatives: float = 1.0,
) -> dict[str, dict[str, float | None]]:
    """`target_metrics` of each target by its name. rows: with labels, weights and groups, on any device.

    loss: that the model was trained with; negatives: of binary targets; as of `target_metrics`."""
    device = predictions[0].device
    group, weight = (None if column is None else column.to(device) for column in (rows.group, rows.weight))
    regressions = (None,) * len(targets) if loss is None else loss.regression
    return {
        target.name: target_metrics(target, prediction, labels.to(device), group, bins, weight, own, negatives)
        for target, prediction, labels, own in zip(targets, predictions, rows.targets, regressions, strict=True)
    }


def mean_of_targets(
    metrics: Mapping[str, Mapping[str, float | None]], name: str, targets: Sequence[Target]
) -> float | None:
    """The mean of a metric over the targets that have it; None where none has, or where several regression targets have
    it in units of their own."""
    found = [value for values in metrics.values() if (value := values.get(name)) is not None]
    in_several_units = name in IN_UNITS and sum(target.task == "regression" for target in targets) > 1
    return float(np.mean(found)) if found and not in_several_units else None


def require_selectable(select_by: str, valid: PackedTable, loss: TargetLoss) -> None:
    """Raise `TrainingError` where no target has the metric of `train.select_by`, or where the valid labels give it no
    value, whatever is predicted."""
    if select_by == "loss":
        return
    targets = valid.schema.targets
    constant = [
        torch.full((len(valid), target.num_outputs), 1 / max(target.num_outputs, 2))
        if target.task == "multiclass" or target.quantiles
        else torch.full((len(valid),), 0.5)
        for target in targets
    ]
    found = metrics_of_targets(targets, constant, valid.unpack(valid.words), loss=loss)
    if not any(select_by in values for values in found.values()):
        known = [name for name in SELECTABLE if any(name in values for values in found.values())]
        told = ", ".join(f"{target.name} ({target.task})" for target in targets)
        raise TrainingError(
            f"train.select_by={select_by}: no target has it: {told}. Set one of {', '.join(['loss', *known])}."
        )
    if mean_of_targets(found, select_by, targets) is None:
        reason = "several regression targets have it in units of their own"
        if select_by not in IN_UNITS:
            reason = "the valid split's labels are all alike, or none are in groups that tell them apart"
        raise TrainingError(f"train.select_by={select_by}: {reason}. Set it to loss, or to another metric.")


def selected_metric(select_by: str, valid: PackedTable, loss: TargetLoss, outputs: Tensor) -> float:
    """The metric by which epochs are compared, of a model's outputs [N, O] for all valid rows in the targets' units;
    NaN where they give it none."""
    targets = valid.schema.targets
    found = metrics_of_targets(targets, loss.predict(outputs), valid.unpack(valid.words), loss=loss)
    value = mean_of_targets(found, select_by, targets)
    return math.nan if value is None else value


def weight_of_label_0(
    labels: Tensor, prior_shift: float, prior_serve: float | None = None, weight: Tensor | None = None
) -> float:
    """How many rows of label 0 each of these counts as where the model serves.

    Parameters
    ----------
    labels
        [N], 0 or 1.
    prior_shift
        As of `gigabatch.pipeline.training.calibration.prior_shift`: exp(-shift) are right where rows were left out here
        as they were in training.
    prior_serve
        Share of label 1 where the model serves, which the rows get then, whatever theirs is; None: not known.
    weight
        [N] or None.

    Examples
    --------
    >>> labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> weight_of_label_0(labels, -math.log(4)), round(weight_of_label_0(labels, -math.log(4), prior_serve=0.1), 6)
    (4.0, 3.0)
    """
    mass = torch.ones(len(labels), dtype=torch.float64, device=labels.device) if weight is None else weight.double()
    ones, total = float((mass * labels).sum()), float(mass.sum())
    if prior_serve is None or not 0 < ones < total:
        return math.exp(-prior_shift)
    return ones / (total - ones) * (1 - prior_serve) / prior_serve


def serving_weight(labels: Tensor, weight: Tensor | None, negatives: float) -> Tensor | None:
    """`weight` [N] of rows where the model serves, float64: of label 0 `negatives` times as much. labels: [N]."""
    if negatives == 1:
        return weight
    mass = torch.ones(len(labels), dtype=torch.float64, device=labels.device) if weight is None else weight.double()
    return mass * torch.where(labels > 0, 1.0, negatives)


def target_metrics(
    target: Target,
    prediction: Tensor,
    labels: Tensor,
    group: Tensor | None,
    bins: int,
    weight: Tensor | None = None,
    loss: RegressionLoss | None = None,
    negatives: float = 1.0,
) -> dict[str, float | None]:
    """Metrics of one target, of rows by their weights; None where one cannot be computed (AUC of one class).

    Of several quantiles `pinball` is their mean, `coverage` the share of labels from the lowest to the highest, and the
    others are of the one nearest to the median. loss: that a regression was trained with: `pinball` of a quantile,
    `deviance` of Poisson and Tweedie. Those of groups are there where rows have groups; gauc_left_out is the share of
    rows that GAUC leaves out. negatives: how often a row of label 0 of a binary target counts (`weight_of_label_0`), in
    all but the ranking metrics: AUC is the same for any.
    """
    of = prediction, labels, weight
    if target.quantiles:
        parts = [
            pinball_loss(part, labels, tau, weight) for tau, part in zip(target.quantiles, prediction.T, strict=True)
        ]
        inside = (prediction[:, 0] <= labels) & (labels <= prediction[:, -1])
        mass = torch.ones_like(inside, dtype=torch.float64) if weight is None else weight.double()
        middle = prediction[:, target.central], labels, weight
        found = {"rmse": rmse(*middle), "mae": mae(*middle), "r2": r2(*middle), "pinball": torch.stack(parts).mean()}
        found["coverage"] = (mass * inside).sum() / mass.sum()
    elif target.task == "regression":
        counted = slice(None) if weight is None else weight > 0
        found = {"rmse": rmse(*of), "mae": mae(*of), "r2": r2(*of)}
        if loss is not None and loss.kind == "quantile":
            found["pinball"] = pinball_loss(prediction, labels, loss.tau, weight)
        elif loss is not None and loss.log_link and not bool((labels[counted] < 0).any()):
            found["deviance"] = tweedie_deviance(prediction, labels, loss.deviance_power, weight)
    elif target.task == "multiclass":
        found = {"logloss": multiclass_log_loss(*of), "accuracy": accuracy(*of)}
        found["ece"] = expected_calibration_error(prediction, labels, bins, weight)
    else:
        served = serving_weight(labels, weight, negatives)
        found = {
            "auc": roc_auc(*of),
            "logloss": log_loss(prediction, labels, served),
            "ece": expected_calibration_error(prediction, labels, bins, served),
            "accuracy": accuracy(prediction, labels, served),
            "normalised_entropy": normalised_entropy(prediction, labels, served),
        }
        if group is not None:
            found["mrr"] = grouped_mrr(prediction, labels, group, weight)
            found["gauc"], found["gauc_left_out"] = gauc(prediction, labels, group, weight)
    return {name: None if math.isnan(value) else value for name, value in ((k, float(v)) for k, v in found.items())}
