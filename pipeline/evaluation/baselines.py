"""How good a constant, a linear model and boosted trees are on the same rows, and where the model is worse than one.

A floor, not a contest: `baseline_learners.py` has what they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.schema import Target
from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.pipeline.display import apart, metric_label
from gigabatch.pipeline.evaluation.baseline_learners import Keep, Learnt, Rows, learnt
from gigabatch.pipeline.evaluation.evaluate import Evaluation
from gigabatch.pipeline.evaluation.paired import METRICS, Difference, difference
from gigabatch.pipeline.evaluation.told import NAMES, NOISE
from gigabatch.pipeline.training.target_metrics import target_metrics

FEW_STEPS = 1000  # few enough to be why a model is poor
MOST_ENTROPY = 1.05  # log loss over that of the share of positives, beyond which outputs are no probabilities
FAR, FEWEST = 2.0, 20  # times a baseline's RMSE that is worse whatever the noise, and the rows that tell it
FAR_OFF = 10.0  # times the range of train's labels, beyond which a prediction is no extrapolation but an accident
STRETCHED = 20.0  # deviations that a column reaches where a robust scale is worth a try


@dataclass(frozen=True)
class Baseline:
    """A baseline of one target.

    Parameters
    ----------
    name
        constant, popularity, linear or boosted.
    target
        What it predicts.
    seconds
        To learn and to predict.
    rows
        That it learnt from.
    metrics
        By split, then by metric; None where one cannot be computed.
    differences
        On the split that is compared on, the model less the baseline; see `paired.Difference`.
    worse
        Metrics by which the model is worse by more than the noise, or of which it has `FAR` times as much.
    """

    name: str
    target: str
    seconds: float
    rows: int
    metrics: dict[str, dict[str, float | None]]
    differences: list[dict[str, Any]]
    worse: list[str]


def baselines(
    names: Sequence[str],
    train: PackedTable,
    evaluated: Mapping[str, PackedTable],
    evaluations: Mapping[str, Evaluation],
    *,
    seed: int,
    split: str = "test",
    bins: int = 15,
    item_column: int | None = None,
    quantiles: Collection[str] = (),
    keep: Keep | None = None,
    valid: PackedTable | None = None,
) -> dict[str, Any]:
    """Learn the baselines from `train` and measure them, and the model's predictions, on `evaluated`.

    Parameters
    ----------
    names
        Of constant, linear, boosted.
    train
        The train split.
    evaluated, evaluations
        Rows by split, `split` among them, and what the model made of them.
    seed
        Of the sample that is learnt from.
    split
        On whose rows the model is compared with the baselines. On those of `train`, which all of them have learnt, none
        is called worse.
    bins
        Of the calibration error.
    item_column
        Where negatives are drawn: place of the items' ids. The constant is then each item's count in the train split,
        and a model of rows does not apply, as every row of the train split is a positive.
    quantiles
        Targets whose loss is that of a quantile, with which a prediction of the mean cannot be compared.
    keep
        Where what they predict is kept, and found again where the rows are the same; None learns them each time.
    valid
        The valid split, which says how many boosted trees are best, where `evaluated` has it not.

    Returns
    -------
    dict
        `split`; `rows` that are measured, by split; `found`, each `Baseline` as a dict; `left_out`, sentences that
        say what does not apply; `worse`, those that say where the model is worse. All of JSON types.
    """
    rows = {split: Rows.of(table) for split, table in evaluated.items()}
    asked = rows if valid is None or "valid" in rows else rows | {"valid": Rows.of(valid)}
    known, left_out = learnt(names, train, asked, seed, item_column, quantiles, keep)
    found = [_measured(item, train.schema.targets[item.place], rows, evaluations, split, bins) for item in known]
    return {
        "split": split,
        "rows": {name: part.batch.num_rows for name, part in rows.items()},
        "found": [asdict(item) for item in found],
        "left_out": left_out,
        "worse": [text for target in train.schema.targets if (text := _worse(target.name, found, split))],
    }


def below_mean(
    targets: Sequence[Target],
    metrics: Mapping[str, Mapping[str, float | None]],
    split: str,
    *,
    rows: Mapping[str, float],
    quantiles: Collection[str] = (),
    told: Collection[str] = (),
) -> list[str]:
    """Sentences about regression targets whose R² is below 0: their mean alone would be a better prediction.

    The mean of the train rows has one below 0 by chance, seldom below -4 / `rows`.

    Parameters
    ----------
    targets
        Of the model.
    metrics
        By target, of `Evaluation`.
    split
        That they are of.
    rows
        That the split is worth, by target (`checks.rows_worth`); fewer than 20 tell nothing.
    quantiles
        Targets whose loss is that of a quantile, of which R² says nothing.
    told
        Sentences of `baselines`; a target that one is about is passed over.

    Examples
    --------
    >>> target = Target("price", "regression")
    >>> below_mean([target], {"price": {"r2": -20.0}}, "test", rows={"price": 100})[0].partition(": ")[2]
    'R² is -20, and below 0 the mean of these rows alone predicts better than the model.'
    """
    found = []
    for target in targets:
        r2, where = metrics[target.name].get("r2"), f"{target.name!r} on the {split} split: "
        worth = rows[target.name]
        if target.name in quantiles or worth < FEWEST or any(text.startswith(where) for text in told):
            continue
        if r2 is not None and r2 < -(NOISE**2) / worth:
            found.append(
                f"{where}R² is {r2:.3g}, and below 0 the mean of these rows alone predicts better than the model."
            )
    return found


def far_predictions(
    train: PackedTable, rows: PackedTable, predictions: Sequence[Tensor], split: str, scaled: Collection[str]
) -> dict[str, str]:
    """By regression target, a sentence about the rows whose prediction lies more than `FAR_OFF` times the range of
    train's labels beyond these, or is no number.

    A few such rows make all of the RMSE, so nothing else is advised before they are looked at.

    Parameters
    ----------
    train, rows
        The train split, and the rows that are predicted; those of weight 0 are passed over.
    predictions
        Of `rows`, by target, as of `Evaluation.predictions`.
    split
        Name of `rows`.
    scaled
        Floats that are in deviations, of which the farthest is told.
    """
    # Views, where the tables lie: of a large train split only labels are read.
    learnt, batch = (unpack(table.schema, table.words) for table in (train, rows))
    counted = torch.ones(len(rows), dtype=torch.bool) if batch.weight is None else (batch.weight > 0).cpu()
    found = {}
    for place, target in enumerate(train.schema.targets):
        if target.task != "regression":
            continue
        labels = learnt.targets[place] if learnt.weight is None else learnt.targets[place][learnt.weight > 0]
        own = predictions[place].cpu().double()
        own = own[:, target.central] if target.quantiles else own
        low, high = (float(end) for end in labels.aminmax())
        reach = FAR_OFF * (high - low) or math.inf
        far = ~((own >= low - reach) & (own <= high + reach) & own.isfinite()) & counted
        if not bool(far.any()):
            continue
        numbers = far.nonzero()[:, 0].tolist()
        told = ", ".join(_far_row(number, own, batch.floats, rows.schema.floats, scaled) for number in numbers[:3])
        found[target.name] = (
            f"{target.name!r} on the {split} split: {len(numbers):,} of {int(counted.sum()):,} rows "
            f"{'is' if len(numbers) == 1 else 'are'} predicted more than {FAR_OFF:g} times as far off as the labels of "
            f"the train split ({low:.4g} to {high:.4g}) lie apart, or as no number: {told}"
            f"{', ...' if len(numbers) > 3 else ''}. Rows are counted from 0. Correct what is wrong in them, or bound "
            "the numbers by preprocess.scale=robust or a step clip."
        )
    return found


def _far_row(number: int, predictions: Tensor, floats: Tensor, names: Sequence[str], scaled: Collection[str]) -> str:
    """A row, its prediction, and the number of it that is farthest from its mean, where that is far."""
    values = {name: abs(float(floats[number, place])) for place, name in enumerate(names) if name in scaled}
    name = max(values, key=values.__getitem__, default="")
    reason = f"; {name!r} at {values[name]:.3g} deviations" if values.get(name, 0.0) > STRETCHED else ""
    return f"row {number:,} ({float(predictions[number]):.3g}{reason})"


def no_probabilities(
    targets: Sequence[Target], metrics: Mapping[str, Mapping[str, float | None]], split: str, calibration: str
) -> list[str]:
    """Sentences about binary targets whose log loss is above `MOST_ENTROPY` times that of the labels' share alone.

    For rows among drawn negatives, for which no constant is compared. metrics: by target, of `Evaluation`. calibration:
    `train.calibration`.

    Examples
    --------
    >>> found = {"logloss": 0.9, "normalised_entropy": 1.3}
    >>> no_probabilities([Target("chosen", "binary")], {"chosen": found}, "test", "none")[0].partition(": ")[2][:45]
    'log loss is 0.9, 1.3 times that of the share '
    """
    found = []
    ways_out = (
        "The curve of train.calibration=isotonic, fitted on the valid split, does not hold here: look at what differs "
        "between the splits, or give valid more rows."
        if calibration == "isotonic"
        else "Set train.calibration=isotonic where these are needed."
    )
    for target in targets:
        values = metrics[target.name]
        times = values.get("normalised_entropy")
        if times is not None and times > MOST_ENTROPY:
            found.append(
                f"{target.name!r} on the {split} split: log loss is {values['logloss']:.3g}, {times:.3g} times that of "
                f"the share of positives alone. The model's outputs rank, but are no probabilities. {ways_out}"
            )
    return found


def stretched_columns(rows: PackedTable) -> list[str]:
    """Floats that reach more than `STRETCHED` deviations from 0 in these rows: a few far values have set their scale.

    >>> import torch
    >>> from gigabatch.features.schema import TensorSchema
    >>> schema = TensorSchema((), ("age", "income"), ())
    >>> columns = [torch.tensor([-1.0, 1.0]), torch.tensor([0.0, 40.0])]
    >>> stretched_columns(PackedTable.from_columns(schema, [], columns, []))
    ['income']
    """
    floats = rows.unpack(rows.words).floats
    if not floats.numel():
        return []
    far = (floats.abs().amax(0) > STRETCHED).tolist()
    return [name for name, is_far in zip(rows.schema.floats, far, strict=True) if is_far]


def advice(curve: Sequence[Mapping[str, Any]], steps: int | None, stretched: Sequence[str] = ()) -> str:
    """What to try where the model is worse than a baseline.

    Parameters
    ----------
    curve
        The learning curve: dicts of epoch, and valid_loss at the end of each. Of an ensemble the first member's is
        looked at.
    steps
        That were trained, by all members; None of a model that takes none.
    stretched
        Columns as of `stretched_columns`.

    Examples
    --------
    >>> advice([{"epoch": 1.0, "valid_loss": 0.6}, {"epoch": 2.0, "valid_loss": 0.5}], steps=22).partition("; ")[0]
    'It took only 22 steps: lower train.batch_size or raise train.epochs'
    """
    if steps is None:
        return "Rows and settings are all that it depends on; gigabatch compare looks for a model that fits better."
    found = []
    if steps:
        found += _of_steps(curve, steps)
    else:
        found.append(
            "no epoch was trained (train.epochs=0), so the model is that of the run it started from: set train.epochs"
        )
    if stretched:
        more = f" and {len(stretched) - 3} more" if len(stretched) > 3 else ""
        found.append(
            f"{', '.join(map(repr, stretched[:3]))}{more} reach more than {STRETCHED:g} deviations in the train split: "
            "set preprocess.scale=robust, of all columns or of these"
        )
    found.append("gigabatch tune looks for a batch size and rate, gigabatch compare for a model that fits better")
    text = "; ".join(found)
    return text[:1].upper() + text[1:] + "."


def _of_steps(curve: Sequence[Mapping[str, Any]], steps: int) -> list[str]:
    """What the learning curve of a training tells to try."""
    steps //= len({point.get("member") for point in curve}) or 1
    first = [point for point in curve if not point.get("member")]
    losses = [point["valid_loss"] for point in first if point.get("valid_loss") is not None]
    best, last = losses.index(min(losses)) + 1, len(losses)
    found = []
    if steps < FEW_STEPS and best > last / 2:  # what is learned by heart early learns no more by more steps
        found.append(f"It took only {steps:,} steps: lower train.batch_size or raise train.epochs")
    if best == last:
        found.append("the valid loss was lowest in the last epoch: raise train.epochs")
    elif best <= last / 2:
        found.append(
            f"the valid loss was lowest in epoch {best} of {last}: lower train.lr_max, or raise train.weight_decay or "
            "the model's dropout"
        )
    return found


def _measured(
    item: Learnt,
    target: Target,
    rows: Mapping[str, Rows],
    evaluations: Mapping[str, Evaluation],
    compared_on: str,
    bins: int,
) -> Baseline:
    """The metrics of a baseline, and the model's on the same rows beside them."""
    name, place, scores, metrics = item.name, item.place, item.scores, {}
    asked = [metric for metric in METRICS[target.task] if metric != "mrr" or rows[compared_on].batch.group is not None]
    if name == "popularity":  # a count orders items, and is no probability
        asked.remove("logloss")
    if name == "constant" and "mrr" in asked:  # of one tie it says less than a random order reaches
        asked.remove("mrr")
    for split, part in rows.items():
        batch = part.batch
        found = target_metrics(target, scores[split], batch.targets[place], batch.group, bins, batch.weight)
        ranks = ("auc", "mrr", "gauc", "gauc_left_out")
        metrics[split] = {key: found[key] for key in ranks} if name == "popularity" else found
    labelled = rows[compared_on].labelled(target, place)
    own = rows[compared_on].of_all(evaluations[compared_on].predictions[place])
    compared = [difference(metric, own, scores[compared_on], labelled) for metric in asked]
    differences = [asdict(each) for each in compared if each is not None]
    count = int((labelled.mass > 0).sum())
    worse = [each.metric for each in compared if each is not None and (each.is_worse or _is_far(each, count))]
    worse = [] if compared_on == "train" else worse
    return Baseline(name, target.name, item.seconds, item.rows, metrics, differences, worse)


def _is_far(found: Difference, rows: int) -> bool:
    """Whether the model has `FAR` times a baseline's RMSE: where few rows make nearly all of it, so do they of its
    standard error."""
    return found.metric == "rmse" and rows >= FEWEST and found.model > FAR * found.baseline


def _worse(target: str, found: Sequence[Baseline], split: str) -> str | None:
    """The sentence that names the baselines of a target that the model is worse than; None where there is none."""
    parts, noisy = [], False
    for item in found:
        if item.target != target or not item.worse:
            continue
        of = {part["metric"]: part for part in item.differences}
        both = {name: " against ".join(apart([of[name]["model"], of[name]["baseline"]])) for name in item.worse}
        numbers = [f"{metric_label(name)} {text}" for name, text in both.items()]
        noisy |= not all(Difference(**of[name]).is_worse for name in item.worse)
        parts.append(f"{NAMES[item.name]} ({', '.join(numbers)})")
    if not parts:
        return None
    others = ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]
    far = ", or has twice its RMSE or more" if noisy else ""
    return (
        f"{target!r} on the {split} split: the model is worse than {others}, by more than {NOISE:g} standard errors"
        f"{far}."
    )
