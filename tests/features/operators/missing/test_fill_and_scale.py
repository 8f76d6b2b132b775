"""FillAndScale against FillMissing and then Normalize, one after the other."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
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


def test_without_scale_it_only_fills():
    found = FillAndScale("x", scale=False).fit([frame_of([1.0, None, 4.0, 7.0])])
    assert (found.fill.value, found.scale) == (4.0, None)


def test_a_column_without_a_value_is_an_error_that_names_it():
    with pytest.raises(DataError, match="column 'x': all 2 rows"):
        FillAndScale("x").fit([frame_of([None, None])])


def test_an_infinity_is_an_error_that_names_the_column():
    with pytest.raises(DataError, match=r"column 'x'.*infinity"):
        FillAndScale("x").fit([frame_of([1.0, np.inf])])
