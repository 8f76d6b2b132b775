"""ParseDuration against Python's own durations and literals."""

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.parse_duration import ParseDuration
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


def parsed(values, **options):
    frame = pd.DataFrame({"x": pd.Series(values, dtype="str", index=np.arange(len(values)) * 3 + 1)})
    return assert_row_wise(ParseDuration("x", **options), frame)["x"].tolist()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.none() | st.integers(0, 86_399), min_size=1, max_size=6))
def test_what_python_writes_of_a_duration_is_read_back(seconds):
    texts = [None if value is None else str(datetime.timedelta(seconds=value)) for value in seconds]
    assert [None if np.isnan(value) else value for value in parsed(texts)] == seconds
    short = [None if value is None else f"{value // 60:02}:{value % 60:02}" for value in seconds]
    assert [None if np.isnan(value) else value for value in parsed(short)] == seconds


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("02:13", {}, 133.0),
        ("02:13", {"short": "hh:mm"}, 7980.0),
        ("90:00", {}, 5400.0),
        (" 1:02:13.25 ", {}, 3733.25),
        ("-0:30", {}, -30.0),
        ("-1:30", {"short": "hh:mm"}, -5400.0),
        ("3:07.5", {}, 187.5),
        ("5h 52m", {}, 21120.0),
        ("5h52m", {}, 21120.0),
        ("5H 52M", {}, 21120.0),
        ("1 hr 20 min", {}, 4800.0),
        ("2 hours, 5 minutes and 7 seconds", {}, 7507.0),
        ("2\N{NO-BREAK SPACE}hrs. 5 min.", {}, 7500.0),
        ("45 m", {}, 2700.0),
        ("1.5h", {}, 5400.0),
        ("2d 3h", {}, 183600.0),
        ("-1h 30m", {}, -5400.0),
        ("90 sec", {}, 90.0),
        ("2 days 03:00", {"short": "hh:mm"}, 183600.0),
        ("1 days 00:00:00.000001500", {}, 86400.0000015),
    ],
)
def test_texts_and_their_seconds(text, options, expected):
    assert parsed([text, None], **options)[0] == expected


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.none() | st.timedeltas(datetime.timedelta(-10_000), datetime.timedelta(10_000)), min_size=1))
def test_durations_as_python_pandas_and_iso_8601_write_them(spans):
    ways = str, lambda span: str(pd.Timedelta(span)), lambda span: pd.Timedelta(span).isoformat()
    written = [(None, np.nan) if span is None else (way(span), span.total_seconds()) for way in ways for span in spans]
    texts, expected = zip(*(pair for pair in written if not str(pair[0]).startswith("P-")), strict=True)
    np.testing.assert_allclose(parsed(texts), expected, rtol=1e-13, atol=1e-6)


def test_durations_of_a_pandas_file():
    spans = pd.Series(pd.to_timedelta([0, 1, 59, 3600, 86_399, 86_400, 200_000, -3600, -90_000], unit="s"))
    texts = spans.to_frame("x").to_csv(index=False).split("\n")[1:-1]
    assert parsed(texts) == [0, 1, 59, 3600, 86_399, 86_400, 200_000, -3600, -90_000]


@given(st.tuples(*[st.none() | st.integers(0, 99)] * 4).filter(lambda parts: any(part is not None for part in parts)))
def test_units_are_added_up(parts):
    ways = (("d", "h", "m", "s"), (" days", " hours", " minutes", " seconds"), (" day", " hr", " min.", " sec"))
    texts = [
        " ".join(f"{part}{word}" for part, word in zip(parts, words, strict=True) if part is not None) for words in ways
    ]
    seconds = sum((part or 0) * factor for part, factor in zip(parts, (86_400, 3600, 60, 1), strict=True))
    assert parsed([*texts, "0:01"]) == [seconds, seconds, seconds, 1.0]


def test_null_words_and_empty_text_are_null_and_numbers_are_taken_as_they_are():
    assert np.isnan(parsed(["DNF", "", None], null_values=["DNF"])).all()
    assert ParseDuration("x")(pd.DataFrame({"x": [1, 2]}))["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("1:75", {}), ("1:75:00", {}), ("133", {}), ("late", {}), ("1:2:3:4", {}), ("1-2:13", {}), ("٣:00", {}),
        ("2:13.5", {"short": "hh:mm"}), ("2 days 03:00", {}), ("-1 days 02:00:00", {}), ("5h 3h", {}), ("3m 5h", {}),
        ("5 x", {}), ("h", {}), ("5h and", {}), ("5h,", {}), ("P", {}), ("PT", {}), ("P1M", {}), ("P1DT", {}),
        ("1 day, 1:75:00", {}), ("5h 52", {}), ("PT5H 3M", {}),
    ],
)  # fmt: skip
def test_texts_that_are_no_durations_are_refused_by_the_columns_name(text, options):
    with pytest.raises(DataError, match=f"column 'x' holds '{text}', which is not written as"):
        parsed(["1:00", None, text], **options)


def test_settings_that_are_refused():
    with pytest.raises(DataError, match=r"unknown short 'ss'. Known: mm:ss, hh:mm"):
        ParseDuration("x", short="ss")
    with pytest.raises(DataError, match="null_values is a list of texts"):
        ParseDuration("x", null_values="DNF")
