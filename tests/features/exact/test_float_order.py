"""The integer image of floats against their order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact.float_order import (
    WIDTHS,
    float_kind,
    float_words,
    floats_of,
    images,
    rankable,
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


def test_minus_zero_comes_back_as_zero():
    assert str(floats_of(np.array([0x7FFFFFFF], dtype=np.uint64), "float32")[0]) == "0.0"


def test_floats_stay_as_they_are_and_other_arrays_have_no_kind():
    values = np.ones(2, "float32")
    assert rankable(values) is values
    with pytest.raises(ValueError, match=r"array of int64 cannot be ranked. Use float32 or float64"):
        float_kind(np.ones(1, "int64"))
