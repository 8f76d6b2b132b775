"""Fills, means and deviations of `grow` and `update` with refresh_scales, against NumPy on the filled column."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema
from tests.examples import examples
from tests.features.partitioned import cut

SCHEMA = Schema((Column("x", "continuous", "float32"),), ())
KINDS = {
    "years": lambda random, rows: random.integers(2010, 2021, rows),
    "seconds": lambda random, rows: 1.7e9 + random.integers(0, 200_000, rows),
    "skewed": lambda random, rows: random.lognormal(3, 2, rows),
    "negative": lambda random, rows: random.normal(-500, 3, rows),
    "both signs": lambda random, rows: random.normal(0, 40, rows),
    "small": lambda random, rows: random.integers(-200, 200, rows) / 4,
}


def table(values, nulls=0, seed=0):
    column = np.append(np.asarray(values, np.float32), np.full(nulls, np.nan, np.float32))
    return pd.DataFrame({"x": np.random.default_rng(seed).permutation(column)})


def median_of(frame):
    return float(np.median(frame["x"].dropna().to_numpy(np.float64)))


def filled(frame, fill):
    """Mean and deviation of the column with that number for its nulls, as rows hold it; 1 for that of a constant."""
    values = frame["x"].fillna(np.float32(fill)).to_numpy(np.float64)
    return values.mean(), values.std() if np.ptp(values) else 1.0


def scale_of(preprocessor):
    return preprocessor.scales["x"].mean, preprocessor.scales["x"].std


COLUMNS = given(
    kind=st.sampled_from(sorted(KINDS)),
    before=st.tuples(st.integers(1, 60), st.integers(0, 60)),
    after=st.tuples(st.integers(2, 60), st.integers(0, 60)),
    seed=st.integers(0, 99),
    count=st.integers(1, 4),
)


@COLUMNS
@settings(max_examples=examples(120), deadline=None)
def test_growth_has_the_fill_mean_and_deviation_of_the_table(kind, before, after, seed, count):
    random = np.random.default_rng(seed)
    old, new = (table(KINDS[kind](random, known), nulls, seed) for known, nulls in (before, after))
    for pack in (False, True):
        found = Preprocessor(SCHEMA).fit([old])
        parts = cut(new, count, seed)
        found.grow_pack(parts, refresh_scales=True) if pack else found.grow(parts, refresh_scales=True)
        fill = found.fills["x"]
        assert (fill.value, fill.error) == (median_of(new), 0.0)
        assert fill.null_rate == after[1] / sum(after)
        assert fill.silent == (before[1] == after[1] == 0)
        assert scale_of(found) == pytest.approx(filled(new, fill.value), rel=1e-9, abs=1e-12)


@COLUMNS
@settings(max_examples=examples(120), deadline=None)
def test_an_update_has_mean_and_deviation_by_its_fill_which_is_near_the_median(kind, before, after, seed, count):
    random = np.random.default_rng(seed)
    old, new = (table(KINDS[kind](random, known), nulls, seed) for known, nulls in (before, after))
    found, both = Preprocessor(SCHEMA).fit([old]), pd.concat([old, new])
    found.update(cut(new, count, seed), refresh_scales=True)
    fill, exact = found.fills["x"], median_of(both)
    spread = both["x"].dropna().to_numpy(np.float64).std()
    assert abs(fill.value - exact) <= fill.error <= min(spread * (1 + 1e-9) + 1e-6, abs(exact) / 100 + 1e-6)
    if kind == "small":
        assert (fill.value, fill.error) == (exact, 0.0)
    assert fill.null_rate == both["x"].isna().mean()
    assert scale_of(found) == pytest.approx(filled(both, fill.value), rel=1e-9, abs=1e-12)


def test_growth_by_the_same_table_stays_as_it_is():
    frame = table([2015.0] * 5 + [2016.0] * 5, nulls=5)
    found = Preprocessor(SCHEMA).fit([frame])
    assert (found.fills["x"].value, *scale_of(found)) == pytest.approx((2015.5, 2015.5, (2.5 / 15) ** 0.5))
    before = found.fills, found.scales
    found.grow([frame], refresh_scales=True)
    assert (found.fills, found.scales, found.version.number) == (*before, 1)


@pytest.mark.parametrize("scale", [True, False, "robust"])
def test_after_a_night_of_nulls_alone_growth_takes_the_values_that_are_there(scale):
    found = Preprocessor(SCHEMA, PreprocessorSettings(scale=scale)).fit([table([1.0, 2.0])])
    found.grow([table([], nulls=3)])
    with pytest.raises(DataError, match=r"column 'x': all 3 rows of the train split are null"):
        found.grow([table([], nulls=3)], refresh_scales=True)
    later = table([2011.0, 2012.0, 2020.0, 2021.0], nulls=3)
    found.grow([later], refresh_scales=True)
    assert (found.fills["x"].value, found.fills["x"].silent) == (2016.0, False)
    assert found.scales.keys() == ({"x"} if scale else set())
    if scale is True:
        assert scale_of(found) == pytest.approx(filled(later, 2016.0))
    if scale == "robust":
        assert scale_of(found) == (2016.0, 2020.25 - 2011.75)


def test_an_update_after_a_night_of_nulls_alone_has_the_values_that_are_there():
    found = Preprocessor(SCHEMA).fit([table([1.0, 2.0])])
    found.grow([table([], nulls=3)])
    before = found.checksum
    with pytest.raises(DataError, match=r"column 'x': all 5 rows so far are null, so there is no median"):
        found.update([table([], nulls=2)], refresh_scales=True)
    assert found.checksum == before
    found.update([table([3.0, 5.0], nulls=1)], refresh_scales=True)
    assert found.fills["x"].value == 4.0
    assert scale_of(found) == pytest.approx((4.0, (2 / 6) ** 0.5))


def test_a_median_that_is_hardly_known_beside_the_deviation_is_warned_of(caplog):
    """Seconds of two days lie in one bin of 97 days; days of a year of prices do not."""
    seconds = KINDS["seconds"](np.random.default_rng(1), 200)
    found = Preprocessor(SCHEMA).fit([table(seconds[:100])])
    caplog.clear()
    found.update([table(seconds[100:])], refresh_scales=True)
    assert "median" not in caplog.text  # nothing was filled by it
    found.update([table([], nulls=100)], refresh_scales=True)
    assert "column 'x': its median is known to within" in caplog.text
    assert "preprocess.refresh_scales=true" in caplog.text
    caplog.clear()
    prices = KINDS["skewed"](np.random.default_rng(1), 200)
    Preprocessor(SCHEMA).fit([table(prices)]).update([table(prices, nulls=100)], refresh_scales=True)
    assert "median" not in caplog.text
