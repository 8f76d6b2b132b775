"""Models on rows that none of them has seen: which is better, how sure that is, and whether it is good at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Target
from gigabatch.models.metrics.pointwise import (
    RocAucByWeight,
    churn_unit,
    log_loss,
    log_losses,
    multiclass_log_loss,
    multiclass_log_losses,
    pinball_loss,
    pinball_losses,
    prediction_churn,
    rmse,
    roc_auc,
    weighted_mean,
)
from gigabatch.models.metrics.ranking import RankedGroups
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings
from gigabatch.pipeline.display import apart
from gigabatch.pipeline.evaluation.evaluate import choose_metric, evaluate
from gigabatch.pipeline.evaluation.labels import changed_labels
from gigabatch.pipeline.evaluation.paired import Labelled, units_of
from gigabatch.pipeline.nightly.codes import MORE_IS_BETTER
from gigabatch.pipeline.nightly.times import shown, unit_of_times
from gigabatch.pipeline.stages.stages import Features, evaluation_table_of

PINBALL = "pinball loss"
KEYS = {"AUC": "auc", "MRR": "mrr", "log loss": "logloss", "RMSE": "rmse", PINBALL: "pinball"}  # in summary.json
MOST = 1e300  # by which metrics are told apart, so that a quantile of gains is a number
ROUNDING = 1e-9  # how far below 1 a mean of ones may lie by rounding


@dataclass(frozen=True)
class Floor:
    """A new model on one window, and the constant that it must beat.

    Parameters
    ----------
    metric
        AUC, MRR, log loss, RMSE, or the pinball loss of a quantile.
    rows
        Of the window.
    candidate
        The model's metric.
    constant
        The metric of always predicting the train split's mean (class shares, share of positives); of MRR, what a
        random order has on average.

    Examples
    --------
    >>> Floor("AUC", 1000, candidate=0.49, constant=0.5).no_better_than_constant()[:43]
    'It is no better than a constant prediction '
    >>> Floor("RMSE", 1000, candidate=2.0, constant=8.0).skill(2.0)
    0.75
    """

    metric: str
    rows: int
    candidate: float
    constant: float

    def skill(self, value: float, constant: float | None = None) -> float:
        """Where a value lies between a constant (0) and perfection (1); negative where it is worse than both. constant:
        of the rows that the value is of; None: of the window's."""
        constant = self.constant if constant is None else constant
        if self.metric in MORE_IS_BETTER:
            return (value - constant) / (1 - constant)
        return 1 - value / constant

    def no_better_than_constant(self) -> str | None:
        """Why the candidate may not be promoted, whatever else there is; None where it beats the constant."""
        if self.skill(self.candidate) > 0:
            return None
        constant, _ = apart([self.constant, self.candidate])
        return (
            f"It is no better than a constant prediction ({self.metric} {constant}). Look at the labels and the "
            "columns of tonight's data."
        )


@dataclass(frozen=True)
class Comparison(Floor):
    """Both models on one window, and what the candidate must not fall below.

    Parameters
    ----------
    current
        The current model's metric.
    gain, bound, upper
        Candidate less current, so that more is better; its lower bound, and the upper one of the same confidence, which
        decides nothing. None in lines of older versions.
    record
        The metric of the current model on its own test split, at the time of its training; None where its summary has
        none.
    record_constant
        That of a constant on that split, beside which the record counts: where labels are rarer, or numbers smaller,
        every loss is. None where the evaluation had none by this metric, as by MRR, of a quantile, with drawn negatives
        or without baselines; then the window's constant stands for it.
    prediction_churn
        How far the two models' predictions of the window's rows are apart on average, which decides nothing: see
        `Window.churn`. None in lines of older versions, and where it has no unit.

    Examples
    --------
    >>> found = Comparison("RMSE", 1000, candidate=2.01, constant=8.0, current=2.0, gain=-0.01, bound=-0.02)
    >>> found.holds(0.001), found.holds(0.01)  # of 8.0
    (False, True)
    """

    current: float
    gain: float
    bound: float
    record: float | None = None
    record_constant: float | None = None
    upper: float | None = None
    prediction_churn: float | None = None

    def holds(self, tolerance: float) -> bool:
        """Whether the lower bound of the gain lies above minus the tolerance, see `tolerated`."""
        return self.bound > -self.tolerated(tolerance)

    def tolerated(self, tolerance: float) -> float:
        """A tolerance in the metric's unit: as it is for AUC and MRR; of a loss, whose unit is the target's, that share
        of the constant's."""
        return tolerance if self.metric in MORE_IS_BETTER else tolerance * self.constant

    def obstacle(self, max_skill_drop: float) -> str | None:
        """Why the candidate may not be promoted, however much worse the current model is; None where it may."""
        if (text := self.no_better_than_constant()) or self.record is None:
            return text
        found, before = self.skill(self.candidate), self.skill(self.record, self.record_constant)
        if found >= before - max_skill_drop:
            return None
        then = self.constant if self.record_constant is None else self.record_constant
        record, candidate, there, here = apart([self.record, self.candidate, then, self.constant])
        constants = f"{here} tonight" if self.record_constant is None else f"{there} there, {here} tonight"
        return (
            f"The current model's own test split gave {record} when it was trained, and the new one has {candidate} on "
            f"tonight's rows. Of the way from a constant ({constants}) to perfection that was {before:.0%}, and this "
            f"is {found:.0%}: a fall by more than nightly.max_skill_drop, {max_skill_drop}. Look at tonight's data; if "
            "the world did change so much, raise nightly.max_skill_drop for one night."
        )


@dataclass(frozen=True)
class Other:
    """A run that the new model is compared with: its id, its bundle and what its summary.json holds."""

    run: str
    bundle: Bundle
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """What a night found about the new model, on one window.

    Parameters
    ----------
    rows
        Of the window.
    floors
        By target, the first one first: the new model and a constant; against the current model, where there is one.
    reference
        By target, against the reference.
    left_out
        What could not be compared, in sentences.
    """

    rows: int
    floors: dict[str, Floor]
    reference: dict[str, Comparison] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def first(self) -> Floor:
        """Of the target that is named first."""
        return next(iter(self.floors.values()))


@dataclass(frozen=True)
class Seen:
    """What `compare` had before it, for who shows more of it than decides.

    Parameters
    ----------
    frame
        The window's rows of the features stage, N of them.
    others
        By role: `candidate`, and where they are `current` and `reference`.
    predicted
        By role, of each target: see `predicted`. With drawn negatives the rows of each positive lie one after another.
    """

    frame: Any
    others: Mapping[str, Other]
    predicted: Mapping[str, list[tuple[Tensor, Window]]]


def compare(
    features: Features,
    candidate: Other,
    current: Other | None,
    reference: Other | None = None,
    look: Callable[[Seen], None] | None = None,
) -> Judged:
    """The new model and others on the rows of the test split that none of them has seen, target by target; with
    `train.negatives` each row among items that are drawn for it from the bundle's own vocabulary.

    Parameters
    ----------
    features
        Tonight's.
    candidate, current
        What was trained tonight, and what is promoted; None where nothing is.
    reference
        What was promoted some nights ago. One that cannot be judged by today's features is left out, and that is said.
    look
        Is given what was compared, which is let go of afterwards.

    Raises
    ------
    DataError
        For classes that only one of the two knows, for too few rows that none has seen, and where the labels of the
        first target are all alike. Another target of which they are is left out, and that is said.
    ConfigError
        Where the current model predicts or reads what today's features do not have.
    """
    by_hand = (
        f"The two cannot be compared: gigabatch promote {candidate.run} makes the new model current, and gigabatch "
        "rollback brings the current one back."
    )
    left_out = []
    if current is not None:
        if changed := changed_since(current, features):
            raise DataError(f"{changed} If labels are wrong, correct them or remove those rows. {by_hand}")
        if reason := cannot_be_judged(current.bundle, features):
            raise ConfigError(f"the current model {reason}. {by_hand}")
    if reference is not None:
        reason = changed_since(reference, features) or cannot_be_judged(reference.bundle, features)
        if reason:
            left_out.append(f"The reference, run {reference.run}, was not compared: it {reason}.")
            reference = None
    new = "new model" if current is None else "new one"
    called = {"current model": current, new: candidate, "reference": reference}
    known = {name: other for name, other in called.items() if other is not None}
    frame = window_rows(features, {name: other.bundle.info["trained_until"] for name, other in known.items()})
    found = {name: predicted(features, other.bundle, frame) for name, other in known.items()}
    settings, seed = features.pipeline.config.nightly, features.pipeline.config.seed
    floors: dict[str, Floor] = {}
    referred: dict[str, Comparison] = {}
    for place, target in enumerate(features.schema.targets):
        metric, mean = metric_of(features, place), train_mean(features, place)
        scores = {name: values[place][0] for name, values in found.items()}
        window = replace(found[new][place][1], mean=mean)
        try:
            if current is None:
                floors[target.name] = replace(floor(metric, scores[new], window), rows=len(frame))
            else:
                compared = bootstrap(metric, scores["current model"], scores[new], window, settings, seed)
                floors[target.name] = replace(
                    compared,
                    rows=len(frame),
                    record=recorded(current.summary, target, compared.metric, window.quantile),
                    record_constant=recorded_constant(current.summary, target, compared.metric),
                )
            if reference is not None:
                compared = bootstrap(metric, scores["reference"], scores[new], window, settings, seed)
                record = recorded(reference.summary, target, compared.metric, window.quantile)
                referred[target.name] = replace(compared, rows=len(frame), record=record)
        except DataError as error:
            if place == 0:
                raise
            left_out.append(f"Not compared: {error}")
    if look is not None:
        roles = {{"current model": "current", new: "candidate"}.get(name, name): name for name in known}
        look(Seen(frame, {r: known[n] for r, n in roles.items()}, {r: found[n] for r, n in roles.items()}))
    return Judged(len(frame), floors, referred, tuple(left_out))


def changed_since(other: Other, features: Features) -> str:
    """What of today's labels means something else than when the model was trained, in sentences; else empty."""
    today = features.pipeline.config.to_dict()
    targets = other.bundle.schema.targets, features.schema.targets
    return " ".join(changed_labels(*targets, other.summary["config"], today))


def metric_of(features: Features, place: int = 0) -> str:
    """What decides for the target at this place: auc, mrr or logloss."""
    config = features.pipeline.config
    return choose_metric(config.nightly, features.schema, in_groups=config.train.negatives is not None, place=place)


def cannot_be_judged(current: Bundle, features: Features) -> str | None:
    """Why the current model cannot be measured on today's features; None where it can."""
    if "trained_until" not in current.info:
        return "was trained when the schema had no time column, so no row is known to be new to it"
    if current.schema.targets != features.schema.targets:
        return "predicts other targets than today's features hold"
    if features.pipeline.config.train.negatives is not None and current.schema.entity("item") is None:
        return "was trained when the schema named no item, so none can be drawn for it"
    read = current.schema.names("categorical", "continuous")
    read += [name for column in current.schema.lists for name in column.columns]
    if lost := sorted(set(read) - set(features.schema.table_columns)):
        return f"reads column(s) {', '.join(map(repr, lost))}, which today's features do not have"
    return None


def predicted(features: Features, bundle: Bundle, frame: Any) -> list[tuple[Tensor, Window]]:
    """Of each target, what a bundle predicts of these rows, [n] or [n, K] (of several quantiles the one nearest to
    the median), and the rows as they are judged, whose mean is left open."""
    table = evaluation_table_of(bundle, features, frame)
    scores = evaluate(bundle.model, table, bundle.schema, features.pipeline.device).predictions
    batch = table.unpack(table.words)
    weight = None if batch.weight is None else batch.weight.cpu()
    group = None if batch.group is None else batch.group.cpu()
    drawn, left_open = features.pipeline.config.train.negatives is not None, torch.tensor(float("nan"))
    return [
        (
            (prediction[:, target.central] if target.quantiles else prediction).cpu(),
            Window(target, labels.cpu(), left_open, weight, group, drawn, quantile_of(features, target)),
        )
        for prediction, target, labels in zip(scores, features.schema.targets, batch.targets, strict=True)
    ]


def quantile_of(features: Features, target: Target) -> float | None:
    """Which quantile of a target is predicted (of several the one nearest to the median); None where its mean is."""
    loss = features.pipeline.config.train.losses.get(target.name)
    tau = None if loss is None else _tau(loss.kind, loss.tau)
    return target.quantiles[target.central] if tau is None and target.quantiles else tau


def _tau(kind: str | None, tau: float | None) -> float | None:
    """Which quantile a loss of that kind and setting learns; None where it learns none."""
    if kind != "quantile":
        return None
    return 0.5 if tau is None else tau


def window_rows(features: Features, ends: Mapping[str, float]) -> Any:
    """Rows of the test split later than everything that any of the models was fitted or selected on, but for those of
    weight 0, which tell nothing; of a group in which any row weighs more all of them, as a rank counts every row.

    ends: each one's `trained_until`, by what a message calls it. `DataError` for fewer rows of a weight above 0 than
    `nightly.min_window_rows`.
    """
    time, wanted = features.schema.only("time"), features.pipeline.config.nightly.min_window_rows
    if time is None:
        raise ConfigError("nightly: the recipe has no time column, so it cannot tell which rows a model has not seen.")
    frame = features.frame("test")
    frame = frame[frame[time] > max(ends.values())]
    weight, group = (features.schema.only(role) for role in ("weight", "group"))
    count, told = len(frame), frame
    if weight is not None:
        told = frame[frame[weight] > 0]
        count = len(told)
        if group is not None:
            told = frame[frame[group].isin(told[group])]
    if count >= wanted:
        return told.reset_index(drop=True)
    unit, both = unit_of_times(features), len(ends) > 1
    whose = {1: "the model's", 2: "both models'"}.get(len(ends), "all models'")
    until = " and ".join(f"{shown(end, unit)} for the {name}" for name, end in ends.items())
    rows = "labelled rows" if weight is None else "labelled rows of a weight above 0"
    rollback = ", and if it is the current model's, undo its promotion (gigabatch rollback)" if both else ""
    raise DataError(
        f"only {count:,} {rows} come after {whose} training data; "
        f"nightly.min_window_rows asks for {wanted}. trained_until is {until}. Wait for more data; where such a time "
        f"lies too far ahead, rows with wrong times were trained on: take them out of the files{rollback}."
    )


def train_mean(features: Features, place: int = 0) -> Tensor:
    """What a constant predicts of the target at this place: the mean of the train split's labels by their weights,
    float64 [], their quantile where the loss is that of one; the shares of the classes, float32 [K], where it has
    classes; with drawn negatives the share of positives among them."""
    target, pipeline = features.schema.targets[place], features.pipeline
    if pipeline.config.train.negatives is not None:
        return torch.tensor(1 / (1 + pipeline.config.train.negatives.per_positive), dtype=torch.float64)
    engine, weight = load_engine(pipeline.engine), features.schema.only("weight")
    names = [target.name] if weight is None else [target.name, weight]
    parts = [engine.read_parquet(path, names) for path in features.parts("train")]
    labels, mass = (
        torch.cat([torch.tensor(engine.to_host(engine.array(part[name]))) for part in parts])
        for name in (names[0], names[-1])
    )
    mass = torch.ones(len(labels), dtype=torch.float64) if weight is None else mass.double()
    if (quantile := quantile_of(features, target)) is not None:
        order = labels.double().argsort()
        share = mass[order].cumsum(0) / mass.sum()
        row = int(torch.searchsorted(share, quantile))
        return labels.double()[order][min(row, len(order) - 1)]
    if target.task == "multiclass":
        return (labels.long().bincount(mass, minlength=target.num_outputs) / mass.sum()).float()
    return (labels.double() * mass).sum() / mass.sum()


def recorded(summary: Mapping[str, Any], target: Target, metric: str, quantile: float | None = None) -> float | None:
    """What a run's summary.json says of this metric on its test split; of a final run, on that of the measured one.

    quantile: that of the window, see `quantile_of`; a pinball loss of another one is no record of it.
    """
    if metric == PINBALL:
        loss = summary["config"]["train"].get("losses", {}).get(target.name, {})
        tau = _tau(loss.get("kind"), loss.get("tau"))
        if target.quantiles or tau is None or tau != quantile:  # of several it is the mean of all of them
            return None
    summary = summary.get("measured") or summary
    value = summary.get("targets", {}).get("test", {}).get(target.name, {}).get(KEYS[metric])
    return None if value is None else float(value)


def recorded_constant(summary: Mapping[str, Any], target: Target, metric: str) -> float | None:
    """What it says of a constant; None where its evaluation compared with none by this metric, or where that is
    perfect, as of labels that are all alike: no share of the way from there can be told."""
    compared = (summary.get("measured") or summary).get("baselines") or {"found": []}
    mine = [item for item in compared["found"] if (item["name"], item["target"]) == ("constant", target.name)]
    found = [part["baseline"] for item in mine for part in item["differences"] if part["metric"] == KEYS[metric]]
    if not found:
        return None
    told = float(found[0]) < 1 if metric in MORE_IS_BETTER else float(found[0]) > 0
    return float(found[0]) if told else None


@dataclass(frozen=True)
class Window:
    """What models are judged on. labels [n] of the target; mean: see `train_mean`; weight [n] of the rows and group
    [n], where the schema has them; drawn: the rows that are not positive are negatives of each model's own; quantile:
    see `quantile_of`."""

    target: Target
    labels: Tensor
    mean: Tensor
    weight: Tensor | None = None
    group: Tensor | None = None
    drawn: bool = False
    quantile: float | None = None

    @property
    def loss(self) -> str:
        """The name of the loss that decides."""
        if self.target.task != "regression":
            return "log loss"
        return "RMSE" if self.quantile is None else PINBALL

    @property
    def mass(self) -> Tensor:
        """Weight of each row, float64 [n]."""
        return torch.ones(len(self.labels), dtype=torch.float64) if self.weight is None else self.weight.double()

    def require_variety(self) -> None:
        """Raise `DataError` where every label is the same: then no metric tells a good model from a bad one."""
        values = self.labels[self.mass > 0]
        if len(values) == 0 or bool((values == values[0]).all()):
            what = f"the same, {float(values[0]):g}" if len(values) else "of weight 0"
            raise DataError(
                f"target {self.target.name!r}: all {len(self.labels):,} labels of the rows that come after the "
                f"training data are {what}, so they tell nothing about a model. Wait for more data."
            )

    def measure(self, name: str, scores: Tensor) -> float:
        """A metric of predictions [n] or [n, K], by the rows' weights. name: as of `Floor`."""
        if name == "MRR":
            ranks, share = self.reciprocal_ranks(scores)
            return float((ranks * share).sum() / share.sum())
        return _pointwise(name, scores, self.labels, self.mass, quantile=self.quantile)

    def churn(self, first: Tensor, second: Tensor) -> float | None:
        """Mean |p1 - p2| of two models' predictions, by the rows' weights: of probabilities as they are, of a
        regression target in deviations of the window's labels; None where these do not vary.

        Rows with negatives (`train.negatives`) are those of the positives alone: each model has negatives of its own.
        """
        rows = self.mass > 0
        if self.drawn:
            rows &= self.labels == 1
        unit = churn_unit(self.target.task, self.labels, self.weight)
        if math.isnan(unit) or not bool(rows.any()):
            return None
        return float(prediction_churn(first[rows], second[rows], self.mass[rows])) / unit

    def units(self, name: str) -> float:
        """Of how many rows or groups of one weight a metric (as of `Floor`) is; of AUC those of the rarer label."""
        if name == "MRR":
            return units_of(self.reciprocal_ranks(self.labels)[1], None)
        group = self.group if self.group is not None and self.group[self.mass > 0].unique().numel() > 1 else None
        labelled = Labelled(self.target.task, self.labels, self.weight, group)
        return labelled.units if name == "AUC" else units_of(self.mass, group)

    def reciprocal_ranks(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Of each group that counts, and its share; `DataError` where none has a positive."""
        assert self.group is not None, "choose_metric takes mrr where rows have groups"
        ranked = RankedGroups(scores, self.labels, self.group, self.weight)
        share = ranked.share_of_ranks()
        if not bool((share > 0).any()):
            raise DataError(
                f"target {self.target.name!r}: no group of the rows that come after the training data has a positive. "
                "Wait for more data."
            )
        return ranked.reciprocal_rank()[share > 0], share[share > 0]


def _pointwise(name: str, scores: Tensor, labels: Tensor, weight: Tensor, quantile: float | None = None) -> float:
    if name == "AUC":
        return float(roc_auc(scores, labels, weight))
    if name == "RMSE":
        return float(rmse(scores, labels, weight))
    if quantile is not None:
        return float(pinball_loss(scores, labels, quantile, weight))
    return float((multiclass_log_loss if scores.dim() == 2 else log_loss)(scores, labels, weight))


def _losses(name: str, scores: Tensor, labels: Tensor, quantile: float | None) -> Tensor:
    """float64 [n]: what a loss of `_pointwise` is the mean of by the weights, or the root of that; see `_mean_of`."""
    if name == "RMSE":
        return (scores.double() - labels.double()).square()
    if quantile is not None:
        return pinball_losses(scores, labels, quantile)
    return (multiclass_log_losses if scores.dim() == 2 else log_losses)(scores, labels)


def _mean_of(name: str, losses: Tensor, weight: Tensor) -> Tensor:
    mean = weighted_mean(losses, weight)
    return mean.sqrt() if name == "RMSE" else mean


def floor(metric: str, candidate: Tensor, window: Window) -> Floor:
    """A model and a constant on a window.

    Parameters
    ----------
    metric
        auc, logloss (of a regression target the RMSE, or a quantile's pinball loss) or mrr.
    candidate
        Predictions of the window's rows, [n] or [n, K].
    window
        The rows.

    Returns
    -------
    Floor
        All its numbers are finite.

    Raises
    ------
    DataError
        Where the labels are all the same, or no group has a positive.
    """
    window.require_variety()
    names = {"auc": "AUC", "mrr": "MRR", "logloss": window.loss}
    name, rows = names[metric], len(window.labels)
    value = window.measure(name, candidate)
    if name == "MRR":
        assert window.group is not None
        constant = random_mrr(window.labels, window.group, window.weight)
        if constant > 1 - ROUNDING:
            raise DataError(
                f"target {window.target.name!r}: every group of the rows that come after the training data has "
                "positives alone, or none, so their order tells nothing. Wait for more data."
            )
        return Floor(name, rows, value, constant)
    return Floor(name, rows, value, window.measure(name, window.mean.expand(rows, *window.mean.shape)))


def bootstrap(
    metric: str, current: Tensor, candidate: Tensor, window: Window, settings: NightlySettings, seed: int
) -> Comparison:
    """Paired bootstrap: both models on the same resamples (Efron and Tibshirani 1993, chapter 16).

    AUC: positives and negatives are drawn apart, as many as there are, so that no resample lacks a class (stratified,
    as pROC does; Robin et al., BMC Bioinformatics 2011). Losses: rows are drawn. Where rows have groups, whole groups
    are, as rows of one are not independent: for AUC those of one class and those of both apart. Of few rows or groups,
    or few of a label, resamples vary too little: bounds are moved away from the gain as Student's t and the standard
    error of so few ask (`few_units`).

    Parameters
    ----------
    metric
        auc, logloss (of a regression target the RMSE, or a quantile's pinball loss) or mrr.
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
    alone = floor(metric, candidate, window)
    sign = 1.0 if alone.metric in MORE_IS_BETTER else -1.0
    before = window.measure(alone.metric, current)
    generator = torch.Generator().manual_seed(seed)
    rounds = settings.num_bootstrap
    if alone.metric == "MRR":
        gains = _gains_of_groups(current, candidate, window, rounds, generator)
    else:
        gains = _gains_of_rows(alone.metric, current, candidate, window, rounds, generator)
    gain, churn = float(sign * _gain(alone.candidate, before)), window.churn(current, candidate)
    bound, upper = (float((sign * gains).quantile(q)) for q in (1 - settings.confidence, settings.confidence))
    if abs(gain) < MOST:  # else a prediction is infinite, and the ends are of resamples without it
        wider = few_units(window.units(alone.metric), settings.confidence)
        bound, upper = (gain + wider * (end - gain) for end in (bound, upper))
    return Comparison(**vars(alone), current=before, gain=gain, bound=bound, upper=upper, prediction_churn=churn)


def few_units(units: float, confidence: float) -> float:
    """How many times as far from a gain its bound lies as resamples of so few `units` say, whose variance is
    (units - 1) / units of the true one; of one and less as of two.

    >>> round(few_units(3, 0.95), 2), round(few_units(1000, 0.95), 3)
    (2.17, 1.001)
    """
    units = max(units, 2.0)
    return math.sqrt(units / (units - 1)) * float(stdtrit(units - 1, confidence) / ndtri(confidence))


def _gains_of_rows(
    name: str, current: Tensor, candidate: Tensor, window: Window, rounds: int, generator: torch.Generator
) -> Tensor:
    """The candidate's metric less the current one's on each resample, float64 [rounds]."""
    used = window.mass > 0
    labels, old, new, own = (values[used] for values in (window.labels, current, candidate, window.mass))
    unit = torch.arange(len(labels)) if window.group is None else window.group[used].unique(return_inverse=True)[1]
    if not bool(unit.any()):  # of a single group nothing else could be drawn
        unit = torch.arange(len(labels))
    kind = torch.zeros(int(unit.max()) + 1, dtype=torch.int64)
    if name == "AUC":  # 1 with a positive, 2 with a negative, 3 with both
        for number, chosen in ((1, labels == 1), (2, labels != 1)):
            kind += number * (unit.bincount(chosen.double()) > 0)
    strata = [(kind == number).nonzero()[:, 0] for number in kind.unique().tolist()]
    measures = [
        RocAucByWeight(scores, labels)
        if name == "AUC"
        else partial(_mean_of, name, _losses(name, scores, labels, window.quantile))
        for scores in (new, old)
    ]
    gains = []
    for _ in range(rounds):
        drawn = [rows[torch.randint(len(rows), (len(rows),), generator=generator)] for rows in strata]
        times = torch.cat(drawn).bincount(minlength=len(kind))[unit]
        weight = times if window.weight is None else own * times
        gains.append(_gain(*(float(measure(weight)) for measure in measures)))
    return torch.tensor(gains, dtype=torch.float64)


def _gain(after: float, before: float) -> float:
    """after - before, finite where a prediction is infinite: its RMSE is as bad as another that is."""
    return 0.0 if after == before else min(max(after - before, -MOST), MOST)


def _gains_of_groups(
    current: Tensor, candidate: Tensor, window: Window, rounds: int, generator: torch.Generator
) -> Tensor:
    # MRR is a mean over groups by their weights, so it is enough to resample each group's reciprocal ranks.
    (old, share), (new, _) = (window.reciprocal_ranks(scores) for scores in (current, candidate))
    difference, count = (new - old) * share, len(share)
    drawn = (torch.randint(count, (count,), generator=generator) for _ in range(rounds))
    return torch.stack([difference[groups].sum() / share[groups].sum() for groups in drawn])


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
