"""FillAndScale against FillMissing and then Normalize, one after the other."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import RobustScaler

from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import SMALLEST_SPREAD
from gigabatch.features.operators.missing.fill_missing import FillMissing
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.refit.statistics import FillAndScale
from tests.features.partitioned import COUNTS, cut

VALUE = st.one_of(st.none(), st.just(-0.0), st.floats(-(2.0**90), 2.0**90, width=32))
VALUES = st.lists(VALUE, min_size=1, max_size=60)


def frame_of(values):
    return pd.DataFrame({"x": np.array([np.nan if value is None else value for value in values], np.float32)})


@given(VALUES.filter(lambda values: any(value is not None for value in values)), COUNTS, st.integers(0, 99))
def test_it_is_the_two_operators_for_any_partitions(values, count, seed):
    frame = frame_of(values)
    fill = FillMissing("x").fit([frame])
    filled = pd.DataFrame(FillMissing("x").columns(frame, fill))
    scale = Normalize("x").fit([filled])
    found = FillAndScale("x").fit(cut(frame, count, seed))
    assert (found.fill, found.scale) == (fill, scale)


def sklearn_scale(values):
    """Centre and spread by scikit-learn's RobustScaler, with the paper's fallback where the quartiles are one value."""
    known = np.array([[value] for value in values if value is not None], np.float64)
    scaler = RobustScaler().fit(known)
    spread = np.subtract(*np.percentile(known, [75, 25]))  # RobustScaler says 1 where it is about 0
    if spread < SMALLEST_SPREAD:
        spread = (known.max() - known.min()) / 2
    elif spread > 1e-14:
        assert scaler.scale_[0] == spread
    return scaler.center_[0], spread


@given(VALUES.filter(lambda values: any(value is not None for value in values)), COUNTS, st.integers(0, 99))
def test_a_robust_scale_is_scikit_learns_for_any_partitions(values, count, seed):
    found = FillAndScale("x", scale="robust", bins=4).fit(cut(frame_of(values), count, seed))
    centre, spread = sklearn_scale(values)
    assert found.fill == FillMissing("x").fit([frame_of(values)])
    assert found.scale.mean == centre
    if spread < SMALLEST_SPREAD:
        assert found.scale.of(np.array([centre, 3e38, -3e38])).astype(np.float32).tolist() == [0.0, 0.0, 0.0]
    else:
        assert found.scale.std == pytest.approx(spread, rel=1e-15)


@pytest.mark.parametrize(
    ("values", "centre", "spread"),
    [
        ([1.0, 2.0, 3.0, 4.0, 1e6], 3.0, 2.0),
        ([1.0, 2.0, 3.0, 4.0, None, None, None], 2.5, 1.5),  # nulls count for nothing
        ([0.0] * 9 + [8.0], 0.0, 4.0),  # half of the whole range
    ],
)
def test_robust_scales_of_literal_columns(values, centre, spread):
    found = FillAndScale("x", scale="robust").fit([frame_of(values)]).scale
    assert (found.mean, found.std) == (centre, spread)
    scaled = (5.0 - centre) / spread
    assert found.of(np.array([5.0]))[0] == pytest.approx(scaled / np.sqrt(1 + (scaled / 3) ** 2))


def test_without_scale_it_only_fills():
    found = FillAndScale("x", scale=False).fit([frame_of([1.0, None, 4.0, 7.0])])
    assert (found.fill.value, found.scale) == (4.0, None)


def test_a_column_without_a_value_is_an_error_that_names_it():
    with pytest.raises(DataError, match="column 'x': all 2 rows"):
        FillAndScale("x").fit([frame_of([None, None])])


def test_an_infinity_is_an_error_that_names_the_column():
    with pytest.raises(DataError, match=r"column 'x'.*infinity"):
        FillAndScale("x").fit([frame_of([1.0, np.inf])])
