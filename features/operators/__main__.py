"""`python -m gigabatch.features.operators`: each operator, its kind and what it does; the first table of
docs/reference/operators.md."""

from __future__ import annotations

import sys

from gigabatch.features.operators import operator_class, operator_names
from gigabatch.features.operators.base import Configured


def markdown_table() -> str:
    """Name, kind and the first line of the documentation, a row an operator."""
    rows = [f"| `{name}` | {kind(operator_class(name))} | {purpose(name)} |" for name in operator_names()]
    return "\n".join(["| name | kind | what it does |", "|---|---|---|", *rows, ""])


def kind(operator: type[Configured]) -> str:
    """The operator's kind, and whether rows change."""
    return f"{operator.kind()}, changes rows" if operator.changes_rows else operator.kind()


def purpose(name: str) -> str:
    """What the file says in its first line; for further operators of a file, what the class does."""
    operator = operator_class(name)
    text = sys.modules[operator.__module__].__doc__ or ""
    heading, _, rest = text.partition("\n")[0].partition(": ")
    if heading != operator.__name__:
        rest = rest if name == operator.__module__.rpartition(".")[2] else _first_words(operator)
    return rest.rstrip(".").replace("|", "\\|")


def _first_words(operator: type[Configured]) -> str:
    text = (operator.__doc__ or "").partition("\n")[0].partition(";")[0]
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    print(markdown_table(), end="")
