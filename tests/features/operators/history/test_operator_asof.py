"""The AsOf operator against means, counts and last values taken by a loop."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.asof import AsOf, Count, Last, Mean
from tests.examples import examples

ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("abc")),
    st.integers(0, 12),
    st.one_of(st.none(), st.integers(-3, 12)),
    st.one_of(st.none(), st.integers(-50, 50)),
)
ITEMS = (
    Count("n"),
    Count("n4", window=4),
    Mean("value", "mean"),
    Mean("value", "mean4", window=4),
    Mean("value", "smooth", smoothing=3.0),
    Last({"value": "last_value", "at": "last_at"}),
)
OPERATOR = AsOf(("key",), "at", "known_at", ITEMS, "row")


def table(rows):
    frame = pd.DataFrame(rows, columns=["key", "at", "known_at", "value"])
    frame = frame.astype({"key": "str", "at": "int64", "known_at": "float64", "value": "float64"})
    frame["row"] = np.arange(len(frame))[::-1].copy()
    return frame


def earlier(rows, i, window=None, any_group=False):
    me = rows[i]
    same = [r for j, r in enumerate(rows) if j != i and (any_group or (me["key"] == r["key"] and pd.notna(me["key"])))]
    return [r for r in same if r["known_at"] < me["at"] and (window is None or r["known_at"] >= me["at"] - window)]


def values(found):
    return [r["value"] for r in found if not pd.isna(r["value"])]


def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else np.nan


def smoothed(numbers, prior, k):
    return (sum(numbers) + k * mean(prior)) / (len(numbers) + k) if prior else np.nan


def expected(frame):
    rows, out = frame.to_dict("records"), []
    for i in range(len(rows)):
        past, recent = earlier(rows, i), earlier(rows, i, 4)
        last = max(past, key=lambda r: (r["known_at"], r["row"]), default={"value": np.nan, "at": np.nan})
        out.append([
            len(past), len(recent), mean(values(past)), mean(values(recent)),
            smoothed(values(past), values(earlier(rows, i, any_group=True)), 3.0), last["value"], last["at"],
        ])  # fmt: skip
    return np.array(out, dtype="float64").reshape(len(rows), 7)


@given(rows=st.lists(ROW, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_every_aggregation_equals_a_loop(rows):
    frame = table(rows)
    found = OPERATOR(frame)[list(OPERATOR.outputs)].to_numpy("float64", na_value=np.nan)
    np.testing.assert_allclose(found, expected(frame), rtol=1e-6, atol=1e-6)


def test_output_names_and_types_are_as_declared():
    found = OPERATOR(table([("a", 1, 1, 1), ("a", 2, 2, None)]))
    assert OPERATOR.outputs == ("n", "n4", "mean", "mean4", "smooth", "last_value", "last_at")
    assert [str(found[name].dtype) for name in OPERATOR.outputs] == ["int32"] * 2 + ["float32"] * 5
    assert OPERATOR.inputs == ("key", "at", "known_at", "row", "value", "at")


def test_a_last_value_keeps_minutes_since_1970_exact_when_asked_for_float64():
    frame = table([("a", 22_600_001, 22_600_001, 22_600_001), ("a", 22_600_100, None, None)])
    assert 22_600_001 % 2 == 1  # float32 holds only even numbers there
    found = AsOf(("key",), "at", "known_at", [Last({"at": "last_at"}, dtype="float64")], "row")(frame)
    assert found["last_at"].iloc[1] == 22_600_001


def test_last_whole_numbers_come_exact_as_int64_and_are_refused_as_float64():
    large = 2**53 + 1
    frame = table([("a", 1, 1, 0), ("a", 2, 2, 0), ("a", 3, 3, 0)])
    frame["value"] = pd.Series([large, None, -5], dtype="Int64")

    def last(dtype):
        return AsOf(("key",), "at", "known_at", [Last({"value": "last"}, dtype)], "row")(frame)["last"]

    assert last("int64").tolist() == [pd.NA, large, pd.NA]
    assert str(last("int64").dtype) == "Int64"
    with pytest.raises(DataError, match=r"column 'value' holds whole numbers .* float64 rounds.*dtype='int64'"):
        last("float64")
    with pytest.raises(DataError, match="the dtype of Last is one of float32, float64, int64, found 'int8'"):
        last("int8")


def test_the_prior_of_a_windowed_mean_is_over_all_the_past():
    """At 100 no event lies in the window of 5, so the mean is the prior: (4 + 8) / 2 of the two events of all time."""
    frame = pd.DataFrame(
        {"group": ["a", "a", "b"], "at": [10, 20, 100], "known": [11, 21, 101], "value": [4, 8, 1], "row": [0, 1, 2]}
    )
    found = AsOf(["group"], "at", "known", [Mean("value", "mean", window=5, smoothing=1.0)], "row")(frame)["mean"]
    assert found.tolist()[1:] == [4.0, 6.0]
    assert found.isna().tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Count("n", window=0), "'n': window must be at least 1, found 0"),
        (Mean("value", "mean", window=-4), "'mean': window must be at least 1, found -4"),
        (
            Mean("value", "mean", smoothing=-1.0),
            "'mean': smoothing must be .* found -1.0",
        ),
        (
            Mean("value", "mean", smoothing=float("nan")),
            "'mean': smoothing must be .* found nan",
        ),
    ],
)
def test_a_window_of_nothing_and_a_weight_that_is_none_are_refused(item, message):
    """A window of -4 counted -2 events, a weight of -1 gave a mean beyond all values, one of NaN nulls."""
    with pytest.raises(DataError, match=f"AsOf {message}"):
        AsOf(("key",), "at", "known_at", [item], "row")
