"""TextHash against a slow loop with xxhash, whose pieces are those of scikit-learn's analyzers."""

import math
import re

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.text_hash import TextHash
from tests.examples import examples
from tests.features.row_wise import assert_row_wise
from tests.features.said import SAID

WORDS = st.lists(st.sampled_from(SAID), max_size=6)


def hashed(values, **options):
    frame = pd.DataFrame({"x": pd.Series(values, dtype="str", index=np.arange(len(values)) * 3 + 1)})
    return assert_row_wise(TextHash("x", "h", **options), frame).iloc[:, 1:].to_numpy()


def slow(pieces, num_buckets):
    found = [0] * num_buckets
    for piece in pieces:
        number = xxhash.xxh64_intdigest(piece.encode())
        found[number % num_buckets] += -1 if number >= 2**63 else 1
    length = math.sqrt(sum(value * value for value in found)) or 1.0
    return [np.float32(value / length) for value in found]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.none() | WORDS.map(" ".join), min_size=1, max_size=5), st.sampled_from([1, 3, 32]))
def test_words_are_added_to_the_column_of_their_hash(texts, num_buckets):
    expected = []
    for text in texts:
        plain = "".join(" " if re.match(r"[^\w]|_", sign) else sign for sign in (text or "").lower())
        expected.append(slow(plain.split(), num_buckets))
    np.testing.assert_array_equal(hashed(texts, num_buckets=num_buckets), expected)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=5), st.sampled_from([1, 2, 3, 5]))
def test_letters_in_a_row_are_those_of_scikit_learn(texts, letters):
    sklearn = pytest.importorskip("sklearn.feature_extraction.text")
    analyze = sklearn.HashingVectorizer(analyzer="char_wb", ngram_range=(letters, letters)).build_analyzer()
    texts = [" ".join(word for word in words if word.isalpha()) for words in texts]  # it keeps punctuation
    expected = [slow(analyze(text), 16) for text in texts]
    np.testing.assert_array_equal(hashed(texts, num_buckets=16, letters=letters), expected)


def test_a_text_without_a_word_and_null_are_0():
    assert not hashed([None, "", " ", "?!"], num_buckets=8).any()


def test_a_long_word_is_cut_to_40_letters():
    assert (hashed(["ab" * 500], letters=3) == hashed(["ab" * 20], letters=3)).mean() > 0.9
    assert hashed(["x" * 100_000], num_buckets=2, letters=2).any()


def test_numbers_are_their_text():
    frame = pd.DataFrame({"x": [12, 7]})
    np.testing.assert_array_equal(TextHash("x", "h")(frame).iloc[:, 1:].to_numpy(), hashed(["12", "7"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_buckets": 0}, "num_buckets is a whole number from 1 to 4096, found 0"),
        ({"num_buckets": 5000}, "num_buckets is a whole number"),
        ({"num_buckets": None}, "num_buckets is a whole number"),
        ({"letters": 11}, "letters is a whole number from 1 to 10, found 11"),
        ({"letters": True}, "letters is a whole number"),
    ],
)
def test_settings_that_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        TextHash("x", "h", **options)


def test_a_column_of_dates_and_a_name_that_is_taken_are_refused():
    with pytest.raises(DataError, match="'x' holds dates or times, no text"):
        TextHash("x", "h")(pd.DataFrame({"x": pd.to_datetime(["2024-01-01"])}))
    with pytest.raises(DataError, match="'h_3' would be overwritten"):
        TextHash("x", "h")(pd.DataFrame({"x": ["a"], "h_3": [1]}))
