"""Fitted states and settings as JSON and Parquet, without pickle.

JSON holds null, booleans, whole numbers, finite floats (by `repr`, so exactly) and text as they are and lists as lists.
Everything else is an object of one key that says what it is:

    {"float": "nan"}   {"tuple": [...]}   {"dict": [[key, value], ...]}   {"Fill": {"value": 1.5, ...}}
    {"frame": "step-003-0.parquet"}   {"series": {"file": ..., "name": ...}}   {"array": "step-004-0.parquet"}
    {"scalar": ["<f4", 1.5]}          {"array": {"file": ..., "dtype": "<U2"}}
    {"frame": {"file": ..., "dtypes": {"city": "object"}}}

An index that counts the rows from 0 is in no file. Another one is further columns of the file, whose columns then are
numbers, and `labels` says what all of them are called: {"frame": {"file": ..., "labels": {"index": [...], ...}}}.

A field of a state that is annotated `Any` is a table; all others say what JSON value they are.
Reading makes nothing but these: a capitalised key must be a frozen dataclass that the operator's own module knows,
and a file must be one that was written beside the JSON, with its checksum.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.workflow.steps import typed

FILE_NAME = re.compile(r"[a-z0-9-]+\.parquet")
OTHER_TYPES = re.compile(r"object|datetime64\[s(, .+)?\]")  # of pandas; a file gives str and milliseconds
DEEPEST = 40  # far beyond any state; a JSON of thousands of brackets would exhaust the stack


class StateWriter:
    """Turns values into JSON, writing the tables among them to `folder`. files: name -> {sha256, bytes} so far;
    library: that of the tables."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.library = folder, "pandas"
        self.files: dict[str, dict[str, Any]] = {}

    def encode(self, value: Any, label: str, plain: bool = False) -> Any:
        """The JSON of a value. label: what the names of its files begin with; plain: scalars of NumPy become numbers of
        Python, as settings have them."""
        if plain and isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, np.generic):  # it takes part in arithmetic otherwise than a number of Python
            return {"scalar": [value.dtype.str, self.encode(_item(value), label)]}
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, list):
            return [self.encode(item, label, plain) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item, label, plain) for item in value]}
        if isinstance(value, Mapping):
            return {
                "dict": [
                    [self.encode(key, label, plain), self.encode(item, label, plain)] for key, item in value.items()
                ]
            }
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
            hints = typing.get_type_hints(type(value))
            if odd := [name for name, item in fields.items() if hints[name] is Any and table_kind(item) is None]:
                raise DataError(
                    f"{type(value).__name__}.{odd[0]} is annotated Any, which stands for a data frame, a column or an "
                    f"array. Annotate it as {type(fields[odd[0]]).__name__}."
                )
            if not typing.cast(Any, value).__dataclass_params__.frozen:
                raise DataError(f"{type(value).__name__} is not frozen. Write @dataclass(frozen=True) above it.")
            return {type(value).__name__: {name: self.encode(item, label, plain) for name, item in fields.items()}}
        return self._table(value, label)

    def _table(self, value: Any, label: str) -> Any:
        kind = table_kind(value)
        if kind is None or (kind == "array" and value.ndim != 1):
            raise _unknown(value)
        self.library = _library(value)
        engine = load_engine(self.library)
        frame = value if kind == "frame" else engine.frames.DataFrame({"value": value})
        frame, labels = self._numbered(frame, label)
        name = f"{label}-{sum(other.startswith(label) for other in self.files)}.parquet"
        try:
            engine.write_parquet(frame.reset_index(drop=True), self.folder / name)
        except (ValueError, TypeError, NotImplementedError, OverflowError) as error:
            raise DataError(f"Parquet cannot hold a {type(value).__name__} of these values: {error}") from error
        content = (self.folder / name).read_bytes()
        self.files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        if self.library == "pandas" and kind != "array":
            types = {column: str(dtype) for column, dtype in frame.dtypes.items()}
            if others := {column: dtype for column, dtype in types.items() if OTHER_TYPES.fullmatch(dtype)}:
                labels = {"dtypes": others, **labels}
        if kind == "series":
            return {kind: {"file": name, "name": self.encode(value.name, label), **labels}}
        if kind == "array" and value.dtype.kind in "UMm":  # Parquet has neither text of a length nor days
            labels = {"dtype": value.dtype.str}
        return {kind: {"file": name, **labels} if labels else name}

    def _numbered(self, frame: Any, label: str) -> tuple[Any, dict[str, Any]]:
        """The frame as the file has it, and its `labels`, where these are needed."""
        index, columns = frame.index, frame.columns
        ranged = engine_of(frame).frames.RangeIndex(len(frame))
        counts = str(index.dtype) == "int64" and index.equals(ranged) and list(index.names) == [None]
        plain = columns.nlevels == 1 and columns.name is None and all(isinstance(name, str) for name in columns)
        if counts and plain and len(set(columns)) == len(columns):
            return frame, {}
        labels = {
            "columns": [self.encode(name, label) for name in columns],
            "of_columns": [self.encode(name, label) for name in columns.names],
            "of_index": [self.encode(name, label) for name in index.names],
            "every": getattr(index, "freqstr", None) if hasattr(index, "inferred_freq") else None,
        }
        found = frame.copy(deep=False)
        found.columns = [str(number) for number in range(len(columns))]
        found.index = index.set_names([f"index {level}" for level in range(index.nlevels)])
        found = found.reset_index()
        for level in range(index.nlevels if self.library == "pandas" else 0):
            if index.get_level_values(level).dtype == object:  # of which `reset_index` makes str
                found[f"index {level}"] = found[f"index {level}"].astype(object)
        return found, {"labels": labels}


def _item(value: np.generic) -> Any:
    """The scalar as a value of Python that makes it again."""
    if value.dtype.kind not in "biufU" or (value.dtype.itemsize > 8 and value.dtype.kind == "f"):
        raise _unknown(value)
    return value.item()


def _unknown(value: Any) -> DataError:
    return DataError(
        f"a value of type {type(value).__name__} cannot be saved. Known: JSON values, frozen dataclasses of them, data "
        "frames, columns and arrays of one dimension."
    )


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
        if kind == "scalar" and isinstance(inside, list) and len(inside) == 2:
            return np.array([self.decode(inside[1], owner, depth + 1)]).astype(_dtype(inside[0]))[0]
        if kind in ("frame", "series", "array"):
            return self._table(kind, inside, owner, depth)
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

    def _table(self, kind: str, inside: Any, owner: type, depth: int) -> Any:
        more = dict(inside) if isinstance(inside, dict) else {"file": inside}
        name = more.pop("file", None)
        if not isinstance(name, str) or name not in self.files:
            raise DataError(f"{kind}: {short(inside)} is not among the files of the workflow.")
        named = self.decode(more.pop("name"), owner, depth + 1) if kind == "series" and "name" in more else None
        frame = self._typed(self.engine.read_parquet(self.folder / name), more.pop("dtypes", {}), kind)
        if "labels" in more:
            frame = self._labelled(frame, self._labels(more.pop("labels"), owner, depth))
        elif kind != "frame" and list(frame.columns) != ["value"]:
            raise DataError(f"{name}: expected the one column 'value', found {list(frame.columns)}.")
        dtype = more.pop("dtype", None) if kind == "array" else None
        if more or (kind == "series") != (isinstance(inside, dict) and "name" in inside):
            raise DataError(f"{kind}: expected file and name, found {short(inside)}.")
        if kind == "frame":
            return frame
        if kind == "series":
            return frame["value"].rename(named)
        found = self.engine.array(frame["value"])
        return found if dtype is None else found.astype(_dtype(dtype))

    def _typed(self, frame: Any, dtypes: Any, kind: str) -> Any:
        """The frame with its columns of `OTHER_TYPES`."""
        known = isinstance(dtypes, dict) and set(dtypes) <= set(frame.columns) and (kind != "array" or not dtypes)
        if not known or not all(isinstance(dtype, str) and OTHER_TYPES.fullmatch(dtype) for dtype in dtypes.values()):
            raise DataError(f"dtypes: expected columns and their types, found {short(dtypes)}.")
        return frame.astype(dtypes) if dtypes and _library(frame) == "pandas" else frame

    def _labels(self, labels: Any, owner: type, depth: int) -> dict[str, Any]:
        if not isinstance(labels, dict) or set(labels) != {"columns", "of_columns", "of_index", "every"}:
            raise DataError(f"labels: expected the names of columns and of an index, found {short(labels)}.")
        return {name: self.decode(item, owner, depth + 1) for name, item in labels.items()}

    def _labelled(self, frame: Any, labels: Mapping[str, Any]) -> Any:
        """The frame of a numbered one: its first columns are its index."""
        frames, columns, of_columns = self.engine.frames, labels["columns"], labels["of_columns"]
        levels = [f"index {level}" for level in range(len(labels["of_index"]))]
        if len(levels) == 1:  # of small whole numbers `set_index` makes int64
            frame.index = frames.Index(frame[levels[0]])
            frame = frame.drop(columns=levels)
        else:
            frame = frame.set_index(levels)
        frame.index.names = labels["of_index"]
        if labels["every"] is not None:
            frame.index.freq = labels["every"]
        if len(of_columns) > 1:
            frame.columns = frames.MultiIndex.from_tuples(columns, names=of_columns)
        else:
            frame.columns = frames.Index(columns, name=of_columns[0])
        return frame

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


def _dtype(name: Any) -> np.dtype:
    found = np.dtype(name if isinstance(name, str) else "V")
    if found.kind not in "biufUMm":
        raise DataError(f"unknown type of numbers {short(name)}.")
    return found


def difference(value: Any, found: Any, where: str) -> str:
    """What of a state that was read is not as it was saved, types among it; nothing where all of it is the same."""
    return "" if _alike(value, found) else _difference(value, found, where)


def _alike(value: Any, found: Any) -> bool:
    """Whether they are the same, without the place of each part, which takes several times as long to make."""
    if type(value) is not type(found):
        return False
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value) == repr(found)
    if isinstance(value, list | tuple):
        return len(value) == len(found) and all(map(_alike, value, found))
    if isinstance(value, Mapping):
        same_keys = len(value) == len(found) and all(map(_alike, value, found))
        return same_keys and all(map(_alike, value.values(), found.values()))
    if dataclasses.is_dataclass(value):
        return all(_alike(getattr(value, item.name), getattr(found, item.name)) for item in dataclasses.fields(value))
    return not _difference(value, found, "")


def _difference(value: Any, found: Any, where: str) -> str:
    for left, right in itertools.zip_longest(_leaves(value, where), _leaves(found, where)):
        # A place follows from what stood at those before it, but for the type of a number in it.
        if left is None or right is None or not _same(left[1], right[1]):
            (place, was), (_, would) = left or right, right or ("", "nothing")
            return f"{place} is {_shown(was)} and would come back as {_shown(would)}"
    return ""


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The value as places and what stands there: text, or a column of pandas."""
    kind = table_kind(value)
    if kind is not None:
        yield from _leaves_of_table(kind, value, where)
    elif dataclasses.is_dataclass(value):
        yield where, type(value).__name__
        for item in dataclasses.fields(value):
            yield from _leaves(getattr(value, item.name), f"{where}.{item.name}")
    elif isinstance(value, Mapping):
        yield where, f"{type(value).__name__} of {len(value)}"
        for number, (key, item) in enumerate(value.items()):
            yield from _leaves(key, f"{where}: key {number}")
            yield from _leaves(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        yield where, f"{type(value).__name__} of {len(value)}"
        for number, item in enumerate(value):
            yield from _leaves(item, f"{where}[{number}]")
    else:
        yield where, f"{type(value).__name__} {value!r}"  # which tells -0.0 from 0.0; a NaN is like itself


def _leaves_of_table(kind: str, value: Any, where: str) -> Iterator[tuple[str, Any]]:
    yield where, kind
    frames = load_engine("pandas").frames
    if kind == "array":
        host = load_engine(_library(value)).to_host(value)
        yield f"{where}: its type", str(host.dtype)
        yield from _leaves_of_column(frames.Series(host, dtype=object if host.dtype == object else None), where)
        return
    if kind == "series":
        yield from _leaves(value.name, f"{where}: its name")
        value = value.to_frame(name="value")
    frame = engine_of(value).to_pandas(value)
    yield from _leaves([list(names.names) for names in (frame.columns, frame.index)], f"{where}: the index's names")
    yield from _leaves(getattr(frame.index, "freq", None), f"{where}: the index's step")
    yield from _leaves(list(frame.columns), f"{where}: its columns")
    for level in range(frame.index.nlevels):
        yield from _leaves_of_column(frame.index.get_level_values(level).to_series(), f"{where}: the index {level}")
    for number in range(frame.shape[1]):
        yield from _leaves_of_column(frame.iloc[:, number], f"{where}: column {frame.columns[number]!r}")


def _leaves_of_column(column: Any, where: str) -> Iterator[tuple[str, Any]]:
    yield f"{where}: its type", repr(column.dtype)
    if column.dtype == object:
        yield from _leaves(list(column), where)
    else:
        yield where, column.reset_index(drop=True)


def _same(left: Any, right: Any) -> bool:
    return left == right if isinstance(left, str) or isinstance(right, str) else left.equals(right)


def _shown(leaf: Any) -> str:
    return short(leaf if isinstance(leaf, str) else list(leaf))


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
