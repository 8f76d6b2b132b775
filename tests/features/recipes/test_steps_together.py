"""Steps of a carried history that run side by side."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators import AsOf, Clip, Difference
from gigabatch.features.operators.history.asof import Count, Mean
from gigabatch.features.recipes.carrying import _independent, follow

NOTHING = np.zeros(2, dtype=bool)
ROWS = pd.DataFrame({"a": [5, 7], "b": [1, 2]})


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([("a", "b", "c"), ("a", "b", "d")], [[0, 1]]),
        ([("a", "b", "c"), ("a", "c", "d")], [[0], [1]]),  # reads what the first makes
        ([("a", "b", "c"), ("b", "a", "c")], [[0], [1]]),  # makes it again
        ([("a", "b", "c"), ("c", "b", "d"), ("a", "b", "e"), ("d", "e", "f")], [[0], [1, 2], [3]]),
    ],
)
def test_steps_are_together_until_one_reads_or_makes_what_another_makes(outputs, expected):
    assert _independent([Difference(*names) for names in outputs]) == expected


def test_every_step_sees_what_earlier_ones_have_made():
    steps = [Difference("a", "b", "c"), Difference("b", "a", "d"), Difference("c", "d", "e")]
    told = []
    found, pasts = follow(steps, ROWS, ~NOTHING, NOTHING, None, told.append)
    assert found.to_dict("list") == {"a": [5, 7], "b": [1, 2], "c": [4, 5], "d": [-4, -5], "e": [8, 10]}
    assert list(found.columns) == ["a", "b", "c", "d", "e"]
    assert (pasts, told, list(ROWS.columns)) == ({}, ["c", "d", "e"], ["a", "b"])


def test_an_error_names_the_first_step_that_has_one():
    steps = [Difference("a", "b", "c"), Difference("a", "gone", "d"), Difference("lost", "b", "e")]
    with pytest.raises(DataError, match=r"step 2 \(difference\).*gone"):
        follow(steps, ROWS, ~NOTHING, NOTHING, None)


def test_steps_that_share_a_key_see_the_column_that_a_step_between_them_has_replaced():
    random = np.random.default_rng(0)
    at = np.sort(random.integers(0, 50, 200))
    rows = pd.DataFrame({"user": random.integers(0, 9, 200), "at": at, "known": at + 3, "row": range(200)})
    rows["late"] = random.integers(0, 2, 200).astype("float64")

    def asked(name, smoothing):
        items = [Count(f"{name}_count"), Mean("late", f"{name}_mean", smoothing=smoothing)]
        return AsOf(["user"], "at", "known", items, "row")

    steps = [asked("first", 2.0), asked("second", 3.0), Clip("user", low=3), Clip("late", low=1), asked("third", 2.0)]
    wanted = rows
    for step in steps:
        wanted = step(wanted)
    found, _ = follow(steps, rows, np.ones(200, bool), at < 40, None)
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)
    assert not np.array_equal(found["first_count"], found["third_count"])
    assert set(found["third_mean"].dropna()) == {1.0}
