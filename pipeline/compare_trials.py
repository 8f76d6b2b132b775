"""What `compare` trains on and with: the tables of a run, trainings that say nothing, intervals over seeds."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from features.schema import Schema
from loaders.implicit import ImplicitBatches
from loaders.packed import PackedTable
from models.model import ModelInputs
from models.shelf import ModelSpec
from pipeline.bundle import target_loss
from pipeline.config import ConfigError, RunConfig, TrainSettings
from pipeline.display import silence
from pipeline.evaluate import evaluate
from pipeline.experiment import Enough, sample_of
from pipeline.negatives import implicit_batches, require_positives
from pipeline.nightly import choose_metric
from pipeline.run import ranking_of
from pipeline.stages import Encoded, model_inputs, remember
from pipeline.train import Trained, table_loss, train_model

# Quantiles of Student's t for a two-sided interval of 95 %, by degrees of freedom from 1 (e.g. NIST/SEMATECH e-Handbook
# of Statistical Methods, section 1.3.6.7.2).
T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452,
)  # fmt: skip
MOST_SEEDS = len(T_975) + 1


@dataclass(frozen=True)
class Outcome:
    """One training: metrics of the test split, valid loss by epoch, seconds (its validations too), rows trained on."""

    seed: int
    metrics: dict[str, float | None]
    valid_losses: tuple[float, ...]
    seconds: float
    rows: int


@dataclass(frozen=True)
class Interval:
    """mean, and half: half the width of its 95 % interval (Student's t), None of fewer than two values."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        count = len(values)
        spread = None if count < 2 else T_975[count - 2] * statistics.stdev(values) / math.sqrt(count)
        return cls(statistics.fmean(values), spread)


@dataclass(frozen=True)
class Bench:
    """One run's data, on `device`, as every model gets them.

    negatives: what a training of this seed draws, None where rows have labels. rank: a model's metrics of ranking the
    choices of the test split, none unless `evaluate.ranking` is set. key: of the encoded tables.
    """

    config: RunConfig
    device: str
    schema: Schema
    inputs: ModelInputs
    train: PackedTable
    valid: PackedTable
    test: PackedTable
    negatives: Callable[[int], ImplicitBatches | None]
    rank: Callable[[Any], dict[str, float | None]]
    num_train_rows: int
    key: str

    @classmethod
    def of(cls, encoded: Encoded, max_rows: int) -> Bench:
        """From the tables of an encoded run. max_rows: of the train split."""
        pipeline, preprocessor = encoded.features.pipeline, encoded.preprocessor
        config, device = pipeline.config, pipeline.device
        require_positives(config, preprocessor)
        inputs, whole = model_inputs(preprocessor), encoded.table("train")
        train = sample_of(whole, max_rows).to(device)
        settings = config.train.negatives

        def negatives(seed: int) -> ImplicitBatches | None:
            if settings is None:
                return None
            return implicit_batches(preprocessor, inputs, whole, settings, seed, device)

        return cls(
            config=config,
            device=device,
            schema=encoded.features.schema,
            inputs=inputs,
            train=train,
            valid=encoded.judged("valid").to(device),
            test=encoded.judged("test").to(device),
            negatives=negatives,
            rank=_ranking(encoded, inputs),
            num_train_rows=len(whole),
            key=encoded.artifact.key,
        )


def _ranking(encoded: Encoded, inputs: ModelInputs) -> Callable[[Any], dict[str, float | None]]:
    """Of a model, how high it ranks the choices of the test split: metrics by name, such as `hr@10 sampled`."""
    ranking = ranking_of(encoded, inputs)
    if ranking is None:
        return lambda model: {}

    def rank(model: Any) -> dict[str, float | None]:
        found = ranking(model)
        parts = {part: found[part] for part in ("sampled", "catalogue") if part in found}
        return {f"{n} {part}": v for part, values in parts.items() for n, v in values.items() if n != "candidates"}

    return rank


class Trainer:
    """Trains models on a bench until `deadline` (of time.perf_counter), when `Enough` is raised.

    metric: what the valid split decides by; sign: 1 where more of it is better, else -1.
    """

    def __init__(self, bench: Bench, deadline: float) -> None:
        self.bench, self.deadline = bench, deadline
        self.metric = choose_metric(bench.config.nightly, bench.schema, bench.valid.schema.has_group)
        self.sign = -1 if self.metric == "logloss" else 1

    def valid_metric(self, spec: ModelSpec, settings: TrainSettings, seed: int) -> float:
        """The metric of the valid split after a training."""
        trained, _ = self._fit(spec, settings, seed)
        bench = self.bench
        if self.metric == "logloss":
            return table_loss(trained.model, bench.valid, target_loss(bench.schema), bench.device)
        value = evaluate(trained.model, bench.valid, bench.schema, bench.device).headline[self.metric]
        if value is None:
            raise ConfigError(
                f"compare: {self.metric} cannot be computed on the valid split, whose labels are all alike. Give it "
                "more rows, or another nightly.metric."
            )
        return value

    def outcome(self, spec: ModelSpec, settings: TrainSettings, seed: int) -> Outcome:
        """A training and all metrics of the test split."""
        trained, seconds = self._fit(spec, settings, seed)
        bench = self.bench
        with silence():
            found = evaluate(trained.model, bench.test, bench.schema, bench.device)
            ranks = bench.rank(trained.model)
        first = found.metrics[bench.schema.targets[0].name] if len(bench.schema.targets) == 1 else {}
        metrics = {name: value for name, value in found.headline.items() if value is not None} | first | ranks
        if self.metric == "logloss":
            metrics["logloss"] = table_loss(trained.model, bench.test, target_loss(bench.schema), bench.device)
        losses = [point["valid_loss"] for point in trained.curve if "valid_loss" in point]
        return Outcome(seed, metrics, tuple(losses), seconds, trained.rows)

    def _fit(self, spec: ModelSpec, settings: TrainSettings, seed: int) -> tuple[Trained, float]:
        """The trained model and the seconds that it took; checkpoints go to a folder that is removed."""
        self._check_time(0)
        bench = self.bench
        devices = list(range(torch.cuda.device_count())) if bench.device != "cpu" else []
        with torch.random.fork_rng(devices), tempfile.TemporaryDirectory(prefix="gigabatch-") as folder, silence():
            torch.manual_seed(seed)
            model = spec.build()
            remember(model, bench.train)
            negatives = bench.negatives(seed)
            started = time.perf_counter()
            trained = train_model(
                model,
                bench.train,
                bench.valid,
                target_loss(bench.schema),
                settings,
                seed=seed,
                device=bench.device,
                folder=Path(folder),
                after_step=self._check_time,
                negatives=negatives,
            )
            return trained, time.perf_counter() - started

    def _check_time(self, _: int) -> None:
        if time.perf_counter() > self.deadline:
            raise Enough
