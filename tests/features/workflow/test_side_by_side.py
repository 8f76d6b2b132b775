"""Neighbouring steps whose columns enter the frame together give what the operators give one after the other."""

import warnings

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import FittedOperator, with_columns
from gigabatch.features.workflow.flow import side_by_side
from gigabatch.features.workflow.workflow import Workflow

STEPS = [
    {"expression": {"output": "c", "expression": "a + other"}},
    {"log": {"column": "b", "output": "b_log"}},  # beside the first
    {"clip": {"column": "a", "low": 0.5}},  # replaces what the first has read
    {"expression": {"output": "d", "expression": "a * 2"}},  # reads the replaced one
    {"fill_missing": {"column": "b"}},
    {"min_max": {"column": "c", "output": "c_scaled"}},
    {"expression": {"output": "c", "expression": "c * 3"}},  # the scaled one sees it before
    {"filter": {"column": "a", "op": ">", "value": 0.6}},  # leaves rows out
    {"expression": {"output": "e", "expression": "b_na + d"}},
]


def frame_of(rows: int = 40) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame({"a": random.random(rows), "b": random.random(rows), "other": np.arange(rows)}).mask(
        lambda frame: frame == frame["b"].min()
    )


def one_after_the_other(workflow: Workflow, frame: pd.DataFrame, train: bool) -> pd.DataFrame:
    for position, step in enumerate(workflow.steps):
        if isinstance(step, FittedOperator):
            state = workflow.states[position]
            frame = step.apply_to_train(frame, state) if train else step.apply(frame, state)
        else:
            frame = step(frame)
    return frame


@pytest.mark.parametrize("wide", [False, True])
def test_steps_side_by_side_are_the_operators_one_after_the_other(wide):
    frame = frame_of()
    if wide:
        frame = pd.concat([frame, pd.DataFrame({f"w{number}": frame["a"] for number in range(120)})], axis=1)
    frame.index = frame.index * 2 + 7
    before = frame.copy()
    workflow = Workflow.from_steps(STEPS).fit([frame])
    made = [workflow.made(position) for position in range(len(STEPS))]
    assert side_by_side(workflow.steps, made, range(len(STEPS))) == [[0, 1, 2], [3, 4, 5, 6], [7], [8]]
    pd.testing.assert_frame_equal(workflow.transform(frame), one_after_the_other(workflow, frame, train=False))
    pd.testing.assert_frame_equal(workflow.transform_train(frame), one_after_the_other(workflow, frame, train=True))
    pd.testing.assert_frame_equal(frame, before)


def test_many_steps_on_a_wide_frame_give_no_warning_of_pandas():
    """It said for each column behind the hundredth that the frame is fragmented, a thousand times a transform."""
    frame = pd.DataFrame({f"c{number}": [1.0, 2.0, 4.0] for number in range(90)})
    steps = [{"fill_missing": {"column": name}} for name in frame.columns]
    steps += [{"expression": {"output": f"{name}_x", "expression": f"{name}_na + {name}"}} for name in frame.columns]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Workflow.from_steps(steps).fit([frame]).transform(frame)
    assert found.shape == (3, 270)
    assert found["c7_x"].tolist() == [1.0, 2.0, 4.0]


def test_a_step_that_fails_beside_others_is_named():
    steps = [{"log": {"column": "a", "output": "x"}}, {"log": {"column": "b", "output": "y"}}]
    with pytest.raises(DataError, match=r"^step 2 \(log\): "):
        Workflow.from_steps(steps).fit([frame_of()]).transform(pd.DataFrame({"a": [1.0], "b": ["text"]}))


@pytest.mark.parametrize("columns", [3, 120])
def test_columns_enter_a_frame_by_their_index_as_in_pandas(columns):
    frame = pd.DataFrame({f"c{number}": [1.0, 2.0] for number in range(columns)})
    new = {"x": pd.Series([5, 6], index=[1, 0]), "c1": pd.Series([7.0, 8.0]), "y": 3, "z": np.array([1, 2])}
    for some in (new, {name: new[name] for name in ("c1",)}, {"u": pd.Series([1, 2], name="other")}):
        found = with_columns(frame.copy(), some)
        pd.testing.assert_frame_equal(found, frame.assign(**some))
