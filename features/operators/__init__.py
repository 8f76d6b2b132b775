"""The operators by name. To add one: write its file in a sub-folder of this one, and its test; nothing else names it.
Operators of users are registered (`register_operator`, docs/own_code.md).

A step's name is the operator's file (`fill_missing` is `FillMissing` in `missing/fill_missing.py`); further operators
of a file go by their class in snake_case (`last_before` is `LastBefore`). From Python every operator is an attribute of
this package, whatever its sub-folder: `from gigabatch.features.operators import Categorify, FillMissing`. Files are
imported when they are first asked for.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from gigabatch.features.errors import DataError, MissingCodeError, did_you_mean
from gigabatch.own_code import Kind, Registry

if TYPE_CHECKING:
    from gigabatch.features.operators.base import Configured


NVTABULAR = {  # its operators under another name here; docs/migrating.md has what differs
    "AddMetadata": "roles of a configuration or Schema, no step",
    "DataStats": "no step: the report tells what columns are like",
    "DropLowCardinality": "no step: leave the columns out",
    "Dropna": "DropNulls (drop_nulls)",
    "FillMedian": "FillMissing (fill_missing)",
    "Groupby": "GroupbyToSequence (groupby_to_sequence) with its aggregations, or History (history) for lists as of "
    "each row's time",
    "LambdaOp": "Expression (expression), or LambdaFunction (lambda_function) with a registered function",
    "LogOp": "Log (log)",
    "NormalizeMinMax": "MinMax (min_max)",
    "ReduceDtypeSize": "Cast (cast)",
    "UDF": "Expression (expression), or LambdaFunction (lambda_function) with a registered function",
    "ValueCount": "no step: lists may be of any length, max_length bounds them",
}


@cache
def operator_names() -> tuple[str, ...]:
    """Every name of the package's own operators, sorted."""
    return tuple(sorted(name for module in _modules() for name in _operators_of(module)))


def operator_class(name: str) -> type[Configured]:
    """The operator of that name; `DataError` with the known names for another one."""
    modules = _modules()
    # Most operators are found in their own file; all others are looked through only where that fails.
    for module in (name,) if name in modules and name in _operators_of(name) else modules:
        if name in _operators_of(module):
            return _operators_of(module)[name]
    if (kind := OWN.find(name)) is not None:
        found: type[Configured] = kind
        return found
    known = sorted([*operator_names(), *OWN.names()])
    hint = _counterpart(name) or did_you_mean(name, known)
    raise MissingCodeError(f"unknown operator {name!r}.{hint} Known: {', '.join(known)}.")


def _counterpart(name: str) -> str:
    """What stands here for an operator of NVTabular, in any spelling; nothing for another name."""
    plain = name.replace("_", "").lower()
    return next(
        (f" NVTabular's {other} is here {ours}." for other, ours in NVTABULAR.items() if other.lower() == plain), ""
    )


def register_operator(name: str) -> Callable[[Kind], Kind]:
    """Make an operator of your own known to workflows and `steps`; docs/own_code.md.

    Parameters
    ----------
    name
        What a step calls it: lower-case letters, digits and `_`.

    Returns
    -------
    decorator
        For a concrete subclass of `Operator` or `FittedOperator`, which it returns. The source of the class's file is
        part of the key of features that use it.

    Raises
    ------
    DataError
        The name is taken, or the class is no operator.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import ColumnOperator, Workflow, register_operator
    >>> @register_operator("doubled")
    ... class Doubled(ColumnOperator):
    ...     reads, writes = ("column",), ("output",)
    ...     def __init__(self, column: str, output: str) -> None:
    ...         self.column, self.output = column, output
    ...     def compute(self, frame):
    ...         return {self.output: frame[self.column] * 2}
    >>> steps = [{"doubled": {"column": "price", "output": "twice"}}]
    >>> Workflow.from_steps(steps).transform(pd.DataFrame({"price": [1.5]}))
       price  twice
    0    1.5    3.0
    """
    return OWN.decorator(name)


def _obstacle(kind: type) -> str | None:
    from gigabatch.features.operators.base import Configured

    if not issubclass(kind, Configured):
        return "is no operator. Derive it from gigabatch.Operator, ColumnOperator or FittedOperator."
    missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
    return f"lacks {missing}, which an operator of its kind needs." if missing else None


OWN = Registry("operator", DataError, lambda: operator_names(), _obstacle)


def operator_name(kind: type[Configured]) -> str:
    """The name that `operator_class` knows the class by."""
    if (own := OWN.name_of(kind)) is not None:
        return own
    module = kind.__module__.rpartition(".")[2]
    spelled = _snake(kind.__name__)
    return module if module.replace("_", "") == spelled.replace("_", "") else spelled


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@cache
def _modules() -> dict[str, str]:
    """A file's name without its ending -> its module, of every file in the sub-folders."""
    found = pkgutil.walk_packages(__path__, f"{__name__}.")
    return {item.name.rpartition(".")[2]: item.name for item in found if not item.ispkg and item.name.count(".") > 3}


@cache
def _operators_of(module: str) -> dict[str, type[Configured]]:
    from gigabatch.features.operators.base import Configured

    found = importlib.import_module(_modules()[module])
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


@cache
def _classes() -> dict[str, type[Configured]]:
    """Every operator by the name of its class."""
    return {kind.__name__: kind for name in operator_names() for kind in (operator_class(name),)}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # asked for by `import *` alone, so only that imports every file
        return [*_classes(), "operator_class", "operator_name", "operator_names", "register_operator"]
    if not name[:1].isupper():  # a module of this package is asked for in the same way
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    spelled = _snake(name)
    own = _operators_of(spelled).values() if spelled in _modules() else ()
    for kind in own:  # its file alone is imported
        if kind.__name__ == name:
            return kind
    if name in _classes():
        return _classes()[name]
    hint = _counterpart(name) or did_you_mean(name, _classes())
    raise AttributeError(
        f"module {__name__!r} has no operator {name!r}.{hint} It has: {', '.join(sorted(_classes()))}."
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_classes()})
