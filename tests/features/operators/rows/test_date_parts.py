"""DateParts against the standard library's calendar."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.date_parts import PARTS, DateParts
from tests.examples import examples

START = datetime(1970, 1, 1, tzinfo=UTC)


def by_datetime(moment):
    day = moment.timetuple()
    return [moment.year, moment.month, moment.day, moment.weekday(), day.tm_yday, moment.hour, moment.minute,
            60 * moment.hour + moment.minute]  # fmt: skip


@pytest.mark.parametrize("unit", ["min", "s"])
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_parts_equal_the_standard_library(unit, data):
    limit = 4_000_000_000 // (60 if unit == "min" else 1)
    times = data.draw(st.lists(st.integers(-limit, limit), min_size=1))
    found = DateParts("at", PARTS, "d", unit)(pd.DataFrame({"at": times}))
    step = timedelta(minutes=1) if unit == "min" else timedelta(seconds=1)
    expected = [by_datetime(START + step * t) for t in times]
    assert found[[f"d_{part}" for part in PARTS]].to_numpy().tolist() == expected


def test_outputs_are_int32_and_the_rest_stays():
    frame = pd.DataFrame({"at": [0], "other": ["x"]}, index=[4])
    found = DateParts("at", ("year", "weekday"), "sched")(frame)
    assert found.to_dict("records") == [{"at": 0, "other": "x", "sched_year": 1970, "sched_weekday": 3}]
    assert {str(found[c].dtype) for c in ("sched_year", "sched_weekday")} == {"int32"}
    assert list(frame.columns) == ["at", "other"]
    assert found.index.tolist() == [4]


def test_unknown_parts_and_units_list_the_known_ones():
    with pytest.raises(DataError, match=r"unknown part\(s\) century. Known: year"):
        DateParts("at", ("century",), "d")
    with pytest.raises(DataError, match=r"unknown unit 'h'. Known: min, s"):
        DateParts("at", ("hour",), "d", unit="h")
