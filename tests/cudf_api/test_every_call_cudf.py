"""Every call in the sources that may reach cuDF or CuPy, found by listing them, whether or not a test runs it.

Arguments that are constants in the source are judged as such, all others are unknown. A function of `cudf` or `cupy`
is known by its name; of a method only the name is, so it is refused where no class that has it takes the arguments.
"""

import ast
import inspect
import re
from pathlib import Path

import cudf
import cupy
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from cudf.core.accessors.categorical import CategoricalAccessor
from cudf.core.accessors.lists import ListMethods
from cudf.core.accessors.string import StringMethods
from cudf.core.groupby.groupby import DataFrameGroupBy, SeriesGroupBy
from cudf.core.series import DatetimeProperties
from distributed import Client

import gigabatch
from tests.cudf_api.refusals import UNKNOWN, Stand, refusal

ROOT = Path(gigabatch.__file__).parent
# Whatever is in features, but what works on pandas or Arrow alone, and what asks for an engine elsewhere.
HOST = ("features/engines/pandas.py", "features/engines/arrow_columns.py", "features/synthetic/")
FILES = [path for path in sorted(ROOT.glob("*/**/*.py")) if not str(path.relative_to(ROOT)).startswith(HOST)
         and (path.relative_to(ROOT).parts[0] == "features" or "features.engines" in path.read_text())]  # fmt: skip
CUDF_CLASSES = (cudf.DataFrame, cudf.Series, DataFrameGroupBy, SeriesGroupBy, StringMethods, DatetimeProperties,
                CategoricalAccessor, ListMethods)  # fmt: skip
PANDAS_CLASSES = (pd.DataFrame, pd.Series, pd.core.groupby.DataFrameGroupBy, pd.core.groupby.SeriesGroupBy)
# What else a method of such a name may belong to.
OTHERS = (cudf.Index, str, bytes, dict, list, set, tuple, int, float, Path, np.random.Generator, pa.Array,
          pa.ChunkedArray, torch.Tensor, torch.nn.Module, Client)  # fmt: skip
MODULES = {"frames": cudf, "arrays": cupy}


class File:
    """A source file: its calls, and the names that stand for cuDF or CuPy and what is in them."""

    def __init__(self, path):
        self.tree = ast.parse(path if isinstance(path, str) else path.read_text())
        self.aliases = {"cudf": cudf, "cupy": cupy, "xp": cupy}
        imports = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import)]
        self.modules = {(item.asname or item.name).split(".")[0] for node in imports for item in node.names}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._alias(node.targets[0], node.value)

    def _alias(self, target, value):
        if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
            found = self.resolved(value)
            if found is not None:
                self.aliases[target.id] = found
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._alias(one, other)

    def resolved(self, node):
        """What of cuDF or CuPy the expression names; None for anything else. `AttributeError` where it has none."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolved(node.value)
            if owner is not None:
                return getattr(owner, node.attr)
            return None if isinstance(node.value, ast.Name) and node.value.id == "self" else MODULES.get(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "array_module":
            return cupy
        if isinstance(node, ast.Call) and ast.unparse(node) == "type(frame)":
            return cudf.DataFrame
        return None

    def imported(self, node):
        """Whether the expression is a module that the file imports, or lies in one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.modules

    def refused(self):
        """(line, call, why) of the calls that cuDF or CuPy would refuse."""
        for node in calls_for_cudf(self.tree):
            try:
                function = self.resolved(node.func)
            except AttributeError as error:
                yield node.lineno, ast.unparse(node), str(error)
                continue
            why = None
            if function is not None:
                why = judged(node, function, ())
            elif isinstance(node.func, ast.Attribute) and not self.imported(node.func.value):
                why = method_refused(node)
            if why:
                yield node.lineno, ast.unparse(node), why


def calls_for_cudf(node):
    """The calls, but for those in a branch of pandas alone."""
    if isinstance(node, ast.If) and "NAME == 'pandas'" in ast.unparse(node.test):
        inner = node.orelse
    else:
        inner = ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            yield node
    for child in inner:
        yield from calls_for_cudf(child)


def arguments(node):
    """(args, kwargs, whether all are spelled out): constants as they are, everything else unknown."""
    args = [constant(item) for item in node.args if not isinstance(item, ast.Starred)]
    kwargs, whole = {}, len(args) == len(node.args)
    for item in node.keywords:
        if item.arg:
            kwargs[item.arg] = constant(item.value)
        elif isinstance(item.value, ast.Dict) and all(isinstance(key, ast.Constant) for key in item.value.keys):
            kwargs |= {
                key.value: constant(value) for key, value in zip(item.value.keys, item.value.values, strict=True)
            }
        else:
            whole = False
    return args, kwargs, whole


def constant(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN if isinstance(node, ast.IfExp | ast.BoolOp) else Stand()  # given, hence hardly None


def judged(node, function, before, follow=True):
    """Why the function refuses the call's arguments, None if nothing says so. follow: into its source."""
    args, kwargs, whole = arguments(node)
    if inspect.isclass(function):
        before = (Stand(function),)
        function = function.__init__ if function.__init__ is not object.__init__ else function.__new__
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # compiled; its documentation names its keywords
        strange = [name for name in kwargs if not re.search(rf"\b{name}\b", function.__doc__ or name)]
        return f"{function.__name__} takes no {strange[0]}" if strange else None
    if function in vars(object).values():
        return None
    try:
        signature.bind(*before, *args, **kwargs)
        return refusal(function, (*before, *args), kwargs) if follow else None
    except TypeError as error:
        return str(error) if whole else None


def own_functions():
    found = {}
    for path in FILES:
        if path.name == "protocols.py":  # what cuDF and pandas share, without their arguments
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(node.args)
    return found


def own_takes(node):
    """Whether a function of ours of that name takes the arguments."""
    args, kwargs, _ = arguments(node)
    for spec in OWN.get(node.func.attr, ()):
        places = [item.arg for item in (*spec.posonlyargs, *spec.args) if item.arg not in ("self", "cls")]
        names = {*places, *(item.arg for item in spec.kwonlyargs)}
        if (spec.vararg or len(args) <= len(places)) and (spec.kwarg or set(kwargs) <= names):
            return True
    return False


OWN = own_functions()


def method_refused(node):
    name = node.func.attr
    if name.startswith("_") or not any(hasattr(kind, name) for kind in (*PANDAS_CLASSES, *CUDF_CLASSES)):
        return None
    if own_takes(node):
        return None
    reasons = [f"no class of cuDF has {name}"]
    kinds = (*OTHERS[1:], *CUDF_CLASSES, cupy.ndarray)
    if not any(hasattr(kind, name) for kind in CUDF_CLASSES):
        kinds += OTHERS[:1]
    for kind in kinds:
        if hasattr(kind, name):
            static = inspect.getattr_static(kind, name)
            before = () if isinstance(static, classmethod | staticmethod) else (Stand(kind),)
            follow = kind in CUDF_CLASSES
            if isinstance(static, property) or (why := judged(node, getattr(kind, name), before, follow)) is None:
                return None
            reasons.append(why)
    return "; ".join(dict.fromkeys(reasons))


def all_refused(source):
    return [call for _, call, _ in File(source).refused()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_call_of_the_sources_is_refused(path):
    assert list(File(path).refused()) == []


@pytest.mark.parametrize("call", [
    "engine.frames.DataFrame(columns, index=frame.index, copy=False)", "xp.no_such(a)",
    "engine.frames.merge_asof(a, b)",
    "engine_of(frame).frames.DataFrame.from_dict(columns, orient='sideways')", "xp.sort(values, kind='mergesort', a=1)",
    "frame.sort_values('a', kind='stable')", "frame.sort_values(['a'], key=len)", "frame.combine_first(other)",
    "frame.groupby('a', observed=False)", "frame.merge(other, on='a', validate='1:1')",
    "column.item_or_none.case_when(a)",
    "engine.frames.concat([a, b], keys=['x', 'y'])", "module.frames.Series(values, dtype='float16')",
    "engine.frames.to_datetime(column, exact=False)", "frame.unstack(sort=False)", "engine.frames.qcut(a, 3)",
    "type(frame)(columns, copy=False)", "engine.frames.DataFrame(columns, **{'copy': False})",
    "cudf.DataFrame(columns, copy=True)", "cudf.MultiIndex(a, b, sortorder=1)",
    "frame.where(kept, axis=0, level=1)", "series.where(kept, axis=0)", "frame.where(kept, level=1)",
    "frame.lt(other, level=1)", "frame.lt(other, axis='index')",
    "engine.frames.to_datetime(column, cache=False)",
])  # fmt: skip
def test_a_planted_call_is_refused(call):
    assert all_refused(f"def made(engine, columns):\n    if columns:\n        return [{call}]")[:1] == [call]


@pytest.mark.parametrize("call", [
    "engine.frames.DataFrame(columns, index=frame.index)", "frame.sort_values(['a', 'b'], ascending=[False, True])",
    "frame.groupby(['a'], sort=False).agg({'b': 'sum'})", "engine.frames.concat([a, b], ignore_index=True)",
    "xp.where(a, b, c)", "xp.full(3, -1, dtype='int64')", "xp.unique(a, return_index=True)",
    "frame.reset_index(drop=True)",
])  # fmt: skip
def test_a_sound_call_is_not(call):
    assert all_refused(call) == []


def test_an_alias_of_a_function_of_cudf_is_followed():
    assert all_refused("concat = engine.frames.concat\nconcat([a], names=['x'])") == ["concat([a], names=['x'])"]
