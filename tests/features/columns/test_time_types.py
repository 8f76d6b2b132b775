"""Times by a format or a unit, against the standard library's `strptime` and calendar."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.columns.time_types import of_type, time_type
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import cast, read_files

EPOCH = dt.datetime(1970, 1, 1)
FORMATS = [
    "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%Y%m%d", "%d-%b-%Y", "%b %d, %Y %I:%M %p", "%d.%m.%y %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f", "(%Y) %m.%d", "%Y/%m",
    "%Y-%j", "%Y%j", "%j/%y %H:%M",
]  # fmt: skip
MOMENTS = st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 30))


def us(moment):
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize("form", FORMATS)
@given(times=st.lists(MOMENTS, min_size=1, max_size=5))
def test_what_strftime_writes_is_read_as_strptime_reads_it(form, times):
    texts = [time.strftime(form) for time in times]
    found, null = of_type(pd.Series([*texts, None], dtype="str"), time_type(f"datetime[{form}]"))
    assert found.tolist() == [*(us(dt.datetime.strptime(text, form)) for text in texts), 0]
    assert null.tolist() == [False] * len(texts) + [True]


def test_offsets_and_single_digits():
    how = time_type("datetime[%d.%m.%Y %H:%M%z]")
    found, _ = of_type(pd.Series([" 1.2.2024 3:05+02:00", "01.02.2024 01:05Z", "31.1.2024 23:05-0200"]), how)
    assert found.nunique() == 1
    assert found[0] == us(dt.datetime(2024, 2, 1, 1, 5))


def test_utc_and_gmt_are_offsets_and_another_abbreviation_is_text_of_the_format():
    how = time_type("datetime[%Y-%m-%d %H:%M %z]")
    found, _ = of_type(pd.Series(["2024-02-01 01:05 UTC", "2024-02-01 01:05 GMT", "2024-02-01 03:05 +0200"]), how)
    assert set(found) == {us(dt.datetime(2024, 2, 1, 1, 5))}
    found, _ = of_type(pd.Series(["2024-02-01 01:05 EST"]), time_type("datetime[%Y-%m-%d %H:%M EST]"))
    assert found[0] == us(dt.datetime(2024, 2, 1, 1, 5))
    with pytest.raises(DataError, match="'2024-02-01 01:05 EST' is no time in the format"):
        of_type(pd.Series(["2024-02-01 01:05 EST"]), how)


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("%H:%M", ["14:05", "9:30", "0:00"]),
        ("%H:%M:%S", ["23:59:59", "00:00:01"]),
        ("%I:%M %p", ["2:05 PM", "12:00 am"]),
    ],
)
def test_a_time_of_day_is_that_of_the_first_of_1970(form, texts):
    how = time_type(f"datetime[{form}]")
    found, _ = of_type(pd.Series(texts), how)
    clocks = [dt.datetime.strptime(text, form).time() for text in texts]
    assert found.tolist() == [us(dt.datetime.combine(EPOCH, clock)) for clock in clocks]
    assert how.of_day
    assert not time_type("datetime[%Y-%m %H:%M]").of_day
    with pytest.raises(DataError, match="'25:00' is no time"):
        of_type(pd.Series(["25:00"]), time_type("datetime[%H:%M]"))


@pytest.mark.parametrize(
    "text", ["29.02.2023", "31.04.2024", "0.1.2024", "1.13.2024", "2024-01-31", "31.12.24", "31.12.2024 x", "", "k.A."]
)
def test_what_contradicts_the_format_is_an_error_or_null(text):
    column = pd.Series(["28.02.2024", text], name="day", dtype="str")
    with pytest.raises(DataError, match=r"time column 'day': .* is no time in the format '%d.%m.%Y'"):
        of_type(column, time_type("datetime[%d.%m.%Y]"))
    found, null = of_type(column, time_type("datetime[%d.%m.%Y]?"))
    assert found.tolist() == [us(dt.datetime(2024, 2, 28)), 0]
    assert null.tolist() == [False, True]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9), ("min", 1 / 60)])
@pytest.mark.parametrize("kind", ["int64", "str", "Int64", "float64"])
def test_units(unit, scale, kind):
    moment = dt.datetime(2024, 2, 29, 12, 1)
    number = round((moment - EPOCH).total_seconds() * scale)
    column = pd.Series([number, number], name="at").astype(kind)
    found, _ = of_type(column, time_type(f"datetime[{unit}]"))
    assert found.tolist() == [us(moment)] * 2


def test_fractions_of_a_second():
    found, _ = of_type(pd.Series([1700000000.25]), time_type("datetime[s]"))
    assert found.tolist() == [1700000000_250000]
    found, _ = of_type(pd.Series(["1700000000.25", "3"]), time_type("datetime[s]"))
    assert found.tolist() == [1700000000_250000, 3_000_000]


@pytest.mark.parametrize("value", [10**14, -(10**14), "12:30", "1_000", float("inf")])
def test_numbers_that_are_no_times_of_the_unit(value):
    column = pd.Series([value], name="at")
    with pytest.raises(DataError, match=r"time column 'at': .* is no time in s since 1970"):
        of_type(column, time_type("datetime[s]"))
    assert of_type(column, time_type("datetime[s]?"))[1].tolist() == [True]


def test_timestamps_and_compact_whole_numbers():
    times = pd.Series(pd.to_datetime(["2024-12-31 10:00+02:00", None]))
    found, null = of_type(times, time_type("datetime[%d.%m.%Y]"))
    assert found[0] == us(dt.datetime(2024, 12, 31, 8))
    assert null.tolist() == [False, True]
    for numbers in (pd.Series([20241231]), pd.Series([20241231.0, np.nan])):
        assert of_type(numbers, time_type("datetime[%Y%m%d]"))[0][0] == us(dt.datetime(2024, 12, 31))


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("datetime[weeks]", "unknown unit 'weeks'"), ("datetime[%d.%m.%Q]", "%Q is unknown"),
        ("datetime[%d.%m.%Y %d]", "%d stands twice"), ("datetime[%d.%m]", "holds one year"),
        ("datetime[%Y-%d]", "one month"), ("datetime[%Y-%m %I]", "clock of twelve"),
        ("datetime[%Y%m%]", "% is unknown"), ("datetime[%M:%S]", "or no part of a date but an hour"),
        ("datetime[%Y %m %j]", "day of the year"), ("datetime[%Y%j%d]", "without %d"),
        ("datetime[%j %H:%M]", "one year"), ("datetime[%d %H:%M]", "holds one year"),
        ("datetime[%H:%M%z]", "holds one year"),
    ],
)  # fmt: skip
def test_types_that_are_none(dtype, said):
    with pytest.raises(DataError, match=said):
        time_type(dtype)


def test_files_and_frames_are_read_alike(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("day,at\n31.12.2024,1700000000000\nNA,\n")
    types = {"day": "datetime[%d.%m.%Y]", "at": "datetime[ms]"}
    read = read_files("pandas", str(path), types, nullable=set(types))
    assert read["day"][0] == us(dt.datetime(2024, 12, 31))
    assert read["at"][0] == 1700000000_000000
    assert read.isna().to_numpy().tolist() == [[False, False], [True, True]]
    frame = pd.DataFrame({"day": ["31.12.2024", None], "at": [1700000000000.0, None]})
    assert cast(frame, types, "here", nullable=set(types)).equals(read)
    arrow = pd.DataFrame({"day": pd.Series(["31.12.2024", None], dtype=pd.ArrowDtype(pa.large_string())),
                          "at": pd.Series([1700000000000, None], dtype=pd.ArrowDtype(pa.int64()))})  # fmt: skip
    made = cast(arrow, types, "here", nullable=set(types))
    assert [int(made[name][0]) for name in types] == [int(read[name][0]) for name in types]
    with pytest.raises(DataError, match=r"column 'day'.*null"):
        cast(frame, types, "here")


@pytest.mark.parametrize("number", [20241231.5, float("inf"), 1e300, -20241231.0])
def test_floats_that_are_no_whole_numbers_are_written_in_no_format(number):
    how = time_type("datetime[%Y%m%d]?")
    assert of_type(pd.Series([20241231.0, number]), how)[1].tolist() == [False, True]


@pytest.mark.parametrize(
    ("form", "number", "moment"),
    [
        ("%d%m%Y", 1012024, dt.datetime(2024, 1, 1)),  # 01012024, and not the 10th
        ("%d%m%y", 10224, dt.datetime(2024, 2, 1)),
        ("%y%m%d", 10112, dt.datetime(2001, 1, 12)),
        ("%y%m%d", 112, dt.datetime(2000, 1, 12)),
        ("%m%d%Y%H%M", 10220240305, dt.datetime(2024, 1, 2, 3, 5)),
        ("%Y%j", 2024366, dt.datetime(2024, 12, 31)),
        ("%Y%j", 2023366, None),
        ("%Y%j", 2024000, None),
        ("%j%Y", 12024, dt.datetime(2024, 1, 1)),
        ("%Y%m%d", 2024111, None),  # the 1st of November or the 11th of January
    ],
)
@pytest.mark.parametrize("kind", ["int64", "Int64", "float64"])
def test_a_whole_number_lacks_leading_zeros(form, number, moment, kind):
    column = pd.Series([number, number if kind == "int64" else None]).astype(kind)
    found, null = of_type(column, time_type(f"datetime[{form}]?"))
    assert bool(null[0]) == (moment is None)
    assert found[0] == (0 if moment is None else us(moment))


def test_directives_that_touch_have_all_their_digits():
    """Else 1112024 would be the 11th of January as well as the 1st of November."""
    texts = pd.Series(["1112024", "01112024"], dtype="str")
    found, null = of_type(texts, time_type("datetime[%d%m%Y]?"))
    assert null.tolist() == [True, False]
    assert found[1] == us(dt.datetime(2024, 11, 1))


@pytest.mark.parametrize("unit", ["s", "ns"])
@pytest.mark.parametrize("text", ["99999999999999999999999", "9223372036854775808", "9" * 400, "-9223372036854775809"])
def test_text_beyond_64_bits_is_no_time(unit, text):
    column = pd.Series(["5", text], name="at", dtype="str")
    assert of_type(column, time_type(f"datetime[{unit}]?"))[1].tolist() == [False, True]
    with pytest.raises(DataError, match=r"time column 'at': .* is no time in"):
        of_type(column, time_type(f"datetime[{unit}]"))


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("kind", ["int64", "Int64", "int64[pyarrow]"])
def test_the_ends_of_64_bits(unit, kind):
    """Of nanoseconds they are times, of larger units they lie outside the years."""
    found, null = of_type(pd.Series([2**63 - 1, -(2**63)]).astype(kind), time_type(f"datetime[{unit}]?"))
    assert null.tolist() == [unit != "ns"] * 2
    assert found.tolist() == ([(2**63 - 1) // 1000, -(2**63) // 1000] if unit == "ns" else [0, 0])


def test_a_weekday_is_read_over_and_must_be_one():
    how = time_type("datetime[%a, %d %b %Y]?")
    texts = ["Fri, 12 Jun 1998", "friday, 12 Jun 1998", "Foo, 12 Jun 1998", "12 Jun 1998"]
    found, null = of_type(pd.Series(texts), how)
    day = (pd.Timestamp("1998-06-12") - pd.Timestamp(0)) // pd.Timedelta("1us")
    assert found.tolist() == [day, day, 0, 0]
    assert null.tolist() == [False, False, True, True]
