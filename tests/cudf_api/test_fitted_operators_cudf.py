"""The scaling, bucketing, window and sequence operators on frames that refuse what cuDF lacks."""

import numpy as np
import pytest

pytest.importorskip("cudf", reason="the cuDF API check runs in its own environment: make test-cudf-api")
from checked import CheckedFrame, check_everything

from features.operators.difference_lag import DifferenceLag
from features.operators.gauss_rank import GaussRank
from features.operators.groupby_to_sequence import GroupbyToSequence
from features.operators.join_groupby import JoinGroupby
from features.operators.min_max import MinMax
from features.operators.quantile_buckets import QuantileBuckets
from features.operators.rolling import STATISTICS, Rolling


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    check_everything(monkeypatch)


def frame():
    rng = np.random.default_rng(3)
    return CheckedFrame({
        "key": rng.choice(["a", "b", "c", None], 60), "number": rng.integers(0, 5, 60), "row": np.arange(60),
        "value": np.where(rng.random(60) < 0.2, np.nan, rng.integers(-5, 5, 60)), "x": rng.normal(size=60),
    })  # fmt: skip


FITTED = [
    MinMax("x"),
    QuantileBuckets("value", 4),
    GaussRank("x"),
    JoinGroupby(("key", "number"), ["value", "x"], ["count", "sum", "mean", "min", "max", "std"]),
]
GROUPWISE = [
    DifferenceLag(("key", "number"), "row", "value", "d"),
    *(Rolling(("key",), "row", "value", 9, statistic, "r") for statistic in STATISTICS),
]


@pytest.mark.parametrize("operator", FITTED, ids=lambda operator: type(operator).__name__)
def test_fitted_operator_uses_only_what_cudf_has(operator):
    whole = frame()
    found = operator.apply(whole, operator.fit([whole.iloc[:20], whole.iloc[20:]]))
    assert isinstance(found, CheckedFrame)
    assert len(found) == 60


@pytest.mark.parametrize("operator", GROUPWISE, ids=lambda operator: type(operator).__name__)
def test_groupwise_operator_uses_only_what_cudf_has(operator):
    found = operator(frame())
    assert isinstance(found, CheckedFrame)
    assert len(found) == 60


def test_sequences_use_only_what_cudf_has():
    found = GroupbyToSequence(("key",), "row", ["number"], 3)(frame())
    assert isinstance(found, CheckedFrame)
    assert found["key"].tolist() == ["a", "b", "c"]
