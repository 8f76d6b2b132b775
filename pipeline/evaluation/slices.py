"""Which parts of the rows a model does worst on: of each value of a category, and each fifth of a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.schema import Target, indicator_name
from gigabatch.loaders.tables.packed import Batch, PackedTable
from gigabatch.pipeline.display import digits_apart
from gigabatch.pipeline.evaluation.checks import indicator_owners
from gigabatch.pipeline.evaluation.paired import Labelled, of_sample, units_of, with_error
from gigabatch.pipeline.evaluation.reliability import student
from gigabatch.pipeline.evaluation.sample import equal_parts, spread_rows

MOST_ROWS = 100_000  # that are looked at
FEWEST_ROWS = 100  # of a slice
FEWEST_OF_LABEL = 20  # rows of each label in a slice of which an AUC is told
PARTS = 5  # of a number's values, of as many rows each
TENTHS = 10  # of the rows by their prediction
CONFIDENCE = 0.95  # that no interval of all slices misses
MOST_SHOWN = 10
MOST_TARGETS = 8  # whose slices are looked at
METRICS = {"binary": "auc", "multiclass": "logloss", "regression": "rmse"}


@dataclass(frozen=True)
class Slices:
    """What `worst_slices` found for a target.

    Parameters
    ----------
    target
        Its name.
    metric
        auc, logloss or rmse.
    looked, rows
        How many values were looked at in all, and how many rows.
    overall
        The metric of all rows.
    worse
        Rows of a table: slices whose metric is worse than `overall` by more than the interval, the surest gap first.
    off
        The same of slices whose mean prediction misses the mean label by more than it does over all rows.
    overall_off
        Mean label less mean prediction of all rows; None where it is not told.
    """

    target: str
    metric: str
    looked: int
    rows: int
    overall: float | None
    worse: Sequence[Mapping[str, Any]]
    off: Sequence[Mapping[str, Any]]
    overall_off: float | None = None


def worst_slices(
    table: PackedTable,
    preprocessor: Any,
    predictions: Sequence[Tensor],
    drawn: bool = False,
    negatives: float = 1.0,
    quantiles: Collection[str] = (),
) -> list[Slices]:
    """The slices of each of the first `MOST_TARGETS` targets that do worse than all rows together, beyond chance.

    Slices are the values of each categorical column, null and unseen among them, and the fifths of each number and of
    each list's length, that hold `FEWEST_ROWS` rows. An interval is that of a mean of independent rows (of groups where
    there are some) by Student's t, and of binary labels not below that of labels drawn by the predicted chances. It is
    at 95 % over all slices and both tables together (Bonferroni): of the slices of a model that is as good everywhere,
    none is told in 95 of 100 runs. At most `MOST_ROWS` rows are looked at, the same each time.

    Parameters
    ----------
    table
        Rows with labels.
    preprocessor
        Fitted, whose vocabularies and scales say what ids and floats stand for.
    predictions
        Of all rows, by target, as of `Evaluation.predictions`.
    drawn
        Whether negatives are drawn, whose share says nothing: nothing is told to be off.
    negatives
        As of `Evaluation`: how often a row of label 0 of a binary target counts in its means, so that they are those
        where the model serves.
    quantiles
        Targets of which a quantile is predicted: it is not the mean, so nothing is told to be off.
    """
    chosen = spread_rows(table, MOST_ROWS)
    whole = len(chosen) == len(table)
    batch = table.unpack((table.words if whole else table.words[chosen.to(table.device)]).cpu())
    parts = list(_parts(batch, table, preprocessor))
    found = []
    for place, target in enumerate(table.schema.targets[:MOST_TARGETS]):
        own = predictions[place].cpu()
        own = own if whole else own[chosen]
        if target.quantiles:
            own = own[:, target.central]
        factor = negatives if target.task == "binary" else 1.0
        of_means = not drawn and target.task != "multiclass" and not target.quantiles and target.name not in quantiles
        found.append(_of_target(target, own, batch, batch.targets[place], parts, of_means, factor))
    return found


def _of_target(
    target: Target,
    scores: Tensor,
    batch: Batch,
    labels: Tensor,
    parts: list[tuple[str, Tensor]],
    tells_off: bool,
    negatives: float,
) -> Slices:
    metric = METRICS[target.task]
    weight, group = batch.weight, batch.group
    counted = torch.ones(len(labels), dtype=torch.bool) if weight is None else weight > 0

    def measured(rows: Tensor | None) -> tuple[float, float, float]:
        chosen = slice(None) if rows is None else rows
        of_rows = (None if part is None else part[chosen] for part in (weight, group))
        labelled = Labelled(target.task, labels[chosen], *of_rows)
        return *with_error(metric, scores[chosen], labelled), labelled.units

    whole = torch.ones(len(labels), dtype=torch.float64) if weight is None else weight.double()
    served = whole if negatives == 1 else whole * torch.where(labels > 0, 1.0, negatives)
    missed = labels.double() - scores.double() if tells_off else None
    variance = None
    if missed is not None and target.task == "regression":
        variance = variance_by_prediction(scores, missed, whole)
    both = target.task != "binary" or 0 < int(labels[counted].sum()) < int(counted.sum())
    overall = measured(None)[0] if both and bool(counted.any()) else math.nan
    looked, worse, off = 0, [], []
    for name, rows in parts:
        own = rows[counted[rows]]
        if len(own) < FEWEST_ROWS or len(own) == int(counted.sum()):
            continue
        head = {"slice": name, "rows": len(own)}
        enough = target.task != "binary" or FEWEST_OF_LABEL <= int(labels[own].sum()) <= len(own) - FEWEST_OF_LABEL
        if math.isfinite(overall) and enough:
            looked += 1
            value, error, units = measured(own)
            gap = overall - value if metric == "auc" else value - overall
            worse.append((gap, error, units, head | {metric: value}))
        if missed is not None:
            looked += 1
            mass = served[own]
            of = None if group is None else group[own]
            miss, error = _mean_with_error(missed[own], mass, of)
            # Labels that are rare vary less in a slice than by chance, as where none of them fell into it.
            if variance is None:
                # Of a label drawn as the rows that are there were, at odds that are `negatives` times those served.
                chance = scores[own].double().clamp(0, 1)
                of_rows = negatives * chance * (1 - chance)
            else:
                of_rows = variance[own]
            error = max(error, float((whole[own].square() * of_rows).sum().sqrt() / mass.sum()))
            means = [float((part[own].double() * mass).sum() / mass.sum()) for part in (labels, scores)]
            off.append(
                (
                    miss,
                    error,
                    units_of(mass, of),
                    head | {"mean label": means[0], "mean prediction": means[1], "off by": miss},
                )
            )
    sure = 1 - (1 - CONFIDENCE) / max(looked, 1)
    usual = None
    if missed is not None and bool(counted.any()):
        mean = float((missed * served).sum() / served.sum())
        usual, off = (mean, off) if math.isfinite(mean) else (None, [])
    return Slices(
        target.name,
        metric,
        looked,
        int(counted.sum()),
        overall if math.isfinite(overall) else None,
        _surest((gap, student(units, sure) * error, row) for gap, error, units, row in worse if gap > 0),
        _surest((abs(miss) - abs(usual or 0), student(units, sure) * error, row) for miss, error, units, row in off),
        usual,
    )


def variance_by_prediction(scores: Tensor, missed: Tensor, mass: Tensor) -> Tensor:
    """Variance of each row's label about its prediction: that of the tenth of the rows that is predicted about as much.

    Parameters
    ----------
    scores, missed
        Predictions of a number, and labels less these: [n].
    mass
        Weights, float64 [n].

    Returns
    -------
    Tensor
        float64 [n]; 0 of rows of weight 0 and of those whose prediction is not finite.

    Examples
    --------
    >>> scores, missed = torch.tensor([0.0, 0.0, 5.0, 5.0]), torch.tensor([-1.0, 1.0, -3.0, 3.0])
    >>> variance_by_prediction(scores, missed, torch.ones(4, dtype=torch.float64)).tolist()
    [1.0, 1.0, 9.0, 9.0]
    """
    rows = (mass > 0) & missed.isfinite()
    found = torch.zeros(len(mass), dtype=torch.float64)
    if not bool(rows.any()):
        return found
    own, weight = missed[rows].double(), mass[rows]
    tenth = torch.from_numpy(equal_parts(scores[rows].double().numpy(), TENTHS))
    total = tenth.bincount(weight)
    mean = tenth.bincount(weight * own) / total
    found[rows] = (tenth.bincount(weight * (own - mean[tenth]).square()) / total)[tenth]
    return found


def _surest(found: Iterable[tuple[float, float, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of (gap, half of its interval, row) whose gap is beyond the interval, by how far it is for sure."""
    sure = [(gap - half, row | {"±": half}) for gap, half, row in found if gap > half]
    return [row for _, row in sorted(sure, key=lambda item: -item[0])]


def _mean_with_error(values: Tensor, mass: Tensor, group: Tensor | None) -> tuple[float, float]:
    """Weighted mean of [n] values and its standard error, of groups where there are some; infinite of one."""
    mean = (values * mass).sum() / mass.sum()
    influence = of_sample(mass * (values - mean) / mass.sum(), mass, group)
    if group is not None:
        of = group.unique(return_inverse=True)[1]
        influence = torch.zeros(int(of.max()) + 1, dtype=torch.float64).index_add_(0, of, influence)
    return float(mean), float(influence.norm().nan_to_num(nan=math.inf))


def _parts(batch: Batch, table: PackedTable, preprocessor: Any) -> Iterator[tuple[str, Tensor]]:
    """Each slice's name and row numbers, int64, rising."""
    schema = table.schema
    for place, column in enumerate(schema.ids):
        named = id_names(preprocessor, column.name)
        for code, rows in _by_code(batch.ids[:, place].numpy()):
            yield f"{column.name} {named(code)}", rows
    floats = batch.floats.numpy()
    counted = np.arange(len(floats)) if batch.weight is None else np.flatnonzero(batch.weight.numpy() > 0)
    places = {name: place for place, name in enumerate(schema.floats)}
    owners = indicator_owners(schema)
    for name, place in places.items():
        if name in owners:
            yield f"{owners[name]} is null", torch.from_numpy(np.flatnonzero(floats[:, place] > 0))
            continue
        flag = places.get(indicator_name(name))
        known = counted if flag is None else counted[floats[counted, flag] <= 0]
        yield from _fifths(name, floats[known, place], known, preprocessor.scales.get(name))
    for item, lists in zip(schema.lists, batch.lists, strict=True):
        lengths = lists.offsets.diff().double().numpy()
        yield from _fifths(f"length of {item.name}", lengths[counted], counted, None)


def _by_code(codes: np.ndarray) -> Iterator[tuple[int, Tensor]]:
    order = np.argsort(codes, kind="stable")
    values, starts = np.unique(codes[order], return_index=True)
    for value, start, end in zip(values, starts, [*starts[1:], len(codes)], strict=True):
        if end - start >= FEWEST_ROWS:
            yield int(value), torch.from_numpy(order[start:end])


def _fifths(name: str, values: np.ndarray, rows: np.ndarray, scale: Any) -> Iterator[tuple[str, Tensor]]:
    """Slices of a number's values; a value that has a fifth of the rows to itself has a slice of its own."""
    if not len(values):
        return
    parts = [part.numpy() for _, part in _by_code(equal_parts(values, PARTS))]
    ends = [(float(values[part].min()), float(values[part].max())) for part in parts]
    told = [(_unscaled(low, scale), _unscaled(high, scale)) for low, high in ends]
    # Each part by a name of its own, and its ends apart: of five fifths of a year's months all begin with 2023.
    digits = max([digits_apart([low for low, _ in told]), *map(digits_apart, told)])
    for part, (low, high), (first, last) in zip(parts, told, ends, strict=True):
        text = f"= {low:.{digits}g}" if first == last else f"{low:.{digits}g} … {high:.{digits}g}"
        yield f"{name} {text}", torch.from_numpy(rows[part])


def _unscaled(value: float, scale: Any) -> float:
    """A number as the column had it, before `scale`, without the digits that are float32's rounding."""
    if scale is None:
        return value
    if scale.clip:
        share = min(abs(value) / scale.clip, 1 - 1e-7)
        value = value / math.sqrt(1 - share * share)
    size = max(scale.std, abs(scale.mean))
    return round(value * scale.std + scale.mean, 5 - math.floor(math.log10(size))) + 0.0 if size > 0 else value


def id_names(preprocessor: Any, column: str) -> Callable[[int], str]:
    """What an id of a column stands for, after the column's name: "= 'Oslo'", "is null", "is unseen or rare"."""
    vocabulary = preprocessor.vocabularies[column]
    layout = vocabulary.layout
    values = engine_of(vocabulary.values).to_pandas(vocabulary.values.to_frame("value"))["value"]

    def named(code: int) -> str:
        if code >= layout.first:
            return f"= {values.iloc[code - layout.first]!s}"
        return "is null" if code == layout.null else "is unseen or rare"

    return named
