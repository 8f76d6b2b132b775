"""The constant, linear model and boosted trees that a model is compared with, and what they predict.

They get what the model gets (the ids, floats and lists of the packed rows) and learn from a sample of the train split.
scikit-learn's defaults, untuned but for the number of trees: of the 100 those up to the lowest loss on valid, by which
the model's epoch is chosen too, as few rows and rare classes bear few trees. The same seed on the same machine gives
the same numbers. What they predict follows from the packed rows and is kept as an artifact: a run that changes the
model alone does not learn them again.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable
from gigabatch.pipeline.evaluation.paired import Labelled
from gigabatch.pipeline.evaluation.sample import spread_rows
from gigabatch.pipeline.evaluation.told import NAMES

if TYPE_CHECKING:
    from scipy import sparse

log = logging.getLogger(__name__)
SOURCES = ["gigabatch.features.schema", "gigabatch.loaders", __name__, "gigabatch.pipeline.evaluation.sample"]
LEARNT = "learnt.json"
# Gives the folder of an artifact, which it makes by the second argument where there is none of these settings.
Keep = Callable[[dict[str, Any], Callable[[Path], dict[str, Any]]], Path]
MOST_ROWS = 200_000  # that are learnt from, and of each split that are measured
MOST_CATEGORIES = 255  # of a column of boosted trees
MOST_ELEMENTS = 32  # of a list whose shares are columns of boosted trees
CELLS = 5_000_000  # columns x outputs of the rows that are learnt from, which the seconds grow with: some ten on a core
LEAST_CHANCE = 1e-7  # of a label, in the loss of valid
FEWEST_ROWS = 10_000  # that are learnt from all the same, where there are as many


@dataclass(frozen=True)
class Rows:
    """A split's rows that are measured: all, or an even sample of them; chosen: their numbers, None for all."""

    batch: Batch
    chosen: Tensor | None

    @classmethod
    def of(cls, table: PackedTable) -> Rows:
        if len(table) <= MOST_ROWS:
            return cls(table.unpack(table.words.cpu()), None)
        chosen = spread_rows(table, MOST_ROWS)
        return cls(table.unpack(table.words[chosen.to(table.device)].cpu()), chosen)

    def labelled(self, target: Target, place: int) -> Labelled:
        return Labelled(target.task, self.batch.targets[place], self.batch.weight, self.batch.group)

    def of_all(self, predictions: Tensor) -> Tensor:
        """Those of all rows that belong to these."""
        return predictions.cpu() if self.chosen is None else predictions[self.chosen.to(predictions.device)].cpu()


@dataclass(frozen=True)
class Learnt:
    """A baseline's predictions. place: of its target. seconds: to learn and to predict. rows: that it learnt from.
    scores: by split, as of `Evaluation.predictions` in float64."""

    name: str
    place: int
    seconds: float
    rows: int
    scores: dict[str, Tensor]


def learnt(
    names: Sequence[str],
    train: PackedTable,
    rows: Mapping[str, Rows],
    seed: int,
    item_column: int | None,
    quantiles: Collection[str],
    keep: Keep | None,
) -> tuple[list[Learnt], list[str]]:
    """What the baselines predict of `rows`, and sentences that say what does not apply; arguments as of `baselines`."""

    def learn() -> tuple[list[Learnt], list[str]]:
        return _learn(names, train, rows, seed, item_column, quantiles)

    if keep is None or item_column is not None:  # counts of items are quicker made than kept
        return learn()
    asked = {"baselines": list(names), "seed": seed, "splits": list(rows), "quantiles": sorted(quantiles)}
    version = importlib.metadata.version("scikit-learn")
    return _load(keep(asked | {"scikit-learn": version}, lambda folder: _save(folder, *learn())))


def _learn(
    names: Sequence[str],
    train: PackedTable,
    rows: Mapping[str, Rows],
    seed: int,
    item_column: int | None,
    quantiles: Collection[str],
) -> tuple[list[Learnt], list[str]]:
    if item_column is None and {"linear", "boosted"} & set(names):
        import sklearn.ensemble
        import sklearn.linear_model  # noqa: F401  # now, so that its seconds are not the first baseline's

    found: list[Learnt] = []
    left_out: list[str] = []
    for name in names:
        if item_column is not None and name != "constant":
            left_out.append(
                f"{NAMES[name]} (rows of the train split are all positives; their negatives are drawn anew each epoch)"
            )
            continue
        for place, target in enumerate(train.schema.targets):
            if target.name in quantiles:
                left_out.append(f"{NAMES[name]} of {target.name!r} (it predicts the mean, and the model a quantile)")
                continue
            started = time.perf_counter()
            try:
                scores, used = predicted(name, train, place, rows, seed, item_column)
            except DoesNotApply as reason:
                left_out.append(f"{NAMES[name]} of {target.name!r} ({reason})")
                continue
            shown = "popularity" if item_column is not None else name
            found.append(Learnt(shown, place, time.perf_counter() - started, used, scores))
    if found:
        spent = ", ".join(f"{item.name} {item.seconds:.1f} s from {item.rows:,} train rows" for item in found)
        log.info("baselines: %s", spent)
    for sentence in left_out:
        log.info("baselines: without %s", sentence)
    return found, left_out


def _save(folder: Path, found: Sequence[Learnt], left_out: Sequence[str]) -> dict[str, Any]:
    """learnt.json and a .npy file a baseline and split, one row of a constant; returns what the manifest says."""
    told = []
    for number, item in enumerate(found):
        for split, scores in item.scores.items():
            few = scores[:1] if item.name == "constant" else scores
            np.save(folder / f"{number}-{split}.npy", few.numpy(), allow_pickle=False)
        rows = {split: len(scores) for split, scores in item.scores.items()}
        told.append({"name": item.name, "place": item.place, "seconds": item.seconds, "rows": item.rows, "of": rows})
    (folder / LEARNT).write_text(json.dumps({"found": told, "left_out": list(left_out)}, allow_nan=False))
    return {"seconds": sum(item.seconds for item in found)}


def _load(folder: Path) -> tuple[list[Learnt], list[str]]:
    content = json.loads((folder / LEARNT).read_text())
    found = []
    for number, told in enumerate(content["found"]):
        scores = {}
        for split, count in told["of"].items():
            values = torch.from_numpy(np.load(folder / f"{number}-{split}.npy", allow_pickle=False))
            scores[split] = values.expand(count, *values.shape[1:])
        found.append(Learnt(told["name"], told["place"], told["seconds"], told["rows"], scores))
    return found, content["left_out"]


class DoesNotApply(Exception):
    """Why a baseline cannot be had of these rows."""


def predicted(
    name: str, train: PackedTable, place: int, rows: Mapping[str, Rows], seed: int, item_column: int | None
) -> tuple[dict[str, Tensor], int]:
    """Predictions by split, and how many rows they were learnt from."""
    if item_column is not None:
        counts = torch.bincount(train.words[:, item_column], minlength=train.schema.ids[item_column].num_ids).double()
        share = counts / counts.max()
        return {split: share[part.batch.ids[:, item_column].long()] for split, part in rows.items()}, len(train)
    target = train.schema.targets[place]
    if name == "constant":
        batch = train.unpack(train.words)
        value = _mean_label(target, batch.targets[place], batch.weight)
        return {split: value.expand(part.batch.num_rows, *value.shape) for split, part in rows.items()}, len(train)
    sample = _sample(train, target, seed)
    learner = _Linear if name == "linear" else _Boosted
    return learner(train.schema, sample, place, seed).predict(rows), sample.num_rows


def _mean_label(target: Target, labels: Tensor, weight: Tensor | None) -> Tensor:
    """The mean, float64 []; of classes their shares, float64 [K]. By weights where rows have some."""
    mass = torch.ones(len(labels), dtype=torch.float64) if weight is None else weight.double()
    if not bool(mass.sum() > 0):
        raise DoesNotApply("no train row has a weight above 0")
    if target.task == "multiclass":
        return labels.long().bincount(mass, minlength=target.num_outputs) / mass.sum()
    return (labels.double() * mass).sum() / mass.sum()


def _sample(train: PackedTable, target: Target, seed: int) -> Batch:
    """At most `MOST_ROWS` train rows by the seed, in their order; fewer where there are many columns or classes."""
    of_lists = sum(1 + min(column.num_ids, MOST_ELEMENTS) for column in train.schema.lists)
    cells = (len(train.schema.ids) + len(train.schema.floats) + of_lists) * target.num_outputs
    most = min(MOST_ROWS, max(CELLS // max(cells, 1), FEWEST_ROWS))
    if len(train) <= most:
        return train.unpack(train.words)
    chosen = SampleOrder(len(train), seed, epoch=0)(torch.arange(most)).sort().values
    return train.unpack(train.words[chosen])


def one_thread() -> AbstractContextManager:
    """As OpenMP's threads spin while they wait for each other: beside a load, two took a hundred times as long."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, "openmp")


class _Learner:
    """A model of scikit-learn for one target of a sample: subclasses make it and the matrix that it takes."""

    def __init__(self, schema: TensorSchema, sample: Batch, place: int, seed: int) -> None:
        self.schema, self.target, self.place = schema, schema.targets[place], place
        if not schema.ids and not schema.floats and not schema.lists:
            raise DoesNotApply("there is no feature")
        labels = sample.targets[place].numpy()
        weight = None if sample.weight is None else sample.weight.double().numpy()
        counted = labels if weight is None else labels[weight > 0]
        if len(counted) == 0:
            raise DoesNotApply("no train row has a weight above 0")
        if weight is not None:  # only their ratios count, and a penalty or a least hessian is of weights about 1
            weight = weight / weight[weight > 0].mean()
        if self.target.task != "regression" and len(np.unique(counted)) < 2:
            raise DoesNotApply("the train labels are all alike")
        self.prepare(sample, weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a solver that stopped at its bound of iterations
            labels = labels.astype(np.float64) if self.target.task == "regression" else labels.astype(np.int64)
            with one_thread():
                self.model = self.made(seed % (1 << 32)).fit(self.matrix(sample), labels, sample_weight=weight)

    def prepare(self, sample: Batch, weight: np.ndarray | None) -> None:
        """Learn what `matrix` needs."""

    def made(self, seed: int) -> Any:
        """The model, yet to be fitted. seed: below 2^32, as scikit-learn takes them."""
        raise NotImplementedError

    def matrix(self, batch: Batch) -> Any:
        raise NotImplementedError

    def predict(self, rows: Mapping[str, Rows]) -> dict[str, Tensor]:
        with one_thread():
            return {split: torch.from_numpy(self._predict(part.batch)) for split, part in rows.items()}

    def _predict(self, batch: Batch) -> np.ndarray:
        matrix = self.matrix(batch)
        regresses = self.target.task == "regression"
        return self._scores(self.model.predict(matrix) if regresses else self.model.predict_proba(matrix))

    def _scores(self, found: np.ndarray) -> np.ndarray:
        """What scikit-learn predicts, as of `Learnt.scores`."""
        if self.target.task == "regression":
            return found
        if self.target.task == "binary":
            return np.ascontiguousarray(found[:, 1])
        chances = np.zeros((len(found), self.target.num_outputs))
        chances[:, self.model.classes_] = found  # a class that the sample lacks has the chance 0
        return chances


class _Linear(_Learner):
    """Logistic regression, ridge regression for numbers: ids one-hot, lists as the mean of their elements' one-hot
    rows, floats as z-scores."""

    def prepare(self, sample: Batch, weight: np.ndarray | None) -> None:
        self.seen = [np.unique(column) for column in sample.ids.numpy().T]
        self.seen_elements = [np.unique(column.ids.numpy()) for column in sample.lists]
        floats = sample.floats.double().numpy()
        self.mean = np.average(floats, axis=0, weights=weight) if floats.size else np.zeros(floats.shape[1])
        deviation = np.sqrt(np.average((floats - self.mean) ** 2, axis=0, weights=weight)) if floats.size else 1.0
        counted = floats if weight is None else floats[weight > 0]
        varies = np.ptp(counted, axis=0) > 0 if floats.size else False  # a deviation of rounding alone is none
        self.scale = np.where(varies, deviation, 1.0)

    def made(self, seed: int) -> Any:
        from sklearn.linear_model import LogisticRegression, Ridge

        if self.target.task == "regression":
            return Ridge(alpha=1.0, solver="sparse_cg", random_state=seed)
        return LogisticRegression(C=1.0, max_iter=100, random_state=seed)

    def matrix(self, batch: Batch) -> sparse.csr_matrix:
        """An id that the sample lacks has a row of zeros, as if the column were not there."""
        from scipy import sparse

        parts = []
        for column, seen in zip(batch.ids.numpy().T, self.seen, strict=True):
            place = np.searchsorted(seen, column).clip(max=len(seen) - 1)
            known = seen[place] == column
            where = np.flatnonzero(known), place[known]
            parts.append(sparse.csr_matrix((np.ones(len(where[0])), where), shape=(len(column), len(seen))))
        for lists, seen in zip(batch.lists, self.seen_elements, strict=True):
            rows, ids, shares = _elements(lists)
            place = np.searchsorted(seen, ids).clip(max=max(len(seen) - 1, 0))
            known = seen[place] == ids if len(seen) else np.zeros(len(ids), bool)
            where = rows[known], place[known]
            parts.append(sparse.csr_matrix((shares[known], where), shape=(lists.num_rows, len(seen))))
        floats = (batch.floats.double().numpy() - self.mean) / self.scale
        return sparse.hstack([*parts, sparse.csr_matrix(floats)], format="csr")


class _Boosted(_Learner):
    """Gradient boosting on histograms. A column of at most 255 ids is one of categories. Of a larger one the most
    frequent values are, and the rarer ones share one: what a value's labels are enters the column in neither case. A
    list is its length and the shares of its most frequent elements."""

    def prepare(self, sample: Batch, weight: np.ndarray | None) -> None:
        self.frequent = []
        for lists in sample.lists:
            counts = np.bincount(lists.ids.numpy())
            most = np.argsort(-counts, kind="stable")[:MOST_ELEMENTS]
            self.frequent.append(np.sort(most[counts[most] > 0]))

    def made(self, seed: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingRegressor if self.target.task == "regression" else HistGradientBoostingClassifier
        mask = [True] * len(self.schema.ids) + [False] * (
            len(self.schema.floats) + sum(map(len, self.frequent)) + len(self.frequent)
        )
        trees = max(10, 200 // self.target.num_outputs) if self.target.num_outputs > 2 else 100
        return kind(categorical_features=mask, early_stopping=False, max_iter=min(trees, 100), random_state=seed)

    def predict(self, rows: Mapping[str, Rows]) -> dict[str, Tensor]:
        valid = rows["valid"].batch if "valid" in rows else None
        self.trees = None
        if valid is None or not valid.num_rows or (valid.weight is not None and not bool(valid.weight.any())):
            return super().predict(rows)
        with one_thread():
            stages = enumerate(self._stages(valid), start=1)
            self.trees, scores = min(stages, key=lambda stage: self._loss(stage[1], valid))  # the fewest of several
        found = super().predict({split: part for split, part in rows.items() if split != "valid"})
        return {split: torch.from_numpy(scores) if split == "valid" else found[split] for split in rows}

    def _loss(self, scores: np.ndarray, batch: Batch) -> float:
        labels = batch.targets[self.place].numpy()
        if self.target.task == "regression":
            of_rows = (scores - labels) ** 2
        else:
            of_classes = np.stack([1 - scores, scores], axis=1) if self.target.task == "binary" else scores
            chances = np.take_along_axis(of_classes, labels.astype(np.int64)[:, None], axis=1)[:, 0]
            of_rows = -np.log(chances.clip(min=LEAST_CHANCE))
        return float(np.average(of_rows, weights=None if batch.weight is None else batch.weight.double().numpy()))

    def _stages(self, batch: Batch) -> Iterator[np.ndarray]:
        """Scores after each tree."""
        regresses = self.target.task == "regression"
        staged = self.model.staged_predict if regresses else self.model.staged_predict_proba
        return map(self._scores, staged(self.matrix(batch)))

    def _predict(self, batch: Batch) -> np.ndarray:
        if self.trees is None:
            return super()._predict(batch)
        return next(islice(self._stages(batch), self.trees - 1, None))

    def matrix(self, batch: Batch) -> np.ndarray:
        # Ids are in falling order of frequency, so the bound leaves the most frequent apart.
        ids = batch.ids.numpy().clip(max=MOST_CATEGORIES - 1)
        parts = [ids.astype(np.float32), batch.floats.numpy()]
        for lists, frequent in zip(batch.lists, self.frequent, strict=True):
            rows, elements, shares = _elements(lists)
            place = np.searchsorted(frequent, elements).clip(max=max(len(frequent) - 1, 0))
            known = frequent[place] == elements if len(frequent) else np.zeros(len(elements), bool)
            found = np.zeros((lists.num_rows, len(frequent)), np.float32)
            np.add.at(found, (rows[known], place[known]), shares[known].astype(np.float32))
            parts += [lists.offsets.diff().numpy()[:, None].astype(np.float32), found]
        return np.concatenate(parts, axis=1)


def _elements(lists: JaggedColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each element [T] its row, id and part of the row's mean: w over the sum of |w|, or 1 over the length."""
    lengths = lists.offsets.diff().numpy()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    weights = np.ones(len(rows)) if lists.weights is None else lists.weights.double().numpy()
    sums = np.bincount(rows, np.abs(weights), minlength=len(lengths))[rows]
    return rows, lists.ids.numpy(), np.divide(weights, sums, out=np.zeros(len(rows)), where=sums > 0)
