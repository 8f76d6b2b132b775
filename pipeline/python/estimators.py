"""Gigabatch's models with scikit-learn's interface: `fit(X, y)`, `predict`, `predict_proba`, in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_is_fitted, column_or_1d

from gigabatch.features.encoding.label_spread import LabelSpread
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.operators.base import unused
from gigabatch.features.reading.sources import cast, without_null_words
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.features.workflow.failed_fit import keeps_last_fit
from gigabatch.features.workflow.steps import READING, parse_steps
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.kernels import using_kernels
from gigabatch.models.losses import TargetLoss
from gigabatch.models.modes import plain_defaults
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, load_bundle, target_loss
from gigabatch.pipeline.config.config import (
    ConfigError,
    TrainSettings,
    checked_settings,
    model_choice,
    with_column_settings,
)
from gigabatch.pipeline.display import silence
from gigabatch.pipeline.init.training import left_to_rows, with_words
from gigabatch.pipeline.machine import resolve_device
from gigabatch.pipeline.python.transformers import draft_of, has_names, labels_of_arrow, read_frame
from gigabatch.pipeline.stages.encode import pack
from gigabatch.pipeline.training.beside import MemberTraining
from gigabatch.pipeline.training.defaults import id_sizes, rule_of, settle
from gigabatch.pipeline.training.ensemble import require_members_differ, train_members
from gigabatch.pipeline.training.folds import Folds
from gigabatch.pipeline.training.target_scales import fitted_loss
from gigabatch.pipeline.training.threads import training_threads
from gigabatch.pipeline.training.train import Trained, model_inputs, new_model, train_model
from gigabatch.pipeline.warm.warm import compile_first

LABEL, OTHER_LABEL, WEIGHT = "y", "__label__", "__weight__"  # the other: where a column of X is called y
FEWEST_VALID = 5  # rows; below, all rows are trained on, and the last epoch's weights are kept
# Settings of train that cannot act here, and why.
WITHOUT_EFFECT = {
    "negatives": "negatives are drawn among the items of a recommender, which a configuration trains (`Pipeline`)",
    "codistill": "groups meet in files, as trainings by a configuration do (`Pipeline`)",
    **dict.fromkeys(
        ("start_from", "window", "new_rows", "sums_kept", "changed"),
        "an estimator begins with new weights; a training by a configuration can go on from a run (`Pipeline`)",
    ),
    **dict.fromkeys(("tables", "gradients"), "it is about several ranks, and an estimator is one process"),
    "residency": "the rows of an estimator are in memory",
    "checkpoint_every_steps": "an estimator writes no checkpoints",
}
# What needs rows that are not trained on, and the values that do not.
NEED_HELD_OUT = {"calibration": "none", "patience": None, "select": "last", "select_by": "loss"}
PARAMETERS = """

    Parameters
    ----------
    model
        Kind of the model, a name of the shelf (docs/models); None: it follows from the rows as in `gigabatch.fit`, and
        so do scale and epochs, each unless it is set.
    model_settings
        Of that model, such as `{"layers": [64, 32]}`.
    train
        Settings of the training, as under `train` of a configuration: `{"epochs": 10, "lr_max": 0.01}`,
        `{"ensemble": 5}`, or `{"losses": {"y": {"kind": "huber"}}}`, where `y` is the target. One that cannot act in
        memory, such as `start_from`, is refused.
    preprocess
        Of `PreprocessorSettings`, such as `{"min_count": 2}`.
    categorical, continuous
        Columns of a frame whose role is given; the others are what `gigabatch init` takes them for (docs/init.md), but
        that no possible leak is looked for. A matrix is all numbers, and `categorical` is refused beside it.
    validation_fraction
        Share of the rows that choose the best epoch, fit `calibration` and are not trained on; with fewer than 5 such
        rows, all rows are trained on, the last epoch is kept, and `calibration` and `patience` are refused. By folds
        (`train.ensemble_by`, unasked of 200 to 3,000 rows) each member leaves out an eighth of all rows instead.
    device
        `cpu`, `cuda` or `auto`.
    random_state
        Seed of that split, of weights and of the order of rows: a whole number, a `RandomState`, or None for another
        one each time.

    Attributes
    ----------
    bundle_ : Bundle
        Model and preprocessor, whose `save` writes what `gigabatch serve` reads.
    curve_ : list of dict
        The learning curve.
"""


class _Estimator(BaseEstimator):
    """What classifier and regressor share."""

    def __init__(
        self,
        model: str | None = None,
        model_settings: Mapping[str, Any] | None = None,
        train: Mapping[str, Any] | None = None,
        preprocess: Mapping[str, Any] | None = None,
        categorical: Sequence[str] | Mapping[str, str] = (),
        continuous: Sequence[str] = (),
        validation_fraction: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.model, self.model_settings, self.train, self.preprocess = model, model_settings, train, preprocess
        self.categorical, self.continuous = categorical, continuous
        self.validation_fraction, self.device, self.random_state = validation_fraction, device, random_state

    @plain_defaults()
    def _fit(self, X: Any, y: np.ndarray, target: Target, sample_weight: Any, strata: np.ndarray | None) -> None:
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction lies between 0 and 1, found {self.validation_fraction!r}.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        weight = _weights(X, sample_weight)
        rows = self._rows(X, weight)
        if weight is not None:
            counted = weight > 0
            weight, y, strata = weight[counted], y[counted], strata if strata is None else strata[counted]
        if len(rows) < 2:
            raise ValueError(f"Found array with {len(rows)} sample(s) while a minimum of 2 is required.")
        train_rows, valid_rows = self._split(len(rows), strata, seed)
        given = self._given(len(rows), valid_rows is not train_rows, target.task)
        settings: TrainSettings = checked_settings(TrainSettings, given["train"], "train")
        preprocess = checked_settings(PreprocessorSettings, with_column_settings(given["preprocess"]), "preprocess")
        choice = model_choice(given["model"])
        require_members_differ(settings, choice.kind)
        loss = _loss(target, settings, self._class_names())
        shift = 0.0
        if target.task == "regression":
            bounded = loss.regression[0].log_link or getattr(choice.settings, "output_range", None) is not None
            shift = _lost_mean(y, bounded)
            y = y - shift
        if LABEL in rows.columns:
            target = replace(target, name=unused(OTHER_LABEL, rows.columns))
        rows = rows.assign(**{target.name: y})
        weights = None if weight is None else unused(WEIGHT, rows.columns)
        if weights is not None:
            rows = rows.assign(**{weights: weight})
        made = self.workflow_.fit([rows.iloc[train_rows]]).transform
        schema = self._schema(target, weights)
        features = {
            name: cast(
                made(rows.iloc[places])[schema.table_columns].reset_index(drop=True),
                schema.table_dtypes,
                "fit",
                nullable=set(schema.names("categorical")),
            )
            for name, places in (("train", train_rows), ("valid", valid_rows))
        }
        device = resolve_device(self.device)
        compile_first(device)
        preprocessor = Preprocessor(schema, preprocess)
        preprocessor.fit([features["train"]])
        spec = ModelSpec(choice.kind, model_inputs(preprocessor), choice.settings)
        table = pack(preprocessor, features["train"])
        valid = table if valid_rows is train_rows else pack(preprocessor, features["valid"])
        # Weights, dropout and order follow torch's generator, which is the caller's.
        with torch.random.fork_rng(), using_kernels(settings.kernels), silence():
            trained, told = _trained(spec, table, valid, loss, settings, seed, device)
        if shift:
            scales = trained.model.target_scales
            trained.model.scale_targets([scale._replace(mean=scale.mean + shift) for scale in scales])
        self.curve_ = trained.curve
        served = [*schema.names("categorical", "continuous"), *(name for c in schema.lists for name in c.columns)]
        info = {
            "name": type(self).__name__,
            "recipe": "table",
            "seed": seed,
            "loss": loss.description,
            "null_values": [""],
        } | told
        if (positive := self._positive()) is not None:
            info["positive"] = {target.name: positive}
        self.bundle_ = Bundle(preprocessor, trained.model.eval(), info, device, self.workflow_.serving(served))

    def _given(self, num_rows: int, held_out: bool, task: str) -> dict[str, dict[str, Any]]:
        """Sections of a configuration: what is set, and what the rows choose of the rest.

        held_out: whether there are rows that are not trained on."""
        train, preprocess, model = dict(self.train or {}), dict(self.preprocess or {}), dict(self.model_settings or {})
        if "kind" in model:
            raise ConfigError(f"model_settings.kind: name the model by the argument model={model['kind']!r}.")
        if self.model is not None:
            model["kind"] = self.model
        for name, reason in WITHOUT_EFFECT.items():
            if name in train and train[name] != TrainSettings.model_fields[name].default:
                raise ConfigError(f"train.{name}: it has no effect in {type(self).__name__}: {reason}. Leave it out.")
        if train.get("epochs") == 0:
            raise ConfigError("train.epochs: an estimator begins with new weights. Give one epoch at least, found 0.")
        given: dict[str, dict[str, Any]] = {"train": train, "preprocess": preprocess, "model": model}
        left = left_to_rows(
            given,
            num_rows,
            bool(self.categories_),
            len(self.numbers_),
            task=task,
            at_random=True,
        )
        found = {name: left.get(name, {}) | section for name, section in given.items()}
        held_out = held_out or checked_settings(TrainSettings, found["train"], "train").by_folds
        for name, idle in () if held_out else NEED_HELD_OUT.items():
            if train.get(name, idle) != idle:
                raise ConfigError(
                    f"train.{name}={train[name]}: it needs rows that are not trained on, and validation_fraction="
                    f"{self.validation_fraction} of {num_rows} rows leaves none: {FEWEST_VALID} are the least, with "
                    "every class in both parts. Give more rows or a larger share, or leave the setting out."
                )
        if self.words_:
            found["preprocess"]["columns"] = with_words(self.words_, preprocess)
        return found if held_out else found | {"train": {"select": "last"} | found["train"]}

    def _rows(self, X: Any, weight: np.ndarray | None) -> pd.DataFrame:
        """The rows above weight 0 with their index renumbered, and what their columns are: kinds and the workflow, not
        fitted."""
        frame = read_frame(self, X, reset=True)
        frame = (frame if weight is None else frame[weight > 0]).reset_index(drop=True)
        if has_names(X):
            draft = draft_of(self, frame)
            found = draft.features
            self.categories_, self.numbers_ = draft.categories, tuple(found["continuous"])
            self.lists_ = [ListColumn(name, **settings) for name, settings in found.get("lists", {}).items()]
            types = draft.categories | dict.fromkeys(self.numbers_, "float32") | found.get("inputs", {})
            types = {name: dtype for name, dtype in types.items() if name in frame}
            lists = {name: dtype for column in self.lists_ for name, dtype in column.dtypes().items() if name in frame}
            steps, self.words_ = found.get("steps", ()), draft.words
        else:
            self.categories_, self.numbers_, self.lists_, self.words_ = {}, tuple(frame.columns), [], {}
            types, lists, steps = dict.fromkeys(frame.columns, "float32"), {}, ()
        known = types | lists
        self.workflow_ = Workflow(parse_steps(list(steps), "pandas", READING), [], known)
        rows = without_null_words(frame[list(known)], [""], known)
        return cast(rows, known, "fit", set(known), self.workflow_.decimal_marks)

    def _schema(self, target: Target, weights: str | None) -> Schema:
        columns = [Column(name, "categorical", dtype) for name, dtype in self.categories_.items()]
        columns += [Column(name, "continuous", "float32") for name in self.numbers_]
        columns += [Column(target.name, "target", "int32" if target.task == "multiclass" else "float32")]
        columns += [] if weights is None else [Column(weights, "weight", "float32")]
        return Schema(tuple(columns), (target,), (), tuple(self.lists_))

    def _split(self, num_rows: int, strata: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Places of the rows to train on and of those that choose the epoch; the same ones where rows are few."""
        places = np.arange(num_rows)
        wanted = round(num_rows * self.validation_fraction)
        if wanted < FEWEST_VALID:
            return places, places
        if strata is not None:
            counts = np.unique(strata, return_counts=True)[1]
            if counts.min() < 2 or wanted < len(counts) or num_rows - wanted < len(counts):
                strata = None
        train, valid = train_test_split(places, test_size=wanted, random_state=seed, stratify=strata)
        if strata is None and self._tells_classes:  # every class is to be learnt
            return places, places
        return np.sort(train), np.sort(valid)

    _tells_classes = False

    def _class_names(self) -> list[str]:
        """What `class_weights` call the classes, in order: as the settings read a key of a mapping."""
        return []

    def _positive(self) -> str | None:
        """The label whose probability is the one output; None where it is another number, or there are several."""
        return None

    def _outputs(self, X: Any) -> np.ndarray:
        """What the bundle predicts, [N, O] float64."""
        check_is_fitted(self)
        frame = read_frame(self, X, reset=False)
        return self.bundle_.predict_raw(frame).to_numpy(dtype=np.float64)

    def __getstate__(self) -> dict[str, Any]:
        """The bundle as the files that it is saved as, which any version that reads bundles can load."""
        state = dict(super().__getstate__())
        if "bundle_" in state:
            with tempfile.TemporaryDirectory() as folder:
                self.bundle_.save(Path(folder))
                files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
                state["bundle_"] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
            state.pop("workflow_")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "bundle_" in state:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in state["bundle_"].items():
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                state["bundle_"] = load_bundle(folder, resolve_device(state["device"]))
            state["workflow_"] = state["bundle_"].workflow
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.non_deterministic = self.random_state is None
        return tags


def _loss(target: Target, settings: TrainSettings, classes: list[str]) -> TargetLoss:
    """What the target asks for, whose settings are those of `train.losses.y`, whatever columns are called.

    classes: names of the classes in order."""
    column = Column(target.name, "target", "int32" if target.task == "multiclass" else "float32")
    return target_loss(Schema((column,), (target,)), settings.losses, settings.label_smoothing, classes)


def _trained(
    spec: ModelSpec,
    table: PackedTable,
    valid: PackedTable,
    loss: TargetLoss,
    settings: TrainSettings,
    seed: int,
    device: str,
) -> tuple[Trained, dict[str, Any]]:
    """The model or the ensemble, and what a bundle tells of its training."""

    def train(asked: MemberTraining) -> tuple[Trained, None]:
        rows, left_out, own = table, valid, asked.settings
        if folds is not None:
            rows, left_out = folds.tables(asked.number)
        network = new_model(spec, rows, asked.seed, own_loss, scaled_by=table)
        with training_threads(network, left_out, min(own.batch_size, len(rows)), device, None):
            return train_model(
                network, rows, left_out, own_loss, own, seed=asked.seed, device=device, folder=None
            ), None

    rule = rule_of(model_class(spec.name), spec.inputs)
    whole, told = settle(settings, len(table), id_sizes(table.schema), **rule), dict[str, Any]()
    folds = Folds.deal(table, None if valid is table else valid, whole.ensemble, seed) if whole.by_folds else None
    own_loss = fitted_loss(loss, table)  # of all rows: a fold may lack a class
    with tempfile.TemporaryDirectory() as folder:  # where members wait for the last one
        if whole.ensemble == 1:
            trained, _ = train(MemberTraining(0, seed, Path(folder), whole))
        else:
            ensemble = replace(spec, members=whole.ensemble)
            trained, _, members = train_members(
                train, ensemble, table, valid, loss, whole, seed=seed, device=device, folder=Path(folder)
            )
            told["members"] = {name: members[name] for name in ("seeds", "folds") if name in members}
    return trained, told | ({"prior_shift": trained.prior_shift} if trained.prior_shift else {})


class GigabatchClassifier(ClassifierMixin, _Estimator):
    __doc__ = (
        """Learn classes: a neural network on numbers, categories, dates and lists, with scikit-learn's interface."""
        + PARAMETERS
        + """    classes_ : ndarray
        The labels, ascending.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import GigabatchClassifier
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": [k % 7 for k in range(100)]})
    >>> sold = ["yes", "no"] * 50
    >>> model = GigabatchClassifier(random_state=0).fit(rows, sold)
    >>> model.predict(rows.head(2)).tolist(), model.predict_proba(rows).shape, model.score(rows, sold) > 0.9
    (['yes', 'no'], (100, 2), True)
    """
    )

    _tells_classes = True

    def _texts(self) -> list[str]:
        """The labels as `gigabatch.fit` names classes: those that are floats are whole, 1.0 is 1."""
        return [str(int(label)) if isinstance(label, float) else str(label) for label in self.classes_.tolist()]

    def _class_names(self) -> list[str]:
        weights = self._weights()
        pairs = zip(self._texts(), self.classes_.tolist(), strict=True)
        return [text if text in weights else str(label) for text, label in pairs]  # 1 and 1.0 name the class 1.0

    def _positive(self) -> str | None:
        return self._texts()[1] if len(self.classes_) == 2 else None

    def _weights(self) -> list[str]:
        """The classes that are given weights by a mapping, as text."""
        losses = (self.train or {}).get("losses") or {}
        given = losses.get(LABEL) if isinstance(losses, Mapping) else None
        weights = given.get("class_weights") if isinstance(given, Mapping) else None
        return [str(label) for label in weights] if isinstance(weights, Mapping) else []

    @keeps_last_fit
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GigabatchClassifier:
        """Learn the classes `y` [N] of the rows `X`: a frame, an Arrow table or a matrix [N, F] of numbers.

        Raises
        ------
        ValueError
            Where `y` holds one class alone or no classes, X is empty or holds what is no feature, or a weight is
            negative.
        """
        y = _labels(self, X, y)
        check_classification_targets(y)
        weight = _weights(X, sample_weight)
        self.classes_ = np.unique(y if weight is None else y[weight > 0])
        codes = np.searchsorted(self.classes_, y)  # of a row of weight 0 a number of nothing: it is left out
        num = len(self.classes_)
        if num < 2:
            (alone,) = self.classes_.tolist()
            raise ValueError(f"{type(self).__name__}: y holds one class alone, {alone!r}; there is nothing to learn.")
        target = Target(LABEL, "binary") if num == 2 else Target(LABEL, "multiclass", num, tuple(self._texts()))
        self._fit(X, codes, target, sample_weight, codes)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, [N, C] float64 in the order of `classes_`."""
        found = self._outputs(X)
        return np.hstack([1 - found, found]) if found.shape[1] == 1 else found / found.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row, [N]."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the rows whose likeliest class is `y` [N], by weight."""
        return float(super().score(X, _numpys(y), sample_weight))


class GigabatchRegressor(RegressorMixin, _Estimator):
    __doc__ = (
        """Learn a number: a neural network on numbers, categories, dates and lists, with scikit-learn's interface."""
        + PARAMETERS
        + """
    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import GigabatchRegressor
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 100, "size": [k % 50 for k in range(200)]})
    >>> price = rows["size"] * 2.0 + (rows["city"] == "Oslo") * 50
    >>> GigabatchRegressor(random_state=0).fit(rows, price).score(rows, price) > 0.9
    True
    """
    )

    @keeps_last_fit
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GigabatchRegressor:
        """Learn the numbers `y` [N] of the rows `X`: a frame, an Arrow table or a matrix [N, F] of numbers.

        Raises
        ------
        ValueError
            Where `y` is not finite, X is empty or holds what is no feature, or a weight is negative.
        """
        y = _numbers(self, _labels(self, X, y))
        self._fit(X, y, Target(LABEL, "regression"), sample_weight, None)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The number of each row, [N] float64."""
        return self._outputs(X)[:, 0]


def _lost_mean(y: np.ndarray, bounded: bool) -> float:
    """The mean of labels [N] float64, where float32, in which they are packed, would lose how they differ; else 0.

    bounded: whether the labels mean something by their distance from 0, so that nothing may be taken off. Then
    `DataError`, as where they differ by next to nothing."""
    spread = LabelSpread.of(pd.Series(y), LABEL)
    spread.require_deviation(LABEL)
    if bounded:
        spread.require(LABEL)
    return spread.moments.scale().mean if spread.is_lost else 0.0


def _numbers(estimator: Any, y: np.ndarray) -> np.ndarray:
    """The labels of a regression as float64."""
    name, advice = type(estimator).__name__, "Give numbers, or take GigabatchClassifier for classes."
    if y.dtype.kind in "mM" or (y.dtype.kind == "O" and any(isinstance(value, date) for value in y[:1])):
        raise ValueError(f"{name}: y holds dates or durations, such as {y[0]!s}, which are no numbers. {advice}")
    try:
        return np.asarray(y, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: y holds what is no number ({error}). {advice}") from error


def _weights(X: Any, sample_weight: Any) -> np.ndarray | None:
    """The rows' weights over their largest, [N] as float32 holds them; None where none are given."""
    if sample_weight is None:
        return None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():
        raise ValueError("sample_weight: all weights are 0. Give at least one row a weight above 0.")
    return (weight / weight.max()).astype(np.float32)


def _numpys(y: Any) -> Any:
    """Labels of pandas' nullable or Arrow's whole numbers and flags as numpy's, unless one is null: scikit-learn would
    make them float64, in which whole numbers from 2^53 up are no longer told apart."""
    y = labels_of_arrow(y)
    found = pd.Series(y) if isinstance(y, pd.api.extensions.ExtensionArray) else y
    if isinstance(found, pd.DataFrame) and found.shape[1] == 1:
        dtype = found.dtypes.iloc[0]
    elif isinstance(found, (pd.Series, pd.Index)):
        dtype = found.dtype
    else:
        return y
    kind = getattr(dtype, "numpy_dtype", None)
    return y if getattr(kind, "kind", "O") not in "iub" or np.any(pd.isna(found)) else found.astype(kind)


def _labels(estimator: Any, X: Any, y: Any) -> np.ndarray:
    """One label a row, none of them missing."""
    name = type(estimator).__name__
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    found = column_or_1d(_numpys(y), warn=True)
    if len(found) != _num_samples(X):
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {_num_samples(X)}, y {len(found)}."
        )
    if not len(found):
        raise ValueError(f"Found array with 0 sample(s), and {name} requires a minimum of 2.")
    numbers = found.dtype.kind in "fc"
    if pd.isna(found).any() or (numbers and not np.isfinite(found).all()):
        raise ValueError(f"Input y of {name} contains NaN, infinity or a null. Leave out rows without a label.")
    return found
