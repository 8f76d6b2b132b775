"""`gigabatch tune`: the largest batch that fits, the fastest, and the largest that is still as good as the run's own.

What is measured, on the run's own tables: time and memory of a step by batch size; the gradient noise scale, which says
about where larger batches cease to help; then whole trainings in pairs, which decide. docs/tuning.md explains it.
"""

from __future__ import annotations

import inspect
import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers.registry import build_cowclip
from gigabatch.models.optimizers.schedule import OneCycle, square_root_scaled_lr
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.display import progress
from gigabatch.pipeline.lab.bounds import TuneBounds
from gigabatch.pipeline.lab.experiment import Enough, Experiment, TimedTrainer, mean_margin, valid_losses
from gigabatch.pipeline.lab.tune.report import Trial, Tuned, show, write_tune_page
from gigabatch.pipeline.lab.tune.trials import LEAST_STEPS, NoisePoint, Sweep, batch_sizes, noise_scales, sweep_batches
from gigabatch.pipeline.reports.charts import mean_curve
from gigabatch.pipeline.stages.run import environment
from gigabatch.pipeline.store.files import write_json
from gigabatch.pipeline.training.defaults import RULED
from gigabatch.pipeline.training.train import TrainingError

log = logging.getLogger(__name__)
SWEEP_SHARE, NOISE_SHARE = 0.25, 0.1  # of --seconds; trainings take the rest
MOST_WARMUP = 0.5  # of all steps


def run_tune(path: str | Path, overrides: Sequence[str], bounds: TuneBounds) -> int:
    """The command: writes runs/<name>/tune.json and tune.html, prints tables, the verdict and the overrides."""
    experiment = Experiment.of_run(path, overrides, bounds.max_rows)
    tuned = tune(experiment, bounds)
    home = experiment.home
    if (home / "tune.html").exists():
        log.info("%s of an earlier tune is replaced", home / "tune.html")
    write_json(home / "tune.json", tuned.to_dict())
    write_tune_page(home / "tune.html", tuned)
    show(tuned)
    print(home / "tune.html")
    return 0


def tune(experiment: Experiment, bounds: TuneBounds) -> Tuned:
    """Find the largest batch that is as good as the run's own: measure, propose and compare, within `bounds`.

    Parameters
    ----------
    experiment
        The run's tables, model and loss; nothing of the run is changed.
    bounds
        Time, seeds, rows and tolerance.

    Returns
    -------
    Tuned
        Step times, noise scales, trials in pairs, and the trial that is recommended, if one holds.

    Raises
    ------
    TrainingError
        Where the run's own batch leaves no room for a larger one, or is above --max-batch.
    """
    started, settings = time.perf_counter(), experiment.settings
    rows, small = len(experiment.train), settings.batch_size
    most = min(rows // LEAST_STEPS, rows if bounds.max_batch is None else bounds.max_batch)
    if most < small:
        few = rows // LEAST_STEPS < small
        because = f"{rows:,} rows are fewer than {LEAST_STEPS} such batches" if few else f"--max-batch is {most:,}"
        raise TrainingError(
            f"tune: the run's batch of {small:,} rows leaves nothing to try: {because}. Give a smaller "
            "train.batch_size to begin from."
        )
    sweep = sweep_batches(experiment, batch_sizes(small, most), SWEEP_SHARE * bounds.seconds)
    noise: list[NoisePoint] = []
    candidates: list[int] = []
    try:
        noise += noise_scales(experiment, settings, NOISE_SHARE * bounds.seconds)
        candidates, because = choose_candidates(sweep, noise, small)
    except (ModelError, TrainingError) as error:  # the rate diverges; what was measured of steps is right all the same
        because = f"no larger batch was trained. {str(error).removesuffix('.')}"
    trainer = Trainer(experiment, started + bounds.seconds)
    trials, curves = compare_batches(experiment, trainer, candidates, bounds)
    return Tuned(
        name=experiment.config.name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - started,
        batch_size=small,
        rows=rows,
        rows_of_run=experiment.num_train_rows,
        negatives_per_positive=None if settings.negatives is None else settings.negatives.per_positive,
        metric=trainer.metric,
        sweep=sweep,
        noise=tuple(noise),
        candidates=tuple(candidates),
        candidates_because=because,
        trials=tuple(trials),
        chosen=next((trial for trial in trials if trial.verdict == "holds"), None),
        curves=curves,
        environment=environment(experiment.device),
    )


def choose_candidates(sweep: Sweep, noise: Sequence[NoisePoint], small: int) -> tuple[list[int], str]:
    """Batch sizes to train at, the largest first, and why it is that one (or why there is none).

    The largest is the fastest batch, or the last one tried below the noise scale where that is smaller, but at least
    the next above `small`: the noise scale only guides, the trainings decide.
    """
    larger = [found.batch_size for found in sweep.times if small < found.batch_size <= sweep.fastest.batch_size]
    if sweep.times[-1].batch_size <= small:
        return [], "no larger batch was tried"
    if not larger:
        return [], "no larger batch takes 5 % less time per row"
    scale = noise[-1].scale.simple if noise else math.inf
    below = [size for size in larger if size <= scale]
    if not below:
        return larger[:1], f"every batch above the run's own {small:,} is above the noise scale, and this is the least"
    because = "beyond it time per row no longer shrinks" if below == larger else "the next is above the noise scale"
    return below[::-1], because


def scaled_settings(settings: WholeTrainSettings, batch_size: int, rows: int) -> WholeTrainSettings:
    """Scale settings to `batch_size` by LAMB's rules (You et al., arXiv 1904.00962).

    The learning rate grows with the square root of the batch and the share of warm-up steps with the batch, up to half
    of all steps. A schedule without warm-up stays without. CowClip has a rule of its own for its tables (Zheng et al.,
    arXiv 2204.06240): their learning rate stays, l2 grows.

    Parameters
    ----------
    settings
        Those of the run, for its own batch.
    batch_size
        Rows of the new batch.
    rows
        Of the train split, from which the number of steps follows.

    Returns
    -------
    WholeTrainSettings
        Checked as a configuration is.

    Examples
    --------
    >>> from gigabatch.pipeline.config.config import WholeTrainSettings
    >>> from gigabatch.pipeline.lab.tune.tune import overrides_of, scaled_settings
    >>> own = WholeTrainSettings(epochs=5, batch_size=512, lr_max=0.01, schedule="constant")
    >>> overrides_of(scaled_settings(own, 2048, rows=100_000), own)
    ('train.epochs=5', 'train.batch_size=2048', 'train.lr_max=0.02', 'train.ema_decay=null')
    """
    factor = batch_size / settings.batch_size
    schedule = dict(settings.schedule_settings)
    steps = max(rows // batch_size, 1) * settings.epochs
    if settings.schedule == "one_cycle":
        share = schedule.get("pct_start", OneCycle.pct_start)
        schedule["pct_start"] = round(min(share * factor, max(share, MOST_WARMUP)), 4)
    elif settings.schedule == "warmup_polynomial" and schedule.get("warmup_steps"):
        # As many steps, of which there are fewer, are a share that grew with the batch.
        schedule["warmup_steps"] = min(schedule["warmup_steps"], max(int(MOST_WARMUP * steps), 1))
    lr = float(f"{square_root_scaled_lr(settings.lr_max, batch_size, settings.batch_size):.4g}")
    changes = {"batch_size": batch_size, "lr_max": lr, "schedule_settings": schedule}
    if settings.optimizer == "lamb" and settings.optimizer_settings.get("table_lr") is not None:
        table_lr = square_root_scaled_lr(settings.optimizer_settings["table_lr"], batch_size, settings.batch_size)
        changes["optimizer_settings"] = settings.optimizer_settings | {"table_lr": float(f"{table_lr:.4g}")}
    if settings.optimizer == "cowclip":
        own_l2 = inspect.signature(build_cowclip).parameters["l2"].default
        given = {"table_lr": settings.lr_max, "l2": own_l2} | settings.optimizer_settings
        changes["optimizer_settings"] = given | {"l2": float(f"{given['l2'] * factor:.4g}")}
    return WholeTrainSettings.model_validate(settings.model_dump() | changes)


def overrides_of(settings: WholeTrainSettings, before: WholeTrainSettings) -> tuple[str, ...]:
    """Write what `settings` changes as `key=value` for the command line; the inverse of reading them.

    Epochs, batch size, rate and average stand there always: where a configuration leaves one to the rule, it would
    follow from the others, and another training would take place than the one that was tried.
    """
    found = [f"train.{name}={getattr(settings, name):.8g}" for name in RULED]
    found.append(f"train.ema_decay={'null' if settings.ema_decay is None else settings.ema_decay}")
    for section in ("schedule_settings", "optimizer_settings"):
        old = getattr(before, section)
        found += [f"train.{section}.{k}={v}" for k, v in getattr(settings, section).items() if old.get(k) != v]
    return tuple(found)


@dataclass(frozen=True)
class Outcome:
    """A trained model: its metric on the valid split and its learning curve."""

    metric: float
    valid_losses: tuple[float, ...]


class Trainer(TimedTrainer):
    """Trains a run's model with other settings."""

    def train(self, settings: WholeTrainSettings, seed: int) -> Outcome | None:
        """None where the time was up first. A training that diverges is a `TrainingError`."""
        try:
            trained = self.fit(settings, seed)
        except Enough:
            return None
        return Outcome(self.metric_of(trained), valid_losses(trained))

    def relative_gain(self, large: Outcome, small: Outcome) -> float:
        """By how much `large` is better, as a share of `small`'s metric, of its own where that is 0."""
        share = abs(small.metric) or abs(large.metric) or 1.0
        return self.sign * (large.metric - small.metric) / share


def lower_bound(differences: Sequence[float]) -> float | None:
    """Bound the mean of paired differences from below, one-sided at 95 %, by Student's t; fewer than two have none.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.tune.tune import lower_bound
    >>> round(lower_bound([0.01, 0.02, 0.03]), 4), lower_bound([0.5])
    (0.0031, None)
    """
    if len(differences) < 2:
        return None
    return statistics.fmean(differences) - mean_margin(differences, 0.95)


def compare_batches(
    experiment: Experiment, trainer: Trainer, candidates: Sequence[int], bounds: TuneBounds
) -> tuple[list[Trial], dict[str, tuple[float, ...]]]:
    """Train each candidate and the run's own batch with the same seeds and epochs, until one holds or time is up.

    Returns the trials, and the mean valid loss by epoch of every batch size.
    """
    settings, seeds = experiment.settings, [experiment.config.seed + k for k in range(bounds.seeds)]
    # A warm-up in steps was meant for all of the rows.
    base = _for_rows(settings, len(experiment.train) / experiment.num_train_rows)
    small: list[Outcome] = []
    trials: list[Trial] = []
    curves: dict[str, tuple[float, ...]] = {}
    for batch_size in candidates:
        scaled = scaled_settings(base, batch_size, len(experiment.train))
        large, diverged = _train_pairs(trainer, base, scaled, seeds, small)
        if not large and not diverged:
            break  # time was up
        final = scaled_settings(settings, batch_size, experiment.num_train_rows)
        trials.append(_trial(trainer, final, settings, small, large, diverged, bounds))
        curves[f"batch {settings.batch_size:,}"] = mean_curve([outcome.valid_losses for outcome in small])
        if large:
            curves[f"batch {batch_size:,}"] = mean_curve([outcome.valid_losses for outcome in large])
        if trials[-1].verdict == "holds":
            break
    return trials, curves


def _train_pairs(
    trainer: Trainer, base: WholeTrainSettings, scaled: WholeTrainSettings, seeds: Sequence[int], small: list[Outcome]
) -> tuple[list[Outcome], str]:
    """Outcomes of `scaled` by seed, and how it diverged, if it did. Those of `base` that are missing join `small`."""
    large: list[Outcome] = []
    with progress(len(seeds), f"batch {scaled.batch_size:,} against {base.batch_size:,}, pairs") as bar:
        for number, seed in enumerate(seeds):
            if len(small) == number:
                outcome = trainer.train(base, seed)
                if outcome is None:
                    break
                small.append(outcome)
            try:
                outcome = trainer.train(scaled, seed)
            except TrainingError as error:
                return large, str(error)
            if outcome is None:
                break
            large.append(outcome)
            bar.advance(1, f"{trainer.metric} {outcome.metric:.4f} and {small[number].metric:.4f}")
    return large, ""


def _trial(
    trainer: Trainer,
    scaled: WholeTrainSettings,
    settings: WholeTrainSettings,
    small: Sequence[Outcome],
    large: Sequence[Outcome],
    diverged: str,
    bounds: TuneBounds,
) -> Trial:
    pairs = list(zip(large, small, strict=False))
    gains = [trainer.relative_gain(one, other) for one, other in pairs]
    difference, bound = (statistics.fmean(gains), lower_bound(gains)) if gains else (None, None)
    measured = ""
    if difference is not None:
        how = "better" if difference >= 0 else "worse"
        bounded = (
            ", which have no bound" if bound is None else f", 95 % lower bound of what it is better by {bound:+.3%}"
        )
        measured = (
            f"{trainer.metric} {abs(difference):.3%} {how} than batch {settings.batch_size:,} over {len(gains)} "
            f"seed(s){bounded}, allowed {-bounds.tolerance:.3%}"
        )
    if diverged:
        verdict, text = "loses", f"The large batch loses: {scaled.batch_size:,} diverged ({diverged})"
    elif difference is not None and difference < -bounds.tolerance:
        verdict, text = "loses", f"The large batch loses: {scaled.batch_size:,} has {measured}."
    elif bound is not None and bound > -bounds.tolerance:
        verdict, text = "holds", f"Parity holds at batch {scaled.batch_size:,}: {measured}."
    else:
        ask = "Give more --seeds." if len(gains) == bounds.seeds else "The time was up; give more --seconds."
        verdict, text = "open", f"Parity is not shown at batch {scaled.batch_size:,}: {measured}. {ask}"
    return Trial(
        batch_size=scaled.batch_size,
        lr_max=scaled.lr_max,
        small=tuple(other.metric for _, other in pairs),
        large=tuple(one.metric for one, _ in pairs),
        difference=difference,
        bound=bound,
        verdict=verdict,
        text=text,
        overrides=overrides_of(scaled, settings),
    )


def _for_rows(settings: WholeTrainSettings, share: float) -> WholeTrainSettings:
    """The settings for a share of the rows: warm-up steps shrink with all steps."""
    steps = settings.schedule_settings.get("warmup_steps")
    if not steps or share == 1:
        return settings
    schedule = settings.schedule_settings | {"warmup_steps": max(round(steps * share), 1)}
    return settings.model_copy(update={"schedule_settings": schedule})
