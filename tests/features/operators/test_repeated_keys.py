"""A key column that is named twice: refused where a user names it."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features import operators
from gigabatch.features.errors import DataError
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.asof import AsOf, Count
from gigabatch.features.operators.history.target_encoding import TargetEncoding
from gigabatch.features.workflow.workflow import Workflow

TWICE = ["a", "b", "a"]
STEPS = [
    {"rolling": {"by": TWICE, "time": "t", "column": "y", "window": 9, "statistic": "count", "output": "n"}},
    {"join_groupby": {"by": TWICE, "values": ["y"], "statistics": ["count"]}},
    {"folded_target_encoding": {"by": TWICE, "targets": ["y"], "fold_key": "t"}},
    {"target_encoding": {"by": TWICE, "hits": "y", "output": "r", "at": "t"}},
    {"rank_within_group": {"by": TWICE, "value": "t", "output": "r"}},
    {"difference_lag": {"by": TWICE, "order": "t", "column": "y", "output": "d"}},
    {"waiting": {"by": TWICE, "planned_at": "t", "happened_at": "y", "output": "w"}},
    {"groupby_to_sequence": {"by": TWICE, "order": "t", "columns": ["y"], "max_length": 3}},
]


def frame_of(rows: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame({
        "a": random.integers(0, 3, rows), "b": random.integers(0, 4, rows), "t": np.arange(rows),
        "y": random.integers(0, 2, rows),
    })  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda step: next(iter(step)))
def test_a_key_that_is_named_twice_is_refused(step):
    """Codes began anew at the first key's second place, so that rows were grouped by that column alone."""
    with pytest.raises(DataError, match=r"by names 'a' more than once"):
        Workflow.from_steps([step])


def test_a_key_of_a_joined_table_that_is_named_twice_is_refused():
    table = pd.DataFrame({"a": [1], "city": ["x"]})
    with pytest.raises(DataError, match=r"on names 'a' more than once"):
        Workflow([JoinExternal(table, ["a", "a"], {"city": "city"})])
    aggregations = [Count("n")]
    with pytest.raises(DataError, match=r"by names 'a' more than once"):
        Workflow([AsOf(TWICE, "t", "t", aggregations, "t")])


def test_groups_by_a_column_twice_are_those_of_the_columns():
    frame = frame_of()
    codes = pd.Series(group_codes(frame, frame, TWICE)[0])
    wanted = frame.groupby(["a", "b"]).ngroup()
    assert codes.groupby(wanted).nunique().eq(1).all()
    assert codes.nunique() == wanted.nunique()
    left, right = group_codes(frame.head(99), frame, TWICE)
    assert (left == right[:99]).all()


@pytest.mark.parametrize(("by", "fold"), [(["a", "b"], "a"), (["a", "b"], "b"), (["a"], "a"), (["b"], "a")])
def test_a_fold_that_is_a_key_leaves_the_prior(by, fold):
    """Trials of the own fold exceeded the key's, and the last rows were null."""
    frame, wanted = frame_of(), []
    for _, own in frame.iterrows():
        others = frame[(frame["t"] < own["t"]) & (frame[fold] != own[fold])]
        same = others[(others[by] == own[by]).all(axis=1)]
        wanted.append((same["y"].sum() + others["y"].mean()) / (len(same) + 1) if len(others) else np.nan)
    found = TargetEncoding(by, "y", "r", at="t", fold=fold, smoothing=1.0)(frame)["r"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


BY_TEXT = {
    "JoinGroupby": lambda: operators.JoinGroupby("city", ["x"], ["mean"]),
    "JoinGroupby: statistics": lambda: operators.JoinGroupby(["city"], ["x"], "mean"),
    "DifferenceLag": lambda: operators.DifferenceLag("city", "at", "x", "d"),
    "GroupbyToSequence": lambda: operators.GroupbyToSequence("city", "at", ["x"], 3),
    "GroupbyToSequence: columns": lambda: operators.GroupbyToSequence(["city"], "at", "item", 3),
    "History": lambda: operators.History("city", "at", "row", "x", 3, "h"),
    "RankWithinGroup": lambda: operators.RankWithinGroup("city", "x", "r"),
    "Rolling": lambda: operators.Rolling("city", "at", "x", 3, "mean", "m"),
    "TargetEncoding": lambda: operators.TargetEncoding("city", "hit", "t", at="at"),
    "AsOf": lambda: operators.AsOf("city", "at", "done", [], "row"),
    "Waiting": lambda: operators.Waiting("city", "at", "done", "w"),
    "CountEncoding": lambda: operators.CountEncoding(pd.DataFrame({"city": ["a"]}), "city", "n", at="at"),
}


@pytest.mark.parametrize("name", BY_TEXT)
def test_text_in_the_place_of_a_list_of_names_is_refused(name):
    """It was taken for a name a letter."""
    with pytest.raises(DataError, match=rf"{name}.* is a list of names, found '\w+'\. Write \['"):
        BY_TEXT[name]()
