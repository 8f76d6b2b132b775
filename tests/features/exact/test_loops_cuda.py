"""What the Triton kernels count of many columns in one launch, against the compiled loops, one column at a time."""

import struct
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.exact import loops
from tests.examples import examples

NO_NULLS = np.empty(0, np.uint8)
# NaN of any bits, both zeros and infinities, subnormals; and few values that come often.
WORD = st.one_of(
    st.integers(0, 2**32 - 1),
    st.floats(width=32).map(lambda value: struct.unpack("<I", struct.pack("<f", value))[0]),
    st.sampled_from([0, 0x80000000, 0x3F800000, 0x3F800001, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 1]),
)


@st.composite
def columns(draw):
    """Words uint32 [N], a bitmap (empty: no nulls) and the bit of the first value."""
    words = draw(st.lists(WORD, max_size=40))
    if draw(st.booleans()):
        words += [draw(WORD)] * draw(st.sampled_from([0, 100, 2500]))  # more than a tile, most of one value
    offset = draw(st.integers(0, 70))
    nulls = st.binary(min_size=(offset + len(words) + 7) // 8, max_size=(offset + len(words) + 7) // 8)
    bitmap = np.frombuffer(draw(nulls), np.uint8) if draw(st.booleans()) else NO_NULLS
    order = np.random.default_rng(draw(st.integers(0, 9))).permutation(len(words))
    return np.array(words, np.uint32)[order], bitmap, offset


def on_device(column, device):
    """The column there, and what keeps its memory."""
    from gigabatch.features.exact.loops_cuda import DeviceColumn

    words, bitmap, offset = column
    held = [torch.from_numpy(part.view(kind).copy()).to(device) for part, kind in ((words, "int32"), (bitmap, "uint8"))]
    addresses = [part.data_ptr() if len(part) else 0 for part in held]
    return DeviceColumn(*addresses, offset, len(words)), held


@given(drawn=st.lists(columns(), min_size=1, max_size=3))
@settings(max_examples=examples(25), deadline=None)
def test_leading_moments_of_many_columns_are_those_of_the_compiled_loop(triton_device, drawn):
    from gigabatch.features.exact.loops_cuda import add_leading_moments32

    placed = [on_device(column, triton_device) for column in drawn]
    found = torch.full((len(drawn), 1 << 16, 3), 7, dtype=torch.int64, device=triton_device)
    add_leading_moments32([column for column, _ in placed], found)
    for counted, column in zip(found.cpu().numpy(), drawn, strict=True):
        assert np.array_equal(counted - 7, loops.leading_moments32(*column))


@given(drawn=columns(), other=columns(), data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_the_rest_of_the_words_inside_bins_is_counted(triton_device, drawn, other, data):
    from gigabatch.features.exact.loops_cuda import add_rest_counts32

    patterns = st.lists(st.sampled_from([0, 0x3F80, 0x7FC0, *(drawn[0] >> 16).tolist()]), max_size=4, unique=True)
    asked = [(column, data.draw(patterns)) for column in (drawn, drawn, other)]
    places = [(number, pattern) for number, (_, own) in enumerate(asked) for pattern in own]
    rows = torch.full((3, 1 << 16), -1, dtype=torch.int32)
    for row, (number, pattern) in enumerate(places):
        rows[number, pattern] = row
    placed = [on_device(column, triton_device) for column, _ in asked]
    found = torch.full((len(places), 1 << 16), 7, dtype=torch.int32, device=triton_device)
    add_rest_counts32([column for column, _ in placed], rows.to(triton_device), found)
    for counted, (number, pattern) in zip(found.cpu().numpy(), places, strict=True):
        words, bitmap, offset = asked[number][0]
        expected = Counter()
        for place, word in enumerate(words.tolist(), offset):
            null = len(bitmap) and not int(bitmap[place >> 3]) >> (place & 7) & 1
            word = 0x7FC00000 if null else 0 if word == 0x80000000 else word
            expected[word & 0xFFFF] += word >> 16 == pattern
        assert {low: count - 7 for low, count in enumerate(counted.tolist()) if count != 7} == +expected


@pytest.mark.parametrize("num_rows", [0, 1])
def test_no_rows_and_one_row(triton_device, num_rows):
    from gigabatch.features.exact.loops_cuda import add_leading_moments32

    placed, _held = on_device((np.full(num_rows, 0x40490FDB, np.uint32), NO_NULLS, 0), triton_device)
    found = torch.zeros((1, 1 << 16, 3), dtype=torch.int64, device=triton_device)
    add_leading_moments32([placed], found)
    assert found.sum((0, 1)).tolist() == [num_rows, num_rows * 0x0FDB, num_rows * 0x0FDB**2]
