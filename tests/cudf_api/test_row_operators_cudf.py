"""Row-wise operators on frames that refuse what cuDF lacks."""

import numpy as np
import pytest

pytest.importorskip("cudf", reason="the cuDF API check runs in its own environment: make test-cudf-api")

from checked import CheckedFrame, check_everything

from features.operators.bucketize import Bucketize
from features.operators.clip import Clip
from features.operators.drop_nulls import DropNulls
from features.operators.hash_bucket import HashBucket
from features.operators.hashed_cross import HashedCross
from features.operators.log import Log
from features.operators.rename import Rename

OPERATORS = [
    Bucketize("x", [0.0, 1.0]),
    Clip("x", 0.0, 1.0),
    DropNulls(["key"]),
    HashBucket("key", 10),
    HashedCross(["key", "number"], 10, "cross"),
    Log("number"),
    Rename({"x": "y"}),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_operator_uses_only_what_cudf_has(operator, monkeypatch):
    check_everything(monkeypatch)
    frame = CheckedFrame({"key": ["a", None, "b"], "number": [1, 2, 3], "x": np.array([0.5, np.nan, 2.0])})
    assert isinstance(operator(frame), CheckedFrame)
