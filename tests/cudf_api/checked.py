"""pandas frames that refuse what cuDF could not do.

Every attribute that code of `features` reads on them, and every call it makes (methods, constructors, class methods,
accessors, group-bys, indexers, properties and their setters), is looked up on cuDF's real classes, which import
without a GPU: (1) the name exists there, (2) the arguments bind to cuDF's signature, (3) cuDF's source, followed with
these arguments, raises nothing and warns of nothing (`refusals.py`). Then pandas does the work. What cuDF refuses to
do silently, such as to become a host array, is refused too. It cannot see values, nulls, order or speed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import cudf
import cupy
import numpy as np
import pandas as pd
from cudf.core.accessors.categorical import CategoricalAccessor
from cudf.core.accessors.lists import ListMethods
from cudf.core.accessors.string import StringMethods
from cudf.core.groupby.groupby import DataFrameGroupBy, SeriesGroupBy
from cudf.core.series import DatetimeProperties

from tests.cudf_api.refusals import Stand, refusal

OURS = ("gigabatch.features.", "gigabatch.pipeline.", "control")  # `control`: the check's own tests
# These modules are pandas' own side of the engine: a cuDF frame never comes in, or goes out as it came.
PANDAS_ONLY = tuple(f"gigabatch.features.engines.{name}" for name in ("pandas", "arrow_columns", "plain_types"))
# cuDF accepts any name and fails later, where no signature shows it.
TRANSFORMS = ("sum", "mean", "count", "min", "max", "median")
ACCESSORS = {"str": StringMethods, "dt": DatetimeProperties, "cat": CategoricalAccessor, "list": ListMethods}
COMPILED = ("apply", "applymap", "query", "apply_rows", "apply_chunks")  # of functions, by numba
INDEXERS = ("iloc", "loc", "at", "iat")
# The kinds that cuDF would be given where pandas and NumPy have these.
KINDS = (
    (pd.DataFrame, cudf.DataFrame), (pd.Series, cudf.Series), (pd.MultiIndex, cudf.MultiIndex),
    (pd.RangeIndex, cudf.RangeIndex), (pd.DatetimeIndex, cudf.DatetimeIndex), (pd.Index, cudf.Index),
    (np.ndarray, cupy.ndarray),
)  # fmt: skip


class NotInCudf(AssertionError):
    """Code of ours used something that cuDF does not have."""


def _asks(depth: int = 2) -> str | None:
    """Name of the module of ours that reads an attribute, None if the reader is a library."""
    name = sys._getframe(depth).f_globals.get("__name__", "")
    return name if name.startswith(OURS) and name not in PANDAS_ONLY else None


def lifted(value: Any) -> Any:
    """An argument as cuDF would get it: what lies on the device is stood for by its class."""
    if isinstance(value, Checked | CheckedClass):
        return value._owner if isinstance(value, CheckedClass) else Stand(value._owner)
    for kind, counterpart in KINDS:
        if isinstance(value, kind):
            return Stand(counterpart)
    if type(value) in (list, tuple, set) and len(value) < 50:
        return type(value)(lifted(item) for item in value)
    if type(value) is dict and len(value) < 50:
        return {key: lifted(item) for key, item in value.items()}
    return Stand(type(value)) if type(value) in (list, tuple, set, dict) else value


def _key(value: Any) -> Any:
    """What two equal lifted arguments share; hashable."""
    if isinstance(value, Stand):
        return Stand, value.kind
    if isinstance(value, list | tuple):
        return type(value), *map(_key, value)
    if isinstance(value, dict):
        return dict, *((key, _key(item)) for key, item in value.items())
    return (slice, str(value)) if isinstance(value, slice) else (type(value), value)


def check_call(where: str, function: Any, args: tuple, kwargs: dict, owner: type | None = None) -> None:
    """Raise `NotInCudf` if cuDF's `function` would not take these arguments. owner: the class of a method's self."""
    if inspect.isclass(function):
        creator = function.__init__ if function.__init__ is not object.__init__ else function.__new__
        function, owner = creator, function
    try:
        inspect.signature(function)
    except (ValueError, TypeError):
        return
    given = tuple(map(lifted, args)) if owner is None else (Stand(owner), *map(lifted, args))
    named = {name: lifted(value) for name, value in kwargs.items()}
    try:
        why = _refusal(function, _Call(given, named))
    except TypeError as error:
        raise NotInCudf(f"{where}: cuDF's signature refuses this call ({error}).") from None
    if why is not None:
        raise NotInCudf(f"{where}: cuDF refuses these arguments ({why}).")


class _Call:
    """Arguments, equal to others of the same kinds and values."""

    def __init__(self, args: tuple, kwargs: dict) -> None:
        self.args, self.kwargs = args, kwargs
        self.key = (_key(args), _key(kwargs))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key


@functools.cache
def _known(function: Any, call: _Call) -> str | None:
    return refusal(function, call.args, call.kwargs)


def _refusal(function: Any, call: _Call) -> str | None:
    try:
        hash(call)
    except TypeError:  # a function, a slice and the like among the arguments
        return refusal(function, call.args, call.kwargs)
    return _known(function, call)


def checked_attribute(owner: type, real: Any, name: str, value: Any) -> Any:
    """`value`, which pandas found under `name`, checked against cuDF's class and wrapped if it leads further."""
    where = f"{owner.__name__}.{name}"
    if not hasattr(owner, name):
        raise NotInCudf(f"{where} does not exist in cuDF.")
    if name in COMPILED:
        raise NotInCudf(f"{where} needs a compiler that `make gpu-pack` leaves out.")
    counterpart = inspect.getattr_static(owner, name)
    if name in ACCESSORS:
        return Checked(ACCESSORS[name], value)
    if name in INDEXERS:
        return Checked(getattr(owner, f"_{name}_indexer_type", owner._loc_indexer_type), value)
    if isinstance(counterpart, property | functools.cached_property):
        check_call(where, getattr(counterpart, "fget", None) or counterpart.func, (), {}, owner)
        return wrapped(value)
    if callable(value) and not isinstance(value, pd.DataFrame | pd.Series):
        function = getattr(owner, name)
        unbound = None if isinstance(counterpart, classmethod | staticmethod) else owner

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_call(where, function, args, kwargs, unbound)
            if name == "transform" and (args or tuple(kwargs.values()))[0] not in TRANSFORMS:
                raise NotInCudf(f"{where}: cuDF's group-by transforms are {', '.join(TRANSFORMS)}.")
            result = value(*(getattr(a, "_real", a) for a in args), **kwargs)
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
    """An accessor, an indexer or a group-by."""

    def __init__(self, owner: type, real: Any) -> None:
        self._owner, self._real = owner, real

    def __getattr__(self, name: str) -> Any:
        return checked_attribute(self._owner, self._real, name, getattr(self._real, name))

    def __getitem__(self, key: Any) -> Any:
        if hasattr(self._owner, "__getitem__"):
            check_call(f"{self._owner.__name__}[...]", self._owner.__getitem__, (key,), {}, self._owner)
        result = self._real[key]
        owner = SeriesGroupBy if isinstance(key, str) else self._owner
        return wrapped(result) if not isinstance(result, pd.core.groupby.GroupBy) else Checked(owner, result)

    def __setitem__(self, key: Any, value: Any) -> None:
        check_call(f"{self._owner.__name__}[...] =", self._owner.__setitem__, (key, value), {}, self._owner)
        self._real[key] = value


class CheckedData:
    """What checked frames and series share: `_cudf` is their class there."""

    _cudf: type

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or _asks() is None:
            return value
        return checked_attribute(type(self)._cudf, self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and _asks():
            owner = type(self)._cudf
            place = inspect.getattr_static(owner, name, None)
            if place is None or (isinstance(place, property) and place.fset is None):
                raise NotInCudf(f"{owner.__name__}.{name} cannot be set in cuDF.")
            if isinstance(place, property):
                check_call(f"{owner.__name__}.{name} =", place.fset, (value,), {}, owner)
        super().__setattr__(name, value)

    def __getitem__(self, key: Any) -> Any:
        if _asks():
            owner = type(self)._cudf
            check_call(f"{owner.__name__}[...]", owner.__getitem__, (key,), {}, owner)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _asks():
            owner = type(self)._cudf
            check_call(f"{owner.__name__}[...] =", owner.__setitem__, (key, value), {}, owner)
        super().__setitem__(key, value)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if _asks():
            raise NotInCudf("cuDF refuses to become a host array by itself; use engine.array or engine.to_host.")
        return super().__array__(*args, **kwargs)

    def __iter__(self) -> Any:
        if _asks() and not isinstance(self, pd.DataFrame):  # a frame's are its columns' names
            raise NotInCudf("cuDF refuses to iterate over a column.")
        return super().__iter__()


class CheckedSeries(CheckedData, pd.Series):
    _cudf = cudf.Series

    @property
    def _constructor(self):
        return CheckedSeries

    @property
    def _constructor_expanddim(self):
        return CheckedFrame


class CheckedFrame(CheckedData, pd.DataFrame):
    _cudf = cudf.DataFrame

    @property
    def _constructor(self):
        return CheckedFrame

    @property
    def _constructor_sliced(self):
        return CheckedSeries


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
        if inspect.isclass(counterpart):
            return CheckedClass(where, value, counterpart)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            check_call(where, counterpart, args, kwargs)
            return wrapped(value(*args, **kwargs))

        return call


class CheckedClass:
    """A class of `engine.frames`: its constructor and what is called on the class itself."""

    def __init__(self, where: str, real: type, owner: type) -> None:
        self._where, self._real, self._owner = where, real, owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_call(self._where, self._owner, args, kwargs)
        return wrapped(self._real(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return checked_attribute(self._owner, self._real, name, getattr(self._real, name))

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._real)


def check_everything(monkeypatch: Any) -> None:
    """From now on `engine.frames` and `engine.arrays` of the pandas engine are checked, and so is what it reads."""
    import gigabatch.features.engines.pandas as engine

    monkeypatch.setattr(engine, "frames", CheckedModule(pd, cudf))
    monkeypatch.setattr(engine, "arrays", CheckedModule(np, cupy))
    for name in ("read_csv", "read_parquet", "read_columns", "series", "frame", "value_counts", "from_pandas"):
        real = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda *a, _real=real, **k: wrapped(_real(*a, **k)))
    monkeypatch.setattr(engine, "to_pandas", plain)


def plain(value: Any) -> Any:
    """A checked frame or series as pandas' own: from here on the code works on the host."""
    return pd.DataFrame(value) if isinstance(value, pd.DataFrame) else pd.Series(value)
