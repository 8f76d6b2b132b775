"""Lists of what was before, on the stand-ins of cuDF and CuPy: those of the pandas engine and of slow loops."""

import importlib.util
import math
import statistics

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from gigabatch.features.columns import lists as lists_module
from gigabatch.features.history.group_aggregates import AGGREGATIONS
from gigabatch.features.operators.categories.text_tokens import TextTokens
from gigabatch.features.operators.history.difference_lag import DifferenceLag
from gigabatch.features.operators.history.groupby_to_sequence import GroupbyToSequence
from gigabatch.features.operators.history.history import History
from gigabatch.features.operators.history.lag import Lag
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.recipes.base import HISTORY_UNTIL
from gigabatch.features.recipes.interactions.histories import HistorySettings, newest_histories, with_histories
from gigabatch.features.recipes.interactions.layout import Layout
from tests.features.engines.test_cudf_lists import plain

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in lies in host memory; a GPU has the real thing"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
TYPES = {"string": pa.string(), "int64": pa.int64()}


def log_of(user, item, seed, size=120, times="int64"):
    """Interactions in no order, many at one time; whole numbers that floats would round."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 6, size), rng.integers(0, 9, size) + 2**60
    at = rng.integers(0, 25, size).astype(times)
    columns = {
        "user": (users.tolist() if user == "int64" else [f"u{one}" for one in users], TYPES[user]),
        "item": (items.tolist() if item == "int64" else [f"é{one}" for one in items], TYPES[item]),
        "at": (at, pa.from_numpy_dtype(at.dtype)), "row": (rng.permutation(size), pa.int64()),
    }  # fmt: skip
    return pd.DataFrame({name: pd.array(pa.array(values, kind), pd.ArrowDtype(kind))
                         for name, (values, kind) in columns.items()}, index=range(5, 5 + size))  # fmt: skip


def of_numpy(frame):
    """The frame as pandas reads files: whole numbers of NumPy."""
    return frame.assign(**{name: frame[name].to_numpy() for name in frame if frame[name].dtype != "string[pyarrow]"})


def slow(rows, events, length, at):
    """(items, ages) of each row's last events before its time, the oldest first."""
    known = sorted(zip(events["at"], events["row"], events["user"], events["item"], strict=True))
    for user, now in zip(rows["user"], at, strict=True):
        found = [(item, now - time) for time, _, own, item in known if own == user and time < now][-length:]
        yield [item for item, _ in found], [age for _, age in found]


@pytest.mark.parametrize("block", [7, 1 << 26])
@pytest.mark.parametrize(("user", "item", "times"), [
    ("int64", "int64", "int64"), ("string", "string", "int64"), ("string", "int64", "float64"),
])  # fmt: skip
def test_histories_of_interactions_are_those_of_pandas(stand_in, engine, monkeypatch, user, item, times, block):
    monkeypatch.setattr(lists_module, "DEVICE_BLOCK", block)
    events, rows = log_of(user, item, 1, times=times), log_of(user, item, 2, 40, times)
    layout = Layout("user", "item", {"user": user, "item": item}, time="at")
    history = HistorySettings(4, 3.0)
    found = with_histories(
        stand_in.from_pandas(rows), stand_in.from_pandas(events), layout, history, "row",
        stand_in.from_pandas(rows)["at"],
    )  # fmt: skip
    expected = with_histories(of_numpy(rows), of_numpy(events), layout, history, "row", of_numpy(rows)["at"])
    assert plain(found["history"]) == plain(expected["history"])
    assert plain(found["history_weights"]) == plain(expected["history_weights"])
    items, ages = zip(*slow(rows, events, 4, rows["at"]), strict=True)
    assert plain(found["history"]) == list(items)
    weights = [[float(np.float32(0.5 ** (age / 3.0))) for age in row] for row in ages]
    assert plain(found["history_weights"]) == [pytest.approx(row, rel=1e-7) for row in weights]
    assert str(found["history"].dtype.element_type) == {"string": "object", "int64": "int64"}[item]
    newest = newest_histories(stand_in.from_pandas(rows), stand_in.from_pandas(events), layout, history, "row")
    expected = with_histories(of_numpy(rows), of_numpy(events), layout, history, "row", None)
    for name in history.columns:
        assert plain(newest[name]) == plain(expected[name])
    until = [
        max(time, *events["at"][events["user"] == own]) for own, time in zip(rows["user"], rows["at"], strict=True)
    ]
    assert plain(newest[HISTORY_UNTIL]) == until


def test_no_interaction_at_all_is_an_empty_history(stand_in, engine):
    rows = log_of("string", "string", 1, 3)
    device, layout = stand_in.from_pandas(rows), Layout("user", "item", {"user": "string", "item": "string"}, time="at")
    nothing = device.take(stand_in.cupy.arange(0))
    found = with_histories(device, nothing, layout, HistorySettings(5, 1.0), "row", device["at"])
    assert plain(found["history"]) == plain(found["history_weights"]) == [[], [], []]
    assert len(with_histories(nothing, device, layout, HistorySettings(5), "row", nothing["at"])["history"]) == 0
    assert len(with_histories(nothing, nothing, layout, HistorySettings(5), "row", nothing["at"])["history"]) == 0


@pytest.mark.parametrize("item", ["string", "int64"])
def test_a_step_of_histories_gives_what_it_gives_on_pandas(stand_in, engine, item):
    frame = log_of("string", item, 3)
    rng = np.random.default_rng(0)
    bought = rng.integers(0, 3, len(frame))
    frame["bought"] = pd.array(np.where(bought == 2, None, bought), pd.ArrowDtype(pa.int64()))
    frame["item"] = frame["item"].mask(rng.random(len(frame)) < 0.2)
    frame["user"] = frame["user"].mask(rng.random(len(frame)) < 0.1)
    for where, half_life in ((None, None), ("bought", 4)):
        step = History(["user"], "at", "row", "item", 3, "seen", where, half_life)
        found, expected = step(stand_in.from_pandas(frame)), step(frame)
        for name in step.outputs:
            assert plain(found[name]) == plain(expected[name])
        until = 12
        kept = step.kept(stand_in.from_pandas(frame), until)
        assert kept.held.tolist() == step.kept(frame, until).tolist()


@pytest.mark.parametrize("item", ["string", "int64"])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_sequences_of_groups_are_those_of_pandas(stand_in, engine, item, nulls):
    frame = log_of("string", item, 4)
    frame["item"] = frame["item"].mask(np.random.default_rng(1).random(len(frame)) < nulls)
    step = GroupbyToSequence(["user"], "row", ["item"], 5, separator=None)
    found, expected = step(stand_in.from_pandas(frame)), step(frame)
    assert plain(found["user"]) == plain(expected["user"])
    assert plain(found["item"]) == plain(expected["item"])
    groups = {key: group.sort_values("row")["item"].iloc[-5:] for key, group in frame.groupby("user")}
    slow = [[None if value is pd.NA else value for value in groups[key]] for key in sorted(groups)]
    assert plain(found["item"]) == slow


@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_aggregations_of_groups_are_those_of_pandas(stand_in, engine, nulls):
    frame, rng = log_of("string", "string", 4), np.random.default_rng(2)
    for name, values in (("whole", rng.integers(-5, 5, len(frame)) + 2**53), ("x", rng.normal(size=len(frame)) * 1e9),
                         ("flag", rng.random(len(frame)) < 0.5)):  # fmt: skip
        kept = [
            None if gone else one for one, gone in zip(values.tolist(), rng.random(len(frame)) < nulls, strict=True)
        ]
        frame[name] = pd.array(pa.array(kept, pa.from_numpy_dtype(values.dtype)), pd.ArrowDtype(
            pa.from_numpy_dtype(values.dtype)))  # fmt: skip
    asked = {f"{name}_{how}": (name, how) for name in ("whole", "x", "flag") for how in AGGREGATIONS}
    asked |= {f"item_{how}": ("item", how) for how in ("first", "last", "count", "nunique")}
    step = GroupbyToSequence(["user"], "row", ["item"], 5, None, asked)
    found, expected = step(stand_in.from_pandas(frame)), step(frame)
    for name in ("user", *asked):
        assert plain(found[name]) == plain(expected[name]), name
    if nulls == 0:
        totals = [math.fsum(group["x"]) for _, group in sorted(frame.groupby("user"))]
        assert plain(found["x_sum"]) == totals
        sums = [sum(group["whole"].tolist()) for _, group in sorted(frame.groupby("user"))]
        assert plain(found["whole_sum"]) == sums
        near = frame.assign(whole=frame["whole"] - 2**53).groupby("user")["whole"]  # which moves no variance
        spreads = [statistics.variance(group.tolist()) if len(group) > 1 else None for _, group in sorted(near)]
        assert plain(found["whole_var"]) == pytest.approx(spreads, rel=1e-15)
    alone = {f"{name}_{how}": (name, how) for name in ("whole", "x", "flag") for how in AGGREGATIONS[2:]}
    step = GroupbyToSequence(["user"], aggregations=alone)
    found = step(stand_in.from_pandas(frame))
    for name in ("user", *alone):
        assert plain(found[name]) == plain(expected[name]), name


@pytest.mark.parametrize("lag", [2, -1])
def test_differences_to_earlier_and_later_rows_are_those_of_pandas(stand_in, engine, lag):
    frame = log_of("string", "string", 5).assign(x=np.random.default_rng(4).normal(size=120))
    step = DifferenceLag(["user"], "row", "x", "d", lag)
    found = step(stand_in.from_pandas(frame))
    shifted = frame.sort_values("row").groupby("user")["x"].shift(lag)
    expected = (frame["x"] - shifted).astype("float32")
    assert [None if np.isnan(one) else one for one in expected] == plain(found["d"])


@pytest.mark.parametrize("column", ["x", "item", "small", "flag"])
@pytest.mark.parametrize("reach", [{"periods": 2}, {"span": 3}])
def test_lags_are_those_of_pandas_in_their_type(stand_in, engine, column, reach):
    rng = np.random.default_rng(4)
    frame = log_of("string", "string", 5).assign(
        x=rng.normal(size=120), small=rng.integers(0, 99, 120).astype("int32"), flag=rng.random(120) < 0.5
    )
    step = Lag(["user"], "at", column, "lag", order="row", **reach)
    found, expected = step(stand_in.from_pandas(frame))["lag"], step(of_numpy(frame))["lag"]
    assert plain(found) == [None if pd.isna(one) else one for one in expected]
    assert any(one is not None for one in plain(found))


@pytest.mark.parametrize("statistic", ["sum", "mean"])
def test_windows_of_fractions_are_those_of_pandas_to_the_last_bit(stand_in, engine, statistic):
    rng = np.random.default_rng(4)
    frame = log_of("string", "string", 5).assign(x=rng.normal(size=120) * 10.0 ** rng.integers(-9, 9, 120))
    step = Rolling(["user"], "at", "x", 9, statistic, "r")
    expected = step(of_numpy(frame))["r"]
    assert plain(step(stand_in.from_pandas(frame))["r"]) == [None if pd.isna(one) else one for one in expected]


@pytest.mark.parametrize("letters", [None, 3])
@pytest.mark.parametrize("num_buckets", [None, 50])
def test_words_are_those_of_pandas(stand_in, engine, letters, num_buckets):
    titles = ["Red shoes, red!", None, "", "  ", "a", "one-two three", "shoe"]
    frame = pd.DataFrame({"title": pd.array(titles, pd.ArrowDtype(pa.string()))}, index=range(3, 10))
    step = TextTokens("title", "words", letters, num_buckets)
    assert plain(step(stand_in.from_pandas(frame))["words"]) == plain(step(frame)["words"])
