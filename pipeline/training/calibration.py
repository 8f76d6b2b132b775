"""Probabilities that are right on average: temperature scaling and isotonic curves of a trained model's logits, and
their correction for another share of label 1 where the model serves.

Fitted on the valid split after training, with the weights that were selected, which are left as they are. The valid
split has chosen the epoch and fits the curve, so what it says of calibration is too good: the test split judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.schema import Target
from gigabatch.loaders.batches.dataset import BatchSource
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from gigabatch.models.output_curves import OutputCurve
from gigabatch.models.recommenders.fitted import FittedModel
from gigabatch.pipeline.config.config import ConfigError, NegativeSettings, PriorSettings, WholeTrainSettings
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.target_scales import unpacked_blocks

CALIBRATED = ("binary", "multiclass")
LOG_SLOPES = (-4.0, 4.0)  # natural logarithm of 1 / T
MOST_BINS, LEAST_ROWS = 100, 50  # of an isotonic curve; rows of a bin


def require_calibratable(kind: str, model: Model, valid: PackedTable) -> None:
    """Raise an error, before any training, unless the curves that `fit_curves` fits can be.

    Raises
    ------
    ConfigError
        Where no target has logits, a multiclass target meets `isotonic`, or the model's training compares rows, so that
        its outputs are scores and no log odds.
    TrainingError
        Where all valid labels of a target, in rows that weigh something, are alike.
    """
    if kind == "none":
        return
    targets, name = valid.schema.targets, f"train.calibration={kind}"
    if not any(target.task in CALIBRATED for target in targets):
        raise ConfigError(f"{name}: it is for binary and multiclass targets, and there is none. Set it to none.")
    several = [target.name for target in targets if target.task == "multiclass"]
    if kind == "isotonic" and several:
        raise ConfigError(f"{name}: it is for binary targets, and {several[0]!r} is multiclass. Set it to temperature.")
    if kind == "temperature" and model.compares_rows:
        raise ConfigError(
            f"{name}: {type(model).__name__} learns by comparing rows, so its outputs are no log odds that a "
            "temperature could mend. Set it to isotonic or none, or give the model a loss of single rows."
        )
    rows = valid.unpack(valid.words)
    for target, whole in zip(targets, rows.targets, strict=True):
        labels = whole if rows.weight is None else whole[rows.weight > 0]  # the others fit nothing
        if target.task in CALIBRATED and (not len(labels) or bool((labels == labels[0]).all())):
            raise TrainingError(
                f"{name}: the valid split's labels of {target.name!r} are all alike, so nothing can be fitted. Give it "
                "more rows, or set it to none."
            )


def fit_curves(
    kind: str, targets: Sequence[Target], outputs: Tensor, labels: Sequence[Tensor], weight: Tensor | None = None
) -> tuple[OutputCurve, ...]:
    """The curves of all binary and multiclass targets; others have none.

    Parameters
    ----------
    kind
        `temperature` (Guo et al., arXiv 1706.04599): all logits of a target over one number T, which minimises the log
        loss. `isotonic`, for binary targets: the rising curve nearest to the shares of label 1 (Zadrozny and Elkan, KDD
        2002) of up to 100 bins of 50 rows and more. Each of its steps is one point, at its rows' mean logit (centred
        isotonic regression, Oron and Flournoy, Statistics in Biopharmaceutical Research 2017), with straight lines
        between, so that it rises everywhere and the order of rows stays; beyond the outer points it goes on with the
        slope of temperature scaling. A bin's share is (label-1 rows + 1/2) / (rows + 1).
    targets
        In the order of the outputs.
    outputs
        [N, O], logits as the model gives them.
    labels
        One [N] each.
    weight
        [N] or None.

    Returns
    -------
    tuple of OutputCurve
        For `Model.calibrate`.

    Examples
    --------
    >>> logits = torch.tensor([[2.0], [2.0], [2.0], [2.0], [-2.0], [-2.0], [-2.0], [-2.0]])
    >>> labels = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])  # right in 3 of 4: the log odds are log 3
    >>> (curve,) = fit_curves("temperature", [Target("clicked", "binary")], logits, [labels])
    >>> round(2 * curve.slope, 4), round(math.log(3), 4)
    (1.0986, 1.0986)
    """
    logits = outputs.detach().double().cpu()
    mass = torch.ones(len(logits), dtype=torch.float64) if weight is None else weight.double().cpu()
    found: list[OutputCurve] = []
    place = 0
    for target, label in zip(targets, labels, strict=True):
        own, known = logits[:, place : place + target.num_outputs], label.cpu()
        if target.task in CALIBRATED:
            slope = _inverse_temperature(target, own, known, mass)
            if kind == "isotonic":
                found.append(_isotonic(place, own[:, 0].numpy(), known.double().numpy(), mass.numpy(), slope))
            else:
                found += [OutputCurve(place + k, (0.0,), (0.0,), slope) for k in range(target.num_outputs)]
        place += target.num_outputs
    return tuple(found)


def prior_shift(
    settings: PriorSettings | None,
    negatives: NegativeSettings | None,
    model: Model,
    rows: PackedTable | BatchSource,
    valid: PackedTable | None = None,
) -> float:
    """What a binary target's logit is raised by: log odds of label 1 where the model serves, less those of the rows
    that its probabilities are right for on average.

    Where a share q of the rows of label 0 was kept that is log q (He et al., Practical Lessons from Predicting Clicks
    on Ads at Facebook, ADKDD 2014, section 6.3; King and Zeng, Logistic Regression in Rare Events Data, 2001).

    Parameters
    ----------
    settings
        None: 0.
    negatives
        Of `train.negatives`, with which the share in training is 1 / (1 + per_positive).
    model, rows
        To be trained, and what on. Of a source of batches without `tables`, one epoch's are counted.
    valid
        The valid split's rows where probabilities are fitted to them (`fits_level`), so that the share of label 1 is
        theirs whatever the train split's is; else None.

    Raises
    ------
    ConfigError
        Where there is not exactly one binary target, the model's training compares rows, or `prior.train` says a share
        that `valid` says otherwise.
    TrainingError
        Where the labels of the rows are all alike.

    Examples
    --------
    >>> from gigabatch import LogisticRegression, ModelInputs
    >>> from gigabatch.features.schema import TensorSchema
    >>> schema = TensorSchema((), ("x",), (Target("clicked", "binary"),))
    >>> table = PackedTable.from_columns(schema, [], [torch.zeros(4)], [torch.tensor([1.0, 1, 0, 0])])
    >>> model = LogisticRegression(ModelInputs((), 1), LogisticRegression.Settings())
    >>> round(prior_shift(PriorSettings(serve=0.1), None, model, table), 4), round(math.log(0.1 / 0.9), 4)
    (-2.1972, -2.1972)
    """
    if settings is None:
        return 0.0
    binary = binary_places(rows.schema.targets)
    if len(binary) != 1:
        raise ConfigError(f"train.prior: it is for one binary target, and there are {len(binary)}. Set it to null.")
    if model.compares_rows:
        raise ConfigError(
            f"train.prior: {type(model).__name__} learns by comparing rows, so its outputs are no log odds. Set it to "
            "null, or give the model a loss of single rows."
        )
    if settings.negatives_kept is not None:
        return math.log(settings.negatives_kept)
    assert settings.serve is not None
    if valid is not None:
        if settings.train is not None:
            raise ConfigError(
                f"train.prior.train: {settings.train:g} has no effect, as probabilities are fitted to the valid split, "
                "whose share of label 1 is counted. Leave it out."
            )
        rate = _share_of_ones(valid, binary[0][0], "valid")
    elif settings.train is not None:
        rate = settings.train
    else:
        rate = (
            1 / (1 + negatives.per_positive) if negatives is not None else _share_of_ones(rows, binary[0][0], "train")
        )
    return math.log(settings.serve / (1 - settings.serve)) - math.log(rate / (1 - rate))


def fits_level(calibration: str, model: Model) -> bool:
    """Whether the mean of a binary target's probabilities is fitted to the valid split: by an isotonic curve, or by a
    model that takes no steps. A temperature alone moves no level."""
    return calibration == "isotonic" or isinstance(model, FittedModel)


def require_prior_fits(settings: WholeTrainSettings, loss: TargetLoss) -> None:
    """Raise `ConfigError` where `train.prior` would move probabilities that its target's loss, or smoothed labels, have
    already moved away from the share of label 1 in training, unless isotonic curves bring them back first.

    loss: of the targets, in their order.
    """
    if settings.prior is None or settings.calibration == "isotonic":
        return
    if loss.label_smoothing:
        raise ConfigError(
            f"train.prior: with train.label_smoothing={loss.label_smoothing:g} a model's probabilities keep away from "
            "0 and 1, and are not those of the train split's rows, which prior takes for granted. Set "
            "train.label_smoothing=0, train.calibration=isotonic, which mends them first, or train.prior=null."
        )
    for (task, _), own in zip(loss.tasks, loss.classes, strict=True):
        if task == "binary" and (own.class_weights is not None or own.kind == "focal"):
            raise ConfigError(
                f"train.prior: with the loss {own} a model's probabilities are not those of the train split's rows, "
                "which prior takes for granted. Set train.calibration=isotonic, which mends them first, or "
                "train.prior=null."
            )


def binary_places(targets: Sequence[Target]) -> list[tuple[int, int]]:
    """Place among the targets, and among the outputs, of each binary target."""
    outputs = [sum(target.num_outputs for target in targets[:place]) for place in range(len(targets))]
    return [(place, outputs[place]) for place, target in enumerate(targets) if target.task == "binary"]


def _share_of_ones(rows: PackedTable | BatchSource, place: int, split: str) -> float:
    """Of the rows by their weights."""
    ones = total = 0.0
    for batch in unpacked_blocks(rows):
        mass = torch.ones_like(batch.targets[place]) if batch.weight is None else batch.weight
        ones, total = ones + float((mass.double() * batch.targets[place]).sum()), total + float(mass.double().sum())
    if not 0 < ones < total:
        raise TrainingError(
            f"train.prior: the {split} split's labels are all alike, so they have no odds. Set it to null."
        )
    return ones / total


def _inverse_temperature(target: Target, logits: Tensor, labels: Tensor, mass: Tensor) -> float:
    """1 / T. The log loss is convex in it, so it has one minimum."""
    loss = TargetLoss([(target.task, target.num_outputs)])

    def of(log_slope: float) -> float:
        total, count = loss.sums(logits * math.exp(log_slope), [labels], mass)
        return float(total[0] / count)

    from scipy.optimize import minimize_scalar  # here, as it takes long to load

    return math.exp(minimize_scalar(of, bounds=LOG_SLOPES, method="bounded", options={"xatol": 1e-6}).x)


def _isotonic(output: int, logits: np.ndarray, labels: np.ndarray, mass: np.ndarray, slope: float) -> OutputCurve:
    from sklearn.isotonic import IsotonicRegression

    kept = mass > 0
    order = np.argsort(logits[kept], kind="stable")
    x, y, w = (values[kept][order] for values in (logits, labels, mass))
    w = w / w.mean()  # in rows
    bins = max(min(MOST_BINS, len(x) // LEAST_ROWS), 1)
    before = np.cumsum(w) - w
    first_of_tie = np.searchsorted(x, x)  # rows of one logit share a bin
    which = np.minimum(before[first_of_tie] / w.sum() * bins, bins - 1).astype(np.int64)
    rows, ones, logit = (np.bincount(which, values, bins) for values in (w, w * y, w * x))
    some = rows > 0
    rows, share, centre = rows[some], (ones[some] + 0.5) / (rows[some] + 1), logit[some] / rows[some]
    steps = IsotonicRegression().fit_transform(centre, share, sample_weight=rows)
    step = np.cumsum(np.diff(steps, prepend=steps[:1]) > 1e-9)  # what rounding keeps apart is one step
    value = np.bincount(step, rows * steps) / np.bincount(step, rows)
    centres = np.bincount(step, rows * centre) / np.bincount(step, rows)
    return OutputCurve(output, tuple(centres.tolist()), tuple(np.log(value / (1 - value)).tolist()), slope)
