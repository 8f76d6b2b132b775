"""Packing on CPU against columns filled, scaled and copied one by one with NumPy."""

import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.engines.frame import FloatWord, IdWord
from gigabatch.features.engines.row_loops import pack_rows
from gigabatch.features.errors import DataError

VALUE = st.one_of(st.none(), st.just(float("nan")), st.floats(-1e6, 1e6, width=32))


def by_hand(values, fill, mean, std, clip):
    """The column's words and its indicator's, in NumPy's arithmetic."""
    column = np.array([np.nan if value is None else value for value in values], np.float32)
    null = np.isnan(column)
    filled = np.where(null, np.float32(fill), column).astype(np.float32)
    if std:
        scaled = (filled.astype(np.float64) - mean) / std
        part = scaled / clip if clip else 0.0
        filled = (scaled / np.sqrt(1 + part * part)).astype(np.float32)
    return filled, null.astype(np.float32)


def arrow_column(values, cuts):
    """An Arrow-backed column in chunks, each beginning inside its buffers."""
    bounds = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    chunks = [pa.array([7.0, *values[a:b]], pa.float32()).slice(1) for a, b in itertools.pairwise(bounds)]
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array(chunks, pa.float32())), name="x")


SCALES = st.sampled_from([(0.0, 0.0, 0.0), (3.7, 2.9, 0.0), (3.7, 2.9, 3.0), (-1.1, 1e-30, 3.0), (2.0, 1.7e308, 3.0)])


@given(st.lists(VALUE, max_size=400), st.lists(st.integers(0, 400), max_size=3), SCALES, st.booleans())
def test_floats_are_filled_flagged_and_scaled_as_numpy_does(values, cuts, scale, arrow):
    fill, (mean, std, clip) = 0.1, scale
    numbers = np.array([np.nan if value is None else value for value in values], np.float32)
    column = arrow_column(values, cuts) if arrow else pd.Series(numbers, name="x")
    rows = pack_rows(len(values), 2, [], [FloatWord(column, fill, mean, std, 1, 0, clip)])
    filled, flags = by_hand(values, fill, mean, std, clip)
    assert rows[:, 1].tobytes() == filled.tobytes()
    assert rows[:, 0].tobytes() == flags.tobytes()


@given(st.lists(st.integers(-1, 4), max_size=300))
def test_codes_go_through_their_table_and_null_takes_its_last(codes):
    table = np.array([30, 31, 32, 33, 34, 1], np.int32)
    plain = np.arange(len(codes), dtype=np.float32)
    rows = pack_rows(len(codes), 2, [IdWord(np.array(codes, np.int32), 1, table), IdWord(plain, 0)], [])
    assert rows[:, 1].tolist() == [int(table[code]) for code in codes]
    assert np.array_equal(rows[:, 0].copy().view(np.float32), plain)


def test_more_rows_than_a_task_has_come_in_order():
    values = np.arange(200_003, dtype=np.float32)
    rows = pack_rows(len(values), 2, [IdWord(np.arange(len(values), dtype=np.int32), 1)],
                 [FloatWord(pd.Series(values, name="x"), 0.0, 0.0, 0.0, 0, -1)])  # fmt: skip
    assert np.array_equal(rows[:, 0].copy().view(np.float32), values)
    assert np.array_equal(rows[:, 1], np.arange(len(values)))


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_an_infinity_is_an_error_that_names_the_column(infinity):
    column = pd.Series(np.array([1.0, infinity], np.float32), name="price")
    with pytest.raises(DataError, match="'price' holds an infinity"):
        pack_rows(2, 1, [], [FloatWord(column, 0.0, 0.0, 1.0, 0, -1)])


def test_what_leaves_float32_by_scaling_is_an_error():
    column = pd.Series(np.array([1e30], np.float32), name="price")
    with pytest.raises(DataError, match=r"'price'.*leaves float32"):
        pack_rows(1, 1, [], [FloatWord(column, 0.0, 0.0, 1e-20, 0, -1)])


@pytest.mark.parametrize(
    ("num_words", "id_place", "float_place", "flag_place"), [(4, 0, 1, 2), (3, 0, 1, 1), (2, 0, 0, 1)]
)
def test_a_word_that_is_not_written_or_is_written_twice_is_refused(num_words, id_place, float_place, flag_place):
    """F1: such a word was what memory held before."""
    column = pd.Series(np.float32([1.0, 2.0]), name="x")
    with pytest.raises(ValueError, match=f"a row has {num_words} words, and those that are written are"):
        pack_rows(2, num_words, [IdWord(np.zeros(2, np.int32), id_place)],
                  [FloatWord(column, 0.0, 0.0, 0.0, float_place, flag_place)])  # fmt: skip
