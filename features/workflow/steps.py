"""Steps as written in YAML, to operators and back: everything is checked before any work.

    steps:
      - fill_missing: {column: [price, age]}      # one operator a column
      - log: {column: price, output: log_price}
      - drop_nulls: {columns: [city]}

A step is a mapping of one operator's name to its arguments; a `column` that lists several stands for as many steps.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union

import numpy as np

from gigabatch.features.errors import DataError, did_you_mean
from gigabatch.features.operators import OWN, operator_class, operator_name
from gigabatch.features.operators.base import Configured
from gigabatch.features.operators.sources import operator_code
from gigabatch.features.reading.sources import expand
from gigabatch.features.reading.tables import Reading

READING = Reading()
JSON_TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


def parse_steps(steps: Any, engine: str = "pandas", reading: Reading = READING) -> list[Configured]:
    """The operators that a YAML list stands for; `DataError` names the step by its number.

    engine: the library of the frames of arguments that are tables, given as the path of a Parquet or CSV file. reading:
    how such files are read.
    """
    if isinstance(steps, Mapping | str) or not isinstance(steps, Sequence):
        raise DataError(f"steps: expected a list of steps, each an operator and its arguments; found {steps!r}.")
    return [operator for number, step in enumerate(steps, 1) for operator in _parse_step(number, step, engine, reading)]


def _parse_step(number: int, step: Any, engine: str, reading: Reading) -> Iterable[Configured]:
    if not isinstance(step, Mapping) or len(step) != 1:
        raise DataError(
            f"step {number}: expected one operator and its arguments, such as `log: {{column: price}}`; found {step!r}."
        )
    ((name, arguments),) = step.items()
    try:
        kind = operator_class(str(name))
        if not isinstance(arguments, Mapping | None):
            raise DataError(f"expected arguments by name, such as {{column: price}}; found {arguments!r}.")
        return [make_operator(kind, given, engine, reading) for given in _expanded(kind, arguments or {})]
    except DataError as error:
        raise DataError(f"step {number} ({name}): {error}") from error


def _expanded(kind: type[Configured], arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of one operator a column, where several columns are given to an operator of one."""
    parameters = inspect.signature(kind).parameters
    if "column" not in parameters:
        return [dict(arguments)]
    several = "columns" if "columns" in arguments and "columns" not in parameters else "column"
    columns = arguments.get(several)
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        return [dict(arguments)]
    rest = {key: value for key, value in arguments.items() if key != several}
    if not columns or len(set(map(str, columns))) != len(columns) or "column" in rest:
        raise DataError(f"{several}: name one or more different columns, found {columns!r}.")
    if len(columns) > 1 and rest.get("output") is not None:
        raise DataError(f"output: {rest['output']!r} cannot hold {len(columns)} columns. Write a step for each.")
    return [{"column": column, **rest} for column in columns]


def make_operator(
    kind: type[Configured], arguments: Mapping[str, Any], engine: str | None = "pandas", reading: Reading = READING
) -> Configured:
    """The operator with these arguments, plain types as in YAML or JSON; `DataError` for any that it does not take.

    engine: None where an argument that is a table must be one already, and no path may stand there.
    """
    parameters = inspect.signature(kind).parameters
    for name in arguments:
        if name not in parameters:
            hint = did_you_mean(str(name), parameters)
            raise DataError(f"unknown argument {name!r}.{hint} Known: {', '.join(parameters)}.")
    missing = [item.name for item in parameters.values() if item.default is item.empty and item.name not in arguments]
    if missing:
        raise DataError(f"argument(s) {', '.join(missing)} missing. Known: {', '.join(parameters)}.")
    hints = typing.get_type_hints(kind.__init__)
    given = {}
    for name, value in arguments.items():
        if name in kind.tables:
            given[name] = _table(name, value, engine, reading, arguments.get("columns"))
        else:
            given[name] = typed(value, hints.get(name, Any), name)
    try:
        operator = kind(**given)
        if kind.files:
            operator.reading = reading
        return operator
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(str(error)) from error


def _table(name: str, value: Any, engine: str | None, reading: Reading, called: Any) -> Any:
    if hasattr(value, "columns"):
        return value
    if engine is None or not isinstance(value, str):
        kind = "a data frame" if engine is None else "a data frame or the path of one"
        raise DataError(f"{name}: expected {kind}, found {value!r}.")
    return reading.table(engine, value, called if isinstance(called, Mapping) else None)


def table_files(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """The files that arguments of the steps name, for the checksums of what a stage has read."""
    return [
        path
        for step in steps
        for name, arguments in step.items()
        for table in (*operator_class(name).tables, *operator_class(name).files)
        if isinstance((arguments or {}).get(table), str)
        for path in expand(arguments[table])
    ]


def registered_code(steps: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Hashes of the code that steps name, by the step's number, for the key of what a stage has made: the operator's
    file, those of operators that it imports, and functions that its arguments name."""
    return {
        f"step {number}": operator_class(name).code_of(arguments or {})
        + OWN.code(name)
        + operator_code(operator_class(name))
        for number, step in enumerate(steps, 1)
        for name, arguments in step.items()
    }


def to_steps(operators: Iterable[Configured]) -> list[dict[str, dict[str, Any]]]:
    """The YAML of these operators, in plain types, one step an operator; the inverse of `parse_steps`."""
    return [{operator_name(type(item)): _plain(item.settings())} for item in operators]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
        return {_snake(type(value)): found}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _snake(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def typed(value: Any, hint: Any, where: str) -> Any:
    """The value if it is of the annotated type (a list for any sequence, a whole number for a float), else `DataError`.

    A dataclass is written as a mapping of its name to its fields: `{mean: {value: clicked, output: rate}}`.
    """
    found, value = _match(value, hint, where)
    if not found:
        where, hint, value = _unfit(where, hint, value)
        raise DataError(f"{where}: expected {_describe(hint)}, found {value!r}.")
    return value


def _unfit(where: str, hint: Any, value: Any) -> tuple[str, Any, Any]:
    """Of a value that does not fit: itself, or the first key or value of a mapping that does not, and what it should
    be."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        kind = typing.get_origin(option) or option
        if not (isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, Mapping)):
            continue
        of_key, of_item = typing.get_args(option) or (Any, Any)
        for key, item in value.items():
            if not _match(key, of_key, where)[0]:
                return f"{where}: a key", of_key, key
            if not _match(item, of_item, where)[0]:
                return _unfit(f"{where}.{key}", of_item, item)
    return where, hint, value


def _match(value: Any, hint: Any, where: str) -> tuple[bool, Any]:
    """Whether the value fits the annotation, and the value with dataclasses made."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        found = [pair for option in inside if (pair := _match(value, option, where))[0]]
        return found[0] if found else (False, value)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inside), value
    if dataclasses.is_dataclass(hint):
        return _match_dataclass(value, hint, where)
    if origin is tuple and not (len(inside) == 2 and inside[1] is ...):
        fits = isinstance(value, list | tuple) and len(value) == len(inside)
        pairs = [_match(item, kind, where) for item, kind in zip(value, inside, strict=True)] if fits else []
        return fits and all(ok for ok, _ in pairs), tuple(item for _, item in pairs) if fits else value
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _match_mapping(value, inside or (Any, Any), where)
    if isinstance(kind, type) and kind is not str and issubclass(kind, Sequence):
        if not isinstance(value, list | tuple):
            return False, value
        pairs = [_match(item, inside[0] if inside else Any, where) for item in value]
        return all(ok for ok, _ in pairs), type(value)(item for _, item in pairs)
    return _match_plain(value, hint), value


def _match_plain(value: Any, hint: Any) -> bool:
    if hint is Any or not isinstance(hint, type):
        return True  # the annotation says nothing about JSON values
    if hint is float:
        return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    return isinstance(value, bool | np.bool_ if hint is bool else hint)


def _match_mapping(value: Any, inside: tuple[Any, ...], where: str) -> tuple[bool, Any]:
    if not isinstance(value, Mapping):
        return False, value
    pairs = {key: (_match(key, inside[0], where)[0], _match(item, inside[1], where)) for key, item in value.items()}
    return all(key_ok and ok for key_ok, (ok, _) in pairs.values()), {k: item for k, (_, (_, item)) in pairs.items()}


def _match_dataclass(value: Any, hint: Any, where: str) -> tuple[bool, Any]:
    if isinstance(value, hint):
        return True, value
    if not isinstance(value, Mapping) or list(value) != [_snake(hint)] or not isinstance(value[_snake(hint)], Mapping):
        return False, value
    hints, given = typing.get_type_hints(hint), value[_snake(hint)]
    unknown = [name for name in given if name not in hints]
    if unknown:
        raise DataError(
            f"{where}: unknown {', '.join(map(repr, unknown))} in {_snake(hint)}. Known: {', '.join(hints)}."
        )
    fields = {name: typed(item, hints[name], f"{where}.{name}") for name, item in given.items()}
    try:
        return True, hint(**fields)
    except TypeError as error:
        raise DataError(f"{where}: {error}. Known in {_snake(hint)}: {', '.join(hints)}.") from error


def _describe(hint: Any) -> str:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(item) for item in inside)
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if dataclasses.is_dataclass(hint):
        return f"{{{_snake(typing.cast(type, hint))}: ...}}"
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a mapping"
    if isinstance(kind, type) and kind is not str and issubclass(kind, Sequence):
        known = [item for item in inside if item is not ...]
        return f"a list of {' and '.join(_describe(item) for item in known)}" if known else "a list"
    return JSON_TYPES.get(hint, getattr(hint, "__name__", str(hint)))
