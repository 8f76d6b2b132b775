"""Every operator, the preprocessor and the recipes on frames that refuse what cuDF lacks."""

import inspect
import types

import cudf
import numpy as np
import pytest

import gigabatch.features.engines.pandas as engine_pandas
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.asof import AsOf, Count, Last, Mean
from gigabatch.features.operators.history.count_encoding import CountEncoding
from gigabatch.features.operators.history.rank_within_group import RankWithinGroup
from gigabatch.features.operators.history.waiting import Waiting
from gigabatch.features.operators.missing.fill_missing import FillMissing
from gigabatch.features.operators.numbers.difference import Difference
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.operators.rows.date_parts import PARTS, DateParts
from gigabatch.features.schema import Column, Schema, Target
from tests.cudf_api.checked import CheckedFrame, CheckedSeries, NotInCudf


def frame() -> CheckedFrame:
    rng = np.random.default_rng(3)
    n = 60
    return CheckedFrame(
        {
            "key": rng.choice(["a", "b", "c", None], n),
            "number": rng.integers(0, 5, n),
            "at": rng.integers(0, 1000, n),
            "known": np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 1000, n)),
            "value": np.where(rng.random(n) < 0.2, np.nan, rng.integers(-5, 5, n)),
            "x": rng.normal(size=n).astype("float32"),
            "row": np.arange(n),
            "hit": rng.integers(0, 2, n),
            "fold": rng.integers(0, 3, n),
        }
    )


OPERATORS = {
    "AsOf": lambda: AsOf(
        ("key", "number"),
        "at",
        "known",
        [Count("n"), Mean("value", "m", smoothing=3.0), Mean("value", "w", window=50), Last({"value": "last"})],
        "row",
    ),
    "Waiting": lambda: Waiting(("key",), "at", "known", "waiting"),
    "DateParts": lambda: DateParts("at", PARTS, "t"),
    "Difference": lambda: Difference("value", "x", "d"),
    "JoinExternal": lambda: JoinExternal(
        CheckedFrame({"key": ["a", "b"], "other": [1.0, 2.0]}), ("key",), {"other": "other"}
    ),
    "RankWithinGroup": lambda: RankWithinGroup(("number",), "x", "rank"),
    "CountEncoding": lambda: CountEncoding(frame(), ("number",), "count", at="at"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_uses_only_what_cudf_has(name):
    result = OPERATORS[name]()(frame())
    assert isinstance(result, CheckedFrame)
    assert len(result) == 60


@pytest.mark.parametrize("operator", [Categorify("key"), Categorify("number", 2), FillMissing("value"), Normalize("x")])
def test_fitted_operator_uses_only_what_cudf_has(operator):
    whole = frame()
    state = operator.fit([whole.iloc[:20], whole.iloc[20:]])
    assert len(operator.apply(whole, state)) == 60


def test_preprocessor_uses_only_what_cudf_has():
    schema = Schema(
        (
            Column("key", "categorical", "string"),
            Column("number", "categorical", "int64"),
            Column("value", "continuous", "float32"),
            Column("hit", "target", "float32"),
            Column("fold", "group", "int64"),
        ),
        (Target("hit", "binary"),),
    )
    data = frame()
    preprocessor = Preprocessor(schema).fit([data.iloc[:30], data.iloc[30:]])
    assert len(preprocessor.transform(data)) == 60
    assert len(preprocessor.vocabularies["key"].decode(np.array([3, 1, 4]))) == 3


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda df: df.combine_first(df),
        lambda df: df.groupby("number").transform("nunique"),
        lambda df: df.groupby("number")["x"].quantile(0.5, numeric_only=True, bogus=1),
        lambda df: df["x"].case_when([]),
        lambda df: df["x"].item(),
        lambda df: df.align(df),
        lambda df: df.set_axis(["a"], axis=1),
    ],
)
def test_the_check_catches_what_cudf_lacks(forbidden):
    control = types.FunctionType(forbidden.__code__, {"__name__": "control"})
    with pytest.raises(NotInCudf):
        control(frame())


@pytest.mark.parametrize("name", ["merge_asof", "qcut", "Categorical"])
def test_the_check_catches_functions_that_cudf_lacks(name):
    with pytest.raises(NotInCudf):
        getattr(engine_pandas.frames, name)


def test_the_cudf_engine_imports_and_has_the_same_functions():
    from gigabatch.features.engines import cudf as engine_cudf
    from gigabatch.features.engines import cudf_plain

    def functions(module, *others):
        names = [one.__name__ for one in (module, *others)]
        return {
            name: list(inspect.signature(function).parameters)
            for name, function in vars(module).items()
            if inspect.isfunction(function) and function.__module__ in names and not name.startswith("_")
        }

    import importlib

    expected = functions(importlib.reload(engine_pandas))
    assert functions(cudf_plain) == expected
    assert functions(engine_cudf, cudf_plain) == expected
    assert isinstance(cudf.__version__, str)
    assert CheckedSeries([1]).sum() == 1


def test_code_that_only_cudf_runs_uses_names_that_exist():
    import ast

    import cupy
    import pyarrow as pa
    import pyarrow.parquet as pq
    from cudf.core.accessors.lists import ListMethods
    from cudf.core.accessors.string import StringMethods
    from cudf.core.groupby.groupby import DataFrameGroupBy

    from gigabatch.features.engines.frame import FloatWord, IdWord
    from gigabatch.features.exact.column_statistics import ColumnStatistics
    from gigabatch.features.exact.quantiles import Search
    from gigabatch.features.operators.lists import explode_lists

    ours = {name for kind in (FloatWord, IdWord) for name in kind.__dataclass_fields__}
    owners = (
        cudf, cupy, cudf.DataFrame, cudf.Series, DataFrameGroupBy, StringMethods, ListMethods, cupy.ndarray,
        np.dtype, ColumnStatistics, FloatWord, Search, pq, pa.Schema,
    )  # fmt: skip
    # test_engine_cudf_calls.py looks at every call of the engines.
    sources = [inspect.getsource(explode_lists._split_cudf)]
    names = {node.attr for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    unknown = {name for name in names - ours if not any(hasattr(owner, name) for owner in owners)}
    assert len(names) > 5
    assert not unknown
