"""FillMissing: numpy's median, an exact mean, the most frequent value or a constant in place of nulls."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.missing import fill_missing
from gigabatch.features.operators.missing.fill_missing import Fill, FillMissing
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut


def frame_of(values, dtype="float32"):
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


def fill_of(value, values):
    return Fill(value, True, values.count(None) / len(values), silent=None not in values)


def test_fills_and_says_where():
    operator = FillMissing("x")
    frame = frame_of([1, None, 4, np.nan, 7]).set_index(pd.Index([3, 1, 4, 1, 5]))
    found = operator.apply(frame, operator.fit([frame]))
    assert found["x"].tolist() == [1, 4, 4, 4, 7]
    assert found["x_na"].tolist() == [0, 1, 0, 1, 0]
    assert found.index.tolist() == [3, 1, 4, 1, 5]
    assert {str(t) for t in found.dtypes} == {"float32"}
    assert frame["x"].isna().sum() == 2


@pytest.mark.parametrize(("indicator", "flags"), [("auto", [0, 0]), ("all", [1, 0])])
def test_a_null_that_first_appears_later_is_filled_without_a_new_column(indicator, flags):
    """What has never seen a 1 is not given one, unless that is asked for."""
    operator = FillMissing("x", indicator)
    state = operator.fit([frame_of([1, 2, 9])])
    found = operator.apply(frame_of([None, 3]), state)
    assert found["x"].tolist() == [2, 3]
    assert found["x_na"].tolist() == flags
    assert str(found["x_na"].dtype) == "float32"


@pytest.mark.parametrize("indicator", ["auto", "all"])
@pytest.mark.parametrize(
    ("nulls", "rows", "few"),
    [(2, 100_000, True), (9, 9_000, True), (9, 8_999, False), (10, 100_000, False), (1, 999, False), (1, 1_000, True)],
)
def test_a_flag_of_hardly_any_rows_stays_0(nulls, rows, few, indicator):
    """Their labels would be learnt by heart: two films of 100,000 without a year told the rating of every later one."""
    values = np.arange(rows, dtype="float32")
    values[:nulls] = np.nan
    operator, frame = FillMissing("x", indicator), pd.DataFrame({"x": values})
    state = operator.fit([frame[:7], frame[7:]])
    found = operator.apply(frame, state)
    assert (found["x"][:nulls] == np.median(values[nulls:])).all()
    assert found["x_na"].sum() == (0 if few and indicator == "auto" else nulls)
    assert state.null_rate == nulls / rows


@pytest.mark.parametrize(("indicator", "columns"), [("all", ["x", "x_na"]), ("none", ["x"]), ("auto", ["x", "x_na"])])
@pytest.mark.parametrize("values", [[1, 2], [1, None]])
def test_the_indicator_setting_alone_decides_the_columns(indicator, values, columns):
    """F10: whether the train split of a night holds a null does not."""
    operator = FillMissing("x", indicator)
    frame = frame_of(values)
    state = operator.fit([frame])
    assert list(operator.apply(frame, state).columns) == columns
    assert list(operator.outputs) == list(operator.outputs_of(state)) == columns


WILD = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from([0.0, -0.0, 2.0**-149, 1.0, 2.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(values=st.lists(st.none() | WILD, max_size=40), count=COUNTS, seed=st.integers(0, 999))
@settings(max_examples=examples(40), deadline=None)
def test_the_median_of_wild_values_is_numpys(dtype, values, count, seed):
    values = [*values, 3.0]
    known = np.array([value for value in values if value is not None])
    expected = fill_of(np.median(known), values)
    assert FillMissing("x").fit(cut(frame_of(values, dtype), count, seed)) == expected


@given(values=st.lists(st.none() | WILD, max_size=40), count=COUNTS, seed=st.integers(0, 999))
@settings(max_examples=examples(40), deadline=None)
def test_the_mean_is_the_exact_one_rounded_once(values, count, seed):
    values = [*values, 3.0]
    known = [value for value in values if value is not None]
    found = FillMissing("x", strategy="mean").fit(cut(frame_of(values), count, seed))
    assert found.value == float(sum(map(Fraction, known)) / len(known))
    assert found == fill_of(found.value, values)


def test_the_mean_of_large_integers_is_exact():
    values = [2**62 + 1, 2**62 + 1, 2**62 + 1]
    assert FillMissing("x", strategy="mean").fit([frame_of(values, "int64")]).value == float(2**62 + 1)


@given(values=st.lists(st.none() | st.integers(-3, 3) | WILD, max_size=40), count=COUNTS, seed=st.integers(0, 999))
@settings(max_examples=examples(40), deadline=None)
def test_the_mode_is_the_smallest_of_the_most_frequent(values, count, seed):
    values = [*values, 3.0]
    counts = Counter(value + 0.0 for value in values if value is not None)
    expected = min(counts, key=lambda value: (-counts[value], value))
    found = FillMissing("x", strategy="mode").fit(cut(frame_of(values), count, seed))
    assert found == fill_of(expected, values)


def test_a_mode_among_too_many_values_is_refused_whatever_the_partitions(monkeypatch):
    monkeypatch.setattr(fill_missing, "MOST_DISTINCT", 5)
    operator = FillMissing("x", strategy="mode")
    assert operator.fit([frame_of([1, 2, 3, 3]), frame_of([3, 4, 5])]).value == 3.0
    for parts in ([[1, 2, 3, 4, 5, 6]], [[1, 2, 3], [4, 5, 6]]):
        with pytest.raises(DataError, match=r"'x' has more than 5 distinct values.*Use strategy median, mean or const"):
            operator.fit([frame_of(part) for part in parts])


@given(values=st.lists(st.none() | WILD, min_size=1, max_size=40), count=COUNTS, seed=st.integers(0, 999))
@settings(max_examples=examples(30), deadline=None)
def test_a_constant_needs_no_known_value(values, count, seed):
    operator = FillMissing("x", strategy="constant", value=-1.5)
    found = operator.fit(cut(frame_of(values), count, seed))
    assert found == fill_of(-1.5, values)
    assert operator.apply(frame_of([None, 2]), found)["x"].tolist() == [-1.5, 2]


@given(values=st.lists(st.none() | WILD, max_size=60), count=COUNTS, seed=st.integers(0, 999))
@settings(max_examples=examples(40), deadline=None)
def test_a_sketch_is_as_near_as_it_says_and_does_not_depend_on_partitions(values, count, seed):
    values = [*values, 3.0]
    known = np.array([value for value in values if value is not None])
    found = FillMissing("x", method="sketch").fit(cut(frame_of(values), count, seed))
    assert found == FillMissing("x", method="sketch").fit([frame_of(values)])
    assert abs(found.value - np.median(known)) <= found.error


def test_a_sketch_of_many_values_is_within_a_256th():
    values = np.random.default_rng(0).gamma(2, 50, 20_000).astype("float32")
    found = FillMissing("x", method="sketch").fit([frame_of(values)])
    exact = float(np.median(values.astype("float64")))
    assert abs(found.value - exact) <= found.error <= exact * 2.0**-8


@pytest.mark.parametrize("strategy", ["median", "mean", "mode"])
def test_all_null_is_an_error_that_offers_a_constant(strategy):
    with pytest.raises(DataError, match=rf"'x': all 2 rows.*no {strategy}.*fill it with a constant"):
        FillMissing("x", strategy=strategy).fit([frame_of([None]), frame_of([]), frame_of([None])])


@pytest.mark.parametrize(
    ("dtype", "values", "median"),
    [
        ("bool", [True, True, False], 1.0),
        ("boolean", [True, None, False], 0.5),
        ("int8", [1, 2, 4], 2.0),
        ("Int64", [1, None, 4], 2.5),
        ("uint64", [2**63, 2**63, 1], 2.0**63),
        ("Float32", [0.5, None, 1], 0.75),
        ("object", [None, None, None], None),
        ("float16", [1, 2, 4], 2.0),
    ],
)
def test_columns_of_any_number_type(dtype, values, median):
    frame = frame_of(values, dtype)
    operator = FillMissing("x") if median is not None else FillMissing("x", strategy="constant", value=7)
    state = operator.fit([frame])
    expected = 7.0 if median is None else median
    assert state.value == expected
    found = operator.apply(frame, state)
    assert {str(dtype) for dtype in found.dtypes} == {"float32"}
    assert found["x"].tolist() == [np.float32(expected if value is None else value) for value in values]


def test_partitions_of_two_float_types_are_refused_by_name():
    with pytest.raises(DataError, match=r"column 'x': one partition holds float32, another float64.*Cast the column"):
        FillMissing("x").fit([frame_of([1]), frame_of([2], "float64")])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"indicator": "maybe"}, r"unknown indicator 'maybe'. Known: auto, all, none"),
        ({"strategy": "middle"}, r"unknown strategy 'middle'. Known: median, mean, mode, constant"),
        ({"strategy": "constant"}, r"strategy constant takes a value, found None"),
        ({"value": 3}, r"strategy median takes no value, found 3"),
        ({"method": "fast"}, r"unknown method 'fast'. Known: exact, sketch"),
        ({"strategy": "mean", "method": "sketch"}, r"sketch is for the median; mean is always exact"),
        ({"strategy": "constant", "value": math.nan}, r"value nan is not a finite float32"),
        ({"strategy": "constant", "value": 1e39}, r"value 1e\+39 is not a finite float32"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        FillMissing("x", **settings)


def test_text_as_the_constant_is_refused():
    """It ended in an error of the module struct."""
    with pytest.raises(DataError, match=r"FillMissing of 'city': value is 'none', and only numbers.*Categorify"):
        FillMissing("city", strategy="constant", value="none")
