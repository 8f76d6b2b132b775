"""The scaling, bucketing, window and sequence operators on frames that refuse what cuDF lacks."""

import numpy as np
import pytest

from gigabatch.features.history.group_aggregates import AGGREGATIONS
from gigabatch.features.operators.groups.folded_target_encoding import FoldedTargetEncoding
from gigabatch.features.operators.groups.join_groupby import JoinGroupby
from gigabatch.features.operators.history.difference_lag import DifferenceLag
from gigabatch.features.operators.history.groupby_to_sequence import GroupbyToSequence
from gigabatch.features.operators.history.lag import Lag
from gigabatch.features.operators.history.rolling import STATISTICS, Rolling
from gigabatch.features.operators.lists.list_slice import _join_by_place
from gigabatch.features.operators.missing.fill_missing import STRATEGIES, FillMissing
from gigabatch.features.operators.numbers.gauss_rank import GaussRank
from gigabatch.features.operators.numbers.min_max import MinMax
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.operators.numbers.quantile_buckets import QuantileBuckets
from tests.cudf_api.checked import CheckedFrame


def frame():
    rng = np.random.default_rng(3)
    return CheckedFrame({
        "key": rng.choice(["a", "b", "c", None], 60), "number": rng.integers(0, 5, 60), "row": np.arange(60),
        "value": np.where(rng.random(60) < 0.2, np.nan, rng.integers(-5, 5, 60)), "x": rng.normal(size=60),
    })  # fmt: skip


FITTED = [
    MinMax("x"),
    *(FillMissing("value", "all", strategy) for strategy in STRATEGIES if strategy != "constant"),
    FillMissing("value", strategy="constant", value=1.5),
    FillMissing("number"),
    FillMissing("value", method="sketch"),
    Normalize("x"),
    QuantileBuckets("value", 4),
    QuantileBuckets("value", 4, method="sketch"),
    GaussRank("x"),
    FoldedTargetEncoding(("key", "number"), ["value", "x"], "row"),
    JoinGroupby(("key", "number"), ["value", "x"], ["count", "sum", "mean", "min", "max", "std"]),
]
GROUPWISE = [
    DifferenceLag(("key", "number"), "row", "value", "d"),
    *(
        Lag(("key", "number"), "row", column, "l", **reach)
        for column in ("value", "key", "x")
        for reach in ({}, {"span": 3})
    ),
    *(Rolling(("key",), "row", column, 9, statistic, "r") for statistic in STATISTICS for column in ("value", "x")),
]


@pytest.mark.parametrize("operator", FITTED, ids=lambda operator: type(operator).__name__)
def test_fitted_operator_uses_only_what_cudf_has(operator):
    whole = frame()
    state = operator.fit([whole.iloc[:20], whole.iloc[20:]])
    for found in (operator.apply(whole, state), operator.apply_to_train(whole, state)):
        assert isinstance(found, CheckedFrame)
        assert len(found) == 60


@pytest.mark.parametrize("operator", GROUPWISE, ids=lambda operator: type(operator).__name__)
def test_groupwise_operator_uses_only_what_cudf_has(operator):
    found = operator(frame())
    assert isinstance(found, CheckedFrame)
    assert len(found) == 60


def test_sequences_use_only_what_cudf_has():
    several = {f"{name}_{how}": (name, how) for name in ("number", "value", "x") for how in AGGREGATIONS}
    found = GroupbyToSequence(("key",), "row", ["number"], 3, aggregations=several)(frame())
    assert isinstance(found, CheckedFrame)
    assert found["key"].tolist() == ["a", "b", "c"]


def test_lists_joined_by_place_use_only_what_cudf_has():
    entries = CheckedFrame({"entry": ["a", "b", "c"]})["entry"]
    assert _join_by_place(entries, np.array([2, 0, 1]), "|").tolist() == ["a|b", "", "c"]
