"""What cuDF takes by keyword, as a file: so that the suite sees refused arguments where cuDF is not installed.

python -m tests.cudf_api.keywords writes tests/features/engines/cudf_keywords.json; a test here holds it against cuDF.
"""

import inspect
import json
from pathlib import Path

import cudf
from cudf.core.accessors.categorical import CategoricalAccessor
from cudf.core.accessors.lists import ListMethods
from cudf.core.accessors.string import StringMethods
from cudf.core.groupby.groupby import DataFrameGroupBy, SeriesGroupBy
from cudf.core.series import DatetimeProperties

from tests.cudf_api.refusals import Stand, refusal

FILE = Path(__file__).parents[1] / "features" / "engines" / "cudf_keywords.json"
CLASSES = (cudf.DataFrame, cudf.Series, DataFrameGroupBy, SeriesGroupBy, StringMethods, DatetimeProperties,
           CategoricalAccessor, ListMethods)  # fmt: skip
VALUES = (None, True, False, 0, 1, 3, "index", "stable", "mergesort")


def spec(function, before):
    """Keywords that it takes, and the values of each that it refuses; `**` where it takes any.

    `{"only": value}` instead of values: it refuses or ignores all but its default.
    """
    parameters = inspect.signature(function).parameters
    named = [item for item in list(parameters.values())[len(before) :] if item.kind != item.VAR_POSITIONAL]
    if any(item.kind == item.VAR_KEYWORD for item in named):
        return "**"
    needed = {item.name: "a" if item.name == "pat" else Stand() for item in named if item.default is item.empty}
    needed |= {item.name: Stand() for item in named if item.name == "by"}
    found = {item.name: [] for item in named}
    if refusal(function, before, needed) is not None:  # refused whatever the keywords are: they say nothing
        return found
    for item in named:
        plain = isinstance(item.default, bool | int | str | None)
        if plain and refusal(function, before, needed | {item.name: Stand()}) is not None:
            found[item.name] = {"only": item.default}
            continue
        given = (kwargs for kwargs in ((value, needed | {item.name: value}) for value in VALUES))
        found[item.name] = [value for value, kwargs in given if refusal(function, before, kwargs) is not None]
    return found


def keywords():
    """{"frames": {name: spec}, "methods": {name: spec of each class that has it}}; None for what has no keywords."""
    frames, methods = {}, {}
    for name in sorted(cudf.__all__):
        value = getattr(cudf, name)
        if inspect.isclass(value) and value.__init__ is not object.__init__:
            frames[name] = spec(value.__init__, (Stand(value),))
        else:
            frames[name] = spec(value, ()) if inspect.isfunction(value) else "**"
    for kind in CLASSES:
        for name in dir(kind):
            static = inspect.getattr_static(kind, name)
            if name.startswith("_"):
                continue
            if not inspect.isfunction(static):
                methods.setdefault(name, []).append("**")
            else:
                methods.setdefault(name, []).append(spec(static, (Stand(kind),)))
    return {"version": cudf.__version__, "frames": frames, "methods": dict(sorted(methods.items()))}


def text():
    return json.dumps(keywords(), indent=None, separators=(",", ":"), sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
