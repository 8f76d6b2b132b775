"""GroupbyToSequence against a loop over groups."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.groupby_to_sequence import GroupbyToSequence
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.sampled_from(["x", "yy", "", None])),
    max_size=30,
)


@given(rows=ROWS, length=st.integers(1, 6), separator=st.sampled_from(["|", ", ", None]), seed=st.integers(0, 99))
@settings(max_examples=examples(80), deadline=None)
def test_equals_a_loop_over_groups(rows, length, separator, seed):
    frame = pd.DataFrame(rows, columns=["k", "j", "s"]).astype({"k": "str", "j": "int64", "s": "str"})
    frame["at"] = np.random.default_rng(seed).permutation(len(frame)).astype("int64")
    found = GroupbyToSequence(("k", "j"), "at", ["s", "at"], length, separator)(frame)
    lists = {}
    for (key, number, text), at in sorted(zip(rows, frame["at"], strict=True), key=lambda row: row[1]):
        if key is not None:
            lists.setdefault((key, number), []).append((text, at) if separator is None else (text or "", str(at)))
    expected = [
        (*key, *(list(column) if separator is None else separator.join(column)
                 for column in zip(*entries[-length:], strict=True)))
        for key, entries in sorted(lists.items())
    ]  # fmt: skip
    if separator is None:
        found = found.assign(s=[list(row) for row in found["s"]], at=[list(row) for row in found["at"]])
    assert list(found[["k", "j", "s", "at"]].itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize("separator", ["|", None])
def test_whole_numbers_of_a_category_type_beside_nulls_keep_their_digits(separator):
    values = [2**53 + 1, None, -5]
    column = pd.Series(pd.Categorical(values, categories=[2**53 + 1, -5]))
    frame = pd.DataFrame({"k": [1, 1, 1], "at": [0, 1, 2], "v": column})
    found = GroupbyToSequence(["k"], "at", ["v"], 9, separator)(frame)["v"].iloc[0]
    assert (list(found) if separator is None else found) == (values if separator is None else "9007199254740993||-5")


def test_text_with_the_separator_is_an_error():
    frame = pd.DataFrame({"k": [1], "at": [0], "s": ["a|b"]})
    with pytest.raises(DataError, match=r"column 's' holds text with the separator '\|'"):
        GroupbyToSequence(("k",), "at", ["s"], 2)(frame)


@pytest.mark.parametrize(
    ("columns", "length", "message"),
    [(["x"], 0, "max_length must be at least 1"), (["k", "x"], 2, "none of them both, found 'k' in both"),
     ([], 2, "give keys and columns")],
)  # fmt: skip
def test_settings_without_meaning_are_an_error(columns, length, message):
    with pytest.raises(DataError, match=message):
        GroupbyToSequence(("k", "j"), "at", columns, length)


def test_whole_numbers_beyond_floats_and_nulls_stay_what_they_are_in_lists():
    frame = pd.DataFrame({"k": [1, 1], "at": [0, 1], "x": pd.array([2**60 + 1, None], dtype="Int64")})
    assert list(GroupbyToSequence(("k",), "at", ["x"], 2, None)(frame)["x"][0]) == [2**60 + 1, None]


@pytest.mark.parametrize("dtype", ["str", "string", "object"])
def test_text_of_several_parts_is_one_sequence(dtype):
    """Text that lies in several pieces, as that of parts below each other does, ended in a TypeError of Arrow."""
    frame = pd.DataFrame({"k": [1, 1, 2], "at": [1, 2, 3], "s": pd.Series(["a", "b", "c"], dtype=dtype)})
    below = pd.concat([frame[:2], frame[2:]], ignore_index=True)
    assert GroupbyToSequence(("k",), "at", ["s"], 3, "|")(below)["s"].tolist() == ["a|b", "c"]
    steps = [{"groupby_to_sequence": {"by": ["k"], "order": "at", "columns": ["s"], "max_length": 3}}]
    (made,) = Workflow.from_steps(steps).fit_transform([frame[:2], frame[2:]])
    assert made["s"].tolist() == ["a|b", "c"]


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-2, 2), st.floats(-3, 3, width=32))),
       seed=st.integers(0, 9))  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_further_columns_settle_the_ties_of_the_order(rows, seed):
    frame = pd.DataFrame(rows, columns=["k", "day", "hour", "x"]).astype(
        {"k": int, "day": int, "hour": int, "x": float}
    )
    frame["row"] = np.random.default_rng(seed).permutation(len(frame)) - 3
    found = GroupbyToSequence(["k"], ["day", "hour", "row"], ["row", "x"], 99, None)(frame)
    expected = {}
    for one in sorted(frame.itertuples(index=False), key=lambda one: (one.day, one.hour, one.row)):
        expected.setdefault(one.k, []).append((one.row, one.x))
    assert found["k"].tolist() == sorted(expected)
    assert [list(zip(*both, strict=True)) for both in zip(found["row"], found["x"], strict=True)] == [
        expected[key] for key in sorted(expected)
    ]


def test_fractions_are_lists_and_no_text():
    frame = pd.DataFrame({"k": [1, 1, 2], "at": [2, 1, 1], "x": [0.25, 1.5, None]})
    found = GroupbyToSequence(["k"], "at", ["x"], 5, None)(frame)["x"]
    assert list(found[0]) == [1.5, 0.25]
    assert np.isnan(found[1]).tolist() == [True]
    with pytest.raises(DataError, match=r"'x' is float64.*or make lists of it \(separator=None\)"):
        GroupbyToSequence(["k"], "at", ["x"], 5)(frame)


def test_ties_that_nothing_settles_are_refused():
    frame = pd.DataFrame({"k": [1, 1, 1], "at": [7, 7, 8], "b": [3, 3, 1], "x": [1, 2, 3]})
    with pytest.raises(DataError, match=r"order column 'at' is not unique.*1 repeat.*example 7\. Name a further"):
        GroupbyToSequence(["k"], "at", ["x"], 5)(frame)
    with pytest.raises(DataError, match=r"order columns \['at', 'b'\] are not unique.*example 7, 3\."):
        GroupbyToSequence(["k"], ["at", "b"], ["x"], 5)(frame)
    with pytest.raises(DataError, match="name a column under order"):
        GroupbyToSequence(["k"], [], ["x"], 5)
