"""As-of questions against a loop over all pairs of query and event."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin, sorted_rows
from tests.examples import examples

KEYS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
ROW = st.tuples(
    KEYS,
    st.one_of(st.none(), st.integers(0, 2)),
    st.integers(-6, 6),  # at
    st.one_of(st.none(), st.integers(-6, 6)),  # known_at
    st.one_of(st.none(), st.integers(-100, 100)),  # value
)
ROWS = st.lists(ROW, max_size=25)
WINDOW = st.one_of(st.none(), st.integers(1, 8))


def table(rows):
    frame = pd.DataFrame(rows, columns=["key", "number", "at", "known_at", "value"])
    frame = frame.astype({"key": "str", "number": "float64", "at": "int64", "known_at": "float64", "value": "float64"})
    frame["order"] = np.random.default_rng(0).permutation(len(frame))
    return frame


def seen(query, event, by, window):
    """Whether the query may see the event: same group, strictly before, inside the window."""
    if pd.isna(event["known_at"]) or any(pd.isna(query[k]) or query[k] != event[k] for k in by):
        return False
    return event["known_at"] < query["at"] and (window is None or event["known_at"] >= query["at"] - window)


def slow(queries, events, by, window, exclude_self):
    """(count, count of known values, sum of values, row of the last event) a query, by looking at every event."""
    answers = []
    events = events.to_dict("records")
    for i, query in enumerate(queries.to_dict("records")):
        rows = [j for j, event in enumerate(events) if seen(query, event, by, window) and not (exclude_self and i == j)]
        values = [events[j]["value"] for j in rows if not pd.isna(events[j]["value"])]
        last = max(rows, key=lambda j: (events[j]["known_at"], events[j]["order"]), default=-1)
        answers.append((len(rows), len(values), int(sum(values)), last))
    return answers


def answers_of(question, window):
    columns = question.count(window), question.count(window, of="value"), question.sum("value", window)
    return list(zip(*(c.tolist() for c in (*columns, question.last_row(window))), strict=True))


@given(queries=ROWS, events=ROWS, by=st.sampled_from([(), ("key",), ("key", "number")]), window=WINDOW)
@settings(max_examples=examples(60), deadline=None)
def test_answers_equal_a_loop_over_all_pairs(queries, events, by, window):
    left, right = table(queries), table(events)
    question = AsOfJoin(left, right, by=by, query_time="at", event_time="known_at", order="order")
    assert answers_of(question, window) == slow(left, right, by, window, exclude_self=False)


@given(rows=ROWS, by=st.sampled_from([(), ("key",), ("key", "number")]), window=WINDOW)
@settings(max_examples=examples(60), deadline=None)
def test_a_row_never_finds_itself_when_asked_not_to(rows, by, window):
    frame = table(rows)
    question = AsOfJoin(frame, frame, by=by, query_time="at", event_time="known_at", order="order", exclude_self=True)
    assert answers_of(question, window) == slow(frame, frame, by, window, exclude_self=True)


@given(queries=ROWS, events=ROWS, by=st.sampled_from([(), ("key",), ("key", "number")]), number=st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_the_last_events_are_those_of_a_loop_over_all_pairs(queries, events, by, number):
    left, right = table(queries), table(events)
    question = AsOfJoin(left, right, by=by, query_time="at", event_time="known_at", order="order")
    first, stop = question.last_places(number)
    found = [question.sorted_rows[a:b].tolist() for a, b in zip(first, stop, strict=True)]
    events = right.to_dict("records")
    expected = []
    for query in left.to_dict("records"):
        rows = [place for place, event in enumerate(events) if seen(query, event, by, None)]
        rows.sort(key=lambda place: (events[place]["known_at"], events[place]["order"]))
        expected.append(rows[-number:])
    assert found == expected


def test_no_last_events_and_rows_that_may_not_find_themselves_are_refused():
    frame = pd.DataFrame({"at": [1, 2]})
    with pytest.raises(DataError, match="at least 1, found 0"):
        AsOfJoin(frame, frame, by=[], query_time="at", event_time="at").last_places(0)
    with pytest.raises(DataError, match="without exclude_self"):
        AsOfJoin(frame, frame, by=[], query_time="at", event_time="at", exclude_self=True).last_places(1)


def test_sums_of_large_integers_are_exact():
    big = 2**52 + 1
    frame = pd.DataFrame({"at": [1, 2, 3, 4], "value": [big, big, -big, 1]})
    question = AsOfJoin(frame, frame, by=[], query_time="at", event_time="at")
    assert question.sum("value").tolist() == [0, big, 2 * big, big]


@pytest.mark.parametrize("value", [0.5, np.inf])
def test_sum_refuses_fractions_and_infinities_and_names_the_column(value):
    frame = pd.DataFrame({"at": [1, 2], "value": [value, 1.0]})
    with pytest.raises(DataError, match=r"'value'.* holds fractions"):
        AsOfJoin(frame, frame, by=[], query_time="at", event_time="at").sum("value")


@pytest.mark.parametrize("scale", [1_000_000, 10**15])
def test_any_unit_of_time_and_many_groups_stay_inside_int64(scale):
    rng = np.random.default_rng(1)
    at = rng.integers(0, 1000, 900_000)
    frame = pd.DataFrame({"key": np.arange(len(at)) // 3, "at": at * scale - 4 * 10**17, "value": at * scale})
    found, coarse = (
        AsOfJoin(one, one, by=["key"], query_time="at", event_time="at", exclude_self=True)
        for one in (frame, frame.assign(at=at, value=at))
    )
    expected = frame.groupby("key")["at"].rank(method="min").astype("int64") - 1
    assert found.count().tolist() == expected.tolist()
    assert found.count(100 * scale).tolist() == coarse.count(100).tolist()
    assert found.sum("value").tolist() == (coarse.sum("value") * scale).tolist()
    assert found.count(2**62).tolist() == expected.tolist()


@pytest.mark.parametrize("window", [None, 1, 10, 2**62, 2**63])
def test_times_at_both_ends_of_int64(window):
    at = [-(2**63), -(2**63) + 5, 0, 2**63 - 6, 2**63 - 1]
    frame = pd.DataFrame({"at": at})
    question = AsOfJoin(frame, frame, by=[], query_time="at", event_time="at", exclude_self=True)
    expected = [sum(t < time and (window is None or t >= time - window) for t in at) for time in at]
    assert question.count(window).tolist() == expected


def test_a_group_whose_sum_leaves_int64_is_refused():
    frame = pd.DataFrame({"key": [1, 2, 2], "at": [1, 2, 3], "value": [2**61, 2**61, 2**61 + 1]})
    with pytest.raises(DataError, match=r"column 'value' holds fractions or values beyond int64"):
        AsOfJoin(frame, frame, by=["key"], query_time="at", event_time="at").sum("value")
    apart = AsOfJoin(frame, frame.assign(key=[1, 2, 3]), by=["key"], query_time="at", event_time="at")
    assert apart.sum("value").tolist() == [0, 0, 2**61]


@pytest.mark.parametrize("scale", [1, 2**60])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_of_events_of_one_time_the_one_that_stands_last_is_the_last(scale, exclude_self):
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"key": rng.choice(["a", "b", "c"], 600), "at": rng.integers(0, 5, 600) * scale})
    question = AsOfJoin(
        frame, frame, by=["key"], query_time="at", event_time="at", exclude_self=exclude_self
    )  # fmt: skip
    rows = list(zip(frame["key"], frame["at"], strict=True))
    expected = [
        max((j for j, (other, then) in enumerate(rows) if other == key and then < at), key=lambda j: (rows[j][1], j),
            default=-1)
        for key, at in rows
    ]  # fmt: skip
    assert question.last_row().tolist() == expected


BOUNDS = st.sampled_from([(0, 3), (-5, 5), (-(2**63), 2**63 - 1), (2**62, 2**62 + 2), (-1, 2**40)])


@given(data=st.data(), rows=st.integers(0, 30))
def test_rows_sorted_by_two_keys_are_those_that_python_sorts(data, rows):
    keys, ties = (
        data.draw(st.lists(st.integers(low, high), min_size=rows, max_size=rows))
        for low, high in (data.draw(BOUNDS), data.draw(BOUNDS))
    )
    found = sorted_rows(load_engine("pandas"), np.array(keys, "int64"), np.array(ties, "int64"))
    assert found.tolist() == sorted(range(rows), key=lambda row: (keys[row], ties[row]))


def test_two_keys_that_fit_into_one_are_sorted_at_once():
    class OneSort:
        """An engine without lexsort, which sorts once a key."""

        class arrays:
            stack, arange = np.stack, np.arange

        @staticmethod
        def stable_order(keys):
            return np.argsort(keys, kind="stable")

    keys, ties = np.array([2, 1, 2, -3]), np.array([7, 2**40, -7, 0])
    assert sorted_rows(OneSort, keys, ties).tolist() == [3, 1, 2, 0]
