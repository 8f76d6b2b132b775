"""The operators by name. To add one: write its file in this folder and its test; nothing else names it.

A step's name is the operator's file (`fill_missing` is `FillMissing` in `fill_missing.py`); further operators of a file
go by their class in snake_case (`last_before` is `LastBefore`). Files are imported when they are first asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from functools import cache
from typing import TYPE_CHECKING

from features.errors import DataError

if TYPE_CHECKING:
    from features.operators.base import Configured


@cache
def operator_names() -> tuple[str, ...]:
    """Every operator's name, sorted."""
    return tuple(sorted(name for module in _modules() for name in _operators_of(module)))


def operator_class(name: str) -> type[Configured]:
    """The operator of that name; `DataError` with the known names for another one."""
    modules = _modules()
    # Most operators are found in their own file; all others are looked through only where that fails.
    for module in (name,) if name in modules and name in _operators_of(name) else modules:
        if name in _operators_of(module):
            return _operators_of(module)[name]
    close = difflib.get_close_matches(name, operator_names(), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise DataError(f"unknown operator {name!r}.{hint} Known: {', '.join(operator_names())}.")


def operator_name(kind: type[Configured]) -> str:
    """The name that `operator_class` knows the class by."""
    module = kind.__module__.rpartition(".")[2]
    spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return module if module.replace("_", "") == spelled.replace("_", "") else spelled


@cache
def _modules() -> tuple[str, ...]:
    return tuple(item.name for item in pkgutil.iter_modules(__path__) if item.name not in ("base", "__main__"))


@cache
def _operators_of(module: str) -> dict[str, type[Configured]]:
    from features.operators.base import Configured

    found = importlib.import_module(f"{__name__}.{module}")
    return {
        operator_name(kind): kind
        for kind in vars(found).values()
        if inspect.isclass(kind)
        and issubclass(kind, Configured)
        and not inspect.isabstract(kind)
        and kind.__module__ == found.__name__
        and not kind.__name__.startswith("_")
        and kind.is_step
    }
