"""A run's own tables, model and loss, for trying settings on; its artifacts are only read.

`lr-range`, `tune` and `profile` work on one of these.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from features.schema import Schema
from loaders.dataset import BatchDataset
from loaders.packed import Batch, PackedTable
from models import TargetLoss
from models.model import Model
from models.precision import choose_precision
from models.shelf import ModelSpec
from pipeline.bundle import target_loss
from pipeline.config import RunConfig, TrainSettings
from pipeline.display import silence
from pipeline.evaluate import importance_rows
from pipeline.stages import Pipeline, model_spec, remember
from pipeline.train import Trained, TrainingError, optimizer_of, train_model
from pipeline.train_step import TrainStep


class Enough(Exception):
    """Ends a training from within: what it was for is known, or its time is up."""


@dataclass(frozen=True)
class Experiment:
    """train, valid: packed tables on `device`, of which `train` may be a sample of the run's `num_train_rows` rows."""

    config: RunConfig
    device: str
    schema: Schema
    spec: ModelSpec
    train: PackedTable
    valid: PackedTable
    num_train_rows: int

    @classmethod
    def of_run(cls, path: str | Path, overrides: Sequence[str], max_rows: int | None = None) -> Experiment:
        """The run of a configuration file, its features and tables made where they are missing.

        max_rows: of the train and of the valid split; of a longer one an evenly spread sample, groups kept whole.
        """
        if max_rows is not None and max_rows < 1:
            raise TrainingError(f"--rows must be at least 1, not {max_rows}.")
        pipeline = Pipeline.from_config(path, *overrides)
        if pipeline.config.train.negatives is not None:
            raise TrainingError(
                "tune, lr-range and profile work on labelled rows, and train.negatives is set. Give batch size and "
                "learning rate by hand."
            )
        encoded = pipeline.features().encode()
        tables = [encoded.table(split) for split in ("train", "valid")]
        train, valid = (sample_of(table, max_rows).to(pipeline.device) for table in tables)
        return cls(
            config=pipeline.config,
            device=pipeline.device,
            schema=encoded.features.schema,
            spec=model_spec(encoded.preprocessor, pipeline.config),
            train=train,
            valid=valid,
            num_train_rows=len(tables[0]),
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
            torch.manual_seed(seed)
            return self.spec.build().to(self.device)

    @property
    def cuda_devices(self) -> list[int]:
        """For `torch.random.fork_rng`."""
        return list(range(torch.cuda.device_count())) if self.device != "cpu" else []

    def train_step(self, model: Model) -> TrainStep:
        """One update of `model` as the run makes it: (batch, learning rate, momentum) to the loss before it."""
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
        )

    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """Shuffled whole batches without end, epoch after epoch, each in memory of its own."""
        dataset = BatchDataset(self.train, min(batch_size, len(self.train)), shuffle=True, seed=seed, drop_last=True)
        while True:
            for step in range(len(dataset)):
                yield dataset[step]
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
            torch.manual_seed(seed)
            model = self.spec.build()
            remember(model, self.train)
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
