"""What is fitted to the labels of the rows that a model is trained on: mean and deviation of regression targets, exact
in any order of the rows, log odds of binary ones, and weights of classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Moments, WeightedMoments
from gigabatch.loaders.batches.dataset import BatchSource
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, TargetScale
from gigabatch.pipeline.training.checkpoint import TrainingError

BLOCK_ROWS = 1 << 20


def target_scales(rows: PackedTable | BatchSource, loss: TargetLoss | None = None) -> tuple[TargetScale, ...]:
    """The scale of each regression target; of one that is constant, or varies by less than 2^-100, the deviation is 1.

    loss: that is trained with, which may ask for logarithms. A row of weight 2 is two rows, one of weight 0 none.
    `DataError` where all weights are 0.
    """
    schema = rows.schema
    outputs = [sum(target.num_outputs for target in schema.targets[:place]) for place in range(len(schema.targets))]
    places = [place for place, target in enumerate(schema.targets) if target.task == "regression"]
    if not places:
        return ()
    moments = [[_moments(batch, place) for place in places] for batch in unpacked_blocks(rows)]
    found = []
    for place, parts in zip(places, zip(*moments, strict=True), strict=True):
        total, target = reduce(lambda left, right: left.merge(right), parts), schema.targets[place]
        if isinstance(total, WeightedMoments) and not total.mass.units:
            raise _weightless("train")
        scale = total.scale()
        if loss is not None and loss.regression[place].log_link:
            found.append(TargetScale(place, outputs[place], 0.0, scale.mean, log=True))
        else:
            of_outputs = range(outputs[place], outputs[place] + target.num_outputs)  # several of quantiles
            found += [TargetScale(place, output, scale.mean, scale.std) for output in of_outputs]
    return tuple(found)


def log_odds(rows: PackedTable, loss: TargetLoss | None = None) -> dict[int, float]:
    """By output of each binary target that has both labels, the logarithm of (weight of label 1 / weight of label 0).

    loss: that is trained with. Its `class_weights` count too; by `balanced` ones both labels weigh alike.
    """
    targets = rows.schema.targets
    found = {}
    for place, mass in _class_masses(
        rows, {place: 2 for place, target in enumerate(targets) if target.task == "binary"}
    ).items():
        zero, one = mass.tolist()
        if zero > 0 and one > 0:
            given = None if loss is None else loss.classes[place].class_weights
            of_classes = (1.0, 1.0) if given is None else (1 / zero, 1 / one) if isinstance(given, str) else given
            output = sum(target.num_outputs for target in targets[:place])
            found[output] = math.log(one * of_classes[1]) - math.log(zero * of_classes[0])
    return found


def _moments(batch: Batch, place: int) -> Any:
    """Of a target's labels, by the rows' weights where they have some."""
    labels = batch.targets[place].cpu().contiguous().numpy()
    return Moments.of(labels) if batch.weight is None else WeightedMoments.of(labels, batch.weight.cpu().numpy())


def require_weights(rows: PackedTable, split: str, column: str | None = None) -> None:
    """Raise `DataError` where rows have weights and all of a split's are 0. column: of the weights, if known."""
    weight = unpack(rows.schema, rows.words).weight
    if weight is not None and len(weight) and not bool((weight > 0).any()):
        raise _weightless(split, column, f"{len(weight):,} ")


def _weightless(split: str, column: str | None = None, rows: str = "") -> DataError:
    name = "" if column is None else f" ({column!r})"
    return DataError(
        f"{split} split: the weights{name} of all its {rows}rows are 0, so nothing can be learnt or measured there. "
        "Give some of them a weight above 0, split the rows otherwise, or leave the weights out."
    )


def require_labels(loss: TargetLoss, rows: PackedTable | BatchSource, split: str) -> None:
    """Raise `TrainingError` where labels of a split, of rows that weigh something, are not those of the loss: below 0,
    or in train all 0, where it predicts logarithms."""
    for place, (target, own) in enumerate(zip(rows.schema.targets, loss.regression, strict=True)):
        if target.task != "regression" or not own.log_link:
            continue
        least, largest, wrong = math.inf, 0.0, 0
        for batch in unpacked_blocks(rows):
            labels = batch.targets[place] if batch.weight is None else batch.targets[place][batch.weight > 0]
            if len(labels):
                least, largest = min(least, float(labels.min())), max(largest, float(labels.max()))
                wrong += int((labels < 0).sum())
        if wrong or (split == "train" and largest == 0):
            found = f"{wrong:,} below 0, down to {least:g}" if wrong else "0 alone"
            raise TrainingError(
                f"train.losses.{target.name}: {own} is of counts and amounts, 0 and more and not all 0, and the "
                f"{split} split holds {found}. Take another loss, or another target."
            )


def require_steps_in_order(model: type[Model] | Model, rows: PackedTable | BatchSource, split: str) -> None:
    """Raise `TrainingError` where the model's targets are steps that follow each other, and a row of the split that
    weighs something has label 1 of one and 0 of the one before. The first such row is named where the rows have an
    order of their own, as those of a source of batches have not."""
    if not model.targets_are_steps:
        return
    names = [target.name for target in rows.schema.targets]
    counts, firsts, before = [0] * len(names), [0] * len(names), 0
    for batch in unpacked_blocks(rows):
        counted = torch.ones_like(batch.targets[0], dtype=torch.bool) if batch.weight is None else batch.weight > 0
        for place in range(1, len(names)):
            wrong = (counted & (batch.targets[place] == 1) & (batch.targets[place - 1] == 0)).nonzero()[:, 0]
            if len(wrong) and not counts[place]:
                firsts[place] = before + int(wrong[0])
            counts[place] += len(wrong)
        before += len(counted)
    ordered = isinstance(rows, PackedTable)
    found = [
        f"{names[place]!r} is 1 and {names[place - 1]!r} is 0 in {count:,} row(s)"
        + (f", first in row {firsts[place]:,} (from 0)" if ordered else "")
        for place, count in enumerate(counts)
        if count
    ]
    if found:
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise TrainingError(
            f"{name}: its targets are steps that follow each other, in their order {', '.join(map(repr, names))}, but "
            f"in the {split} split {'; '.join(found)}. Name the targets in the order of the "
            "steps, correct the labels, or take a model whose targets need no order (model.kind=multi_task or ple)."
        )


def fitted_loss(loss: TargetLoss, rows: PackedTable | BatchSource) -> TargetLoss:
    """The loss with `balanced` weights as numbers, from the classes of these rows by their weights."""
    places = loss.asks_for_counts
    if not places:
        return loss
    masses = _class_masses(rows, {place: max(loss.tasks[place][1], 2) for place in places})
    return loss.balanced([masses.get(place) for place in range(len(loss.tasks))])


def _class_masses(rows: PackedTable | BatchSource, num_classes: Mapping[int, int]) -> dict[int, Tensor]:
    """The rows of each class, or the sums of their weights: float64 [classes], by the targets' places. num_classes: by
    the places that are asked for."""
    found = {place: torch.zeros(size, dtype=torch.float64) for place, size in num_classes.items()}
    for batch in unpacked_blocks(rows) if found else ():
        for place, total in found.items():
            # On the host, as a GPU adds up in no order of its own, and ranks must find the same.
            labels = batch.targets[place].long().cpu()
            weight = torch.ones(len(labels)) if batch.weight is None else batch.weight.cpu()
            total += torch.bincount(labels, weight.double(), len(total))
    return found


def unpacked_blocks(rows: PackedTable | BatchSource) -> Iterator[Batch]:
    """All rows, block by block; of a source without `tables` those of this rank's batches of one epoch."""
    tables: Iterable[PackedTable] | None
    if isinstance(rows, PackedTable):
        tables = [rows]
    elif (tables := rows.tables()) is None:
        yield from (unpack(rows.schema, rows.words(step)) for step in range(len(rows)))
        return
    for table in tables:
        yield from (unpack(table.schema, words) for words in table.words.split(BLOCK_ROWS))
