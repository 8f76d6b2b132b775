"""Which data frame library runs: pandas on CPU, cuDF on a GPU, chosen once and never both.

Operators call methods that the two share. What differs sits behind `engine_of(frame)`: the modules
`features.engine_pandas` and `features.engine_cudf` hold the same functions under the same names.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from features.errors import DataError

ENGINES = ("auto", "cudf", "pandas")


def resolve_engine(name: str) -> str:
    """`auto` becomes `cudf` where cuDF is installed and a CUDA device answers, else `pandas`."""
    if name not in ENGINES:
        raise DataError(f"engine: unknown engine {name!r}. Known: {', '.join(ENGINES)}.")
    if name == "auto":
        return "cudf" if _cudf_usable() else "pandas"
    if name == "cudf" and importlib.util.find_spec("cudf") is None:
        raise DataError("engine: cudf was asked for but is not installed. Use environment.yml, or engine=pandas.")
    return name


def _cudf_usable() -> bool:
    if importlib.util.find_spec("cudf") is None:
        return False
    import torch

    return torch.cuda.is_available()


def load_engine(name: str) -> ModuleType:
    """The engine module of that name; `auto` is resolved first."""
    return importlib.import_module(f"features.engine_{resolve_engine(name)}")


def engine_of(frame: Any) -> ModuleType:
    """The engine module that a frame or series belongs to."""
    root = type(frame).__module__.partition(".")[0]
    return importlib.import_module("features.engine_cudf" if root == "cudf" else "features.engine_pandas")
