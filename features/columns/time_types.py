"""Types of times that are written by a format or counted in a unit: `datetime[%d.%m.%Y]` and `datetime[ms]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gigabatch.features.columns.times import FIRST, LAST, SECOND, is_dates, is_text, microseconds, over_distinct
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import EXACT, exact_below
from gigabatch.features.setting_checks import TIME_UNITS, time_unit

TYPE = re.compile(r"datetime\[(.+)\](\?)?", re.DOTALL)
MONTH_NAME = "[A-Za-zÀ-ÿ]{3,10}"
DAY_ENDING = "(?:st|nd|rd|th|ST|ND|RD|TH|er|º)?"  # of a day beside a month's name: 1st, 1er
DIRECTIVES = {
    "a": r"([Mm]on|[Tt]ue|[Ww]ed|[Tt]hu|[Ff]ri|[Ss]at|[Ss]un|MON|TUE|WED|THU|FRI|SAT|SUN)[A-Za-z]*\.?",
    "Y": r"(\d{4})", "y": r"(\d{2})", "j": r"(\d{1,3})", "m": r"(\d{1,2})",
    "b": rf"({MONTH_NAME})\.?", "q": r"([1-4])", "G": r"(\d{4})", "V": r"(\d{1,2})",
    "d": r"(\d{1,2})", "H": r"(\d{1,2})", "I": r"(\d{1,2})", "p": r"([AaPp])\.?[Mm]\.?", "M": r"(\d{1,2})",
    "S": r"(\d{1,2})", "f": r"(\d{1,9})", "z": r"(Z|UTC|GMT|[+-]\d{2}:?\d{2})",
}  # fmt: skip
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# German, French, Spanish, Italian, Portuguese and Dutch names that do not begin as the English ones do, full and short,
# also where accents were lost. None of them is another month in another of these languages.
OTHER_MONTHS = {
    1: ("jänner", "jaenner", "jän", "ene", "enero", "gen", "genn", "gennaio"),
    2: ("fév", "fev", "févr", "fevr", "février", "fevrier", "fevereiro"),
    3: ("märz", "mär", "mrz", "maerz", "maart", "mrt"),
    4: ("avr", "avril", "abr", "abril"),
    5: ("mai", "maio", "mag", "magg", "maggio", "mei"),
    6: ("juin", "giu", "giugno"),
    7: ("juil", "juill", "juillet", "lug", "luglio"),
    8: ("août", "aoû", "aout", "ago", "agosto"),
    9: ("set", "sett", "settembre", "setembro"),
    10: ("okt", "oktober", "ott", "ottobre", "out", "outubro"),
    12: ("dez", "dezember", "dezembro", "déc", "décembre", "dic", "dicembre", "diciembre"),
}
SPECIAL = "\\.^$*+?{}[]|()"
SAFE_DIGITS = 18  # of a text whose number is of int64 for sure
NUMBER = r"^[+-]?[0-9]+(?:\.[0-9]*)?$"
WIDTHS = {"Y": 4, "G": 4, "j": 3} | dict.fromkeys("ymdVHIMS", 2)  # digits of a directive that touches another one
PIVOT = 69  # two digits of a year from here on are of the twentieth century, as POSIX has it


@dataclass(frozen=True)
class TimeType:
    """How the times of a column are written.

    Parameters
    ----------
    form
        A format (`%a %Y %y %q %j %m %b %d %G %V %H %I %p %M %S %f %z`, as of Python's `strptime`; `%q` is the quarter,
        1 to 4, `%G %V` are year and week of ISO 8601, `%j` is the day of the year, `%z` is also Z, UTC or GMT, a
        weekday `%a` is read over, `%b` are names of months, full or short, in English, German, French, Spanish,
        Italian, Portuguese or Dutch, and `%d` beside them is also 1st or 1er), or a key of `TIME_UNITS`.
    lenient
        Whether what is written otherwise is null; else it is an error.
    pattern
        The regular expression of a format, one group a directive.
    directives
        Of each group, in order.
    digits
        How many a whole number has that is written in the format, leading zeros among them; 0 where it cannot be.
    """

    form: str
    lenient: bool
    pattern: str = ""
    directives: tuple[str, ...] = ()
    digits: int = 0

    @property
    def of_day(self) -> bool:
        """Whether a format holds the time of day alone."""
        return bool(self.directives) and not {"Y", "y", "G"} & set(self.directives)


@lru_cache(maxsize=256)
def time_type(dtype: str) -> TimeType | None:
    """What a type says of how times are written; None where it is another type.

    Parameters
    ----------
    dtype
        `datetime[%d.%m.%Y]` (a format), or `datetime[ms]` (a unit since 1970); a `?` behind makes null of what is
        written otherwise. A format without any part of a date, `datetime[%H:%M]`, is the time of day on 1 January 1970.

    Raises
    ------
    DataError
        An unknown unit or directive, one that stands twice, or a format that is neither of a date nor of a time of
        day.

    Examples
    --------
    >>> from gigabatch.features.columns.time_types import time_type
    >>> time_type("datetime[ms]?")
    TimeType(form='ms', lenient=True, pattern='', directives=(), digits=0)
    >>> time_type("datetime") is None
    True
    """
    found = TYPE.fullmatch(dtype)
    if found is None:
        return None
    form, lenient = found[1], found[2] is not None
    if "%" not in form:
        return TimeType(time_unit(form, f"type {dtype!r}"), lenient)
    pattern, directives, place = "", [], 0
    while place < len(form):
        letter = form[place]
        if letter == "%":
            place += 1
            name = form[place : place + 1]
            if name not in DIRECTIVES or name in directives:
                known = " ".join(f"%{one}" for one in DIRECTIVES)
                why = "stands twice" if name in directives else "is unknown"
                raise DataError(f"type {dtype!r}: %{name} {why}. Known: {known}, each once.")
            directives.append(name)
            letter = DIRECTIVES[name] + DAY_ENDING * (name == "d" and "%b" in form)
            if name in WIDTHS and _touches(form, place):
                letter = f"(\\d{{{WIDTHS[name]}}})"
        elif letter in SPECIAL:
            letter = f"\\{letter}"
        pattern += letter
        place += 1
    there = set(directives)
    of_date = there & set("YyqjmbdGV")
    of_day = not of_date and "z" not in there and bool(there & {"H", "I"})
    dated = len(of_date & {"Y", "y"}) == 1 and len(of_date & set("qjmb")) == 1 and not of_date & {"G", "V"}
    if not (of_day or of_date == {"G", "V"} or (dated and not ("d" in there and there & {"q", "j"}))):
        raise DataError(
            f"type {dtype!r}: a format holds one year (%Y or %y) and one month (%m or %b), or, without %d, a quarter "
            "(%q) or day of the year (%j); or a week and its year (%V and %G); or no part of a date but an hour (%H, "
            "or %I beside %p)."
        )
    if ("I" in there) != ("p" in there) or {"H", "I"} <= there:
        raise DataError(f"type {dtype!r}: the hours of a clock of twelve are %I beside %p, else %H.")
    bare = len(form) == 2 * len(directives) and there <= set(WIDTHS)
    digits = sum(WIDTHS[name] for name in directives) if bare else 0
    return TimeType(form, lenient, f"^{pattern}$", tuple(directives), digits)


def is_time_type(dtype: str) -> bool:
    """Whether a column of this type is read as microseconds since 1970: `datetime`, alone or as of `time_type`."""
    return dtype == "datetime" or time_type(dtype) is not None


def _touches(form: str, place: int) -> bool:
    """Whether the directive whose letter stands there has another one of digits right before or behind it."""
    behind = form[place + 1 : place + 3]
    before = form[max(place - 3, 0) : place - 1]
    return any(len(one) == 2 and one[0] == "%" and one[1] in {*WIDTHS, "f"} for one in (before, behind))


def of_type(column: Column, how: TimeType) -> tuple[Any, Any]:
    """Times that are written as a type says, as microseconds since 1970 in UTC.

    Timestamps and dates are taken as they are; whole numbers are read by a format as the text that they are (20241231).

    Parameters
    ----------
    column
        Text, numbers, timestamps or dates.
    how
        As `time_type` gives it.

    Returns
    -------
    (Column, Column)
        int64 microseconds, 0 where null; and bool, whether each is null.

    Raises
    ------
    DataError
        A value that is written otherwise, is no day of the calendar or lies outside the years 1 to 9999, unless the
        type is lenient; the message names the column and the value.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.columns.time_types import of_type, time_type
    >>> found, null = of_type(pd.Series(["1.1.1970 00:01", None]), time_type("datetime[%d.%m.%Y %H:%M]"))
    >>> found.tolist(), null.tolist()
    ([60000000, 0], [False, True])
    """
    null = column.isna()
    if is_dates(column):
        return microseconds(column), null
    if bool(null.all()):
        return null.astype("int64") * 0, null
    if is_text(column):
        column = engine_of(column).text(column)
    if how.pattern:
        found, wrong = over_distinct(column, lambda texts: _of_format(texts, how, texts.isna()))
    else:
        found, wrong = _of_unit(column, how, null)
    wrong = wrong & ~null
    if bool(wrong.any()) and not how.lenient:
        example = engine_of(column).to_pandas(column[wrong].head(1).astype("str")).tolist()[0]
        kind = f"in the format {how.form!r}" if how.pattern else f"in {how.form} since 1970"
        raise DataError(
            f"time column {column.name!r}: {example!r} is no time {kind}, of the years 1 to 9999. Correct it or the "
            "type, or put a ? behind the type to take such values for null."
        )
    null = null | wrong
    return found.where(~null, 0).astype("int64"), null


def _of_unit(column: Column, how: TimeType, null: Column) -> tuple[Any, Any]:
    """Of each number its whole part and the rest apart, so that what one becomes does not depend on others."""
    nanoseconds, one = TIME_UNITS[how.form], TIME_UNITS["us"]
    numbers: Any = column
    if is_text(column):
        # Not by `extract`, which is Python's, row by row: eight times as slow as these of Arrow.
        text = column.str.strip()
        wrong = ~text.str.match(NUMBER).fillna(False).astype("bool")
        text = text.where(~wrong, "0")
        sign = 1 - 2 * text.str.startswith("-").astype("int64")
        unsigned = text.str.replace(r"^[+-]", "", regex=True)
        has_rest = bool(text.str.contains(".", regex=False).any())
        digits = unsigned.str.replace(r"\..*$", "", regex=True) if has_rest else unsigned
        if int(digits.str.len().max()) > SAFE_DIGITS:
            wrong = wrong | (digits.astype("float64") >= 2.0**63)
            digits = digits.where(~wrong, "0")
        whole = sign * digits.astype("int64")
        rest = None
        if has_rest:
            rest = sign * ("0" + unsigned.str.replace(r"^[0-9]*", "", regex=True)).astype("float64")
    elif column.dtype.kind == "f":
        numbers = column.fillna(0).astype("float64")  # cuDF's nulls are in no comparison
        wrong = ~(numbers.abs() < 2.0**63)
        numbers = numbers.where(~wrong, 0.0)
        whole = numbers.round()
        rest = numbers - whole
        whole = whole.astype("int64")
    elif column.dtype.kind in "iu":
        numbers = column.fillna(0)
        wrong = numbers > 2**63 - 1 if column.dtype.kind == "u" else null & ~null
        whole = numbers.where(~wrong, 0).astype("int64")
        rest = None
    else:
        raise DataError(
            f"time column {column.name!r}: expected numbers of {how.form} since 1970, found {column.dtype}."
        )
    first = FIRST * TIME_UNITS["s"] // nanoseconds
    longest = (LAST + 1) * TIME_UNITS["s"] // nanoseconds
    # Arrow compares with int64 alone.
    wrong = wrong | (whole < max(first, -(2**63))) | (whole > min(longest, 2**63 - 1))
    if column.dtype.kind == "f":
        wrong = wrong | _coarse(column, numbers.where(~wrong, 0.0), how, max(one // nanoseconds, 1))
    whole = whole.where(~wrong, 0)
    if nanoseconds >= one:
        found = whole * (nanoseconds // one)
        if rest is not None:
            found = found + ((rest.where(~wrong, 0.0) * (nanoseconds // one) + 0.5) // 1).astype("int64")
    else:
        below = 0 if rest is None else (rest < 0).astype("int64")
        found = (whole - below) // (one // nanoseconds)
    return found, wrong | (found < FIRST * SECOND) | (found >= (LAST + 1) * SECOND)


def _coarse(column: Column, numbers: Any, how: TimeType, step: int = 1) -> Any:
    """Where floats of the column's type skip multiples of `step`, a power of ten; `DataError` unless the type is
    lenient."""
    exact = exact_below(column.dtype) * step
    coarse = numbers.abs() >= exact
    if not how.lenient and bool(coarse.any()):
        raise DataError(
            f"time column {column.name!r}: some values reach {exact:,}, from where on {column.dtype} is too coarse for "
            "them. Give whole numbers or text, or put a ? behind the type to take such values for null."
        )
    return coarse


def _of_format(column: Column, how: TimeType, null: Column) -> tuple[Any, Any]:
    unwritten = None
    if column.dtype.kind == "f":
        numbers = column.astype("float64").fillna(0)  # whole numbers beside a null; others are written in no format
        unwritten = (numbers != numbers.round()) | ~(numbers.abs() < EXACT)
        unwritten = unwritten | _coarse(column, numbers.where(~unwritten, 0.0), how)
        column = numbers.where(~unwritten, 0.0).astype("int64")
    text = column.astype("str").where(~null, "").str.strip()
    if column.dtype.kind in "iu" and how.digits:
        text = text.str.zfill(how.digits)  # a number does not keep them
    groups = text.str.extract(how.pattern)
    parts = {name: groups[place] for place, name in enumerate(how.directives)}
    # In arrays, as a call of a column costs what a hundred rows do in an array, and a row that is served pays for each.
    engine = engine_of(column)
    wrong = engine.array(groups[0].isna())
    if unwritten is not None:
        wrong = wrong | engine.array(unwritten)
    zeros = wrong.astype("int64") * 0

    def number(name: str, other: int = 0) -> Any:
        if name not in parts:
            return zeros + other
        return engine.array(parts[name].fillna("1").astype("int64"))

    year = number("G" if "G" in parts else "Y", 1970)
    if "y" in parts:
        short = number("y")
        year = short + 1900 + (short < PIVOT).astype("int64") * 100
    month = number("q") * 3 - 2 if "q" in parts else number("m", 1)
    if "b" in parts:
        name = parts["b"].fillna("jan").str.lower().str.slice(0, 3)
        month = zeros
        for place, short_name in enumerate(MONTHS):
            month = month + engine.array(name == short_name).astype("int64") * (place + 1)
        if bool((month == 0).any()):
            whole = parts["b"].fillna("jan").str.lower()
            for place, names in OTHER_MONTHS.items():
                month = month + engine.array(whole.isin(names)).astype("int64") * place
    day = number("d", 1)
    hour = number("H")
    if "I" in parts:
        twelve = number("I")
        wrong = wrong | (twelve < 1) | (twelve > 12)
        hour = twelve % 12 + engine.array(parts["p"].fillna("A").str.lower() == "p").astype("int64") * 12
    minute, second = number("M"), number("S")
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    short_month = (month == 4) | (month == 6) | (month == 9) | (month == 11)
    february = (month == 2).astype("int64")
    longest = 31 - short_month.astype("int64") - february * (3 - leap.astype("int64"))
    of_year = number("j", 1)
    wrong = wrong | (month < 1) | (month > 12) | (day < 1) | (day > longest) | (year < 1)
    wrong = wrong | (of_year < 1) | (of_year > 365 + leap.astype("int64"))
    wrong = wrong | (hour > 23) | (minute > 59) | (second > 59)
    days = _days(year, month, day) + of_year - 1
    if "V" in parts:
        days = _first_monday(year) + 7 * (number("V") - 1)
        wrong = wrong | (days < _first_monday(year)) | (days >= _first_monday(year + 1))
    found = (days * 86_400 + hour * 3600 + minute * 60 + second) * SECOND
    if "f" in parts:
        digits = parts["f"].fillna("0").str.slice(0, 6).str.ljust(6, "0")
        found = found + engine.array(digits.astype("int64"))
    if "z" in parts:
        offset = parts["z"].fillna("Z").str.replace("Z|UTC|GMT", "+0000", regex=True).str.replace(":", "", regex=False)
        ahead = 1 - 2 * engine.array(offset.str.slice(0, 1) == "-").astype("int64")
        hours, minutes = (engine.array(offset.str.slice(at, at + 2).astype("int64")) for at in (1, 3))
        wrong = wrong | (hours > 23) | (minutes > 59)
        found = found - ahead * (hours * 60 + minutes) * 60 * SECOND
    wrong = wrong | (found < FIRST * SECOND) | (found >= (LAST + 1) * SECOND)
    like = column.to_frame("time")
    return engine.series(found, like), engine.series(wrong, like)


def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970 of the Gregorian calendar, in whole numbers: years that begin in March end with the leap day."""
    shifted = year - (month <= 2).astype("int64")
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _first_monday(year: Any) -> Any:
    """The Monday of the week of 4 January, the first one of ISO 8601, as days since 1970, which began on a Thursday."""
    fourth = _days(year, year * 0 + 1, 4)
    return fourth - (fourth + 3) % 7
