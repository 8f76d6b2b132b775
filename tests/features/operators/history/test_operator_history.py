"""History against a slow loop over all pairs of rows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch import Workflow
from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.history import History
from tests.examples import examples

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]), st.integers(-5, 5), st.none() | st.integers(2**60, 2**60 + 9),
        st.sampled_from([0.0, 1.0, None]),
    ), max_size=30,
)  # fmt: skip


def slow(rows, length, where, half_life):
    """(values, weights) of each row, of (key, time, value, flag) by a loop over all pairs."""
    for key, at, _, _ in rows:
        seen = [
            (then, place, value)
            for place, (other, then, value, flag) in enumerate(rows)
            if key is not None and other == key and then < at and value is not None and (not where or flag == 1)
        ]
        last = sorted(seen, key=lambda event: event[:2])[-length:]
        yield [value for *_, value in last], [0.5 ** ((at - then) / half_life) for then, *_ in last]


def frame_of(rows, kind):
    frame = pd.DataFrame(rows, columns=["k", "t", "x", "liked"])
    values = pd.array([row[2] for row in rows], dtype="Int64")
    return frame.assign(
        k=frame["k"].astype("str"), t=frame["t"].astype("int64"), x=values if kind == "Int64" else values.astype("str"),
        liked=frame["liked"].astype("float64"), n=np.arange(len(frame)),
    )  # fmt: skip


@given(
    rows=ROWS, length=st.integers(1, 4), where=st.booleans(), half_life=st.sampled_from([0.5, 3]),
    kind=st.sampled_from(["Int64", "str"]), seed=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=examples(150), deadline=None)
def test_equals_a_loop_over_all_pairs(rows, length, where, half_life, kind, seed):
    frame = frame_of(rows, kind)
    shuffled = frame.sample(frac=1, random_state=seed)
    step = History(["k"], "t", "n", "x", length, "seen", "liked" if where else None, half_life)
    found = step(shuffled).sort_index()
    pd.testing.assert_frame_equal(found[list(frame.columns)], frame)
    made = int if kind == "Int64" else str
    expected = list(slow(rows, length, where, half_life))
    assert [list(row) for row in found["seen"]] == [list(map(made, values)) for values, _ in expected]
    for row, (_, weights) in zip(found["seen_weights"], expected, strict=True):
        np.testing.assert_allclose(np.asarray(row, np.float32), np.array(weights, np.float32), rtol=1e-6)


def test_keys_of_several_columns_and_none():
    frame = pd.DataFrame({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "x"], "t": [1, 2, 3, 4], "i": ["p", "q", "r", "s"]})
    for by, expected in ((["a", "b"], [[], [], [], ["p"]]), ([], [[], ["p"], ["p", "q"], ["p", "q", "r"]])):
        assert [list(row) for row in History(by, "t", "t", "i", 9, "o")(frame)["o"]] == expected


@pytest.mark.parametrize("half_life", [0.5, 5.0, 1e30])
def test_ages_beyond_int64_weigh_what_their_true_length_says(half_life):
    times = [-(2**63), 1_700_000_000, 2**63 - 1]  # the first is what pandas makes of a null time as int64
    frame = pd.DataFrame({"k": [1] * 3, "t": times, "x": [7, 8, 9]})
    found = History(["k"], "t", "t", "x", 3, "seen", half_life=half_life)(frame)["seen_weights"]
    for row, now in zip(found, times, strict=True):
        expected = [0.5 ** ((now - time) / half_life) for time in times if time < now]
        assert list(row) == pytest.approx(expected, abs=1e-6)


def test_splits_and_new_rows_see_the_history_before_them():
    rows = pd.DataFrame({"k": ["a"] * 6, "t": range(6), "x": range(10, 16), "n": range(6)})
    workflow = Workflow([History(["k"], "t", "n", "x", 3, "seen")]).fit([rows])
    whole = [list(row) for row in workflow.transform(rows, whole_groups=True)["seen"]]
    splits = workflow.fit_transform_splits({"valid": rows.iloc[4:], "train": rows.iloc[:4]})
    assert [list(row) for name in ("train", "valid") for row in splits[name]["seen"]] == whole
    assert [list(row) for row in workflow.transform(rows.iloc[4:], history=rows.iloc[:4])["seen"]] == whole[4:]


def test_a_label_may_choose_what_lists_hold_but_is_told_no_other_way():
    seen = {"by": ["k"], "time": "t", "order": "n", "column": "x", "length": 3, "output": "seen"}
    Workflow.from_steps([{"history": seen | {"where": "clicked"}}], labels=["clicked"])
    Workflow.from_steps([{"history": seen | {"column": "clicked"}}], labels=["clicked"])
    with pytest.raises(DataError, match="makes 'seen' from the label 't'"):
        Workflow.from_steps([{"history": seen}], labels=["t"])


def test_rows_to_be_served_bring_their_lists():
    steps = [
        {"log": {"column": "price"}},
        {"history": {"by": ["k"], "time": "t", "order": "n", "column": "x", "length": 3, "output": "seen",
                     "half_life": 2.0}},
        {"list_slice": {"column": "seen", "start": -1, "separator": None, "output": "last"}},
    ]  # fmt: skip
    rows = pd.DataFrame({"k": ["a"] * 3, "t": range(3), "x": [7, 8, 9], "n": range(3), "price": [1.0, 2.0, 3.0]})
    workflow = Workflow.from_steps(steps).fit([rows])
    whole = workflow.transform(rows, whole_groups=True)
    serving = workflow.serving(["price", "seen_weights", "last"])
    assert set(serving.applied_inputs) == {"price", "seen", "seen_weights"}
    raw = rows[["price"]].assign(seen=whole["seen"], seen_weights=whole["seen_weights"])
    found = serving.transform(raw)
    assert [list(row) for row in found["last"]] == [list(row) for row in whole["last"]] == [[], [7], [8]]
    with pytest.raises(DataError, match="'seen'"):
        serving.transform(rows)


def test_the_unit_of_a_half_life_is_that_of_a_datetime():
    step = History(["k"], "t", "n", "x", 3, "seen", half_life="12h")
    assert step.typed({"t": "datetime"}).half_life == 12 * 3600 * 1e6
    assert step.typed({"t": "datetime"}).typed({"t": "datetime"}).half_life == 12 * 3600 * 1e6
    with pytest.raises(DataError, match="half_life is '12h', and column 't' holds numbers, whose unit is not known"):
        step(pd.DataFrame({"k": ["a"], "t": [1], "n": [0], "x": [1]}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be at least 1"),
        ({"half_life": "soon"}, "half_life is 'soon'. Write a number and a unit"),
        ({"half_life": 0.0}, "half_life must be above 0"),
        ({"column": "price"}, "column 'price' is float64 and holds fractions"),
        ({"column": "liked"}, "column 'liked' holds flags. Elements are text or whole numbers"),
        ({"where": "t"}, "column 't' holds 2. `where` is a column of 0 and 1"),
    ],
)
def test_what_makes_no_history_is_refused(options, message):
    frame = pd.DataFrame(
        {"k": ["a", "a"], "t": [1, 2], "n": [0, 1], "x": [1, 2], "price": [0.5, 1.5], "liked": [True, False]}
    )
    given = {"by": ["k"], "time": "t", "order": "n", "column": "x", "length": 3, "output": "seen"} | options
    with pytest.raises(DataError, match=message):
        History(**given)(frame)
