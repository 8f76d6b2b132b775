"""NaN is null in Arrow-backed floats too, for operators and workflows, as it is in the same floats of NumPy."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.engines.plain_types import as_plain
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.count_encoding import CountEncoding, LastBefore
from gigabatch.features.workflow.workflow import Workflow

STEPS = {
    "drop_nulls": {"columns": ["x"]},
    "filter": {"column": "x", "op": "!=", "value": 1.0},
    "filter null": {"column": "x", "op": "is_null"},
    "rolling": {"by": ["g"], "time": "t", "column": "x", "window": 9, "statistic": "count", "output": "n"},
    "fill_missing": {"column": "x"},
    "quantile_buckets": {"column": "x", "num_buckets": 2},
    "join_groupby": {"by": ["g"], "values": ["x"], "statistics": ["mean", "count"]},
    "log": {"column": "x", "output": "y"},
    "bucketize": {"column": "x", "edges": [2.0]},
    "clip": {"column": "x", "low": 2.0},
}


def frames(kind: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same rows, of Arrow with a NaN and a null, and of NumPy with two NaN."""
    rows = pd.DataFrame({"g": [1, 1, 1, 1], "t": [1, 2, 3, 4]})
    values = pa.array([1.0, np.nan, None, 4.0], kind)
    arrow = rows.assign(x=pd.arrays.ArrowExtensionArray(pa.chunked_array([values[:2], values[2:]])))
    return arrow, rows.assign(x=np.array([1.0, np.nan, np.nan, 4.0], kind))


def said(frame: pd.DataFrame) -> list:
    """The values, null and NaN as None: a column that a step does not make may pass through as it was."""
    return [[None if pd.isna(value) else value for value in row] for row in frame.astype("object").to_numpy().tolist()]


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_takes_a_nan_of_arrow_for_null(name, kind):
    arrow, numpy = frames(kind)
    before = arrow.copy()
    step = {name.split(" ")[0]: STEPS[name]}
    made = [Workflow.from_steps([step]).fit([frame]).transform(frame, whole_groups=True) for frame in (arrow, numpy)]
    assert said(made[0]) == said(made[1])
    (operator,) = Workflow.from_steps([step]).steps
    if isinstance(operator, FittedOperator):
        alone = [operator.apply(frame, operator.fit([frame])) for frame in (arrow, numpy)]
    else:
        alone = [operator(frame) for frame in (arrow, numpy)]
    assert said(alone[0][made[0].columns]) == said(alone[1][made[0].columns])
    assert np.isnan(arrow["x"].array.__arrow_array__()[1].as_py())
    pd.testing.assert_frame_equal(arrow, before)


LOOKED_UP = {
    "join_external": lambda table: JoinExternal(table, ["t"], {"x": "y"}),
    "last_before": lambda table: LastBefore(table, ["g"], {"x": "y"}, at="t", order="t"),
    "count_encoding": lambda table: CountEncoding(table, ["g"], "y", at="t"),
}


class Own(pd.DataFrame):
    """A frame of a library that builds on pandas, such as GeoPandas."""

    @property
    def _constructor(self):
        return Own


@pytest.mark.parametrize("way", ["arrow columns", "arrow table", "subclass"])
@pytest.mark.parametrize("name", LOOKED_UP)
def test_a_table_that_is_looked_up_may_be_of_any_library_and_its_nan_is_null(name, way):
    """A NaN of Arrow was a number there, and an Arrow table ended in an AttributeError."""
    arrow, numpy = frames("float64")
    given = {"arrow columns": arrow, "arrow table": pa.Table.from_pandas(arrow), "subclass": Own(arrow)}[way]
    asked = numpy[["g", "t"]].assign(t=[2, 3, 4, 5])
    found, expected = [LOOKED_UP[name](table)(asked)["y"] for table in (given, numpy)]
    assert found.isna().tolist() == expected.isna().tolist()
    assert found.dropna().tolist() == expected.dropna().tolist()
    known = {"join_external": [4.0], "last_before": [1.0, 4.0], "count_encoding": [1.0, 2.0, 3.0, 4.0]}
    assert found.dropna().tolist() == known[name]


def test_a_frame_that_builds_on_pandas_is_one_of_pandas():
    arrow, _ = frames("float64")
    assert as_plain(Own(arrow))["x"].isna().tolist() == [False, True, True, False]
