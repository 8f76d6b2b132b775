"""Waiting against a queue counted by hand and by a loop."""

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


def test_a_queue_counted_by_hand():
    frame = table([
        ("a", 10, 25), ("a", 15, 12), ("a", 18, None), ("a", 20, 20), ("a", 30, 30), ("b", 29, None),
    ])  # fmt: skip
    found = OPERATOR(frame)
    # At 20 the flights of 10 and 18 wait, 10 and 2 minutes; at 30 only the one of 18: that of 20 has left.
    assert found["queue"].tolist() == [0, 1, 1, 2, 1, 0]
    assert found["queue_min_mean"].tolist() == [0, 5, 8, 6, 12, 0]
    assert [str(t) for t in found.dtypes[-2:]] == ["int32", "float32"]


@given(rows=st.lists(ROW, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_equals_a_loop(rows):
    frame = table(rows)
    found = OPERATOR(frame)
    answers = expected(frame)
    assert found["queue"].tolist() == [n for n, _ in answers]
    np.testing.assert_allclose(found["queue_min_mean"], [w for _, w in answers], rtol=1e-6)


def test_when_an_overdue_event_will_happen_does_not_matter():
    late, never = table([("a", 10, 25), ("a", 20, 20)]), table([("a", 10, None), ("a", 20, 20)])
    outputs = list(OPERATOR.outputs)
    pd.testing.assert_frame_equal(OPERATOR(late)[outputs], OPERATOR(never)[outputs])
