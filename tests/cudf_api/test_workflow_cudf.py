"""A workflow's fit, transform and serving on frames that refuse what cuDF lacks."""

import numpy as np

from gigabatch.features.workflow.workflow import Workflow
from tests.cudf_api.checked import CheckedFrame

STEPS = [
    {"drop_nulls": {"columns": ["label"]}},
    {"log": {"column": "x", "output": "log_x", "invalid": "null"}},
    {"fill_missing": {"column": ["log_x", "x"]}},
    {"min_max": {"column": "log_x"}},
    {"hashed_cross": {"columns": ["key", "number"], "num_buckets": 9, "output": "cross"}},
    {"folded_target_encoding": {"by": ["key"], "targets": ["label"], "fold_key": "row"}},
    {"categorify": {"column": "key"}},
    {"difference_lag": {"by": ["number"], "order": "row", "column": "x", "output": "change"}},
    {"rename": {"mapping": {"cross": "key_number"}}},
]


def test_a_workflow_uses_only_what_cudf_has():
    rng = np.random.default_rng(3)
    frame = CheckedFrame({
        "key": rng.choice(["a", "b", None], 60), "number": rng.integers(0, 5, 60), "row": np.arange(60),
        "x": np.where(rng.random(60) < 0.2, np.nan, rng.normal(size=60)), "label": rng.integers(0, 2, 60) * 1.0,
    })  # fmt: skip
    dtypes = {"row": "int64", "key": "string", "x": "float64"}
    operators = Workflow.from_steps(STEPS).steps
    workflow = Workflow(operators, labels=["label"], dtypes=dtypes)
    found = workflow.fit_transform([frame.iloc[:20], frame.iloc[20:]])
    assert [len(part) for part in found] == [20, 40]
    serving = workflow.serving(["log_x", "key_number", "label_encoded_by_key", "key"])
    served = serving.transform(serving.typed(frame[list(serving.applied_inputs)]))
    assert isinstance(served, CheckedFrame)
    assert list(served.columns) == ["log_x", "key_number", "label_encoded_by_key", "key"]
    assert workflow.to_mermaid().startswith("flowchart LR")
