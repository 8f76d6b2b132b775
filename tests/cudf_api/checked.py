"""pandas frames that refuse what cuDF could not do.

Every attribute that code of `features` reads on them, and every call it makes, is looked up on cuDF's real classes,
which import without a GPU: (1) the name exists there, (2) the arguments bind to cuDF's signature, (3) no
`if <argument>: raise NotImplementedError` at the top of cuDF's method fires for them. Then pandas does the work.
It cannot see values, nulls, order or speed.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Any

import cudf
import cupy
import numpy as np
import pandas as pd
from cudf.core.accessors.string import StringMethods
from cudf.core.groupby.groupby import DataFrameGroupBy, SeriesGroupBy
from cudf.core.series import DatetimeProperties

OURS = ("gigabatch.features.", "gigabatch.pipeline.", "control")  # `control`: the check's own tests
# These modules are pandas' own side of the engine and never see a cuDF frame.
PANDAS_ONLY = ("gigabatch.features.engines.pandas",)
# cuDF accepts any name and fails later, where no signature shows it.
TRANSFORMS = ("sum", "mean", "count", "min", "max", "median")


class NotInCudf(AssertionError):
    """Code of ours used something that cuDF does not have."""


def _asks(depth: int = 2) -> str | None:
    """Name of the module of ours that reads an attribute, None if the reader is a library."""
    name = sys._getframe(depth).f_globals.get("__name__", "")
    return name if name.startswith(OURS) and name not in PANDAS_ONLY else None


def check_call(where: str, function: Any, args: tuple, kwargs: dict, bound_to: bool = True) -> None:
    """Raise `NotInCudf` if cuDF's `function` would not take these arguments."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        bound = signature.bind(*((None, *args) if bound_to else args), **kwargs)
    except TypeError as error:
        raise NotInCudf(f"{where}: cuDF's signature {signature} refuses this call ({error}).") from None
    bound.apply_defaults()
    for test, line in _guards(function):
        namespace = dict(getattr(inspect.unwrap(function), "__globals__", {})) | bound.arguments
        try:
            fires = bool(eval(compile(ast.Expression(test), "guard", "eval"), namespace))
        except Exception:
            continue
        if fires:
            raise NotInCudf(f"{where}: cuDF raises NotImplementedError for these arguments ({line}).")


def _guards(function: Any) -> list[tuple[ast.expr, str]]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return []
    body = tree.body[0].body if isinstance(tree.body[0], ast.FunctionDef) else []
    return [(node.test, ast.unparse(node.test)) for node in body if isinstance(node, ast.If) and _not_implemented(node)]


def _not_implemented(node: ast.If) -> bool:
    return any(isinstance(inner, ast.Raise) and "NotImplementedError" in ast.unparse(inner) for inner in node.body)


def checked_attribute(owner: type, real: Any, name: str, value: Any) -> Any:
    """`value`, which pandas found under `name`, checked against cuDF's class and wrapped if it leads further."""
    where = f"{owner.__name__}.{name}"
    if not hasattr(owner, name):
        raise NotInCudf(f"{where} does not exist in cuDF.")
    counterpart = inspect.getattr_static(owner, name)
    if name == "str":
        return Checked(StringMethods, value)
    if name == "dt":
        return Checked(DatetimeProperties, value)
    if name in ("iloc", "loc"):
        return value
    if callable(value) and not isinstance(value, pd.DataFrame | pd.Series):
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            check_call(where, function, args, kwargs, bound_to=not isinstance(counterpart, classmethod))
            if name == "transform" and (args or tuple(kwargs.values()))[0] not in TRANSFORMS:
                raise NotInCudf(f"{where}: cuDF's group-by transforms are {', '.join(TRANSFORMS)}.")
            result = value(*args, **kwargs)
            if name == "groupby":
                return Checked(DataFrameGroupBy if isinstance(real, pd.DataFrame) else SeriesGroupBy, result)
            return wrapped(result)

        return call
    return wrapped(value)


def wrapped(value: Any) -> Any:
    """Frames and series as their checked kinds; everything else as it is."""
    if type(value) is pd.DataFrame:
        return CheckedFrame(value)
    if type(value) is pd.Series:
        return CheckedSeries(value)
    return value


class Checked:
    """An accessor or a group-by."""

    def __init__(self, owner: type, real: Any) -> None:
        self._owner, self._real = owner, real

    def __getattr__(self, name: str) -> Any:
        return checked_attribute(self._owner, self._real, name, getattr(self._real, name))

    def __getitem__(self, key: Any) -> Any:
        result = self._real[key]
        owner = SeriesGroupBy if isinstance(key, str) else self._owner
        return wrapped(result) if isinstance(result, pd.DataFrame | pd.Series) else Checked(owner, result)


class CheckedSeries(pd.Series):
    @property
    def _constructor(self):
        return CheckedSeries

    @property
    def _constructor_expanddim(self):
        return CheckedFrame

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or _asks() is None:
            return value
        return checked_attribute(cudf.Series, self, name, value)


class CheckedFrame(pd.DataFrame):
    @property
    def _constructor(self):
        return CheckedFrame

    @property
    def _constructor_sliced(self):
        return CheckedSeries

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or _asks() is None:
            return value
        return checked_attribute(cudf.DataFrame, self, name, value)


class CheckedModule:
    """`engine.frames` or `engine.arrays`: pandas or NumPy, with every name and call checked on cuDF or CuPy."""

    def __init__(self, real: Any, counterpart: Any) -> None:
        self._real, self._counterpart = real, counterpart

    def __getattr__(self, name: str) -> Any:
        where = f"{self._counterpart.__name__}.{name}"
        if not hasattr(self._counterpart, name):
            raise NotInCudf(f"{where} does not exist.")
        value, counterpart = getattr(self._real, name), getattr(self._counterpart, name)
        if isinstance(value, type) and issubclass(value, np.generic):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            check_call(where, counterpart, args, kwargs, bound_to=False)
            return wrapped(value(*args, **kwargs))

        return call


def check_everything(monkeypatch: Any) -> None:
    """From now on `engine.frames` and `engine.arrays` of the pandas engine are checked, and so is what it reads."""
    import gigabatch.features.engines.pandas as engine

    monkeypatch.setattr(engine, "frames", CheckedModule(pd, cudf))
    monkeypatch.setattr(engine, "arrays", CheckedModule(np, cupy))
    for name in ("read_csv", "read_parquet", "series", "value_counts", "from_pandas"):
        real = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda *a, _real=real, **k: wrapped(_real(*a, **k)))
