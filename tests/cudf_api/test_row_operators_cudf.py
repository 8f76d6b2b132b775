"""Row-wise operators on frames that refuse what cuDF lacks."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.operators.categories.clean_text import CleanText
from gigabatch.features.operators.categories.hash_bucket import HashBucket
from gigabatch.features.operators.categories.hashed_cross import HashedCross
from gigabatch.features.operators.lists.list_length import ListLength
from gigabatch.features.operators.lists.list_slice import ListSlice
from gigabatch.features.operators.missing.drop_nulls import DropNulls
from gigabatch.features.operators.numbers.bucketize import Bucketize
from gigabatch.features.operators.numbers.clip import Clip
from gigabatch.features.operators.numbers.expression import Expression
from gigabatch.features.operators.numbers.log import Log
from gigabatch.features.operators.rows.cast import Cast
from gigabatch.features.operators.rows.filter import Filter
from gigabatch.features.operators.rows.lambda_function import LambdaFunction, register_function
from gigabatch.features.operators.rows.rename import Rename
from gigabatch.features.reading.sources import cast, without_null_words
from tests.cudf_api.checked import CheckedFrame

register_function("doubled", lambda frame: frame + frame, inputs=["x"], outputs=["x"])

OPERATORS = [
    Bucketize("x", [0.0, 1.0]),
    Cast(["x", "number"], "float32"),
    Cast(["number"], "string"),
    Cast(["flag"], "bool", nullable=True),
    CleanText("key", case="upper", width=3),
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
    ListLength("list", "length"),
    ListSlice("list", -2),
    ListSlice("list", 0, 2, pad="0"),
    Log("number"),
    Rename({"x": "y"}),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_operator_uses_only_what_cudf_has(operator):
    frame = CheckedFrame({
        "key": ["a", None, "b"], "number": [1, 2, 3], "x": np.array([0.5, np.nan, 2.0]),
        "list": ["1|2|3", None, ""], "flag": ["True", None, "false"],
    })  # fmt: skip
    assert isinstance(operator(frame), CheckedFrame)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("datetime[%d.%m.%y %H:%M:%S.%f%z]", ["31.12.24 10:00:00.5+02:00", None]),
        ("datetime[%b %d, %Y %I:%M %p]", ["Dec 31, 2024 10:00 PM", None]),
        ("datetime[%Y%m%d]?", [20241231, 7]),
        ("datetime[%Y%j]?", [2024366, 7]),
        ("datetime[%Y%m%d]", [20241231.0, np.nan]),
        ("datetime[ms]", ["1700000000000", None]),
        ("datetime[s]?", [1.5, np.nan]),
        ("datetime[s]?", ["1.5", "-2", None]),
        ("datetime[ns]", [1999.5, 2.0]),
        ("datetime", pd.Categorical(["2024-12-31", None])),
        ("datetime[ns]", [1, 2]),
        ("int64", ["28.0", None]),
        ("int64", pd.Categorical(["28.0", "7"])),
    ],
)
def test_casts_use_only_what_cudf_has(dtype, values):
    frame = CheckedFrame({"at": values})
    assert isinstance(cast(frame, {"at": dtype}, "here", nullable=["at"]), CheckedFrame)


def test_null_words_use_only_what_cudf_has():
    frame = CheckedFrame({"key": ["a", "?", None], "x": [1.0, 2.0, 3.0]})
    found = without_null_words(frame, ["?"], {"key": "string", "x": "float32"})
    assert isinstance(found, CheckedFrame)
    frame = CheckedFrame({"x": np.array([1.0, -1.0]), "n": [1, -1], "key": pd.Categorical(["-1", "a"])})
    assert isinstance(without_null_words(frame, ["-1"], dict.fromkeys(frame.columns, "string")), CheckedFrame)
    assert found["key"].isna().tolist() == [False, True, True]
