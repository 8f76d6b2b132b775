"""Waiting against a queue counted by a loop, which asks only whether an event has happened yet, never when it will."""

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.operators.history.waiting import Waiting
from tests.examples import examples

OPERATOR = Waiting(("gate",), "planned", "happened", "queue")
ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("ab")), st.integers(0, 12), st.one_of(st.none(), st.integers(-5, 20))
)


def table(rows):
    frame = pd.DataFrame(rows, columns=["gate", "planned", "happened"])
    return frame.astype({"gate": "str", "planned": "int64", "happened": "float64"})


def expected(frame):
    rows, out = frame.to_dict("records"), []
    for me in rows:
        queue = [
            r["planned"]
            for r in rows
            if r["gate"] == me["gate"] and r["planned"] < me["planned"] and not r["happened"] < me["planned"]
        ]
        out.append((len(queue), np.mean([me["planned"] - p for p in queue]) if queue else 0.0))
    return out


@given(rows=st.lists(ROW, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_equals_a_loop(rows):
    frame = table(rows)
    found = OPERATOR(frame)
    answers = expected(frame)
    assert [str(t) for t in found.dtypes[-2:]] == ["int32", "float32"]
    assert found["queue"].tolist() == [n for n, _ in answers]
    np.testing.assert_allclose(found["queue_min_mean"], [w for _, w in answers], rtol=1e-6)


def test_microseconds_since_1970_wait_as_long_as_seconds_do():
    rng = np.random.default_rng(3)
    seconds = pd.DataFrame({"g": 1, "planned": np.arange(9000) * 60})
    seconds["left"] = (seconds["planned"] + rng.integers(-500, 2000, 9000)).where(rng.random(9000) < 0.9)
    fine = (seconds[["planned", "left"]] * 10**6 + 1_700_000_000_000_000).assign(g=1)
    coarse, found = (Waiting(["g"], "planned", "left", "w")(frame) for frame in (seconds, fine))
    assert found["w"].tolist() == coarse["w"].tolist()
    np.testing.assert_allclose(found["w_min_mean"], coarse["w_min_mean"] * 10**6, rtol=1e-6)


def test_waits_whose_sum_leaves_64_bits_are_averaged_as_they_are():
    """A hundred events of ten years ago, in nanoseconds, that never happened: their mean wait was negative."""
    planned = [0, 5, *range(100, 198), 3 * 10**17]
    frame = pd.DataFrame({"gate": "a", "planned": planned, "happened": None})
    found = OPERATOR(frame)
    mean = sum(planned[-1] - event for event in planned[:-1]) / 100
    assert found["queue"].tolist()[-1] == 100
    assert found["queue_min_mean"].tolist()[:2] == [0.0, 5.0]
    np.testing.assert_allclose(found["queue_min_mean"].iloc[-1], mean, rtol=1e-6)
