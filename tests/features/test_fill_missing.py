"""FillMissing: numpy's median in place of nulls."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.errors import DataError
from features.operators.fill_missing import Fill, FillMissing

NUMBERS = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=40)


def frame_of(values, dtype="float32"):
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


@given(values=NUMBERS, cuts=st.lists(st.integers(0, 40), max_size=7), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_fit_is_numpys_median_for_any_partitions(values, cuts, seed):
    known = [v for v in values if v is not None]
    frame, operator = frame_of(values), FillMissing("x")
    bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    parts = [frame.iloc[a:b] for a, b in itertools.pairwise(bounds)]
    parts = [parts[i] for i in np.random.default_rng(seed).permutation(len(parts))]
    if not known:
        with pytest.raises(DataError, match=f"'x': all {len(values)} rows"):
            operator.fit(parts)
        return
    found = operator.fit(parts)
    assert found.value == np.median(np.array(known, dtype="float64"))
    assert found.null_rate == values.count(None) / len(values)
    assert found.indicator == (None in values)


def test_fills_and_says_where():
    operator = FillMissing("x")
    frame = frame_of([1, None, 4, np.nan, 7]).set_index(pd.Index([3, 1, 4, 1, 5]))
    found = operator.apply(frame, operator.fit([frame]))
    assert found["x"].tolist() == [1, 4, 4, 4, 7]
    assert found["x_na"].tolist() == [0, 1, 0, 1, 0]
    assert found.index.tolist() == [3, 1, 4, 1, 5]
    assert {str(t) for t in found.dtypes} == {"float32"}
    assert frame["x"].isna().sum() == 2


def test_a_null_that_first_appears_later_is_filled_without_a_new_column():
    operator = FillMissing("x")
    state = operator.fit([frame_of([1, 2, 9])])
    found = operator.apply(frame_of([None, 3]), state)
    assert list(found.columns) == ["x"]
    assert found["x"].tolist() == [2, 3]


@pytest.mark.parametrize(("indicator", "columns"), [("all", ["x", "x_na"]), ("none", ["x"]), ("auto", ["x"])])
def test_the_indicator_setting_decides_the_columns(indicator, columns):
    operator = FillMissing("x", indicator)
    frame = frame_of([1, 2])
    assert list(operator.apply(frame, operator.fit([frame])).columns) == columns


def test_none_gives_no_indicator_even_with_nulls():
    assert FillMissing("x", "none").fit([frame_of([1, None])]) == Fill(1.0, False, 0.5)


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_an_infinity_is_an_error(bad):
    with pytest.raises(DataError, match=r"'x' holds an infinity"):
        FillMissing("x").fit([frame_of([1, bad])])


def test_integer_columns_fill_nothing_and_become_float32():
    operator = FillMissing("x")
    frame = frame_of([1, 2, 3, 10], "int64")
    assert operator.fit([frame]) == Fill(2.5, False, 0.0)
    assert str(operator.apply(frame, operator.fit([frame]))["x"].dtype) == "float32"


def test_an_unknown_indicator_lists_the_known():
    with pytest.raises(DataError, match=r"unknown indicator 'maybe'. Known: auto, all, none"):
        FillMissing("x", "maybe")
