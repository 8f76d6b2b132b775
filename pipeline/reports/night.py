"""Pages about nights: one night, and the list of them. `gigabatch.pipeline.nightly.pages` says what stands on them.

The pages need no network, no JavaScript and no other file. Whatever comes from data (names of files, columns, runs and
values, decisions) is text wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gigabatch.pipeline.display import format_value
from gigabatch.pipeline.reports.charts import Chart
from gigabatch.pipeline.reports.report import (
    ROWS_SHOWN,
    SIGNED,
    Table,
    breakable,
    is_finite,
    signed_text,
    table,
    template,
)

LARGEST = 1e18  # in charts
CARDS_SHOWN = 9  # of many columns; the rest is folded
DRIFT_AT = 0.6  # of a bar's length: where the level of drift stands
BARS = ("seconds", "share", "never_trained_share")
FRACTIONS = ("share", "never_trained_share")


@dataclass(frozen=True)
class Gain:
    """A gain with its interval, more is better. low, high: its ends; None where one is not known. tolerated: how far
    below zero `low` may lie; None where nobody says."""

    name: str
    metric: str
    gain: float
    low: float | None
    high: float | None
    tolerated: float | None


@dataclass(frozen=True)
class Bar:
    """One measure of a column. levels: from where on it warns, and counts as drift. verdict: ok, warn or drift."""

    measure: str
    value: float
    levels: tuple[float, float]
    verdict: str


@dataclass(frozen=True)
class Card:
    """A column with its measures; verdict: the worst of them."""

    column: str
    verdict: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Square:
    """A night in the row of the last ones. kind: yes, no, or empty for neither; link: its page, where there is one."""

    letter: str
    kind: str
    title: str
    link: str | None


@dataclass(frozen=True)
class Part:
    """Part of a section; what is empty is left out. rows: of a table, with the address `links` of each row's first
    cell."""

    title: str = ""
    text: str = ""
    items: Sequence[str] = ()
    gains: Sequence[Gain] = ()
    cards: Sequence[Card] = ()
    squares: Sequence[Square] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    links: Sequence[str | None] = ()
    charts: Sequence[Chart] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing but headings would be there."""
        return not (
            self.items or self.gains or self.cards or self.squares or self.rows or self.charts or self.facts
        ) and not (self.text and not self.title)


@dataclass(frozen=True)
class Section:
    """A heading and its parts; key: its name in links."""

    key: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class NightPage:
    """A page. mark: of the night that it is of; at: the time of its line, ISO 8601; good: None where the night is
    neither good nor bad; links: pairs of text and address."""

    title: str
    mark: str
    at: str
    verdict: str
    good: bool | None
    decision: str
    sections: Sequence[Section]
    links: Sequence[tuple[str, str]] = ()


def render_night(page: NightPage) -> str:
    """The page as HTML text: equal data give equal text. Sections without content are left out."""
    sections = [replace(item, parts=[part for part in item.parts if not part.empty]) for item in page.sections]
    return template("night.html.jinja").render(
        page=page,
        sections=[section for section in sections if section.parts],
        table=_table,
        gains=gain_bars,
        length=bar_length,
        drift_at=100 * DRIFT_AT,
        breakable=breakable,
        format=format_value,
        rows_shown=ROWS_SHOWN,
        cards_shown=CARDS_SHOWN,
    )


def _table(part: Part) -> Table:
    found = table(part.rows, bars=BARS, signed=SIGNED, fractions=FRACTIONS)
    if not part.links:
        return found
    rows = [[replace(row[0], link=link), *row[1:]] for row, link in zip(found.rows, part.links, strict=True)]
    return replace(found, rows=rows)


def bar_length(value: float, levels: tuple[float, float]) -> float:
    """Percent of a bar's length, on which the level of drift stands at `DRIFT_AT`; the bar ends at 100."""
    if not is_finite(value):
        return 0.0
    return min(100.0, max(0.0, 100 * DRIFT_AT * value / levels[1])) if levels[1] > 0 else 100.0 * (value > 0)


def gain_bars(gains: Sequence[Gain]) -> list[dict[str, Any]]:
    """Places in percent of one scale a metric, zero in its middle.

    Examples
    --------
    >>> (bar,) = gain_bars([Gain("against the current model", "AUC", 0.01, -0.01, 0.02, 0.005)])
    >>> bar["low"], bar["place"], bar["high"], bar["tolerated"]
    (27.27, 72.73, 95.45, 38.64)
    """
    ends = {
        metric: max(
            (
                abs(end)
                for item in gains
                if item.metric == metric
                for end in (item.gain, item.low, item.high, item.tolerated)
                if end is not None and abs(end) < LARGEST
            ),
            default=0.0,
        )
        for metric in {item.metric for item in gains}
    }
    found = []
    for item in gains:
        widest = 1.1 * ends[item.metric] or 1.0
        low, high = (item.gain if end is None else end for end in (item.low, item.high))
        places = {"low": low, "place": item.gain, "high": high}
        bar: dict[str, Any] = {
            name: min(max(round(50 + 50 * value / widest, 2), 0.0), 100.0) for name, value in places.items()
        }
        tolerated = None if item.tolerated is None else round(50 - 50 * item.tolerated / widest, 2)
        found.append(
            bar
            | {
                "name": item.name,
                "tolerated": tolerated,
                "holds": item.tolerated is None or item.low is None or item.low > -item.tolerated,
                "text": f"{_end(item.gain)} ({_end(item.low)} to {_end(item.high)})",
                "metric": item.metric,
            }
        )
    return found


def _end(value: float | None) -> str:
    if value is None:
        return "?"
    return signed_text(value + 0.0) if abs(value) < LARGEST else "no number"
