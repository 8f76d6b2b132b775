"""Entities of a schema as they are written in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from features.errors import DataError
from features.schema import ENTITIES, Entity

KNOWN = ("key", "columns")


def entity_settings(given: Mapping[str, Any]) -> tuple[Entity, ...]:
    """From `{user: {key: user_id, columns: [age]}, ...}`; the key is a column of its entity whether listed or not.

    Raises:
        DataError: for an unknown entity or option, a key that is no text, or columns that are no list of names.
    """
    return tuple(_entity(name, options) for name, options in given.items())


def _entity(name: str, options: Any) -> Entity:
    if name not in ENTITIES:
        raise DataError(f"entities: unknown entity {name!r}. Known: {', '.join(ENTITIES)}.")
    if not isinstance(options, Mapping) or not isinstance(options.get("key"), str):
        raise DataError(
            f"entities: {name} needs a key, the column that says which {name} a row is about, for example {name}: "
            f"{{key: {name}_id}}; found {options!r}."
        )
    if unknown := [option for option in options if option not in KNOWN]:
        raise DataError(
            f"entities: unknown key(s) {', '.join(map(str, unknown))} of {name}. Known: {', '.join(KNOWN)}."
        )
    columns = options.get("columns") or ()
    if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
        raise DataError(f"entities: columns of {name} is a list of names, found {columns!r}.")
    key = options["key"]
    return Entity(name, key, tuple(columns) if key in columns else (key, *columns))
