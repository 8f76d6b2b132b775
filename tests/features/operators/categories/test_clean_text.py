"""CleanText against Python's own text methods."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.clean_text import CleanText
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


def plain(text, strip, case, replace):
    if text is None:
        return None
    text = text.strip() if strip else text
    text = {None: text, "lower": text.lower(), "upper": text.upper()}[case]
    return replace.get(text, text) or None


texts = st.lists(st.none() | st.text(alphabet="aAbBß é\t ", max_size=4), min_size=1, max_size=8)


@settings(max_examples=examples(80), deadline=None)
@given(texts, st.booleans(), st.sampled_from([None, "lower", "upper"]))
def test_texts_are_those_of_plain_python(values, strip, case):
    replace = {"a": "b", "b": "a", "B": None}  # two change places
    frame = pd.DataFrame({"x": pd.Series(values, dtype="str", index=np.arange(len(values)) * 3 + 1)})
    found = assert_row_wise(CleanText("x", "y", strip, case, replace), frame)["y"]
    assert [None if pd.isna(v) else v for v in found] == [plain(v, strip, case, replace) for v in values]


def test_numbers_are_taken_as_their_text():
    assert CleanText("x", replace={"7": "seven"})(pd.DataFrame({"x": [7, 8]}))["x"].tolist() == ["seven", "8"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["01067", "1067", " 7 ", "7a", "-7", "123456", "", None], ["01067", "01067", "00007", "7a", "-7", "123456"]),
        ([1067, 99998], ["01067", "99998"]),
        ([1067.0, None], ["01067"]),
    ],
)
def test_zeros_that_a_number_has_lost_are_put_back(values, expected):
    found = assert_row_wise(CleanText("x", width=5), pd.DataFrame({"x": values}))["x"]
    assert [value for value in found if not pd.isna(value)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width is a whole number from 1 to 100, found 0"),
        ({"width": True}, "width is a whole number from 1 to 100, found True"),
        ({"case": "title"}, "unknown case 'title'. Known: lower, upper"),
        ({"strip": False}, "nothing to do"),
        ({"replace": {"a": 1}}, "replace gives a text or null by text"),
        ({"replace": {False: "a"}}, "replace gives a text or null by text"),
        ({"replace": ["a"]}, "replace gives a text or null by text"),
    ],
)
def test_settings_that_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        CleanText("x", **options)
