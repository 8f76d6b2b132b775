"""Categorify: the fit does not depend on partitions, and rare values encode as unseen."""

import itertools
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.operators.categorify import Categorify

WORDS = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "d"])), max_size=40)


def frame_of(values):
    return pd.DataFrame({"word": pd.Series(values, dtype="str")})


def parts_of(frame, cuts, seed):
    """The frame cut anywhere (empty parts included), parts in any order."""
    bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    parts = [frame.iloc[a:b].reset_index(drop=True) for a, b in itertools.pairwise(bounds)]
    return [parts[i] for i in np.random.default_rng(seed).permutation(len(parts))]


def state(vocabulary):
    return vocabulary.values.tolist(), vocabulary.counts.tolist()


@given(values=WORDS, cuts=st.lists(st.integers(0, 40), max_size=7), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_fit_does_not_depend_on_the_partitions_or_their_order(values, cuts, seed):
    frame = frame_of(values)
    operator = Categorify("word")
    assert state(operator.fit(parts_of(frame, cuts, seed))) == state(operator.fit([frame]))


@given(values=WORDS, min_count=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_rare_values_are_left_out(values, min_count):
    counts = Counter(v for v in values if v is not None)
    kept = {v: n for v, n in counts.items() if n >= min_count}
    found = Categorify("word", min_count).fit([frame_of(values)])
    assert dict(zip(*state(found), strict=True)) == kept


def test_rarity_is_judged_over_all_partitions():
    parts = [frame_of(["a", "b"]), frame_of(["a"])]
    operator = Categorify("word", min_count=2)
    fitted = operator.fit(parts)
    assert fitted.values.tolist() == ["a"]
    assert operator.apply(frame_of(["a", "b", None]), fitted)["word"].tolist() == [3, 2, 1]


def test_apply_replaces_the_column_and_keeps_index_and_input():
    frame = frame_of(["b", "a"]).set_index(pd.Index([5, 2]))
    operator = Categorify("word")
    found = operator.apply(frame, operator.fit([frame]))
    assert found["word"].to_dict() == {5: 4, 2: 3}
    assert str(found["word"].dtype) == "int32"
    assert frame["word"].tolist() == ["b", "a"]


def test_integer_values_tie_by_value():
    frame = pd.DataFrame({"word": pd.Series([10, 9, -1, 9, 10], dtype="int64")})
    assert Categorify("word").fit([frame]).values.tolist() == [9, 10, -1]


def test_min_count_below_one_is_an_error():
    with pytest.raises(ValueError, match=r"min_count must be at least 1, found 0"):
        Categorify("word", 0)


def test_no_partition_is_an_error():
    with pytest.raises(ValueError, match=r"Categorify: nothing to fit on"):
        Categorify("word").fit([])
