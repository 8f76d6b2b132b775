"""Packed rows as a notebook shows them."""

from __future__ import annotations

from html import escape
from typing import Any

from gigabatch.features.schema import TensorSchema


def table_html(schema: TensorSchema, first: Any, title: str) -> str:
    """HTML: a row a column with its kind and its values in the rows `first` (a `Batch`)."""
    rows = [(f"id of {column.num_ids:,}", column.name, first.ids[:, i]) for i, column in enumerate(schema.ids)]
    rows += [("float", name, first.floats[:, i]) for i, name in enumerate(schema.floats)]
    rows += [
        (f"target, {target.task}", target.name, values)
        for target, values in zip(schema.targets, first.targets, strict=True)
    ]
    rows += [("weight", "", first.weight)] if schema.has_weight else []
    rows += [("group", "", first.group)] if schema.has_group else []
    lists = [
        (f"list of ids of {column.num_ids:,}", column.name, [part.tolist() for part in split(own)])
        for column, own in zip(schema.lists, first.lists, strict=True)
    ]
    numbers = range(1, first.num_rows + 1)
    head = "".join(f"<th>{text}</th>" for text in ("column", "kind", *(f"row {number}" for number in numbers)))
    body = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td><td style="text-align:left">{escape(kind)}</td>'
        + "".join(f"<td>{escape(_text(value))}</td>" for value in (own if isinstance(own, list) else own.tolist()))
        + "</tr>"
        for kind, name, own in [*rows, *lists]
    )
    return f"<div>{escape(title)}</div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def split(column: Any) -> list[Any]:
    """The lists of a `JaggedColumn` one by one."""
    return list(column.ids.split(column.offsets.diff().tolist()))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
