"""Compiled loops against plain Python over the same words."""

import struct
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact import loops as kernels
from tests.examples import examples

WORDS32 = st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 0x80000000, 0x7FC00000, 0x3F800000]), max_size=60)
NO_BITMAP = np.empty(0, np.uint8)


def bitmap_of(null, offset):
    return np.packbits(np.concatenate([np.zeros(offset, bool), ~np.array(null, bool)]), bitorder="little")


@given(words=WORDS32, data=st.data(), offset=st.integers(0, 20))
@settings(max_examples=examples(100), deadline=None)
def test_leading_moments(words, data, offset):
    null = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    expected = defaultdict(lambda: [0, 0, 0])
    for word, is_null in zip(words, null, strict=True):
        word = 0x7FC00000 if is_null else 0 if word == 0x80000000 else word
        row = expected[word >> 16]
        row[0] += 1
        row[1] += word & 0xFFFF
        row[2] += (word & 0xFFFF) ** 2
    array = np.array(words, np.uint32)
    found = kernels.leading_moments32(array, bitmap_of(null, offset), offset)
    assert found.dtype == np.int64
    assert {row: found[row].tolist() for row in np.flatnonzero(found.any(axis=1)).tolist()} == expected
    twice = found.copy()
    kernels.add_leading_moments32(twice, array, bitmap_of(null, offset), offset)
    np.testing.assert_array_equal(twice, 2 * found)
    if not any(null):
        np.testing.assert_array_equal(kernels.leading_moments32(array, NO_BITMAP, 0), found)


@given(words=WORDS32, data=st.data(), offset=st.integers(0, 20))
@settings(max_examples=examples(100), deadline=None)
def test_leading_counts_and_words_inside(words, data, offset):
    null = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    wanted = np.zeros(1 << 16, bool)
    wanted[data.draw(st.lists(st.sampled_from([0, 0x3F80, *[word >> 16 for word in words]])))] = True
    known = [0 if word == 0x80000000 else word for word, is_null in zip(words, null, strict=True) if not is_null]
    expected = np.bincount(np.array([word >> 16 for word in known], np.int64), minlength=1 << 16)
    array, shift, minus_zero = np.array(words, np.uint32), np.uint32(16), np.uint32(0x80000000)
    bitmap = bitmap_of(null, offset)
    np.testing.assert_array_equal(kernels.leading_counts(array, bitmap, offset, shift, 1 << 16, minus_zero), expected)
    inside = kernels.words_inside(array, bitmap, offset, shift, wanted, minus_zero)
    assert inside.tolist() == [word for word in known if wanted[word >> 16]]
    assert inside.dtype == np.uint32


@given(values=st.lists(st.floats(), max_size=60))
@settings(max_examples=examples(100), deadline=None)
def test_sum_bins_hold_the_mantissas(values):
    expected = defaultdict(lambda: [0, 0])
    for value in values:
        (word,) = struct.unpack("<Q", struct.pack("<d", value))
        mantissa = (word & (2**52 - 1)) | (2**52 if word >> 52 & 0x7FF else 0)
        expected[word >> 52][0] += mantissa >> 26
        expected[word >> 52][1] += mantissa & (2**26 - 1)
    found = kernels.sum_bins(np.array(values, np.float64))
    for row, parts in expected.items():
        assert found[row].tolist() == parts
    assert set(np.flatnonzero(found.any(axis=1)).tolist()) <= set(expected)


@pytest.mark.parametrize("writeable", [True, False])
def test_memory_that_may_not_be_written_is_read(writeable):
    words = np.arange(10, dtype=np.uint32)
    words.flags.writeable = writeable
    assert kernels.leading_moments32(words, NO_BITMAP, 0)[0].tolist() == [10, 45, 285]


def test_threads_find_what_one_finds():
    words = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    expected = kernels.leading_moments32(words, NO_BITMAP, 0)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: kernels.leading_moments32(words, NO_BITMAP, 0), range(16)):
            np.testing.assert_array_equal(found, expected)
