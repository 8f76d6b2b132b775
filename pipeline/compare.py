"""`gigabatch compare`: models of the shelf on one run's data under one budget, with intervals over seeds.

Every model gets the same rows, epochs, batch size, optimizer and number of trials for its learning rate, which the
valid split decides; then one training a seed, judged on the test split. docs/compare.md says how to read the result.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from models.errors import ModelError
from models.model import ModelInputs
from models.shelf import ModelSpec
from pipeline.artifacts import artifact_key, source_hash
from pipeline.compare_report import show, write_compared
from pipeline.compare_trials import MOST_SEEDS, Bench, Interval, Outcome, Trainer
from pipeline.config import ConfigError, ModelChoice, TrainSettings, model_choice
from pipeline.display import progress
from pipeline.experiment import Enough
from pipeline.rank_evaluate import RankingError
from pipeline.run import environment
from pipeline.stages import Pipeline
from pipeline.train import TrainingError

T = TypeVar("T")
LR_STEP = 3.0  # from one learning rate that is tried to the next
NO_CHECKPOINTS = 10**9


@dataclass(frozen=True)
class Budget:
    """What every model gets alike. epochs: None is the run's own. trials: learning rates, around the run's lr_max.

    seconds: of everything together; None is no bound. max_rows: of the train split, a sample of a longer one.
    """

    seeds: int = 3
    epochs: int | None = None
    trials: int = 3
    seconds: float | None = None
    max_rows: int = 2_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise TrainingError(f"compare: --seeds must be from 1 to {MOST_SEEDS}, not {self.seeds}.")
        for flag, value in (("epochs", self.epochs), ("trials", self.trials), ("rows", self.max_rows)):
            if value is not None and value < 1:
                raise TrainingError(f"compare: --{flag} must be at least 1, not {value}.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise TrainingError(f"compare: --seconds must be above 0, not {self.seconds}.")


@dataclass(frozen=True)
class Contender:
    """A model and how it did. tried: the valid metric by learning rate, None where training diverged."""

    label: str
    choice: dict[str, Any]
    parameters: int
    lr: float
    tried: dict[float, float | None]
    outcomes: tuple[Outcome, ...]

    def interval(self, metric: str) -> Interval | None:
        """None where the metric does not apply."""
        values = [value for o in self.outcomes if (value := o.metrics.get(metric)) is not None]
        return Interval.of(values) if values else None

    def difference(self, other: Contender, metric: str) -> Interval | None:
        """This one's metric less the other's, paired by seed."""
        theirs = {o.seed: o.metrics.get(metric) for o in other.outcomes}
        pairs = [(o.metrics.get(metric), theirs.get(o.seed)) for o in self.outcomes]
        gaps = [mine - its for mine, its in pairs if mine is not None and its is not None]
        return Interval.of(gaps) if gaps else None

    @property
    def lr_at_edge(self) -> bool:
        """Whether the best learning rate is the lowest or the highest tried, so that a better one may lie beyond."""
        return len(self.tried) > 1 and self.lr in (min(self.tried), max(self.tried))


@dataclass(frozen=True)
class Compared:
    """All that was found. left_out: by model, why. stopped: what time did not allow, or empty."""

    name: str
    id: str
    created_utc: str
    metric: str
    budget: Budget
    epochs: int
    batch_size: int
    optimizer: str
    rows: int
    rows_of_run: int
    contenders: tuple[Contender, ...]
    left_out: dict[str, str]
    stopped: str
    seconds: float
    environment: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with intervals and paired differences against the first model."""
        found: list[dict[str, Any]] = []
        for contender in self.contenders:
            names = dict.fromkeys(name for o in contender.outcomes for name in o.metrics)
            spans = {name: contender.interval(name) for name in names}
            gaps = {name: contender.difference(self.contenders[0], name) for name in names}
            found.append(
                asdict(contender)
                | {"tried": [{"lr": lr, self.metric: value} for lr, value in contender.tried.items()]}
                | {"intervals": {name: span and asdict(span) for name, span in spans.items()}}
                | {"differences": {name: gap and asdict(gap) for name, gap in gaps.items()}}
            )
        return asdict(self) | {"contenders": found}


def run_compare(path: str | Path, overrides: Sequence[str], models: str, budget: Budget) -> int:
    """The command: prints the table and writes compare.html, .svg and .json to runs/<name>/compare-<id>/."""
    pipeline = Pipeline.from_config(path, *overrides)
    choices = parse_models(models, pipeline.config.model)
    bench = Bench.of(pipeline.features().encode(), budget.max_rows)
    compared = compare(bench, choices, budget)
    folder = pipeline.config.runs / pipeline.config.name / f"compare-{compared.id}"
    folder.mkdir(parents=True, exist_ok=True)
    write_compared(folder, compared)
    show(compared)
    print(folder / "compare.html")
    return 0


def parse_models(text: str, own: ModelChoice) -> dict[str, ModelChoice]:
    """By label the models of `lr, fm, {kind: deepfm, layers: [64]}`, a YAML list without its brackets.

    A name alone takes the model's defaults, or the run's own settings (`own`) where it is the run's model.

    Raises:
        ConfigError: for text that is no such list, unknown names and settings, fewer than two models, one twice.
    """
    try:
        entries = YAML(typ="safe", pure=True).load(f"[{text}]")
    except YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"--models {text!r}: not a list of models ({problem}). Write lr,fm,deepfm.") from error
    choices: dict[str, ModelChoice] = {}
    for entry in entries:
        if isinstance(entry, dict) and "kind" not in entry:
            raise ConfigError(f"--models: {entry} has no kind. Write {{kind: deepfm, layers: [64]}}.")
        choice = own if entry == own.kind else model_choice(entry if isinstance(entry, dict) else {"kind": entry})
        if choice in choices.values():
            raise ConfigError(f"--models: {choice.kind} is there twice with the same settings. Leave one out.")
        same = sum(other.kind == choice.kind for other in choices.values())
        choices[choice.kind if not same else f"{choice.kind} ({same + 1})"] = choice
    if len(choices) < 2:
        raise ConfigError(f"--models {text!r}: two models or more are compared. Write lr,fm,deepfm.")
    return choices


def compare(bench: Bench, choices: Mapping[str, ModelChoice], budget: Budget) -> Compared:
    """Search every model's learning rate, then train all of them seed by seed, until the time is up.

    A model that does not fit the data, or fails in training, is left out with the reason.

    Raises:
        TrainingError: where none is left.
    """
    started = time.perf_counter()
    settings = bench.config.train.model_copy(update={"checkpoint_every_steps": NO_CHECKPOINTS})
    if budget.epochs is not None:
        settings = settings.model_copy(update={"epochs": budget.epochs})
    trainer = Trainer(bench, math.inf if budget.seconds is None else started + budget.seconds)
    contest = Contest(trainer, settings, bench.config.seed)
    contest.enter(bench.inputs, choices)
    lrs = learning_rates(settings.lr_max, budget.trials)
    seeds = range(bench.config.seed + 1, bench.config.seed + 1 + budget.seeds)
    num_trainings = len(contest.specs) * (len(lrs) + len(seeds))
    with progress(num_trainings, "compare, trainings") as bar, contextlib.suppress(Enough):
        contest.search(lrs, bar.advance)
        contest.train(seeds, bar.advance)
    contenders = contest.contenders(choices)
    if not contenders:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in contest.left_out.items())
        raise TrainingError(f"compare: no model is left to compare. {reasons}")
    few = min(len(contender.outcomes) for contender in contenders)
    asked = {
        "models": {label: choice.to_dict() for label, choice in choices.items()},
        "budget": asdict(budget),
        "train": bench.config.to_dict()["train"],
        "evaluate": bench.config.to_dict()["evaluate"],
        "metric": trainer.metric,
        "seed": bench.config.seed,
        "device": bench.device,
    }
    return Compared(
        name=bench.config.name,
        id=artifact_key("compare", {"encode": bench.key}, asked, source_hash(["models", "pipeline"]))[:12],
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        metric=trainer.metric,
        budget=budget,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        rows=len(bench.train),
        rows_of_run=bench.num_train_rows,
        contenders=contenders,
        left_out=contest.left_out,
        stopped="" if few == budget.seeds else f"The time was up after {few} of {budget.seeds} seeds of every model.",
        seconds=time.perf_counter() - started,
        environment=environment(bench.device),
    )


class Contest:
    """What is known while models are compared. left_out: by label, why a model takes part no more."""

    def __init__(self, trainer: Trainer, settings: TrainSettings, search_seed: int) -> None:
        self.trainer, self.settings, self.search_seed = trainer, settings, search_seed
        self.specs: dict[str, ModelSpec] = {}
        self.parameters: dict[str, int] = {}
        self.tried: dict[str, dict[float, float | None]] = {}
        self.best: dict[str, float] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.left_out: dict[str, str] = {}

    def enter(self, inputs: ModelInputs, choices: Mapping[str, ModelChoice]) -> None:
        """Build every model once: those that do not fit the data are left out."""
        for label, choice in choices.items():
            spec = ModelSpec(choice.kind, inputs, choice.settings)
            try:
                with torch.random.fork_rng([]):
                    count = sum(parameter.numel() for parameter in spec.build().parameters())
            except ModelError as error:
                self.left_out[label] = str(error)
                continue
            self.specs[label], self.parameters[label] = spec, count
            self.tried[label], self.outcomes[label] = {}, []

    def search(self, lrs: Sequence[float], advance: Callable[[int, str], None]) -> None:
        """One training at each learning rate; the best by the valid split is kept."""
        why: dict[str, str] = {}
        for lr in lrs:
            for label, spec in self.specs.items():
                train = partial(self.trainer.valid_metric, spec, _with_lr(self.settings, lr), self.search_seed)
                self.tried[label][lr], why[label] = _unless_it_fails(train)
                advance(1, f"{label} at learning rate {lr:.2g}")
        for label, tried in self.tried.items():
            finite = {lr: value for lr, value in tried.items() if value is not None}
            if finite:
                self.best[label] = max(finite, key=lambda lr: self.trainer.sign * finite[lr])
            else:
                self.left_out[label] = f"it failed at every learning rate, at the last: {why[label]}"

    def train(self, seeds: Sequence[int], advance: Callable[[int, str], None]) -> None:
        """Seed by seed every model, so that what there is when the time is up can be compared."""
        for seed in seeds:
            for label, lr in self.best.items():
                if label not in self.left_out:
                    train = partial(self.trainer.outcome, self.specs[label], _with_lr(self.settings, lr), seed)
                    outcome, why = _unless_it_fails(train)
                    if outcome is None:
                        self.left_out[label] = f"it failed with seed {seed}: {why}"
                    else:
                        self.outcomes[label].append(outcome)
                advance(1, f"{label} with seed {seed}")

    def contenders(self, choices: Mapping[str, ModelChoice]) -> tuple[Contender, ...]:
        """The models that were trained; of the others it is said why not."""
        found = []
        for label, outcomes in self.outcomes.items():
            if label not in self.left_out and not outcomes:
                self.left_out[label] = "the time was up before it was trained"
            if label not in self.left_out:
                choice, tried = choices[label].to_dict(), self.tried[label]
                found.append(Contender(label, choice, self.parameters[label], self.best[label], tried, tuple(outcomes)))
        return tuple(found)


def _unless_it_fails(train: Callable[[], T]) -> tuple[T | None, str]:
    """What `train` gives, or None and why."""
    try:
        return train(), ""
    except (ModelError, TrainingError, RankingError, torch.OutOfMemoryError) as error:
        return None, " ".join(str(error).split())


def learning_rates(centre: float, count: int) -> list[float]:
    """`count` learning rates around the centre, each three times the one before; an even number has one more below."""
    return [float(f"{centre * LR_STEP ** (k - count // 2):.4g}") for k in range(count)]


def _with_lr(settings: TrainSettings, lr: float) -> TrainSettings:
    return settings.model_copy(update={"lr_max": lr})
