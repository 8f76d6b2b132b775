"""Rolling against a slow loop over all pairs of rows."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.rolling import STATISTICS, Rolling
from tests.examples import examples

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-20, 20), st.none() | st.integers(-9, 9)), max_size=40
)


def slow(frame, window, statistic):
    rows = list(zip(frame["k"], frame["t"], frame["x"], strict=True))
    for key, at, _ in rows:
        seen = [x for k, t, x in rows if not pd.isna(key) and k == key and at - window <= t < at and not pd.isna(x)]
        if statistic in ("count", "sum"):
            yield {"count": len, "sum": sum}[statistic](seen)
        else:
            yield {"mean": np.mean, "min": min, "max": max}[statistic](seen) if seen else np.nan


def frame_of(rows):
    return pd.DataFrame(rows, columns=["k", "t", "x"]).astype({"k": "str", "t": "int64", "x": "float64"})


@pytest.mark.parametrize("statistic", STATISTICS)
@given(rows=ROWS, window=st.integers(1, 30))
@settings(max_examples=examples(60), deadline=None)
def test_equals_a_loop_over_all_pairs(statistic, rows, window):
    frame = frame_of(rows)
    found = Rolling(("k",), "t", "x", window, statistic, "y")(frame)
    assert str(found["y"].dtype) == ("int32" if statistic == "count" else "float32")
    expected = np.array(list(slow(frame, window, statistic)), dtype="float64")
    np.testing.assert_allclose(found["y"].astype("float64"), expected, rtol=1e-6)
    pd.testing.assert_frame_equal(found[["k", "t", "x"]], frame)


@pytest.mark.parametrize("statistic", ["min", "max"])
def test_fractions_and_long_windows_keep_their_extremes(statistic):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"k": "a", "t": np.arange(300), "x": rng.normal(size=300)}).sample(frac=1, random_state=1)
    found = Rolling(("k",), "t", "x", 130, statistic, "y")(frame).sort_values("t")["y"]
    expected = getattr(frame.sort_values("t")["x"].rolling(130, min_periods=1), statistic)().shift(1)
    np.testing.assert_array_equal(found, expected.astype("float32"))


def test_unknown_statistic_and_empty_window_are_errors():
    with pytest.raises(DataError, match=r"unknown statistic 'median'. Known: count, sum, mean, min, max"):
        Rolling(("k",), "t", "x", 5, "median", "y")
    with pytest.raises(DataError, match=r"window must be at least 1, found 0"):
        Rolling(("k",), "t", "x", 0, "sum", "y")


def test_means_and_sums_of_fractions_are_those_of_a_slow_loop_rounded_once():
    random = np.random.default_rng(5)
    values = random.normal(size=400) * 10.0 ** random.integers(-12, 13, 400)
    frame = pd.DataFrame({
        "k": random.choice(["a", "b"], 400), "t": random.integers(0, 60, 400),
        "x": np.where(random.random(400) < 0.1, np.nan, values),
    })  # fmt: skip
    for dtype in ("float64", "float32"):
        rows = frame.astype({"x": dtype})
        for statistic in ("sum", "mean"):
            found = Rolling(["k"], "t", "x", 9, statistic, "out")(rows)["out"]
            for row, one in zip(rows.itertuples(), found, strict=True):
                inside = rows[(rows["k"] == row.k) & (rows["t"] < row.t) & (rows["t"] >= row.t - 9)]["x"].dropna()
                total = float(sum(map(Fraction, inside.astype("float64").tolist())))
                expected = total if statistic == "sum" else total / len(inside) if len(inside) else np.nan
                np.testing.assert_array_equal(one, np.float32(expected))
            mixed = rows.sample(frac=1, random_state=1)
            again = Rolling(["k"], "t", "x", 9, statistic, "out")(mixed)["out"].reindex(rows.index)
            pd.testing.assert_series_equal(again, found)


def test_an_infinity_is_named_where_fractions_are_summed():
    frame = pd.DataFrame({"k": "a", "t": [1, 2], "x": [0.5, np.inf]})
    with pytest.raises(DataError, match="column 'x' holds an infinity"):
        Rolling(["k"], "t", "x", 9, "mean", "out")(frame)
