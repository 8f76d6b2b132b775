"""TextFlags against Python sets."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.text_flags import TextFlags
from tests.examples import examples

TEXTS = st.lists(
    st.one_of(st.none(), st.lists(st.sampled_from(["Beach", "5 Star", "WiFi (Rooms)", "Spa"]), max_size=3)), min_size=1,
    max_size=8,
)  # fmt: skip


def table(texts):
    joined = [None if words is None else "|".join(words) for words in texts]
    frame = pd.DataFrame({"text": pd.Series(joined, dtype="str")})
    frame.index = np.arange(len(texts))[::-1] + 7
    return frame


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 8), max_size=3))
@settings(max_examples=examples(50), deadline=None)
def test_any_partitioning_gives_the_flags_of_a_loop(texts, cuts):
    frame = table(texts)
    operator = TextFlags("text", "f_")
    bounds = [0, *sorted(min(cut, len(texts)) for cut in cuts), len(texts)]
    parts = [frame.iloc[a:b] for a, b in pairwise(bounds)]
    state = operator.fit(parts[::-1])
    counted = Counter(word for words in texts for word in words or [])
    assert list(state.words) == sorted(counted, key=lambda word: (-counted[word], word))
    found = operator.apply(frame, state)
    assert found.index.equals(frame.index)
    for word, column in zip(state.words, state.columns, strict=True):
        assert found[column].tolist() == [float(word in (words or [])) for words in texts]
    assert (operator.matrix(frame, state) == found[list(state.columns)].to_numpy()).all()


def test_words_unseen_at_fit_are_left_out_and_max_words_keeps_the_most_frequent():
    operator = TextFlags("text", "has_", max_words=1)
    state = operator.fit([table([["a", "b"], ["b"]])])
    assert state.words == ("b",)
    assert operator.apply(table([["a", "c"]]), state)["has_b"].tolist() == [0.0]
    assert TextFlags("text", "has_", max_words=0).fit([table([["a"]])]).columns == ()
    assert TextFlags("text", "has_", max_words=np.int64(1)).fit([table([["a", "b"], ["b"]])]).words == ("b",)


def test_words_that_differ_in_punctuation_alone_get_columns_of_their_own():
    state = TextFlags("text", "").fit([table([["Wi-Fi", "Wi Fi", "wi_fi"]])])
    assert state.columns == ("wi_fi", "wi_fi_2", "wi_fi_3")


@pytest.mark.parametrize("words", [["a b", "a_b", "a_b_2"], ["a_b_2", "a b", "a-b"], ["!", "?", "2"]], ids=str)
def test_no_two_words_make_one_name(words):
    state = TextFlags("text", "is_").fit([table([[word] * (9 - place) for place, word in enumerate(words)])])
    assert state.words == tuple(words)
    assert len(set(state.columns)) == 3


@pytest.mark.parametrize("found", [-1, 1.5, True, "3", np.True_, np.int64(-1)])
def test_max_words_that_is_no_count_is_refused(found):
    with pytest.raises(DataError, match=re.escape(f"whole number and must not be negative, found {found!r}")):
        TextFlags("text", "has_", max_words=found)


def test_a_column_means_the_same_word_however_often_it_comes():
    often, seldom = table([["wifi"], ["wifi"], ["WiFi", "WIFI"]]), table([["wifi"], ["WiFi"], ["WiFi", "WIFI"]])
    for frame in (often, seldom):
        state = TextFlags("text", "has_").fit([frame])
        names = dict(zip(state.words, state.columns, strict=True))
        assert names == {"WIFI": "has_wifi", "WiFi": "has_wifi_2", "wifi": "has_wifi_3"}


def test_a_word_beyond_max_words_leaves_the_names_of_the_others_as_they_are():
    frame = table([["wifi"], ["wifi"], ["Spa"], ["Spa"], ["WIFI"]])
    assert TextFlags("text", "has_", max_words=2).fit([frame]).columns == ("has_spa", "has_wifi")
