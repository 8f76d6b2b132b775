"""A run's own tables, model and loss, for trying settings on; its artifacts are only read.

`lr-range`, `tune` and `profile` work on one of these.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from features.schema import Schema
from loaders.dataset import BatchDataset
from loaders.implicit import ImplicitBatches
from loaders.packed import Batch, PackedTable
from models import TargetLoss
from models.model import Model
from models.precision import choose_precision
from models.shelf import ModelSpec
from pipeline.bundle import target_loss
from pipeline.config import RunConfig, TrainSettings
from pipeline.display import silence
from pipeline.evaluate import importance_rows
from pipeline.negatives import implicit_batches, require_positives
from pipeline.stages import Pipeline, model_spec, remember
from pipeline.train import Trained, TrainingError, optimizer_of, train_model
from pipeline.train_step import TrainStep


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

    valid is what training judges by: with negatives where the run draws them. negatives: what a training of this seed
    draws, None where rows have labels. They are drawn from the whole train split's items and known pairs, also where
    `train` is a sample; those of the last two seeds are kept, as their tables take a while and memory to make.
    """

    config: RunConfig
    device: str
    schema: Schema
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
        """
        if max_rows is not None and max_rows < 1:
            raise TrainingError(f"--rows must be at least 1, not {max_rows}.")
        pipeline = Pipeline.from_config(path, *overrides)
        config, device = pipeline.config, pipeline.device
        encoded = pipeline.features().encode()
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
            spec=spec,
            train=sample_of(whole, max_rows).to(device),
            valid=sample_of(encoded.judged("valid"), None if max_rows is None else max_rows * copies).to(device),
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
    def loss(self) -> TargetLoss:
        return target_loss(self.schema)

    def new_model(self, seed: int) -> Model:
        """The run's model with the weights that a run of this seed starts from, on `device`."""
        with torch.random.fork_rng(self.cuda_devices):
            return self._seeded_model(seed).to(self.device)

    def _seeded_model(self, seed: int) -> Model:
        """The same on the host; torch's generator goes on from there, as it does in a run."""
        torch.manual_seed(seed)
        model = self.spec.build()
        remember(model, self.train)
        return model

    @property
    def cuda_devices(self) -> list[int]:
        """For `torch.random.fork_rng`."""
        return list(range(torch.cuda.device_count())) if self.device != "cpu" else []

    def train_step(self, model: Model) -> TrainStep:
        """One update of `model` as the run makes it: (batch, learning rate, momentum, place) to the loss before it."""
        settings = self.config.train
        optimizer, max_grad_norm = optimizer_of(model, settings)
        return TrainStep(
            model,
            self.loss,
            optimizer,
            choose_precision(settings.precision, self.device),
            accumulate_steps=settings.accumulate_steps,
            max_grad_norm=max_grad_norm,
            compiled=settings.compile == "on",
            negatives=self.negatives(self.config.seed),
        )

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
        self, settings: TrainSettings, seed: int, after_step: Callable[[nn.Module, int], None] | None = None
    ) -> Trained:
        """A model trained as a run of these settings and seed would; checkpoints go to a folder that is removed.

        after_step: called with the model and the number of steps done; `Enough` raised there ends the training.
        Nothing is printed or logged but warnings: trainings of an experiment are many.
        """
        with (
            torch.random.fork_rng(self.cuda_devices),
            tempfile.TemporaryDirectory(prefix="gigabatch-") as folder,
            silence(),
        ):
            model = self._seeded_model(seed)
            return train_model(
                model,
                self.train,
                self.valid,
                self.loss,
                settings,
                seed=seed,
                device=self.device,
                folder=Path(folder),
                after_step=(lambda step: after_step(model, step)) if after_step else (lambda step: None),
                negatives=self.negatives(seed),
            )

    def with_train_settings(self, **changes: Any) -> TrainSettings:
        """The run's train settings with these changed, checked as a configuration is."""
        return TrainSettings.model_validate(self.config.train.model_dump() | changes)

    def wait(self) -> None:
        """Until the device has done what was queued."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)


def sample_of(table: PackedTable, max_rows: int | None) -> PackedTable:
    """At most about `max_rows` rows, evenly spread, in their order, in memory; with groups, whole groups."""
    if max_rows is None or len(table) <= max_rows:
        return table
    return replace(table, words=table.words[importance_rows(table, max_rows)])
