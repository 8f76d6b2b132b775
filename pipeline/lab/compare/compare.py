"""`gigabatch compare`: models of the shelf on one run's data under one budget, with intervals over seeds.

Every model gets the same rows, epochs, batch size, optimizer and number of trials for its learning rate, which the
valid split decides; then one training a seed, evaluated on the test split. docs/compare.md says how to read the result.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from gigabatch.features.errors import UNREADABLE, raise_of_system
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.metrics.pointwise import churn_unit, prediction_churn
from gigabatch.models.model import Model
from gigabatch.models.shelf import OWN, ModelSpec, model_class
from gigabatch.pipeline.config.config import (
    ALONE,
    ConfigError,
    ModelChoice,
    RunConfig,
    TrainSettings,
    WholeTrainSettings,
    load_config,
    model_choice,
)
from gigabatch.pipeline.display import progress, silence
from gigabatch.pipeline.evaluation.rank_evaluate import RankingError
from gigabatch.pipeline.evaluation.sample import spread
from gigabatch.pipeline.lab.bounds import Budget, listed_models
from gigabatch.pipeline.lab.compare.report import Compared, Contender, Outcome, show, write_compared
from gigabatch.pipeline.lab.experiment import LOSS, NO_CHECKPOINTS, Enough, Experiment, TimedTrainer, valid_losses
from gigabatch.pipeline.lab.tune.tune import overrides_of as ruled_overrides
from gigabatch.pipeline.stages.run import environment
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.store.files import atomic_write
from gigabatch.pipeline.store.keys import artifact_key, source_hash
from gigabatch.pipeline.training.defaults import rule_of, settle
from gigabatch.pipeline.training.train import TrainingError, table_loss

log = logging.getLogger(__name__)
T = TypeVar("T")
# Settings of train that a model may choose for rows that are all positives; the first is one of the evaluation too.
OF_POSITIVES = ("negatives", "optimizer", "optimizer_settings", "weight_decay", "select")
LR_STEP = 3.0  # from one learning rate that is tried to the next
KEPT = "kept.pt"  # in a comparison's folder, until it is done
CHURN, CHURN_ROWS = "prediction_churn", 200_000  # of the test split, whose predictions are kept from seed to seed


class Trainer(TimedTrainer):
    """Trains models of the shelf on a run's data and evaluates them on its splits.

    judged: the metric of the test split by which models are compared. Where negatives are drawn and choices are ranked,
    it is the NDCG of the ranking: among a few drawn items nearly all models find nearly all choices, and another model
    may seem best than in the catalogue (Krichene and Rendle, KDD 2020).
    """

    def __init__(self, experiment: Experiment, deadline: float) -> None:
        super().__init__(experiment, deadline)
        self.test = experiment.encoded.evaluation_table("test").to(experiment.device)
        self._ranking = experiment.encoded.ranking(experiment.spec.inputs)
        config = experiment.config
        ranking, self.judged = config.evaluate.ranking, self.metric
        if ranking is not None and config.train.negatives is not None and config.nightly.metric is None:
            self.judged = f"ndcg@{ranking.k[0]} {'catalogue' if ranking.full_catalogue else 'sampled'}"
        rows = spread(len(self.test), CHURN_ROWS)
        self._churned = self.test.unpack(self.test.words[rows.to(self.test.device)].cpu())
        self._churned_rows = rows
        self.earlier: dict[str, list[torch.Tensor]] = {}  # what the seed before has predicted of them

    def valid_metric(self, spec: ModelSpec, settings: WholeTrainSettings, seed: int) -> float:
        """The metric of the valid split after a training."""
        return self.metric_of(self.fit(settings, seed, spec))

    def outcome(self, spec: ModelSpec, settings: WholeTrainSettings, seed: int) -> Outcome:
        """A training and all metrics of the test split."""
        experiment, test, targets = self.experiment, self.test, self.experiment.schema.targets
        experiment.negatives(seed)  # kept: the first model's time is not to hold what all of them share
        started = time.perf_counter()
        trained = self.fit(settings, seed, spec)
        seconds = time.perf_counter() - started
        with silence():
            found = self.evaluated(trained, test)
            ranks = self.rank(trained.model)
        first = found.metrics[targets[0].name] if len(targets) == 1 else {}
        metrics = {name: value for name, value in found.headline.items() if value is not None} | first | ranks
        if self.metric == LOSS:
            metrics[LOSS] = table_loss(trained.model, test, experiment.loss, experiment.device)
        metrics |= self.churn(spec, found.predictions)
        return Outcome(seed, metrics, valid_losses(trained), seconds, trained.rows)

    def churn(self, spec: ModelSpec, predictions: Sequence[torch.Tensor]) -> dict[str, float | None]:
        """Mean |p1 - p2| between these predictions of the test split and those of the training of this model before,
        which had another seed; None for the first. Of a regression target in deviations of its labels; of several
        quantiles that of the one nearest to the median.

        By name, `prediction_churn` and with several targets the target's. Of a longer split `CHURN_ROWS` spread rows
        are taken, so that what is kept is bounded."""
        targets, batch, found = self.experiment.schema.targets, self._churned, dict[str, float | None]()
        own = [part[:, t.central] if t.quantiles else part for t, part in zip(targets, predictions, strict=True)]
        kept = [values[self._churned_rows.to(values.device)].cpu() for values in own]
        before, self.earlier[repr(spec)] = self.earlier.get(repr(spec)), kept
        for place, target in enumerate(targets):
            unit = churn_unit(target.task, batch.targets[place], batch.weight)
            name = CHURN if len(targets) == 1 else f"{CHURN} {target.name}"
            found[name] = None
            if before is not None and not math.isnan(unit):
                found[name] = float(prediction_churn(before[place], kept[place], batch.weight)) / unit
        return found

    def rank(self, model: Model) -> dict[str, float | None]:
        """How high it ranks the choices of the test split, where the run asks for that: by name, `hr@10 sampled`."""
        found = {} if self._ranking is None else self._ranking(model)
        parts = {part: found[part] for part in ("sampled", "catalogue") if part in found}
        return {f"{n} {part}": v for part, values in parts.items() for n, v in values.items() if n != "candidates"}


def run_compare(path: str | Path, overrides: Sequence[str], models: str, budget: Budget) -> int:
    """The command: prints the table and writes compare.html, .svg and .json to runs/<name>/compare-<id>/."""
    pipeline = Pipeline.from_config(path, *overrides, ALONE)
    choices = parse_models(models, pipeline.config.model, pipeline.config.positives_alone)
    if (leader := leader_of(pipeline.config, choices)) is not None:
        pipeline = Pipeline.from_config(path, *overrides, ALONE, {"model": leader.to_dict()})
    experiment = Experiment.of(pipeline.features().encode(), budget.max_rows)
    home = pipeline.config.runs / pipeline.config.name
    compared = with_overrides(compare_models(experiment, choices, budget, home), load_config(path, overrides))
    folder = folder_of(home, compared.id)
    folder.mkdir(parents=True, exist_ok=True)
    write_compared(folder, compared)
    (folder / KEPT).unlink(missing_ok=True)
    show(compared)
    print(folder / "compare.html")
    return 0


def parse_models(text: str, own: ModelChoice, positives: bool = False) -> dict[str, ModelChoice]:
    """Read models from a YAML list without its brackets.

    A name alone takes the model's defaults, or the run's own settings (`own`) where it is the run's model. positives:
    as of `model_choice`.

    Returns
    -------
    dict[str, ModelChoice]
        By label, which is the model's name, numbered from its second settings on.

    Raises
    ------
    ConfigError
        For text that is no such list, unknown names and settings, fewer than two models, one twice.

    Examples
    --------
    >>> from gigabatch.pipeline.config.config import model_choice
    >>> from gigabatch.pipeline.lab.compare.compare import parse_models
    >>> list(parse_models("lr, fm, {kind: fm, embedding_dim: 4}", model_choice({"kind": "lr"})))
    ['lr', 'fm', 'fm (2)']
    """
    choices: dict[str, ModelChoice] = {}
    for entry in listed_models(text):
        raw = entry if isinstance(entry, dict) else {"kind": entry}
        choice = own if entry == own.kind else model_choice(raw, positives)
        if choice in choices.values():
            raise ConfigError(f"--models: {choice.kind} is there twice with the same settings. Leave one out.")
        same = sum(other.kind == choice.kind for other in choices.values())
        choices[choice.kind if not same else f"{choice.kind} ({same + 1})"] = choice
    return choices


def leader_of(config: RunConfig, choices: Mapping[str, ModelChoice]) -> ModelChoice | None:
    """The model by which the settings of training follow that a run of positives leaves out, where its own takes no
    steps and so has none: the first one that does, rather one whose loss asks for no other number of negatives.

    None where the run's own model says them."""
    if not config.positives_alone or model_class(config.model.kind).learns_by_steps:
        return None
    by_steps = [choice for choice in choices.values() if model_class(choice.kind).learns_by_steps]
    return min(by_steps, key=lambda one: "negatives" in _train_of_positives(one.kind), default=None)


def _train_of_positives(kind: str) -> Mapping[str, Any]:
    return model_class(kind).for_positives.get("train", {})


def folder_of(home: Path, id: str) -> Path:
    """Of a comparison, in `runs/<name>`."""
    return home / f"compare-{id}"


def compare_models(
    experiment: Experiment, choices: Mapping[str, ModelChoice], budget: Budget, home: Path | None = None
) -> Compared:
    """Search every model's learning rate, then train all of them seed by seed, until the time is up.

    A model that does not fit the data, or fails in training, is left out with the reason.

    Parameters
    ----------
    experiment
        The run's tables, loss and train settings, the same for every model.
    choices
        Models with their settings by label; differences are to the first that is left.
    budget
        Seeds, epochs, learning rates and time.
    home
        `runs/<name>`, where what has been trained is kept, so that the same comparison goes on after it was killed;
        whoever writes the result removes it. None: nothing is kept.

    Returns
    -------
    Compared
        The outcomes of every model on the test split, and which were left out.

    Raises
    ------
    TrainingError
        Where none is left.
    """
    started = time.perf_counter()
    config = experiment.config
    settings = experiment.settings.model_copy(update={"checkpoint_every_steps": NO_CHECKPOINTS})
    if budget.epochs is not None:
        settings = settings.model_copy(update={"epochs": budget.epochs})
    trainer = Trainer(experiment, math.inf if budget.seconds is None else started + budget.seconds)
    written = experiment.encoded.features.pipeline.config
    given = written.train.model_fields_set - written.chosen.get("train", {}).keys()
    epoch_follows = written.positives_alone and not {"select", "select_by", "patience"} & given
    ruled = written.train.lr_max is None and settings.optimizer == "lamb"
    own_rate = model_class(experiment.spec.name).rule_rate(experiment.spec.inputs) if ruled else None
    rows, averaged = len(experiment.train), written.train.ema_decay == "auto"
    average = partial(average_of, settings, rows) if averaged else None
    asked = {
        "models": {label: choice.to_dict() for label, choice in choices.items()},
        "budget": asdict(budget),
        "train": config.to_dict()["train"],
        "of_models": [epoch_follows, own_rate, averaged],  # what each sets for itself, whatever `train` says
        "evaluate": config.to_dict()["evaluate"],
        "metric": [trainer.metric, trainer.judged],
        "seed": config.seed,
        "device": experiment.device,
    }
    code = {label: own for label, choice in choices.items() if (own := OWN.code(choice.kind))}
    asked |= {"code": code} if code else {}
    sources = source_hash(["gigabatch.models", "gigabatch.pipeline"])
    id = artifact_key("compare", {"encode": experiment.encoded.artifact.key}, asked, sources)[:12]
    kept = Kept(None if home is None else folder_of(home, id) / KEPT, trainer)
    started -= kept.seconds
    trainer.deadline -= kept.seconds
    contest = Contest(trainer, settings, config.seed, epoch_follows, own_rate, kept, average)
    contest.enter(experiment.spec.inputs, choices)
    lrs = learning_rates(settings.lr_max, budget.trials)
    seeds = range(config.seed + 1, config.seed + 1 + budget.seeds)
    searched = len(lrs) if len(lrs) > 1 else 0  # one rate is no search
    with progress(len(contest.specs) * (searched + len(seeds)), "compare, trainings") as bar:
        if searched:
            with contextlib.suppress(Enough), trainer.until(_end_of_search(started, budget)):
                contest.search(nearest_first(lrs, settings.lr_max), bar.advance)
        contest.choose(settings.lr_max)
        with contextlib.suppress(Enough):
            contest.train(seeds, bar.advance)
    contenders = contest.contenders(choices, written.positives_alone)
    if not contenders:
        kept.remove()  # or the next one would end with this one's time
        reasons = "; ".join(f"{label}: {reason}" for label, reason in contest.left_out.items())
        raise TrainingError(f"compare: no model is left to compare. {reasons}")
    few = min(len(contender.outcomes) for contender in contenders)
    return Compared(
        name=config.name,
        id=id,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        metric=trainer.judged,
        valid_metric=trainer.metric,
        budget=budget,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        rows=len(experiment.train),
        rows_of_run=experiment.num_train_rows,
        contenders=contenders,
        left_out=contest.left_out,
        stopped=" ".join(_stopped(contenders, searched, few, budget)),
        seconds=time.perf_counter() - started,
        environment=environment(experiment.device),
    )


class Kept:
    """What a comparison's trainings have given so far, by their names, in a file that the same comparison goes on from.
    Failures are kept too: one that came again after the search's time would leave out all rates behind it.

    path: None keeps nothing. seconds: that earlier processes took. trainer: the predictions that it holds from seed to
    seed lie there too.
    """

    def __init__(self, path: Path | None, trainer: Trainer) -> None:
        self.path, self.trainer, self.started = path, trainer, time.perf_counter()
        self.seconds, self.given = 0.0, dict[str, Any]()
        if path is not None and path.exists():
            try:
                found = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
                given, trainer.earlier = json.loads(found["given"]), dict(found["earlier"])
                self.seconds, self.given = float(found["seconds"]), dict(given)
            except (*UNREADABLE, pickle.PickleError) as error:
                raise_of_system(error, str(path))
                text = " ".join(str(error).split())
                raise TrainingError(
                    f"compare {path}: damaged ({type(error).__name__}: {text:.200}). Remove it, and the comparison "
                    "begins anew."
                ) from error
            log.info("compare goes on after %d training(s), %.0f s", len(self.given), self.seconds)

    def outcome(self, name: str, train: Callable[[], Outcome], model: str) -> tuple[Outcome | None, str]:
        """What `train` gives, or gave before; None and why where it fails, or failed. model: its name on the shelf."""
        found, why = self.once(name, lambda: asdict(train()), model)
        if found is None:
            return None, why
        return Outcome(**found | {"valid_losses": tuple(found["valid_losses"])}), why

    def once(self, name: str, train: Callable[[], T], model: str) -> tuple[T | None, str]:
        """The same of what JSON can hold."""
        if name not in self.given:
            self.given[name] = _unless_it_fails(train, model)
            self._save()
        given, why = self.given[name]
        return given, why

    def _save(self) -> None:
        if self.path is None:
            return
        seconds, content = self.seconds + time.perf_counter() - self.started, io.BytesIO()
        given = json.dumps(self.given, default=float, allow_nan=True)  # read here alone, where NaN stays what it is
        torch.save({"seconds": seconds, "given": given, "earlier": self.trainer.earlier}, content)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, content.getvalue())

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Contest:
    """What is known while models are compared. left_out: by label, why a model takes part no more.

    epoch_follows: whether the epoch that is kept is each model's own choice (`settings_of`). own_rate: the `rule_rate`
    of the run's model where its learning rate is the rule's, which then is each model's own (`times`). average: of the
    weights, of a model, where the rule says it.
    """

    def __init__(
        self,
        trainer: Trainer,
        settings: WholeTrainSettings,
        search_seed: int,
        epoch_follows: bool = False,
        own_rate: float | None = None,
        kept: Kept | None = None,
        average: Callable[[ModelSpec], float | None] | None = None,
    ) -> None:
        self.trainer, self.settings, self.search_seed = trainer, settings, search_seed
        self.epoch_follows, self.own_rate = epoch_follows, own_rate
        self.kept = Kept(None, trainer) if kept is None else kept
        self.average = average
        self.times: dict[str, float] = {}
        self.specs: dict[str, ModelSpec] = {}
        self.parameters: dict[str, int] = {}
        self.tried: dict[str, dict[float, float | None]] = {}
        self.best: dict[str, float] = {}
        self.why: dict[str, str] = {}
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
            rate = model_class(spec.name).rule_rate(inputs)
            self.times[label] = 1.0 if self.own_rate is None else rate / self.own_rate

    def rate_of(self, label: str, lr: float) -> float:
        """A model's own learning rate for one of the run's."""
        return float(f"{lr * self.times[label]:.4g}")

    def settings_of(self, label: str, lr: float) -> WholeTrainSettings:
        """The run's with this learning rate; the epoch that is kept is the model's own choice for rows that are all
        positives (`Model.for_positives`), where the configuration does not say which."""
        changes: dict[str, Any] = {"lr_max": lr}
        if self.epoch_follows:
            of_model = _train_of_positives(self.specs[label].name)
            changes["select"] = of_model.get("select", TrainSettings().select)
        if self.average is not None:
            changes["ema_decay"] = self.average(self.specs[label])
        return self.settings.model_copy(update=changes)

    def search(self, lrs: Sequence[float], advance: Callable[[int, str], None]) -> None:
        """One training at each learning rate, rate by rate all models."""
        for of_run in lrs:
            for label, spec in self.specs.items():
                lr = self.rate_of(label, of_run)
                if not model_class(spec.name).learns_by_steps:  # it has no rate
                    advance(1, label)
                    continue
                train = partial(self.trainer.valid_metric, spec, self.settings_of(label, lr), self.search_seed)
                self.tried[label][lr], self.why[label] = self.kept.once(f"{label} {lr}", train, spec.name)
                advance(1, f"{label} at learning rate {lr:.2g}")

    def choose(self, own: float) -> None:
        """Take the best learning rate by the valid split of those that were tried; `own` where none was."""
        for label, tried in self.tried.items():
            finite = {lr: value for lr, value in tried.items() if value is not None}
            if tried and not finite:
                self.left_out[label] = f"it failed at every learning rate, at the last: {self.why[label]}"
            else:
                best = max(finite, key=lambda lr: self.trainer.sign * finite[lr], default=None)
                self.best[label] = self.rate_of(label, own) if best is None else best

    def train(self, seeds: Sequence[int], advance: Callable[[int, str], None]) -> None:
        """Seed by seed every model, so that what there is when the time is up can be compared."""
        for seed in seeds:
            for label, lr in self.best.items():
                if label not in self.left_out:
                    train = partial(self.trainer.outcome, self.specs[label], self.settings_of(label, lr), seed)
                    outcome, why = self.kept.outcome(f"{label} {lr} {seed}", train, self.specs[label].name)
                    if outcome is None:
                        self.left_out[label] = f"it failed with seed {seed}: {why}"
                    else:
                        self.outcomes[label].append(outcome)
                advance(1, f"{label} with seed {seed}")

    def contenders(self, choices: Mapping[str, ModelChoice], positives: bool) -> tuple[Contender, ...]:
        """The models that were trained; of the others it is said why not."""
        found = []
        for label, outcomes in self.outcomes.items():
            if label not in self.left_out and not outcomes:
                self.left_out[label] = "the time was up before it was trained"
            if label not in self.left_out:
                choice, tried = choices[label].to_dict(), dict(sorted(self.tried[label].items()))
                by_steps = model_class(choices[label].kind).learns_by_steps  # else its size is known once it is fitted
                size, lr = (self.parameters[label], self.best[label]) if by_steps else (None, None)
                settings = self.settings_of(label, self.best[label])
                overrides = overrides_of(choices[label], settings, positives)
                found.append(Contender(label, choice, size, lr, tried, tuple(outcomes), overrides))
        return tuple(found)


def average_of(settings: WholeTrainSettings, rows: int, spec: ModelSpec) -> float | None:
    """The average of weights that the rule gives a model of so many train rows."""
    ruled = TrainSettings.model_validate(settings.model_dump() | {"ema_decay": "auto"})
    return settle(ruled, rows, spec.inputs.num_ids, **rule_of(model_class(spec.name), spec.inputs)).ema_decay


def overrides_of(choice: ModelChoice, settings: WholeTrainSettings, positives: bool) -> tuple[str, ...]:
    """`key=value` with which `gigabatch train` of the same configuration trains a contender as it was trained here.

    positives: as of `model_choice`; what is left out then follows from the model, and here it may be another's.
    """
    plain = model_choice({"kind": choice.kind}, positives).to_dict()
    own = {name: value for name, value in choice.to_dict().items() if name == "kind" or value != plain[name]}
    raw, by_steps = settings.model_dump(mode="json"), model_class(choice.kind).learns_by_steps
    told = (OF_POSITIVES if by_steps else OF_POSITIVES[:1]) if positives else ()
    found = {"model": own} | {f"train.{name}": raw[name] for name in told}
    ruled = ruled_overrides(settings, settings) if by_steps else ()
    return (*(f"{name}={json.dumps(value, allow_nan=False)}" for name, value in found.items()), *ruled)


def with_overrides(compared: Compared, config: RunConfig) -> Compared:
    """With what a comparison sets by itself (`ALONE`) among the overrides of each, where `config` has it otherwise."""
    train = config.to_dict()["train"]
    alone = {name: value for name, value in ALONE.items() if train[name.partition(".")[2]] != value}
    own = [f"{name}={json.dumps(value, allow_nan=False)}" for name, value in alone.items()]
    contenders = (replace(one, overrides=(*one.overrides, *own)) for one in compared.contenders)
    return replace(compared, contenders=tuple(contenders))


def _unless_it_fails(train: Callable[[], T], model: str) -> tuple[T | None, str]:
    """What `train` gives, or None and why. model: its name on the shelf."""
    try:
        return train(), ""
    except (ModelError, TrainingError, RankingError, torch.OutOfMemoryError) as error:
        return None, " ".join(str(error).split())
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if model not in OWN.kinds:
            raise
        return None, " ".join(f"{type(error).__name__}: {error}".split())  # of anyone's `forward`


def learning_rates(centre: float, count: int) -> list[float]:
    """List `count` learning rates around the centre, each three times the one before, an even number one more below.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.compare.compare import learning_rates
    >>> learning_rates(0.01, 3)
    [0.003333, 0.01, 0.03]
    """
    return [float(f"{centre * LR_STEP ** (k - count // 2):.4g}") for k in range(count)]


def nearest_first(lrs: Sequence[float], centre: float) -> list[float]:
    """The learning rates by their distance from the centre, so that a search that ends early has tried that one.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.compare.compare import nearest_first
    >>> nearest_first([0.003333, 0.01, 0.03], 0.01)
    [0.01, 0.003333, 0.03]
    """
    return sorted(lrs, key=lambda lr: (round(abs(math.log(lr / centre)), 2), lr))


def _end_of_search(started: float, budget: Budget) -> float:
    """When the search must end, so that the trainings that count have their share of the time."""
    share = budget.trials / (budget.trials + budget.seeds)
    return math.inf if budget.seconds is None else started + share * budget.seconds


def _stopped(contenders: Sequence[Contender], searched: int, few: int, budget: Budget) -> Iterator[str]:
    """What time did not allow, in sentences."""
    by_rate = [one for one in contenders if one.lr is not None]
    short = [f"{one.label} {len(one.tried)}" for one in by_rate if len(one.tried) < searched]
    if short:
        yield (
            f"The search's share of the time was up before all {searched} learning rates were tried "
            f"({', '.join(short)}); where none was, the run's own is taken."
        )
    if few < budget.seeds:
        yield f"The time was up after {few} of {budget.seeds} seeds of every model."
