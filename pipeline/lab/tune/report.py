"""What `tune` found, what it prints of that, and its page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gigabatch.pipeline.display import about_bytes, about_seconds, render_table
from gigabatch.pipeline.lab.tune.trials import NoisePoint, Sweep
from gigabatch.pipeline.reports.charts import Chart, Curves, curves_chart, loss_chart
from gigabatch.pipeline.reports.report import Section, write_page


@dataclass(frozen=True)
class Trial:
    """A batch size against the run's own: metrics by seed in pairs, and the difference as a share of the small one's.

    verdict: `holds` where the lower bound of the difference is above minus the tolerance; `loses` where the difference
    itself is below that or the training diverged; else `open`, which more seeds may settle.
    """

    batch_size: int
    lr_max: float
    small: tuple[float, ...]
    large: tuple[float, ...]
    difference: float | None
    bound: float | None
    verdict: str
    text: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Tuned:
    """All that was found. chosen: the trial whose overrides are recommended; None: keep the run's batch.

    negatives_per_positive: drawn for every row, where rows are positives; batches and rows count these alone.
    """

    name: str
    created_utc: str
    seconds: float
    batch_size: int
    rows: int
    rows_of_run: int
    negatives_per_positive: int | None
    metric: str
    sweep: Sweep
    noise: tuple[NoisePoint, ...]
    candidates: tuple[int, ...]
    candidates_because: str
    trials: tuple[Trial, ...]
    chosen: Trial | None
    curves: dict[str, tuple[float, ...]]
    environment: dict[str, Any]

    @property
    def verdict(self) -> str:
        """What to do, in a sentence or two."""
        if not self.candidates:
            return f"Keep train.batch_size={self.batch_size}: {self.candidates_because}."
        if self.chosen:
            return self.chosen.text
        texts = [f"Keep train.batch_size={self.batch_size}.", *(trial.text for trial in self.trials)]
        untried = self.candidates[len(self.trials) :]
        if untried:
            texts.append(f"The time was up before batch {', '.join(f'{size:,}' for size in untried)} could be tried.")
        return " ".join(texts)

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        sweep = {
            "times": [asdict(time) | {"row_seconds": time.row_seconds} for time in self.sweep.times],
            "ended": self.sweep.ended,
            "budget_bytes": self.sweep.budget_bytes,
            "out_of_memory": self.sweep.out_of_memory,
            "largest_that_fits": self.sweep.largest_that_fits,
            "fastest": self.sweep.fastest.batch_size,
        }
        noise = [{"step": point.step, **asdict(point.scale), "simple": point.scale.simple} for point in self.noise]
        return asdict(self) | {"sweep": sweep, "noise": noise, "verdict": self.verdict}


def show(tuned: Tuned) -> None:
    """Print what was found."""
    render_table(step_rows(tuned.sweep, tuned.batch_size), f"tune {tuned.name}: steps on {rows_text(tuned)}")
    print(limit_text(tuned.sweep))
    if tuned.noise:
        render_table(noise_rows(tuned.noise), "Gradient noise scale in the first epoch")
    if tuned.candidates:
        print(candidates_text(tuned))
    if tuned.trials:
        render_table(trial_rows(tuned.trials), f"Against batch {tuned.batch_size:,}, by {tuned.metric}")
    print(tuned.verdict)
    if tuned.chosen:
        print(f"overrides  {' '.join(tuned.chosen.overrides)}")


def write_tune_page(path: Path, tuned: Tuned) -> None:
    """The page of `tune`: the verdict, then what led to it."""
    notes = [tuned.verdict]
    if tuned.chosen:
        notes.append(f"Overrides: {' '.join(tuned.chosen.overrides)}")
    notes.append(f"{rows_text(tuned)}; {about_seconds(tuned.seconds)} on {tuned.environment['device']}.")
    sections = [
        Section(
            "Steps by batch size",
            limit_text(tuned.sweep),
            step_rows(tuned.sweep, tuned.batch_size),
            (_step_chart(tuned),),
        ),
        Section("Gradient noise scale", _noise_text(tuned), noise_rows(tuned.noise)),
    ]
    if tuned.trials:
        compared = (
            f"{tuned.metric} of the valid split, means over the seeds; the difference is of pairs of equal seeds."
        )
        text = f"{candidates_text(tuned)} {compared}"
        charts = (loss_chart(tuned.curves, "Valid loss, mean over the seeds", "losses"),) if tuned.curves else ()
        sections.append(Section(f"Against batch {tuned.batch_size:,}", text, trial_rows(tuned.trials), charts))
    write_page(path, f"{tuned.name}: batch size and learning rate", tuned.created_utc, notes, sections)


def rows_text(tuned: Tuned) -> str:
    """Which rows it was measured on."""
    whole = tuned.rows == tuned.rows_of_run
    rows = f"all {tuned.rows:,} train rows" if whole else f"{tuned.rows:,} of {tuned.rows_of_run:,} train rows"
    if tuned.negatives_per_positive is None:
        return rows
    return f"{rows}, positives with {tuned.negatives_per_positive} drawn negatives each (batches count positives)"


def step_rows(sweep: Sweep, own: int, fastest: str = "the fastest") -> list[dict[str, Any]]:
    """A row a batch size, of which the run's own and the fastest are marked."""
    marks = {own: ["the run's own"]}
    marks.setdefault(sweep.fastest.batch_size, []).append(fastest)
    return [
        {
            "batch": found.batch_size,
            "ms a step": 1e3 * found.seconds,
            "µs a row": 1e6 * found.row_seconds,
            "rows/s": round(1 / found.row_seconds),
            "peak memory": about_bytes(found.peak_bytes),
            "": ", ".join(marks.get(found.batch_size, ())),
        }
        for found in sweep.times
    ]


def limit_text(sweep: Sweep) -> str:
    """The largest batch that fits, how it was found, and why no larger one was tried."""
    last, largest = sweep.times[-1].batch_size, sweep.largest_that_fits
    if sweep.out_of_memory is not None:
        return f"The largest batch that fits in GPU memory: {last:,}; {sweep.out_of_memory:,} did not."
    ended = {
        "memory": "the next would not fit in memory",
        "rows": "larger ones are above --max-batch or leave too few steps an epoch",
        "--seconds": "the time for it was up",
    }[sweep.ended]
    budget = about_bytes(sweep.budget_bytes)
    fits = "memory does not limit it"
    if largest is not None:
        fits = f"about {float(f'{largest:.2g}'):,.0f} rows would fit in {budget} of memory"
    return f"The largest batch tried: {last:,}; {ended}; {fits}."


def candidates_text(tuned: Tuned) -> str:
    """Where the trainings begin, and why there."""
    return f"The first batch to be trained: {tuned.candidates[0]:,}; {tuned.candidates_because}."


def noise_rows(noise: Sequence[NoisePoint]) -> list[dict[str, Any]]:
    """A row a measurement."""
    return [
        {
            "step": point.step,
            "noise scale, rows": point.scale.simple,
            "standard error": point.scale.standard_error,
            "|G|²": point.scale.squared_gradient,
            "tr Σ": point.scale.trace,
        }
        for point in noise
    ]


def trial_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """A row a batch size that was trained."""
    return [
        {
            "batch": trial.batch_size,
            "lr_max": trial.lr_max,
            "seeds": len(trial.large),
            "own batch": statistics.fmean(trial.small) if trial.small else None,
            "this batch": statistics.fmean(trial.large) if trial.large else None,
            "better by %": None if trial.difference is None else 100 * trial.difference,
            "95 % bound of it %": None if trial.bound is None else 100 * trial.bound,
            "parity": trial.verdict,
        }
        for trial in trials
    ]


def _noise_text(tuned: Tuned) -> str:
    if not tuned.noise:
        return "The time was up before it was measured."
    return (
        "At this batch the noise of a gradient is as large as the gradient (McCandlish et al., arXiv 1812.06162): well "
        "below it larger batches save steps, well above it they only cost rows."
    )


def _step_chart(tuned: Tuned) -> Chart:
    times = tuned.sweep.times
    own = next(found for found in times if found.batch_size == tuned.batch_size)
    marks = {
        "the run's own": (own.batch_size, 1e6 * own.row_seconds),
        "the fastest": (tuned.sweep.fastest.batch_size, 1e6 * tuned.sweep.fastest.row_seconds),
    }
    x = [found.batch_size for found in times]
    lines = {"µs a row": [1e6 * found.row_seconds for found in times]}
    curves = Curves(x, lines, "batch size", "µs a row", marks, log_x=True, log_y=True)
    return curves_chart(curves, "Time of a row by batch size", "steps")
