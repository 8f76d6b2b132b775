"""Both models on rows that neither has seen: which is better, how sure that is, and whether it is good at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Target
from gigabatch.models.metrics.pointwise import log_loss, multiclass_log_loss, rmse, roc_auc
from gigabatch.models.metrics.ranking import RankedGroups
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric, evaluate
from gigabatch.pipeline.nightly.times import shown, unit_of_times
from gigabatch.pipeline.stages.stages import Features, Pipeline, evaluation_table_of

MORE_IS_BETTER = ("AUC", "MRR")
KEYS = {"AUC": "auc", "MRR": "mrr", "log loss": "logloss", "RMSE": "rmse"}  # in summary.json


@dataclass(frozen=True)
class Comparison:
    """Both models on one window, and what the candidate must not fall below.

    Parameters
    ----------
    metric
        AUC, MRR, log loss or RMSE.
    rows
        Of the window.
    current, candidate
        Each model's metric.
    gain, bound
        Candidate less current, so that more is better; its lower bound.
    constant
        The metric of always predicting the train split's mean (class shares, share of positives); of MRR, what a
        random order has on average.
    record
        The metric of the current model on its own test split, at the time of its training; None where its summary has
        none.
    """

    metric: str
    rows: int
    current: float
    candidate: float
    gain: float
    bound: float
    constant: float
    record: float | None = None

    def skill(self, value: float) -> float:
        """Where a value lies between the constant (0) and perfection (1); negative where it is worse than both."""
        if self.metric in MORE_IS_BETTER:
            return (value - self.constant) / (1 - self.constant)
        return 1 - value / self.constant

    def obstacle(self, max_skill_drop: float) -> str | None:
        """Why the candidate may not be promoted, however much worse the current model is; None where it may."""
        found = self.skill(self.candidate)
        if not found > 0:
            return (
                f"It is no better than a constant prediction ({self.metric} {self.constant:.4f}). Look at the labels "
                "and the columns of tonight's data."
            )
        if self.record is None:
            return None
        wanted = self.skill(self.record) - max_skill_drop
        if found >= wanted:
            return None
        return (
            f"The current model's own test split gave {self.record:.4f} when it was trained. Of the way from a "
            f"constant ({self.constant:.4f}) to perfection that was {self.skill(self.record):.0%}, and this is "
            f"{found:.0%}: a fall by more than nightly.max_skill_drop, {max_skill_drop}. Look at tonight's data; if "
            "the world did change so much, raise nightly.max_skill_drop for one night."
        )


def compare(
    pipeline: Pipeline, features: Features, current: Bundle, candidate: Bundle, summary: Mapping[str, Any]
) -> Comparison:
    """Both bundles on the rows of the test split that neither has seen, with `train.negatives` each among items that
    are drawn for it from the bundle's own vocabulary; then MRR decides where no other metric is asked for.

    summary: of the current model's run, for what it once reached.

    Raises:
        DataError: for too few rows that neither has seen, and where their labels are all alike.
    """
    settings, negatives = pipeline.config.nightly, pipeline.config.train.negatives
    link = pipeline.config.runs / pipeline.config.name / "current"
    anew = f"Remove the link {link} to start anew."
    if "trained_until" not in current.info:
        raise ConfigError(
            "the current model was trained when the schema had no time column, so no row is known to be new to it. "
            f"{anew}"
        )
    frame = unseen_rows(features, [current, candidate])
    if len(frame) < settings.min_window_rows:
        raise DataError(too_few(len(frame), settings, features, current, candidate))
    outputs = []
    for bundle in (current, candidate):
        reason = None
        if bundle.schema.targets != features.schema.targets:
            reason = "predicts other targets than today's features hold"
        elif negatives is not None and bundle.schema.entity("item") is None:
            reason = "was trained when the schema named no item, so none can be drawn for it"
        elif lost := sorted(set(bundle.schema.names("categorical", "continuous")) - set(frame.columns)):
            reason = f"reads column(s) {', '.join(map(repr, lost))}, which today's features do not have"
        if reason:
            raise ConfigError(f"the current model {reason}. {anew}")
        table = evaluation_table_of(bundle, features, frame)
        outputs.append(evaluate(bundle.model, table, bundle.schema, pipeline.device).predictions[0].cpu())
    batch, target = table.unpack(table.words), features.schema.targets[0]
    weight = None if batch.weight is None else batch.weight.cpu()
    group = None if batch.group is None else batch.group.cpu()
    window = Window(target, batch.targets[0].cpu(), train_mean(features), weight, group)
    metric = choose_metric(settings, features.schema, in_groups=negatives is not None)
    found = bootstrap(metric, outputs[0], outputs[1], window, settings, pipeline.config.seed)
    return replace(found, rows=len(frame), record=recorded(summary, target.name, found.metric))


def unseen_rows(features: Features, bundles: Sequence[Bundle]) -> Any:
    """Rows of the test split later than everything that any of the bundles was fitted or selected on."""
    time = features.schema.only("time")
    if time is None:
        raise ConfigError("nightly: the recipe has no time column, so it cannot tell which rows a model has not seen.")
    frame = features.frame("test")
    return frame[frame[time] > max(bundle.info["trained_until"] for bundle in bundles)].reset_index(drop=True)


def too_few(rows: int, settings: NightlySettings, features: Features, current: Bundle, candidate: Bundle) -> str:
    """The message where the window has fewer rows than are asked for."""
    unit = unit_of_times(features)
    ends = {name: shown(bundle.info["trained_until"], unit) for name, bundle in
            (("current", current), ("new", candidate))}  # fmt: skip
    return (
        f"only {rows:,} labelled rows come after both models' training data; nightly.min_window_rows asks for "
        f"{settings.min_window_rows}. trained_until is {ends['current']} for the current model and {ends['new']} for "
        "the new one. Wait for more data; where one of these lies too far ahead, rows with wrong times were trained "
        "on: take them out of the files, and if it is the current model's, undo its promotion (gigabatch rollback)."
    )


def train_mean(features: Features) -> Tensor:
    """What a constant predicts of the first target: the mean of the train split's labels, float64 []; the shares of
    the classes, float32 [K], where it has classes; with drawn negatives the share of positives among them."""
    target, pipeline = features.schema.targets[0], features.pipeline
    if pipeline.config.train.negatives is not None:
        return torch.tensor(1 / (1 + pipeline.config.train.negatives.per_positive), dtype=torch.float64)
    engine = load_engine(pipeline.engine)
    parts = [engine.read_parquet(path, [target.name])[target.name] for path in features.parts("train")]
    labels = [torch.as_tensor(engine.to_host(engine.array(part))) for part in parts]
    if target.task == "multiclass":
        counts = torch.cat(labels).long().bincount(minlength=target.num_outputs)
        return (counts / counts.sum()).float()
    return torch.cat(labels).double().mean()


def recorded(summary: Mapping[str, Any], target: str, metric: str) -> float | None:
    """What a run's summary.json says of this metric on its test split."""
    value = summary.get("targets", {}).get("test", {}).get(target, {}).get(KEYS[metric])
    return None if value is None else float(value)


@dataclass(frozen=True)
class Window:
    """What both models are judged on. labels [n] of the target; mean: see `train_mean`; weight [n] of the rows and
    group [n], where the schema has them."""

    target: Target
    labels: Tensor
    mean: Tensor
    weight: Tensor | None = None
    group: Tensor | None = None

    def require_variety(self) -> None:
        """Raise `DataError` where every label is the same: then no metric tells a good model from a bad one."""
        values = self.labels if self.weight is None else self.labels[self.weight > 0]
        if len(values) == 0 or bool((values == values[0]).all()):
            what = f"the same, {float(values[0]):g}" if len(values) else "of weight 0"
            raise DataError(
                f"target {self.target.name!r}: all {len(self.labels):,} labels of the rows that neither model has seen "
                f"are {what}, so they tell nothing about the models. Wait for more data."
            )


def bootstrap(
    metric: str, current: Tensor, candidate: Tensor, window: Window, settings: NightlySettings, seed: int
) -> Comparison:
    """Paired bootstrap: both models on the same resamples (Efron and Tibshirani 1993, chapter 16).

    AUC: positives and negatives are drawn apart, as many as there are, so that no resample lacks a class (stratified,
    as pROC does; Robin et al., BMC Bioinformatics 2011). Losses: rows are drawn. MRR: groups are drawn.

    Parameters
    ----------
    metric
        auc, logloss (RMSE of a regression target) or mrr.
    current, candidate
        Predictions of the window's rows, [n] or [n, K].
    window
        The rows.
    settings
        num_bootstrap resamples; bound is the (1 - confidence) quantile of the gain.
    seed
        Of the resamples.

    Returns
    -------
    Comparison
        All its numbers are finite.

    Raises
    ------
    DataError
        Where the labels are all the same, or no group has a positive.
    """
    window.require_variety()
    generator = torch.Generator().manual_seed(seed)
    if metric == "mrr":
        return _bootstrap_groups(current, candidate, window, settings, generator)
    name = "AUC" if metric == "auc" else "RMSE" if window.target.task == "regression" else "log loss"
    sign = 1.0 if name in MORE_IS_BETTER else -1.0
    used = slice(None) if window.weight is None else window.weight > 0
    labels, old, new = window.labels[used], current[used], candidate[used]
    own = torch.ones(len(labels), dtype=torch.float64) if window.weight is None else window.weight[used].double()
    strata = [labels == 1, labels != 1] if name == "AUC" else [torch.ones(len(labels), dtype=torch.bool)]
    strata = [stratum.nonzero()[:, 0] for stratum in strata]

    def measure(scores: Tensor, weight: Tensor) -> float:
        if name == "AUC":
            return float(roc_auc(scores, labels, weight))
        if name == "RMSE":
            return float(rmse(scores, labels, weight))
        return float((multiclass_log_loss if scores.dim() == 2 else log_loss)(scores, labels, weight))

    def resampled() -> Tensor:
        drawn = [rows[torch.randint(len(rows), (len(rows),), generator=generator)] for rows in strata]
        return own * torch.cat(drawn).bincount(minlength=len(labels))

    gains = []
    for _ in range(settings.num_bootstrap):
        weight = resampled()
        gains.append(sign * (measure(new, weight) - measure(old, weight)))
    before, after = measure(old, own), measure(new, own)
    constant = measure(window.mean.expand(len(labels), *window.mean.shape), own)
    bound = torch.tensor(gains, dtype=torch.float64).quantile(1 - settings.confidence)
    return Comparison(name, len(window.labels), before, after, sign * (after - before), float(bound), constant)


def _bootstrap_groups(
    current: Tensor, candidate: Tensor, window: Window, settings: NightlySettings, generator: torch.Generator
) -> Comparison:
    # MRR is a mean over groups by their weights, so it is enough to resample each group's reciprocal ranks.
    labels, group = window.labels, window.group
    assert group is not None, "choose_metric takes mrr where rows have groups"
    ranked = [RankedGroups(scores, labels, group, window.weight) for scores in (current, candidate)]
    share = ranked[0].share_of_ranks()
    each = [ranks.reciprocal_rank()[share > 0] for ranks in ranked]
    difference, share = each[1] - each[0], share[share > 0]
    count = len(difference)
    if count == 0:
        raise DataError(
            f"target {window.target.name!r}: no group of the rows that neither model has seen has a positive. Wait for "
            "more data."
        )

    def mean(values: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        return (values * share)[rows].sum() / share[rows].sum()

    drawn = (torch.randint(count, (count,), generator=generator) for _ in range(settings.num_bootstrap))
    gains = torch.stack([mean(difference, groups) for groups in drawn])
    old, new = (float(mean(ranks)) for ranks in each)
    bound = float(gains.quantile(1 - settings.confidence))
    return Comparison("MRR", len(labels), old, new, new - old, bound, random_mrr(labels, group, window.weight))


def random_mrr(labels: Tensor, group: Tensor, weight: Tensor | None = None) -> float:
    """The MRR that a random order has on average, over the groups with a positive, each by its rows' mean weight.

    Of n rows with p positives the first positive is at place r in C(n - r, p - 1) of C(n, p) orders.
    """
    _, place = group.unique(return_inverse=True)
    sizes, positives = place.bincount(), place.bincount(labels.double()).long()
    mass = torch.ones(len(labels), dtype=torch.float64) if weight is None else weight.double()
    share = (place.bincount(mass) / sizes)[positives > 0]
    kinds, kind = torch.stack([sizes, positives], 1)[positives > 0].unique(dim=0, return_inverse=True)
    means = []
    for n, p in kinds.double():
        r = torch.arange(1, int(n - p) + 2, dtype=torch.float64)
        log_chance = _log_binomial(n - r, p - 1) - _log_binomial(n, p)
        means.append((log_chance.exp() / r).sum())
    return float((torch.stack(means)[kind] * share).sum() / share.sum())


def _log_binomial(n: Tensor, k: Tensor) -> Tensor:
    return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()
