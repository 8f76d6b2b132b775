"""Evaluation: metrics, what the report draws, and permutation importance, from a model and a packed table."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.schema import Schema, Target
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.losses import TargetLoss
from gigabatch.models.metrics.pointwise import (
    average_precision,
    churn_unit,
    expected_calibration_error,
    log_loss,
    roc_auc,
    roc_curve,
)
from gigabatch.models.metrics.ranking import grouped_mrr
from gigabatch.models.output_curves import OutputCurve
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.bundle import target_loss
from gigabatch.pipeline.config.config import LOSS_METRICS, ConfigError, EvaluateSettings, NightlySettings
from gigabatch.pipeline.display import MINUS_LOSS, progress
from gigabatch.pipeline.evaluation.checks import indicator_owners, list_owner
from gigabatch.pipeline.evaluation.decisions import Costs, Decisions, threshold_table
from gigabatch.pipeline.evaluation.reliability import calibration_with_intervals, student
from gigabatch.pipeline.evaluation.sample import equal_parts, rows_by_label
from gigabatch.pipeline.evaluation.told import HEADLINE, REGRESSION_HEADLINE
from gigabatch.pipeline.reports.charts import Gains, Histogram, Means, Roc
from gigabatch.pipeline.reports.report import Confusion, Quality
from gigabatch.pipeline.training.calibration import binary_places
from gigabatch.pipeline.training.target_metrics import (
    mean_of_targets,
    metrics_of_targets,
    serving_weight,
    weight_of_label_0,
)
from gigabatch.pipeline.training.train import evaluated_blocks, table_outputs

log = logging.getLogger(__name__)
CALIBRATION = ("logloss", "ece")  # what a calibration is to mend
HISTOGRAM_BINS = 40
MOST_DRAWN = 8  # targets whose charts the report has
MOST_CONFUSED = 10
HIGHEST = torch.finfo(torch.float32).max  # of a prediction that is drawn
MOST_ROWS, MOST_REPEATS = 20_000, 3  # of permutation importance
FEW_ROWS = 2_000  # rather than which a feature is shuffled once


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measured.

    Parameters
    ----------
    metrics
        By target name, then by metric; None where one cannot be computed.
    headline
        auc, logloss, ece and mrr, and with a regression target rmse, mae and r2; None where one does not apply. With
        `train.prior` those that depend on the share of label 1 are as where the model serves.
    predictions
        Of each target: float32 [N], float64 [N] in the target's own unit for regression ([N, quantiles] for
        several), and float32 [N, classes] for a
        multiclass target, on the host or the table's device.
    uncalibrated
        Of a model that is calibrated, what CALIBRATION's metrics would be without, by target; else empty. A prior
        stays; that of `without_prior` is without either.
    multilabel
        Of each multilabel target a row of `multilabel_metrics`.
    rates
        With `train.prior`, CALIBRATION's metrics at two shares of label 1, as rows of a table; else empty.
    negatives
        How many rows of label 0 each of them counts as where the model serves, as for each that was kept others were
        left out; 1 without `train.prior`.
    without_prior
        With `train.prior`, metrics, headline and predictions without it, of the rows as they are: what can be compared
        with a model that was learnt from such rows. Else None.
    """

    metrics: dict[str, dict[str, float | None]]
    headline: dict[str, float | None]
    predictions: tuple[Tensor, ...]
    uncalibrated: dict[str, dict[str, float | None]] = field(default_factory=dict)
    rates: tuple[dict[str, Any], ...] = ()
    multilabel: tuple[dict[str, Any], ...] = ()
    negatives: float = 1.0
    without_prior: Evaluation | None = None


def evaluate(
    model: Any,
    table: PackedTable,
    schema: Schema,
    device: str,
    bins: int = 15,
    ranks: Ranks | None = None,
    loss: TargetLoss | None = None,
    prior_shift: float = 0.0,
    prior_serve: float | None = None,
    outputs: Tensor | None = None,
) -> Evaluation:
    """Measure every metric of every target over a whole table, its rows by their weights where they have some.

    With a prior, metrics of the binary target that depend on the share of label 1 are as where the model serves.

    Parameters
    ----------
    model
        On `device`; evaluated in evaluation mode, its own mode is restored.
    table
        Rows with labels.
    schema
        Names and tasks of the targets.
    device
        Where the model computes, as torch names it.
    bins
        Bins of the calibration error.
    ranks
        Each computes the outputs of a part of the rows; the first alone gets metrics, the others none.
    loss
        That the model was trained with. Of a quantile, Poisson or Tweedie regression it has a metric of its own.
    prior_shift
        What `train.prior` has raised the binary target's logit by.
    prior_serve
        Share of label 1 where the model serves, if the prior names it (`weight_of_label_0`).
    outputs
        [N, O] of the rows, as the model gives them, where they are known; None computes them.

    Returns
    -------
    Evaluation
        Metrics by target, predictions, and the headline: with several targets the mean of each metric, but for RMSE,
        MAE and the metrics of losses of several regression targets, whose units differ.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import LogisticRegression, ModelInputs
    >>> from gigabatch.features.schema import Column, TensorSchema
    >>> target = Target("clicked", "binary")
    >>> schema = Schema((Column("x", "continuous", "float32"), Column("clicked", "target", "float32")), (target,))
    >>> x = torch.linspace(-1, 1, 64)
    >>> table = PackedTable.from_columns(TensorSchema((), ("x",), (target,)), [], [x], [(x > 0).float()])
    >>> model = LogisticRegression(ModelInputs(num_ids=(), num_floats=1), LogisticRegression.Settings())
    >>> found = evaluate(model, table, schema, "cpu")
    >>> sorted(found.headline), found.metrics["clicked"]["auc"] in (0.0, 0.5, 1.0)
    (['auc', 'ece', 'logloss', 'mrr'], True)
    """
    batch = table.unpack(table.words)
    weight = None if batch.weight is None else batch.weight.to(device)
    outputs = table_outputs(model, table, device, ranks, in_units=False) if outputs is None else outputs
    predictions = target_loss(schema).predict(model.in_target_units(outputs))
    if ranks is not None and not ranks.is_first:
        return Evaluation({}, {}, predictions)

    def measured(predictions: tuple[Tensor, ...], negatives: float) -> dict[str, dict[str, float | None]]:
        return metrics_of_targets(schema.targets, predictions, batch, bins, loss, negatives)

    def before(shift: Tensor | float, negatives: float) -> dict[str, dict[str, float | None]]:
        """As of `Evaluation.uncalibrated`."""
        if all(_is_shift(curve, prior_shift) for curve in model.calibration):
            return {}
        units = model.in_target_units(outputs, calibrated=False)
        return {
            name: {kind: value for kind, value in values.items() if kind in CALIBRATION}
            for name, values in measured(target_loss(schema).predict(units + shift), negatives).items()
            if "ece" in values
        }

    raised = outputs.new_zeros(outputs.shape[1])
    negatives, served, rates, without_prior = 1.0, weight, list[dict[str, Any]](), None
    if prior_shift:
        ((place, output),) = binary_places(schema.targets)
        units, labels = model.in_target_units(outputs), batch.targets[place].to(device)
        negatives = weight_of_label_0(labels, prior_shift, prior_serve, weight)
        served = serving_weight(labels, weight, negatives)
        rates = rates_of_label_1(units[:, output], labels, prior_shift, bins, weight, negatives)
        raised[output] = prior_shift
        learnt = target_loss(schema).predict(units - raised)
        values = measured(learnt, 1.0)
        without_prior = Evaluation(values, _headline(schema, values), learnt, before(0.0, 1.0))
    metrics = measured(predictions, negatives)
    return Evaluation(
        metrics,
        _headline(schema, metrics),
        predictions,
        before(raised, negatives),
        tuple(rates),
        tuple(multilabel_metrics(schema.targets, predictions, [part.to(device) for part in batch.targets], served)),
        negatives,
        without_prior,
    )


def _is_shift(curve: OutputCurve, shift: float) -> bool:
    """Whether a curve is that of a prior alone, which calibrates nothing."""
    return curve[1:] == ((0.0,), (shift,), 1.0)


def _headline(schema: Schema, metrics: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """As of `Evaluation.headline`, from the metrics by target."""
    num_values = sum(target.task == "regression" for target in schema.targets)
    headline: dict[str, float | None] = {}
    of_losses = [name for name in LOSS_METRICS if any(name in values for values in metrics.values())]
    for name in (*HEADLINE, *(REGRESSION_HEADLINE if num_values else ()), *of_losses):
        headline[name] = mean_of_targets(metrics, name, schema.targets)
    return headline


def multilabel_metrics(
    targets: Sequence[Target], predictions: Sequence[Tensor], labels: Sequence[Tensor], weight: Tensor | None = None
) -> list[dict[str, Any]]:
    """Metrics of the labels of each multilabel target together, a row each.

    Macro is the mean of the labels' own, micro that of all pairs of row and label as one list. Labels of one class have
    no AUC, and an average precision of none or 1 whatever is predicted: macro leaves them out, `undefined` says how
    many there are.

    Parameters
    ----------
    targets
        Of a schema; those of one `label_of` belong together.
    predictions
        A [N] of chances for each binary target, anything for others.
    labels
        As many, [N] of 0 and 1.
    weight
        [N] or None.

    Examples
    --------
    >>> tags = [Target(name, "binary", label_of="tags") for name in ("red", "new")]
    >>> chances = [torch.tensor([0.9, 0.2, 0.4]), torch.tensor([0.1, 0.3, 0.2])]
    >>> (found,) = multilabel_metrics(tags, chances, [torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 0, 1])])
    >>> found["target"], found["labels"], found["macro auc"], found["micro auc"]
    ('tags', 2, 0.75, 0.6875)
    """
    found = []
    for name in dict.fromkeys(target.label_of for target in targets if target.label_of):
        places = [place for place, target in enumerate(targets) if target.label_of == name]
        own = [(predictions[place], labels[place], weight) for place in places]
        together = (
            torch.cat([part[0] for part in own]),
            torch.cat([part[1] for part in own]),
            None if weight is None else weight.repeat(len(own)),
        )
        areas, precisions = ([float(metric(*part)) for part in own] for metric in (roc_auc, average_precision))
        kept = [place for place, area in enumerate(areas) if not math.isnan(area)]
        known, rising = ([values[place] for place in kept] for values in (areas, precisions))
        micro = {"micro auc": float(roc_auc(*together)), "micro ap": float(average_precision(*together))}
        values: dict[str, Any] = {
            "macro auc": float(np.mean(known)) if known else None,
            "macro ap": float(np.mean(rising)) if rising else None,
            **{key: None if math.isnan(value) else value for key, value in micro.items()},
            "logloss": float(np.mean([float(log_loss(*part)) for part in own])),
        }
        found.append({"target": name, "labels": len(own)} | values | {"undefined": len(own) - len(known)})
    return found


def rates_of_label_1(
    logits: Tensor,
    labels: Tensor,
    prior_shift: float,
    bins: int,
    weight: Tensor | None = None,
    negatives: float | None = None,
) -> list[dict[str, Any]]:
    """Log loss and ECE of a binary target at two shares of label 1, a row each: that of these rows, by probabilities
    without the prior's shift, and that where the model serves, by those that it gives.

    For the latter a row of label 0 counts `negatives` times: as many as there were for each that was kept, so that the
    rows stand for those where it serves (King and Zeng, Logistic Regression in Rare Events Data, 2001, section 4).

    Parameters
    ----------
    logits
        [N], as predicted, `prior_shift` in them.
    labels
        [N], 0 or 1.
    prior_shift
        As of `gigabatch.pipeline.training.calibration.prior_shift`.
    bins
        Of the calibration error.
    weight
        [N] or None.
    negatives
        As of `weight_of_label_0`; None: exp(-shift).

    Examples
    --------
    >>> logits = torch.full((4,), -math.log(9))  # .1, where half of these rows are 1
    >>> found = rates_of_label_1(logits, torch.tensor([1.0, 1.0, 0.0, 0.0]), -math.log(9), bins=15)
    >>> [(round(row["share of label 1"], 4), round(row["logloss"], 4)) for row in found]  # log 2, and the entropy of .1
    [(0.5, 0.6931), (0.1, 0.3251)]
    """
    mass = torch.ones(len(labels), dtype=torch.float64, device=labels.device) if weight is None else weight.double()
    served = serving_weight(labels, mass, math.exp(-prior_shift) if negatives is None else negatives)
    found = []
    for at, own, given in (("these rows", mass, logits.double() - prior_shift), ("serving", served, logits.double())):
        assert own is not None
        chances = torch.sigmoid(given)
        values = {
            "share of label 1": (own * labels).sum() / own.sum(),
            "logloss": log_loss(chances, labels, own),
            "ece": expected_calibration_error(chances, labels, bins, own),
        }
        numbers = {name: float(value) for name, value in values.items()}
        found.append({"at": at} | {name: None if math.isnan(value) else value for name, value in numbers.items()})
    return found


def choose_metric(settings: NightlySettings, schema: Schema, in_groups: bool = False, place: int = 0) -> str:
    """The metric that decides for the target at this place; `settings.metric` is that of the first.

    in_groups: rows are evaluated in groups that the schema does not name, each among the negatives that are drawn for
    it."""
    task = schema.targets[place].task
    grouped = in_groups or schema.only("group") is not None
    asked = settings.metric if place == 0 else None
    metric = asked or ("logloss" if task != "binary" else "mrr" if grouped else "auc")
    fits = {"mrr": grouped and task == "binary", "auc": task == "binary", "logloss": True}
    if not fits[metric]:
        raise ConfigError(
            f"nightly.metric: {metric} does not apply to a {task} target{'' if grouped else ' without groups'}."
        )
    return metric


def quality(
    schema: Schema,
    evaluation: Evaluation,
    table: PackedTable,
    bins: int,
    *,
    costs: Costs | None = None,
    split: str = "test",
    beside: tuple[str, Evaluation, PackedTable] | None = None,
    drawn: bool = False,
    quantiles: Collection[str] = (),
) -> list[Quality]:
    """What the report draws of each target: charts of the first `MOST_DRAWN`, metrics of all; with `train.prior` as
    where the model serves.

    Parameters
    ----------
    schema, evaluation, table
        What was evaluated, and the rows.
    bins
        Of the calibration chart.
    costs
        Of wrong decisions of binary targets; None: 1 each.
    split
        Name of the rows.
    beside
        Name, evaluation and rows of another split, on which thresholds are chosen; None, or one that lacks a label,
        chooses them on `table`.
    drawn
        Whether negatives are drawn: their share says nothing, so no threshold, precision or calibration is told.
    quantiles
        Targets of which a quantile is predicted: it is not the mean, so no mean residuals are drawn.
    """
    batch = table.unpack(table.words)
    weight, group = (None if part is None else part.cpu() for part in (batch.weight, batch.group))
    other = None if beside is None else beside[2].unpack(beside[2].words)
    found = []
    for place, (target, prediction) in enumerate(zip(schema.targets, evaluation.predictions, strict=True)):
        metrics, negatives = evaluation.metrics[target.name], evaluation.negatives
        label, text = batch.targets[place].cpu(), ""
        if negatives != 1 and target.task == "binary":
            text = _rate_text(label, weight, negatives)
        if place >= MOST_DRAWN:
            found.append(Quality(target.name, metrics=metrics, note=text))
            continue
        shown = target_quality(target, prediction.cpu(), label, metrics, bins, weight, drawn, negatives, group)
        if shown.gains is not None:
            chosen = None
            if beside is not None and other is not None:
                others = other.targets[place].cpu()
                of_others = None if other.weight is None else other.weight.cpu()
                of_others = serving_weight(others, of_others, beside[1].negatives)
                chosen = Decisions.of(beside[1].predictions[place].cpu(), others, of_others)
            chosen = chosen if chosen is not None and chosen.has_both else None
            decided = Decisions.of(prediction.cpu(), label, serving_weight(label, weight, negatives))
            made = threshold_table(decided, costs or Costs(), split, chosen, beside[0] if beside else "")
            shown = replace(shown, thresholds=made.rows, thresholds_text=made.text)
        if target.name in quantiles:
            shown = replace(shown, residual_means=None)
        found.append(replace(shown, metrics=metrics, note=shown.note or text))
    return found


def _rate_text(label: Tensor, weight: Tensor | None, negatives: float) -> str:
    """Which figures of a binary target are at which share of label 1."""
    mass = serving_weight(label, weight, negatives)
    assert mass is not None
    share = float((mass * label).sum() / mass.sum())
    return (
        "Log loss, ECE, accuracy, normalised entropy, precision, gains, lift, calibration, thresholds and costs are as "
        f"where the model serves (train.prior): a row of label 0 counts {negatives:.4g} times, so that a share of "
        f"{share:.4g} has label 1. AUC and ROC are the same at any share; scores by label, GAUC and MRR are of the "
        "rows as they are."
    )


def target_quality(
    target: Target,
    prediction: Tensor,
    label: Tensor,
    metrics: dict,
    bins: int,
    weight: Tensor | None,
    drawn: bool = False,
    negatives: float = 1.0,
    group: Tensor | None = None,
) -> Quality:
    """Curves, histograms and tables follow the rows' weights, as the metrics beside them do. negatives: of a binary
    target, as of `Evaluation`. group: [n], within which rows are not independent, so that intervals are wider."""
    if weight is not None:
        counted = weight > 0
        prediction, label, weight = prediction[counted], label[counted], weight[counted].double()
        group = None if group is None else group[counted]
    if target.quantiles:
        prediction = prediction[:, target.central]
    if target.task == "regression":
        return _values_quality(target, prediction.double(), label.double(), weight, group)
    if target.task == "multiclass":
        return _classes_quality(target, prediction, label, bins, weight, group)
    curve = roc_curve(prediction, label, weight, max_points=400)
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    by_label = {f"{target.name} = {value}": _histogram(prediction, edges, weight, label == value) for value in (0, 1)}
    served = serving_weight(label, weight, negatives)
    auc, decided = metrics["auc"], Decisions.of(prediction, label, served)
    gains = None
    if decided.has_both and not drawn:
        share, found_share = (part.numpy() for part in decided.by_share())
        recall, precision = (part.numpy() for part in decided.precision_recall())
        area = float(average_precision(prediction, label, served))
        gains = Gains(share, found_share, recall, precision, decided.positives / decided.rows, area)
    return Quality(
        target.name,
        roc=None if auc is None else Roc(curve.false_positive_rate.numpy(), curve.true_positive_rate.numpy(), auc),
        gains=gains,
        calibration=None if drawn else calibration_with_intervals(prediction, label, bins, weight, negatives, group),
        scores=Histogram(edges, by_label),
    )


def _values_quality(
    target: Target, prediction: Tensor, label: Tensor, weight: Tensor | None, group: Tensor | None
) -> Quality:
    """Of a regression target: residuals, their means by tenth of the prediction, predicted and actual values."""
    drawn, note = prediction.abs() <= HIGHEST, ""  # NaN is not
    if lost := int((~drawn).sum()):
        note = (
            f"{lost:,} of {len(drawn):,} predictions are NaN, infinite or beyond {HIGHEST:.2g}, the largest float32; "
            "the charts are of the others."
        )
        prediction, label = prediction[drawn], label[drawn]
        weight, group = (None if part is None else part[drawn] for part in (weight, group))
    if not len(label):
        return Quality(target.name, note=note)
    residuals, values = label - prediction, {"predicted": prediction, "actual": label}
    edges = np.histogram_bin_edges(residuals.numpy(), HISTOGRAM_BINS)
    ends = np.histogram_bin_edges(torch.cat(list(values.values())).numpy(), HISTOGRAM_BINS)
    mass, of = (None if part is None else part.numpy() for part in (weight, group))
    return Quality(
        target.name,
        residuals=Histogram(edges, {"rows": _histogram(residuals, edges, weight)}),
        residual_means=residual_means(prediction.numpy(), residuals.numpy(), mass, of),
        predicted_actual=(prediction.numpy(), label.numpy()),
        spread=Histogram(ends, {name: _histogram(own, ends, weight) for name, own in values.items()}),
        note=note,
    )


def _histogram(values: Tensor, edges: np.ndarray, weight: Tensor | None, among: Tensor | None = None) -> np.ndarray:
    """Rows, or the sum of their weights, by bin; among: which rows, None for all."""
    own, mass = (part if part is None or among is None else part[among] for part in (values, weight))
    assert own is not None
    counts: np.ndarray = np.histogram(own.numpy(), edges, weights=None if mass is None else mass.numpy())[0]
    return counts


def residual_means(
    predicted: np.ndarray, residuals: np.ndarray, weight: np.ndarray | None, group: np.ndarray | None = None
) -> Means | None:
    """Mean residual with its 95 % interval, by Student's t, by tenth of the rows in order of their prediction; rows of
    equal prediction stay together. None where no tenth has two rows with a weight, or two groups.

    predicted, residuals: float64 [n]; weight: [n] or None; group: [n], within which rows are not independent, or None.
    """
    mass = np.ones(len(predicted)) if weight is None else weight.astype(np.float64)
    bins = equal_parts(predicted, 10)
    found = []
    for number in np.unique(bins):
        own = (bins == number) & (mass > 0)
        if not own.any():
            continue
        unit = np.arange(own.sum()) if group is None else np.unique(group[own], return_inverse=True)[1]
        share = mass[own] / mass[own].sum()
        count = 1 / (np.bincount(unit, share) ** 2).sum()  # of one weight they would be as many as this
        if count < 1 + 1e-9:
            continue
        mean = float((share * residuals[own]).sum())
        error = np.sqrt((np.bincount(unit, share * (residuals[own] - mean)) ** 2).sum() * count / (count - 1))
        if group is not None:
            alone = 1 / (share**2).sum()
            error = max(error, np.sqrt((share**2 * (residuals[own] - mean) ** 2).sum() * alone / (alone - 1)))
        half = student(count) * error
        found.append((float((share * predicted[own]).sum()), mean, mean - half, mean + half))
    return Means(*np.array(found).T) if found else None


def _classes_quality(
    target: Target, prediction: Tensor, label: Tensor, bins: int, weight: Tensor | None, group: Tensor | None
) -> Quality:
    """Of classes: the confusion matrix, the pairs most confused, the classes worst found, and the likeliest class's
    calibration."""
    size = target.num_outputs
    confidence, chosen = prediction.max(1)
    counts = torch.bincount(label.long() * size + chosen, weight, size * size).reshape(size, size).numpy()
    names = [str(name) for name in (target.classes or range(size))]
    hits = (chosen == label).float()
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    right = {text: _histogram(confidence, edges, weight, hits == value) for text, value in (("right", 1), ("wrong", 0))}
    return Quality(
        target.name,
        confusion=Confusion(names, counts),
        most_confused=most_confused(names, counts),
        classes=class_rows(names, counts),
        calibration=calibration_with_intervals(confidence, hits, bins, weight, group=group),
        scores=Histogram(edges, right),
    )


def most_confused(names: Sequence[str], counts: np.ndarray) -> list[dict[str, Any]]:
    """The `MOST_CONFUSED` pairs of a true class and another that it is taken for of the most rows: [classes, classes]
    counts, or sums of weights, by true and predicted class."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSED]
    pairs = [divmod(int(place), len(names)) for place in order]
    return [
        {
            "true class": names[true],
            "predicted": names[other],
            "rows": wrong[true, other].item(),
            "of_its_class": wrong[true, other] / counts[true].sum(),
        }
        for true, other in pairs
        if wrong[true, other]
    ]


def class_rows(names: Sequence[str], counts: np.ndarray) -> list[dict[str, Any]]:
    """Recall, precision and F1 of the `MOST_CONFUSED` classes of lowest F1 that have rows, of [classes, classes] counts
    by true and predicted class."""
    found: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        hits, rows, taken = (
            part.item() for part in (counts[place, place], counts[place].sum(), counts[:, place].sum())
        )
        if rows:
            precision = hits / taken if taken else None
            shares = {"recall": hits / rows, "precision": precision, "F1": 2 * hits / (rows + taken)}
            found.append({"class": name, "rows": rows, **shares})
    return sorted(found, key=lambda row: row["F1"])[:MOST_CONFUSED]


@dataclass(frozen=True)
class ImportanceSample:
    """How much permutation importance shuffles: rows of a split, and how often each feature."""

    rows: int
    repeats: int

    def passes(self, num_features: int) -> int:
        """Rows that the model is called for, in all."""
        return self.rows * (1 + num_features * self.repeats)


def importance_sample(settings: EvaluateSettings, num_rows: int, num_features: int, rows_seen: int) -> ImportanceSample:
    """What the settings say; of what they leave open as much as costs no more than the training did.

    A row that is only evaluated costs less than one that is learnt from, so all passes together take at most half as
    many rows as the training saw (`rows_seen`, of all epochs), however few; the report says how many. It follows from
    counts and not from a clock: a run that is repeated gives the same importances. num_rows: of the split.
    """
    budget = rows_seen // 2
    repeats = settings.importance_repeats
    if repeats is None:
        fewest = min(settings.importance_rows or FEW_ROWS, num_rows)
        repeats = min(max((budget // max(fewest, 1) - 1) // max(num_features, 1), 1), MOST_REPEATS)
    rows = settings.importance_rows
    if rows is None:
        rows = min(max(budget // (1 + num_features * repeats), 1), MOST_ROWS)
    return ImportanceSample(min(rows, num_rows), repeats)


def permutation_importance(
    model: Any,
    table: PackedTable,
    schema: Schema,
    settings: EvaluateSettings,
    seed: int,
    device: str,
    ranks: Ranks | None = None,
    prior_shift: float = 0.0,
) -> tuple[str, list[dict[str, Any]]]:
    """How much worse the model gets when one feature's values are shuffled over rows (Breiman 2001, section 10).

    A feature's indicator is shuffled with it. Returns the metric's name and rows of name, mean, std over the
    repeats (None of one), largest first. Settings that are None stand for `MOST_ROWS` and `MOST_REPEATS`. The metric is
    AUC for a binary target, MRR where its rows have groups, else minus the loss (of classes the log loss of the
    probabilities that are predicted, calibrated where the model is, and without a prior's shift; of regression the
    squared error in standard deviations of the target, whatever it was trained with); where that is no number, as the
    AUC of one row, there are no rows, and a warning says so. Of a rare label more rows are shuffled than its share
    (`rows_by_label`). ranks: each measures some of the shuffled features, and all get the same result. prior_shift: as
    of `evaluate`.
    """
    rows = rows_by_label(table, settings.importance_rows or MOST_ROWS)
    num_repeats = settings.importance_repeats or MOST_REPEATS
    words = table.words[rows]
    binary = schema.targets[0].task == "binary"
    metric = MINUS_LOSS if not binary else "MRR" if table.schema.has_group else "AUC"

    loss, known = target_loss(schema), table.unpack(words).to(device)  # shuffling moves no label, group or weight
    spreads = [
        churn_unit(target.task, own, known.weight) for target, own in zip(schema.targets, known.targets, strict=True)
    ]

    def measure(words: Tensor) -> float:
        part = table.with_words(words)
        if metric == MINUS_LOSS:
            return -_loss_in_deviations(model, part, loss, spreads, device, prior_shift)
        found = []
        predictions = loss.predict(table_outputs(model, part, device))
        for target, prediction, labels in zip(schema.targets, predictions, known.targets, strict=True):
            if target.task == "binary" and metric == "MRR":
                assert known.group is not None
                found.append(float(grouped_mrr(prediction, labels, known.group, known.weight)))
            elif target.task == "binary":
                found.append(float(roc_auc(prediction, labels, known.weight)))
        found = [value for value in found if not math.isnan(value)]
        return float(np.mean(found)) if found else float("nan")

    generator = torch.Generator().manual_seed(seed)
    features, ranks = feature_words(table), Ranks() if ranks is None else ranks
    measured: list[float] = []  # by this rank: those whose turn it is, of the rows as they are and of each shuffling
    turns = itertools.cycle(range(ranks.num_ranks))
    if next(turns) == ranks.rank:
        measured.append(measure(words))
    for name in progress(list(features), "importance"):
        for _ in range(num_repeats):
            order = torch.randperm(len(words), generator=generator)
            if next(turns) == ranks.rank:
                shuffled = words.clone()
                shuffled[:, features[name]] = words[order][:, features[name]]
                measured.append(measure(shuffled))
    own = [iter(values) for values in ranks.gather(measured, "importance")]
    base, *rest = (next(own[number % len(own)]) for number in range(1 + len(features) * num_repeats))
    if not math.isfinite(base):
        by_loss = metric == MINUS_LOSS
        log.warning(
            "importance: the %s of %s row(s) is %s, so nothing is told of the features. %s, or set "
            "evaluate.importance=false.",
            "loss" if by_loss else metric, f"{len(words):,}", "infinite or no number" if by_loss else "no number",
            "Look at rows that are predicted far off" if by_loss
            else "Set evaluate.importance_rows higher, give rows of both labels",
        )  # fmt: skip
        return metric, []
    found = []
    for place, name in enumerate(features):
        repeats = slice(place * num_repeats, (place + 1) * num_repeats)
        drops = [base - value for value in rest[repeats]]
        std = float(np.std(drops)) if num_repeats > 1 else None
        found.append({"name": name, "mean": float(np.mean(drops)), "std": std})
    return metric, sorted(found, key=lambda row: -row["mean"])


def _loss_in_deviations(
    model: Any, table: PackedTable, loss: TargetLoss, spreads: Sequence[float], device: str, prior_shift: float
) -> float:
    """As `table_loss`, but of calibrated logits without `prior_shift`, as rows are as they are, and of a target whose
    outputs are logarithms the squared error of what they predict.

    spreads: of each target the deviation of its labels, which such a model does not keep; not a number where they are
    all alike, which counts as 1, as in `target_scales`."""
    parts = []
    for batch, given in evaluated_blocks(model, table, device):
        outputs, labels = given.clone(), list(model.standardised(batch.targets))
        for curve in model.calibration:
            outputs[:, curve.output] = curve.of(given[:, curve.output].double()).to(outputs)
        for _, output in binary_places(table.schema.targets) if prior_shift else ():
            outputs[:, output] -= prior_shift
        for scale in model.target_scales:
            if scale.log:
                spread = 1.0 if math.isnan(spreads[scale.target]) else spreads[scale.target]
                outputs[:, scale.output] = outputs[:, scale.output].exp() * (scale.std / spread)
                labels[scale.target] = labels[scale.target] * (scale.std / spread)
        parts.append(loss.sums(outputs, labels, batch.weight))
    totals, counts = (torch.stack(part) for part in zip(*parts, strict=True))
    return float((totals.sum(0) / counts.sum(0)).sum())


def column_summary(preprocessor: Any, train: PackedTable, test: PackedTable) -> list[dict[str, Any]]:
    """A row a feature: nulls in training, cardinality, share of test rows that were unseen, centre and spread. Of a
    list column the share of train rows whose list is null or empty, of test's elements that were unseen, and the mean
    number of elements."""
    found: list[dict[str, Any]] = []
    batches = [table.unpack(table.words) for table in (train.counted(), test.counted())]
    fitted, asked = (batch.ids for batch in batches)
    for position, column in enumerate(train.schema.ids):
        vocabulary = preprocessor.vocabularies[column.name]
        layout = vocabulary.layout
        unseen = layout.is_unseen(asked[:, position])
        found.append(
            {
                "name": column.name,
                "role": "categorical",
                "nulls": float((fitted[:, position] == layout.null).double().mean()),
                "cardinality": len(vocabulary.values),
                "unseen_rate": float(unseen.double().mean()),
            }
        )
    for column, own, others in zip(train.schema.lists, *(batch.lists for batch in batches), strict=True):
        lengths = own.offsets.diff()
        vocabulary = preprocessor.vocabularies[list_owner(train.schema, column.name)]
        unseen = vocabulary.layout.is_unseen(others.ids)
        found.append(
            {
                "name": column.name,
                "role": "list",
                "nulls": float((lengths == 0).double().mean()),
                "cardinality": len(vocabulary.values),
                "unseen_rate": float(unseen.double().mean()) if len(unseen) else 0.0,
                "mean_length": float(lengths.double().mean()),
            }
        )
    shares = preprocessor.null_shares
    for name, fill in preprocessor.fills.items():
        scale = preprocessor.scales.get(name)
        scale = None if scale is None or scale.clip else scale  # a robust one has neither mean nor deviation
        found.append(
            {
                "name": name,
                "role": "continuous",
                "nulls": shares.get(name),
                "median": fill.value,
                "mean": None if scale is None else scale.mean,
                "std": None if scale is None else scale.std,
            }
        )
    return found


def feature_words(table: PackedTable) -> dict[str, list[int]]:
    """Which words of a packed row belong to each feature, indicators with the column that they speak of."""
    schema = table.schema
    found = {column.name: [position] for position, column in enumerate(schema.ids)}
    owners = indicator_owners(schema)
    for position, name in enumerate(schema.floats, len(schema.ids)):
        found.setdefault(owners.get(name, name), []).append(position)
    for position, column in enumerate(schema.lists, schema.first_list):  # a row's word says which list is its own
        found[column.name] = [position]
    return found
