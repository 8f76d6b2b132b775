"""One self-contained HTML page about a run: `write_report(path, ReportData(...))`.

The page needs no network, no JavaScript and no other file. Everything but the name is optional: a section without
data is left out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from numpy.typing import ArrayLike

from gigabatch.pipeline.display import METRIC_LABELS, format_value, headings, is_missing, is_number, metric_label
from gigabatch.pipeline.reports import charts
from gigabatch.pipeline.reports.charts import Calibration, Chart, Gains, Histogram, Means, Roc
from gigabatch.pipeline.store.files import atomic_write

MAX_CLASSES = 15  # of a confusion matrix; rarer ones share a row and a column
SIGNED = ("difference", "lower_bound", "gain", "bound", "upper")  # headings whose numbers get a sign
FRACTIONS = frozenset({"nulls", "null_rate", "unseen_rate"})  # headings of shares, shown as percentages
THRESHOLD = "threshold"  # heading of scores, of which every digit counts
DECIDED = frozenset({"flagged", "precision", "recall", "of_its_class"})  # headings of shares in tables of decisions
FLAG = "flag"  # heading of what to look at in a row
ROWS_SHOWN = 30  # of a long table; the rest is folded
HINTS = {
    "auc": "0.5 is chance, 1 is perfect",
    "ece": "ECE, 0 is perfect",
    "r2": "0 is the mean, 1 is perfect",
    **dict.fromkeys(("logloss", "log_loss", "rmse", "mae"), "0 is perfect"),
    "gauc": "0.5 is chance, 1 is perfect",
    "normalised_entropy": "1 tells nothing, 0 is perfect",
    **dict.fromkeys(("mrr", "accuracy"), "1 is perfect"),
}


@dataclass(frozen=True)
class Confusion:
    """Rows, or sums of their weights, by true class (first axis) and predicted class: counts has shape [classes,
    classes]."""

    labels: Sequence[str]
    counts: ArrayLike


@dataclass(frozen=True)
class Quality:
    """Predictions of one target. Binary targets have roc, gains, calibration, scores and thresholds; multiclass targets
    confusion, most_confused, classes, and calibration and scores of the likeliest class; regression targets residuals
    (actual - predicted), spread (predicted and actual values), residual_means and predicted_actual (two arrays of shape
    [rows]). All may have `metrics`, by name, which are listed. note: at which share of label 1 its figures are,
    where it is not that of the rows, or which rows no chart shows."""

    title: str
    roc: Roc | None = None
    calibration: Calibration | None = None
    scores: Histogram | None = None
    confusion: Confusion | None = None
    residuals: Histogram | None = None
    predicted_actual: tuple[ArrayLike, ArrayLike] | None = None
    gains: Gains | None = None
    thresholds: Sequence[Mapping[str, Any]] = ()
    thresholds_text: str = ""
    most_confused: Sequence[Mapping[str, Any]] = ()
    classes: Sequence[Mapping[str, Any]] = ()
    residual_means: Means | None = None
    spread: Histogram | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class SliceTables:
    """Parts of the rows that a model does worst on: what was looked at, and rows of two tables."""

    title: str
    text: str
    worse_title: str = ""
    worse: Sequence[Mapping[str, Any]] = ()
    off: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class ReportData:
    """All that a report shows. Rows of a table are mappings; their keys become headings, in order of appearance.

    `nulls`, `null_rate` and `unseen_rate` hold fractions in [0, 1] and are shown as percentages. A metric that is None
    does not apply to the run; one that is NaN could not be computed. `learning_curve` rows hold `step` or `epoch`,
    and `train_*`, `valid_*` or other numbers: one chart a quantity, one line a split. `importance` rows hold `name`,
    `mean` (drop of the metric) and `std`. A row of `stages` that was skipped has no seconds. `flag` of a row of
    `splits` or `columns` says what to look at there. metric_notes: what stands below a metric, by its name.
    """

    name: str
    run_id: str | None = None
    created_utc: str | None = None  # ISO 8601
    notes: Sequence[str] = ()
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    metric_notes: Mapping[str, str] = field(default_factory=dict)
    split_rows: int | None = None  # of `split`, which the metrics are of
    split_more: str = ""  # what is said of these behind their number
    warnings: Sequence[str] = ()  # the first thing that is read
    baselines: Sequence[Mapping[str, Any]] = ()
    baselines_title: str = ""
    splits: Sequence[Mapping[str, Any]] = ()
    members: Sequence[Mapping[str, Any]] = ()  # of an ensemble
    members_title: str = ""
    split: str = "test"  # whose rows baselines and ranking are of
    ranking: Sequence[Mapping[str, Any]] = ()
    learning_curve: Sequence[Mapping[str, Any]] = ()
    quality: Sequence[Quality] = ()
    slices: Sequence[SliceTables] = ()
    history: Sequence[Mapping[str, Any]] = ()  # this run, then earlier ones
    history_text: str = ""
    stages: Sequence[Mapping[str, Any]] = ()
    columns: Sequence[Mapping[str, Any]] = ()
    importance: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    configuration: str | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `bar` (a length) and `shade` (a background) are fractions in [0, 1]; `mark`: it is what to
    look at; `link` is an address."""

    text: str
    number: bool = False
    bar: float | None = None
    shade: float | None = None
    mark: bool = False
    link: str | None = None


@dataclass(frozen=True)
class Table:
    """Headings as (text, whether numbers stand below) and rows of cells."""

    heads: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[Cell]]


def write_report(path: Path | str, data: ReportData) -> bytes:
    """Write the page to `path`, whole or not at all, and give its bytes. Equal data gives equal bytes (same matplotlib
    and Jinja2)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return atomic_write(path, render_report(data).encode("utf-8", "replace"))


@cache
def template(name: str) -> Template:
    """A page of this package, compiled once."""
    loader = PackageLoader("gigabatch.pipeline.reports", "")
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return jinja.get_template(name)


def render_report(data: ReportData) -> str:
    """The page as HTML text."""
    return template("report.html.jinja").render(
        data=data,
        rows_shown=ROWS_SHOWN,
        format=format_value,
        breakable=breakable,
        metrics=[
            (tile_label(name, data.split), *metric_texts(name, value)[1:], data.metric_notes.get(name, ""))
            for name, value in data.metrics.items()
            if value is not None
        ],
        baselines=table(data.baselines, signed=gains(data.baselines)),
        splits=table(data.splits),
        members=table(data.members),
        ranking=table(data.ranking),
        learning_charts=charts.learning_charts(data.learning_curve),
        learning=table(data.learning_curve),
        quality=[quality_parts(quality, number) for number, quality in enumerate(data.quality)],
        slices=[(item, table(item.worse), table(item.off, signed=("off by",))) for item in data.slices],
        history=table(data.history, signed=gains(data.history)),
        stages=table(data.stages, bars=("seconds",)),
        stage_seconds=sum(row["seconds"] for row in data.stages if is_finite(row.get("seconds"))),
        columns=table(data.columns, bars=("nulls", "null_rate", "unseen_rate")),
        importance=importance_bars(data.importance),
    )


def gains(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Headings of gains, whose numbers get a sign."""
    return [name for name in headings(rows) if name.startswith(("gain of ", "closer by "))]


def breakable(text: str) -> Markup:
    """`text` escaped, with line breaks allowed after underscores."""
    return escape(text).replace("_", Markup("_<wbr>"))


def is_finite(value: Any) -> bool:
    return is_number(value) and bool(np.isfinite(value))


def tile_label(name: str, split: str) -> str:
    """ "Test AUC", "Test log loss" for metrics of the test split."""
    label = metric_label(name)
    known = name.lower() in METRIC_LABELS and label[1:2].islower()
    return f"{split[:1].upper()}{split[1:]} {label[:1].lower() if known else label[:1]}{label[1:]}"


def metric_texts(name: str, value: float | None) -> tuple[str, str, str]:
    """(label, value, hint) of a metric."""
    label, hint = metric_label(name), HINTS.get(name.lower(), "")
    if value is None or is_missing(value):
        return label, format_value(None), "could not be computed"
    fixed = not isinstance(value, int) and 1e-3 <= abs(value) < 1000
    return label, f"{value:.4f}" if fixed else format_value(value), hint


def table(
    rows: Sequence[Mapping[str, Any]],
    bars: Sequence[str] = (),
    signed: Sequence[str] = (),
    fractions: Collection[str] = FRACTIONS,
) -> Table:
    """A table of `rows`; cells of the headings `bars` get a bar, numbers of the headings `signed` a sign, shares of the
    headings `fractions` are shown as percentages."""
    columns = {
        name: _cells([row.get(name) for row in rows], _style(name, signed, fractions), name in bars)
        for name in headings(rows)
    }
    heads = [(name.replace("_", " "), any(cell.number for cell in cells)) for name, cells in columns.items()]
    return Table(heads, list(zip(*columns.values(), strict=True)))


def _style(name: str, signed: Sequence[str], fractions: Collection[str]) -> str:
    if name in fractions:
        return "fraction"
    if name in (FLAG, THRESHOLD):
        return name
    return "seconds" if name == "seconds" else "signed" if name in signed else "plain"


def _cells(values: Sequence[Any], style: str, bar: bool) -> list[Cell]:
    longest = 1.0 if style == "fraction" else max(filter(is_finite, values), default=0.0) or 1.0
    numeric = any(map(is_number, values)) and all(is_number(value) or is_missing(value) for value in values)
    return [
        Cell(
            _format(value, style),
            number=numeric,
            bar=min(1.0, max(0.0, float(value / longest))) if bar and is_finite(value) else None,
            mark=style == FLAG and bool(value),
        )
        for value in values
    ]


def _format(value: Any, style: str) -> str:
    if style == FLAG:
        return value or ""
    if style == "plain" or not is_finite(value):
        return format_value(value)
    if style == THRESHOLD:
        return f"{value:.9g}"
    if style == "fraction":
        few = "<0.1 %" if 0 < value < 0.0005 else f"{100 * value:.1f} %"
        return ">99.9 %" if 0.9995 <= value < 1 else few
    if style == "seconds":
        return "<0.01" if 0 < value < 0.005 else f"{value:,.2f}"
    return signed_text(value)


def signed_text(value: float) -> str:
    """A difference with its sign.

    >>> [signed_text(value) for value in (0.00012, -0.01234, 10.4552, 4141.8931)]
    ['+0.00012', '-0.0123', '+10.46', '+4,142']
    """
    if abs(value) >= 1000:
        return f"{value:+,.0f}"
    return f"{value:+.2g}" if 0 < abs(value) < 1e-3 else f"{value:+.4g}" if abs(value) >= 10 else f"{value:+.4f}"


@dataclass(frozen=True)
class QualityParts:
    """What the page shows of one target."""

    title: str
    metrics: str
    note: str
    charts: Sequence[Chart]
    thresholds: Table
    thresholds_text: str
    confusion: Table | None
    most_confused: Table
    classes: Table


def quality_parts(quality: Quality, number: int) -> QualityParts:
    """What the page shows of one target; `number` keeps the ids of several targets apart."""
    drawn = []
    if quality.roc:
        drawn.append(charts.roc_chart(quality.roc, f"roc{number}"))
    if quality.gains:
        drawn.append(charts.precision_recall_chart(quality.gains, f"precision{number}"))
        drawn.append(charts.gains_chart(quality.gains, f"gains{number}"))
        drawn.append(charts.lift_chart(quality.gains, f"lift{number}"))
    of_classes = quality.confusion is not None
    if quality.calibration:
        title = "Calibration of the likeliest class" if of_classes else ""
        drawn.append(charts.calibration_chart(quality.calibration, f"calibration{number}", title))
    if quality.scores:
        title = "Scores of the likeliest class" if of_classes else "Scores by label"
        drawn.append(charts.histogram_chart(quality.scores, title, "score", f"scores{number}"))
    if quality.residuals:
        drawn.append(charts.histogram_chart(quality.residuals, "Residuals", "actual − predicted", f"residuals{number}"))
    if quality.residual_means:
        drawn.append(charts.residual_chart(quality.residual_means, f"means{number}"))
    if quality.predicted_actual:
        drawn.append(charts.scatter_chart(*quality.predicted_actual, f"scatter{number}"))
    if quality.spread:
        drawn.append(charts.histogram_chart(quality.spread, "Spread", "value", f"spread{number}"))
    texts = [metric_texts(name, value)[:2] for name, value in quality.metrics.items() if value is not None]
    return QualityParts(
        quality.title,
        ", ".join(f"{label} {value}" for label, value in texts),
        quality.note,
        drawn,
        table(quality.thresholds, fractions=DECIDED),
        quality.thresholds_text,
        confusion_table(quality.confusion) if quality.confusion else None,
        table(quality.most_confused, fractions=DECIDED),
        table(quality.classes, fractions=DECIDED),
    )


def confusion_table(confusion: Confusion) -> Table:
    """Rows per true and predicted class, shaded by the share of the true class."""
    labels, counts = list(map(str, confusion.labels)), np.asarray(confusion.counts)
    if len(labels) > MAX_CLASSES:
        keep = np.sort(np.argsort(-counts.sum(1), kind="stable")[: MAX_CLASSES - 1])
        labels = [labels[i] for i in keep] + [f"{len(labels) - len(keep)} others"]
        group = np.full(len(counts), len(keep))
        group[keep] = np.arange(len(keep))
        gathered = np.zeros((len(labels), len(labels)), counts.dtype)
        np.add.at(gathered, (group[:, None], group[None, :]), counts)
        counts = gathered
    of_class = counts.sum(1, keepdims=True)
    shares = counts / np.where(of_class > 0, of_class, 1)
    rows = [
        [Cell(label)] + [Cell(format_value(n), True, shade=float(s)) for n, s in zip(row, share, strict=True)]
        for label, row, share in zip(labels, counts, shares, strict=True)
    ]
    return Table([("true \\ predicted", False), *((label, True) for label in labels)], rows)


def importance_bars(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows by falling mean, unknown ones last; bar length and whisker ends are percentages of the longest."""
    mean = np.array([row["mean"] if is_finite(row.get("mean")) else np.nan for row in rows], dtype=float)
    std = np.array([row["std"] if is_finite(row.get("std")) else 0.0 for row in rows], dtype=float)
    longest = float(np.nanmax(mean + std, initial=0.0)) or 1.0
    decimals = int(np.clip(2 - np.floor(np.log10(longest)), 0, 9))
    ends = np.nan_to_num(np.stack([mean, mean - std, mean + std], 1) / longest * 100).clip(0, 100).round(2).tolist()
    return [
        {
            "name": str(rows[i]["name"]),
            "text": format_value(None) if np.isnan(mean[i]) else f"{mean[i]:z,.{decimals}f}",
            **dict(zip(("length", "low", "high"), ends[i], strict=True)),
        }
        for i in np.argsort(-mean, kind="stable").tolist()
    ]


@dataclass(frozen=True)
class Section:
    """A heading, what it says, and what shows it; rows of a table are mappings from heading to value."""

    title: str
    text: str
    rows: Sequence[Mapping[str, Any]] = ()
    charts: Sequence[Chart] = ()


def write_page(path: Path, title: str, created_utc: str, notes: Sequence[str], sections: Sequence[Section]) -> None:
    """Write the page to `path`, whole or not at all."""
    atomic_write(path, render_page(title, created_utc, notes, sections).encode("utf-8", "replace"))


def render_page(title: str, created_utc: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as HTML text. created_utc: ISO 8601. Ids of the charts must differ between sections."""
    return template("tune.html.jinja").render(
        title=title,
        created_utc=created_utc,
        notes=notes,
        sections=[(section, table(section.rows)) for section in sections],
    )
