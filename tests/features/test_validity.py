"""Validity bitmaps against pyarrow's."""

import numpy as np
import pyarrow as pa
import pytest

from features.validity import ALL_VALID, valid_mask


@pytest.mark.parametrize("offset", [0, 3, 8, 13])
def test_the_mask_is_that_of_arrow(offset):
    values = [None if place % 3 == 0 else place for place in range(40)]
    column = pa.array(values, pa.float32())[offset:]
    bitmap = np.frombuffer(column.buffers()[0], np.uint8)
    found = valid_mask((bitmap, column.offset), len(column))
    assert found.tolist() == [value is not None for value in values[offset:]]


def test_no_bitmap_means_that_all_are_valid():
    assert valid_mask(ALL_VALID, 3).tolist() == [True, True, True]
