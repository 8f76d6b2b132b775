"""What `compare` found, what it prints of that, and compare.html, compare.svg and compare.json."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.config import LESS_IS_BETTER
from gigabatch.pipeline.display import about_seconds, apart, metric_label, render_table
from gigabatch.pipeline.lab.bounds import Budget
from gigabatch.pipeline.lab.experiment import LOSS, mean_margin
from gigabatch.pipeline.reports.charts import SERIES, Chart, intervals_chart, loss_chart, mean_curve
from gigabatch.pipeline.reports.report import Section, write_page
from gigabatch.pipeline.store.files import atomic_write, write_json

SETTINGS_TEXT = "Of each model, defaults written out; and what gigabatch train takes to train it so."
OF_SEEDS = "An interval says how certain the training is, not how other rows would turn out."
# compare.svg stands alone, so it takes the light colours of the page.
COLORS = {"--ink": "#20262d", "--muted": "#626b75", "--grid": "#e2e3df", "--series-1": "#2f6cad", "--card": "#ffffff"}


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
    """A mean and half the width of its 95 % interval (Student's t), None of fewer than two values.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.compare.report import Interval
    >>> found = Interval.of([0.71, 0.73, 0.72])
    >>> round(found.mean, 3), round(found.half, 3)
    (0.72, 0.025)
    """

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float], looks: int = 1) -> Interval:
        """looks: intervals that are to hold at 95 % together (Bonferroni)."""
        share = 1 - 0.025 / looks
        return cls(statistics.fmean(values), None if len(values) < 2 else mean_margin(values, share))


@dataclass(frozen=True)
class Contender:
    """A model and how it did. tried: the valid metric by learning rate, None where training diverged.

    parameters, lr: None of a model that takes no steps. overrides: what a training takes to become this one."""

    label: str
    choice: dict[str, Any]
    parameters: int | None
    lr: float | None
    tried: dict[float, float | None]
    outcomes: tuple[Outcome, ...]
    overrides: tuple[str, ...] = ()

    def interval(self, metric: str) -> Interval | None:
        """None where the metric does not apply."""
        values = [value for o in self.outcomes if (value := o.metrics.get(metric)) is not None]
        return Interval.of(values) if values else None

    def difference(self, other: Contender, metric: str, looks: int = 1) -> Interval | None:
        """This one's metric less the other's, paired by seed. looks: as of `Interval.of`."""
        theirs = {o.seed: o.metrics.get(metric) for o in other.outcomes}
        pairs = [(o.metrics.get(metric), theirs.get(o.seed)) for o in self.outcomes]
        gaps = [mine - its for mine, its in pairs if mine is not None and its is not None]
        return Interval.of(gaps, looks) if gaps else None

    @property
    def lr_at_edge(self) -> bool:
        """Whether the best learning rate is the lowest or the highest tried, so that a better one may lie beyond."""
        return len(self.tried) > 1 and self.lr in (min(self.tried), max(self.tried))


@dataclass(frozen=True)
class Compared:
    """All that was found. metric: of the test split, by which models are compared; valid_metric: by which learning
    rates are. left_out: by model, why. stopped: what time did not allow, or empty."""

    name: str
    id: str
    created_utc: str
    metric: str
    valid_metric: str
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

    @property
    def less_is_better(self) -> bool:
        return self.metric in (LOSS, *LESS_IS_BETTER)

    @property
    def best(self) -> Contender | None:
        """The contender with the best mean of the metric; None where it applies to none."""
        sign = -1 if self.less_is_better else 1
        means = [(sign * found.mean, one) for one in self.contenders if (found := one.interval(self.metric))]
        return max(means, key=lambda pair: pair[0])[1] if means else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with intervals and paired differences against the first model."""
        found: list[dict[str, Any]] = []
        for contender in self.contenders:
            names = dict.fromkeys(name for o in contender.outcomes for name in o.metrics)
            spans = {name: contender.interval(name) for name in names}
            gaps = {name: contender.difference(self.contenders[0], name) for name in names}
            found.append(
                asdict(contender)
                | {"tried": [{"lr": lr, self.valid_metric: value} for lr, value in contender.tried.items()]}
                | {"intervals": {name: span and asdict(span) for name, span in spans.items()}}
                | {"differences": {name: gap and asdict(gap) for name, gap in gaps.items()}}
            )
        return asdict(self) | {"contenders": found}


def show(compared: Compared) -> None:
    """Print the tables, and what was left out and why."""
    render_table(model_rows(compared), f"compare {compared.name}: {budget_text(compared)}")
    render_table(metric_rows(compared), "Test split, means over the seeds")
    for note in notes(compared):
        print(note)
    if (best := compared.best) is not None:
        print(f"overrides  {overrides_text(best)}")


def write_compared(folder: Path, compared: Compared) -> None:
    """compare.json, compare.svg and compare.html, each whole or not at all."""
    write_json(folder / "compare.json", compared.to_dict(), default=str)
    chart = interval_chart(compared)
    drawing = str(chart.svg)
    for name, color in COLORS.items():
        drawing = drawing.replace(f"var({name})", color)
    background = f'<rect width="100%" height="100%" fill="{COLORS["--card"]}"/>'
    namespace = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="10"'
    atomic_write(
        folder / "compare.svg", drawing.replace("<svg", namespace, 1).replace(">", f">{background}", 1).encode()
    )
    label = metric_label(compared.metric)
    sections = [
        Section(f"{label} of the test split", interval_text(compared), model_rows(compared), (chart,)),
        Section("All metrics", "Means over the seeds, on the test split.", metric_rows(compared)),
        Section("Learning rates", lr_text(compared), lr_rows(compared)),
        Section("Valid loss", "Means over the seeds, after each epoch.", charts=loss_charts(compared)),
    ]
    sections.append(Section("Settings", SETTINGS_TEXT, setting_rows(compared)))
    if compared.left_out:
        rows = [{"model": name, "why": reason} for name, reason in compared.left_out.items()]
        sections.append(Section("Left out", "These models took no part to the end.", rows))
    lines = [f"{budget_text(compared)}.", *notes(compared)]
    write_page(folder / "compare.html", f"{compared.name}: models compared", compared.created_utc, lines, sections)


def budget_text(compared: Compared) -> str:
    """What every model was given."""
    rows = f"{compared.rows:,}" + ("" if compared.rows == compared.rows_of_run else f" of {compared.rows_of_run:,}")
    budget = compared.budget
    return (
        f"{rows} train rows, {compared.epochs} epoch(s), batch {compared.batch_size:,}, {compared.optimizer}, "
        f"{budget.trials} learning rate(s), {budget.seeds} seed(s)"
    )


def interval_text(compared: Compared) -> str:
    """How to read the intervals."""
    better = "less is better" if compared.less_is_better else "more is better"
    return (
        f"Mean and 95 % interval (Student's t) over the seeds, {better}; differences to {compared.contenders[0].label} "
        f"are paired by seed. {OF_SEEDS}"
    )


def verdict(compared: Compared) -> list[str]:
    """Which model did best, and from which others these seeds do not tell it, at 95 % over all pairs of models: the
    same seeds have chosen the best, and of five models that are alike one was told from it in one case of four."""
    best, others = compared.best, list[str]()
    if best is None:
        return []
    pairs = max(math.comb(len(compared.contenders), 2), 1)
    for other in compared.contenders:
        gap = other.difference(best, compared.metric, pairs)
        if other is not best and gap is not None and (gap.half is None or abs(gap.mean) <= gap.half):
            others.append(other.label)
    found = f"{best.label} has the best {metric_label(compared.metric)} of the test split. "
    if compared.budget.seeds == 1:
        return [f"{found}One seed tells no model from another: give --seeds 3."]
    told = f"These seeds do not tell it from {', '.join(others)}." if others else "These seeds tell it from the others."
    return [f"{found}{told} {OF_SEEDS}" if len(compared.contenders) > 1 else found.rstrip()]


def overrides_text(contender: Contender) -> str:
    """For a shell's line."""
    return " ".join(map(shlex.quote, contender.overrides))


def notes(compared: Compared) -> list[str]:
    """What to know of this comparison in particular."""
    found = [f"Left out: {name}: {reason}" for name, reason in compared.left_out.items()]
    edge = [contender.label for contender in compared.contenders if contender.lr_at_edge]
    if edge:
        found.append(
            f"The best learning rate of {', '.join(edge)} is the lowest or highest tried: a better one may lie beyond. "
            "Give more --trials, or another train.lr_max to search around."
        )
    if compared.stopped:
        found.append(compared.stopped)
    found += verdict(compared)
    found.append(f"{about_seconds(compared.seconds)} on {compared.environment['device']}.")
    return found


def model_rows(compared: Compared) -> list[dict[str, Any]]:
    """A row a model: metric, difference to the first, size, speed."""
    metric, first = compared.metric, compared.contenders[0]
    rows = []
    for contender in compared.contenders:
        value, gap = contender.interval(metric), contender.difference(first, metric)
        seconds = [outcome.seconds for outcome in contender.outcomes]
        rows.append(
            {
                "model": contender.label,
                metric_label(metric): value and value.mean,
                "± 95 %": value and value.half,
                f"less {first.label}": None if contender is first or gap is None else gap.mean,
                "± 95 % of it": None if contender is first or gap is None else gap.half,
                "parameters": contender.parameters,
                "learning rate": contender.lr,
                "rows/s": round(sum(o.rows for o in contender.outcomes) / max(sum(seconds), 1e-9)),
                "seconds": statistics.fmean(seconds),
                "seeds": len(seconds),
            }
        )
    return rows


def metric_rows(compared: Compared) -> list[dict[str, Any]]:
    """A row a metric, a column a model."""
    names = dict.fromkeys(name for c in compared.contenders for o in c.outcomes for name in o.metrics)
    return [
        {"metric": metric_label(name)}
        | {c.label: (span := c.interval(name)) and span.mean for c in compared.contenders}
        for name in names
    ]


def lr_text(compared: Compared) -> str:
    label = metric_label(compared.valid_metric)
    if all(contender.lr is None for contender in compared.contenders):
        return "These models take no steps, so they have none."
    if not any(contender.tried for contender in compared.contenders):
        return "None was searched: all models have the run's own."
    return f"{label} of the valid split after one training each, with a seed of its own; the best is taken."


def lr_rows(compared: Compared) -> list[dict[str, Any]]:
    """A row a model that takes steps, a column a learning rate."""
    lrs = sorted({lr for contender in compared.contenders for lr in contender.tried})  # a model's may be its own
    taken = [c.lr for c in compared.contenders if c.lr is not None]
    written = dict(zip([*lrs, *taken], apart([*lrs, *taken], 3), strict=True))
    return [
        {"model": c.label, **{written[lr]: c.tried.get(lr, "") for lr in lrs}, "taken": written[c.lr]}
        for c in compared.contenders
        if c.lr is not None
    ]


def setting_rows(compared: Compared) -> list[dict[str, Any]]:
    """A row a model."""
    return [
        {
            "model": c.label,
            "settings": ", ".join(f"{name}: {value}" for name, value in c.choice.items()),
            "overrides": overrides_text(c),
        }
        for c in compared.contenders
    ]


def loss_charts(compared: Compared) -> list[Chart]:
    """Valid loss by epoch, of as many models a chart as there are colours."""
    curves = {c.label: mean_curve([outcome.valid_losses for outcome in c.outcomes]) for c in compared.contenders}
    labels, count = list(curves), len(SERIES)
    shown = [
        {label: curves[label] for label in labels[start : start + count]} for start in range(0, len(labels), count)
    ]
    return [loss_chart(part, "Valid loss by epoch", f"losses{number}") for number, part in enumerate(shown)]


def interval_chart(compared: Compared) -> Chart:
    """A line a model with its seeds, mean and interval."""
    label, rows = metric_label(compared.metric), []
    for contender in compared.contenders:
        values = [v for o in contender.outcomes if (v := o.metrics.get(compared.metric)) is not None]
        if values:
            interval = Interval.of(values)
            rows.append((contender.label, values, interval.mean, interval.half))
    return intervals_chart(rows, f"{label} by model", label, "intervals", "bar: 95 % interval; ring: one seed")
