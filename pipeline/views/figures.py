"""Figures: what a notebook draws and Python keeps, with the charts of the report (pipeline/reports/charts.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from gigabatch.pipeline.display import format_value, importance_text, is_number, metric_label
from gigabatch.pipeline.store.files import atomic_write, behind_links
from gigabatch.pipeline.views.parts import bars, beside, block, figure

MOST_BARS = 25
_number = count()


@dataclass(frozen=True)
class Figure:
    """Show drawings next to each other, at the end of a cell or in a file.

    Parameters
    ----------
    parts
        HTML of each drawing with its title.
    """

    parts: tuple[Markup, ...]

    def _repr_html_(self) -> str:
        return block(beside(self.parts))

    def save(self, path: str | Path) -> None:
        """Write a page that needs no other file to `path`, whole or not at all."""
        head = '<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        body = f'<body style="font:14px/1.5 system-ui,sans-serif;margin:1.5em">{self._repr_html_()}</body>'
        atomic_write(behind_links(Path(path)), f"{head}<title>Figure</title>{body}\n".encode())

    def __repr__(self) -> str:
        titles = [match[1] for part in self.parts for match in re.finditer(r"<b[^>]*>(.*?)</b>", part)]
        return f"Figure({', '.join(map(unescape, titles))})"


class Drawn(list[dict[str, Any]]):
    """Rows, as a list of mappings, that a notebook shows as a figure: a run's `curve`, `importance`, `calibration`.

    Parameters
    ----------
    rows
        The mappings, for `pandas.DataFrame` and the like.
    draw
        Makes the figure of them.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], draw: Callable[[Sequence[Mapping[str, Any]]], Figure]) -> None:
        super().__init__(rows)
        self._draw = draw

    def figure(self) -> Figure:
        """The rows as a drawing."""
        return self._draw(self)

    def _repr_html_(self) -> str:
        return self.figure()._repr_html_()


def learning_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Every quantity of a learning curve by step."""
    from gigabatch.pipeline.reports.charts import learning_charts

    numbers = [
        {name: value for name, value in row.items() if value is None or is_number(value) or name == "member"}
        for row in rows
    ]
    return Figure(tuple(map(_drawn, learning_charts(numbers)))) if numbers else nothing("no epoch was trained")


def loss_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The losses of a learning curve alone."""
    kept = ("step", "epoch", "member", "train_loss", "valid_loss")
    return learning_figure([{name: row[name] for name in kept if name in row} for row in rows])


def importance_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """How much a metric drops where a column is shuffled, the most important ones first. rows: `name`, `mean`, `std`
    (None of a single shuffling), `metric`."""
    if not rows:
        return nothing("importance was not measured (evaluate.importance)")
    shown = rows[:MOST_BARS]
    longest = max([row["mean"] for row in shown if row["mean"] is not None], default=0.0)
    decimals = int(np.clip(2 - np.floor(np.log10(longest)), 0, 6)) if longest > 0 else 3
    drawn = bars([(row["name"], _share(row["mean"], longest), _mean_text(row, decimals)) for row in shown])
    more = f", {len(rows) - len(shown)} more columns" if len(rows) > len(shown) else ""
    note = f"{importance_text(str(rows[0]['metric']))} where a column is shuffled, ± its deviation{more}"
    return Figure((figure("Importance", drawn, note),))


def calibration_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The observed share of positives by prediction, of each target. rows: `target`, `predicted`, `observed`,
    `rows`."""
    from gigabatch.pipeline.reports.charts import Calibration, calibration_chart

    if not rows:
        return nothing("no target has classes, or negatives are drawn, whose share says nothing")
    parts = []
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        bins = Calibration(*(_floats(own, name) for name in ("predicted", "observed", "rows")))
        parts.append(_drawn(calibration_chart(bins, _key(), f"Calibration of {target}")))
    return Figure(tuple(parts))


def curves(runs: Mapping[str, Any], quantity: str = "valid_loss", by: str = "epoch") -> Figure:
    """Compare learning curves.

    Parameters
    ----------
    runs
        By the name that is shown: runs, or rows as `Run.curve` has them. As many as there are colours, 4.
    quantity
        A key of the rows: `valid_loss`, `train_loss`, `lr`.
    by
        A key of the rows that they are drawn over: `epoch` or `step`.

    Returns
    -------
    Figure
        One chart with a line a run.

    Raises
    ------
    ValueError
        For no or too many runs, and a run whose rows have no such quantity; the message lists what there is.

    Examples
    --------
    >>> from gigabatch import curves
    >>> small, large = [{"epoch": 1, "valid_loss": 0.5}], [{"epoch": 1, "valid_loss": 0.4}]
    >>> figure = curves({"batch 256": small, "batch 8,192": large})
    >>> figure
    Figure(Valid loss by epoch)
    >>> figure.save("curves.html")
    """
    from gigabatch.pipeline.reports.charts import SERIES, Curves, curves_chart

    if not 0 < len(runs) <= len(SERIES):
        raise ValueError(f"curves: 1 to {len(SERIES)} runs can be told apart by colour, found {len(runs)}.")
    points = {}
    for name, run in runs.items():
        rows = getattr(run, "curve", run)
        points[name] = {
            row[by]: row[quantity] for row in rows if is_number(row.get(by)) and is_number(row.get(quantity))
        }
        if not points[name]:
            known = sorted({key for row in rows for key, value in row.items() if is_number(value)})
            raise ValueError(
                f"curves: {name} has no {quantity} by {by}. Its rows have: {', '.join(known) or 'nothing'}."
            )
    x = sorted({place for own in points.values() for place in own})
    lines = {name: [own.get(place, np.nan) for place in x] for name, own in points.items()}
    chart = curves_chart(Curves(x, lines, by), f"{metric_label(quantity)} by {by}", _key())
    return Figure((_drawn(chart),))


def nothing(reason: str) -> Figure:
    """A figure that says why there is none."""
    return Figure((Markup('<div style="opacity:.75">Nothing to draw: {}.</div>').format(reason),))


def _drawn(chart: Any) -> Markup:
    """A `reports.charts.Chart` as HTML whose ids are those of no other drawing of the page."""
    svg = str(chart.svg)
    key = _key()
    for name in set(re.findall(r' id="([^"]+)"', svg)):
        svg = re.sub(rf'(id="|#){re.escape(name)}(?=[")])', rf"\g<1>{key}-{name}", svg)
    style = "display:block;width:100%;height:auto;max-width:30em;font:10px system-ui,sans-serif"
    return figure(chart.title, svg.replace("<svg ", f'<svg style="{style}" ', 1), chart.note, chart.legend)


def _key() -> str:
    return f"drawing{next(_number)}"


def _mean_text(row: Mapping[str, Any], decimals: int) -> str:
    if row["mean"] is None:
        return format_value(None)
    deviation = "" if row["std"] is None else f" ± {row['std']:.{decimals}f}"  # of a single shuffling there is none
    return f"{row['mean']:z.{decimals}f}{deviation}"


def _share(value: float | None, longest: float) -> float:
    return value / longest if value is not None and longest > 0 else 0.0


def _floats(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], float)
