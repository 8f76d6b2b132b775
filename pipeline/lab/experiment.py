"""A run's own tables, model and loss, for trying settings on; its artifacts are only read.

`lr-range`, `tune`, `compare` and `profile` work on one of these.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from scipy.special import stdtrit
from torch import nn

from gigabatch.features.schema import Schema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.negatives.implicit import ImplicitBatches
from gigabatch.loaders.tables.packed import Batch, PackedTable
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import target_loss
from gigabatch.pipeline.config.config import (
    ALONE,
    LESS_IS_BETTER,
    ConfigError,
    RunConfig,
    TrainSettings,
    WholeTrainSettings,
)
from gigabatch.pipeline.display import silence
from gigabatch.pipeline.evaluation.evaluate import Evaluation, choose_metric, evaluate
from gigabatch.pipeline.evaluation.sample import spread_rows
from gigabatch.pipeline.lab.bounds import require_rows
from gigabatch.pipeline.stages.stages import Encoded, Pipeline
from gigabatch.pipeline.training.defaults import id_sizes, settle
from gigabatch.pipeline.training.negatives import (
    implicit_batches,
    require_labels_or_negatives,
    require_positives,
)
from gigabatch.pipeline.training.target_scales import fitted_loss
from gigabatch.pipeline.training.threads import training_threads
from gigabatch.pipeline.training.train import (
    Trained,
    TrainingError,
    make_step,
    model_spec,
    new_model,
    require_steps,
    table_loss,
    train_model,
)
from gigabatch.pipeline.training.train_step import TrainStep

LOSS = "loss"  # as a metric: that of the training, which is in deviations of regression targets
NO_CHECKPOINTS = 10**9  # steps between two, more than there are


class Enough(Exception):
    """Ends a training from within: what it was for is known, or its time is up."""


@dataclass(frozen=True)
class PlacedBatch:
    """Rows of the train split, and their place in a training: epoch, position of the first in the epoch's order."""

    batch: Batch
    place: tuple[int, int]

    @classmethod
    def of(cls, dataset: BatchDataset, index: int) -> PlacedBatch:
        """Step `index` of the dataset's epoch."""
        return cls(dataset[index], (dataset.epoch, dataset.positions(index)[0]))

    @property
    def num_rows(self) -> int:
        """Of the train split, so positives where negatives are drawn."""
        return self.batch.num_rows

    def rows(self, negatives: ImplicitBatches | None) -> Batch:
        """What the model is trained on: with the negatives that belong to this place, where they are drawn."""
        if negatives is None:
            return self.batch
        negatives.begin(*self.place)
        return negatives(self.batch)


@dataclass(frozen=True)
class Experiment:
    """train, valid: packed tables on `device`, of which `train` may be a sample of the run's `num_train_rows` rows.

    valid is what training is evaluated on: with negatives where the run draws them. negatives: what a training of this
    seed
    draws, None where rows have labels. They are drawn from the whole train split's items and known pairs, also where
    `train` is a sample; those of the last two seeds are kept, as their tables take a while and memory to make.
    """

    config: RunConfig
    device: str
    schema: Schema
    encoded: Encoded
    spec: ModelSpec
    train: PackedTable
    valid: PackedTable
    num_train_rows: int
    negatives: Callable[[int], ImplicitBatches | None]

    @classmethod
    def of_run(cls, path: str | Path, overrides: Sequence[str], max_rows: int | None = None) -> Experiment:
        """The run of a configuration file, its features and tables made where they are missing.

        max_rows: of the train and of the valid split, positives where negatives are drawn; of a longer one an evenly
            spread sample, groups kept whole.

        Raises:
            ConfigError: where `train.negatives` is set and the rows cannot be positives of items.
            TrainingError: for a model that takes no steps, of which these experiments are.
        """
        require_rows(max_rows)
        pipeline = Pipeline.from_config(path, *overrides, ALONE)
        require_steps(model_class(pipeline.config.model.kind))
        return cls.of(pipeline.features().encode(), max_rows, max_rows)

    @classmethod
    def of(cls, encoded: Encoded, max_rows: int | None, max_valid_rows: int | None = None) -> Experiment:
        """The run whose tables these are; max_rows, max_valid_rows: as in `of_run`, for each split."""
        _ = encoded.artifact  # waits where it is still written: what comes of an experiment names it
        config, device = encoded.config, encoded.features.pipeline.device
        preprocessor, whole = encoded.preprocessor, encoded.table("train")
        require_positives(config, preprocessor)
        spec, settings = model_spec(preprocessor, config), config.train.negatives
        copies = 1 if settings is None else 1 + settings.per_positive

        @lru_cache(maxsize=2)
        def negatives(seed: int) -> ImplicitBatches | None:
            if settings is None:
                return None
            return implicit_batches(preprocessor, spec.inputs, whole, settings, seed, device)

        return cls(
            config=config,
            device=device,
            schema=encoded.features.schema,
            encoded=encoded,
            spec=spec,
            train=sample_of(whole, max_rows).to(device),
            valid=sample_of(encoded.evaluation_table("valid"), max_valid_rows and max_valid_rows * copies).to(device),
            num_train_rows=len(whole),
            negatives=negatives,
        )

    @property
    def home(self) -> Path:
        """runs/<name>, made where it is missing."""
        home = self.config.runs / self.config.name
        home.mkdir(parents=True, exist_ok=True)
        return home

    @property
    def settings(self) -> WholeTrainSettings:
        """The run's train settings, those that it leaves to the rule filled in by all its train rows."""
        settings = self.config.train
        assert isinstance(settings, WholeTrainSettings)
        return settings

    @property
    def loss(self) -> TargetLoss:
        settings = self.config.train
        return fitted_loss(target_loss(self.schema, settings.losses, settings.label_smoothing), self.train)

    def new_model(self, seed: int) -> Model:
        """The run's model with the weights that a run of this seed starts from, on `device`."""
        with torch.random.fork_rng(self.cuda_devices):
            return new_model(self.spec, self.train, seed, self.loss).to(self.device)

    @property
    def cuda_devices(self) -> list[int]:
        """For `torch.random.fork_rng`."""
        return list(range(torch.cuda.device_count())) if self.device != "cpu" else []

    def train_step(self, model: Model) -> TrainStep:
        """One update of `model` as the run makes it: (batch, learning rate, momentum, place) to the loss before it."""
        return make_step(model, self.loss, self.settings, self.device, negatives=self.negatives(self.config.seed))

    def batches(self, batch_size: int, seed: int) -> Iterator[PlacedBatch]:
        """Shuffled whole batches without end, epoch after epoch, each in memory of its own.

        Raises:
            TrainingError: where the train split has fewer rows than a batch.
        """
        if batch_size > len(self.train):
            raise TrainingError(
                f"train.batch_size: a batch of {batch_size:,} rows is larger than the train split, which has "
                f"{len(self.train):,}. Give a smaller one."
            )
        return self._batches(BatchDataset(self.train, batch_size, shuffle=True, seed=seed, drop_last=True))

    def _batches(self, dataset: BatchDataset) -> Iterator[PlacedBatch]:
        while True:
            for step in range(len(dataset)):
                yield PlacedBatch.of(dataset, step)
            dataset.set_epoch(dataset.epoch + 1)

    def fit(
        self,
        settings: TrainSettings,
        seed: int,
        after_step: Callable[[nn.Module, int], None] = lambda model, step: None,
        spec: ModelSpec | None = None,
    ) -> Trained:
        """A model trained as a run of these settings and seed would; checkpoints go to a folder that is removed.

        after_step: called with the model and the number of steps done; `Enough` raised there ends the training.
        spec: of another model than the run's. Nothing is printed or logged but warnings: trainings of an experiment are
        many.
        """
        with (
            torch.random.fork_rng(self.cuda_devices),
            tempfile.TemporaryDirectory(prefix="gigabatch-") as folder,
            silence(),
        ):
            model, negatives = new_model(spec or self.spec, self.train, seed, self.loss), self.negatives(seed)
            require_labels_or_negatives(model, self.train, negatives)
            whole = settle(settings, len(self.train), id_sizes(self.train.schema))
            of_a_step = min(whole.batch_size, len(self.train)) * (1 if negatives is None else negatives.copies)
            with training_threads(model, self.valid, of_a_step, self.device, self.config.num_threads):
                return train_model(
                    model,
                    self.train,
                    self.valid,
                    self.loss,
                    settings,
                    seed=seed,
                    device=self.device,
                    folder=Path(folder),
                    after_step=lambda step: after_step(model, step),
                    negatives=negatives,
                )

    def with_train_settings(self, **changes: Any) -> WholeTrainSettings:
        """The run's train settings with these changed, checked as a configuration is."""
        return WholeTrainSettings.model_validate(self.settings.model_dump() | changes)


class TimedTrainer:
    """Trains models of an experiment until `deadline` (of time.perf_counter), when `Enough` is raised.

    metric: what the valid split decides by; sign: 1 where more of it is better, else -1.
    """

    def __init__(self, experiment: Experiment, deadline: float) -> None:
        self.experiment, self.deadline = experiment, deadline
        in_groups = experiment.valid.schema.has_group  # each positive and its negatives, where these are drawn
        self.metric = choose_metric(experiment.config.nightly, experiment.schema, in_groups)
        if self.metric == "logloss" and any(target.task == "regression" for target in experiment.schema.targets):
            self.metric = LOSS
        self.sign = -1 if self.metric in (LOSS, *LESS_IS_BETTER) else 1

    def fit(self, settings: TrainSettings, seed: int, spec: ModelSpec | None = None) -> Trained:
        """`Experiment.fit` within the time."""
        self._check_time()
        return self.experiment.fit(settings, seed, self._check_time, spec)

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """An earlier deadline within the block."""
        whole, self.deadline = self.deadline, min(self.deadline, deadline)
        try:
            yield
        finally:
            self.deadline = whole

    def _check_time(self, *_: object) -> None:
        if time.perf_counter() > self.deadline:
            raise Enough

    def evaluated(self, trained: Trained, table: PackedTable) -> Evaluation:
        """All metrics of a table, as a run's evaluation gives them."""
        experiment = self.experiment
        prior = experiment.settings.prior
        return evaluate(
            trained.model,
            table,
            experiment.schema,
            experiment.device,
            bins=experiment.config.evaluate.calibration_bins,
            loss=experiment.loss,
            prior_shift=trained.prior_shift,
            prior_serve=None if prior is None else prior.serve,
        )

    def metric_of(self, trained: Trained) -> float:
        """The metric of the valid split."""
        valid = self.experiment.valid
        if self.metric == LOSS:
            return table_loss(trained.model, valid, self.experiment.loss, self.experiment.device)
        value = self.evaluated(trained, valid).headline[self.metric]
        if value is None:
            raise ConfigError(
                f"nightly.metric: {self.metric} cannot be computed on the valid split, whose labels are all alike. "
                "Give it more rows (--rows), or another metric."
            )
        return value


def valid_losses(trained: Trained) -> tuple[float, ...]:
    """By epoch."""
    return tuple(point["valid_loss"] for point in trained.curve if "valid_loss" in point)


def wait_for(device: str) -> None:
    """Wait until the device has done what was queued."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def mean_margin(values: Sequence[float], share: float) -> float:
    """How far the mean of N >= 2 values may be off by Student's t: the `share` quantile times the standard error."""
    return float(stdtrit(len(values) - 1, share)) * statistics.stdev(values) / math.sqrt(len(values))


def sample_of(table: PackedTable, max_rows: int | None) -> PackedTable:
    """At most about `max_rows` rows, evenly spread, in their order, in memory; with groups, whole groups."""
    if max_rows is None or len(table) <= max_rows:
        return table
    return replace(table, words=table.words[spread_rows(table, max_rows)])
