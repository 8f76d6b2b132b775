"""CountEncoding and LastBefore against a loop over the events."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.count_encoding import CountEncoding, LastBefore
from tests.examples import examples

KEY = st.one_of(st.none(), st.sampled_from("abc"))
QUERY = st.tuples(KEY, st.integers(0, 2), st.integers(0, 8))
EVENT = st.tuples(KEY, st.integers(0, 2), st.integers(0, 8), st.integers(-9, 9), st.sampled_from(["x", "y", None]))


def queries_of(rows):
    frame = pd.DataFrame(rows, columns=["key", "part", "at"]).astype({"key": "str", "part": "int64", "at": "int64"})
    frame.index = np.arange(len(rows)) * 2 + 5
    return frame


def events_of(rows):
    frame = pd.DataFrame(rows, columns=["key", "part", "at", "value", "word"])
    frame = frame.astype({"key": "str", "word": "str", "part": "int64", "at": "int64", "value": "int64"})
    return frame.assign(order=np.arange(len(rows))[::-1].copy())


def earlier(query, events):
    return [
        e for e in events.itertuples()
        if isinstance(query.key, str) and e.key == query.key and e.part == query.part and e.at < query.at
    ]  # fmt: skip


@given(queries=st.lists(QUERY, max_size=12), events=st.lists(EVENT, max_size=15))
@settings(max_examples=examples(60), deadline=None)
def test_count_and_last_equal_a_loop(queries, events):
    queries, events = queries_of(queries), events_of(events)
    counted = CountEncoding(events, ("key", "part"), "n", at="at")(queries)
    columns = {"value": "last_value", "word": "last_word"}
    found = LastBefore(events, ("key", "part"), columns, at="at", order="order")(counted)
    assert found.index.equals(queries.index)
    assert found["n"].dtype == "float32"
    for row in found.itertuples():
        past = earlier(row, events)
        assert row.n == len(past)
        last = max(past, key=lambda e: (e.at, e.order), default=None)
        if last is None:
            assert pd.isna(row.last_value)
            assert pd.isna(row.last_word)
        else:
            assert row.last_value == last.value
            assert row.last_word == last.word or (pd.isna(row.last_word) and pd.isna(last.word))


def test_events_must_hold_the_key():
    with pytest.raises(DataError, match=r"events of 'n': column\(s\) 'city' not found"):
        CountEncoding(events_of([]), ("city",), "n", at="at")
    with pytest.raises(DataError, match=r"events of last: column\(s\) 'price' not found"):
        LastBefore(events_of([]), ("key",), {"price": "last"}, at="at", order="order")


@pytest.mark.parametrize("at", [[5], [15], [5, 15], []], ids=str)
def test_what_was_last_keeps_its_type_and_its_digits(at):
    events = pd.DataFrame({"key": ["a"], "at": [10], "id": [2**60 + 1], "new": [True]})
    frame = pd.DataFrame({"key": ["a"] * len(at), "at": pd.Series(at, dtype="int64")})
    found = LastBefore(events, ["key"], {"id": "id", "new": "new"}, at="at", order="at")(frame)
    assert found.dtypes.astype("str").to_dict() | {"key": ""} == {
        "key": "", "at": "int64", "id": "Int64", "new": "boolean",
    }  # fmt: skip
    assert found["id"].dropna().tolist() == [2**60 + 1 for time in at if time > 10]
