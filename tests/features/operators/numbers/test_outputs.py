"""Operators of numbers that may write beside their column (Q7: some could not keep it)."""

import pandas as pd
import pytest

from gigabatch.features.operators import Bucketize, Clip, GaussRank, Log, MinMax, Normalize, QuantileBuckets

MADE = {
    "Bucketize": lambda **names: Bucketize("x", [2.0], **names),
    "Clip": lambda **names: Clip("x", 2, 3, **names),
    "GaussRank": lambda **names: GaussRank("x", **names),
    "Log": lambda **names: Log("x", **names),
    "MinMax": lambda **names: MinMax("x", **names),
    "Normalize": lambda **names: Normalize("x", **names),
    "QuantileBuckets": lambda **names: QuantileBuckets("x", 2, **names),
}


def applied(operator, frame):
    return operator.apply(frame, operator.fit([frame])) if hasattr(operator, "fit") else operator(frame)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0, 8.0], [3.0, 3.0]])
def test_an_output_beside_the_column_holds_what_else_would_replace_it(name, values):
    frame = pd.DataFrame({"x": values, "other": range(len(values))})
    replaced = applied(MADE[name](), frame)
    beside = applied(MADE[name](output="y"), frame)
    assert list(replaced) == ["x", "other"]
    assert list(beside) == ["x", "other", "y"]
    assert beside["x"].tolist() == values
    pd.testing.assert_series_equal(beside["y"], replaced["x"], check_names=False)
    assert MADE[name](output="y").outputs == ("y",)


@pytest.mark.parametrize("name", ["GaussRank", "QuantileBuckets"])
def test_the_fit_in_several_passes_writes_there_too(name, monkeypatch):
    frame = pd.DataFrame({"x": [float(value % 97) for value in range(1000)]})
    parts = [frame[:400], frame[400:]]
    operator = MADE[name](output="y")
    found = operator.apply(frame, operator.fit(parts))
    pd.testing.assert_series_equal(found["y"], applied(MADE[name](), frame)["x"], check_names=False)
