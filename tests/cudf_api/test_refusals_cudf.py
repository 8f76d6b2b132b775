"""What the check sees of cuDF's own guards: every one at the top of a public function, by listing them."""

import ast
import inspect

import cudf
import pytest
from cudf.core.accessors.string import StringMethods
from cudf.core.groupby.groupby import DataFrameGroupBy, SeriesGroupBy
from cudf.core.series import DatetimeProperties

from tests.cudf_api.checked import CheckedFrame, CheckedSeries, NotInCudf
from tests.cudf_api.keywords import FILE, text
from tests.cudf_api.refusals import Stand, _definition, refusal

CLASSES = (cudf.DataFrame, cudf.Series, cudf.Index, cudf.MultiIndex, cudf.RangeIndex, DataFrameGroupBy, SeriesGroupBy,
           StringMethods, DatetimeProperties)  # fmt: skip
VAR_NAMED = inspect.Parameter.VAR_KEYWORD
VALUES = (True, False, "bogus", 1, 3, "stable", ["a"], None)


def public():
    """(name, function, its self) of cuDF's functions, classes and their methods, each once."""
    found = {}
    for kind in CLASSES:
        for name in ["__init__", *(name for name in dir(kind) if not name.startswith("_"))]:
            static = inspect.getattr_static(kind, name)
            if isinstance(static, classmethod | staticmethod):
                found.setdefault(inspect.unwrap(static.__func__), (f"{kind.__name__}.{name}", getattr(kind, name), ()))
            elif inspect.isfunction(static):
                found.setdefault(inspect.unwrap(static), (f"{kind.__name__}.{name}", static, (Stand(kind),)))
    for name in cudf.__all__:
        if inspect.isfunction(getattr(cudf, name)):
            found.setdefault(inspect.unwrap(getattr(cudf, name)), (f"cudf.{name}", getattr(cudf, name), ()))
    return found


def guarded():
    """(where, function, args, kwargs) of calls that a guard on one argument, at the top of a function, refuses."""
    for plain, (where, function, before) in public().items():
        definition = _definition(plain)
        for node in definition.body if definition else ():
            if isinstance(node, ast.If) and any(isinstance(inner, ast.Raise) for inner in node.body):
                call = firing(node.test, plain, inspect.signature(function).parameters, before)
                if call:
                    yield f"{where}({call[0]}={call[1][call[0]]!r})", function, before, call[1]


def firing(test, plain, parameters, before):
    """(the parameter that the test is on, keyword arguments that make it true), None where no value here does."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} & set(parameters)
    for value in VALUES if len(names) == 1 else ():
        (name,) = names
        if value is parameters[name].default or parameters[name].kind in (inspect.Parameter.VAR_POSITIONAL, VAR_NAMED):
            continue
        try:
            if not eval(ast.unparse(test), {**plain.__globals__}, {name: value}):
                continue
        except Exception:
            continue
        needed = [item for item in list(parameters.values())[len(before) :]
                  if item.default is item.empty and item.kind == item.POSITIONAL_OR_KEYWORD]  # fmt: skip
        # A pattern is text; one that is compiled brings its own flags.
        return name, {item.name: "a" if item.name == "pat" else Stand() for item in needed} | {name: value}
    return None


CALLS = list(guarded())


def test_there_are_many():
    assert len(CALLS) > 120


@pytest.mark.parametrize(("where", "function", "before", "kwargs"), CALLS, ids=[call[0] for call in CALLS])
def test_a_guard_of_cudf_is_seen(where, function, before, kwargs):
    assert refusal(function, before, kwargs) is not None


SERIES = CheckedSeries([1.0, 2.0])
FRAME = CheckedFrame({"a": [1, 2], "b": [3.0, 4.0]})


@pytest.mark.parametrize("text", [
    "np.asarray(series)", "list(series)", "[x for x in series]", "series.tolist()", "series.array",
    "frame.a_b_c.iloc[0]",
    "frame.sort_values('a', kind='stable')", "frame.groupby('a', observed=False)", "series.astype('float16')",
    "frame['a'].fillna(0, limit=1)", "frames.DataFrame(frame, copy=False)", "frames.Series(series, dtype='float16')",
    "frames.DataFrame.from_dict({'a': [1]}, orient='sideways')", "setattr(series, 'values', 3)",
    "series.where(series > 0, axis=0, level=1)", "frame.lt(3, level=1)", "series.dropna(how='all')",
    "frames.concat([frame, frame], keys=['x', 'y'])", "series.str.replace('a', 'b', case=True)",
])  # fmt: skip
def test_a_planted_use_is_refused_when_it_runs(text):
    import numpy as np

    import gigabatch.features.engines.pandas as engine

    scope = {"__name__": "control", "np": np, "series": SERIES, "frame": FRAME, "frames": engine.frames}
    with pytest.raises((NotInCudf, AttributeError)):
        eval(compile(text, "planted", "eval"), scope)


def test_the_file_of_keywords_is_that_of_the_cudf_installed():
    """Where it is not: python -m tests.cudf_api.keywords."""
    assert FILE.read_text() == text()
