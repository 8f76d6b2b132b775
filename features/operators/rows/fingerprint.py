"""What a Python function computes, as a hash: its bytecode with the values and functions that it uses."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import pickle
import platform
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.own_code import code_in

UNTOLD = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__firstlineno__",
    "_abc_impl",
    "__abstractmethods__",
)  # of a class
PLAIN = (str, bytes, bool, int, float, complex, type(None), type(...))
CACHED = type(functools.lru_cache(len))
DISPATCH = ("dispatch", "register", "_clear_cache")  # of `singledispatch`, beside the functions in its `registry`


def function_hash(function: Any, where: str) -> str:
    """32 hex digits: equal for functions of the same bytecode, constants, defaults, closures and globals.

    Functions and classes that it uses count the same way; a module of one's own by its file, those that it imports
    among them; installed packages by name and version. Comments do not count in a function; a new version of Python
    does.

    Parameters
    ----------
    function
        A function, `functools.partial`, method or callable object.
    where
        Who asks, for messages.

    Raises
    ------
    DataError
        The function uses a value that cannot be pickled, such as an open file.

    Examples
    --------
    >>> from gigabatch.features.operators.rows.fingerprint import function_hash
    >>> from functools import partial
    >>> function_hash(partial(max, 1), "here") == function_hash(partial(max, 1), "here")
    True
    >>> function_hash(partial(max, 1), "here") == function_hash(partial(max, 2), "here")
    False
    """
    digest = hashlib.blake2b(platform.python_version().encode(), digest_size=16)
    for part in _Parts(where).of(function):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


class _Parts:
    """Walks through what a function uses; a function or object that is met again counts as that."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.met: dict[int, tuple[int, Any]] = {}  # by address; values are kept, so that none is given twice

    def of(self, value: Any) -> Iterator[bytes]:
        yield type(value).__qualname__.encode()
        if isinstance(value, PLAIN):
            yield repr(value).encode()
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif id(value) in self.met:
            yield str(self.met[id(value)][0]).encode()
        else:
            self.met[id(value)] = len(self.met), value
            yield from self._object(value)

    def _object(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, set | frozenset | Mapping | list | tuple):
            yield from self._collection(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.MethodType):
            yield from self.of((value.__func__, value.__self__))
        elif isinstance(value, CACHED):
            yield from self.of(value.__wrapped__)
        elif isinstance(value, functools.partial):
            yield from self.of((value.func, value.args, value.keywords))
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, dataclasses.Field):  # cannot be pickled
            yield from self.of(_attributes(value))
        elif _own(type(value)):
            yield from self.of((type(value), _attributes(value)))
            if not all(base is object or _own(base) for base in type(value).__mro__):
                yield from self._pickled(value)
        else:
            yield from self._pickled(value)

    def _collection(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, set | frozenset):
            yield from sorted(b"".join(_Parts(self.where).of(item)) for item in value)
        else:
            yield str(len(value)).encode()
            for item in value.items() if isinstance(value, Mapping) else value:
                yield from self.of(item)
        yield from self.of(getattr(value, "default_factory", None))
        if _own(type(value)):
            yield from self.of((type(value), _attributes(value)))

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        if not _own(function):
            yield f"{function.__module__}.{function.__qualname__}".encode()
            yield _version(function.__module__)
            return
        yield from self.of(function.__code__)
        yield from self.of((function.__defaults__, function.__kwdefaults__))
        yield from self.of({name: item for name, item in vars(function).items() if name not in DISPATCH})
        for cell in function.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:  # not given a value yet
                inside = ...
            yield from self.of(inside)
        for name in sorted(_names_of(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield from self.of(function.__globals__[name])

    def _code(self, code: types.CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags)).encode()
        for constant in code.co_consts:
            yield from self.of(constant)

    def _class(self, kind: type) -> Iterator[bytes]:
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        if not _own(kind):
            yield _version(kind.__module__)
            return
        for base in kind.__bases__:
            yield from self.of(base)
        for name, item in sorted(vars(kind).items()):
            if name not in UNTOLD and not isinstance(item, types.MemberDescriptorType):
                yield name.encode()
                item = item.func if isinstance(item, functools.cached_property) else item
                yield from self.of(getattr(item, "__func__", getattr(item, "fget", item)))

    def _module(self, module: types.ModuleType) -> Iterator[bytes]:
        yield module.__name__.encode()
        if not _own(module):
            yield _version(module.__name__)
            return
        yield code_in(Path(str(module.__file__)).read_bytes())
        used = {getattr(item, "__module__", None) for item in vars(module).values()} - {module.__name__}
        inner = [item for item in vars(module).values() if isinstance(item, types.ModuleType)]
        inner += [sys.modules[name] for name in used if isinstance(name, str) and name in sys.modules]
        for other in sorted({item.__name__: item for item in inner if _own(item)}.items()):
            yield from self.of(other[1])

    def _pickled(self, value: Any) -> Iterator[bytes]:
        file = io.BytesIO()
        try:
            _Pickler(self, file).dump(value)
            yield file.getvalue()
        except DataError:
            raise
        except Exception as error:  # whatever __reduce__ of anyone's class raises
            raise DataError(
                f"{self.where}: the function uses {value!r:.80} of type {type(value).__name__}, whose content cannot "
                f"be told ({type(error).__name__}: {error}). Use plain values, arrays or frames."
            ) from error


class _Pickler(pickle.Pickler):
    """Pickle, which knows functions and classes by name, with what these are where they are the user's own."""

    def __init__(self, parts: _Parts, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.parts = parts

    def persistent_id(self, value: Any) -> bytes | None:
        told = isinstance(value, types.FunctionType | type | types.ModuleType | CACHED) and _own(value)
        return b"".join(self.parts.of(value)) if told else None


def _names_of(code: types.CodeType) -> set[str]:
    """Names that the code, or a function within it, looks up."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names_of, inner))


def _attributes(value: Any) -> dict[str, Any]:
    members = (
        item
        for kind in reversed(type(value).__mro__)
        for item in vars(kind).values()
        if isinstance(item, types.MemberDescriptorType)
    )
    slots = {f"{item.__objclass__.__name__}.{item.__name__}": item for item in members}
    kept = {name: item.__get__(value) for name, item in slots.items() if _is_set(item, value)}
    return kept | getattr(value, "__dict__", {})


def _is_set(slot: types.MemberDescriptorType, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _own(item: Any) -> bool:
    """Whether the function, class or module is the user's own, so that no version of a package tells of a change."""
    name = item.__name__ if isinstance(item, types.ModuleType) else str(getattr(item, "__module__", None))
    if name == "__main__":
        return not isinstance(item, types.ModuleType)
    file = getattr(sys.modules.get(name), "__file__", None)
    top = name.partition(".")[0]
    if file is None or top == "gigabatch":  # the latter's sources are part of the key themselves
        return top not in (*sys.stdlib_module_names, "gigabatch") and file is None and name not in sys.modules
    return not any(Path(file).is_relative_to(folder) for folder in _INSTALLED)


_INSTALLED = (
    *(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib")),
    *site.getsitepackages(),  # of Debian's Python other ones, and in an environment those of the system
    site.getusersitepackages(),  # pip install --user
)


@functools.cache
def _version(module: str) -> bytes:
    found = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return " ".join(importlib.metadata.version(name) for name in found).encode()
