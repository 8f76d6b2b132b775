"""TextTokens against slow loops, with the pieces of scikit-learn's analyzers and the hashes of xxhash."""

import re

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.text_tokens import TextTokens
from tests.examples import examples
from tests.features.said import SAID

TEXTS = st.lists(st.none() | st.lists(st.sampled_from(SAID), max_size=6).map(" ".join), max_size=5)


def tokens(values, **options):
    """Of all rows together, which are those of each row alone."""
    frame = pd.DataFrame({"x": pd.Series(values, dtype="str", index=np.arange(len(values)) * 3 + 1)})
    step = TextTokens("x", "t", **options)
    whole = step(frame)
    assert list(whole.columns) == ["x", "t"]
    assert (whole.index == frame.index).all()
    found = [list(row) for row in whole["t"]]
    assert found == [list(step(frame.iloc[place : place + 1])["t"].iloc[0]) for place in range(len(frame))]
    return found


def words(text):
    return "".join(" " if re.match(r"[^\w]|_", sign) else sign for sign in (text or "").lower()).split()


@settings(max_examples=examples(60), deadline=None)
@given(TEXTS, st.sampled_from([None, 1, 7, 2**31 - 1]))
def test_elements_are_the_words_in_their_order(texts, num_buckets):
    expected = [words(text) for text in texts]
    if num_buckets:
        expected = [[xxhash.xxh64_intdigest(word.encode()) % num_buckets for word in row] for row in expected]
    assert tokens(texts, num_buckets=num_buckets) == expected


@settings(max_examples=examples(60), deadline=None)
@given(TEXTS, st.sampled_from([1, 2, 3, 5]))
def test_letters_in_a_row_are_those_of_scikit_learn(texts, letters):
    sklearn = pytest.importorskip("sklearn.feature_extraction.text")
    analyze = sklearn.CountVectorizer(analyzer="char_wb", ngram_range=(letters, letters)).build_analyzer()
    texts = [" ".join(word for word in (text or "").split() if word.isalpha()) for text in texts]
    assert tokens(texts, letters=letters) == [analyze(text) for text in texts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"letters": 11}, "letters is a whole number from 1 to 10, found 11"),
        ({"num_buckets": 0}, "num_buckets is a whole number from 1 to 2147483647, found 0"),
        ({"num_buckets": True}, "num_buckets is a whole number"),
        ({}, "TextTokens: column 'x' holds dates or times, no text"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(DataError, match=message):
        TextTokens("x", "t", **options)(pd.DataFrame({"x": pd.to_datetime(["2024-01-01"])}))


def test_words_are_cut_at_every_blank_of_unicode():
    signs = [chr(place) for place in range(0x110000) if not 0xD800 <= place < 0xE000]
    blanks = [sign for sign in signs if sign.isspace()]  # as of Python
    others = ["\u200b", "\ufeff", "\u180e", "\u0300"]
    frame = pd.DataFrame({"x": [f"a{sign}b" for sign in (*blanks, *others)]})
    found = [list(row) for row in TextTokens("x", "w")(frame)["w"]]
    assert found[: len(blanks)] == [["a", "b"]] * len(blanks)
    assert found[len(blanks) :] == [[f"a{sign}b"] for sign in others]
