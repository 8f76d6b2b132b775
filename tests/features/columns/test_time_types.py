"""Times by a format or a unit, against the standard library's `strptime` and calendar."""

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.columns.time_types import MONTHS, OTHER_MONTHS, of_type, time_type
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import cast, read_files

EPOCH = dt.datetime(1970, 1, 1)
FORMATS = [
    "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%Y%m%d", "%d-%b-%Y", "%b %d, %Y %I:%M %p", "%d.%m.%y %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f", "(%Y) %m.%d", "%Y/%m",
    "%Y-%j", "%Y%j", "%j/%y %H:%M", "%Y %b",
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


@given(times=st.lists(st.datetimes(dt.datetime(1000, 1, 4), dt.datetime(9999, 12, 20)), min_size=1, max_size=5))
def test_weeks_begin_with_the_monday_of_iso_8601(times):
    weeks = [time.isocalendar() for time in times]
    found, null = of_type(pd.Series([f"{one.year} W{one.week:02}" for one in weeks]), time_type("datetime[%G W%V]"))
    assert found.tolist() == [us(dt.datetime.fromisocalendar(one.year, one.week, 1)) for one in weeks]
    assert not null.any()


def test_a_year_has_as_many_weeks_as_the_standard_library_finds():
    years = range(1999, 2030)
    _, null = of_type(pd.Series([f"{year}W53" for year in years]), time_type("datetime[%GW%V]?"))
    assert null.tolist() == [dt.date(year, 12, 28).isocalendar().week == 52 for year in years]
    assert of_type(pd.Series(["2020W00", "2020W54"]), time_type("datetime[%GW%V]?"))[1].all()


def test_quarters_begin_with_their_first_month():
    periods = pd.period_range("1890Q1", periods=700, freq="Q")
    for form in ("%Y Q%q", "Q%q/%Y", "%y-Q%q"):
        if "%y" in form:
            periods = periods[(periods.year > 1970) & (periods.year < 2060)]
        found, _ = of_type(pd.Series(periods.strftime(form)), time_type(f"datetime[{form}]"))
        assert found.tolist() == [us(start) for start in periods.start_time.to_pydatetime()]
    assert of_type(pd.Series(["2001 Q0", "2001 Q5"]), time_type("datetime[%Y Q%q]?"))[1].all()
    assert not time_type("datetime[%Y Q%q]").of_day
    assert not time_type("datetime[%G W%V]").of_day


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
        ("datetime[%Y-%V]", "a week"), ("datetime[%G-%m]", "a week"), ("datetime[%G W%V %Y]", "a week"),
        ("datetime[%Y Q%q %m]", "one month"), ("datetime[%Y Q%q %d]", "without %d"), ("datetime[%V %H:%M]", "a week"),
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


FLOAT_KINDS = ("float64", "Float64", "double[pyarrow]")


@pytest.mark.parametrize("form", ["%H", "%H%M"])
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_a_number_with_a_fraction_is_no_time_of_day(form, kind):
    column = pd.Series([3.5, 12.0, -7.25, None], name="hour", dtype=kind)
    with pytest.raises(DataError, match=r"time column 'hour': '3.5' is no time in the format"):
        of_type(column, time_type(f"datetime[{form}]"))
    found, null = of_type(column, time_type(f"datetime[{form}]?"))
    assert null.tolist() == [True, False, True, True]
    assert found[1] == us(dt.datetime.strptime("12" if form == "%H" else "0012", form).replace(year=1970))


@pytest.mark.parametrize("unit", ["min", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("kind", [*FLOAT_KINDS, "str"])
def test_a_number_is_the_same_time_alone_and_among_others(unit, kind):
    """Nanoseconds are cut, as of timestamps; of a larger unit the nearest microsecond is taken, of two the later."""
    values = [1999.0, -1.0, 5.5, -0.5, 1999.75, -2000.25, 1700000000.25, 1e-7]
    values = values if kind != "str" else [f"{value:.9f}" for value in values]
    how = time_type(f"datetime[{unit}]")
    together, _ = of_type(pd.Series(values, dtype=kind), how)
    alone = [of_type(pd.Series([value], dtype=kind), how)[0][0] for value in values]
    factor = {"min": 60 * 10**6, "s": 10**6, "ms": 10**3, "us": 1}.get(unit, Fraction(1, 1000))
    nearest = 0 if unit == "ns" else Fraction(1, 2)
    assert together.tolist() == alone == [math.floor(Fraction(value) * factor + nearest) for value in values]


def test_text_of_a_number_with_a_fraction_leaves_others_their_digits():
    texts = pd.Series(["253402300799999999", "-5.0", "-.5", "3."], dtype="str")
    found, null = of_type(texts, time_type("datetime[us]?"))
    assert found.tolist() == [253402300799999999, -5, 0, 3]
    assert null.tolist() == [False, False, True, False]
    seconds = pd.Series(["253402300799.9999999", "-62135596800.0", "-62135596800.4", "٣"], dtype="str")
    assert of_type(seconds, time_type("datetime[s]?"))[1].tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("dtype", "kind", "value", "bound"),
    [
        ("datetime[s]", "float32", 1.7e9, "16,777,216"), ("datetime[%Y%m%d]", "float32", 20241231, "16,777,216"),
        ("datetime[%Y%m%d]", "float[pyarrow]", 20241231, "16,777,216"),
        ("datetime[us]", "float64", 2.0**53, "9,007,199,254,740,992"),
        ("datetime[ns]", "float64", 9.1e18, "9,007,199,254,740,992,000"),
    ],
)  # fmt: skip
def test_floats_too_coarse_for_the_times_are_refused(dtype, kind, value, bound):
    with pytest.raises(DataError, match=rf"time column 'at': some values reach {bound}, from where on float(32|64)?"):
        of_type(pd.Series([value, 1.0], name="at", dtype=kind), time_type(dtype))
    null = of_type(pd.Series([value, 10100.0], name="at", dtype=kind), time_type(dtype + "?"))[1]
    assert null.tolist()[0]


@pytest.mark.parametrize("number", ["-1.5", "+2", " 3. ", "12.", "-0.25", "007"])
def test_a_text_is_the_same_time_alone_and_among_others(number):
    """Expected from Decimal: milliseconds as microseconds."""
    expected = int(Decimal(number.strip()) * 1000)
    for texts in ([number], [number, "5"], [number, "5.5", None, "-7"]):
        found, null = of_type(pd.Series(texts, name="at"), time_type("datetime[ms]"))
        assert found.tolist()[0] == expected
        assert null.tolist() == [text is None for text in texts]


@pytest.mark.parametrize(
    ("dtype", "texts"),
    [
        ("datetime", ["1970-01-02", None, "1970-01-01"]), ("datetime[%d.%m.%Y]", ["2.1.1970", None, "1.1.1970"]),
        ("datetime[h]", ["24", None, "0.0"]),
    ],
)  # fmt: skip
def test_categories_of_text_are_the_times_of_their_text(dtype, texts):
    column = pd.Series(texts, dtype="category")
    found = cast(pd.DataFrame({"at": column}), {"at": dtype}, "here", nullable=["at"])["at"]
    assert found.astype("object").tolist() == [86_400_000_000, pd.NA, 0]


# As Babel 2.19 gives them: full and short names of months, in a sentence and alone.
CLDR = {
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "de short": "Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez.",
    "de alone": "Jan Feb Mär Apr Mai Jun Jul Aug Sep Okt Nov Dez",
    "de_AT": "Jänner Februar März April Mai Juni Juli August September Oktober November Dezember",
    "de_AT short": "Jän. Feb. März Apr. Mai Juni Juli Aug. Sep. Okt. Nov. Dez.",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "fr short": "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
    "fr_CA short": "janv. févr. mars avr. mai juin juill. août sept. oct. nov. déc.",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "es short": "ene feb mar abr may jun jul ago sept oct nov dic",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "it short": "gen feb mar apr mag giu lug ago set ott nov dic",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "pt short": "jan. fev. mar. abr. mai. jun. jul. ago. set. out. nov. dez.",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "nl short": "jan feb mrt apr mei jun jul aug sep okt nov dec",
}


@pytest.mark.parametrize("names", CLDR.values(), ids=CLDR)
@pytest.mark.parametrize("written", [str, str.upper, str.title], ids=["as it is", "upper", "title"])
def test_months_of_other_languages(names, written):
    texts = pd.Series([written(f"{day + 1} {name} 2024") for day, name in enumerate(names.split())])
    found, _ = of_type(texts, time_type("datetime[%d %b %Y]"))
    assert found.tolist() == [us(dt.datetime(2024, month, month)) for month in range(1, 13)]
    alone = [of_type(texts[place : place + 1], time_type("datetime[%d %b %Y]"))[0].iloc[0] for place in range(12)]
    assert alone == found.tolist()


def test_no_name_of_a_month_is_another_one_elsewhere():
    for names in OTHER_MONTHS.values():
        assert not any(name[:3] in MONTHS for name in names)
    assert len({name for names in OTHER_MONTHS.values() for name in names}) == sum(map(len, OTHER_MONTHS.values()))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%d %b %Y", "3rd March 2024"), ("%d %b %Y", "3 mars 2024"), ("%b %d, %Y", "March 3rd, 2024"),
        ("%d de %b de %Y", "3 de marzo de 2024"), ("%d. %b %Y", "3. März 2024"), ("%d%b%Y", "03MAR2024"),
    ],
)  # fmt: skip
def test_days_beside_the_name_of_a_month(form, text):
    assert of_type(pd.Series([text]), time_type(f"datetime[{form}]"))[0].tolist() == [us(dt.datetime(2024, 3, 3))]


@pytest.mark.parametrize(
    "text", ["3 Mürz 2024", "3 Ma 2024", "3 Magazin 2024", "3rd 2024", "3x March 2024", "31 avr. 2024"]
)
def test_what_is_no_month_of_any_of_these_languages(text):
    with pytest.raises(DataError, match="is no time in the format"):
        of_type(pd.Series([text]), time_type("datetime[%d %b %Y]"))
    with pytest.raises(DataError, match="is no time in the format"):
        of_type(pd.Series(["3rd.03.2024"]), time_type("datetime[%d.%m.%Y]"))
