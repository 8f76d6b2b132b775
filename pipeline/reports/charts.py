"""Charts as inline SVG whose colours are CSS variables of the page, so that dark mode and print recolour them.

Matplotlib draws with its object-oriented API in colours that each stand for a variable; `_svg` puts the variable in
their place, leaves fonts to the page and makes ids unique. No text of a user's data enters the drawing but names of
models: titles and legends are HTML beside it.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

if TYPE_CHECKING:  # a third of a second, which only a command that draws should wait for
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

from gigabatch.pipeline.display import is_number, metric_label

MAX_POINTS = 1000  # of a scatter chart
LONG_TICKS = 10_000
SERIES = ("--series-1", "--series-2", "--series-3", "--series-4")
VARIABLES = {"#010101": "--ink", "#020202": "--muted", "#030303": "--grid", "#040404": "--card"}
VARIABLES |= {f"#0{5 + i}0{5 + i}0{5 + i}": name for i, name in enumerate(SERIES)}
INK, MUTED, GRID, CARD, *LINES = VARIABLES
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gigabatch",
    "font.size": 10,  # of a chart 288 units wide; the page repeats it
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 1.0,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.constrained_layout.use": True,
}
USUAL, WIDE, LOW = (4.0, 2.7), (10.0, 2.9), (10.0, 1.7)  # inches: of a chart beside others, and alone in a row
LINE: dict[str, Any] = {"linewidth": 1.7, "solid_capstyle": "round", "solid_joinstyle": "round"}


@dataclass(frozen=True)
class Roc:
    """False and true positive rates in rising order, shape [points] each, and the area under them."""

    fpr: ArrayLike
    tpr: ArrayLike
    auc: float | None = None


@dataclass(frozen=True)
class Calibration:
    """Per bin, shape [bins] each: mean prediction, observed fraction of positives, and rows, or the sum of their
    weights. NaN marks an empty bin. low, high: ends of the fraction's interval; empty where none is drawn."""

    predicted: ArrayLike
    observed: ArrayLike
    count: ArrayLike
    low: ArrayLike = ()
    high: ArrayLike = ()


@dataclass(frozen=True)
class Means:
    """Per bin, shape [bins] each: mean prediction, and the mean residual with the ends of its interval."""

    predicted: ArrayLike
    residual: ArrayLike
    low: ArrayLike
    high: ArrayLike


@dataclass(frozen=True)
class Gains:
    """What is found among the rows of the highest scores: shares of rows, rising to 1, and the shares of positives
    among them, shape [points] each; and the recalls and precisions of all thresholds, shape [thresholds] each."""

    share: ArrayLike
    recall: ArrayLike
    thresholds_recall: ArrayLike
    precision: ArrayLike
    positive_rate: float
    average_precision: float | None = None


@dataclass(frozen=True)
class Histogram:
    """Bin edges, shape [bins + 1], and the rows in each bin, or the sum of their weights, shape [bins], by series (a
    label, or "rows")."""

    edges: ArrayLike
    counts: Mapping[str, ArrayLike]


@dataclass(frozen=True)
class Chart:
    """A drawing with its HTML parts; `legend` pairs a label with the CSS variable of its colour. wide: the same for a
    whole row of the page, where there is room for one."""

    title: str
    svg: Markup
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""
    wide: Markup | None = None


def learning_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """A chart per quantity over `step` (else `epoch`, else the row number), with a line per split, and where rows tell
    the `member` of an ensemble that they are of, per member; the train lines of several are means of epochs.

    A value that is absent or None was not measured; one that is NaN or infinite is counted in the chart's note.
    """
    axis = next((key for key in ("step", "epoch") if any(key in row for row in rows)), "row")
    x = _floats(row.get(axis, number) for number, row in enumerate(rows, 1))
    members = [row.get("member") for row in rows]
    several = len(dict.fromkeys(members)) > 1
    keys = dict.fromkeys(key for row in rows for key in row if key not in ("step", "epoch", "member"))
    quantities: dict[str, dict[str, np.ndarray]] = {}
    series: dict[str, str] = {}
    lost: Counter[str] = Counter()
    for key in keys:
        split, _, quantity = key.partition("_")
        if split not in ("train", "valid", "test"):
            split, quantity = "", key
        y = _floats(row.get(key) for row in rows)
        if np.isfinite(x + y).any():
            # What is of no split, such as the rate, is the same for all.
            for member in list(dict.fromkeys(members))[: None if split else 1]:
                name = f"{split} {member}" if several and split else split
                own = np.where([other == member for other in members], y, np.nan)
                if several and split == "train":
                    own = _means_of_epochs(rows, own)
                quantities.setdefault(quantity, {})[name] = own
                series[name] = split
            lost[quantity] += sum(is_number(row.get(key)) and not np.isfinite(row[key]) for row in rows)
    charts = []
    for number, (quantity, lines) in enumerate(quantities.items()):
        notes = ["a line a member"] if len(lines) > len({series[name] for name in lines}) else []
        notes += [f"not finite: {lost[quantity]} of the values"] if lost[quantity] else []
        curves, title = Curves(x, lines, axis, series=series), f"{metric_label(quantity)} by {axis}"
        chart = curves_chart(curves, title, f"curve{number}")
        wide = curves_chart(curves, title, f"wide{number}", WIDE if number == 0 else LOW)
        charts.append(replace(chart, note="; ".join(notes), wide=wide.svg))
    return charts


def _means_of_epochs(rows: Sequence[Mapping[str, Any]], y: np.ndarray) -> np.ndarray:
    """y [rows] of which each epoch's last known value is the mean of those that are finite, and no other is left."""
    epoch = np.ceil(_floats(row.get("epoch") for row in rows) - 1e-9)
    found = np.full(len(y), np.nan)
    for one in np.unique(epoch[np.isfinite(epoch + y)]):
        own = np.flatnonzero((epoch == one) & np.isfinite(y))
        found[own[-1]] = y[own].mean()
    return found if np.isfinite(found).any() else y


def roc_chart(roc: Roc, key: str) -> Chart:
    """ROC curve with the diagonal of chance. `key` makes the ids of a chart unique on its page."""
    fpr, tpr = np.asarray(roc.fpr, float), np.asarray(roc.tpr, float)
    keep = _evenly(len(fpr), MAX_POINTS)
    with _styled():
        ax = _axes("false positive rate", "true positive rate")
        ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, dashes=(3, 3))
        ax.fill_between(fpr[keep], tpr[keep], color=LINES[0], alpha=0.1, linewidth=0)
        ax.plot(fpr[keep], tpr[keep], color=LINES[0], **LINE)
        ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
        known = roc.auc is not None and np.isfinite(roc.auc)
        return Chart("ROC curve", _svg(ax, "ROC curve", key), note=f"AUC {roc.auc:.4f}" if known else "")


def precision_recall_chart(gains: Gains, key: str) -> Chart:
    """Precision by recall, and as a dashed line the precision of flagging rows by chance."""
    recall, precision = np.asarray(gains.thresholds_recall, float), np.asarray(gains.precision, float)
    area = gains.average_precision
    with _styled():
        ax = _axes("recall", "precision")
        ax.axhline(gains.positive_rate, color=MUTED, linewidth=0.8, dashes=(3, 3))
        ax.plot(recall, precision, color=LINES[0], **LINE)
        ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
        title = "Precision and recall"
        note = f"average precision {area:.4f}, by chance {gains.positive_rate:.4f}" if area is not None else ""
        return Chart(title, _svg(ax, title, key), note=note)


def gains_chart(gains: Gains, key: str) -> Chart:
    """Share of the positives found by share of rows, and the dashed diagonal of chance; the grey edge is perfect."""
    share, recall = (np.concatenate([[0.0], np.asarray(part, float)]) for part in (gains.share, gains.recall))
    with _styled():
        ax = _axes("share of rows, highest scores first", "share of positives found")
        ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, dashes=(3, 3))
        ax.plot([0, gains.positive_rate, 1], [0, 1, 1], color=MUTED, linewidth=0.8)
        ax.plot(share, recall, color=LINES[0], **LINE)
        _percent(ax.xaxis)
        _percent(ax.yaxis)
        ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
        found = float(np.interp(0.1, share, recall))
        return Chart(
            "Gains", _svg(ax, "Gains", key), note=f"10 % of the rows hold {100 * found:.0f} % of the positives"
        )


def lift_chart(gains: Gains, key: str) -> Chart:
    """How many times more positives than by chance are among the rows of the highest scores."""
    share, recall = np.asarray(gains.share, float), np.asarray(gains.recall, float)
    with _styled():
        ax = _axes("share of rows, highest scores first", "lift")
        ax.axhline(1, color=MUTED, linewidth=0.8, dashes=(3, 3))
        ax.plot(share, recall / share, color=LINES[0], **LINE)
        _percent(ax.xaxis)
        ax.set(xlim=(-0.01, 1.01))
        ax.set_ylim(bottom=0)
        lift = float(np.interp(0.1, share, recall)) / 0.1
        return Chart("Lift", _svg(ax, "Lift", key), note=f"{lift:.2f} times in the highest 10 %")


def residual_chart(means: Means, key: str) -> Chart:
    """Mean residual by mean prediction of each part of the rows, with intervals; at 0 predictions are right on
    average."""
    x, y, low, high = (np.asarray(part, float) for part in (means.predicted, means.residual, means.low, means.high))
    with _styled():
        ax = _axes("mean prediction", "mean of actual − predicted")
        ax.axhline(0, color=MUTED, linewidth=0.8, dashes=(3, 3))
        ax.plot(x, y, color=LINES[0], linewidth=1.0, alpha=0.6)
        ax.vlines(x, low, high, color=LINES[0], linewidth=1.7)
        ax.plot(x, y, "o", color=LINES[0], markersize=4.4, markeredgecolor=CARD)
        title = "Residuals by prediction"
        return Chart(title, _svg(ax, title, key), note="tenths of the rows; bars: 95 % intervals")


def _percent(axis: Any) -> None:
    from matplotlib import ticker

    axis.set_major_formatter(ticker.FuncFormatter(lambda share, _: f"{100 * share:g} %"))


def calibration_chart(calibration: Calibration | Mapping[str, Calibration], key: str, title: str = "") -> Chart:
    """Observed fraction of positives against mean prediction; a point's area is its bin's share of rows. Of several
    models, by name, each has its line."""
    models = {"": calibration} if isinstance(calibration, Calibration) else calibration
    top, bins, with_intervals = 0.05, [], False
    for item in models.values():
        predicted, observed, count = (np.asarray(part, float) for part in (item.predicted, item.observed, item.count))
        known = np.isfinite(predicted + observed) & (count > 0)
        ends = [np.asarray(end, float)[known] for end in (item.low, item.high) if len(np.asarray(end))]
        bins.append((predicted[known], observed[known], count[known], ends))
        top = max([top, *predicted[known], *observed[known], *(ends[1] if ends else ())])
        with_intervals = with_intervals or bool(ends)
    top = min(1.0, 1.08 * top)
    with _styled():
        ax = _axes("mean prediction", "observed fraction")
        ax.plot([0, top], [0, top], color=MUTED, linewidth=0.8, dashes=(3, 3))
        for color, (predicted, observed, count, ends) in zip(_colors(models), bins, strict=True):
            if ends:
                ax.vlines(predicted, *ends, color=color, linewidth=1.4)
            ax.plot(predicted, observed, color=color, linewidth=1.0, alpha=0.6)
            area = 8 + 90 * count / max([*count, 1])
            ax.scatter(predicted, observed, s=area, color=color, edgecolor=CARD, linewidth=0.8, zorder=3)
        ax.set(xlim=(-0.02 * top, 1.02 * top), ylim=(-0.02 * top, 1.02 * top))
        legend = _legend(models) if len(models) > 1 else ()
        note = "area: rows of the bin" + ("; bars: 95 % intervals" if with_intervals else "")
        return Chart(title or "Calibration", _svg(ax, "Calibration", key), legend, note=note)


def histogram_chart(histogram: Histogram, title: str, axis: str, key: str) -> Chart:
    """Each series as its share of rows per bin, so that a rare label is as visible as a common one."""
    with _styled():
        ax = _axes(axis, "share of rows")
        for color, counts in zip(_colors(histogram.counts), histogram.counts.values(), strict=True):
            share = np.nan_to_num(np.asarray(counts, float))
            share = share / (share.sum() or 1)
            ax.stairs(share, np.asarray(histogram.edges, float), fill=True, color=color, alpha=0.18, linewidth=0)
            ax.stairs(share, np.asarray(histogram.edges, float), color=color, linewidth=1.4)
        _percent(ax.yaxis)
        return Chart(title, _svg(ax, title, key), _legend(histogram.counts) if len(histogram.counts) > 1 else ())


def scatter_chart(predicted: ArrayLike, actual: ArrayLike, key: str) -> Chart:
    """Actual against predicted values: at most `MAX_POINTS` rows, evenly spaced over those with finite values."""
    x, y = np.asarray(predicted, float), np.asarray(actual, float)
    known = np.flatnonzero(np.isfinite(x + y))
    shown = known[_evenly(len(known), MAX_POINTS)]
    with _styled():
        ax = _axes("predicted", "actual")
        ends = [min([*x[shown], *y[shown]], default=0.0), max([*x[shown], *y[shown]], default=1.0)]
        ax.plot(ends, ends, color=MUTED, linewidth=0.8, dashes=(3, 3))
        ax.plot(x[shown], y[shown], ".", color=LINES[0], alpha=0.35, markersize=4, markeredgewidth=0)
        title = "Predicted and actual"
        return Chart(title, _svg(ax, title, key), note=f"{len(shown):,} of {len(x):,} rows")


def _styled() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def _axes(xlabel: str, ylabel: str = "", size: tuple[float, float] = USUAL) -> Axes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    FigureCanvasSVG(figure)
    ax = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    ax.patch.set_visible(False)
    figure.patch.set_visible(False)
    return ax


def _svg(ax: Axes, title: str, key: str) -> Markup:
    """Inline SVG of the axes' figure: described by `title`, ids beginning with `key`, colours as CSS variables."""
    from matplotlib import ticker
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for axis in (ax.xaxis, ax.yaxis):  # 12.5k, as long numbers run into each other
        if (
            type(axis.get_major_formatter()) is ticker.ScalarFormatter
            and max(map(abs, axis.get_view_interval())) >= LONG_TICKS
        ):
            axis.set_major_formatter(ticker.EngFormatter(sep=""))
    buffer = io.StringIO()
    figure = ax.get_figure(root=True)
    assert figure is not None
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasSVG)
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    figure.set_layout_engine("none")  # print_figure would draw all once more to find the layout
    canvas.print_figure(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(buffer.getvalue())
    used = set(re.findall(r'#([\w.-]+)[")]', buffer.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}style"):
                parent.remove(child)  # rules of an inline <style> would hold for the whole page
    for element in root.iter():
        _adapt(element, key, used)
    width, height = root.get("viewBox", "").split()[2:]
    root.attrib = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": title}
    root.insert(0, ElementTree.Element("title"))
    root[0].text = title
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _adapt(element: ElementTree.Element, key: str, used: set[str]) -> None:
    """Drop namespaces, fonts and unused ids; prefix the used ids; name colours by their variables."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    if "id" in attributes:
        identity = attributes.pop("id")
        attributes |= {"id": f"{key}-{identity}"} if identity in used else {}
    for name in ("href", "clip-path"):
        if name in attributes:
            attributes[name] = attributes[name].replace("#", f"#{key}-")
    if "style" in attributes:
        style = re.sub(r"\b(font|font-size|font-family): [^;]*;? ?", "", attributes["style"])
        attributes["style"] = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var({VARIABLES[match[0]]})", style)
    element.attrib = attributes


def _colors(series: Mapping[str, Any]) -> list[str]:
    return [LINES[i % len(LINES)] for i in range(len(series))]


def _legend(series: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), VARIABLES[color]) for name, color in zip(series, _colors(series), strict=True))


def _floats(values: Any) -> np.ndarray:
    """float64 array; what is no number becomes NaN."""
    return np.asarray([value if is_number(value) else np.nan for value in values], dtype=np.float64)


def _evenly(length: int, most: int) -> np.ndarray:
    """At most `most` positions of 0..length-1, evenly spaced, with both ends."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)) if length else np.arange(0)


@dataclass(frozen=True)
class Curves:
    """Lines over a common x, shape [points] each; what is not finite is not drawn. marks: named points (x, y).

    log_x, log_y: logarithmic axes, on which only what is above zero is drawn. series: by name of a line what it is one
    of several of, which share a colour and an entry of the legend.
    """

    x: ArrayLike
    lines: Mapping[str, ArrayLike]
    xlabel: str
    ylabel: str = ""
    marks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    series: Mapping[str, str] = field(default_factory=dict)


def curves_chart(curves: Curves, title: str, key: str, size: tuple[float, float] = USUAL) -> Chart:
    """A line a series and a large dot a mark, each named in the legend. `key` makes the chart's ids unique; size: width
    and height in inches, of which 4 are as wide as a third of a page."""
    from matplotlib import ticker

    x = np.asarray(curves.x, float)
    shown = {name: curves.series.get(name, name) for name in [*curves.lines, *curves.marks]}
    named = dict.fromkeys(shown.values())
    colors = dict(zip(named, _colors(named), strict=True))
    line = LINE if len(named) == len(shown) else LINE | {"linewidth": 1.1}

    def plain(value: float, _: int) -> str:
        return ticker.EngFormatter(sep="")(value) if value >= 1 else f"{value:g}"

    with _styled():
        ax = _axes(curves.xlabel, curves.ylabel, size)
        for name, values in curves.lines.items():
            y = np.asarray(values, float)
            known = np.isfinite(x + y) & ((x > 0) | (not curves.log_x)) & ((y > 0) | (not curves.log_y))
            marker = "o" if known.sum() <= 30 else ""
            ax.plot(x[known], y[known], color=colors[shown[name]], marker=marker, markersize=2.6, **line)
        for name, (at, height) in curves.marks.items():
            ax.plot([at], [height], "o", color=colors[shown[name]], markersize=7, markeredgecolor=CARD, zorder=3)
        for axis, logarithmic in ((ax.xaxis, curves.log_x), (ax.yaxis, curves.log_y)):
            if logarithmic:
                (ax.set_xscale if axis is ax.xaxis else ax.set_yscale)("log")
                low, high = axis.get_view_interval()
                axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
                axis.set_major_formatter(ticker.FuncFormatter(plain))
                axis.set_minor_locator(ticker.NullLocator())
            elif axis is ax.xaxis:
                axis.set_major_locator(ticker.MaxNLocator(6 if size == USUAL else 12, integer=True))
                axis.set_major_formatter(ticker.EngFormatter(sep=""))
            else:
                axis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
                if size == LOW:
                    axis.set_major_locator(ticker.MaxNLocator(4))
        return Chart(title, _svg(ax, title, key), _legend(named) if len(named) > 1 or "" not in named else ())


def mean_curve(losses: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Mean over trainings of each epoch's loss, of as many epochs as every one has."""
    return tuple(float(np.mean(epoch)) for epoch in zip(*losses, strict=False))


def loss_chart(curves: Mapping[str, Sequence[float]], title: str, key: str) -> Chart:
    """Valid loss by epoch, a line a series, which may differ in length."""
    epochs = max(map(len, curves.values()))
    lines = {name: [*losses, *[np.nan] * (epochs - len(losses))] for name, losses in curves.items()}
    return curves_chart(Curves(range(1, epochs + 1), lines, "epoch", "valid loss"), title, key)


def intervals_chart(
    rows: Sequence[tuple[str, Sequence[float], float, float | None]], title: str, axis: str, key: str, note: str
) -> Chart:
    """A line a row of (name, values, mean, half of the interval's width or None): rings, a dot and a bar."""
    from matplotlib import ticker

    with _styled():
        ax = _axes(axis, size=(USUAL[0], 0.7 + 0.25 * len(rows)))
        for place, (_, values, mean, half) in enumerate(rows):
            ax.plot(
                values, [place] * len(values), "o", color=MUTED, fillstyle="none", markersize=4.4, markeredgewidth=0.8
            )
            ax.errorbar([mean], [place], xerr=half, fmt="o", color=LINES[0], markersize=7, elinewidth=1.7)
            ax.text(1.03, place, f"{mean:.4g}", va="center", transform=ax.get_yaxis_transform())
        ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(visible=False, axis="y")
        ax.xaxis.set_major_locator(ticker.MaxNLocator(4))
        ax.xaxis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
        return Chart(title, _svg(ax, title, key), note=note)


def stacked_chart(x: ArrayLike, parts: Mapping[str, ArrayLike], axes: tuple[str, str], title: str, key: str) -> Chart:
    """A column at each x [points], of the parts [points] on top of each other; one that is not finite counts as 0.

    axes: their labels. parts: at most as many as there are colours.
    """
    from matplotlib import ticker

    place, bottom = np.asarray(x, float), np.zeros(np.shape(x))
    with _styled():
        ax = _axes(*axes)
        for color, values in zip(_colors(parts), parts.values(), strict=True):
            height = np.nan_to_num(np.asarray(values, float), posinf=0.0, neginf=0.0)
            ax.bar(place, height, 0.8, bottom, color=color, linewidth=0)
            bottom = bottom + height
        ax.grid(visible=False, axis="x")
        ax.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
        return Chart(title, _svg(ax, title, key), _legend(parts))
