"""What a constant, a linear model and boosted trees make of the same rows, and where the model is worse than one.

They get what the model gets (the ids, floats and lists of the packed rows), learn from a sample of the train split and
are measured on the same rows of valid and test. scikit-learn's defaults, untuned: a floor, not a contest. The same seed
on the same machine gives the same numbers.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable
from gigabatch.pipeline.display import metric_label
from gigabatch.pipeline.evaluation.evaluate import Evaluation
from gigabatch.pipeline.evaluation.paired import METRICS, NOISE, Labelled, difference
from gigabatch.pipeline.evaluation.sample import spread_rows
from gigabatch.pipeline.training.target_metrics import target_metrics

if TYPE_CHECKING:
    from scipy import sparse

log = logging.getLogger(__name__)
MOST_ROWS = 200_000  # that are learnt from, and of each split that are measured
MOST_CATEGORIES = 255  # of a column of boosted trees
MOST_ELEMENTS = 32  # of a list whose shares are columns of boosted trees
FEW_STEPS = 1000  # few enough to be why a model is poor
STRETCHED = 20.0  # deviations that a column reaches where a robust scale is worth a try
CELLS = 5_000_000  # columns x outputs of the rows that are learnt from, which the seconds grow with: some ten on a core
FEWEST_ROWS = 10_000  # that are learnt from all the same, where there are as many
NAMES = {
    "constant": "the constant", "popularity": "the items' popularity", "linear": "the linear model",
    "boosted": "the boosted trees",
}  # fmt: skip


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
        Metrics by which the model is worse by more than the noise.
    """

    name: str
    target: str
    seconds: float
    rows: int
    metrics: dict[str, dict[str, float | None]]
    differences: list[dict[str, Any]]
    worse: list[str]


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
        On whose rows the model is compared with the baselines.
    bins
        Of the calibration error.
    item_column
        Where negatives are drawn: place of the items' ids. The constant is then each item's count in the train split,
        and a model of rows does not apply, as every row of the train split is a positive.
    quantiles
        Targets whose loss is that of a quantile, with which a prediction of the mean cannot be compared.

    Returns
    -------
    dict
        `split`; `rows` that are measured, by split; `found`, each `Baseline` as a dict; `left_out`, sentences that
        say what does not apply; `worse`, those that say where the model is worse. All of JSON types.
    """
    if item_column is None and {"linear", "boosted"} & set(names):
        import sklearn.ensemble
        import sklearn.linear_model  # noqa: F401  # now, so that its seconds are not the first baseline's

    rows = {split: Rows.of(table) for split, table in evaluated.items()}
    found: list[Baseline] = []
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
                scores, learnt = _scores(name, train, place, rows, seed, item_column)
            except _DoesNotApply as reason:
                left_out.append(f"{NAMES[name]} of {target.name!r} ({reason})")
                continue
            seconds = time.perf_counter() - started
            shown = "popularity" if item_column is not None else name
            found.append(_measured(shown, target, place, seconds, learnt, scores, rows, evaluations, split, bins))
    if found:
        spent = ", ".join(f"{item.name} {item.seconds:.1f} s from {item.rows:,} train rows" for item in found)
        log.info("baselines: %s", spent)
    for sentence in left_out:
        log.info("baselines: without %s", sentence)
    return {
        "split": split,
        "rows": {name: part.batch.num_rows for name, part in rows.items()},
        "found": [asdict(item) for item in found],
        "left_out": left_out,
        "worse": [text for target in train.schema.targets if (text := _worse(target.name, found, split))],
    }


def stretched_columns(rows: PackedTable) -> list[str]:
    """Floats that reach more than `STRETCHED` deviations from 0 in these rows: a few far values have set their scale.

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
    steps //= len({point.get("member") for point in curve}) or 1
    first = [point for point in curve if not point.get("member")]
    losses = [point["valid_loss"] for point in first if point.get("valid_loss") is not None]
    best, last = losses.index(min(losses)) + 1, len(losses)
    found = []
    if steps < FEW_STEPS:
        found.append(f"It took only {steps:,} steps: lower train.batch_size or raise train.epochs")
    if best == last:
        found.append("the valid loss was lowest in the last epoch: raise train.epochs")
    elif best <= last / 2:
        found.append(
            f"the valid loss was lowest in epoch {best} of {last}: lower train.lr_max, or raise train.weight_decay or "
            "the model's dropout"
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


def baseline_title(found: Mapping[str, Any]) -> str:
    """What stands above the table of `baseline_rows`."""
    split = compared_split(found)
    rows = f"{found['rows'][split]:,} {split} rows"
    return f"Baselines on {rows}; gain of the model over each, ± {NOISE:g} standard errors"


def compared_split(found: Mapping[str, Any]) -> str:
    """The split of `baselines`; summaries written before November 2026 do not name it, and theirs is test."""
    return str(found.get("split", "test"))


def baseline_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `baselines` found as rows of a table: the model's metrics on the same rows first, then each baseline's."""
    shown: list[dict[str, Any]] = []
    several = len({item["target"] for item in found["found"]}) > 1
    for item in found["found"]:
        names = [part["metric"] for part in item["differences"]]
        of_target = {"target": item["target"]} if several else {}
        if not any(row.get("target", item["target"]) == item["target"] for row in shown):
            own = {part["metric"]: part["model"] for part in item["differences"]}
            shown.append({"": "this model"} | of_target | own)
        metrics = {name: item["metrics"][compared_split(found)][name] for name in names}
        gains = {f"gain of {part['metric']}": part["gain"] for part in item["differences"]}
        errors = {f"± of {part['metric']}": NOISE * part["error"] for part in item["differences"]}
        paired = {key: value for pair in zip(gains.items(), errors.items(), strict=True) for key, value in pair}
        row = {"": NAMES[item["name"]].removeprefix("the ")} | of_target | metrics | paired
        row |= {"train rows": item["rows"], "seconds": item["seconds"]}
        shown.append(row | {"the model is worse by": ", ".join(item["worse"])})
    return shown


class _DoesNotApply(Exception):
    """Why a baseline cannot be had of these rows."""


def _scores(
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
        raise _DoesNotApply("no train row has a weight above 0")
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


class _Learner:
    """A model of scikit-learn for one target of a sample: subclasses make it and the matrix that it takes."""

    def __init__(self, schema: TensorSchema, sample: Batch, place: int, seed: int) -> None:
        self.schema, self.target = schema, schema.targets[place]
        if not schema.ids and not schema.floats and not schema.lists:
            raise _DoesNotApply("there is no feature")
        labels = sample.targets[place].numpy()
        weight = None if sample.weight is None else sample.weight.double().numpy()
        counted = labels if weight is None else labels[weight > 0]
        if len(counted) == 0:
            raise _DoesNotApply("no train row has a weight above 0")
        if weight is not None:  # only their ratios count, and a penalty or a least hessian is of weights about 1
            weight = weight / weight[weight > 0].mean()
        if self.target.task != "regression" and len(np.unique(counted)) < 2:
            raise _DoesNotApply("the train labels are all alike")
        self.prepare(sample, weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a solver that stopped at its bound of iterations
            labels = labels.astype(np.float64) if self.target.task == "regression" else labels.astype(np.int64)
            self.model = self.made(seed % (1 << 32)).fit(self.matrix(sample), labels, sample_weight=weight)

    def prepare(self, sample: Batch, weight: np.ndarray | None) -> None:
        """Learn what `matrix` needs."""

    def made(self, seed: int) -> Any:
        """The model, yet to be fitted. seed: below 2^32, as scikit-learn takes them."""
        raise NotImplementedError

    def matrix(self, batch: Batch) -> Any:
        raise NotImplementedError

    def predict(self, rows: Mapping[str, Rows]) -> dict[str, Tensor]:
        return {split: self._predict(part.batch) for split, part in rows.items()}

    def _predict(self, batch: Batch) -> Tensor:
        if self.target.task == "regression":
            return torch.from_numpy(self.model.predict(self.matrix(batch)))
        found = self.model.predict_proba(self.matrix(batch))
        if self.target.task == "binary":
            return torch.from_numpy(np.ascontiguousarray(found[:, 1]))
        chances = np.zeros((len(found), self.target.num_outputs))
        chances[:, self.model.classes_] = found  # a class that the sample lacks has the chance 0
        return torch.from_numpy(chances)


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


def _measured(
    name: str,
    target: Target,
    place: int,
    seconds: float,
    learnt: int,
    scores: Mapping[str, Tensor],
    rows: Mapping[str, Rows],
    evaluations: Mapping[str, Evaluation],
    compared_on: str,
    bins: int,
) -> Baseline:
    """The metrics of a baseline, and the model's on the same rows beside them."""
    metrics = {}
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
    differences = [asdict(item) for item in compared if item is not None]
    worse = [item.metric for item in compared if item is not None and item.is_worse]
    return Baseline(name, target.name, seconds, learnt, metrics, differences, worse)


def _worse(target: str, found: Sequence[Baseline], split: str) -> str | None:
    """The sentence that names the baselines of a target that the model is worse than; None where there is none."""
    parts = []
    for item in found:
        if item.target != target or not item.worse:
            continue
        of = {part["metric"]: part for part in item.differences}
        numbers = [
            f"{metric_label(name)} {of[name]['model']:.4g} against {of[name]['baseline']:.4g}" for name in item.worse
        ]
        parts.append(f"{NAMES[item.name]} ({', '.join(numbers)})")
    if not parts:
        return None
    others = ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]
    return f"{target!r} on the {split} split: the model is worse than {others}, by more than {NOISE:g} standard errors."
