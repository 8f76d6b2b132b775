"""A workflow as a picture: SVG for notebooks, Mermaid text for Markdown; neither needs a program or a network."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.flow import maker, raw_inputs, to_apply, to_fit
from features.operators import operator_name
from features.operators.base import Configured, FittedOperator
from features.state import summary

# Fill and border by kind of node.
COLOURS = {
    "raw": ("#f1f3f5", "#868e96"),
    "label": ("#ffe3e3", "#c92a2a"),
    "row-wise": ("#e7f5ff", "#1971c2"),
    "group-wise": ("#fff3bf", "#b08900"),
    "fitted": ("#d3f9d8", "#2b8a3e"),
}
LINE, CHARACTER, PADDING = 16, 6.7, 10  # pixels: height of a line, width of a letter at 11 px, space in a box
GAP_X, GAP_Y = 60, 14
MOST_NAMES = 4


@dataclass(frozen=True)
class Node:
    """A raw column or a step. title and lines: its text. kind: key of `COLOURS`."""

    name: str
    title: str
    lines: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Edge:
    """The column that goes from one node to another; dashed where it is read only to fit."""

    start: str
    end: str
    column: str
    only_to_fit: bool


def graph(
    steps: Sequence[Configured], states: Mapping[int, Any], labels: Collection[str]
) -> tuple[list[Node], list[Edge]]:
    """A node for each raw column and each step, and an edge for each column that a step reads."""
    raw = {name: f"c{number}" for number, name in enumerate(raw_inputs(steps))}
    nodes = [Node(key, name, (), "label" if name in labels else "raw") for name, key in raw.items()]
    edges = []
    for position, step in enumerate(steps):
        state = states.get(position)
        lines = (_columns_line(step, state), *summary(state))
        nodes.append(Node(f"s{position}", operator_name(type(step)), lines, kind_of(step)))
        for name in dict.fromkeys(to_fit(step)):
            source = maker(steps, position, name)
            start = raw[name] if source is None else f"s{source}"
            # A column passes through the steps in between that change the rows.
            for between in range(0 if source is None else source + 1, position):
                if steps[between].changes_rows:
                    edges.append(Edge(start, f"s{between}", name, False))
                    start = f"s{between}"
            edges.append(Edge(start, f"s{position}", name, name not in to_apply(step)))
    return nodes, edges


def kind_of(step: Configured) -> str:
    """`fitted`, `group-wise` or `row-wise`."""
    if isinstance(step, FittedOperator):
        return "fitted"
    return "row-wise" if step.group_keys is None else "group-wise"


def _columns_line(step: Configured, state: Any) -> str:
    inputs = tuple(dict.fromkeys(to_fit(step)))
    outputs = step.outputs_of(state) if isinstance(step, FittedOperator) and state is not None else step.outputs
    return _names(inputs) if set(inputs) == set(outputs) or not outputs else f"{_names(inputs)} → {_names(outputs)}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown}, … ({len(names)})"


def to_mermaid(steps: Sequence[Configured], states: Mapping[int, Any], labels: Collection[str]) -> str:
    """The graph as Mermaid's `flowchart`."""
    nodes, edges = graph(steps, states, labels)
    lines = ["flowchart LR"]
    for node in nodes:
        text = "<br/>".join(map(_mermaid_text, (f"<b>{node.title}</b>" if node.lines else node.title, *node.lines)))
        left, right = ("[", "]") if node.lines else ("([", "])")
        lines.append(f'    {node.name}{left}"{text}"{right}:::{node.kind.replace("-", "")}')
    lines += [f"    {edge.start} {'-.->' if edge.only_to_fit else '-->'} {edge.end}" for edge in _merged(edges)]
    for kind, (fill, border) in COLOURS.items():
        lines.append(f"    classDef {kind.replace('-', '')} fill:{fill},stroke:{border},color:#212529")
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    bold = text.startswith("<b>")
    inside = text.removeprefix("<b>").removesuffix("</b>") if bold else text
    for sign, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        inside = inside.replace(sign, code)
    return f"<b>{inside}</b>" if bold else inside


def _merged(edges: Sequence[Edge]) -> list[Edge]:
    """One edge between two nodes, solid if any of them is."""
    found: dict[tuple[str, str], Edge] = {}
    for edge in edges:
        key = edge.start, edge.end
        if key not in found or found[key].only_to_fit:
            found[key] = edge
    return list(found.values())


def to_svg(steps: Sequence[Configured], states: Mapping[int, Any], labels: Collection[str]) -> str:
    """The graph as SVG text: from left to right, each node right of all that it reads."""
    nodes, edges = graph(steps, states, labels)
    edges = _merged(edges)
    layout = Layout(nodes, edges)
    size = (
        f'width="{layout.width:.0f}" height="{layout.height:.0f}" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for edge in edges:
        dashes = ' stroke-dasharray="4 3"' if edge.only_to_fit else ""
        out.append(f'<path d="{layout.path(edge)}" fill="none" stroke="#868e96"{dashes}/>')
    for node in nodes:
        out += _box(node, *layout.boxes[node.name])
    return "\n".join([*out, "</svg>"])


def _box(node: Node, x: float, y: float, width: float, height: float) -> list[str]:
    fill, border = COLOURS[node.kind]
    out = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{fill}" '
        f'stroke="{border}"/>'
    ]
    for number, text in enumerate((node.title, *node.lines)):
        weight = ' font-weight="bold"' if number == 0 and node.lines else ""
        place = f'x="{x + PADDING:.1f}" y="{y + LINE * (number + 1):.1f}"'
        out.append(f'<text {place} fill="#212529"{weight}>{html.escape(text)}</text>')
    return out


class Layout:
    """Where everything is, in pixels. boxes: (x, y, width, height) by node.

    A node's column is the longest way to it; raw columns stand right before the first step that reads them. A line
    that passes a column has a place of its own there, so that it runs between the boxes. Within a column all are
    ordered by the mean height of what they come from, one sweep of the method of Sugiyama, Tagawa and Toda (1981).
    """

    def __init__(self, nodes: Sequence[Node], edges: Sequence[Edge]) -> None:
        self.rank = _columns_of(nodes, edges)
        self.boxes: dict[Any, tuple[float, float, float, float]] = {}
        x, bottom = float(PADDING), float(PADDING)
        for column in range(max(self.rank.values(), default=-1) + 1):
            here = {node.name: node for node in nodes if self.rank[node.name] == column}
            passing = [edge for edge in edges if self.rank[edge.start] < column < self.rank[edge.end]]
            order: dict[Any, tuple[bool, float]]
            order = {name: self._mean_height([e for e in edges if e.end == name], column) for name in here}
            order |= {(edge, column): self._mean_height([edge], column) for edge in passing}
            texts = [text for node in here.values() for text in (node.title, *node.lines)]
            width = max(map(len, texts)) * CHARACTER + 2 * PADDING
            y = float(PADDING)
            for key in sorted(order, key=lambda key: order[key]):
                height = LINE * (1 + len(here[key].lines)) + PADDING - 2 if key in here else 0.0
                self.boxes[key] = (x, y, width, height)
                y += height + GAP_Y
            x, bottom = x + width + GAP_X, max(bottom, y - GAP_Y)
        self.width, self.height = max(x - GAP_X, PADDING) + PADDING, bottom + PADDING

    def _mean_height(self, edges: Sequence[Edge], column: int) -> tuple[bool, float]:
        """Where the edges come from, one column before; what has none goes last."""
        heights = [self.boxes[self._stop(edge, column - 1)] for edge in edges]
        return not heights, sum(y + height / 2 for _, y, _, height in heights) / max(len(heights), 1)

    def _stop(self, edge: Edge, column: int) -> Any:
        """What stands for the edge in that column: its first node, or the place where it passes."""
        return edge.start if self.rank[edge.start] == column else (edge, column)

    def path(self, edge: Edge) -> str:
        """The line as SVG: a curve between columns, straight where it passes one."""
        x, y, width, height = self.boxes[edge.start]
        found = f"M{x + width:.1f} {y + height / 2:.1f}"
        before = x + width, y + height / 2
        for column in range(self.rank[edge.start] + 1, self.rank[edge.end] + 1):
            last = column == self.rank[edge.end]
            x, y, width, height = self.boxes[edge.end if last else (edge, column)]
            y, bend = y + height / 2, (x - before[0]) / 2
            found += f" C{before[0] + bend:.1f} {before[1]:.1f} {x - bend:.1f} {y:.1f} {x:.1f} {y:.1f}"
            found += "" if last else f" L{x + width:.1f} {y:.1f}"
            before = x + width, y
        return found


def _columns_of(nodes: Sequence[Node], edges: Sequence[Edge]) -> dict[str, int]:
    """The column of every node, from 0."""
    rank: dict[str, int] = {}
    for node in nodes:  # steps are in an order in which each comes after all that it reads
        rank[node.name] = max([rank[edge.start] + 1 for edge in edges if edge.end == node.name], default=0)
    for node in nodes:
        if node.kind in ("raw", "label"):
            rank[node.name] = min([rank[edge.end] - 1 for edge in edges if edge.start == node.name], default=0)
    return rank
