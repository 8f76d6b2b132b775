"""HashBucket against the xxhash package and Python's integers."""

import pandas as pd
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.hash_bucket import HashBucket
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


def text_bucket(value, buckets):
    return 0 if value is None else 1 + xxhash.xxh64_intdigest(value.encode()) % buckets


def whole_bucket(value, buckets):
    return 0 if value is None else 1 + xxhash.xxh64_intdigest(value.to_bytes(8, "little", signed=True)) % buckets


def test_published_hashes_of_text():
    # XXH64, seed 0: "" ef46db3751d8e999, "a" d24ec4f1a98c6e5b, "abc" 44bc2cf5ad770999 (the first two reach 2**63).
    frame = pd.DataFrame({"word": pd.Series(["", "a", None, "abc"], dtype="str", index=[4, 3, 2, 1])})
    found = HashBucket("word", 1000, "bucket")(frame)
    expected = [1 + 0xEF46DB3751D8E999 % 1000, 1 + 0xD24EC4F1A98C6E5B % 1000, 0, 1 + 0x44BC2CF5AD770999 % 1000]
    assert found["bucket"].tolist() == expected
    assert str(found["bucket"].dtype) == "int32"
    assert found.index.tolist() == [4, 3, 2, 1]
    assert found["word"].tolist()[0] == ""


@given(
    words=st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=6)), max_size=12),
    buckets=st.one_of(st.integers(1, 9), st.just(2**31 - 1)),
)
@settings(max_examples=examples(50), deadline=None)
def test_any_text_falls_as_by_a_loop_row_by_row(words, buckets):
    frame = pd.DataFrame({"word": pd.Series(words, dtype="str")})
    found = assert_row_wise(HashBucket("word", buckets, "bucket"), frame)
    assert found["bucket"].tolist() == [text_bucket(word, buckets) for word in words]


@given(numbers=st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=12))
@settings(max_examples=examples(50), deadline=None)
def test_any_integers_fall_as_by_a_loop_row_by_row(numbers):
    frame = pd.DataFrame({"n": pd.array(numbers, dtype="Int64")})
    found = assert_row_wise(HashBucket("n", 101, "bucket"), frame)
    assert found["bucket"].tolist() == [whole_bucket(number, 101) for number in numbers]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "float64", "Int32", "bool"])
def test_equal_whole_numbers_share_a_bucket_whatever_their_type(dtype):
    numbers = (0, 1) if dtype == "bool" else (0, 7, 120)
    frame = pd.DataFrame({"n": pd.Series(numbers, dtype=dtype)})
    assert HashBucket("n", 1000, "b")(frame)["b"].tolist() == [whole_bucket(n, 1000) for n in numbers]


@pytest.mark.parametrize("value", [1.5, float("inf"), float("-inf"), 2.0**53])
def test_a_float_that_is_no_id_is_an_error(value):
    with pytest.raises(DataError, match=r"HashBucket: column 'n' is float64 and 1 value.*Bucketize"):
        HashBucket("n", 10)(pd.DataFrame({"n": [1.0, value]}))


@pytest.mark.parametrize("buckets", [0, -1, 2**31, 2.0, True])
def test_a_number_of_buckets_that_fits_no_int32_is_an_error(buckets):
    with pytest.raises(DataError, match="HashBucket of 'n': num_buckets must be a whole number from 1"):
        HashBucket("n", buckets)
