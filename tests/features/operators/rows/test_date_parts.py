"""DateParts against the standard library's calendar."""

import calendar
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.date_parts import PARTS, DateParts
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples

START = datetime(1970, 1, 1, tzinfo=UTC)


def by_datetime(moment):
    day = moment.timetuple()
    return [moment.year, moment.month, moment.day, moment.weekday(), day.tm_yday, moment.hour, moment.minute,
            60 * moment.hour + moment.minute, int(f"{moment:%m%d}")]  # fmt: skip


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
    parts = [part for part in PARTS if part not in ("year", "month_day")]
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
    with pytest.raises(DataError, match="month_day cannot be cyclical, as its numbers have gaps; day_of_year has none"):
        DateParts("at", (), "d", cyclical=["month_day"])
    with pytest.raises(DataError, match="give parts or cyclical"):
        DateParts("at", (), "d")
    micros = pd.DataFrame({"at": [1_359_590_400_000_000]})
    with pytest.raises(DataError, match=r"in min since 1970 are not in the years 1 to 9999.*unit is us or ns"):
        DateParts("at", ["hour"], "d", unit="min")(micros)


@pytest.mark.parametrize(("number", "fits"), [(1_403_159_462, "s"), (1_403_159_462_000, "ms"), (16_240, None)])
def test_numbers_without_a_unit_are_minutes_of_our_time_or_refused(number, fits):
    """Seconds since 1970 were minutes of the year 4637."""
    frame = pd.DataFrame({"at": [number, None]})
    if fits is None:
        assert DateParts("at", ["year"], "d")(frame)["d_year"].tolist() == [1970, pd.NA]
        return
    with pytest.raises(DataError, match=rf"'at' holds {number} to {number}, .*In {fits} they are of 2014\. Set unit"):
        DateParts("at", ["year"], "d")(frame)
    assert DateParts("at", ["year"], "d", fits)(frame)["d_year"].tolist() == [2014, pd.NA]
    assert DateParts("at", ["year"], "d", "min")(pd.DataFrame({"at": [1_403_159_462]}))["d_year"].tolist() == [4637]


@pytest.mark.parametrize(("dtype", "written"), [
    ("datetime", ["2014-06-19T06:31", None]), ("datetime[s]", [1_403_159_460, None]),
    ("datetime[%d.%m.%Y %H:%M]", ["19.06.2014 06:31", None]), ("datetime[ms]?", ["1403159460000", "soon"]),
])  # fmt: skip
@pytest.mark.parametrize("by_cast", [False, True])
def test_a_column_whose_type_is_known_needs_no_unit(dtype, written, by_cast):
    steps = [{"cast": {"columns": ["at"], "dtype": dtype, "nullable": True}}] if by_cast else []
    steps += [{"rename": {"mapping": {"at": "when"}}},
              {"date_parts": {"column": "when", "parts": ["year", "minute"], "prefix": "t"}}]  # fmt: skip
    typed = Workflow.from_steps(steps).steps
    workflow = Workflow(typed, (), {} if by_cast else {"at": dtype})
    assert workflow.to_steps()[-1]["date_parts"]["unit"] == "us"
    found = workflow.fit([(frame := workflow.typed(pd.DataFrame({"at": written})))]).transform(frame)
    assert found[["t_year", "t_minute"]].values.tolist() == [[2014, 31], [pd.NA, pd.NA]]


def test_a_column_that_a_step_makes_anew_has_no_type_that_is_known():
    steps = [
        {"expression": {"output": "at", "expression": "at // 60"}},
        {"date_parts": {"column": "at", "parts": ["year"], "prefix": "t"}},
    ]
    workflow = Workflow(Workflow.from_steps(steps).steps, (), {"at": "datetime"})
    assert workflow.to_steps()[-1]["date_parts"].get("unit") is None


@pytest.mark.parametrize("column", [
    pd.Series(["2014-06-19T06:31", None]), pd.Series(pd.to_datetime(["2014-06-19T06:31", None])),
    pd.Series([1_403_159_460.0, None]), pd.Series([1_403_159_460, None], dtype="Int64"),
    pd.Series([1_403_159_460, None], dtype="int64[pyarrow]"),
    pd.Series([pd.Timestamp("2014-06-19T06:31"), None], dtype=object),
], ids=["text", "timestamps", "floats", "Int64", "Arrow", "objects"])  # fmt: skip
def test_a_null_time_has_null_parts(column):
    parts = DateParts("at", PARTS, "t", "s", cyclical=["hour"])
    found = parts(column.to_frame("at"))
    moment = datetime(2014, 6, 19, 6, 31, tzinfo=UTC)
    assert found[[f"t_{part}" for part in PARTS]].values.tolist() == [by_datetime(moment), [pd.NA] * len(PARTS)]
    assert {str(found[f"t_{part}"].dtype) for part in PARTS} == {"Int32"}
    assert found["t_hour_sin"].isna().tolist() == [False, True]
    assert {str(found[f"t_hour_{side}"].dtype) for side in ("sin", "cos")} == {"float32"}
    for row in range(2):  # a row alone is of the same bits
        alone = parts(column.to_frame("at").iloc[row : row + 1])
        assert alone["t_hour_sin"].equals(found["t_hour_sin"].iloc[row : row + 1])
    nothing = parts(column.iloc[1:].to_frame("at"))
    assert nothing[[f"t_{part}" for part in PARTS]].isna().all(axis=None)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe"])
@pytest.mark.parametrize("unit", ["min", "us", "timestamps"])
def test_parts_of_a_zone_are_those_of_pandas(zone, unit):
    around = pd.date_range("2024-03-30", "2024-04-08", freq="29min").append(
        [pd.date_range("2024-10-05", "2024-11-05", freq="43min"), pd.date_range("1969-01-01", "2037-12-31", freq="97D")]
    )
    at = around if unit == "timestamps" else ((around - pd.Timestamp(0)) // pd.Timedelta(1, unit)).to_numpy()
    operator = DateParts("at", PARTS, "t", None if unit == "timestamps" else unit, cyclical=["hour"], zone=zone)
    found = operator(pd.DataFrame({"at": at}))
    expected = [by_datetime(moment.to_pydatetime()) for moment in around.tz_localize("UTC").tz_convert(zone)]
    assert found[[f"t_{part}" for part in PARTS]].values.tolist() == expected
    assert found["t_hour_sin"].to_numpy() == pytest.approx(np.sin(np.array(found["t_hour"]) * math.pi / 12), abs=1e-6)
    assert DateParts(**operator.settings()).settings() == operator.settings()
    alone = operator(pd.DataFrame({"at": at[:1]}))
    assert alone.equals(found.iloc[:1])


def test_a_zone_that_is_none_is_refused():
    with pytest.raises(DataError, match=r"DateParts: unknown time zone 'Europe/Berlim'.*Did you mean 'Europe/Berlin'"):
        DateParts("at", ["hour"], "t", zone="Europe/Berlim")


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
