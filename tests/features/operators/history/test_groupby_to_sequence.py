"""GroupbyToSequence against a loop over groups."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.groupby_to_sequence import GroupbyToSequence
from tests.examples import examples

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.sampled_from(["x", "yy", "", None])),
    max_size=30,
)


@given(rows=ROWS, length=st.integers(1, 6), separator=st.sampled_from(["|", ", "]), seed=st.integers(0, 99))
@settings(max_examples=examples(80), deadline=None)
def test_equals_a_loop_over_groups(rows, length, separator, seed):
    frame = pd.DataFrame(rows, columns=["k", "j", "s"]).astype({"k": "str", "j": "int64", "s": "str"})
    frame["at"] = np.random.default_rng(seed).permutation(len(frame)).astype("int64")
    found = GroupbyToSequence(("k", "j"), "at", ["s", "at"], length, separator)(frame)
    lists = {}
    for (key, number, text), at in sorted(zip(rows, frame["at"], strict=True), key=lambda row: row[1]):
        if key is not None:
            lists.setdefault((key, number), []).append((text or "", str(at)))
    expected = [
        (*key, *(separator.join(column) for column in zip(*entries[-length:], strict=True)))
        for key, entries in sorted(lists.items())
    ]
    assert list(found[["k", "j", "s", "at"]].itertuples(index=False, name=None)) == expected


def test_literal_lists():
    frame = pd.DataFrame({"k": [2, 1, 2, 2], "at": [3, 0, 1, 2], "item": [30, 5, 10, 20]}, index=[9, 9, 1, 0])
    found = GroupbyToSequence(("k",), "at", ["item"], 2)(frame)
    assert found.to_dict("list") == {"k": [1, 2], "item": ["5", "20|30"]}
    assert found.index.tolist() == [0, 1]


def test_text_with_the_separator_is_an_error():
    frame = pd.DataFrame({"k": [1], "at": [0], "s": ["a|b"]})
    with pytest.raises(DataError, match=r"column 's' holds text with the separator '\|'"):
        GroupbyToSequence(("k",), "at", ["s"], 2)(frame)


def test_fractions_and_a_repeated_order_are_errors():
    frame = pd.DataFrame({"k": [1, 1], "at": [0, 0], "x": [0.5, 1]})
    with pytest.raises(DataError, match=r"'at' is not unique"):
        GroupbyToSequence(("k",), "at", ["x"], 2)(frame)
    with pytest.raises(DataError, match=r"column 'x' is float64"):
        GroupbyToSequence(("k",), "at", ["x"], 2)(frame.assign(at=[0, 1]))


def test_a_length_of_zero_is_an_error():
    with pytest.raises(DataError, match=r"max_length must be at least 1"):
        GroupbyToSequence(("k",), "at", ["x"], 0)


def test_a_key_as_a_column_or_no_columns_are_an_error():
    with pytest.raises(DataError, match=r"give keys and columns, none of them both, found 'k' in both"):
        GroupbyToSequence(("k", "j"), "at", ["k", "x"], 2)
    with pytest.raises(DataError, match=r"give keys and columns"):
        GroupbyToSequence(("k",), "at", [], 2)
