"""Further passes, forced by keeping few values, give what one pass gives."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.exact import column_statistics, quantiles
from gigabatch.features.exact.column_statistics import Ranked
from gigabatch.features.operators.missing.fill_missing import FillMissing
from gigabatch.features.operators.numbers.quantile_buckets import QuantileBuckets
from gigabatch.features.operators.rank_search import NextPass, require_method
from tests.examples import examples

VALUES = st.lists(st.none() | st.floats(-(2.0**100), 2.0**100, width=32) | st.integers(-3, 3).map(float), max_size=60)


def parts_of(values, seed, dtype):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 65))
    owner = rng.integers(0, count, len(values))
    column = pd.Series(values, dtype=dtype)
    return [pd.DataFrame({"x": column[owner == part]}) for part in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("most_bins", [2, 1 << 20])
@given(values=VALUES, seed=st.integers(0, 999), kept=st.sampled_from([0, 5, 1000]))
@settings(max_examples=examples(25), deadline=None)
def test_the_number_of_passes_does_not_change_the_state(dtype, most_bins, values, seed, kept):
    values = [*values, 2.0]
    parts, whole = parts_of(values, seed, dtype), [pd.DataFrame({"x": pd.Series(values, dtype=dtype)})]
    for operator in (FillMissing("x"), QuantileBuckets("x", 7)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(column_statistics, "KEPT_VALUES", kept)
            patch.setattr(quantiles, "MOST_BINS", most_bins)
            found = operator.fit(parts)
        assert found == operator.fit(whole)


def test_large_columns_are_not_kept_and_take_another_pass(monkeypatch):
    monkeypatch.setattr(column_statistics, "KEPT_VALUES", 99)
    frame = pd.DataFrame({"x": np.arange(100, dtype="float32")})
    operator = FillMissing("x")
    partial = operator.merge(operator.partial(frame.iloc[:99]), operator.partial(frame.iloc[99:]))
    assert partial.summary.kept is None
    following = operator.following(partial)
    assert isinstance(following, NextPass)
    assert (following.inputs, following.outputs) == (("x",), ())
    assert following.fit([frame]).value == 49.5
    few = operator.partial(frame.iloc[:99])
    assert len(few.summary.kept) == 1
    assert operator.following(few) is None
    assert operator.finish(few).value == 49.0


def test_a_kept_column_is_not_copied():
    values = np.arange(10, dtype="float32")
    assert Ranked.of(values).kept[0] is values
    assert Ranked.of(values, keep=False).kept is None


def test_partitions_without_a_value_may_have_another_type(monkeypatch):
    monkeypatch.setattr(column_statistics, "KEPT_VALUES", 0)
    parts = [pd.DataFrame({"x": np.array(values, kind)}) for values, kind in (([np.nan], "f8"), ([1, 4], "f4"))]
    assert FillMissing("x").fit(parts).value == 2.5


def test_an_unknown_method_lists_the_known():
    with pytest.raises(DataError, match=r"Op: unknown method 'fast'. Known: exact, sketch"):
        require_method("fast", "Op")
