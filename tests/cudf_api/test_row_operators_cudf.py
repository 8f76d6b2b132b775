"""Row-wise operators on frames that refuse what cuDF lacks."""

import numpy as np
import pytest

pytest.importorskip("cudf", reason="the cuDF API check runs in its own environment: make test-cudf-api")

from checked import CheckedFrame, check_everything

from features.operators.bucketize import Bucketize
from features.operators.cast import Cast
from features.operators.clip import Clip
from features.operators.drop_nulls import DropNulls
from features.operators.expression import Expression
from features.operators.filter import Filter
from features.operators.hash_bucket import HashBucket
from features.operators.hashed_cross import HashedCross
from features.operators.lambda_function import LambdaFunction, register_function
from features.operators.list_slice import ListSlice
from features.operators.log import Log
from features.operators.rename import Rename

register_function("doubled", lambda frame: frame + frame, inputs=["x"], outputs=["x"])

OPERATORS = [
    Bucketize("x", [0.0, 1.0]),
    Cast(["x", "number"], "float32"),
    Cast(["number"], "string"),
    Cast(["flag"], "bool", nullable=True),
    Clip("x", 0.0, 1.0),
    DropNulls(["key"]),
    Expression("y", "where(x > 0 and number != 2, log1p(x) ** 2, number % 2) + fill(x, 0) // clip(number, 0, 1)"),
    Filter("x", ">", 0),
    Filter("number", "<=", 2.5),
    Filter("key", "in", ["a", "b"]),
    Filter("key", "is_null"),
    HashBucket("key", 10),
    HashedCross(["key", "number"], 10, "cross"),
    LambdaFunction("doubled"),
    ListSlice("list", -2),
    ListSlice("list", 0, 2, pad="0"),
    Log("number"),
    Rename({"x": "y"}),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_operator_uses_only_what_cudf_has(operator, monkeypatch):
    check_everything(monkeypatch)
    frame = CheckedFrame({
        "key": ["a", None, "b"], "number": [1, 2, 3], "x": np.array([0.5, np.nan, 2.0]),
        "list": ["1|2|3", None, ""], "flag": ["True", None, "false"],
    })  # fmt: skip
    assert isinstance(operator(frame), CheckedFrame)
