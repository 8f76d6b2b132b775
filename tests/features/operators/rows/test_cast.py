"""Cast on literal columns and against Python's own conversions."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.cast import DTYPES, Cast
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


def only(column, dtype, **options):
    frame = pd.DataFrame({"x": column, "other": range(len(column))}, index=np.arange(len(column)) * 3 + 1)
    found = assert_row_wise(Cast(["x"], dtype, **options), frame)
    pd.testing.assert_frame_equal(found[["other"]], frame[["other"]])
    return found["x"]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([3.0, -4.0], "int64", [3, -4]),
        (["7", "-8"], "int32", [7, -8]),
        (["28.0", "-8.", "+7", " 9.00 "], "int64", [28, -8, 7, 9]),
        (["9007199254740993.0", "1"], "int64", [2**53 + 1, 1]),
        ([True, False], "int32", [1, 0]),
        (["1.5", "-2e3"], "float64", [1.5, -2000.0]),
        ([16777217, 1], "float32", [16777216.0, 1.0]),
        ([7, 8], "string", ["7", "8"]),
        ([True, False], "string", ["True", "False"]),
        (pd.Categorical(["b", "a"]), "string", ["b", "a"]),
        (["TRUE", "0"], "bool", [True, False]),
        ([1.0, 0.0], "bool", [True, False]),
        (pd.array([5, 6], dtype="Int64"), "int64", [5, 6]),
        (pd.array(["true", "0"], dtype="string[pyarrow]"), "bool", [True, False]),
        (pd.array(["true", "0"], dtype=pd.ArrowDtype(pa.large_string())), "bool", [True, False]),
    ],
)
def test_values_that_fit(values, dtype, expected):
    found = only(values, dtype)
    assert str(found.dtype) == {"string": "str"}.get(dtype, dtype)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([1.5], "int64", "declared int64 .*fraction"),
        (pd.Series([1.5, True], dtype=object).values, "int64", "declared int64 .*fraction"),
        (pd.Series([2.5, None, False, 3], dtype=object).values, "int32", "declared int32 .*(fraction|null)"),
        ([2**31], "int32", "declared int32 .*range of int32"),
        ([2.0**60], "int64", "declared int64 .*2\\^53"),
        ([np.inf], "int64", "declared int64"),
        ([1e300], "int64", "declared int64"),
        (["1.5"], "int64", "declared int64 .*'1.5' is not written as a whole number"),
        (["1.0e0"], "int64", "'1.0e0' is not written as a whole number: digits 0 to 9, a sign.* cast to float64"),
        (["2.0", "1.50"], "int64", "'1.50' is not written as a whole number"),
        ([".0"], "int64", "'.0' is not written as a whole number"),
        (["9223372036854775808.0"], "int64", "declared int64"),
        (["1e3"], "int32", "'1e3' is not written as a whole number"),
        (["seven"], "int64", "'seven' is not written as a number"),
        (["seven"], "float64", "declared float64"),
        ([1.0, None], "int64", r"declared int64 .*1 null\(s\)"),
        ([1.0, None], "bool", r"declared bool .*1 null\(s\)"),
        (["no"], "bool", "declared bool .*other than true, false, 0 and 1"),
        ([1e300], "float32", "beyond float32"),
        (["1e300"], "float32", "beyond float32"),
        ([0.5], "string", "is float64, which engines write differently"),
        (pd.to_datetime(["2020-01-01"]), "string", "is datetime64.*write differently"),
    ],
)
def test_values_that_do_not_fit_are_an_error_that_names_the_column(values, dtype, message):
    with pytest.raises(DataError, match=f"Cast: column 'x' (is|holds) ?.*{message.removeprefix('is ')}"):
        Cast(["x"], dtype)(pd.DataFrame({"x": values}))


@pytest.mark.parametrize("dtype", ["boolean", pd.ArrowDtype(pa.bool_()), "object", "category"])
def test_flags_beside_nulls_are_whole_numbers(dtype):
    found = only(pd.Series([True, None, False], dtype=dtype).array, "int64", nullable=True)
    assert str(found.dtype) == "Int64"
    assert [None if pd.isna(value) else int(value) for value in found] == [1, None, 0]


def test_nulls_stay_in_floats_and_text():
    assert only([1, None], "float32").isna().tolist() == [False, True]
    found = only(pd.array([1, None], dtype="Int64"), "string")
    assert found.isna().tolist() == [False, True]
    assert only([None, None], "string").isna().all()
    np.testing.assert_array_equal(only(["inf", "1", None], "float32"), [np.inf, 1, np.nan])


@given(
    values=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=12),
    dtype=st.sampled_from(["int32", "int64", "float64"]),
)
@settings(max_examples=examples(15), deadline=None)
def test_nullable_integers_as_by_a_loop(values, dtype):
    operator = Cast(["x"], dtype, nullable=dtype != "float64")
    texts = pd.array([None if v is None else str(v) for v in values], dtype="str")
    for column in (np.array(values, dtype="float64"), pd.array(values, dtype="Int64"), texts):
        frame = pd.DataFrame({"x": column})
        found = assert_row_wise(operator, frame)["x"]
        assert [None if pd.isna(v) else int(v) for v in found] == values
        assert str(found.dtype) == {"int32": "Int32", "int64": "Int64"}.get(dtype, dtype)


def test_several_columns_and_settings():
    operator = Cast(("a", "b"), "float32")
    found = operator(pd.DataFrame({"a": [1], "b": ["2.5"], "c": ["x"]}))
    assert found.iloc[0].tolist() == [1, 2.5, "x"]
    assert operator.settings() == {"columns": ("a", "b"), "dtype": "float32"}


def test_what_cannot_be_asked_for_is_an_error():
    with pytest.raises(DataError, match=f"Cast of x: unknown dtype 'int8'. Known: {', '.join(DTYPES)}"):
        Cast(["x"], "int8")
    with pytest.raises(DataError, match="Cast: give a list of one or more columns, found 'x'"):
        Cast("x", "int64")
    with pytest.raises(DataError, match="Cast of x: float32 holds nulls anyway"):
        Cast(["x"], "float32", nullable=True)


@pytest.mark.parametrize(("dtype", "written", "expected"), [
    ("datetime", ["1970-01-01T00:00:01Z", "1970-01-01T01:00+01:00"], [1_000_000, 0]),
    ("datetime[%d.%m.%Y]", ["02.01.1970", "01.01.1970"], [86_400_000_000, 0]),
    ("datetime[s]", [1, 2], [1_000_000, 2_000_000]),
])  # fmt: skip
def test_times_of_every_type_become_microseconds(dtype, written, expected):
    found = Cast(["at"], dtype)(pd.DataFrame({"at": written}))["at"]
    assert found.tolist() == expected
    assert str(found.dtype) == "int64"
    nulls = pd.DataFrame({"at": [written[0], None]})
    with pytest.raises(DataError, match=r"'at' is declared datetime.*1 null"):
        Cast(["at"], dtype)(nulls)
    found = Cast(["at"], dtype, nullable=True)(nulls)["at"]
    assert found.tolist() == [expected[0], pd.NA]
    assert str(found.dtype) == "Int64"


def test_an_unknown_kind_of_time_is_refused():
    with pytest.raises(DataError, match="unknown unit 'century'"):
        Cast(["at"], "datetime[century]")


@pytest.mark.parametrize("null", [None, np.nan, pd.NA, pd.NaT])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("values", [[1.5, 2.0], [1, 2], ["1", "2"], [True, False], [1.0, True]])
def test_any_null_among_objects_is_null_and_no_fraction_is_cut_off(values, dtype, null):
    column = pd.Series([None, *values], dtype=object)
    column.iat[0] = null
    if dtype == "int64" and 1.5 in values:
        with pytest.raises(DataError, match="some values have a fraction"):
            Cast(["x"], dtype, nullable=True)(pd.DataFrame({"x": column}))
        return
    found = Cast(["x"], dtype, nullable=dtype == "int64")(pd.DataFrame({"x": column}))["x"]
    assert found.isna().tolist() == [True, False, False]
    assert [float(value) for value in found[1:]] == [float(value) for value in values]
