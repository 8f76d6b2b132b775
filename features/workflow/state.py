"""Fitted states and settings as JSON and Parquet, without pickle.

JSON holds null, booleans, whole numbers, finite floats (by `repr`, so exactly) and text as they are and lists as lists.
Everything else is an object of one key that says what it is:

    {"float": "nan"}   {"tuple": [...]}   {"dict": [[key, value], ...]}   {"Fill": {"value": 1.5, ...}}
    {"frame": "step-003-0.parquet"}   {"series": {"file": ..., "name": ...}}   {"array": "step-004-0.parquet"}

A field of a state that is annotated `Any` is a table; all others say what JSON value they are.
Reading makes nothing but these: a capitalised key must be a frozen dataclass that the operator's own module knows,
and a file must be one that was written beside the JSON, with its checksum.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.workflow.steps import typed

FILE_NAME = re.compile(r"[a-z0-9-]+\.parquet")
DEEPEST = 40  # far beyond any state; a JSON of thousands of brackets would exhaust the stack


class StateWriter:
    """Turns values into JSON, writing the tables among them to `folder`. files: name -> {sha256, bytes} so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    def encode(self, value: Any, label: str) -> Any:
        """The JSON of a value. label: what the names of its files begin with."""
        if value is None or isinstance(value, bool | str):
            return value
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            value = value.item()
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, list):
            return [self.encode(item, label) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item, label) for item in value]}
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(key, label), self.encode(item, label)] for key, item in value.items()]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
            hints = typing.get_type_hints(type(value))
            assert all(hints[name] is not Any or table_kind(item) for name, item in fields.items()), type(value)
            return {type(value).__name__: {name: self.encode(item, label) for name, item in fields.items()}}
        return self._table(value, label)

    def _table(self, value: Any, label: str) -> Any:
        kind = table_kind(value)
        if kind is None or (kind == "array" and value.ndim != 1):
            raise DataError(
                f"{label}: a value of type {type(value).__name__} cannot be saved. Known: JSON values, dataclasses of "
                "them, data frames, columns and arrays of one dimension."
            )
        engine = load_engine(_library(value))
        frame = value if kind == "frame" else engine.frames.DataFrame({"value": value})
        name = f"{label}-{sum(other.startswith(label) for other in self.files)}.parquet"
        engine.write_parquet(frame.reset_index(drop=True), self.folder / name)
        content = (self.folder / name).read_bytes()
        self.files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        return {kind: {"file": name, "name": value.name} if kind == "series" else name}


def table_kind(value: Any) -> str | None:
    """`frame`, `series` or `array` for those of either engine, else None."""
    if type(value).__module__.partition(".")[0] not in ("pandas", "cudf", "numpy", "cupy"):
        return None
    return {"DataFrame": "frame", "Series": "series", "ndarray": "array"}.get(type(value).__name__)


def _library(value: Any) -> str:
    return "cudf" if type(value).__module__.partition(".")[0] in ("cudf", "cupy") else "pandas"


class StateReader:
    """Turns the JSON of `StateWriter` back, every file checked first; anything unexpected is a `DataError`."""

    def __init__(self, folder: Path, files: Any, engine: str) -> None:
        self.folder, self.engine = folder, load_engine(engine)
        self.files = self._checked(files)

    def _checked(self, files: Any) -> set[str]:
        if not isinstance(files, dict):
            raise DataError(f"files: expected names and checksums, found {files!r}.")
        for name, known in files.items():
            if not FILE_NAME.fullmatch(name) or not isinstance(known, dict) or set(known) != {"sha256", "bytes"}:
                raise DataError(f"files: {name!r} is not the name of a file of a workflow with its checksum.")
            path = self.folder / name
            if path.is_symlink() or not path.is_file():
                raise DataError(f"{name} is missing.")
            content = path.read_bytes()
            if known != {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}:
                raise DataError(f"{name} is damaged: its checksum differs from the one in workflow.json.")
        return set(files)

    def decode(self, value: Any, owner: type, depth: int = 0) -> Any:
        """The value; dataclasses are those that the modules of `owner` and of its bases know by name."""
        if depth > DEEPEST:
            raise DataError("values are nested too deep.")
        if value is None or isinstance(value, bool | str | int):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise DataError(f"{value!r} is no number of JSON.")
            return value
        if isinstance(value, list):
            return [self.decode(item, owner, depth + 1) for item in value]
        if not isinstance(value, dict) or len(value) != 1:
            raise DataError(f"expected a value or an object of one key, found {short(value)}.")
        ((kind, inside),) = value.items()
        if kind == "float" and inside in ("nan", "inf", "-inf"):
            return float(inside)
        if kind == "tuple" and isinstance(inside, list):
            return tuple(self.decode(item, owner, depth + 1) for item in inside)
        if kind == "dict" and isinstance(inside, list):
            return self._dict(inside, owner, depth)
        if kind in ("frame", "series", "array"):
            return self._table(kind, inside)
        return self._dataclass(kind, inside, owner, depth)

    def _dict(self, pairs: list[Any], owner: type, depth: int) -> dict[Any, Any]:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise DataError("a dict must be a list of pairs.")
        keys = [self.decode(pair[0], owner, depth + 1) for pair in pairs]
        try:
            found = dict(zip(keys, (self.decode(pair[1], owner, depth + 1) for pair in pairs), strict=True))
        except TypeError as error:
            raise DataError(f"a key cannot be {error}.") from error
        if len(found) != len(pairs):
            raise DataError("a dict holds a key twice.")
        return found

    def _table(self, kind: str, inside: Any) -> Any:
        name = inside.get("file") if kind == "series" and isinstance(inside, dict) else inside
        if not isinstance(name, str) or name not in self.files:
            raise DataError(f"{kind}: {short(inside)} is not among the files of the workflow.")
        frame = self.engine.read_parquet(self.folder / name)
        if kind == "frame":
            return frame
        if list(frame.columns) != ["value"]:
            raise DataError(f"{name}: expected the one column 'value', found {list(frame.columns)}.")
        if kind == "array":
            return self.engine.array(frame["value"])
        if set(inside) != {"file", "name"} or not isinstance(inside["name"], str | int | None):
            raise DataError(f"series: expected file and name, found {short(inside)}.")
        return frame["value"].rename(inside["name"])

    def _dataclass(self, name: str, inside: Any, owner: type, depth: int) -> Any:
        kind = known_dataclasses(owner).get(name)
        if kind is None or not isinstance(inside, dict):
            raise DataError(f"unknown kind of value {short(name)} in a state of {owner.__name__}.")
        fields = [item.name for item in dataclasses.fields(kind)]
        if set(inside) != set(fields):
            raise DataError(f"{name}: expected the fields {', '.join(fields)}, found {short(list(inside))}.")
        hints = typing.get_type_hints(kind)
        given = {field: self.decode(item, kind, depth + 1) for field, item in inside.items()}
        for field, item in given.items():
            if hints[field] is Any and table_kind(item) is None:
                raise DataError(f"{name}.{field}: expected a data frame, a column or an array, found {short(item)}.")
        given = {field: typed(item, hints[field], f"{name}.{field}") for field, item in given.items()}
        try:
            return kind(**given)
        except (ValueError, TypeError) as error:
            raise DataError(f"{name}: {error}") from error


def check_state(operator: Any, state: Any) -> None:
    """`DataError` unless the state is of the type that the operator's `columns` is annotated with."""
    hints = typing.get_type_hints(type(operator).columns)
    typed(state, hints.get("state", Any), "state")


def known_dataclasses(owner: type) -> dict[str, Any]:
    """Frozen dataclasses by name: this package's and the operator's own, as far as its modules know them."""
    modules = [sys.modules[base.__module__] for base in reversed(owner.__mro__) if base.__module__ != "builtins"]
    return {
        name: item
        for module in modules
        for name, item in vars(module).items()
        if isinstance(item, type)
        and dataclasses.is_dataclass(item)
        and typing.cast(Any, item).__dataclass_params__.frozen
        and (item.__module__.startswith("gigabatch.features.") or item.__module__ == module.__name__)
    }


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
