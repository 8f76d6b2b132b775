"""Windows as text: they hold what pandas' windows of that length hold."""

import logging

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.asof import AsOf, Count, Last, Mean
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.operators.history.windows import _warn_of_unit
from gigabatch.features.workflow.workflow import Workflow

TYPES = {"shop": "string", "day": "datetime", "sold": "int64", "row": "int64"}


def days(rows=200):
    draw = np.random.default_rng(0)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.choice(60 * 24, rows, replace=False), unit="h")
    frame = pd.DataFrame({"shop": draw.choice(["a", "b"], rows), "day": day, "sold": draw.integers(0, 9, rows)})
    return frame.sort_values("day", ignore_index=True).assign(row=range(rows))


def rolled(frame, window):
    return frame.set_index("day").groupby("shop")["sold"].rolling(window, closed="left")


@pytest.mark.parametrize(("text", "window"), [("7d", "7D"), ("36h", "36h"), ("2.5 days", "60h")])
def test_text_is_a_span_of_a_datetime(text, window):
    frame = days()
    steps = [Rolling(["shop"], "day", "sold", text, name, name) for name in ("mean", "max")]
    steps.append(AsOf(["shop"], "day", "day", [Mean("sold", "asof_mean", text), Count("n", text),
                                               Last({"sold": "last"})], "row"))  # fmt: skip
    workflow = Workflow(steps, dtypes=TYPES)
    found = workflow.transform(workflow.typed(frame), whole_groups=True)
    found = found.sort_values(["shop", "row"], ignore_index=True)
    kept = rolled(frame, window)
    for name in ("mean", "max"):
        np.testing.assert_allclose(found[name], getattr(kept, name)(), rtol=1e-6)
    np.testing.assert_allclose(found["asof_mean"], kept.mean(), rtol=1e-6)
    assert found["n"].tolist() == kept.count().fillna(0).tolist()
    assert Workflow.from_steps(workflow.to_steps()).steps[0].window == pd.Timedelta(window) // pd.Timedelta("1us")


def test_text_for_plain_numbers_is_refused():
    frame = days().assign(day=range(200))
    for step in (
        Rolling(["shop"], "day", "sold", "7d", "sum", "x"),
        AsOf(["shop"], "day", "day", [Count("x", "7d")], "row"),
    ):
        with pytest.raises(DataError, match="window is '7d', and column 'day' holds numbers, whose unit is not known"):
            step(frame)


@pytest.mark.parametrize("window", ["7", "d", "0d", "7 weeks", ""])
def test_text_that_is_no_span_is_refused(window):
    with pytest.raises(DataError, match="window"):
        Rolling(["shop"], "day", "sold", window, "sum", "x")


def test_a_number_below_a_second_of_a_datetime_is_warned_of(caplog):
    _warn_of_unit.cache_clear()
    with caplog.at_level(logging.WARNING):
        for window in (7, 7 * 86_400 * 10**6, "7d"):
            Workflow([Rolling(["shop"], "day", "sold", window, "sum", "x")], dtypes=TYPES)
        Workflow([Rolling(["shop"], "row", "sold", 7, "sum", "x")], dtypes=TYPES)
    assert [record.getMessage() for record in caplog.records] == [
        "Rolling of 'sold': window is 7 microseconds, the unit of 'day', which is a datetime. Write longer ones with a "
        "unit, such as window: 7d or 12h."
    ]
