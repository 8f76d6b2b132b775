"""DateParts against the standard library's calendar."""

import calendar
import math
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
    with pytest.raises(DataError, match=r"unknown unit 'week'. Known: d, h, min, s, ms, us, ns"):
        DateParts("at", ("hour",), "d", unit="week")


def test_cyclical_parts_are_points_on_a_circle_that_closes():
    """Against the standard library's calendar; the last step of a period lies beside its first."""
    times = [datetime(2023, 12, 31, 23, 59), datetime(2024, 1, 1), datetime(2024, 2, 29, 12), datetime(2023, 2, 28, 6)]
    parts = [part for part in PARTS if part != "year"]
    found = DateParts("at", (), "t", cyclical=parts)(pd.DataFrame({"at": [time.isoformat() for time in times]}))
    assert set(map(str, found.drop(columns="at").dtypes)) == {"float32"}
    for row, time in enumerate(times):
        days = calendar.monthrange(time.year, time.month)[1]
        year = 366 if calendar.isleap(time.year) else 365
        share = {
            "month": (time.month - 1) / 12, "day": (time.day - 1) / days, "weekday": time.weekday() / 7,
            "day_of_year": (time.timetuple().tm_yday - 1) / year, "hour": time.hour / 24, "minute": time.minute / 60,
            "minute_of_day": (60 * time.hour + time.minute) / 1440,
        }  # fmt: skip
        for part in parts:
            expected = math.sin(2 * math.pi * share[part]), math.cos(2 * math.pi * share[part])
            assert tuple(found.loc[row, [f"t_{part}_sin", f"t_{part}_cos"]]) == pytest.approx(expected, abs=1e-6), part
    step = found.loc[0, ["t_minute_of_day_sin", "t_minute_of_day_cos"]] - [0, 1]
    assert abs(step).max() < 2 * math.pi / 1440 + 1e-6


def test_settings_and_times_that_make_no_sense_say_what_to_do():
    with pytest.raises(DataError, match="year cannot be cyclical"):
        DateParts("at", (), "d", cyclical=["year"])
    with pytest.raises(DataError, match="give parts or cyclical"):
        DateParts("at", (), "d")
    micros = pd.DataFrame({"at": [1_359_590_400_000_000]})
    with pytest.raises(DataError, match=r"in min since 1970 are not in the years 1 to 9999.*unit is us or ns"):
        DateParts("at", ["hour"], "d")(micros)


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [("d", 86_400), ("days", 86_400), ("h", 3600), ("hours", 3600), ("min", 60), ("minutes", 60), ("s", 1)],
)
def test_long_units_and_their_long_names(unit, seconds):
    moments = [datetime(*day, tzinfo=UTC) for day in ((1970, 1, 1), (2024, 2, 29), (9999, 12, 31), (1, 1, 1))]
    at = [(moment - START) // timedelta(seconds=seconds) for moment in moments]
    operator = DateParts("at", ["year", "month", "day", "hour"], "t", unit)
    found = operator(pd.DataFrame({"at": at})).drop(columns="at")
    assert found.to_numpy().tolist() == [[m.year, m.month, m.day, m.hour] for m in moments]
    assert DateParts(**operator.settings()).settings() == operator.settings()
