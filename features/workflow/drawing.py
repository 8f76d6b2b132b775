"""A workflow as a picture: Mermaid text, which notebooks and Markdown viewers draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigabatch.features.operators import operator_name
from gigabatch.features.operators.base import Configured, FittedOperator
from gigabatch.features.workflow.flow import maker, raw_inputs, to_apply, to_fit
from gigabatch.features.workflow.state import short, table_kind

# Fill and border by kind of node.
COLOURS = {
    "raw": ("#f1f3f5", "#868e96"),
    "label": ("#ffe3e3", "#c92a2a"),
    "row-wise": ("#e7f5ff", "#1971c2"),
    "group-wise": ("#fff3bf", "#b08900"),
    "fitted": ("#d3f9d8", "#2b8a3e"),
}
MOST_NAMES = 4
ESCAPES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})  # what Mermaid would read as its own


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
        nodes.append(Node(f"s{position}", operator_name(type(step)), lines, step.kind()))
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
        title, *rest = (text.translate(ESCAPES) for text in (node.title, *node.lines))
        text = "<br/>".join([f"<b>{title}</b>" if rest else title, *rest])
        left, right = ("[", "]") if node.lines else ("([", "])")
        lines.append(f'    {node.name}{left}"{text}"{right}:::{node.kind.replace("-", "")}')
    lines += [f"    {edge.start} {'-.->' if edge.only_to_fit else '-->'} {edge.end}" for edge in _merged(edges)]
    for kind, (fill, border) in COLOURS.items():
        lines.append(f"    classDef {kind.replace('-', '')} fill:{fill},stroke:{border},color:#212529")
    return "\n".join(lines) + "\n"


def _merged(edges: Sequence[Edge]) -> list[Edge]:
    """One edge between two nodes, solid if any of them is."""
    found: dict[tuple[str, str], Edge] = {}
    for edge in edges:
        key = edge.start, edge.end
        if key not in found or found[key].only_to_fit:
            found[key] = edge
    return list(found.values())


def summary(state: Any) -> list[str]:
    """A state's essentials in a few short lines."""
    if state is None:
        return []
    if table_kind(state) is not None:
        return [f"{len(state):,} rows"]
    if not dataclasses.is_dataclass(state):
        return [short(state)]
    lines = []
    lengths = set()  # of columns that belong together only the first is counted
    for item in dataclasses.fields(state):
        value = getattr(state, item.name)
        if isinstance(value, bool):
            lines += [item.name] if value else []
        elif isinstance(value, int | float) and value != item.default:
            lines.append(f"{item.name} {value:,.6g}" if isinstance(value, float) else f"{item.name} {value:,}")
        elif table_kind(value) is not None or (isinstance(value, Mapping | tuple | list) and value != item.default):
            name = "rows" if table_kind(value) == "frame" else item.name
            lines += [f"{len(value):,} {name}"] if len(value) not in lengths else []
            lengths.add(len(value))
        elif isinstance(value, str):
            lines.append(f"{item.name} {short(value)}")
    return lines
