"""The integer image of floats against their order."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact.float_order import (
    ALL_VALID,
    WIDTHS,
    float_kind,
    float_words,
    floats_of,
    images,
    rankable,
    valid_mask,
)
from tests.examples import examples


@pytest.mark.parametrize("kind", WIDTHS)
@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_images_have_the_order_of_the_floats_and_lead_back_to_them(kind, data):
    numbers = st.floats(width=WIDTHS[kind], allow_nan=False)
    values = np.array(data.draw(st.lists(numbers, min_size=1, max_size=30)), dtype=kind)
    found = images(float_words(values), kind)
    assert found.dtype.itemsize * 8 == WIDTHS[kind]
    for i, one in enumerate(values.tolist()):
        for j, other in enumerate(values.tolist()):
            if one != other:
                assert (one < other) == (found[i] < found[j])
    assert floats_of(found.astype(np.uint64), kind).tolist() == values.tolist()


def test_literal_images():
    values = np.array([-np.inf, -1.0, -0.0, 0.0, 1e-45, 1.0, np.inf], dtype="float32")
    assert [hex(image) for image in images(float_words(values), "float32")] == [
        "0x7fffff",
        "0x407fffff",
        "0x7fffffff",
        "0x80000000",
        "0x80000001",
        "0xbf800000",
        "0xff800000",
    ]


def test_minus_zero_comes_back_as_zero():
    assert str(floats_of(np.array([0x7FFFFFFF], dtype=np.uint64), "float32")[0]) == "0.0"


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "uint64", "float16"])
def test_other_numbers_are_ranked_as_float64(dtype):
    assert rankable(np.ones(2, dtype)).dtype == np.float64


def test_floats_stay_as_they_are_and_other_arrays_have_no_kind():
    values = np.ones(2, "float32")
    assert rankable(values) is values
    with pytest.raises(ValueError, match=r"array of int64 cannot be ranked. Use float32 or float64"):
        float_kind(np.ones(1, "int64"))


@pytest.mark.parametrize("offset", [0, 3, 8, 13])
def test_the_mask_is_that_of_arrow(offset):
    values = [None if place % 3 == 0 else place for place in range(40)]
    column = pa.array(values, pa.float32())[offset:]
    bitmap = np.frombuffer(column.buffers()[0], np.uint8)
    found = valid_mask((bitmap, column.offset), len(column))
    assert found.tolist() == [value is not None for value in values[offset:]]


def test_no_bitmap_means_that_all_are_valid():
    assert valid_mask(ALL_VALID, 3).tolist() == [True, True, True]
