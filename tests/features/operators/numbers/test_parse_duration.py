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
    ],
)
def test_texts_and_their_seconds(text, options, expected):
    assert parsed([text, None], **options)[0] == expected


def test_null_words_and_empty_text_are_null_and_numbers_are_taken_as_they_are():
    assert np.isnan(parsed(["DNF", "", None], null_values=["DNF"])).all()
    assert ParseDuration("x")(pd.DataFrame({"x": [1, 2]}))["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("1:75", {}), ("1:75:00", {}), ("133", {}), ("late", {}), ("1:2:3:4", {}), ("1-2:13", {}), ("٣:00", {}),
        ("2:13.5", {"short": "hh:mm"}),
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
