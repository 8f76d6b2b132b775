"""What a person wants to know of the rows on which a night compared its models, beside what decides: slices that got
worse, calibration, rows with values that no training has seen, and the state of the embedding tables.

Everything is taken from the predictions that the comparison made. Rows are sampled evenly where there are so many that
looking at them would take longer than a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from scipy.special import stdtrit
from torch import Tensor

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.schema import Target
from gigabatch.models.metrics.pointwise import PROBABILITY_CLIP, roc_auc
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.evaluation.reliability import calibration_with_intervals, student
from gigabatch.pipeline.evaluation.slices import variance_by_prediction
from gigabatch.pipeline.nightly.codes import MIN_ROWS
from gigabatch.pipeline.nightly.comparison import Seen, Window
from gigabatch.pipeline.reports.charts import Calibration
from gigabatch.pipeline.training.start import FOLDER, SEPARATOR, TENSORS, TRAINED, columns_of_tables, vocabulary_owners
from gigabatch.pipeline.training.target_metrics import serving_weight, weight_of_label_0

BUDGET = 20_000_000  # rows times columns that are looked at, some seconds
MOST_VALUES = 20  # of a column that are slices, the most frequent ones
MOST_COLUMNS = 10  # with unseen values that are listed
CHANCE = 0.05  # that any slice is called worse though none is
BINS = 15  # of a calibration


@dataclass(frozen=True)
class Measure:
    """A measure that is a mean over the window's rows.

    Parameters
    ----------
    name
        `log loss`, `squared error`, `pinball loss` of a quantile, or `reciprocal rank` where negatives are drawn.
    more_is_better
        Of the values.
    weight
        Of each row, float64 [N].
    values
        By role (`candidate`, `current`, `reference`), float64 [N].
    chance
        How much of each row's weighted difference between the new model and the current one is chance alone
        (`chance_of_losses`): a variance, float64 [N]. None: as much as the rows' own differences tell.
    group
        Of each row, int64 [N] from 0: rows of a group are not independent. None: every row is.
    """

    name: str
    more_is_better: bool
    weight: np.ndarray
    values: Mapping[str, np.ndarray]
    chance: np.ndarray | None = None
    group: np.ndarray | None = None


@dataclass(frozen=True)
class Slice:
    """Rows of one value of one column on which the new model is worse beyond chance.

    candidate, current: the measure's means. worse: their difference, above 0. noise: what chance reaches, found from so
    many independent `units`.
    """

    target: str
    column: str
    value: str
    rows: int
    measure: str
    candidate: float
    current: float
    worse: float
    noise: float
    units: float = math.inf


@dataclass(frozen=True)
class Part:
    """Rows that hold, or do not hold, values that a model has no id for.

    candidate, current: the measure's means; gain: of the new model, more is better, with `noise`, half of its 95 %
    interval; NaN without a current model. auc, auc_current: NaN where a part has one class.
    """

    rows: str
    count: int
    share: float
    candidate: float
    current: float
    gain: float
    noise: float
    auc: float
    auc_current: float


@dataclass(frozen=True)
class TableHealth:
    """An embedding table of the new model. never_trained: values whose row no training of the lineage has seen; None
    where the run does not tell. norm, largest: median and maximum of the rows' lengths. broken: rows with a NaN or an
    infinity."""

    column: str
    width: int
    values: int
    never_trained: int | None
    norm: float
    largest: float
    broken: int


@dataclass(frozen=True)
class Findings:
    """What was found. rows: looked at, evenly spread over the window's `window`. looked_at: slices. calibration: by
    target, then by role. unseen: of the first target, by `measure`. serving: whether log losses and calibration are as
    where the model serves (`train.prior`)."""

    rows: int
    window: int
    slices: tuple[Slice, ...]
    looked_at: int
    calibration: Mapping[str, Mapping[str, Calibration]]
    measure: str
    unseen: tuple[Part, ...]
    tables: tuple[TableHealth, ...]
    serving: bool = False


def findings(seen: Seen, home: Path) -> Findings:
    """Look at a window.

    Parameters
    ----------
    seen
        What `compare` had before it.
    home
        `runs/<name>`, where the new run lies.

    Returns
    -------
    Findings
        Plain numbers; nothing of the window is kept.
    """
    bundle = seen.others["candidate"].bundle
    names, number = bundle.schema.names("categorical"), len(seen.frame)
    step = max(1, -(-number * max(len(names) + len(bundle.schema.lists), 1) // BUDGET))
    asked = seen.frame.iloc[::step].reset_index(drop=True)
    shown = engine_of(seen.frame).to_pandas(asked[names])
    measures = [measure_of(seen, place, step) for place in range(len(bundle.schema.targets))]
    candidates: list[Slice] = []
    for target, measure in zip(bundle.schema.targets, measures, strict=True):
        if measure is not None and "current" in measure.values:
            candidates += [item for name in names for item in slices_of(measure, target.name, name, shown[name])]
    return Findings(
        len(shown),
        number,
        worse_slices(candidates),
        len(candidates),
        {
            target.name: found
            for place, target in enumerate(bundle.schema.targets)
            if (found := calibrations(seen, place, target))
        },
        measures[0].name if measures[0] is not None else "",
        tuple(unseen_parts(seen, measures[0], asked, step)) if measures[0] is not None else (),
        tuple(table_health(bundle, home / seen.others["candidate"].run / FOLDER)),
        bool(bundle.info.get("prior_shift")),
    )


def measure_of(seen: Seen, place: int, step: int = 1) -> Measure | None:
    """A target's measure of every `step`-th row; None where ranks of drawn negatives do not belong to one row each, as
    rows of weight 0 have none."""
    values, weight, drawn = {}, None, False
    for role, predicted in seen.predicted.items():
        scores, window = predicted[place]
        drawn = len(window.labels) != len(seen.frame)
        if drawn:
            found, mass = window.reciprocal_ranks(scores)
            if len(found) != len(seen.frame):
                return None
        else:
            found, served = row_losses(window, scores), serving_mass(seen, "candidate", window)
            mass = window.mass if served is None else served
        values[role], weight = found.double().numpy()[::step], mass.double().numpy()[::step]
    assert weight is not None, "there is a candidate"
    loss = next(iter(seen.predicted.values()))[place][1].loss
    name = "reciprocal rank" if drawn else "squared error" if loss == "RMSE" else loss
    chance, group = None, None
    if not drawn:
        spread, own = chance_of_losses(seen, place), seen.predicted["candidate"][place][1].group
        chance = None if spread is None else spread.numpy()[::step]
        group = None if own is None else own.unique(return_inverse=True)[1].numpy()[::step]
    return Measure(name, drawn, weight, values, chance, group)


def serving_mass(seen: Seen, role: str, window: Window) -> Tensor | None:
    """Weight [N] of each row where the role's model serves, which is where its probabilities are for (`train.prior`);
    that of the window without a prior."""
    return serving_weight(window.labels, window.weight, served_negatives(seen, role, window))


def served_negatives(seen: Seen, role: str, window: Window) -> float:
    """How often a row of label 0 counts where the role's model serves."""
    info = seen.others[role].bundle.info if role in seen.others else {}
    shift = info.get("prior_shift", 0.0)
    if not shift or window.target.task != "binary":
        return 1.0
    return weight_of_label_0(window.labels, shift, info.get("prior_serve"), window.weight)


def row_losses(window: Window, scores: Tensor) -> Tensor:
    """Log loss of each row, squared error, or pinball loss of a quantile: float64 [N]. scores: [N] or [N, K]."""
    labels, tau = window.labels, window.quantile
    if window.target.task == "regression":
        error = labels.double() - scores.double()
        return error.square() if tau is None else torch.maximum(tau * error, (tau - 1) * error)
    chance = scores.double()
    if scores.dim() == 2:
        chance = chance.gather(1, labels.long()[:, None])[:, 0]
    else:
        chance = torch.where(labels == 1, chance, 1 - chance)
    return -chance.clamp(PROBABILITY_CLIP, 1 - PROBABILITY_CLIP).log()


def chance_of_losses(seen: Seen, place: int) -> Tensor | None:
    """Variance of each row's weighted difference of losses between the new model and the current one, were its label
    drawn: of classes by the mean of both models' probabilities, of numbers as far from the prediction as those of the
    rows that are predicted about as much. None without a current model, and of a quantile.

    Of a rare label a slice may have no row. Then all of its differences are alike, and one of two models that are as
    good would be worse there beyond all chance.

    Returns
    -------
    Tensor
        float64 [N]. The difference of row i is w (l_new - l_old): of numbers w (old - new) (2 y - new - old), whose
        variance is that of the label times (2 w (old - new))².
    """
    if "current" not in seen.predicted:
        return None
    (new, window), (old, _) = (seen.predicted[role][place] for role in ("candidate", "current"))
    mass, new, old = window.mass, new.double(), old.double()
    if window.target.task == "regression":
        if window.quantile is not None:
            return None
        mean = (new + old) / 2
        variance = variance_by_prediction(mean, window.labels.double() - mean, mass)
        return (2 * mass * (old - new)).square() * variance
    one, two = (torch.stack([1 - part, part], 1) if part.dim() == 1 else part for part in (new, old))
    apart = two.clamp(min=PROBABILITY_CLIP).log() - one.clamp(min=PROBABILITY_CLIP).log()
    chance = (one + two) / 2
    spread = (chance * apart.square()).sum(1) - (chance * apart).sum(1).square()
    # As of `worst_slices`: a row of label 0 counts so often, at odds so many times those served.
    return mass.square() * served_negatives(seen, "candidate", window) * spread.clamp(min=0.0)


def by_group(measure: Measure, codes: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Means by group: `rows` that weigh anything, of how many of one weight they tell as much (`effective`; Kish 1965,
    "Survey Sampling", section 11.7), `candidate`, `current`, `worse` (how much the candidate is, by the paired
    difference of each row) and its standard `error`, not below that of `Measure.chance` or of whole `Measure.group`s,
    and of how many of these, or else rows, it is found (`units`): float64 [size] each; NaN where a group has no row
    that weighs anything.

    codes: the group of each row, int64 [N], from 0 to size - 1.
    """

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(codes, values, minlength=size)

    some = measure.weight > 0  # 0 times an infinite loss is no number
    codes, weight, new = codes[some], measure.weight[some], measure.values["candidate"][some]
    old = measure.values["current"][some] if "current" in measure.values else np.full(len(new), np.nan)
    difference = (old - new) if measure.more_is_better else (new - old)
    rows = np.bincount(codes, minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = sums(weight)
        worse = sums(weight * difference) / total
        effective = total**2 / sums(weight**2)
        deviations = weight * (difference - worse[codes])
        spread, units = _spread(codes, weight, deviations, size)
        if measure.group is not None and len(codes):
            number = int(measure.group.max()) + 1
            pairs, place = np.unique(codes * number + measure.group[some], return_inverse=True)
            of_pairs = np.bincount(place, weight), np.bincount(place, deviations)
            of_groups, units = _spread(pairs // number, *of_pairs, size)
            spread = np.fmax(spread, of_groups)
        means = {"candidate": sums(weight * new) / total, "current": sums(weight * old) / total}
        if measure.chance is not None:
            spread = np.maximum(spread, sums(measure.chance[some]))
        error = np.sqrt(spread) / total
        return {"rows": rows, "effective": effective, **means, "worse": worse, "error": error, "units": units}


def _spread(codes: np.ndarray, weight: np.ndarray, deviations: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum of the squared weighted deviations by code, as of a sample of so few, and how few: float64 [size] each."""
    total, squares = (np.bincount(codes, part, minlength=size) for part in (weight, weight**2))
    effective = total**2 / squares
    return np.bincount(codes, deviations**2, minlength=size) * effective / (effective - 1), effective


def slices_of(measure: Measure, target: str, column: str, values: Any) -> Iterator[Slice]:
    """The slices of a column that are large enough; their noise is one standard error here."""
    codes, distinct = values.factorize(use_na_sentinel=False)
    if len(distinct) < 2:  # the whole window
        return
    found = by_group(measure, codes, len(distinct))
    large = np.argsort(-found["rows"], kind="stable")[:MOST_VALUES]
    for place in large[found["effective"][large] >= MIN_ROWS].tolist():
        if np.isfinite(found["worse"][place]):
            numbers = {name: float(found[name][place]) for name in ("candidate", "current", "worse")}
            text = "null" if distinct[place] != distinct[place] or distinct[place] is None else str(distinct[place])
            rows, error, units = int(found["rows"][place]), float(found["error"][place]), float(found["units"][place])
            yield Slice(target, column, text, rows, measure.name, **numbers, noise=error, units=units)


def worse_slices(slices: list[Slice]) -> tuple[Slice, ...]:
    """Those that are worse by more than chance explains, the clearest first.

    Bound by Bonferroni's correction for the number of slices: if none got worse, one is named in one night of twenty.
    """
    if not slices:
        return ()
    errors = [float(stdtrit(max(item.units - 1, 1.0), 1 - CHANCE / len(slices))) for item in slices]
    found = [replace(item, noise=times * item.noise) for times, item in zip(errors, slices, strict=True)]
    worse = [item for item in found if item.worse > max(item.noise, 0.0)]
    return tuple(sorted(worse, key=lambda item: item.noise - item.worse))


def calibrations(seen: Seen, place: int, target: Target) -> dict[str, Calibration]:
    """As in the report of an evaluation: mean prediction and share of positives by bin, of each model (of classes, the
    likeliest one and how often it is right); empty for numbers, and where negatives are drawn, whose share of positives
    is made up."""
    found = {}
    for role, predicted in seen.predicted.items():
        scores, window = predicted[place]
        if target.task == "regression" or len(window.labels) != len(seen.frame):
            return {}
        hits = window.labels
        if scores.dim() == 2:
            scores, chosen = scores.max(1)
            hits = chosen == window.labels
        negatives = served_negatives(seen, role, window)
        found[role] = calibration_with_intervals(scores, hits, BINS, window.weight, negatives, window.group)
    return found


def unseen_parts(seen: Seen, measure: Measure, asked: Any, step: int) -> Iterator[Part]:
    """Rows whose values the new model has ids for, those of each column that hold one that it has none for, keys of
    users and items first, and those that only the current model has none for. Of a list one such element is enough.

    asked: every `step`-th row of the window.
    """
    schema = seen.others["candidate"].bundle.schema
    unseen = {role: _unseen(other.bundle, asked) for role, other in seen.others.items() if role != "reference"}
    new = unseen["candidate"]
    if not new:
        return
    anywhere = np.logical_or.reduce(list(new.values()))
    yield _part(seen, measure, step, "every value known to the new model", ~anywhere)
    keys = {entity.key: f"{entity.name} ({entity.key})" for entity in schema.entities}
    ordered = sorted(new, key=lambda name: (name not in keys, -int(new[name].sum())))
    for name in [name for name in ordered if new[name].any()][:MOST_COLUMNS]:
        yield _part(seen, measure, step, f"{keys.get(name, name)}: unseen by the new model", new[name])
    before = np.logical_or.reduce(list(unseen.get("current", {}).values()) or [np.zeros(len(asked), bool)])
    if (learned := before & ~anywhere).any():
        yield _part(seen, measure, step, "unseen by the current model alone", learned)


def _unseen(bundle: Bundle, asked: Any) -> dict[str, np.ndarray]:
    """By column which rows hold a value that a bundle has no id for, bool [N], or a list with such an element among
    those that the model is given; a null is none."""
    preprocessor, engine, found = bundle.preprocessor, engine_of(asked), {}
    for name in bundle.schema.names("categorical"):
        vocabulary = preprocessor.vocabularies[name]
        unseen = engine.to_host(vocabulary.layout.is_unseen(vocabulary.encode(asked[name])))
        found[name] = np.asarray(unseen, bool) & ~np.asarray(engine.to_host(engine.array(asked[name].isna())), bool)
    for column, packed in zip(bundle.schema.lists, preprocessor.pack_lists(asked), strict=True):
        elements = preprocessor.list_vocabulary(column.name).layout.is_unseen(packed.ids)
        found[column.name] = np.diff(np.concatenate([[0], elements.cumsum()])[packed.offsets]) > 0
    return found


def _part(seen: Seen, measure: Measure, step: int, text: str, rows: np.ndarray) -> Part:
    found = {name: float(values[1]) for name, values in by_group(measure, rows.astype("int64"), 2).items()}
    areas = {"candidate": float("nan"), "current": float("nan")}
    for role in areas if measure.name == "log loss" else ():
        if role in seen.predicted:
            scores, window = seen.predicted[role][0]
            if scores.dim() == 1:
                chosen = torch.from_numpy(rows)
                weight = None if window.weight is None else window.weight[::step][chosen]
                heavy = bool(chosen.any()) if weight is None else bool((weight > 0).any())
                if heavy:
                    areas[role] = float(roc_auc(scores[::step][chosen], window.labels[::step][chosen], weight))
    noise, gain = float(student(found["units"])) * found["error"], 0.0 - found["worse"]
    share = float(rows.mean()) if len(rows) else 0.0
    means = found["candidate"], found["current"]
    return Part(text, int(rows.sum()), share, *means, gain, noise, areas["candidate"], areas["current"])


def table_health(bundle: Bundle, training: Path) -> Iterator[TableHealth]:
    """A row a table of a column. training: the run's folder of that name, which may be missing."""
    trained: dict[str, Tensor] = {}
    if (training / TENSORS).is_file():
        with safe_open(training / TENSORS, "pt") as file:
            mark = f"{TRAINED}{SEPARATOR}"
            kept = [name for name in file.keys() if name.startswith(mark)]  # noqa: SIM118, it is no dict
            trained = {name.removeprefix(mark): file.get_tensor(name).bool() for name in kept}
    names = list(vocabulary_owners(bundle.preprocessor.tensor_schema).values())
    for table, place in columns_of_tables(bundle.model).items():
        if place is None:
            continue
        vocabulary = bundle.preprocessor.vocabularies[names[place]]
        rows = table.detach()[vocabulary.layout.first :]
        norms = rows.float().norm(dim=1)
        sound = norms[norms.isfinite()]
        seen = trained.get(names[place])
        never = None if seen is None else int((~seen[vocabulary.layout.first :]).sum())
        middle, largest = (float(sound.median()), float(sound.max())) if len(sound) else (float("nan"),) * 2
        yield TableHealth(names[place], table.shape[1], len(rows), never, middle, largest, len(norms) - len(sound))
