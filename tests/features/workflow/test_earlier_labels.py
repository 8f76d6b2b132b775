"""Which columns are made of a label of earlier rows alone."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.evaluation.checks import Flag, without_earlier

ORDER = {"by": ["shop"], "time": "day"}
STEPS = [
    {"expression": {"output": "double", "expression": "2 * sold"}},
    {"lag": {**ORDER, "column": "sold", "periods": 1, "output": "before"}},
    {"lag": {**ORDER, "column": "double", "periods": 1, "output": "double_before"}},
    {"rolling": {**ORDER, "column": "before", "window": 9, "statistic": "mean", "output": "mean_before"}},
    {"lag": {**ORDER, "column": "price", "periods": 1, "output": "price_before"}},
    {"join_groupby": {"by": ["shop"], "values": ["sold"], "statistics": ["mean"]}},
    {"difference_lag": {"by": ["shop"], "order": "day", "column": "sold", "output": "step"}},
    {"expression": {"output": "change", "expression": "sold - before"}},
]


@pytest.fixture(scope="module")
def fitted() -> tuple[Workflow, pd.DataFrame]:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({
        "shop": np.tile(["a", "b"], 30), "day": np.repeat(np.arange(30), 2), "price": draw.normal(size=60),
        "sold": draw.normal(size=60),
    })  # fmt: skip
    return Workflow.from_steps(STEPS).fit([frame]), frame


def test_columns_that_look_back_at_a_label_are_told(fitted):
    workflow, _ = fitted
    assert workflow.earlier("sold") == {"before", "double_before", "mean_before"}
    assert workflow.earlier("price") == {"price_before"}


def test_a_rows_own_label_changes_none_of_them(fitted):
    """The others that are made of it do change, so that the comparison can fail."""
    workflow, frame = fitted
    names = ["before", "double_before", "mean_before", "double", "change", "step"]
    whole = workflow.transform(frame, whole_groups=True)[names]
    for row in (0, 17, 59):
        changed = frame.assign(sold=frame["sold"].where(frame.index != row, 99.0))
        other = workflow.transform(changed, whole_groups=True)[names]
        same = [name for name in names if whole.at[row, name] == other.at[row, name] or pd.isna(whole.at[row, name])]
        assert set(same) - {"change", "step"} == workflow.earlier("sold")
        assert {"change", "step"}.issubset(same) == (row == 0)  # which has none before


def test_warnings_of_other_columns_and_of_other_targets_stay():
    leak, outside = "may leak sold", "outside train's range: 40% of test"
    flags = [
        Flag("leaks", "before", leak), Flag("leaks too", "price", leak), Flag("leaks it", "before", "may leak late"),
        Flag("grows", "before", outside), Flag("grows too", "price", outside), "worse than the mean",
    ]  # fmt: skip
    earlier = {"sold": {"before"}, "late": set()}
    kept = ["leaks too", "leaks it", "grows too", "worse than the mean"]
    assert without_earlier(flags, earlier, True) == kept
    assert without_earlier(flags, earlier, False) == [*kept[:2], "grows", *kept[2:]]
