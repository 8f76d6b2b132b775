"""The cuDF engines' own calls, by their sources: each name exists and each call's arguments bind in cuDF or CuPy.

Also the table recipe on frames that refuse what cuDF lacks.
"""

import ast
import inspect
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import cudf
import cupy
import numpy as np
import pandas as pd
import pyarrow as pa
import pylibcudf
import pytest
from cudf.core.frame import Frame
from cudf.core.groupby.groupby import DataFrameGroupBy

from gigabatch.features import engines
from gigabatch.features.engines import cudf_plain
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from tests.cudf_api.checked import CheckedFrame, NotInCudf, check_call

MODULES = {"cudf": cudf, "cupy": cupy, "cupy.cuda": cupy.cuda}
CLASSES = (cudf.DataFrame, cudf.Series, DataFrameGroupBy, cupy.ndarray, np.dtype, pylibcudf.Column)
PLAIN = ("torch", "torch.cuda", "torch.from_numpy(rows)", "np", "pd", "pq", "warnings", "contextlib", "fsspec", "io")
# Names in the engines that stand for objects of this project, of Python or of NumPy.
OURS = (
    "ColumnStatistics",
    "DataError",
    "cudf_plain",
    "search",
    "word",
    "item",
    "held",
    "found",
    "counts",
    "patterns[place]",
    "wanted",
    "one",
    "current",  # stream
    "tables",
    "file",
    "str(path)",
)
SOURCES = [(Path(engines.__file__).parent / f"{name}.py").read_text() for name in ("cudf", "cudf_plain")]


def calls(source):
    """Every call `owner.name(...)` of the source whose owner is not another plain module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if ast.unparse(owner) not in (*PLAIN, *OURS):
                yield node


def candidates(node):
    """(function, whether it takes self) that the call may mean: one for a module, one a class for a method."""
    name, (module, *inside) = node.func.attr, ast.unparse(node.func.value).split(".")
    if module in MODULES and all(part.isidentifier() for part in inside):  # a function of it or of its submodule
        try:
            return [(attrgetter(".".join([*inside, name]))(MODULES[module]), False)]
        except AttributeError:
            return []
    return [(getattr(kind, name), True) for kind in CLASSES if hasattr(kind, name)]


def binds(node, function, bound_to):
    """None if the call's positional and keyword arguments fit the signature, else why not."""
    keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
    try:
        signature = inspect.signature(function)
        signature.bind(*([None] * (len(node.args) + bound_to)), **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:  # a compiled function without a signature
        return None
    return None


def refused(source):
    """The calls that nothing in cuDF or CuPy accepts."""
    return [ast.unparse(node) for node in calls(source) if all(binds(node, *option) for option in candidates(node))]


@pytest.mark.parametrize("source", SOURCES, ids=["cudf", "cudf_plain"])
def test_every_call_of_the_cudf_engines_fits_cudf_or_cupy(source):
    assert len(list(calls(source))) > 30
    assert refused(source) == []


@pytest.mark.parametrize(
    "call",
    ["cudf.merge_asof(a, b)", "cudf.DataFrame(a, bogus=1)", "frame.combine_first(a)", "cupy.no_such()",
     "cupy.cuda.no_such()", "frame.to_parquet()", "column.case_when(a)", "frame.sort_values(a, colour=1)"],
)  # fmt: skip
def test_the_source_check_catches_what_does_not_exist(call):
    assert refused(call) == [call]


def test_arguments_that_cudf_does_not_implement_are_refused():
    other = cudf.Series  # never called: only the guard on the other argument is judged
    check_call("Series.cov", cudf.Series.cov, (other,), {}, cudf.Series)
    with pytest.raises(NotInCudf, match=r"NotImplementedError"):
        check_call("Series.cov", cudf.Series.cov, (other,), {"min_periods": 3}, cudf.Series)


@pytest.mark.parametrize("settings", [{"time": "at"}, {"group": "shop"}, {}])
def test_table_recipe_uses_only_what_cudf_has(tmp_path, settings):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "shop": [f"s{i // 2}" for i in range(400)], "x": rng.normal(size=400), "w": rng.uniform(size=400),
        "late": rng.choice(["yes", "no."], 400), "kind": rng.choice(["a", "b"], 400), "price": rng.normal(size=400),
        "at": [f"2013-01-{1 + i % 28:02d}T00:00:00Z" for i in range(400)],
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    targets = {
        "late": {"task": "binary", "positive": "yes", "label_strip": "."},
        "kind": {"task": "multiclass"},
        "price": {"task": "regression"},
    }
    shop = {} if settings.get("group") else {"categorical": ("shop",)}
    chosen = TableSettings(
        path=str(tmp_path / "t.csv"), continuous=("x",), weight="w", targets=targets, **shop, **settings
    )
    tables = TableRecipe(chosen).build("pandas")
    assert isinstance(tables.splits["train"], CheckedFrame)
    assert sum(map(len, tables.splits.values())) == 400


class Reached(Exception):
    """cuDF has taken the type."""


class TypedColumn:
    """A column that is only a type; cuDF's own `to_cupy` says whether it becomes an array."""

    def __init__(self, dtype):
        self.dtype = dtype

    def astype(self, kind):
        return TypedColumn(cudf.dtype(kind))

    def has_nulls(self):
        raise Reached

    def to_cupy(self):
        return Frame.to_cupy(SimpleNamespace(_num_columns=1, _columns=[self]))


@pytest.mark.parametrize("kind", [
    "Int8", "Int64", "UInt32", "Float32", "Float64", "boolean", "int64[pyarrow]", "bool[pyarrow]", "float[pyarrow]",
])  # fmt: skip
def test_pandas_own_types_become_those_of_cudf_before_arrays(kind, monkeypatch):
    column = TypedColumn(pd.api.types.pandas_dtype(kind))
    with pytest.raises(TypeError, match="Cannot interpret"):
        column.to_cupy()
    with pytest.raises(Reached):
        cudf_plain.array(column)

    class TypedFrame(dict):
        columns = property(lambda self: list(self))

        def astype(self, kinds):
            return {name: self[name].astype(kinds[name]) if name in kinds else self[name] for name in self}

    given = {"a": column, "b": TypedColumn(np.dtype("float32")), "c": TypedColumn(pd.StringDtype(na_value=np.nan))}
    monkeypatch.setattr(cudf, "from_pandas", TypedFrame)
    found = cudf_plain.from_pandas(given)
    assert found["a"].dtype == np.dtype(
        {"float[pyarrow]": "float32", "boolean": "bool"}.get(kind, kind.lower().partition("[")[0])
    )
    assert found["b"] is given["b"]
    assert found["c"] is given["c"]


@pytest.mark.parametrize(("dtype", "taken"), [
    (pd.StringDtype(na_value=np.nan), True), (np.dtype("object"), True), (pd.StringDtype(), False),
    (pd.ArrowDtype(pa.string()), False), (cudf.Decimal64Dtype(5, 2), False), (cudf.ListDtype("int64"), False),
    (cudf.StructDtype({"a": "int64"}), False),
])  # fmt: skip
def test_only_text_of_cudfs_own_type_is_taken_as_text(dtype, taken):
    assert (cudf_plain.as_typed(TypedColumn(dtype), "string", False) is not None) is taken
