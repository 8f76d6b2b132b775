"""Parts of the HTML that notebooks show. Colours follow the notebook's text colour, so that dark themes work too.

Every text is escaped, but for `Markup`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from markupsafe import Markup, escape

from gigabatch.pipeline.display import html_table

# The variables that charts are drawn in (pipeline/reports/charts.py); the four series are seen on white and on black.
COLORS = {
    "--ink": "currentColor",
    "--muted": "color-mix(in srgb, currentColor 65%, transparent)",
    "--grid": "color-mix(in srgb, currentColor 18%, transparent)",
    "--card": "transparent",
    "--series-1": "#3d7fc4",
    "--series-2": "#cf7a32",
    "--series-3": "#359a7d",
    "--series-4": "#a06bb0",
}
STYLE = ";".join(f"{name}:{value}" for name, value in COLORS.items())
BAR, TRACK = "#3d7fc4", "rgba(128,128,128,.22)"
MOST_CHARACTERS = 60  # of a value among others
ROWS_SHOWN = 25  # of a long table


def block(*parts: str) -> str:
    """Parts below each other, in which charts find their colours."""
    return f'<div style="{STYLE}">{"".join(parts)}</div>'


def beside(parts: Sequence[str]) -> Markup:
    """Parts next to each other, as many as there is room for; one alone is larger."""
    width_em = 18 if len(parts) > 1 else 30
    cell = Markup(f'<div style="flex:1 1 {width_em}em;max-width:{width_em + 10}em;min-width:0">')
    inner = Markup("").join(cell + Markup(part) + Markup("</div>") for part in parts)
    return Markup('<div style="display:flex;flex-wrap:wrap;gap:1em 1.5em;margin:.6em 0">') + inner + Markup("</div>")


def heading(title: str, text: str = "") -> Markup:
    """A line in bold, and what is said of it."""
    return Markup(
        '<div style="margin:.2em 0"><b style="font-weight:600">{}</b> <span style="opacity:.75">{}</span></div>'
    ).format(title, text)


def links(places: Mapping[str, Path]) -> Markup:
    """Links to those of these files and folders that are there, relative to the working folder as notebooks read
    them."""
    found = [
        Markup('<a href="{}" target="_blank">{}</a>').format(quote(Path(os.path.relpath(path)).as_posix()), name)
        for name, path in places.items()
        if path.exists()
    ]
    return Markup('<div style="margin:.3em 0">') + Markup(" · ").join(found) + Markup("</div>")


def folded_table(rows: Sequence[Mapping[str, object]]) -> Markup:
    """A table of these rows, of which those after the first `ROWS_SHOWN` open on a click."""
    shown, rest = rows[:ROWS_SHOWN], rows[ROWS_SHOWN:]
    if not rest:
        return Markup(html_table(shown))
    more = Markup("<details><summary>{} more</summary>{}</details>").format(len(rest), Markup(html_table(rest)))
    return Markup(html_table(shown)) + more


def short(value: object, most: int = MOST_CHARACTERS) -> str:
    """The text of a value, cut where it is longer than `most` characters."""
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def percent(share: float) -> str:
    """3.2 %, and <0.1 % for what is not quite nothing, >99.9 % for what is not quite all."""
    few = "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.3g} %"
    return ">99.9 %" if 0.9995 <= share < 1 else few


def share_bar(share: float) -> Markup:
    """A share in [0, 1] as a bar and a percentage; nothing is a plain 0 %."""
    if not share:
        return Markup('<span style="opacity:.6">0 %</span>')
    return Markup(
        '<span style="white-space:nowrap"><span style="display:inline-block;width:4em;height:.5em;background:{};'
        'border-radius:.2em;margin-right:.5em"><span style="display:block;width:{:.1f}%;height:100%;background:{};'
        'border-radius:.2em"></span></span>{}</span>'
    ).format(TRACK, 100 * share, BAR, percent(share))


def histogram_bars(counts: Sequence[int], title: str) -> Markup:
    """Small columns of these heights, [bins]; `title` is told under the pointer."""
    heights = np.asarray(counts, float) / max(max(counts, default=0), 1)
    bars = "".join(
        f'<rect x="{4 * place}" y="{18 - max(18 * height, 0.8 if height else 0):.1f}" width="3.4" '
        f'height="{max(18 * height, 0.8 if height else 0):.1f}"></rect>'
        for place, height in enumerate(heights.tolist())
    )
    return Markup(
        '<svg viewBox="0 0 {width} 19" width="{width}" height="19" fill="{color}" style="vertical-align:middle" '
        'role="img" aria-label="{title}"><title>{title}</title>{bars}'
        '<rect x="0" y="18.4" width="{width}" height=".6" fill="currentColor" opacity=".4"></rect></svg>'
    ).format(width=4 * len(heights), color=BAR, title=title, bars=Markup(bars))


def stacked_bar(shares: Sequence[float], title: str) -> Markup:
    """Shares in falling order as parts of one bar, paler and paler; what they lack of 1 is the track."""
    parts = "".join(
        f'<span style="width:{100 * share:.2f}%;background:{BAR};opacity:{max(1 - 0.2 * place, 0.2):.2f};'
        'box-shadow:inset -1px 0 rgba(255,255,255,.6)"></span>'
        for place, share in enumerate(shares)
    )
    return Markup(
        '<span title="{}" style="display:inline-flex;width:80px;height:.8em;background:{};vertical-align:middle">'
        "{}</span>"
    ).format(title, TRACK, Markup(parts))


def bars(rows: Sequence[tuple[str, float, str]], color: str = BAR) -> Markup:
    """A row of (name, length in [0, 1], text) each: name, bar, text."""
    found = Markup("").join(
        Markup(
            '<div style="display:contents"><span style="overflow-wrap:anywhere;max-width:14em">{}</span>'
            '<span style="background:{};'
            'height:.6em;align-self:center;border-radius:.2em"><span style="display:block;height:100%;width:{:.1f}%;'
            'background:{};border-radius:.2em"></span></span><span style="text-align:right;'
            'font-variant-numeric:tabular-nums">{}</span></div>'
        ).format(name, TRACK, 100 * min(max(length, 0.0), 1.0), color, text)
        for name, length, text in rows
    )
    grid = "display:grid;grid-template-columns:fit-content(14em) minmax(3em,1fr) max-content;gap:.15em .8em"
    return Markup(f'<div style="{grid};line-height:1.5">') + found + Markup("</div>")


def figure(title: str, body: str, note: str = "", legend: Sequence[tuple[str, str]] = ()) -> Markup:
    """A drawing under its title; legend: pairs of a label and the variable of its colour."""
    keys = Markup("").join(
        Markup(
            '<span style="margin-left:.9em;white-space:nowrap">'
            '<span style="display:inline-block;width:.7em;height:.7em;'
            'border-radius:.2em;background:var({})"></span> {}</span>'
        ).format(variable, escape(label))
        for label, variable in legend
    )
    return Markup(
        '<div><div style="margin-bottom:.3em"><b style="font-weight:600">{}</b>{}'
        '<span style="opacity:.7;margin-left:.9em">{}</span></div>{}</div>'
    ).format(title, keys, note, Markup(body))
