"""Calls that cuDF would refuse, found in the sources where cuDF is not installed.

`cudf_keywords.json` says which keywords cuDF's functions take and which values of them they refuse. It is made by
`python -m tests.cudf_api.keywords`; `make test-cudf-api` follows cuDF's source itself and sees far more.
"""

import ast
import inspect
import json
import re
from pathlib import Path

import pandas as pd
import pytest

import gigabatch

ROOT = Path(gigabatch.__file__).parent
TABLE = json.loads((Path(__file__).parent / "cudf_keywords.json").read_text())
HOST = ("features/engines/pandas.py", "features/engines/arrow_columns.py", "features/synthetic/")
FILES = [path for path in sorted(ROOT.glob("*/**/*.py")) if not str(path.relative_to(ROOT)).startswith(HOST)
         and (path.relative_to(ROOT).parts[0] == "features" or "features.engines" in path.read_text())]  # fmt: skip
PANDAS = (
    pd.DataFrame,
    pd.Series,
    pd.core.groupby.DataFrameGroupBy,
    pd.Series.str,
    pd.core.indexes.accessors.Properties,
)


def refused(source):
    """The calls of `….frames.NAME(…)`, `cudf.NAME(…)` and of pandas' methods whose keywords cuDF refuses."""
    tree = ast.parse(source)
    aliases = {
        target.id: node.value for node in ast.walk(tree) if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name) and isinstance(node.value, ast.Attribute)
    }  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = aliases.get(node.func.id, node.func) if isinstance(node.func, ast.Name) else node.func
        if re.fullmatch(r"type\(\w+\)|\w+\.__class__", ast.unparse(function)):
            if any(keyword.arg == "copy" for keyword in node.keywords) and not takes(
                TABLE["frames"]["DataFrame"], node.keywords
            ):
                yield ast.unparse(node)
            continue
        if isinstance(function, ast.Attribute):
            owner, name = ast.unparse(function.value), function.attr
            bare = owner == "cudf" or (owner == "frames" and name in TABLE["frames"])
            if bare or (owner.endswith(".frames") and owner != "self.frames"):
                specs = [TABLE["frames"][name]] if name in TABLE["frames"] else []
            elif (
                owner not in ("np", "xp", "self.xp")
                and node.keywords
                and name in TABLE["methods"]
                and pandas_takes(name, node)
            ):
                specs = TABLE["methods"][name]
            else:
                continue
            if not any(takes(spec, node.keywords) for spec in specs):
                yield ast.unparse(node)


def pandas_takes(name, node):
    """Whether some class of pandas has such a method: what is refused here would run on a CPU."""
    for kind in PANDAS:
        if callable(getattr(kind, name, None)):
            parameters = inspect.signature(getattr(kind, name)).parameters
            if all(keyword.arg in parameters for keyword in node.keywords):
                return True
    return False


def spelled_out(keywords):
    """Those of `**{"name": value}` too; nothing is said of another `**`."""
    for keyword in keywords:
        if keyword.arg is not None:
            yield keyword
        elif isinstance(keyword.value, ast.Dict):
            pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
            yield from (ast.keyword(key.value, value) for key, value in pairs if isinstance(key, ast.Constant))


def takes(spec, keywords):
    """Whether a function with this entry of the table takes the keywords; what is no constant may have any value."""
    if spec == "**":
        return True
    for keyword in spelled_out(keywords):
        if keyword.arg not in spec:
            return False
        values = spec[keyword.arg]
        if isinstance(keyword.value, ast.Constant):
            given = keyword.value.value
            among = any(value == given and type(value) is type(given) for value in listed(values))
            if among != ("only" in values):  # a list of refused values, or the one that is not
                return False
    return True


def listed(values):
    return [values["only"]] if isinstance(values, dict) else values


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_call_has_a_keyword_that_cudf_refuses(path):
    assert list(refused(path.read_text())) == []


@pytest.mark.parametrize("call", [
    "engine.frames.DataFrame(columns, index=frame.index, copy=False)",
    "engine.frames.merge_asof(left, right)", "frame.sort_values(['a'], kind='stable')", "frame.sort_values('a', key=3)",
    "frame.groupby('a', observed=False)", "module.frames.to_datetime(column, exact=False)",
    "engine_of(frame).frames.qcut(column, 4)", "frames.DataFrame(columns, copy=False)",
    "type(frame)(columns, copy=False)", "frame.__class__(columns, copy=False)",
    "engine.frames.DataFrame(columns, **{'copy': False})", "frame.where(kept, axis=0, level=1)",
    "frame.where(kept, axis=2)", "frame.where(kept, level='a')", "frame.lt(other, level=1)",
    "engine.frames.to_datetime(column, cache=False)",
])  # fmt: skip
def test_a_planted_keyword_is_refused(call):
    assert list(refused(f"found = [{call}]")) == [call]


def test_another_name_of_a_constructor_is_followed():
    assert list(refused("Frame = engine.frames.DataFrame\nFrame(a, copy=False)")) == ["Frame(a, copy=False)"]


@pytest.mark.parametrize("call", [
    "engine.frames.DataFrame(columns, index=frame.index)", "frame.sort_values(names, ascending=[True, False])",
    "frame.groupby('a', sort=False)", "frame.groupby('a', dropna=False)", "frame.merge(other, on='a', how='left')",
    "engine.frames.concat(parts, ignore_index=True)", "frame.reset_index(drop=True)",
    "frame.where(kept, other, axis=None)", "operator.merge(left, right=other)",
])  # fmt: skip
def test_a_sound_call_is_not(call):
    assert list(refused(call)) == []
