"""Numbers far from 0 lose their differences in float32: the fit warns by the column's name."""

import logging

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema


@pytest.mark.parametrize("way", ["fit", "fit_pack"])
@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (10**9 + np.arange(30), True),  # one float32
        (1_700_000_000 + np.arange(86_400, step=60), True),  # a day's seconds, in steps of 128
        (1_700_000_000 + np.arange(0, 31_536_000, 3600), False),  # a year's
        (10**9 * np.arange(30), False),
        (np.arange(30), False),
        (np.full(30, 12.5), False),
    ],
)
def test_whole_numbers_that_float32_makes_equal_are_warned_of(caplog, way, values, warned):
    kept = len(np.unique(values.astype("float32")))
    assert (kept < len(np.unique(values)) / 2) == warned
    frame = pd.DataFrame({"at": values})
    with caplog.at_level(logging.WARNING):
        getattr(Preprocessor(Schema((Column("at", "continuous", "float32"),), ())), way)([frame])
    assert ("column 'at'" in caplog.text and "float32" in caplog.text) == warned


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (1e7 + np.linspace(-1, 1, 200), True),
        (1e5 + np.linspace(-1, 1, 200), True),  # in steps of 1 / 128, a hundredth of the deviation
        (1e3 + np.linspace(-1, 1, 200), False),
        (1e5 + np.arange(5.0).repeat(40), False),  # whole numbers, which float32 holds
        (np.full(200, 1e5 + 1 / 3), False),
        (np.linspace(-1e5, 1e5, 200) + 1 / 3, False),
    ],
)
def test_fractions_that_float32_loses_are_warned_of(caplog, values, warned):
    """Held against NumPy: how far the cast moves values, as a share of their deviation."""
    moved = np.abs(values - values.astype("float32")).max()
    assert (moved > 1e-3 * values.std() > 1e-9) == warned
    with caplog.at_level(logging.WARNING):
        Preprocessor(Schema((Column("at", "continuous", "float32"),), ())).fit([pd.DataFrame({"at": values})])
    assert ("column 'at': its numbers reach" in caplog.text) == warned
