"""Both models on rows that neither has seen: which is better, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.errors import DataError
from gigabatch.models.metrics.pointwise import log_loss, multiclass_log_loss, rmse, roc_auc
from gigabatch.models.metrics.ranking import grouped_mrr, reciprocal_ranks
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric, evaluate
from gigabatch.pipeline.stages.stages import Features, Pipeline, evaluation_table_of


@dataclass(frozen=True)
class Comparison:
    """Both models on one window. gain: candidate less current, so that more is better; bound: its lower bound."""

    metric: str
    rows: int
    current: float
    candidate: float
    gain: float
    bound: float


def compare(pipeline: Pipeline, features: Features, current: Bundle, candidate: Bundle) -> Comparison:
    """Both bundles on the rows of the test split that neither has seen, with `train.negatives` each among items that
    are drawn for it from the bundle's own vocabulary; then MRR decides where no other metric is asked for."""
    settings, negatives = pipeline.config.nightly, pipeline.config.train.negatives
    frame = unseen_rows(features, [current, candidate])
    if len(frame) < settings.min_window_rows:
        raise DataError(
            f"only {len(frame)} labelled rows come after both models' training data; nightly.min_window_rows asks for "
            f"{settings.min_window_rows}. Wait for more data."
        )
    outputs = []
    for bundle in (current, candidate):
        reason = None
        if bundle.schema.targets != features.schema.targets:
            reason = "predicts other targets than today's features hold"
        elif negatives is not None and bundle.schema.entity("item") is None:
            reason = "was trained when the schema named no item, so none can be drawn for it"
        if reason:
            link = pipeline.config.runs / pipeline.config.name / "current"
            raise ConfigError(f"the current model {reason}. Remove the link {link} to start anew.")
        table = evaluation_table_of(bundle, features, frame)
        outputs.append(evaluate(bundle.model, table, bundle.schema, pipeline.device).predictions[0].cpu())
    batch = table.unpack(table.words)
    labels, group = batch.targets[0].cpu(), None if batch.group is None else batch.group.cpu()
    metric = choose_metric(settings, features.schema, in_groups=negatives is not None)
    found = bootstrap(metric, outputs[0], outputs[1], labels, group, settings, pipeline.config.seed)
    return replace(found, rows=len(frame))


def unseen_rows(features: Features, bundles: Sequence[Bundle]) -> Any:
    """Rows of the test split later than everything that any of the bundles was fitted or selected on."""
    time = features.schema.only("time")
    if time is None:
        raise ConfigError("nightly: the recipe has no time column, so it cannot tell which rows a model has not seen.")
    frame = features.frame("test")
    return frame[frame[time] > max(bundle.info["trained_until"] for bundle in bundles)].reset_index(drop=True)


def bootstrap(
    metric: str,
    current: Tensor,
    candidate: Tensor,
    labels: Tensor,
    group: Tensor | None,
    settings: NightlySettings,
    seed: int,
) -> Comparison:
    """Paired bootstrap (Efron and Tibshirani 1993, chapter 16): both models on the same resamples of rows, or of
    groups where MRR decides. bound: the (1 - confidence) quantile of the gain."""
    generator = torch.Generator().manual_seed(seed)
    if metric == "mrr":
        assert group is not None
        return _bootstrap_groups(current, candidate, labels, group, settings, generator)
    sign = 1.0 if metric == "auc" else -1.0
    binary = bool(((labels == 0) | (labels == 1)).all())
    loss_name = "log loss" if current.dim() == 2 or binary else "RMSE"

    def measure(scores: Tensor, weight: Tensor | None) -> float:
        if metric == "auc":
            return float(roc_auc(scores, labels, weight))
        if scores.dim() == 2:
            return float(multiclass_log_loss(scores, labels, weight))
        return float(log_loss(scores, labels, weight) if binary else rmse(scores, labels, weight))

    rows = len(labels)
    gains = []
    for _ in range(settings.num_bootstrap):
        weight = torch.randint(rows, (rows,), generator=generator).bincount(minlength=rows).float()
        gains.append(sign * (measure(candidate, weight) - measure(current, weight)))
    old, new = measure(current, None), measure(candidate, None)
    bound = torch.tensor(gains, dtype=torch.float64).quantile(1 - settings.confidence)
    return Comparison("AUC" if metric == "auc" else loss_name, rows, old, new, sign * (new - old), float(bound))


def _bootstrap_groups(
    current: Tensor,
    candidate: Tensor,
    labels: Tensor,
    group: Tensor,
    settings: NightlySettings,
    generator: torch.Generator,
) -> Comparison:
    # MRR is a mean over groups, so it is enough to resample each group's reciprocal ranks.
    each = [reciprocal_ranks(scores, labels, group) for scores in (current, candidate)]
    difference = each[1] - each[0]
    count = len(difference)
    gains = torch.stack(
        [difference[torch.randint(count, (count,), generator=generator)].mean() for _ in range(settings.num_bootstrap)]
    )
    old, new = (float(grouped_mrr(scores, labels, group)) for scores in (current, candidate))
    return Comparison("MRR", len(labels), old, new, new - old, float(gains.quantile(1 - settings.confidence)))
