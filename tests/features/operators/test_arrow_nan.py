"""NaN is null in Arrow-backed floats too, for operators and workflows, as it is in the same floats of NumPy."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.operators.base import FittedOperator
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
