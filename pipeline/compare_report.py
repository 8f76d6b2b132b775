"""What `compare` prints, and compare.html, compare.svg and compare.json."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from pipeline.artifacts import atomic_write, without_nan
from pipeline.charts import SERIES, Chart, Curves, curves_chart
from pipeline.display import metric_label, render_table
from pipeline.plan_machine import about_seconds
from pipeline.tune_report import Section, write_page

if TYPE_CHECKING:
    from pipeline.compare import Compared
    from pipeline.compare_trials import Interval

# compare.svg stands alone, so it takes the light colours of the page.
COLORS = {"--ink": "#20262d", "--muted": "#626b75", "--grid": "#e2e3df", "--series-1": "#2f6cad", "--card": "#ffffff"}
WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 380, 22, 105, 50, 10, 34  # of the drawing, in its own units
WORSE_IF_MORE = ("logloss", "ece", "rmse", "mae", "normalised_entropy")


def show(compared: Compared) -> None:
    """Print the tables, and what was left out and why."""
    render_table(model_rows(compared), f"compare {compared.name}: {budget_text(compared)}")
    render_table(metric_rows(compared), "Test split, means over the seeds")
    for note in notes(compared):
        print(note)


def write_compared(folder: Path, compared: Compared) -> None:
    """compare.json, compare.svg and compare.html, each whole or not at all."""
    content = json.dumps(without_nan(compared.to_dict()), indent=1, default=str) + "\n"
    atomic_write(folder / "compare.json", content.encode())
    drawing = interval_drawing(compared)
    for name, color in COLORS.items():
        drawing = drawing.replace(f"var({name})", color)
    background = f'<rect width="100%" height="100%" fill="{COLORS["--card"]}"/>'
    namespace = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="10"'
    atomic_write(
        folder / "compare.svg", drawing.replace("<svg", namespace, 1).replace(">", f">{background}", 1).encode()
    )
    label = label_of(compared.metric)
    chart = Chart(f"{label} by model", Markup(interval_drawing(compared)), note="bar: 95 % interval; ring: one seed")
    sections = [
        Section(f"{label} of the test split", interval_text(compared), model_rows(compared), (chart,)),
        Section("All metrics", "Means over the seeds, on the test split.", metric_rows(compared)),
        Section("Learning rates", lr_text(compared), lr_rows(compared)),
        Section("Valid loss", "Means over the seeds, after each epoch.", charts=loss_charts(compared)),
    ]
    sections.append(Section("Settings", "Of each model, defaults written out.", setting_rows(compared)))
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
    better = "less is better" if compared.metric in WORSE_IF_MORE else "more is better"
    return (
        f"Mean and 95 % interval (Student's t) over the seeds, {better}; differences to {compared.contenders[0].label} "
        "are paired by seed. An interval says how certain the training is, not how other rows would turn out."
    )


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
                label_of(metric): value and value.mean,
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
        {"metric": label_of(name)} | {c.label: (span := c.interval(name)) and span.mean for c in compared.contenders}
        for name in names
    ]


def label_of(metric: str) -> str:
    """How a metric is written: "AUC" for auc, "HR@10 sampled" for hr@10 sampled."""
    name, _, rest = metric.partition(" ")
    if name.partition("@")[0] in ("hr", "ndcg", "mrr", "gauc"):
        return f"{name.upper()} {rest}".strip()
    return metric_label(metric)


def lr_text(compared: Compared) -> str:
    label = label_of(compared.metric)
    return f"{label} of the valid split after one training each, with a seed of its own; the best is taken."


def lr_rows(compared: Compared) -> list[dict[str, Any]]:
    """A row a model, a column a learning rate."""
    return [{"model": c.label} | {f"{lr:.3g}": value for lr, value in c.tried.items()} for c in compared.contenders]


def setting_rows(compared: Compared) -> list[dict[str, Any]]:
    """A row a model."""
    texts = {c.label: [f"{name}: {value}" for name, value in c.choice.items()] for c in compared.contenders}
    return [{"model": label, "settings": ", ".join(text)} for label, text in texts.items()]


def loss_charts(compared: Compared) -> list[Chart]:
    """Valid loss by epoch, of as many models a chart as there are colours."""
    curves = {}
    for contender in compared.contenders:
        by_epoch = zip(*(outcome.valid_losses for outcome in contender.outcomes), strict=False)
        curves[contender.label] = [statistics.fmean(losses) for losses in by_epoch]
    charts, labels = [], list(curves)
    for start in range(0, len(labels), len(SERIES)):
        shown = {label: curves[label] for label in labels[start : start + len(SERIES)]}
        epochs = max(map(len, shown.values()))
        lines = {label: [*losses, *[math.nan] * (epochs - len(losses))] for label, losses in shown.items()}
        drawn = Curves(range(1, epochs + 1), lines, "epoch", "valid loss")
        charts.append(curves_chart(drawn, "Valid loss by epoch", f"losses{start}"))
    return charts


def interval_drawing(compared: Compared) -> str:
    """An SVG without size or namespace, in CSS variables: a line a model with its seeds, mean and interval."""
    metric, contenders = compared.metric, compared.contenders
    seeds = [[v for o in c.outcomes if (v := o.metrics.get(metric)) is not None] for c in contenders]
    spans = [c.interval(metric) for c in contenders]
    low, high = _range([value for values in seeds for value in values], spans)
    ticks = [float(tick) for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]

    def x(value: float) -> str:
        return f"{LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT):.1f}"

    height = TOP + ROW * len(contenders) + BOTTOM
    floor = height - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label_of(metric))} by model">']
    for tick in ticks:
        parts.append(f'<path d="M{x(tick)} {TOP}V{floor}" stroke="var(--grid)"/>')
        parts.append(_text(x(tick), floor + 14, f"{tick:.6g}", "middle", "--muted"))
    parts.append(_text(str((LEFT + WIDTH - RIGHT) / 2), floor + 28, label_of(metric), "middle", "--muted"))
    for number, (contender, values, span) in enumerate(zip(contenders, seeds, spans, strict=True)):
        y = TOP + ROW * (number + 0.5)
        parts.append(_text(str(LEFT - 10), y + 3.5, contender.label, "end", "--ink"))
        parts += [
            f'<circle cx="{x(value)}" cy="{y}" r="2.2" fill="none" stroke="var(--muted)" stroke-width="0.8"/>'
            for value in values
        ]
        if span is not None and span.half is not None:
            ends = f"M{x(span.mean - span.half)} {y}H{x(span.mean + span.half)}"
            parts.append(f'<path d="{ends}" stroke="var(--series-1)" stroke-width="1.7" stroke-linecap="round"/>')
        if span is not None:
            parts.append(f'<circle cx="{x(span.mean)}" cy="{y}" r="3.6" fill="var(--series-1)"/>')
            parts.append(_text(str(WIDTH - RIGHT + 12), y + 3.5, f"{span.mean:.4g}", "start", "--ink"))
    return "".join([*parts, "</svg>"])


def _text(x: str, y: float, text: str, anchor: str, color: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="var({color})">{escape(text)}</text>'


def _range(values: Sequence[float], spans: Sequence[Interval | None]) -> tuple[float, float]:
    """Ends of the axis: of all seeds and intervals, with a margin."""
    ends = [span.mean + sign * (span.half or 0.0) for span in spans if span is not None for sign in (-1, 1)]
    low, high = min([*values, *ends], default=0.0), max([*values, *ends], default=1.0)
    margin = 0.05 * (high - low) or 0.01 * abs(high) or 0.01
    return low - margin, high + margin
