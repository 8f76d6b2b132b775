"""ParseNumber against literal values and numbers that Python formatted."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.parse_number import ParseNumber
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

GERMAN = {"decimal": ",", "thousands": "."}


def parsed(values, **options):
    frame = pd.DataFrame({"x": pd.Series(values, dtype="str", index=np.arange(len(values)) * 3 + 1)})
    return assert_row_wise(ParseNumber("x", **options), frame)["x"].tolist()


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.none() | st.integers(-(10**12), 10**12), min_size=1, max_size=6), st.booleans())
def test_numbers_that_python_formats_are_read_back(cents, european):
    numbers = [None if value is None else value / 100 for value in cents]
    texts = [None if value is None else f"${value:,.2f}" for value in numbers]
    options = {}
    if european:
        swap = str.maketrans(",.", ".,")
        texts = [None if text is None else text.translate(swap) for text in texts]
        options = {"decimal": ",", "thousands": "."}
    assert [None if np.isnan(value) else value for value in parsed(texts, **options)] == numbers


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("$27.62", {}, 27.62),
        (" 1,234,567 ", {}, 1234567.0),
        ("(1,234.50)", {}, -1234.5),
        ("-$5", {}, -5.0),
        ("$-5", {}, -5.0),
        ("12 %", {}, 12.0),
        ("3 km", {"remove": ["km"]}, 3.0),
        ("1'234.5", {"thousands": "'"}, 1234.5),
        ("1 234,5", {"thousands": " ", "decimal": ",", "remove": ["€"]}, 1234.5),
        ("1,5", {"decimal": ",", "thousands": None}, 1.5),
        ("1e3", {}, 1000.0),
        ("5€50", {"decimal": "€", "remove": ["$"]}, 5.5),
        ("1_000", {"remove": ["_"]}, 1000.0),
        ("12,34,567", {}, 1234567.0),
        ("-1,00,000.5", {}, -100000.5),
        ("₹ 3,45,67,890.25", {"remove": ["₹", " "]}, 34567890.25),
        (".5", {}, 0.5),
        ("120 m2", {"remove": ["m2", " "]}, 120.0),
        ("12.3k", {"scales": {"k": 1000}}, 12300.0),
        ("€110.5M", {"scales": {"k": 1000, "M": 1e6}}, 110500000.0),
        ("(1,200 Mio)", {"scales": {"Mio": 1e6, "o": 2}}, -1.2e9),
        ("1,5k", {"decimal": ",", "thousands": None, "scales": {"k": 1000}}, 1500.0),
        ("870", {"scales": {"k": 1000}}, 870.0),
        ("5 GB", {"scales": {"GB": 1024, "MB": 1, "B": 2**-20}}, 5120.0),
        ("0,936", {"decimal": ",", "thousands": "."}, 0.936),
        ("USD 5", {"remove": ["USD", " "]}, 5.0),
        ("-USD 5", {"remove": ["USD", " "]}, -5.0),
        ("5 €", {}, 5.0),
        ("1 234 567.5", {}, 1234567.5),
        ("(5 USD)", {"remove": ["USD", " "]}, -5.0),
        ("( 5 )", {"remove": []}, -5.0),
        ("USD (5)", {"remove": ["USD", " "]}, -5.0),
        ("$5 USD", {"remove": ["USD", "$", " "]}, 5.0),
        ("US$5", {"remove": ["US$"]}, 5.0),
        ("Rs. 500", {"remove": ["Rs", "Rs.", " "]}, 500.0),
        ("5 USD/kg", {"remove": ["USD", "/", "kg", " "]}, 5.0),
        ("10.4k USD", {"remove": ["USD", " "], "scales": {"k": 1000}}, 10400.0),
        ("5m2", {"remove": ["m2"]}, 5.0),
        ("1.088,28-", GERMAN, -1088.28),
        ("5 -", {}, -5.0),
        ("$1,234.50-", {}, -1234.5),
        ("5-k", {"remove": ["k"]}, -5.0),
        ("199,-", GERMAN, 199.0),
        ("-1.199,–", GERMAN, -1199.0),
        ("5.- CHF", {"remove": ["CHF"]}, 5.0),
        ("\u22125.5", {}, -5.5),
        ("5\u2212", {}, -5.0),
        ("1\u202f234\u2009567,5 €", {"decimal": ",", "thousands": None}, 1234567.5),
        ("1\u2019234\u2019567.5", {"thousands": "'"}, 1234567.5),
    ],
)
def test_texts_and_their_numbers(text, options, expected):
    assert parsed([text], **options) == [expected]


@given(st.integers(-(10**13), 10**13), st.integers(0, 2))
def test_groups_of_lakhs_are_read_back(number, places):
    digits = str(abs(number))
    head, last = digits[:-3], digits[-3:]
    pairs = []
    while head:
        head, pairs = head[:-2], [head[-2:], *pairs]
    text = "-" * (number < 0) + ",".join([*pairs, last]) + ".25"[: places + 1] * (places > 0)
    rest = {0: 0.0, 1: 0.2, 2: 0.25}[places]
    expected = float(Decimal(abs(number)) + Decimal(str(rest)))
    assert parsed([text]) == [-expected if number < 0 else expected]


def test_words_for_null_and_empty_text_are_null():
    assert np.isnan(parsed(["ask", "", None, " ", "$"], null_values=["ask", "$"])).all()


def test_words_of_readers_of_floats_are_what_they_are_there():
    found = ParseNumber("price")(pd.DataFrame({"price": ["inf", "-Infinity", "NaN", "$nan", "7"]}))["price"]
    assert found.tolist()[:2] == [np.inf, -np.inf]
    assert found.isna().tolist() == [False, False, True, True, False]


def test_numbers_are_taken_as_they_are():
    assert ParseNumber("x")(pd.DataFrame({"x": [1, 2]}))["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("1,5", {}, "'x' holds '1,5', where ',' stands before no group of three digits"),
        ("12,34,56", {}, "stands before no group"),
        ("123,45,678", {}, "stands before no group"),
        ("12,345,67,890", {}, "stands before no group"),
        ("1,00,000", {"decimal": ",", "thousands": "."}, "is not written as a number"),
        ("12.34.567", {"decimal": ",", "thousands": "."}, "stands before no group"),
        ("5€50", {}, "'5€50', where a sign that is no part of numbers stands between digits. Where it is the decimal"),
        ("12%5", {}, "stands between digits"),
        ("12 % 5", {}, "stands between digits"),
        ("5 €500", {}, "stands between digits"),
        ("5$.50", {}, "stands between digits"),
        ("1.€50", {}, "stands between digits"),
        ("1₹50", {"remove": ["₹"]}, "stands between digits"),
        ("1,2345", {}, "stands before no group"),
        ("1.5,000", {}, "stands before no group"),
        ("1.5", {"decimal": ",", "thousands": None, "remove": []}, "'1.5', whose point is not the decimal sign ','"),
        ("many", {}, "'x' .*'many' is not written as a number"),
        ("1 2", {"remove": []}, "is not written as a number"),
        ("٣", {}, "is not written as a number"),
        ("k", {"scales": {"k": 1000}}, "'x' .*'k' is not written as a number"),
        ("0,014", {}, "'x' holds '0,014', where ',' stands before no group"),
        ("00,123", {}, "stands before no group"),
        ("0.014", {"decimal": ",", "thousands": "."}, "stands before no group"),
        ("5 mm", {"remove": ["m", " "]}, "'5 ?mm' is not written as a number"),
        ("5 1 kmpl", {"remove": ["kmpl", " "]}, "'5 1 kmpl', where a blank stands before no group of three digits"),
        ("1234 567", {}, "a blank stands before no group"),
        ("1.5 000", {}, "a blank stands before no group"),
        ("5 m 3", {"remove": ["m"]}, "'5 m 3' is not written as a number"),
        ("km 5", {"remove": ["m", "k"]}, "'km 5' is not written as a number"),
        ("Rs.500", {"remove": ["Rs"]}, "'Rs.500' is not written as a number"),
        ("$", {}, "'x' holds '\\$', of which no number is left. Name it in null_values"),
        (" €", {"decimal": ",", "thousands": "."}, "of which no number is left"),
        ("%%", {}, "of which no number is left"),
        ("USD", {"remove": ["USD"]}, "of which no number is left"),
        ("()", {}, r"'\(\)' is not written as a number"),
        ("($)", {}, r"'\(\)' is not written as a number"),
        ("((5))", {}, r"'\(\(5\)\)' is not written as a number"),
        ("-(3)", {}, r"'-\(3\)' is not written as a number"),
        ("(-3)", {}, r"'\(-3\)' is not written as a number"),
        ("5kk", {"scales": {"k": 1000}}, "is not written as a number"),
        ("5kM", {"scales": {"k": 1000, "M": 1e6}}, "is not written as a number"),
        *(
            (text, GERMAN, f"'x': '{text}' is not written as a number: '{left}' stands beside it. Add that to remove")
            for text, left in (
                ("1.088,28 EUR", "EUR"),
                ("1.088 EUR", "EUR"),
                ("1.088,28 x", "x"),
                ("88,28 EUR", "EUR"),
                ("EUR 1.234", "EUR"),
                ("Rs.1.234", "Rs."),
                ("-EUR 5", "EUR"),
                ("5 kg", "kg"),
            )
        ),
        ("12.3k", {}, "'12.3k' .* 'k' stands beside it. Add that to remove, to scales where it multiplies"),
        ("1,088.28 EUR", {}, "'EUR' stands beside it"),
        ("$5 per m", {}, "'per m' stands beside it"),
        ("(5 EUR)", {}, "'EUR' stands beside it"),
        ("5+", {}, "'5\\+' is not written as a number"),
        ("-5-", {}, "'-5-' is not written as a number"),
        ("(5-)", {}, "is not written as a number"),
        ("5--", {}, "'5--' is not written as a number"),
        ("5,-", {}, "'x' holds '5,-', where ',' stands before no group"),
        ("1\u2009234", {"remove": []}, "is not written as a number"),
        ("1.5", GERMAN, "'x' holds '1.5', where '.' stands before no group"),
        ("12.34 €", GERMAN, "'x' holds '12.34 €', where '.' stands before no group"),
    ],
)
def test_texts_that_are_no_numbers_are_refused_by_the_columns_name(text, options, message):
    with pytest.raises(DataError, match=message):
        parsed(["1", None, text], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decimal": ","}, "decimal and thousands are both ','"),
        ({"decimal": "point"}, "decimal is one character"),
        ({"decimal": "1"}, "decimal is one character"),
        ({"thousands": ""}, "thousands is one character"),
        ({"remove": "$"}, "remove is a list of texts"),
        ({"remove": [""]}, "remove is a list of texts"),
        ({"remove": ["-"]}, "remove holds '-', which is part of numbers"),
        ({"remove": ["2e"]}, "remove holds '2e', which is part of numbers"),
        ({"scales": ["k"]}, "scales gives a positive number by the text that numbers end in"),
        ({"scales": {"k": 0}}, "scales gives a positive number"),
        ({"scales": {"k": "1000"}}, "scales gives a positive number"),
        ({"scales": {"": 10}}, "scales gives a positive number"),
        ({"scales": {"e3": 1000}}, "scales gives a positive number"),
        ({"remove": [","]}, "remove holds ',', which is part of numbers"),
        ({"null_values": "ask"}, "null_values is a list of texts"),
    ],
)
def test_settings_that_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        ParseNumber("x", **options)


@pytest.mark.parametrize("remove", [["]", "^", "\\", "[", "."], ["^]", "\\", "[.", "."], []])
def test_signs_are_taken_away_as_they_are_written(remove):
    """None of them is a pattern."""
    frame = pd.DataFrame({"x": ["1^]\\2[." if remove else "12", "7", None]})
    found = ParseNumber("x", remove=remove, decimal=",", thousands=None)(frame)["x"]
    assert found.tolist()[:2] == [12.0, 7.0]
    assert found.isna().tolist() == [False, False, True]


@pytest.mark.parametrize("factor", [1000, 10**6, 1e9, 0.001, 10.0, 1, 0.5, 1024])
def test_a_scaled_number_is_the_float_nearest_to_what_is_written(factor):
    texts = ["16.1", "0.3", "-4.35", "1,234.7", "8.41", "7", "+.29"]
    texts += [f"{whole}.{part:02d}" for whole in range(40) for part in range(0, 100, 7)]
    made = ParseNumber("x", scales={"k": factor})(pd.DataFrame({"x": [f"{text}k" for text in texts]}))["x"]
    for text, found in zip(texts, made, strict=True):
        assert found == float(Decimal(text.replace(",", "")) * Decimal(repr(factor))), text


def test_a_number_is_scaled_alike_alone_and_among_others():
    texts = pd.Series(["16.1k", "2M", "3", None, "1e2k", "0.07M"])
    operator = ParseNumber("x", scales={"k": 1000, "M": 1000000})
    together = operator(texts.to_frame("x"))["x"]
    alone = [operator(texts[k : k + 1].to_frame("x"))["x"].iloc[0] for k in range(len(texts))]
    assert together.tolist()[:3] + together.tolist()[4:] == [16100.0, 2000000.0, 3.0, 100000.0, 70000.0]
    assert pd.Series(alone).equals(together)
