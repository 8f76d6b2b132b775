"""Times of every kind as microseconds since 1970 in UTC, against the standard library."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.columns.times import is_calendar, is_dates, iso_text, microseconds, moments
from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.date_parts import DateParts
from gigabatch.features.reading.sources import cast, read_files

SCALES = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ZONES = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(dt.timedelta(hours=-8))])
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=ZONES)
WALL = ["2013-03-31T01:59:59", "1969-12-31T23:59:59", "2024-02-29T12:00:00"]
EXPECTED = [int((dt.datetime.fromisoformat(text + "+00:00") - EPOCH).total_seconds()) * 10**6 for text in WALL]


@given(st.lists(MOMENTS, min_size=1, max_size=5))
def test_iso_text_of_any_zone_and_precision(times):
    text = [time.isoformat(" " if k % 2 else "T") for k, time in enumerate(times)]
    expected = [(time - EPOCH) // dt.timedelta(microseconds=1) for time in times]
    found = microseconds(pd.Series(text, dtype="str"))
    assert found.tolist() == expected
    assert microseconds(iso_text(found)).tolist() == expected
    plain = [time.astimezone(dt.UTC).replace(tzinfo=None).isoformat() for time in times]
    assert [dt.datetime.fromisoformat(text).isoformat() for text in iso_text(found)] == plain


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "Asia/Kolkata"])
@pytest.mark.parametrize("arrow", [False, True])
def test_timestamps_of_any_unit_and_zone(unit, zone, arrow):
    column = pd.Series(pd.to_datetime(WALL).astype(f"datetime64[{unit}]"), name="at")
    expected = EXPECTED
    if zone:
        column = column.dt.tz_localize(zone)
        expected = [(moment - EPOCH) // dt.timedelta(microseconds=1) for moment in column.dt.to_pydatetime()]
    if arrow:
        column = column.astype(pd.ArrowDtype(pa.timestamp(unit, tz=zone)))
    assert is_dates(column)
    assert moments(column).tolist() == microseconds(column).tolist() == expected
    assert str(microseconds(column).dtype) == "int64"
    assert [text + ".000000" if "." in text else text for text in iso_text(column)] == iso_text(
        pd.Series(expected)
    ).tolist()


@pytest.mark.parametrize("dtype", ["object", pd.ArrowDtype(pa.date32())])
def test_dates(dtype):
    column = pd.Series([dt.date(2013, 3, 31), None, dt.date(1969, 12, 31)], dtype=dtype)
    assert microseconds(column).tolist() == [15_795 * 86_400 * 10**6, 0, -86_400 * 10**6]
    assert iso_text(column).isna().tolist() == [False, True, False]


def test_numbers_stay_in_their_own_unit():
    for values, dtype in (([3, -1], "int64"), ([3, 1], "uint8"), ([1.5, 2.0], "float64"), (["7", "-8"], "str")):
        column = pd.Series(values, dtype=dtype)
        assert moments(column).tolist() == [float(value) for value in values]
        assert not is_calendar(column)
    assert is_calendar(pd.Series(WALL, dtype="str"))


BAD = [
    "soon",
    "2013-02-30",
    "2013-01-31T25:00",
    "2013-01-31T10",
    "31.1.2013",
    "20130131T1000",
    "2013-01-31T23:59:60",
    "2013-01-31T00:00+24:00",
    "2013-01-31T00:00+02:75",
]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_time_is_refused_by_name(bad):
    with pytest.raises(
        DataError, match=r"time column 'at': neither numbers nor ISO 8601 times \(.+\). Write them like"
    ):
        microseconds(pd.Series(["2013-01-31", bad], name="at", dtype="str"))


@pytest.mark.parametrize("kind", ["timestamp", "text", "zone", "date", "number"])
def test_a_column_read_as_datetime(tmp_path, kind):
    midnight = ["2013-03-31", "1969-12-31", None]
    stamps = pd.Series(pd.to_datetime(midnight))
    column = {
        "timestamp": stamps,
        "text": pd.Series(midnight, dtype="str"),
        "zone": stamps.dt.tz_localize("UTC").dt.tz_convert("Asia/Kolkata"),
        "date": pd.Series([None if pd.isna(stamp) else stamp.date() for stamp in stamps], dtype="object"),
        "number": pd.Series([15_795 * 86_400 * 10**6, -86_400 * 10**6, None], dtype="Int64"),
    }[kind]
    pd.DataFrame({"at": column}).to_parquet(tmp_path / "t.parquet")
    found = read_files("pandas", str(tmp_path / "t.parquet"), {"at": "datetime"}, nullable={"at"})["at"]
    assert found.astype("object").tolist()[:2] == [15_795 * 86_400 * 10**6, -86_400 * 10**6]
    assert found.isna().tolist() == [False, False, True]
    with pytest.raises(DataError, match=r"column 'at' is declared datetime but holds .*1 null\(s\)"):
        read_files("pandas", str(tmp_path / "t.parquet"), {"at": "datetime"})
    if kind in ("timestamp", "zone"):
        text = read_files("pandas", str(tmp_path / "t.parquet"), {"at": "string"})["at"]
        assert text.tolist()[:2] == ["2013-03-31T00:00:00", "1969-12-31T00:00:00"]
        with pytest.raises(DataError, match="read timestamps as the type datetime, and make features of them"):
            cast(pd.DataFrame({"at": column}), {"at": "float32"}, "here")


def test_the_parts_of_a_time_do_not_depend_on_how_it_is_written():
    stamps = pd.Series(pd.to_datetime(WALL))
    seconds = np.array(EXPECTED) // 10**6
    ways = [(stamps, "min"), (stamps.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), "min")]
    ways += [(pd.Series(WALL, dtype="str"), "s"), (pd.Series(WALL, dtype="str") + "Z", "min")]
    ways += [
        (pd.Series(seconds * scale), unit) for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
    ]
    for column, unit in ways:
        operator = DateParts("at", ["year", "month", "day", "hour", "minute"], "t", unit)
        found = operator(pd.DataFrame({"at": column})).drop(columns="at")
        times = [dt.datetime.fromisoformat(text) for text in WALL]
        assert found.to_numpy().tolist() == [[t.year, t.month, t.day, t.hour, t.minute] for t in times]


BEYOND = {
    "the year 0": pd.Series(["2013-01-31", "0000-12-31T23:59:59"], dtype="str"),
    "the year 0 in UTC": pd.Series(["0001-01-01T00:00+02:00"], dtype="str"),
    "the year 10000 in UTC": pd.Series(["9999-12-31T23:00-01:00"], dtype="str"),
    "timestamps before": pd.Series(np.array(["0000-06-01"], "datetime64[s]")),
    "timestamps after": pd.Series(np.array(["10000-01-01"], "datetime64[us]")),
    "timestamps of Arrow": pd.Series(np.array(["0000-06-01"], "datetime64[s]")).astype(
        pd.ArrowDtype(pa.timestamp("s"))
    ),
}


@pytest.mark.parametrize("beyond", BEYOND)
def test_a_time_outside_the_years_1_to_9999_is_refused_however_it_comes(beyond):
    column = BEYOND[beyond].rename("at")
    with pytest.raises(DataError, match=r"time column 'at': neither .*is not in the years 1 to 9999 in UTC"):
        microseconds(column)
    with pytest.raises(DataError, match=r"'at'.*is not in the years 1 to 9999 in UTC"):
        DateParts("at", ["year"], "t")(column.to_frame())
    with pytest.raises(DataError, match=r"here: column 'at'.*is not in the years 1 to 9999 in UTC"):
        cast(column.to_frame(), {"at": "datetime"}, "here")


def test_numbers_that_are_no_microseconds_are_refused_where_a_datetime_is_declared():
    nanoseconds = pd.DataFrame({"at": pd.array([None, 1_700_000_000_000_000_000], "Int64")})
    with pytest.raises(DataError, match=r"here: column 'at'.*1700000000000000000 is not in the years 1 to 9999"):
        cast(nanoseconds, {"at": "datetime"}, "here", nullable={"at"})


def test_the_first_and_the_last_moment_of_the_calendar_are_times():
    text = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"]
    expected = [(dt.datetime.fromisoformat(one) - EPOCH) // dt.timedelta(microseconds=1) for one in text]
    assert microseconds(pd.Series(text, dtype="str")).tolist() == expected
    assert cast(pd.DataFrame({"at": expected}), {"at": "datetime"}, "here")["at"].tolist() == expected
