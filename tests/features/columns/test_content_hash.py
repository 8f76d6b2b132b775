"""The hash of what was learned, against plain Python, and that it does not change with the form a column is held in."""

import hashlib
import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.columns.content_hash import hash_of, plain_values

TEXTS = ["b", "", "äö€", "a b"]


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_it_is_blake2b_of_each_part_after_its_length(parts):
    joined = b"".join(struct.pack("<q", len(part)) + part for part in parts)
    assert hash_of(parts) == hashlib.blake2b(joined, digest_size=16).digest()


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=8), st.integers(0, 8))
def test_texts_are_their_lengths_and_their_bytes_wherever_they_are_cut_out(texts, start):
    column = pd.Series(texts, dtype="str").iloc[start:]
    kind, (lengths, data) = plain_values(column)
    encoded = [text.encode() for text in texts[start:]]
    assert (kind, lengths.dtype, data.dtype) == ("text", "int64", "uint8")
    assert lengths.tolist() == [len(text) for text in encoded]
    assert data.tobytes() == b"".join(encoded)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(TEXTS, dtype="object"),
        pd.Series(TEXTS, dtype="string"),
        pd.Series(TEXTS, dtype="category"),
        pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.string())),
        pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.large_string())),
        pd.Series(TEXTS).astype(pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))),
        pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([TEXTS[:2], [], TEXTS[2:]]))),
        pd.Series(["no", *TEXTS], dtype=pd.ArrowDtype(pa.string())).iloc[1:],
    ],
)
def test_the_form_of_a_text_does_not_matter(column):
    kind, arrays = plain_values(column)
    assert kind == "text"
    assert [array.tobytes() for array in arrays] == [struct.pack("<4q", 1, 0, 7, 3), "bäö€a b".encode()]


@pytest.mark.parametrize(
    ("values", "forms", "kind", "expected"),
    [
        ([3, -1, 7], ["int8", "int32", "int64", "Int64", pd.ArrowDtype(pa.int32())], "i", "<3q"),
        ([3, 1, 7], ["uint32", "UInt8"], "u", "<3q"),
        ([1.5, -0.0], ["float32", "float64", "Float64", pd.ArrowDtype(pa.float64())], "f", "<2d"),
        ([True, False], ["bool", "boolean", pd.ArrowDtype(pa.bool_())], "b", "<2?"),
    ],
)
def test_the_width_of_a_number_does_not_matter(values, forms, kind, expected):
    for form in forms:
        found, (array,) = plain_values(pd.Series(values, dtype=form))
        assert (found, array.tobytes()) == (kind, struct.pack(expected, *values))


def test_whole_numbers_of_all_64_bits_stay_exact():
    values = [2**63 - 1, -(2**63), 2**53 + 1]
    _, (array,) = plain_values(pd.Series(values))
    assert array.tolist() == values


@pytest.mark.parametrize(("form", "kind"), [("str", "text"), ("object", "text"), ("int64", "i"), ("bool", "b")])
def test_a_column_of_no_values_has_a_kind(form, kind):
    found, arrays = plain_values(pd.Series([], dtype=form))
    assert found == kind
    assert all(len(array) == 0 and isinstance(array, np.ndarray) for array in arrays)
