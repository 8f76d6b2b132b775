"""A run's configuration: one YAML file, checked as a whole before any work, with `key=value` overrides.

Unknown keys are errors that list the known ones. YAML is 1.2, so 1e-3 is a number and `no` is a word.

A mistake is told within half a second. So nothing here imports torch or pandas before it is needed: keys and values of
other sections are checked first, then those of `model` and `features`, whose settings lie in heavy modules.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
import io
import json
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gigabatch.features.encoding.settings import CategorySettings, NumberSettings, PreprocessorSettings
from gigabatch.features.recipes import recipe_class, require_recipe
from gigabatch.features.setting_checks import INDICATORS
from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers.schedule import build_schedule
from gigabatch.models.shelf import MODELS, model_class, require_model, setting_names
from gigabatch.own_code import import_all, located
from gigabatch.pipeline.config.positives import AGAIN, left_to_positives
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.store.files import require_there

if TYPE_CHECKING:
    from torch import nn

Split = Literal["train", "valid", "test"]
NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
DEEPEST, MOST_VALUES = 50, 1_000_000  # of a configuration's levels, and of its values with their repetitions
LONGEST_RUN = 1 << 62  # steps; how many a run has is only known when its rows are
Selectable = Literal[
    "auc", "accuracy", "logloss", "normalised_entropy", "mrr", "gauc", "rmse", "mae", "r2", "pinball", "deviance"
]
SELECTABLE: tuple[str, ...] = get_args(Selectable)  # metrics of targets that may choose the epoch
LOSS_METRICS = ("pinball", "deviance")  # of regressions that are trained by such a loss
LESS_IS_BETTER = frozenset({"logloss", "normalised_entropy", "ece", "rmse", "mae", "pinball", "deviance"})
COLD = {"train.start_from": None, "train.window": None, "train.codistill": None}  # of what tries trainings by itself
ALONE = COLD | {"train.ensemble": 1}  # and of one model
LONGEST_VALUE = 200  # characters of what a message says was found


Checked = bool | Literal["features"]  # how much of a configuration is: `whole` of `load_config`


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the key, what was found and what is possible."""


class Settings(BaseModel):
    """Base of every section of a configuration: frozen, and without unknown keys.

    The docstring of a section gets its `Parameters` from the descriptions of its fields.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        first, separator, rest = inspect.cleandoc(cls.__doc__ or "").partition("\n\nExamples\n")
        fields = "\n".join(_field_text(name, field) for name, field in cls.model_fields.items())
        cls.__doc__ = f"{first}\n\nParameters\n----------\n{fields}{separator}{rest}"


def _field_text(name: str, field: FieldInfo) -> str:
    """A field as numpydoc writes a parameter; the defaults of a section stand in the section."""
    kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
    default = field.get_default(call_default_factory=True)
    is_shown = not (field.is_required() or isinstance(default, BaseModel) or is_dataclass(default))
    shown = f", default {str(default) if isinstance(default, Path) else default!r}" if is_shown else ""
    return f"{name} : {kind.replace('typing.', '')}{shown}\n    {field.description}."


@dataclass(frozen=True)
class ModelChoice:
    """A model by its name on the shelf (models/shelf.py), and its `Settings`; the data give its sizes."""

    kind: str
    settings: Any

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self.settings)}


def model_choice(raw: Any, positives: bool = False) -> ModelChoice:
    """From YAML's section `model`: `kind`, by default tabular, and that model's settings.

    positives: whether every row is a positive, so that what is left out is what the model takes for these
    (`Model.for_positives`)."""
    if isinstance(raw, ModelChoice):
        return raw
    kind = model_name(raw)
    settings = {name: value for name, value in raw.items() if name != "kind"}
    if kind in MODELS:  # an unknown one is told before the model, and so torch, is imported
        known = type(kind, (), {"__annotations__": dict.fromkeys(setting_names(kind), Any)})
        require_known_keys(known, settings, section="model")
    chosen = model_class(kind)
    if positives:
        settings = {**chosen.for_positives.get("model", {}), **settings}
    return ModelChoice(kind, checked_settings(chosen.Settings, settings, "model"))


def model_name(raw: Any) -> str:
    """The `kind` of YAML's section `model`, which is on the shelf; no model is imported."""
    if not isinstance(raw, dict):
        raise ConfigError(f"model: expected keys and values, found {type(raw).__name__}.")
    kind = str(raw.get("kind", "tabular"))
    try:
        require_model(kind)
    except ModelError as error:
        raise ConfigError(f"model.kind: {error}") from error
    return kind


@dataclass(frozen=True)
class PreprocessSettings(PreprocessorSettings):
    """How the encode stage encodes, as `PreprocessorSettings` say, and what it starts from.

    Parameters
    ----------
    from_
        In YAML `from`: the fitted preprocessor to grow (docs/refit.md), by a run: `current`, `previous`, `latest` or an
        id; or by a folder: of a run, of an artifact of `encode` or `update`, of an import, or its own. None: a new fit.
    refresh_scales
        With `from`: fills and scales of tonight's train split, for a model that is trained anew. Otherwise they stay.

    Examples
    --------
    >>> config = RunConfig(name="clicks", recipe="flights", preprocess={"from": "current", "min_count": 2})
    >>> config.preprocess.from_, config.preprocess.encoding.min_count, config.to_dict()["preprocess"]["from"]
    ('current', 2, 'current')
    """

    from_: Annotated[str | None, Field(alias="from", min_length=1)] = None
    refresh_scales: bool = False

    @property
    def encoding(self) -> PreprocessorSettings:
        """Without what it starts from: what a `Preprocessor` takes."""
        return PreprocessorSettings(**{item.name: getattr(self, item.name) for item in fields(PreprocessorSettings)})


class NegativeSettings(Settings):
    """Rows are positives, and negatives are drawn for each of them, anew each epoch (docs/recommenders.md)."""

    per_positive: int = Field(4, ge=1, le=1000, description="negatives drawn for each positive row")
    kind: Literal["uniform", "popularity"] = Field(
        "uniform", description="every item alike, or items by how often they are in the train split"
    )
    power: float = Field(0.75, gt=0, le=4, description="popularity: exponent of the counts that items are drawn by")
    exclude_known: bool = Field(True, description="never draw an item that the user has in the train split")


class LossSettings(Settings):
    """The loss of a target; docs/training.md says which is for what."""

    kind: Literal["mse", "huber", "quantile", "poisson", "tweedie", "log_loss", "focal"] | None = Field(
        None,
        description="of a regression target: squared error, Huber's, which outliers weigh less in, of a quantile, or "
        "the deviance of counts (poisson) or of amounts with many zeros (tweedie); of a binary or multiclass one: "
        "log_loss, or focal, in which rows that are right already weigh less; null: mse, or log_loss",
    )
    delta: float | None = Field(
        None, gt=0, description="huber: deviations from which on an error counts linearly; null: 1"
    )
    tau: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="quantile: share of the targets that the prediction is above; null: 0.5, the median",
    )
    power: float | None = Field(
        None, gt=1, lt=2, description="tweedie: the variance is the mean to this power; null: 1.5"
    )
    gamma: float | None = Field(None, ge=0, description="focal: the larger, the less right rows weigh; null: 2")
    class_weights: (
        Literal["balanced"] | dict[str, Annotated[float, Field(gt=0)]] | list[Annotated[float, Field(gt=0)]] | None
    ) = Field(
        None,
        description="of a binary or multiclass target: factors of the loss, a mapping that names every class (a binary "
        "target's are 0 and 1), or a list in the classes' order: 0 and 1; ascending as numbers where all classes are "
        "whole numbers, else as text; balanced: so that all classes weigh alike in the train split; null: 1",
    )

    @field_validator("class_weights", mode="before")
    @classmethod
    def _classes_are_text(cls, value: object) -> object:
        """YAML reads a class 3 as a number."""
        if not isinstance(value, dict):
            return value
        found = {str(name): weight for name, weight in value.items()}
        if len(found) < len(value):
            raise ValueError(f"a class is named twice in {', '.join(map(repr, value))}")
        return found

    @model_validator(mode="after")
    def _fits_the_kind(self) -> LossSettings:
        for name, kind in (("delta", "huber"), ("tau", "quantile"), ("power", "tweedie"), ("gamma", "focal")):
            if getattr(self, name) is not None and self.kind != kind:
                raise ValueError(f"{name} is a setting of the loss {kind}, and kind is {self.kind}")
        if self.class_weights is not None and self.kind not in (None, "log_loss", "focal"):
            raise ValueError(f"class_weights is a setting of the losses log_loss and focal, and kind is {self.kind}")
        return self


class PriorSettings(Settings):
    """Labels are 1 more often in the files than where the model serves, as negatives were left out."""

    serve: float | None = Field(None, gt=0, lt=1, description="share of label 1 where the model serves")
    train: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="with serve: share of label 1 in training; null: that of the train split's rows, or of the "
        "valid split's where probabilities are fitted to it (calibration: isotonic)",
    )
    negatives_kept: float | None = Field(
        None, gt=0, le=1, description="in place of serve: share of all rows of label 0 that were kept for the files"
    )

    @model_validator(mode="after")
    def _says_one_rate(self) -> PriorSettings:
        if (self.serve is None) == (self.negatives_kept is None):
            raise ValueError("give either serve or negatives_kept")
        if self.train is not None and self.serve is None:
            raise ValueError("train goes with serve, and with negatives_kept no rate is needed")
        return self


class GradientSettings(Settings):
    """How several ranks add up gradients of dense weights (docs/parallel.md); one rank alone sends nothing."""

    compress: Literal["none", "bfloat16", "float16", "dct"] = Field(
        "none", description="an all-reduce of float32; rounded to two bytes; or the large elements alone (DCT)"
    )
    drop: float | None = Field(
        None, ge=0, lt=1, description="dct: share of a weight's elements that wait for a later step; null: 0.99"
    )
    refresh_steps: int | None = Field(
        None, ge=1, description="dct: steps for which a weight's threshold holds; null: 1000"
    )
    values: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="dct: how elements travel, whose rounding waits too; null: bfloat16"
    )

    @model_validator(mode="after")
    def _fits_the_kind(self) -> GradientSettings:
        for name in ("drop", "refresh_steps", "values"):
            if getattr(self, name) is not None and self.compress != "dct":
                raise ValueError(f"{name} is a setting of dct, and compress is {self.compress}")
        return self


class WindowSettings(Settings):
    """The rows that a warm start trains on: those that its start has not seen, and a sample of the older ones."""

    replay: float = Field(
        0.5, ge=0, le=1000, description="older rows to be drawn, over the number of rows that the start has not seen"
    )
    since: Literal["start"] | None = Field(
        "start", description="rows later than those of the start are new; null: every row is, so all are trained on"
    )


class CodistillSettings(Settings):
    """This training is one of several groups, which learn from each other's predictions (docs/parallel.md)."""

    groups: int = Field(2, ge=2, le=64, description="trainings that learn from each other")
    group: int = Field(0, ge=0, description="which of them this one is, from 0")
    rows: Literal["disjoint", "all"] = Field(
        "disjoint",
        description="of the train split that a group trains on: disjoint: its share of them; all: all of them",
    )
    folder: Path | None = Field(
        None,
        description="where groups leave each other their weights, shared by all; null: one of this configuration under "
        "`artifacts`",
    )
    weight: float = Field(1.0, gt=0, description="of the loss against the peers' predictions; that of the labels has 1")
    burn_in_steps: int | None = Field(
        None, ge=0, description="steps by labels alone to begin with; null: a fifth of the training"
    )
    every_steps: int = Field(50, ge=1, description="steps from one exchange of weights to the next")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> CodistillSettings:
        if self.group >= self.groups:
            raise ValueError(f"group: {self.group} is none of {self.groups} groups, which count from 0")
        return self


class TrainSettings(Settings):
    """How the model is trained; docs/training.md says what each setting costs and when to use it."""

    epochs: int | None = Field(
        None,
        ge=0,
        description="times that the train rows are gone through; null: by the rule of docs/training.md; 0: with "
        "start_from, which then only grows the tables",
    )
    batch_size: int | None = Field(None, ge=2, description="rows of a step; null: by the rule of docs/training.md")
    optimizer: Literal["lamb", "adamw", "cowclip"] = Field("lamb", description="name of the optimizer")
    optimizer_settings: dict[str, Any] = Field(default_factory=dict, description="further arguments of the optimizer")
    lr_max: float | None = Field(
        None, gt=0, description="highest learning rate of the schedule; null: by the rule of docs/training.md"
    )
    weight_decay: float = Field(0.01, ge=0, description="share of a weight that a step at learning rate 1 takes away")
    schedule: Literal["one_cycle", "warmup_polynomial", "cosine_log", "constant"] = Field(
        "one_cycle", description="learning rate and momentum by step"
    )
    schedule_settings: dict[str, Any] = Field(default_factory=dict, description="further arguments of the schedule")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the matrix products in training; auto: bfloat16 or float16 where the hardware is faster"
    )
    accumulate_steps: int = Field(1, ge=1, description="pieces that a batch is worked through in, to save memory")
    max_grad_norm: float | Literal["auto"] | None = Field(
        "auto", description="bound of the gradients' common norm; auto: 1 for LAMB, none for others; null: none"
    )
    ema_decay: float | Literal["auto"] | None = Field(
        "auto",
        description="evaluate and save a moving average of the weights; null: the weights themselves; auto: .98 by the "
        "rule of docs/training.md",
    )
    patience: int | None = Field(
        None, ge=1, description="stop after so many epochs in a row none of which was better by select_by; null: never"
    )
    select: Literal["best", "last"] = Field("best", description="keep the epoch that is best by select_by, or the last")
    select_by: Literal["loss", Selectable] = Field(
        "loss", description="what epochs are compared by on the valid split: the loss, or a metric that evaluation has"
    )
    checkpoint_every_steps: int = Field(
        1000,
        ge=1,
        description="steps from a checkpoint to the next; there is one after epochs too, at most every two seconds",
    )
    residency: Literal["auto", "device", "host", "stream"] = Field(
        "auto", description="where the train rows lie: in the training device's memory, in the host's, or on disk"
    )
    tables: Literal["replicated", "sharded", "des", "auto"] = Field(
        "replicated",
        description="embedding tables of several ranks: whole on each, or their rows spread over ranks; des: rows by "
        "id, with sums in their place where these are fewer bytes (lr, fm, deepfm, dlrm); auto: sharded where they "
        "take more than half of a rank's memory",
    )
    gradients: GradientSettings = Field(
        GradientSettings(), description="how several ranks add up gradients of dense weights"
    )
    cuda_graph: Literal["auto", "on", "off"] = Field(
        "auto", description="replay a step as one CUDA graph; auto: on a GPU, where the optimizer can"
    )
    kernels: Literal["compiled", "reference"] = Field(
        "compiled", description="of training and its evaluation: compiled for the device, or plain torch, which is slow"
    )
    negatives: NegativeSettings | None = Field(
        None,
        description="for rows that are all positives, for which they are drawn where this is left out; batch_size "
        "counts the positives; null: none",
    )
    compile: Literal["on", "off"] = Field("off", description="torch.compile of model and loss; takes seconds to begin")
    losses: dict[str, LossSettings] = Field(
        default_factory=dict, description="of targets by name; mse or log loss for those that are not there"
    )
    calibration: Literal["none", "temperature", "isotonic"] = Field(
        "none",
        description="of probabilities, fitted on the valid split after training: one number that logits are divided "
        "by, or a rising curve of each binary target",
    )
    prior: PriorSettings | None = Field(
        None, description="correct probabilities for another share of label 1 where the model serves; null: as trained"
    )
    dropout_schedule: Literal["constant", "flat_cosine"] = Field(
        "constant", description="dropout as the model has it, or from half of the steps on falling to 0"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of a label that training deals out evenly over the target's classes"
    )
    ensemble: int = Field(
        1,
        ge=1,
        le=64,
        description="models of different seeds whose mean is predicted, on a CPU trained side by side; 1: one model",
    )
    ensemble_by: Literal["seeds", "folds"] = Field(
        "seeds",
        description="by what several members differ: seeds; or folds too: each learns train and valid but for a part "
        "of its own, by which its best epoch is chosen",
    )
    codistill: CodistillSettings | None = Field(
        None, description="one of several trainings that learn from each other's predictions; null: a training alone"
    )
    start_from: str | None = Field(
        None, description="go on from this run's weights and optimizer: current, a run's id or folder; null: train cold"
    )
    new_rows: Literal["mean", "unseen"] = Field(
        "mean", description="where the row of a value that start_from lacks starts: the mean of its column's, or unseen"
    )
    sums_kept: float = Field(
        0.7,
        ge=0,
        le=1,
        description="with start_from: share of row-wise Adagrad's sums of squares to begin with, as they only grow and "
        "rows would learn less each night; 1: all of them",
    )
    changed: Literal["refuse", "cold"] = Field(
        "refuse", description="where columns, targets, scales or the model are others than those of start_from"
    )
    window: WindowSettings | None = Field(
        None, description="with start_from: the train rows that it has not seen and a sample of others; null: all"
    )

    @property
    def copies(self) -> int:
        """Rows that a step has of a row: a positive's, with its drawn negatives."""
        return 1 if self.negatives is None else 1 + self.negatives.per_positive

    @field_validator("ema_decay")
    @classmethod
    def _share(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float) and not 0 < value < 1:
            raise ValueError("must be between 0 and 1, auto, or null for the weights themselves")
        return value

    @property
    def by_folds(self) -> bool:
        """Whether there are several members, each without a fold of its own."""
        return self.ensemble > 1 and self.ensemble_by == "folds"

    @field_validator("max_grad_norm")
    @classmethod
    def _positive_norm(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float) and value <= 0:
            raise ValueError("must be positive, auto, or null for no bound")
        return value

    @model_validator(mode="after")
    def _fits_the_optimizer_and_schedule(self) -> TrainSettings:
        """What these would refuse at the train stage, before any work."""
        for setting in ("lr", "weight_decay", "max_grad_norm"):
            if setting in self.optimizer_settings:
                key = "lr_max" if setting == "lr" else setting
                raise ValueError(f"optimizer_settings: {setting} is a setting of its own, train.{key}.")
        if self.optimizer_settings:
            from gigabatch.models.optimizers.registry import build_optimizer

            _try(
                "optimizer_settings",
                lambda: build_optimizer(
                    _tiny_model(), self.optimizer, lr=self.lr_max or 1.0, **self.optimizer_settings
                ),
            )
        if self.schedule_settings:
            _try(
                "schedule_settings",
                lambda: build_schedule(self.schedule, self.lr_max or 1.0, LONGEST_RUN, **self.schedule_settings),
            )
        for asking, found in (("epochs", self.epochs == 0), ("window", self.window is not None)):
            if found and self.start_from is None:
                raise ValueError(f"{asking}: this asks for a start, and start_from names none")
        if self.codistill is not None and self.start_from is not None:
            raise ValueError("codistill: groups begin with weights of their own, so start_from must be null")
        if self.codistill is not None and self.ensemble > 1:
            raise ValueError("ensemble: groups of codistill are trainings of one model each, so ensemble must be 1")
        if self.ensemble_by == "folds" and "ensemble" not in self.model_fields_set:
            raise ValueError("ensemble_by=folds: ensemble, the number of members, is not set. Set it, such as to 4.")
        if self.by_folds and (reason := against_folds(dict(self))):
            raise ValueError(f"ensemble_by=folds: {reason}")
        if self.batch_size is not None and self.batch_size < 2 * self.accumulate_steps:
            raise ValueError(
                f"accumulate_steps: {self.accumulate_steps} pieces of a batch of {self.batch_size} rows have fewer "
                "than 2 rows, which batch norm needs. Lower it or take a larger batch_size."
            )
        return self


def against_folds(train: Mapping[str, Any]) -> str:
    """Why members by folds do not go with these settings of `train`; empty where they do."""
    for name, plain in (("calibration", "none"), ("negatives", None), ("start_from", None)):
        if train.get(name, plain) != plain:
            return f"{name} needs valid rows that no member learns. Set ensemble_by to seeds."
    if train.get("residency") == "stream":
        return "residency=stream reads rows in one order. Set it to host."
    return ""


class WholeTrainSettings(TrainSettings):
    """Train settings in which nothing is left to a rule: `gigabatch.pipeline.training.defaults.settle` makes them."""

    epochs: int = Field(ge=0, description="times that the train rows are gone through; 0 with a start alone")
    batch_size: int = Field(ge=2, description="rows of a step")
    lr_max: float = Field(gt=0, description="highest learning rate of the schedule")
    ema_decay: float | None = Field(
        None, description="evaluate and save a moving average of the weights; null: the weights themselves"
    )


def _tiny_model() -> nn.Module:
    """A table and a layer to try optimizers on; torch's random state is left as it was."""
    import torch
    from torch import nn

    from gigabatch.models.layers.embeddings import EmbeddingTables

    with torch.random.fork_rng(devices=[]):
        return nn.Sequential(EmbeddingTables([1], [1]), nn.Linear(1, 1))


def _try(key: str, build: Callable[[], object]) -> None:
    """Raise what `build` refuses as a `ValueError` of this key."""
    try:
        build()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {error}") from error


class RankingSettings(Settings):
    """What is ranked, and how deep it is looked at."""

    k: tuple[int, ...] = Field((10,), min_length=1, description="depths of HR, NDCG, recall and coverage")
    negatives: int | None = Field(99, ge=1, description="items drawn for each positive; null: none")
    negatives_are_not_in: tuple[Split, ...] = Field(
        ("train", "valid", "test"), description="splits whose positives of the user are never drawn"
    )
    full_catalogue: bool = Field(True, description="also rank each positive among all items")
    catalogue_is_without: tuple[Split, ...] = Field(
        ("train",),
        description="splits whose other positives of the user are no candidates; none with `repeats: all` of "
        "interactions",
    )
    max_rows: int | None = Field(10_000, ge=1, description="positives, evenly spread over the split; null: all")
    baselines: tuple[Literal["popularity", "top_frequency", "item_knn", "ease"], ...] = Field(
        ("popularity", "item_knn", "ease"),
        description="models that take no steps, fitted to the same rows and ranked beside the model where the "
        "catalogue is small enough for some seconds; with `repeats: all` of interactions top_frequency too; []: none",
    )

    @field_validator("baselines")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a baseline twice")
        return value

    @field_validator("k")
    @classmethod
    def _whole_depths(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if min(value) < 1 or len(set(value)) < len(value):
            raise ValueError("must be different whole numbers from 1")
        return value


class EvaluateSettings(Settings):
    """What the evaluation computes beside the metrics."""

    importance: bool = Field(True, description="permutation importance of every feature on the test split")
    importance_rows: int | None = Field(
        None,
        ge=100,
        description="rows of the split that are shuffled and scored; by default 20,000, or so many fewer that all "
        "shuffled rows together are no more than half of those that the training saw (docs/report.md)",
    )
    importance_repeats: int | None = Field(
        None,
        ge=1,
        description="times that each feature is shuffled; by default 3, fewer where rows alone are not enough",
    )
    calibration_bins: int = Field(15, ge=2, le=100, description="bins of the calibration error and its chart")
    false_positive_cost: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="of a row that is flagged and has label 0, in any unit"
    )
    false_negative_cost: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="of a row that is not flagged and has label 1, in the same unit"
    )
    slices: bool = Field(True, description="look for values of columns that the model does worse on than on all rows")
    baselines: tuple[Literal["constant", "linear", "boosted"], ...] = Field(
        ("constant", "linear", "boosted"),
        description="what the model is compared with: always the mean; a logistic or ridge regression and gradient "
        "boosted trees on at most 200,000 train rows; []: nothing",
    )
    ranking: RankingSettings | None = Field(
        None,
        description="rank each choice of the test split among sampled items and among all; needs entities; left out "
        "where rows are all positives: among all; null: none",
    )

    @field_validator("baselines")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a baseline twice")
        return value

    @model_validator(mode="after")
    def _costs(self) -> EvaluateSettings:
        if self.false_positive_cost == self.false_negative_cost == 0:
            raise ValueError("false_positive_cost and false_negative_cost are both 0, so no threshold is better")
        return self


class KeepSettings(Settings):
    """What a night leaves on the disk. Never removed: the current, previous and latest run, what the night compares
    with, and what another process uses."""

    runs: int | None = Field(14, ge=1, description="newest runs that stay; null: all")
    days: float | None = Field(None, gt=0, description="runs younger than that stay, too; null: by number alone")
    artifacts: int | None = Field(
        3, ge=1, description="artifacts of each stage that stay, by their last use; null: all"
    )


class NotifySettings(Settings):
    """Who is told of a night (docs/nightly.md)."""

    command: tuple[str, ...] = Field((), description="program and arguments that get the night's line as JSON on stdin")
    webhook: str | None = Field(
        None, description="URL that the line is posted to, or env:NAME of an environment variable that holds it"
    )
    on: tuple[Literal["promoted", "kept", "refused", "failed", "stopped"], ...] = Field(
        ("promoted", "kept", "refused", "failed", "stopped"), description="the nights that are told"
    )
    timeout_s: float = Field(30.0, gt=0, description="after which the command is ended, or the webhook given up")
    retries: int = Field(2, ge=0, le=10, description="further calls of a webhook that does not answer, or with 5xx")


class NightlySettings(Settings):
    """When a new model replaces the current one."""

    metric: Literal["auc", "logloss", "mrr"] | None = Field(
        None, description="None: mrr where rows have groups, auc for a binary target, else the loss"
    )
    tolerance: float = Field(
        0.001,
        ge=0,
        description="the lower bound of the gain must be above minus this; of a loss, this share of the constant's",
    )
    start: Literal["warm", "cold"] = Field(
        "warm",
        description="warm: go on from the current run, on rows that are new to it and a sample of others; cold: a new "
        "fit and a new model on all rows",
    )
    replay: float = Field(
        0.5, ge=0, le=1000, description="warm: older rows to be drawn, over the number of those that are new"
    )
    warm_epochs: int | None = Field(
        None, ge=1, description="warm: times that these rows are gone through; null: train.epochs, or 1 without that"
    )
    cold_every: int | None = Field(
        30, ge=1, description="warm: of so many nights one trains a new model on all rows; null: none does"
    )
    reference_nights: int | None = Field(
        30, ge=2, description="also compare with what was current so many nights ago; null: do not"
    )
    reference_tolerance: float = Field(
        0.005, ge=0, description="as tolerance, of the gain over that reference, so that small losses cannot add up"
    )
    keep: KeepSettings = Field(KeepSettings(), description="what a night leaves on the disk")
    notify: NotifySettings = Field(NotifySettings(), description="who is told")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="of the one-sided lower bound of the gain")
    num_bootstrap: int = Field(500, ge=50, description="samples of the bootstrap that the bound comes from")
    embed: Literal["auto", "off"] = Field(
        "auto", description="store users and items of a promoted recommender, as a running service needs them"
    )
    export: tuple[Literal["torch", "onnx_rows"], ...] = Field(
        (), description="formats of docs/export.md that a run is written in before it is promoted"
    )
    min_window_rows: int = Field(
        1000, ge=10, description="fewer rows in the window that both models have not seen: refuse"
    )
    max_skill_drop: float = Field(
        0.2,
        gt=0,
        description="how far below the current model's own test metric the new one may be, as a share of the way from "
        "a constant prediction (0) to perfection (1)",
    )
    time_unit: Literal["auto", "ns", "us", "ms", "s", "min", "h", "d", "minutes", "hours", "days", "none"] = Field(
        "auto",
        description="in which the time column counts from 1970; auto: ns, us, ms or s where the times then lie between "
        "1990 and 2262, else none: a number that only orders the rows; minutes, hours and days are min, h and d",
    )
    max_future_seconds: float = Field(86_400.0, ge=0, description="rows with a time later than that after now: refuse")


class MlflowSettings(Settings):
    """Where runs are logged in MLflow (docs/tracking.md)."""

    uri: str = Field(
        "sqlite:///mlflow.db",
        min_length=1,
        description="of the tracking server or database; sqlite:///FILE, https://...",
    )
    artifacts: Path | None = Field(
        None, description="folder for reports of a new experiment; null: the server's, or mlruns beside the database"
    )


class TrackSettings(Settings):
    """Other tools that are told of runs (docs/tracking.md)."""

    tensorboard: bool = Field(False, description="write the learning curve to runs/<name>/tensorboard while it grows")
    mlflow: MlflowSettings | None = Field(None, description="log each run, and the promoted one as champion; null: no")


class ClusterSettings(Settings):
    """How many tasks run at once, and where a cluster is started, its workers."""

    threads: int | None = Field(None, ge=1, description="with cluster none: tasks at once; None: one a core")
    workers: int | None = Field(None, ge=1, description="processes to start; None leaves Dask's choice")
    threads_per_worker: int | None = Field(None, ge=1, description="None leaves Dask's choice")
    memory_limit: str = Field("auto", description="of a worker, such as 4GiB; auto: its share of the machine's")


class RunConfig(Settings):
    """The configuration of one run: what one YAML file holds.

    Examples
    --------
    >>> config = RunConfig(name="clicks", recipe="flights", train={"epochs": 2, "lr_max": 0.02})
    >>> config.train.epochs, config.train.batch_size  # left to the rule of docs/training.md
    (2, None)
    >>> RunConfig(name="clicks", recipe="flights", model={"layers": [64, 32]}).model.kind
    'tabular'
    """

    name: str = Field(
        pattern=f"^{NAME}$",
        max_length=200,
        description="the run's folder under `runs`: letters, digits, _, . and -, the first one a letter, a digit or _",
    )
    imports: tuple[str, ...] = Field(
        (),
        description="files (*.py, from the folder of the YAML) and modules of your own that are imported before the "
        "configuration is checked, for what they register (docs/own_code.md)",
    )
    recipe: str = Field(description="where the rows come from: a name of `gigabatch.features.recipes.RECIPES`")
    engine: Literal["auto", "cudf", "cudf_plain", "pandas"] = Field(
        "auto",
        description="library of data frames; auto: cudf where it is installed and there is a GPU; cudf_plain: cuDF "
        "without kernels of our own, to the same values",
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="of torch; auto: cuda where there is one"
    )
    num_threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch; None: its default, and one where the steps of a training are too small to "
        "share (docs/training.md). The last bits of weights depend on it",
    )
    cluster: str = Field(
        "none", pattern=r"^(none|local|cuda|tcp://[^/\s]+:\d+)$", description="none, local, cuda or tcp://HOST:PORT"
    )
    cluster_settings: ClusterSettings = Field(ClusterSettings(), description="tasks, workers and their memory")
    seed: int = Field(1, ge=0, lt=1 << 63, description="of weights, order of rows, dropout and drawn negatives")
    artifacts: Path = Field(Path("artifacts"), description="folder of what the stages made, by content")
    runs: Path = Field(Path("runs"), description="folder of finished runs")
    rows_per_part: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="rows of a Parquet part of the features stage, and so of what is in memory at once; auto: a "
        "million, with cuDF as many as take 1/16 of the GPU's memory",
    )
    handover: Literal["auto", "on", "off"] = Field(
        "auto",
        description="packed rows go to training in memory while a thread writes them; auto: where a GPU trains and "
        "they fit; on: also where a CPU trains; off: they are written first, then read",
    )
    features: Any = Field(None, description="settings of the recipe")
    preprocess: PreprocessSettings = Field(
        PreprocessSettings(), description="ids, missing values and scaling; `from`: the fitted preprocessor to grow"
    )
    model: Any = Field({}, description="kind, and the settings of that model")
    train: TrainSettings = Field(TrainSettings(), description="how the model is trained")
    evaluate: EvaluateSettings = Field(EvaluateSettings(), description="what is measured beside the metrics")
    nightly: NightlySettings = Field(NightlySettings(), description="when a new model replaces the current one")
    serve: ServeSettings = Field(ServeSettings(), description="the service")
    track: TrackSettings = Field(TrackSettings(), description="MLflow and TensorBoard")
    _chosen: dict[str, dict[str, Any]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _preprocess_settings(cls, raw: Any) -> Any:
        given = raw.get("preprocess") if isinstance(raw, dict) else None
        if isinstance(given, PreprocessorSettings) and not isinstance(given, PreprocessSettings):
            return raw | {"preprocess": PreprocessSettings(**vars(given))}
        if isinstance(given, dict):
            start = given.get("from")
            if start is not None and not isinstance(start, str):  # YAML takes an id of digits for a number
                found = _shortened(repr(start))
                raise ConfigError(f"preprocess.from: expected a run or a folder, found {found}. Put it in quotes.")
            require_known_keys(PreprocessSettings, given, section="preprocess")
            settings = checked_settings(PreprocessSettings, with_column_settings(given), "preprocess")
            if settings.indicator not in INDICATORS:
                known = ", ".join(INDICATORS)
                raise ConfigError(f"preprocess.indicator: unknown value {settings.indicator!r}. Known: {known}.")
            return raw | {"preprocess": settings}
        return raw

    @model_validator(mode="before")
    @classmethod
    def _own_code(cls, raw: Any, info: ValidationInfo) -> Any:
        if not _checked(info):
            return raw
        if isinstance(raw, dict) and "imports" in raw:
            raw = raw | {"imports": import_all(raw["imports"])}
        if isinstance(raw, dict) and "recipe" in raw:
            require_recipe(str(raw["recipe"]))
        return raw

    @model_validator(mode="after")
    def _runs_apart_from_artifacts(self) -> RunConfig:
        if os.path.realpath(self.runs) == os.path.realpath(self.artifacts):  # of links in a circle, too
            raise ValueError(f"runs and artifacts are one folder, {self.runs}. Give each its own.")
        return self

    @model_validator(mode="after")
    def _settings_of_model_and_recipe(self, info: ValidationInfo) -> RunConfig:
        """Last, since importing a model or a recipe takes seconds."""
        checked = _checked(info)
        if not checked:
            return self
        features = self.features or {}
        if checked is True and not isinstance(self.model, ModelChoice):
            model_name(self.model)  # an unknown one is told before the recipe is imported, and that before the model
        if not is_dataclass(features):
            features = recipe_settings(self.recipe, features)
        object.__setattr__(self, "features", features)  # pydantic refuses the assignment: a configuration is frozen
        if checked == "features":
            return self
        given, positives = self.model, self.positives_alone
        object.__setattr__(self, "model", model_choice(given, positives))
        if positives:
            self._fill_for_positives(set(given) if isinstance(given, dict) else set(asdict(self.model.settings)))
        return self

    @property
    def positives_alone(self) -> bool:
        """Whether every row is a positive, as the recipe's settings or `train.negatives` say, and negatives are drawn.

        >>> plays = {"path": "plays.csv", "user": "listener", "item": "song"}
        >>> RunConfig(name="plays", recipe="interactions", features=plays).positives_alone
        True
        """
        if "negatives" in self.train.model_fields_set:
            return self.train.negatives is not None
        return bool(getattr(self.features, "positives_alone", False))

    def _fill_for_positives(self, given: set[str]) -> None:
        """What positives take where the user leaves it out; given: the settings of `model` that are set."""
        both = bool(getattr(self.features, "positives_alone", False))
        both = both or {"user", "item"} <= set(getattr(self.features, "entities", None) or ())
        kind = model_class(self.model.kind)
        said = {"model": given, "train": self.train.model_fields_set, "evaluate": self.evaluate.model_fields_set}
        found = left_to_positives(kind.for_positives, said, kind.learns_by_steps, both)
        for section in ("train", "evaluate"):
            settings = getattr(self, section)
            fields = type(settings).model_fields
            new = {name: TypeAdapter(fields[name].annotation).validate_python(value)
                   for name, value in found.get(section, {}).items()}  # fmt: skip
            object.__setattr__(self, section, settings.model_copy(update=new))
        again, ranking = getattr(self.features, "repeats", None) == "all", self.evaluate.ranking
        if again and ranking is not None:
            left = {name: value for name, value in AGAIN.items() if name not in ranking.model_fields_set}
            ranking = ranking.model_copy(update={name: tuple(value) for name, value in left.items()})
            object.__setattr__(self, "evaluate", self.evaluate.model_copy(update={"ranking": ranking}))
            if left := found.get("evaluate", {}).get("ranking", {}) | left:
                found["evaluate"] = {"ranking": left}
        self._chosen = found

    @property
    def chosen(self) -> dict[str, dict[str, Any]]:
        """Settings that the user left out and that follow from rows which are all positives, by section.

        >>> plays = {"path": "plays.csv", "user": "listener", "item": "song"}
        >>> config = RunConfig(name="plays", recipe="interactions", features=plays, model={"kind": "mf"})
        >>> config.chosen["model"], config.train.negatives.per_positive
        ({'loss': 'catalogue', 'dim': 128}, 8)
        """
        return self._chosen

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, every default written out."""
        raw = self.model_dump(mode="json", by_alias=True, exclude={"features", "model"})
        return raw | {"features": plain_settings(self.features), "model": _plain(self.model.to_dict())}

    def to_yaml(self) -> str:
        out = io.StringIO()
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.dump(self.to_dict(), out)
        return out.getvalue()


def recipe_settings(recipe: str, given: Any) -> Any:
    """The checked settings of a recipe. given: keys and values as YAML gives them, or None for none."""
    return checked_settings(recipe_class(recipe).Settings, given or {}, "features")


def plain_settings(settings: Any) -> dict[str, Any]:
    """Settings of a recipe as plain JSON types, every default written out."""
    return _plain(asdict(settings))


def _plain(raw: dict[str, Any]) -> dict[str, Any]:
    # Plain types within Python; a bound of a step may be an infinity, which to_yaml can write.
    found: dict[str, Any] = json.loads(json.dumps(raw, allow_nan=True))
    return found


def _checked(info: ValidationInfo) -> Checked:
    found: Checked = True if info.context is None else info.context["whole"]
    return found


def load_config(
    given: str | Path | Mapping[str, Any], overrides: Sequence[str | Mapping[str, Any]] = (), whole: Checked = True
) -> RunConfig:
    """Read a YAML file, or take what one would hold, and check it as a whole.

    Parameters
    ----------
    given
        The file; or a mapping of its keys and values, which stays as it is.
    overrides
        `dotted.key=value`, applied in order; values are YAML too (`model.layers=[64,32]`). From Python also mappings
        from dotted keys to values, which stay as they are.
    whole
        False: `model` and `features` stay as they are given and the user's own code is not run: for what asks only
        where things lie, and should answer before torch and pandas are imported. `features`: only `model` stays as it
        is given, for what reads the files and needs no torch.

    Raises
    ------
    ConfigError
        Where the file cannot be read, a key is unknown or a value is out of bounds. The message names all of them.
    ArtifactError
        The folder of runs is a link that leads nowhere.

    Examples
    --------
    >>> _ = Path("run.yaml").write_text("name: clicks\\nrecipe: flights\\n")
    >>> load_config("run.yaml", ["train.epochs=3"]).train.epochs
    3
    >>> load_config("run.yaml", [{"train.epochs": 4, "seed": 7}]).train.epochs
    4
    >>> load_config({"name": "clicks", "recipe": "flights", "train": {"epochs": 5}}).train.epochs
    5
    """
    if isinstance(given, Mapping):
        raw, where = _copied(given, "config"), "config"
    elif isinstance(given, str | Path):
        where = f"config {given}"
        raw = _copied(_read(Path(given)), where)  # an alias is the same dictionary, which overrides would change twice
    else:
        raise ConfigError(f"config: expected a YAML file or a mapping of keys and values, found {given!r}.")
    for override in overrides:
        _apply(raw, override)
    if "imports" in raw:
        raw["imports"] = located(raw["imports"], Path() if isinstance(given, Mapping) else Path(given).parent)
    config = parse_config(raw, where, whole)
    require_there(config.runs / config.name)
    return config


def _copied(value: Any, where: str) -> Any:
    """Mappings, and those in them, as dictionaries of their own, which overrides may change; other values as is."""
    if not isinstance(value, Mapping):
        return value
    _require_bounded(value, where)
    return {key: _copied(item, where) for key, item in value.items()}


def named_folder(path: str | Path, overrides: Sequence[str] = ()) -> Path | None:
    """`runs/<name>` of a configuration that need not be usable; None where it does not tell."""
    raw = _as_far_as_it_can_be_read(path, overrides)
    name, runs = raw.get("name"), raw.get("runs", "runs")
    if not isinstance(name, str) or not isinstance(runs, str) or re.fullmatch(NAME, name) is None:
        return None
    return Path(runs) / name


def named_notice(path: str | Path, overrides: Sequence[str] = ()) -> NotifySettings | None:
    """`nightly.notify` of a configuration that need not be usable otherwise; None where it does not tell."""
    night = _as_far_as_it_can_be_read(path, overrides).get("nightly")
    told = night.get("notify") if isinstance(night, dict) else None
    try:
        return None if told is None else NotifySettings.model_validate(told)
    except ValidationError:
        return None


def _as_far_as_it_can_be_read(path: str | Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Keys and values of a configuration, without overrides that are none; empty where there is no such file."""
    try:
        raw = _read(Path(path))
    except ConfigError:
        return {}
    for override in overrides:
        with contextlib.suppress(ConfigError):
            _apply(raw, override)
    return raw


def _read(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        raw = copy.deepcopy(_yaml(_piped(path, path.stat().st_ino) if path.is_fifo() else path.read_text()))
    except FileNotFoundError as error:
        known = sorted(str(item) for item in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise ConfigError(f"config {path}: no such file. Found there: {', '.join(known) or 'nothing'}.") from error
    except OSError as error:
        raise ConfigError(f"config {path}: cannot be read ({error.strerror}).") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: not valid YAML ({_where_yaml(error)}).{_mixed(error)}") from error
    except RecursionError:
        raise ConfigError(f"config {path}: nested too deeply; {DEEPEST} levels are taken.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"config {path}: expected keys and values, found {type(raw).__name__}.")
    return raw


@cache
def _piped(path: Path, inode: int) -> str:
    """What a pipe holds (`--config <(...)`, `--config /dev/stdin`), which can be read but once.

    inode: tells it from a later pipe of that path."""
    return path.read_text()


@lru_cache(maxsize=1)
def _yaml(text: str) -> Any:
    """A command reads its file once to check it, and again to run by it."""
    return YAML(typ="safe", pure=True).load(text)


def parse_config(raw: dict[str, Any], where: str = "config", whole: Checked = True) -> RunConfig:
    """Check a configuration of plain types.

    Parameters
    ----------
    raw
        Keys and values as YAML gives them.
    where
        What the message of an error begins with.
    whole
        See `load_config`.

    Raises
    ------
    ConfigError
        Where a key is unknown or a value is out of bounds.

    Examples
    --------
    >>> parse_config({"name": "clicks", "recipe": "flights", "seed": 7}).seed
    7
    """
    _require_bounded(raw, where)
    require_known_keys(RunConfig, raw, where)
    try:
        return RunConfig.model_validate(raw, context={"whole": whole})
    except ValidationError as error:
        raise ConfigError(f"{where}: " + " ".join(_describe(item) for item in error.errors())) from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _require_bounded(raw: Any, where: str) -> None:
    """Raise `ConfigError` for values that nest without end, or that YAML's aliases make larger than any file."""
    level, seen = [raw], 0
    for _ in range(DEEPEST):
        inside = [value for value in level if isinstance(value, Mapping | list | tuple)]
        if not inside:
            return
        seen += sum(map(len, inside))
        if seen > MOST_VALUES:
            raise ConfigError(f"{where}: more than {MOST_VALUES:,} values, with those that aliases repeat.")
        level = [item for value in inside for item in (value.values() if isinstance(value, Mapping) else value)]
    raise ConfigError(f"{where}: nested too deeply; {DEEPEST} levels are taken.")


def _where_yaml(error: Exception) -> str:
    """The parser's complaint in one line, with the place where it has one."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    text = " ".join(str(problem or error).split())
    return text if mark is None else f"{text}, line {mark.line + 1}, column {mark.column + 1}"


def _mixed(error: Exception) -> str:
    """What to do where one block holds lines of two forms."""
    within, problem = str(getattr(error, "context", "")), str(getattr(error, "problem", ""))
    to_mapping = within.endswith("block mapping") and problem.endswith(("found '-'", "found '<block sequence start>'"))
    if not to_mapping and not (within.endswith("block collection") and problem.endswith("found '?'")):
        return ""
    return " A list (- value) and a mapping (key: value) are mixed there: write all lines of a block in one form."


def overrides_alone(overrides: Sequence[str | Mapping[str, Any]]) -> dict[str, Any]:
    """What overrides set, as the sections of a configuration.

    >>> overrides_alone(["features.seed=3", {"train.epochs": 2}])
    {'features': {'seed': 3}, 'train': {'epochs': 2}}
    """
    raw: dict[str, Any] = {}
    for override in overrides:
        _apply(raw, override)
    return raw


def _apply(raw: dict[str, Any], override: str | Mapping[str, Any]) -> None:
    if isinstance(override, Mapping):
        for key, value in override.items():
            if not isinstance(key, str) or not key:
                raise ConfigError(f"override {key!r}: expected a dotted key, for example train.epochs.")
            _set(raw, key, _copied(value, f"override {key}"), f"{key}={value}")
        return
    if not isinstance(override, str):
        raise ConfigError(
            f"override {_shortened(repr(override))}: expected key=value or a mapping from keys to values, found "
            f"{type(override).__name__}."
        )
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {_shortened(repr(override))}: expected key=value, for example train.epochs=3.")
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        shown = _shortened(repr(override))
        raise ConfigError(f"override {shown}: the value is not valid YAML ({_where_yaml(error)}).") from error
    except RecursionError:
        raise ConfigError(f"override {key}=...: nested too deeply; {DEEPEST} levels are taken.") from None
    if isinstance(value, (int, float, date)) and _is_text(key):
        value = YAML(typ="base", pure=True).load(text)  # as it stands, such as the id of a run, 12e345678901
    _set(raw, key, value, override)


def _is_text(key: str) -> bool:
    """Whether the setting `key`, dotted, takes text (or null) and nothing else."""
    kind: Any = RunConfig
    *sections, last = key.split(".")
    for name in sections:
        inside, by_name = _settings_inside(_fields(kind).get(name))
        if len(inside) != 1 or by_name:
            return False
        kind = inside[0]
    return _fields(kind).get(last) in (str, str | None, Path, Path | None)


def _set(raw: dict[str, Any], key: str, value: Any, override: str) -> None:
    *parents, last = key.split(".")
    for name in parents:
        if raw.get(name) is None:
            raw[name] = {}
        raw = raw[name]
        if not isinstance(raw, dict):
            raise ConfigError(f"override {_shortened(repr(override))}: {name!r} is a value, not a section.")
    raw[last] = value


def with_column_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The section `preprocess`, its keys known, with settings of columns made: pydantic, left to choose, would take a
    value that one kind refuses for the defaults of the other."""
    columns = given.get("columns")
    if not isinstance(columns, Mapping):
        return dict(given)
    numbers = {item.name for item in fields(NumberSettings)}
    made = {}
    for name, item in columns.items():
        kind = NumberSettings if isinstance(item, Mapping) and numbers & item.keys() else CategorySettings
        is_made = isinstance(item, CategorySettings | NumberSettings)
        made[name] = item if is_made else checked_settings(kind, item, f"preprocess.columns.{name}")
    return {**given, "columns": made}


def checked_settings(kind: type, given: Any, where: str) -> Any:
    """The dataclass of the section `where` from a mapping, nested ones too, refusing unknown keys."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: expected keys and values, found {type(given).__name__}.")
    require_known_keys(kind, given, section=where)
    try:
        return _validator(kind).validate_python(given)
    except ValidationError as error:
        raise ConfigError(" ".join(_describe(item, where) for item in error.errors())) from error


@lru_cache(maxsize=256)  # a notebook may define a class anew with each run of a cell
def _validator(kind: Any) -> TypeAdapter:
    """Made once of a type: it takes 5 ms."""
    return TypeAdapter(kind)


def require_known_keys(kind: type, given: Mapping[str, Any], where: str = "", section: str = "") -> None:
    """Raise `ConfigError` for every key of `given`, and of the sections in it, that `kind` and its sections lack.

    where: what the message begins with. section: dotted place of `given` in a run's configuration.
    """
    found = list(_unknown_keys((kind,), given, section))
    if not found:
        return
    others = set(setting_paths(RunConfig)) | set(setting_paths(kind, section)) | set(_given_paths(given, section))
    others -= {path for path, _ in found}
    raise ConfigError(f"{where}: " * bool(where) + " ".join(_unknown_key(path, known, others) for path, known in found))


def setting_paths(kind: type, section: str = "") -> Iterator[str]:
    """Dotted names of every setting of `kind`, its sections and theirs; those of a recipe and a model are not known."""
    for name, annotation in _fields(kind).items():
        path = _join(section, name)
        yield path
        inside, by_name = _settings_inside(annotation)
        for section_kind in () if by_name else inside:
            yield from setting_paths(section_kind, path)


def _given_paths(given: Mapping[str, Any], section: str) -> Iterator[str]:
    """Dotted names of what a file sets. They are all that is known of a recipe and a model before their import."""
    for name, value in given.items():
        path = _join(section, name)
        yield path
        if isinstance(value, dict):
            yield from _given_paths(value, path)


def _unknown_keys(kinds: Sequence[type], given: Mapping[str, Any], section: str) -> Iterator[tuple[str, list[str]]]:
    """Dotted name of each unknown key, and the known ones of its section, which is that of `kinds` that fits best."""
    known = max((_fields(kind) for kind in kinds), key=lambda found: len(found.keys() & given.keys()))
    if not known.keys() & given.keys():
        known = {name: annotation for kind in kinds for name, annotation in _fields(kind).items()}
    for name, value in given.items():
        path = _join(section, name)
        if name not in known:
            yield path, [_join(section, other) for other in known]
            continue
        inside, by_name = _settings_inside(known[name])
        if not inside or not isinstance(value, dict):
            continue
        for part, item in ((_join(path, key), item) for key, item in value.items()) if by_name else ((path, value),):
            if isinstance(item, dict):
                yield from _unknown_keys(inside, item, part)


@lru_cache(maxsize=256)
def _fields(kind: type) -> Mapping[str, Any]:
    """Name and type of each setting of a pydantic model or a dataclass, where `from_` stands for YAML's `from`."""
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return {name.removesuffix("_"): hint for name, hint in get_type_hints(kind).items()}


def _settings_inside(annotation: Any) -> tuple[tuple[type, ...], bool]:
    """The classes of settings one of which a field of this type holds, and whether it holds several by name."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return (annotation,), False
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        found = [_settings_inside(argument) for argument in arguments]
        return tuple(kind for kinds, _ in found for kind in kinds), any(by_name for _, by_name in found)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _settings_inside(arguments[1])[0], True
    return (), False


def _join(section: str, name: Any) -> str:
    return f"{section}.{name}" if section else str(name)


OTHER_WORDS = {"model.name": "model.kind", "model.type": "model.kind", "model.model": "model.kind"}


def _unknown_key(path: str, known: Sequence[str], others: set[str]) -> str:
    """The message for an unknown key; known: settings of its section. others: settings anywhere.

    What is suggested is the most similar last name, of the same section where two are equally similar.
    """
    name = path.rpartition(".")[2]
    if path in OTHER_WORDS:
        return f"unknown key {path!r}. Did you mean {OTHER_WORDS[path]!r}?"
    likeness = {}
    for other in {*known, *others}:
        at_home = other in known
        ratio = difflib.SequenceMatcher(None, other.rpartition(".")[2], name).ratio()
        if ratio >= (0.6 if at_home else 0.8):
            likeness[other] = (ratio, at_home)
    best = sorted(other for other in likeness if likeness[other] == max(likeness.values()))[:3]
    hint = f" Did you mean {' or '.join(map(repr, best))}?" if best else ""
    names = sorted(other.rpartition(".")[2] for other in known)
    return f"unknown key {path!r}.{hint} Known keys: {', '.join(names)}."


def _describe(item: Any, where: str = "") -> str:
    """A mistake that pydantic found: the key, what is wrong, and the value. where: section of the values checked."""
    location = ".".join(str(part) for part in ((where,) if where else ()) + item["loc"])
    if item["type"] == "missing":
        return f"key {location!r} is missing."
    message, found = item["msg"].removeprefix("Value error, "), item["input"]
    if not location:
        return message
    if item["type"] == "value_error" and isinstance(found, Mapping):  # of a section: only the settings that are meant
        words = set(re.findall(r"\w+", message))
        shown = _shortened(", ".join(f"{name}={value!r}" for name, value in found.items() if name in words))
    else:
        shown = _shortened(repr(found))
    if item["type"] in ("tuple_type", "list_type"):
        message = "Input should be a list" + (f": [{found}]" if isinstance(found, str | int | float) else "")
    if item["type"] in ("string_type", "path_type") and isinstance(found, (int, float, date)):
        kind = "date" if isinstance(found, date) else "number"
        message = f"{message.removesuffix('.')}; YAML reads this text as a {kind} unless it stands in quotes"
    return f"{location}: {message.removesuffix('.')} (found {shown})." if shown else f"{location}: {message}"


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
