"""What each column of a sample holds, and how the recipe `table` is to read it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gigabatch.features.columns.numbers import FLOAT_TEXT
from gigabatch.features.columns.time_types import of_type, time_type
from gigabatch.features.columns.times import microseconds
from gigabatch.features.engines.arrow_types import is_clock, is_text
from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.parse_duration import DAYS_AND_CLOCK, IN_UNITS, ISO, WORDS, ParseDuration
from gigabatch.features.operators.numbers.parse_number import APOSTROPHE, DASHES, MINUS, SIGNS, ParseNumber
from gigabatch.pipeline.init.dates import (
    TIME_NAME,
    abbreviations,
    counted,
    has_offsets,
    is_iso,
    now_us,
    written_dates,
)
from gigabatch.pipeline.init.texts import FIRST_TEXTS, Texts, all_match, are_among, found_in

# Words that stand for null in a CSV file whatever the column, and those that do where all other fields are numbers or
# times.
NULL_WORDS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "?", "#N/A", "\\N", "<NA>", "NaT")
WEAK_NULL_WORDS = (
    "-", "--", ".", "na", "None", "none", "NONE", "nil", "unknown", "Unknown", "UNKNOWN", "missing", "Missing",
    "not available", "inf", "-inf", "Inf", "-Inf", "0000-00-00", "0000-00-00 00:00:00",
)  # fmt: skip
PLAIN_NUMBER = FLOAT_TEXT.replace("|[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN]", "")
# What may stand before a number or behind it, several of them in one column.
UNITS = ("USD", "EUR", "GBP", "CHF", "JPY", "SEK", "NOK", "DKK", "PLN", "CNY", "INR", "Rs.", "Rs", "kr.", "kr", "km",
         "kg", "¤", "₹", "₽")  # fmt: skip
UNIT_SIGNS = "$€£¥%¤₹₽"
ONE_UNIT = {"$": "usd", "us": "usd", "€": "eur", "£": "gbp", "¥": "jpy", "₹": "inr", "rs": "inr", "₽": "rub"}
NO_UNIT = "no unit"
IN_FIELD = re.compile(r"[.,]?[0-9](?:[0-9.,'\s]*[0-9])?[.,]?(?:[eE][+-]?[0-9]+)?")
FRONT_UNIT = re.compile(rf"^[\s(+-]*({'|'.join(map(re.escape, UNITS))})(?![^\W\d_])\s*")
# Any other word behind a number is its unit where nearly all fields of the column have it.
WITH_UNIT = re.compile(
    r"^[^\w.,]*[.,]?[0-9][0-9.,' \N{NO-BREAK SPACE}\u202f\u2009]*?"
    rf"(?:[eE][+-]?[0-9]+|[.,][{DASHES}{MINUS}])?[\s)]*"
    r"(°?[^\W\d_]+(?:[ /.-]{1,2}[^\W\d_]+)*[23²³]?\.?|°|)[\s)]*$"
)
UNIT_SHARE = 0.9
MINUS_BEHIND = rf"[-{MINUS}]\s*[{UNIT_SIGNS}]?\s*$"
SCALED_UNIT = re.compile(r"^([^\W\d_]+\.?) +(.+)$")  # k USD
UNCLEAR_SCALES = ("m", "b", "t")  # metres, bits, tons
NO_UNITS = ("am", "pm", "a.m.", "p.m.", "ad", "bc", "n", "s", "e", "w", "e2", "e3")  # their opposites are no other unit
SCALES = (
    {"k": 10**3, "tsd": 10**3, "m": 10**6, "mn": 10**6, "mio": 10**6, "million": 10**6, "b": 10**9, "bn": 10**9,
     "mrd": 10**9, "billion": 10**9, "t": 10**12, "trillion": 10**12},
    {"lakh": 10**5, "lakhs": 10**5, "lac": 10**5, "lacs": 10**5, "cr": 10**7, "crore": 10**7, "crores": 10**7},
    {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
)  # fmt: skip
CLOCK = re.compile(r"^\s*-?[0-9]{1,3}:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?|\.[0-9]{1,9})?\s*$")
DURATION = f"-?({ISO}|{DAYS_AND_CLOCK}|{IN_UNITS})$|{CLOCK.pattern.removeprefix('^')}"
TWO_UNITS = r"^-?p[0-9t]|[0-9] *(d|day|days)\b.*:|[0-9] *[a-z]+[., a-z]*[0-9.]+ *[a-z]"
DAYS_AND_MINUTES = r"[a-zA-Z],? *[+]?[0-9]+:[0-9]+\s*$"
UNIT_WORDS = ("h", *(word for words in WORDS for word in words.split("|") if len(word) > 1))
DAYTIME = re.compile(r"time|hour|start|begin|end|open|clos|depart|arriv|check|uhr|zeit|(^|[^a-z])(at|from|until)$")
SHORT_DAY, PADDED = r"\s*\d{1,2}[-./]\d{1,2}[-./]\d{2}\s*$", r"\s*\d{2}[-./]\d{2}[-./]\d{2}\s*$"
DAY_NAME = re.compile(r"(date|datum|data|fecha)$")
MOST_LATE = 0.05  # share of days in the future, of which more say that the numbers are none
WAYS = ((".", ","), (",", "."), (",", None), (".", "'"), (",", " "), (".", " "))  # decimal sign, thousands
TWO_DECIMALS = r"[^0-9.,]*[0-9]+([.,][0-9]{3})*([.,][0-9]{1,2})?[^0-9.,]*$"  # with whatever sign of a currency beside
TYPED_NAME = re.compile(r":(token|float)(_seq)?$")  # as RecBole's files have them
CODE_NAME = re.compile(
    r"(^|[^a-zA-Z])(?i:id|uuid|guid|key|code|zip|zipcode|plz|postcode|postal|sku|nr|user|customer|item|product|isbn|ean"
    r"|gtin|upc|barcode|iban|ssn|vin|phone|telephone|tel|mobile|fax|account|konto|id_str)$|[a-z](Id|ID)$"
    r"|(?i:(account|phone|order|invoice|card|customer|ticket|serial|article|item|part|flight)[ _-]?(no|num|number)$)"
    r"|(?i:(user|customer|client|visitor|member|session|item|product|movie|film|book|order|store|shop|account|unit|person"
    r"|patient|subject|student|school|teacher|employee|household|firm|company|county|country|state|city|region|site|device"
    r"|sensor|station|vehicle|driver|trip|team|player|match|game|loan|policy|claim|record|event|row|case|child|pupil|mother"
    r"|family|class|course|exam|doctor|nurse|hospital|clinic|ward|visit|trial|sample|dealer|seller|buyer|vendor|supplier"
    r"|merchant|brand|author|artist|album|song|track|video|post|page|campaign|agent|broker|owner|worker|employer|job"
    r"|task|project|farm|plot|tree|animal|house|property|building|room|tract|district|village|town|zone|route|line|airport"
    r"|airline|carrier|bus|train|plane|ship|car|truck|machine|engine|batch|question|respondent|participant|group)id$)"
    r"|(^|[^a-zA-Z])(?i:id[ _-]?(no|nr|num|number|code))$"
    r"|^(?i:seqn|seqno)$|(?i:fips)$"
    r"|(?i:nummer$)"
)
QUANTITY_OF = re.compile(  # a number, total or cost of an account or a phone is more often its id (cost_account)
    r"(^|[^a-z])((per|on|with|seconds|minutes|hours|days|months|years|calls|visits)[^a-z]+"
    r"(user|customer|item|product|phone|telephone|tel|mobile|fax|account|konto)"
    r"|(total|avg|mean|sum|amount)[^a-z]+(user|customer|item|product)|(cost|revenue|balance)[^a-z]+(user|customer|product))$"
)
VERSION_NAME = re.compile(r"(^|[^a-z])(version|ver|firmware)$")
VERSION = r"[0-9]+(\.[0-9]+)*$"
TWO_POINTS = r"[0-9]+\.[0-9]+\."
MOST_VERSIONS = 50  # more different ones with one point at most are numbers
THOUSANDS = ".,' \N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}\N{RIGHT SINGLE QUOTATION MARK}"
GROUPED = rf"\s*[0-9]+([{THOUSANDS}][0-9]{{3}})*\s*$"
WHOLE_NUMBER = r"^-?[0-9]+(\.0*)?$"
UTC_NAMES = ("UTC", "GMT", "Z", "+00:00", "-00:00")
OFFSET = re.compile(r"[+-]\d{2}:?\d{2}")
LARGEST_EXACT = 2**53  # of whole numbers that floats hold; larger ones are ids
FEWEST_TEXT_WORDS = 2  # of the middle text: fewer are names
MOST_HASHED_WORDS, MOST_TEXT_WORDS = 12, 1000  # more are hashed to noise; more are no text that a mean of words tells
LIST_SIGNS = ("|", ";", ",")
FEWEST_LISTS, SEVERAL, OF_A_LENGTH = 20, 0.2, 0.05  # texts; shares of rows with several values, and of another length
NUMBERED = 0.9  # share of the ids that hold a number of their own
LETTER = re.compile(r"[^\W\d]")
LETTERS, BARE_WORD = re.compile(r"[^\W\d_]+"), re.compile(r"(?<![^\W_])[^\W\d_]+(?![^\W_])")
MOST_OF_CODE = 2  # words in a code with blanks
BEHIND_BLANK = re.compile(r"(?<=\s)[^\W\d_]+(?![^\W_])")
AMOUNT = re.compile("(?:^|[/,])0a")  # of a text whose numbers are 0 and words a
LONGEST_OF_CODE = 3  # letters of a word in a code, but for one such as the name of a branch
PLATE = re.compile("[A-Z]{1,3}[0-9]{1,4} [A-Z]{2,3}")
FEWEST_OF_PLATES = 300  # letters behind the blank: words of so few letters, all in capitals, are fewer
AGAIN = 0.5  # share of the words of texts that come again in another one
MOST_WORDS, WORD_SHARE = 10, 0.1  # different words among numbers or times that are taken for null, and their share


@dataclass
class Seen:
    """Hold what a column holds.

    Parameters
    ----------
    name
        Of the column.
    kind
        `number`, `date`, `category`, `text` for texts whose words come again in other rows, `list`, or `other`
        for what the recipe cannot read.
    values
        Of the sample: float64 numbers, or microseconds of dates, NaN where null; of categories text with None.
    dtype
        Type for `inputs` where the recipe reads it as another than its role's.
    steps
        Steps that make the column what it is.
    note
        What is said of it beside numbers of values and nulls.
    null_words
        Words of the column that stand for null.
    either
        Whether day and month of written dates could be the other way round in every row.
    others
        Formats of written dates, with the year in another place, that fit every row too.
    by_size
        Whether numbers are taken for times by their size alone.
    whole
        Whether numbers are whole.
    elements
        Of lists: `string`, `int64` or `float32`.
    categories
        Type of categories: `string`, `int64` for whole numbers of files, or `bool` for flags.
    zone
        Of timestamps the time zone of their column; `?` where times have offsets.
    other_units
        Units of some of the numbers, which are taken off unconverted; `NO_UNIT` where a few have none.
    decimals
        Of texts that are numbers with two decimal signs, one of each.
    has_words
        Whether the words of a category are features beside it.
    tells_little
        Whether few rows have each value of a category, and values tell nothing of the label in other rows.
    has_days
        Whether days of the calendar are, of a time.
    """

    name: str
    kind: str
    values: Any
    dtype: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    null_words: tuple[str, ...] = ()
    either: bool = False
    others: tuple[str, ...] = ()
    by_size: bool = False
    whole: bool = False
    elements: str = "string"
    categories: str = "string"
    zone: str = ""
    other_units: tuple[str, ...] = ()
    decimals: tuple[str, ...] = ()
    has_words: bool = False
    tells_little: bool = False
    has_days: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Other values have other texts and nulls, and another number of them."""
        if name == "values":
            for known in ("texts", "null", "num_values"):
                self.__dict__.pop(known, None)
        super().__setattr__(name, value)

    @cached_property
    def texts(self) -> Texts:
        """The different values of categories."""
        codes, distinct = pd.factorize(self.values)
        return Texts(pd.Series(distinct, dtype="str"), codes)

    @cached_property
    def null(self) -> np.ndarray:
        """Whether each value is null."""
        return pd.isna(self.values) if self.values.dtype.kind == "f" else self.texts.codes < 0

    @cached_property
    def num_values(self) -> int:
        """Number of distinct values, null apart."""
        if self.values.dtype.kind == "f":
            return len(pd.unique(self.values[~self.null]))
        return len(self.texts.distinct)


def column_seen(name: str, column: pd.Series, arrow: pa.DataType | None, decimal: str = "") -> Seen:
    """What a column holds.

    Parameters
    ----------
    name
        Of the column.
    column
        The sample: text as it is written in a CSV file, or of Arrow's type.
    arrow
        The type in a Parquet file; None for CSV files.
    decimal
        The decimal sign of texts that could be read with either; empty where nobody knows it.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.columns import column_seen
    >>> seen = column_seen("price", pd.Series(["$1,200.50", "?", "$3"]), None)
    >>> seen.kind, seen.values.tolist(), list(seen.steps[0])
    ('number', [1200.5, nan, 3.0], ['parse_number'])
    """
    if arrow is None:
        return _of_text(name, column, True, decimal)
    if pa.types.is_dictionary(arrow):
        plain = column.astype(pd.ArrowDtype(arrow.value_type))
        return _of_category_type(column_seen(name, plain, arrow.value_type, decimal), plain, arrow.value_type)
    if pa.types.is_boolean(arrow):
        return Seen(name, "category", _texts(column.map({True: "True", False: "False"})), categories="bool")
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow):
        decimals = pa.types.is_decimal(arrow)
        whole = pa.types.is_integer(arrow) or (decimals and arrow.scale <= 0)
        numbers = column.astype("float64").to_numpy(na_value=np.nan)
        if decimals and whole and bool((np.abs(numbers) >= 2.0**63).any()):
            note = "decimals beyond whole numbers of 64 bits; write text"
            return Seen(name, "other", np.full(len(column), 1.0), note=note)
        seen = _of_numbers(name, numbers, whole)
        if decimals and not whole and seen.kind != "number":  # which are read as floats alone
            return Seen(name, "number", numbers, whole=seen.whole)
        if seen.kind == "category":
            seen.categories = _type_of_ids(column, arrow)
            if whole:  # float64 skips whole numbers from 2^53 on
                seen.values = _texts(column.astype("str").where(column.notna(), None))
        return seen
    if is_text(arrow):
        return _of_text(name, column, False, decimal)
    if is_clock(arrow):
        return _of_text(name, column.astype("str"), False, decimal)
    if pa.types.is_timestamp(arrow) or pa.types.is_date(arrow):
        zone = getattr(arrow, "tz", None) or ""
        known = "" if zone in UTC_NAMES else "?" if OFFSET.fullmatch(zone) else zone
        return Seen(name, "date", _dates(column), "datetime", zone=known)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        inner = arrow.value_type
        elements = "int64" if pa.types.is_integer(inner) else "float32" if pa.types.is_floating(inner) else "string"
        if elements == "int64" or is_text(inner):
            return Seen(name, "list", np.full(len(column), 1.0), elements=elements)
    if pa.types.is_null(arrow):
        return Seen(name, "other", np.full(len(column), np.nan), note="it holds no value")
    of_pandas = arrow.extension_name if isinstance(arrow, pa.BaseExtensionType) else ""
    way = (
        "write each of its fields as a column" if pa.types.is_struct(arrow)
        else "write the time at which each begins" if of_pandas == "pandas.period"
        else "write text, or an end of each as a number" if of_pandas == "pandas.interval" else ""
    )  # fmt: skip
    note = f"the recipe does not read columns of type {of_pandas or arrow}{'; ' * bool(way)}{way}"
    return Seen(name, "other", np.full(len(column), 1.0), note=note)


def _of_category_type(seen: Seen, column: pd.Series, arrow: pa.DataType) -> Seen:
    """A column of a type that says that its values are categories (pandas' category, a factor of R), as `seen` without
    it: whole numbers are names then. Text with decimals stays numbers, as dictionaries hold any text in less memory."""
    if seen.kind != "number":
        return seen
    note = "numbers taken for names, by the column's type"
    if pa.types.is_integer(arrow):
        texts = _texts(column.astype("str").where(column.notna(), None))
        return Seen(seen.name, "category", texts, note=note, whole=True, categories=_type_of_ids(column, arrow))
    if not is_text(arrow) or not is_of_digits(seen, column):
        return seen
    return _of_categories(seen.name, Texts.of(column.where(~seen.null)), (), note)


def _type_of_ids(column: pd.Series, arrow: pa.DataType) -> str:
    """The type in which the recipe reads whole numbers as categories."""
    return "string" if pa.types.is_uint64(arrow) and bool((column > 2**63 - 1).any()) else "int64"


def is_of_digits(seen: Seen, texts: pd.Series) -> bool:
    """Whether a column of text is taken for plain numbers, and all of them are digits alone.

    Parameters
    ----------
    seen
        What the column of a Parquet file or frame holds.
    texts
        Its sample.
    """
    if seen.kind != "number" or seen.steps != [{"parse_number": {"column": seen.name}}]:
        return False
    return all_match(Texts.of(texts[~seen.null]).distinct, "[0-9]+$")


def _texts(column: pd.Series) -> np.ndarray:
    found = np.array(column, dtype=object)
    found[pd.isna(found)] = None
    return found


def _dates(column: pd.Series) -> np.ndarray:
    """float64 microseconds since 1970, NaN where null."""
    null = column.isna().to_numpy()
    found = np.full(len(column), np.nan)
    if not null.all():
        found[~null] = microseconds(column[~null]).to_numpy().astype("float64")
    return found


def _of_numbers(name: str, values: np.ndarray, whole: bool) -> Seen:
    seen = Seen(name, "number", values, whole=whole)
    known = values[~np.isnan(values)]
    if np.isinf(known).any():
        ends = known[np.isfinite(known)]
        low, high = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 0.0)
        seen.steps = [{"clip": {"column": name, "low": low, "high": high}}]
        seen.note = "infinities are held at the lowest and highest number"
        return seen
    is_whole = whole or bool((known == np.floor(known)).all())
    dtype, by_size = counted(spaced_lower(name), known, is_whole, is_code_name(name))
    if dtype and (how := time_type(dtype)) is not None:
        times, null = of_type(pd.Series(values), how)
        first = values[~null.to_numpy()][0]
        days = "days such as 2024123, the 123rd of 2024" if "j" in how.directives else f"times such as {first:.0f}"
        note = days if "%" in dtype else f"{how.form} since 1970"
        if others := known[~np.isin(known, values[~null.to_numpy()])].tolist():
            note += f", {others[0]:.0f} and others that are none ({len(others):,} rows) being null"
        moments = np.where(null.to_numpy(), np.nan, times.to_numpy().astype("float64"))
        return Seen(name, "date", moments, dtype, note=note, by_size=by_size)
    seen.whole = is_whole
    large = len(known) > 0 and bool(np.abs(known).max() >= LARGEST_EXACT)
    named = is_code_name(name)
    if seen.whole and len(known) and ((named and not large) or (whole and (named or large))):
        texts = np.array([None if np.isnan(value) else str(int(value)) for value in values], dtype=object)
        note = "numbers taken for names, by the column's name" if named else "numbers taken for names, by their length"
        return Seen(name, "category", texts, note=note, whole=True)
    if seen.whole and named and large:
        note = "ids of 2^53 and beyond that are floats, which skip some; write whole numbers or text"
        return Seen(name, "other", values, note=note)
    return seen


def is_code_name(name: str) -> bool:
    """Whether a column's name says that its values are names, and not how much there is of something.

    >>> is_code_name("user_id"), is_code_name("visits_per_user"), is_code_name("age:token"), is_code_name("id:float")
    (True, False, True, False)
    """
    if (typed := TYPED_NAME.search(name)) is not None:
        return typed[1] == "token"
    return bool(CODE_NAME.search(name)) and not QUANTITY_OF.search(spaced_lower(name))


def is_amount_name(name: str) -> bool:
    """Whether a column's name says by RecBole's type that its values are numbers.

    >>> is_amount_name("age:float"), is_amount_name("age:token"), is_amount_name("age")
    (True, False, False)
    """
    return (typed := TYPED_NAME.search(name)) is not None and typed[1] == "float"


def spaced_lower(name: str) -> str:
    """The name in lower case, its words apart and without RecBole's type: createdAt:float is created_at."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", TYPED_NAME.sub("", name)).lower()


def _of_text(name: str, column: pd.Series, csv: bool, decimal: str) -> Seen:
    texts = Texts.of(column)
    null = are_among(texts.distinct, NULL_WORDS if csv else ("",))
    there = set(texts.distinct[null]) if csv else ()
    words = tuple(word for word in NULL_WORDS if word in there)
    known = texts.kept(~null)
    if not len(known.distinct):
        return Seen(name, "other", np.full(len(column), np.nan), note="it holds no value", null_words=words)
    if VERSION_NAME.search(spaced_lower(name)) and _are_versions(name, known.distinct):
        return _of_categories(name, known, words, "versions, of which 1.10 is another than 1.1")
    odd = weak_words = tuple[str, ...]()
    left = known
    if all_match(known.distinct, PLAIN_NUMBER):  # most columns of a wide table: no flag and no word is among them
        found = _plain_numbers(name, known, csv, (), decimal)
    else:
        flags = ("true", "false")
        if known.distinct[0].lower() in flags and bool(known.distinct.str.lower().isin(flags).all()):
            flagged = known.of_rows(known.distinct.str.lower().map({"true": "True", "false": "False"}))
            return Seen(name, "category", flagged, null_words=words, categories="bool")
        weak = are_among(known.distinct, WEAK_NULL_WORDS)
        weak_words = tuple(sorted(known.distinct[weak]))
        odd = odd_words(known.kept(~weak))
        left = known.kept(~weak & ~known.distinct.isin(odd).to_numpy())
        own = odd if csv else weak_words + odd
        found = _values_seen(name, left, csv, own, decimal) if len(left.distinct) else None
    if found is None:
        zones = abbreviations(left.distinct) if len(left.distinct) else []
        note = f"times in zones {', '.join(zones)}; write offsets such as -05:00 in their place" if zones else ""
        seen = _of_categories(name, known, words, note)
        seen.decimals = _two_decimals(left.distinct)
        return seen
    numbers, values = found.values, left.of_rows(found.values)
    if found.kind == "number" and not found.dtype:
        whole = bool((numbers == np.floor(numbers)).all())
        if whole and bool((np.abs(numbers) >= LARGEST_EXACT).any()):  # 6.02e23 is no id
            whole = bool(left.distinct.str.strip().str.match(WHOLE_NUMBER).all())
        found = _of_numbers(name, values, whole)
        if found.kind == "category":  # a code: its text is what is written
            seen = _of_categories(name, known, words, found.note)
            within = bool((np.abs(numbers) < 2.0**63).all())
            if csv and within and not seen.dtype and bool(known.distinct.str.match(WHOLE_NUMBER).all()):
                seen.categories = "int64"  # a later 1.0 is 1
                seen.values = known.of_rows(known.distinct.str.replace(r"\.0*$", "", regex=True))
            return seen
    elif found.kind == "number" and is_code_name(name) and all_match(left.distinct, GROUPED):  # 1.005, as 850, is an id
        return _of_categories(name, known, words, "numbers taken for names, by the column's name")
    else:
        found.values = values
    if odd:
        shown = ", ".join(map(repr, odd))
        found.note = f"{found.note}{', ' * bool(found.note)}{shown} {'is' if len(odd) == 1 else 'are'} null"
    found.null_words = words + (weak_words if csv else ())
    return found


def _are_versions(name: str, known: pd.Series) -> bool:
    """Whether texts of a column that is named as one of versions are such, and neither dates nor numbers."""
    if not all_match(known, VERSION) or not found_in(known, "[.]").any():
        return False
    if not found_in(known, TWO_POINTS).any():
        return known.nunique() <= MOST_VERSIONS
    times = written_dates(known, False)
    return times is None or _may_be_codes(name, Texts.of(known), times.values)


def _two_decimals(known: pd.Series) -> tuple[str, ...]:
    """A text of each decimal sign where numbers are written with both (12,34 and 5.99); empty where they are not."""
    if not len(known) or not all_match(known, TWO_DECIMALS):
        return ()
    found = [known[found_in(known, sign)] for sign in ("[.][0-9]{1,2}[^0-9]*$", ",[0-9]{1,2}[^0-9]*$")]
    return tuple(str(texts.iloc[0]) for texts in found) if all(map(len, found)) else ()


def odd_words(known: Texts) -> tuple[str, ...]:
    """The few words without a digit among fields that all have one otherwise."""
    words = known.kept(~found_in(known.distinct, "[0-9]"))
    few = len(words.distinct) <= MOST_WORDS and words.num_rows <= WORD_SHARE * known.num_rows
    return tuple(sorted(words.distinct)) if few else ()


def values_seen(name: str, known: pd.Series, csv: bool, own: tuple[str, ...], decimal: str = "") -> Seen | None:
    """The column if all known fields are numbers or times; None if they are names.

    Parameters
    ----------
    name
        Of the column.
    known
        Text without nulls, and without `own`.
    csv
        Whether plain numbers are read as such without a step.
    own
        Words of the column that its step or type is to make null.
    decimal
        As of `column_seen`.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.columns import values_seen
    >>> values_seen("price", pd.Series(["$1,200", "$7"]), True, ("ask",)).steps
    [{'parse_number': {'column': 'price', 'null_values': ['ask']}}]
    """
    texts = Texts.of(known)
    found = _values_seen(name, texts, csv, own, decimal)
    if found is not None:
        found.values = texts.of_rows(found.values)
    return found


def _values_seen(name: str, known: Texts, csv: bool, own: tuple[str, ...], decimal: str) -> Seen | None:
    """As `values_seen`, with one value for each of the different texts."""
    distinct = known.distinct
    if all_match(distinct, PLAIN_NUMBER):
        return _plain_numbers(name, known, csv, own, decimal)
    if not own and is_iso(distinct):
        zone = "?" if has_offsets(distinct) else ""
        try:
            return Seen(name, "date", microseconds(distinct).to_numpy().astype("float64"), "datetime", zone=zone)
        except DataError:
            return None
    # "2:13" is a time of day where the column's name says so, else a duration.
    colons_alone = all_match(distinct, CLOCK.pattern)
    is_duration = colons_alone and not DAYTIME.search(spaced_lower(name))
    times = None if is_duration else written_dates(distinct, bool(own))
    if times is not None and not _may_be_codes(name, known, times.values):
        note = f"written {times.dtype[9:].rstrip('?').rstrip(']')}"
        note += ", and day and month could be the other way round" if times.either else ""
        if zoned := re.search(r" ([A-Z]{2,5})(?:\]| %Y)", times.dtype):
            note += f"; {zoned[1]} is passed over, so times are those of the clock"
        zone = "?" if has_offsets(distinct) else ""
        return Seen(
            name, "date", times.values, times.dtype, note=note, either=times.either, others=times.others, zone=zone
        )
    return _parsed_numbers(name, known, own, decimal)


def _may_be_codes(name: str, known: Texts, moments: np.ndarray) -> bool:
    """Whether days such as 2/6/20 may be sizes or codes: neither the name nor zeros in front say that they are days,
    and other signs than slashes stand between the numbers, as in versions and scores, the name is one of codes, or more
    than a few moments (microseconds) lie in the future."""
    texts, lower = known.distinct, spaced_lower(name)
    if not all_match(texts, SHORT_DAY) or all_match(texts, PADDED):
        return False
    if TIME_NAME.search(lower) or DAY_NAME.search(lower):
        return False
    if not bool(found_in(texts, "/").all()):
        return True
    return is_code_name(name) or bool(known.counts[moments > now_us()].sum() / known.num_rows > MOST_LATE)


def _plain_numbers(name: str, known: Texts, csv: bool, own: tuple[str, ...], decimal: str) -> Seen | None:
    """As `_values_seen`, where all known fields are plain numbers."""
    distinct = known.distinct
    if bool(found_in(distinct, r"^[ \t]*0[0-9]+[ \t]*$").any()):
        return None  # 007 is a name
    numbers = _floats(distinct)
    if not csv and not own and all_match(distinct, "[0-9]+$"):
        times = _of_numbers(name, known.of_rows(numbers), True)
        if times.kind == "date":
            times.values = times.values[known.first_rows]
            return times
    # Points between groups of three digits are no decimal signs where that is the comma.
    if decimal == "," and (own or not csv or bool(found_in(distinct, r"\.").any())):
        grouped = _parsed_numbers(name, known, own, decimal)
        if grouped is not None and decimal_sign(grouped) == decimal:
            grouped.whole = bool((grouped.values == np.floor(grouped.values)).all())
            return grouped
    if csv and not own:
        return Seen(name, "number", numbers)
    step = {"parse_number": {"column": name, **({"null_values": list(own)} if own else {})}}
    return Seen(name, "number", numbers, "string", [step], note="" if csv else "numbers written as text")


def _floats(known: pd.Series) -> np.ndarray:
    """Plain numbers as float64, the nearest ones; Arrow's cast takes no blanks and no plus."""
    try:
        numbers = pa.array(known, from_pandas=True).cast(pa.float64())
    except pa.ArrowInvalid:
        return known.astype("float64").to_numpy()
    return np.array(numbers.to_numpy())


def decimal_sign(seen: Seen) -> str:
    """The decimal sign with which texts are read; empty of columns that `parse_number` does not read."""
    options = next((step["parse_number"] for step in seen.steps if "parse_number" in step), None)
    return "" if options is None else str(options.get("decimal", "."))


def take_later_commas(seen: Seen) -> None:
    """Read a column of whole numbers below 1,000 as files with a decimal comma write larger ones and fractions, so that
    a later 1.196 is no 1.196; in place. Larger numbers would show separators if the file had any.

    >>> import numpy as np
    >>> from gigabatch.pipeline.init.columns import Seen, take_later_commas
    >>> seen = Seen("amount", "number", np.array([755.0, 3.0]), whole=True)
    >>> take_later_commas(seen)
    >>> seen.dtype, seen.steps
    ('string', [{'parse_number': {'column': 'amount', 'decimal': ',', 'thousands': '.'}}])
    """
    first = seen.steps[0] if seen.steps else {"parse_number": {"column": seen.name}}
    own = first.get("parse_number")
    known = seen.values[~seen.null]
    if own is None or len(seen.steps) > 1 or not own.keys() <= {"column", "null_values"}:
        return
    if seen.whole and len(known) and bool((np.abs(known) < 1000).all()):
        seen.dtype = "string"
        seen.steps = [{"parse_number": {**own, "decimal": ",", "thousands": "."}}]


def _parsed_numbers(name: str, known: Texts, weak: tuple[str, ...] = (), decimal: str = "") -> Seen | None:
    """The column of text without nulls if `ParseNumber` or `ParseDuration` reads all of its fields in one of the usual
    ways, of which those with this decimal sign are tried first; one value for each of the different texts."""
    distinct = known.distinct
    words: dict[str, Any] = {"null_values": list(weak)} if weak else {}
    if all_match(distinct, CLOCK.pattern) or (not is_code_name(name) and are_durations(distinct)):
        return _durations(name, distinct, words)
    if bool(found_in(distinct, r"^[^0-9]*0[0-9]").any()):
        return None  # 030 1234 is no quantity
    shapes = _shapes(_straight(distinct))
    counts = np.bincount(shapes.codes, known.counts).astype("int64")
    found = _units_beside(shapes.distinct, counts, may_be_code=is_code_name(name))
    if found is None:
        return None
    units, scales = found
    often = np.argsort(-known.counts, kind="stable")
    others = other_units(distinct.iloc[often], scales, known.counts[often])
    for point, thousands in sorted(WAYS, key=lambda way: bool(decimal) and way[0] != decimal):
        options: dict[str, Any] = {}
        remove = [sign for sign in SIGNS if sign != thousands]
        if units or len(remove) < len(SIGNS):
            options["remove"] = [*units, *remove]
        if point != ".":
            options["decimal"] = point
        if thousands != ",":
            options["thousands"] = thousands
        options |= words | ({"scales": scales} if scales else {})
        try:
            parsed = ParseNumber(name, **options)(distinct.to_frame(name))[name]
        except DataError:
            continue
        if parsed.isna().any() or np.isinf(parsed).any():
            continue
        telling = (text for text in known.among_first(1000) if _is_telling(text, scales, decimal))
        example = next(telling, distinct[0])
        note = f"{example!r} is {parsed[distinct == example].iloc[0]:.12g}"
        if others:
            note += "; " + ", ".join(f"{unit if unit == NO_UNIT else repr(unit)} in {share:.1%} of the rows, "
                                     "not converted" for unit, share in others.items())  # fmt: skip
        return Seen(
            name, "number", parsed.to_numpy(dtype="float64"), "string", [{"parse_number": {"column": name, **options}}],
            note=note, other_units=tuple(others),
        )  # fmt: skip
    return None


def _is_telling(text: str, scales: Collection[str], decimal: str) -> bool:
    """Whether a text shows how a column is read better than others: by a scale, a dash behind, or a sign that could be
    the other."""
    if re.search(rf"[0-9.,]\s*[{DASHES}{MINUS}]", text):
        return True
    return text.strip().endswith(tuple(scales)) or (not scales and bool(decimal) and bool({".", ","} & set(text)))


def other_units(texts: pd.Series, scales: Collection[str], counts: np.ndarray | None = None) -> dict[str, float]:
    """Signs and words beside numbers other than those of most fields, and their shares of the fields; a number without
    any has `NO_UNIT`, but 0 is 0 in every unit. scales: words that are no unit. counts: of fields with each text, by
    default one.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.columns import other_units
    >>> other_units(pd.Series(["$2k", "3 USD", "€4", "$5", "6"]), ["k"])
    {'no unit': 0.2, '€': 0.2}
    """
    text = _straight(texts.astype("str"))
    rows = pd.Series(1 if counts is None else counts, index=text.index)
    text = text[~text.str.match(r"^[\s+-]*0+([.,]0*)?\s*$")]
    shapes = _shapes(text)
    bare = shapes.distinct.str.replace(IN_FIELD, "0", n=1, regex=True).to_numpy()[shapes.codes]  # few different ones
    found: dict[frozenset[str], int] = {}
    written: dict[frozenset[str], str] = {}
    for field_, count in rows[text.index].groupby(bare, sort=False).sum().sort_values(ascending=False).items():
        unit, shown = _unit_of(str(field_), scales)
        found[unit] = found.get(unit, 0) + int(count)
        written.setdefault(unit, shown)
    ordered = sorted(found, key=lambda unit: (-found[unit], written[unit]))
    return {written[unit]: found[unit] / int(rows.sum()) for unit in ordered[1:]}


def _unit_of(text: str, scales: Collection[str]) -> tuple[frozenset[str], str]:
    """Signs and words beside a number, such that those that mean the same are equal; and as they are written."""
    text = text.replace(MINUS, "-")
    number = IN_FIELD.search(text)
    if number is None:
        return frozenset(), NO_UNIT
    units: set[str] = set()
    shown = ""
    for part in (text[: number.start()], text[number.end() :]):
        signs = [letter for letter in part if letter in UNIT_SIGNS]
        word = re.sub(f"[{UNIT_SIGNS}]", "", part).strip(" \t\N{NO-BREAK SPACE}\u202f\u2009()+'" + DASHES)
        first, _, rest = word.partition(" ")
        word = (rest if first in scales else word).strip()
        units.update(ONE_UNIT.get(unit, unit) for unit in (*signs, _singular(word)) if unit)
        shown += "".join(signs) + word
    return frozenset(units), shown or NO_UNIT


def units_told(name: str, units: Collection[str]) -> str:
    """The remark that some numbers have another unit."""
    return (
        f"Some numbers of {name} have another unit ({', '.join(units)}), and none is converted. Convert them in the "
        "file where they are not the same quantity."
    )


def _units_beside(
    distinct: pd.Series, counts: np.ndarray, may_be_code: bool
) -> tuple[list[str], dict[str, int]] | None:
    """Words and signs beside the numbers that are units, as they are written, one of them in nearly all fields or all
    of them known; and factors by word where words are thousands and millions. None where something else stands there.

    may_be_code: whether unknown words are parts of names, such as those of articles.
    """
    # The first texts tell most columns of names.
    beside = f"[{UNIT_SIGNS}]|{MINUS_BEHIND}"
    first = [re.sub(beside, "", text) for text in distinct.head(FIRST_TEXTS)]
    if not all(WITH_UNIT.search(FRONT_UNIT.sub("", text)) for text in first):
        return None
    signs = [sign for sign in UNIT_SIGNS if sign not in SIGNS and bool(distinct.str.contains(sign, regex=False).any())]
    if may_be_code and bool(found_in(distinct, MINUS_BEHIND).any()):
        return None
    bare = distinct.str.replace(beside, "", regex=True)
    fronts = [*signs, *_longest_first(bare.str.extract(FRONT_UNIT)[0].dropna())]
    found = bare.str.replace(FRONT_UNIT, "", regex=True).str.extract(WITH_UNIT)[0]
    if bool(found.isna().any()) or bool(found.str.lower().isin(NO_UNITS).any()):
        return None
    written = pd.Series(counts).groupby(found.to_numpy()).sum()
    words = _longest_first(set(written.index) - {""})
    if all(map(_is_known, words)):
        return list(dict.fromkeys((*words, *fronts))), {}
    if may_be_code:
        return None
    for factors in SCALES:
        parts = {word: _scale_and_unit(word, factors) for word in words}
        scales = {scale: factors[scale.lower().rstrip(".")] for scale, _ in parts.values() if scale}
        units = {unit for _, unit in parts.values() if unit}
        # "3 m" beside "12" is metres: one such letter is a factor beside another word alone.
        alone = bool(words) and not units and (len(words) > 1 or not set(words) <= {"m", "b", "B", "t", "T"})
        before_units = any(scale and unit for scale, unit in parts.values())
        known = all(_is_known(unit) for unit in units)
        if alone or (before_units and (known or _is_common(written, {word: parts[word][1] for word in words}))):
            later = {"M": 10**6} if {"k", "K"} & set(scales) and not {"m", "M"} & set(scales) else {}
            return list(dict.fromkeys((*_longest_first(units), *fronts))), scales | later
    return (list(dict.fromkeys((*words, *fronts))), {}) if _is_common(written, {}) else None


def _shapes(texts: pd.Series) -> Texts:
    """Texts in which each row of digits is a 0, but where it stands behind a letter (m2), so that what stands beside
    numbers is looked at once for all numbers."""
    array = pc.replace_substring_regex(pa.array(texts, from_pandas=True), r"(^|[^\pL\pN])[0-9]+", r"\10")
    return Texts.of(pd.Series(pd.array(array, dtype="str")))


def _straight(texts: pd.Series) -> pd.Series:
    """Texts whose typographic apostrophes, which part thousands in Switzerland, are those of ASCII."""
    return texts.str.replace(APOSTROPHE, "'", regex=False)


def _longest_first(words: Iterable[str]) -> list[str]:
    return sorted(set(words), key=lambda word: (-len(word), word))


def _scale_and_unit(word: str, factors: Mapping[str, int]) -> tuple[str, str]:
    """A word behind a number as the scale and the unit that it is made of, either of which may be empty."""
    if word.lower().rstrip(".") in factors:
        return word, ""
    found = SCALED_UNIT.match(word)
    scale = found[1].lower().rstrip(".") if found else ""
    if found is None or scale not in factors or (scale in UNCLEAR_SCALES and not _is_known(found[2])):
        return "", word
    return found[1], found[2]


def _is_known(unit: str) -> bool:
    return unit.lower() in {known.lower() for known in UNITS}


def _singular(word: str) -> str:
    """A unit in lower case without a point, and without the s of days and mins; ms and lbs keep theirs."""
    word = word.lower().rstrip(".")
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _is_common(written: pd.Series, unit_of: Mapping[str, str]) -> bool:
    """Whether nearly all fields have one unit, in upper or lower case, one or several of it; a word that `unit_of` has
    not is one itself."""
    shares = written.groupby([_singular(unit_of.get(word, word)) for word in written.index]).sum() / written.sum()
    shares = shares.drop("", errors="ignore")
    return bool(len(shares)) and float(shares.max()) >= UNIT_SHARE


def holds_text(seen: Seen, most_words: int, least_words: int = FEWEST_TEXT_WORDS) -> bool:
    """Whether a category holds texts of some words each, most of which come again in other rows; the middle text has
    `least_words` to `most_words`.

    >>> import numpy as np
    >>> from gigabatch.pipeline.init.columns import Seen, holds_text
    >>> titles = np.array(["red shoes", "blue shoes", "red hat", "blue hat"], dtype=object)
    >>> holds_text(Seen("title", "category", titles), 12)
    True
    >>> holds_text(Seen("sku", "category", np.array(["a1", "b2"])), 12)
    False
    """
    if seen.kind != "category":
        return False
    texts = pd.Series(seen.values).dropna().drop_duplicates().astype("str")
    words = texts.str.lower().str.findall(r"[^\W_]+").map(set)
    middle = float(words.map(len).median())
    if not least_words <= middle <= most_words:
        return False
    counts = words.explode().value_counts()
    if _are_codes(texts) or (not bool(texts.str.contains(r"\s").any()) and _are_numbered(words, counts)):
        return False
    letters = counts[counts.index.str.contains(r"[^\W\d]")]
    return bool(len(letters)) and float(letters[letters > 1].sum()) >= AGAIN * float(counts.sum())


def _are_codes(texts: pd.Series) -> bool:
    """Whether texts, all different, are codes with numbers in one form: C001-000123, B07/00012, M-AB 123. Words that
    stand in all of them count for nothing; others are short and behind no blank, but for one where no blank stands and
    for the letters of plates (AB12 CDE)."""
    plates = [text[-3:] for text in texts if PLATE.fullmatch(text)]
    if len(plates) >= NUMBERED * len(texts) and len(set(plates)) >= FEWEST_OF_PLATES:
        return True
    forms = Counter(re.sub("[0-9]+", "0", LETTERS.sub("a", text)) for text in texts)
    ((form, count),) = forms.most_common(1)
    blank = any(sign.isspace() for sign in form.strip())
    # Several numbers behind blanks, or with a unit each, may be amounts (3 BR 2 BA, 3br/2ba); many words say something.
    many = blank and (form.count("0") > 1 or len(BARE_WORD.findall(form)) > MOST_OF_CODE)
    if count < NUMBERED * len(texts) or "0" not in form or many or len(AMOUNT.findall(form)) > 1:
        return False
    words = [set(BARE_WORD.findall(text.lower())) for text in texts]
    counts = Counter(word for found in words for word in found)
    own = {word for word in counts if counts[word] < NUMBERED * len(texts)}
    if sum(own.isdisjoint(BEHIND_BLANK.findall(text.lower())) for text in texts) < NUMBERED * len(texts):
        return False
    names = [word for word in own if len(word) > LONGEST_OF_CODE]
    return sum(len(found.intersection(names)) <= (not blank) for found in words) >= NUMBERED * len(texts)


def _are_numbered(words: pd.Series, counts: pd.Series) -> bool:
    """Whether texts, as sets of words, are a number of their own behind one prefix: O1-000123. counts: of each word."""
    own = set(counts.index[(counts == 1) & counts.index.str.contains("[0-9]")])
    others = [{word for word in found - own if LETTER.search(word)} for found in words]
    numbered = sum(not own.isdisjoint(found) for found in words)
    return numbered >= NUMBERED * len(words) and float(np.median([len(found) for found in others])) <= 1


def list_separator(texts: pd.Series) -> str:
    """What stands between the values of texts that hold several each, where values come again in other texts; empty
    where texts are one value each, or are not all written in one way.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.columns import list_separator
    >>> tags = [", ".join(tag for place, tag in enumerate(("red", "new", "big", "old", "wet")) if n >> place & 1)
    ...         for n in range(1, 32)]
    >>> list_separator(pd.Series(tags)), list_separator(pd.Series([f"{n}, Main Street" for n in range(50)]))
    (', ', '')
    """
    known = Texts.of(texts)
    distinct = known.distinct
    if len(distinct) < FEWEST_LISTS or _two_decimals(distinct):
        return ""
    for sign in LIST_SIGNS:
        if not bool(found_in(distinct, re.escape(sign)).any()):
            continue
        counts = distinct.str.count(re.escape(sign)).to_numpy()
        spaced = distinct.str.count(f"{re.escape(sign)} ").to_numpy()
        lengths = np.bincount(counts, known.counts) / known.num_rows
        if known.counts[counts > 0].sum() / known.num_rows < SEVERAL or (lengths >= OF_A_LENGTH).sum() < 2:
            continue
        separator = f"{sign} " if bool((spaced == counts).all()) else sign if not bool(spaced.any()) else ""
        if separator and distinct.str.split(separator, regex=False).explode().nunique() <= AGAIN * len(distinct):
            return separator
    return ""


def are_durations(texts: pd.Series) -> bool:
    """Whether all texts are durations with days or units, such as "5h 52m", and some say so themselves: two units in
    one text, a time behind days, ISO 8601, or several units in words. "5 m" and "7 s" may be something else.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.columns import are_durations
    >>> are_durations(pd.Series(["5h 52m", "45m"])), are_durations(pd.Series(["5 m", "7 s"]))
    (True, False)
    """
    lower = texts.str.strip().str.lower()
    if not all_match(lower, DURATION):
        return False
    if bool(found_in(lower, TWO_UNITS).any()):
        return True
    units = lower.str.extract(r"([a-z]+)", expand=False)
    return bool(units.isin(UNIT_WORDS).all()) and units.str.slice(0, 1).nunique() > 1


def _durations(name: str, distinct: pd.Series, words: dict[str, Any]) -> Seen | None:
    """A column of durations, as seconds."""
    options: dict[str, Any] = {"column": name, **words}
    of_days = found_in(distinct, DAYS_AND_MINUTES)
    if bool(of_days.any()):
        options["short"] = "hh:mm"
    try:
        seconds = ParseDuration(**options)(distinct.to_frame(name))[name].to_numpy(dtype="float64")
    except DataError:
        return None
    short = of_days | found_in(distinct, r"^\s*-?[0-9]+:[0-9.]+\s*$")
    place = int(short.argmax())  # the first one where there is none
    note = f"{distinct[place]!r} is {seconds[place]:.12g} seconds"
    if short.any() or all_match(distinct, CLOCK.pattern):
        note += f", taken for {options.get('short', 'mm:ss')}"
    return Seen(name, "number", seconds, "string", [{"parse_duration": options}], note=note)


def _of_categories(name: str, texts: Texts, words: tuple[str, ...], note: str = "") -> Seen:
    """A column of names; spellings that differ in blanks or case alone are one category."""
    distinct = texts.distinct
    seen = Seen(name, "category", texts.of_rows(distinct), note=note, null_words=words)
    seen.texts = texts
    stripped = distinct.str.strip()
    folded = stripped.str.lower()
    options: dict[str, Any] = {}
    if folded.nunique() < stripped.nunique():
        options = {"case": "lower"}
    elif bool((stripped != distinct).any()):
        options = {"strip": True}
    if bool(distinct.str.match(r"^\s*0[0-9]+\s*$").any()) and bool(stripped.str.match(r"^[0-9]+$").all()):
        lengths = stripped.str.len().unique()
        if len(lengths) == 1:  # a number of as many digits is the same name
            seen.dtype = "string"
            seen.steps = [{"clean_text": {"column": name, "width": int(lengths[0])}}]
            return seen
    if options:
        cleaned = (folded if "case" in options else stripped).replace("", None)
        seen.values = texts.of_rows(cleaned)
        seen.dtype = "string"
        seen.steps = [{"clean_text": {"column": name, **({} if options == {"strip": True} else options)}}]
        fewer = len(distinct) > seen.num_values
        seen.note = (
            f"{len(distinct):,} spellings of {seen.num_values:,} values" if fewer else "without blanks around it"
        )
    return seen
