"""Columns of lists as settings of a recipe name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.features.schema import ListColumn


def list_column_of(name: str, options: Any, categories: Mapping[str, str], where: str) -> ListColumn:
    """Of one entry of `lists`; with `shares` the elements have by default the type of the column that is shared.

    where: what errors begin with.
    """
    known = [item.name for item in fields(ListColumn) if item.name != "name"]
    if not isinstance(options, Mapping):
        raise DataError(
            f"{where}: lists.{name}: expected settings by name, found {options!r}. Known: {', '.join(known)}."
        )
    if unknown := [str(key) for key in options if key not in known]:
        raise DataError(f"{where}: lists.{name}: unknown key(s) {', '.join(unknown)}. Known: {', '.join(known)}.")
    shared = categories.get(str(options.get("shares")), "string")
    return ListColumn(name, **({"elements": shared} | dict(options)))
