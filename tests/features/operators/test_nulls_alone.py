"""A column of nothing but null, of whatever type pandas gives it, is text without a value."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch import Workflow
from gigabatch.features.operators import Cast, ParseDuration, ParseNumber

NULLS = {
    "float": pd.Series([np.nan, np.nan]),  # as read_csv gives it of a day without tags
    "object": pd.Series([None, None], dtype=object),
    "str": pd.Series([None, None], dtype="str"),
    "category": pd.Series([None, None], dtype="category"),
    "Int64": pd.Series([None, None], dtype="Int64"),
    "NaT": pd.Series([pd.NaT, pd.NaT]),
    "no rows": pd.Series([], dtype="float64"),
    "no rows, object": pd.Series([], dtype=object),
    "no rows, dates": pd.Series([], dtype="datetime64[us]"),
}
# Of each step: its arguments, and what it makes of a null (None where there is no row of it).
STEPS = {
    "text_flags": ({"column": "t", "prefix": "has_"}, {"has_a": 0.0, "has_b": 0.0}),
    "categorify": ({"column": "t", "separator": "|"}, {"t": []}),
    "explode_lists": ({"lists": {"t": ["one", "string"]}, "position": "place", "keep": []}, None),
    "list_length": ({"column": "t", "output": "n"}, {"n": 0}),
    "list_slice": ({"column": "t", "start": 0, "stop": 1, "pad": "z"}, {"t": "z"}),
    "clean_text": ({"column": "t", "case": "lower"}, {"t": None}),
    "text_hash": ({"column": "t", "prefix": "h", "num_buckets": 2}, {"h_0": 0.0, "h_1": 0.0}),
    "text_tokens": ({"column": "t", "output": "w"}, {"w": []}),
}


def plain(value):
    return list(value) if np.ndim(value) else None if pd.isna(value) else value


@pytest.mark.parametrize("kind", NULLS)
@pytest.mark.parametrize("step", STEPS)
def test_it_is_taken_to_fit_and_to_transform(step, kind):
    arguments, made = STEPS[step]
    full, nulls = pd.DataFrame({"t": ["a|b", "b", None]}), pd.DataFrame({"t": NULLS[kind]})
    whole = Workflow.from_steps([{step: arguments}]).fit([full])
    found = whole.transform(nulls)
    assert len(found) == (0 if made is None else len(nulls))
    for name, expected in (made or {}).items():
        assert [plain(value) for value in found[name]] == [expected] * len(nulls)
    parts = Workflow.from_steps([{step: arguments}]).fit([nulls, full, nulls])
    pd.testing.assert_frame_equal(parts.transform(full), whole.transform(full))
    Workflow.from_steps([{step: arguments}]).fit([nulls]).transform(nulls)


@pytest.mark.parametrize(
    "dtype",
    [
        "datetime64[us]", "datetime64[us, UTC]", "timedelta64[us]", "boolean", "category", "Int64", "object", "str",
        *(pd.ArrowDtype(kind) for kind in (
            pa.null(), pa.timestamp("us"), pa.date32(), pa.time64("us"), pa.decimal128(5, 2), pa.large_string(),
            pa.dictionary(pa.int32(), pa.string()),
        )),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_are_read_of_it_and_it_is_cast(dtype):
    frame = pd.DataFrame({"t": pd.Series([None, None], dtype=dtype, index=[7, 3])})
    operators = [ParseNumber("t"), ParseDuration("t")]
    operators += [Cast(["t"], kind) for kind in ("float32", "float64", "string")]
    operators += [Cast(["t"], kind, True) for kind in ("int32", "int64", "bool", "datetime", "datetime[%d.%m.%Y]")]
    expected = ["float64", "float64", "float32", "float64", None, "Int32", "Int64", "boolean", "Int64", "Int64"]
    for operator, kind in zip(operators, expected, strict=True):
        found = operator(frame)["t"]
        assert found.isna().tolist() == [True, True], operator
        assert found.index.tolist() == [7, 3]
        assert kind in (None, str(found.dtype)), operator
