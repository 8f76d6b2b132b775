"""How the times of a column are written: the type by which the recipe `table` reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gigabatch.features.columns.time_types import DAY_ENDING, MONTH_NAME, of_type, time_type
from gigabatch.features.columns.times import ISO_8601
from gigabatch.pipeline.init.texts import FIRST_TEXTS, all_match, found_in

DIGITS = {  # of times as one number: the first and the last that are taken for such
    "%Y%m%d": (19_000_101, 21_001_231), "%Y%m%d%H": (1_900_010_100, 2_100_123_123),
    "%y%m%d%H%M": (1_001_010_000, 9_912_312_359), "%Y%m%d%H%M": (190_001_010_000, 210_012_312_359),
    "%Y%m%d%H%M%S": (19_000_101_000_000, 21_001_231_235_959),
}  # fmt: skip
LIKE_SECONDS = "%y%m%d%H%M"  # of 2010 to 2028 they are as long as the seconds of these years, of which few are such
FEWEST_DAYS, MOST_NO_DAYS = 20, 0.01  # of times as one number: different ones, and the share of those that are none
EPOCH_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # of one second
FIRST_SECOND, LAST_SECOND = 631_152_000, 2_840_140_800  # 1990 to 2060: times elsewhere are of a file's own notion
TIME_NAME = re.compile(
    r"(^|[^a-z])(time|timestamp|ts|date|datetime|epoch|at|when|day|datum|zeit|zeitpunkt|zeitstempel|fecha"
    r"|created|updated|modified)([^a-z]|$)"
)
UHR = " Uhr"  # behind a time of day, in German
CLOCK = (
    r"\d{1,2}(?P<minute>[:h]\d{1,2})(?P<second>:\d{1,2})?(?P<fraction>\.\d{1,9})?"
    r"(?P<half>(?P<blank> ?)[AaPp]\.?[Mm]\.?)?"
)
# Behind a date; an abbreviation such as EST is of several zones, so it is text of the format.
ZONE = r"(?P<zone>(?P<apart> ?)(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?(?P<abbreviation> [A-Z]{2,5})?"
NAME, DAY = MONTH_NAME, rf"\d{{1,2}}{DAY_ENDING}"
DAYS = (
    (r"\d{4}(?P<sign>[-./])\d{1,2}(?P=sign)\d{1,2}", ("%Y{0}%m{0}%d",)),
    (r"\d{1,2}(?P<sign>\.)\d{1,2}\.\d{4}", ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y")),
    (r"\d{1,2}(?P<sign>[-/])\d{1,2}(?P=sign)\d{4}", ("%m{0}%d{0}%Y", "%d{0}%m{0}%Y")),
    (r"\d{1,2}(?P<sign>\.)\d{1,2}\.\d{2}", ("%d{0}%m{0}%y", "%m{0}%d{0}%y", "%y{0}%m{0}%d", "%y{0}%d{0}%m")),
    (r"\d{1,2}(?P<sign>-)\d{1,2}-\d{2}", ("%m{0}%d{0}%y", "%d{0}%m{0}%y", "%y{0}%m{0}%d")),
    (r"\d{1,2}(?P<sign>/)\d{1,2}/\d{2}", ("%m{0}%d{0}%y", "%d{0}%m{0}%y", "%y{0}%m{0}%d")),
    (rf"{DAY}(?P<sign>[-/ ]){NAME}\.?(?P=sign)\d{{4}}", ("%d{0}%b{0}%Y",)),
    (rf"{DAY}(?P<sign>[-/ ]){NAME}\.?(?P=sign)\d{{2}}", ("%d{0}%b{0}%y",)),
    (rf"{DAY}(?P<sign> ){NAME}\.?, \d{{4}}", ("%d{0}%b, %Y",)),
    (rf"{NAME}\.?(?P<sign>[-/ ]){DAY}(?P=sign)\d{{4}}", ("%b{0}%d{0}%Y",)),
    (rf"{NAME}\.?(?P<sign> ){DAY}, \d{{4}}", ("%b{0}%d, %Y",)),
    (rf"{NAME}\.?(?P<sign> ){DAY}, \d{{2}}", ("%b{0}%d, %y",)),
    (rf"\d{{4}}(?P<sign>[-/ ]){NAME}\.?(?P=sign){DAY}", ("%Y{0}%b{0}%d",)),
    (r"(?:19|20)\d{2}(?P<sign>[-/]|[- ]?M)(?:0[1-9]|1[0-2])", ("%Y{0}%m",)),
    (r"(?:19|20)\d{2}(?P<sign>[- ]?M)[1-9]", ("%Y{0}%m",)),
    (r"\d{1,2}(?P<sign>[-/])(?:19|20)\d{2}", ("%m{0}%Y",)),
    (rf"{NAME}\.?(?P<sign>[- ]?)(?:19|20)\d{{2}}", ("%b{0}%Y",)),
    (rf"(?:19|20)\d{{2}}(?P<sign>[- ]){NAME}\.?", ("%Y{0}%b",)),
    (r"(?:19|20)\d{2}(?P<sign>[- ]?[Qq])[1-4]", ("%Y{0}%q",)),
    (r"(?P<sign>[Qq])[1-4](?P<between>[-/ ]?)(?:19|20)\d{2}", ("{0}%q{1}%Y",)),
    (r"[1-4](?P<sign>[- ]?[Qq][- ]?)(?:19|20)\d{2}", ("%q{0}%Y",)),
    (r"(?:19|20)\d{2}(?P<sign>[- ]?[Ww])\d{1,2}", ("%G{0}%V",)),
    (r"(?P<sign>K?W ?)\d{1,2}(?P<between>[-/ ])(?:19|20)\d{2}", ("{0}%V{1}%G",)),
    (rf"{DAY}(?P<sign>\. ){NAME}\.? \d{{4}}", ("%d{0}%b %Y",)),
    (rf"{DAY}(?P<sign> de ){NAME}\.? de \d{{4}}", ("%d{0}%b de %Y",)),
    (rf"\d{{2}}(?P<sign>){NAME}\d{{4}}", ("%d%b%Y",)),  # as SAS writes it
    (rf"{NAME}\.?(?P<sign>[- ])\d{{2}}", ("%b{0}%y",)),
    (rf"\d{{2}}(?P<sign>[- ]){NAME}\.?", ("%y{0}%b",)),
)
# Quantities as large as milliseconds and microseconds are.
QUANTITY_NAME = re.compile(
    r"amount|balance|betrag|budget|bytes|capital|cents?($|[^a-z])|cost|count|debt|earning|einkommen|fee|gehalt|gdp|income"
    r"|kosten|pay(ment|roll)?($|[^a-z])|population|preis|price|profit|revenue|salar|sales|size|sum($|[^a-z])|summe|total"
    r"|turnover|umsatz|value|volume|wage|wealth|worth"
)
WEEKDAY = re.compile(r"(?i:mon|tue|wed|thu|fri|sat|sun)[A-Za-z]*\.?(,? )")
YEAR_LAST = rf"[A-Za-z]{{3,9}} \d{{1,2}} {CLOCK}{ZONE} \d{{4}}"  # Jun 12 14:05:00 1998, as of C's ctime
YEAR_NAME = re.compile(r"year|jahr|(^|[^a-z])(an|ano|año|anno)([^a-z]|$)")
FIRST_LOOK = 200
ZONED = re.compile(r"^\s*(.*\d:\d.*) ([A-Z]{2,5})\s*$")
MONTHS_OF_YEARS = ("%b-%y", "%b %y", "%y-%b", "%y %b")  # or days without a year
MOST_DAYS = 31
DECEMBER = 335  # the day of the year that it begins with


@dataclass(frozen=True)
class Written:
    """How times are written.

    Parameters
    ----------
    dtype
        The type for `inputs`, such as `datetime[%d.%m.%Y]`.
    values
        float64 microseconds since 1970.
    either
        Whether day and month could be the other way round in every row.
    others
        Formats with the year in another place that fit every row too.
    """

    dtype: str
    values: np.ndarray
    either: bool = False
    others: tuple[str, ...] = ()


def written_dates(known: pd.Series, lenient: bool) -> Written | None:
    """The format of a column of text; None where no one format fits every field.

    Where day and month could be either in all rows, the day is what is the same in all of them, over several years;
    else the day is first where points separate them, else the month. Where the first or the last of three numbers could
    be the year, it is the last, unless times would lie in the future then and otherwise do not.

    Parameters
    ----------
    known
        Text without nulls.
    lenient
        Whether the type takes other fields for null.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.dates import written_dates
    >>> written_dates(pd.Series(["31/12/2024 14:05", "1/2/2025 0:00"]), False).dtype
    'datetime[%d/%m/%Y %H:%M]'
    """
    forms = _formats(known.iloc[0].strip())
    if not forms:  # most columns are names
        return None
    texts = known.str.strip()
    distinct = pd.Series(texts.unique(), dtype="str")
    fitting = []
    for form in forms:
        how = time_type(f"datetime[{form}]?")
        assert how is not None
        if bool(of_type(distinct.head(FIRST_LOOK), how)[1].any()):
            continue
        found, wrong = of_type(distinct, how)
        if not bool(wrong.any()) and not (form in MONTHS_OF_YEARS and not _holds_years(distinct)):
            fitting.append((form, dict(zip(distinct, found.astype("float64"), strict=True))))
    if not fitting:
        return None
    if len({form.startswith("%y") for form, _ in fitting}) == 2:
        fitting.sort(key=lambda item: max(item[1].values()) > now_us())
    years = [form.startswith("%y") == fitting[0][0].startswith("%y") for form, _ in fitting]
    alike = (item for item, own in zip(fitting, years, strict=True) if own)
    form, by_text = next((item for item in alike if _on_one_day(np.array([*item[1].values()]))), fitting[0])
    values = texts.map(by_text).to_numpy(dtype="float64")
    others = tuple(other for (other, _), own in zip(fitting, years, strict=True) if not own)
    return Written(f"datetime[{form}]{'?' if lenient else ''}", values, sum(years) > 1, others)


def _on_one_day(moments: np.ndarray) -> bool:
    """Whether all times (microseconds) are of one day of the month, of several months and years."""
    days = moments.astype("int64").astype("datetime64[us]").astype("datetime64[D]")
    months, years = days.astype("datetime64[M]"), days.astype("datetime64[Y]")
    of_month = days - months.astype("datetime64[D]")
    several = [len(np.unique(found)) > 1 for found in (months - years.astype("datetime64[M]"), years)]
    return bool((of_month == of_month[0]).all()) and all(several)


def _holds_years(texts: pd.Series) -> bool:
    """Whether the number beside a month's name (Jan-24) is no day in some text, so that it is a year in all of them."""
    numbers = texts.str.extract(r"(\d{2})")[0].astype("int64")
    return bool(((numbers == 0) | (numbers > MOST_DAYS)).any())


def now_us() -> float:
    """Microseconds since 1970."""
    return float(np.datetime64("now", "us").astype("int64"))


def _formats(text: str) -> list[str]:
    """Formats in which a text may be a time, the likelier one first."""
    if re.match(r"\d{1,2}:\d{2}(?!\d)", text) and (found := re.fullmatch(CLOCK, text)):
        return [_clock(found.groupdict())]
    if text.endswith(UHR) and (found := re.fullmatch(CLOCK, text.removesuffix(UHR))) and not found["half"]:
        return [f"{_clock(found.groupdict())}{UHR}"]
    if weekday := WEEKDAY.match(text):
        return [f"%a{weekday[1]}{form}" for form in _formats(text[weekday.end() :])]
    if found := re.fullmatch(YEAR_LAST, text):
        return [f"%b %d {_clock(found.groupdict())}{_zone(found.groupdict())} %Y"]
    shapes = ((re.fullmatch(f"{days}(?:(?P<gap>,? |T|:){CLOCK}{ZONE})?", text), forms) for days, forms in DAYS)
    found, forms = next((shape for shape in shapes if shape[0]), (None, ()))
    if found is None:
        return []
    parts, clock = found.groupdict(), ""
    if parts["gap"]:
        clock = parts["gap"] + _clock(parts) + _zone(parts)
    return [form.format(parts["sign"], parts.get("between")) + clock for form in forms]


def _clock(parts: dict[str, str | None]) -> str:
    """The format of a time of day."""
    minute = f"{(parts['minute'] or ':')[0]}%M"  # 14h05 is French
    clock = ("%I" if parts["half"] else "%H") + minute + ":%S" * bool(parts["second"]) + ".%f" * bool(parts["fraction"])
    return clock + (f"{parts['blank']}%p" if parts["half"] else "")


def _zone(parts: dict[str, str | None]) -> str:
    """The format of what stands behind a time."""
    return (f"{parts['apart']}%z" if parts["zone"] else "") + (parts["abbreviation"] or "")


def abbreviations(known: pd.Series) -> list[str]:
    """Abbreviations of zones that stand behind times, where all of the fields are such times.

    Parameters
    ----------
    known
        Text without nulls.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.dates import abbreviations
    >>> abbreviations(pd.Series(["2024-01-31 14:05 EST", "2024-07-31 14:05 EDT"]))
    ['EDT', 'EST']
    """
    if not all(ZONED.search(text) for text in known.head(FIRST_TEXTS)):
        return []
    parts = known.drop_duplicates().str.extract(ZONED)
    if bool(parts[1].isna().any()) or bool(parts[1].isin(["AM", "PM"]).any()) or written_dates(parts[0], False) is None:
        return []
    return sorted(set(parts[1]))


def has_offsets(known: pd.Series) -> bool:
    """Whether some of the times end in an offset from UTC, behind which a year may stand."""
    return bool(found_in(known, r"^.*\d:\d.*[+-]\d{2}:?\d{2}( \d{4})?\s*$").any())


def is_iso(known: pd.Series) -> bool:
    """Whether every field is ISO 8601, which the type datetime reads."""
    return all_match(known, ISO_8601)


def counted(name: str, known: np.ndarray, whole: bool, code: bool) -> tuple[str, bool]:
    """The type of numbers that are times of 1990 to 2060 since 1970, times such as 20241231 and 20241231235959, or days
    such as 2024366 (the day of the year), and whether their size alone says so; the type is empty where they are none.

    Seconds and nanoseconds by the column's name alone, as other numbers and ids are as long; the others also by their
    size, where the name is none of a quantity. Of times such as 20241231 a few may be none, such as 99999999, which are
    null then; without a name they are different ones, as hardly any other numbers are all days of the calendar. What
    size alone takes for days has a type that makes null of later numbers that are none.

    Parameters
    ----------
    name
        Of the column, in lower case.
    known
        float64, without NaN.
    whole
        Whether all are whole.
    code
        Whether the column is named as one of ids.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.dates import counted
    >>> counted("seen at", np.array([1.7e9]), True, False), counted("x", np.array([1.7e12]), True, False)
    (('datetime[s]', False), ('datetime[ms]', True))
    >>> counted("salary_cents", np.array([1.7e12]), True, False)
    ('', False)
    """
    named = bool(TIME_NAME.search(name))
    if not len(known) or code or not (whole or named):
        return "", False
    low, high = known.min(), known.max()
    for form, (first, last) in DIGITS.items():
        if not whole or ((known < first) | (known > last)).mean() > MOST_NO_DAYS:
            continue
        sure = named and form != LIKE_SECONDS
        if not sure and (len(np.unique(known)) < FEWEST_DAYS or (not named and QUANTITY_NAME.search(name))):
            continue
        how = time_type(f"datetime[{form}]?")
        assert how is not None
        wrong = of_type(pd.Series(known), how)[1].mean()
        if wrong <= MOST_NO_DAYS:
            return f"datetime[{form}]{'?' if wrong or not named else ''}", not named
    if whole and low >= 1_990_001 and high <= 2_060_366 and (named or not QUANTITY_NAME.search(name)):
        how = time_type("datetime[%Y%j]?")
        assert how is not None
        years, days = known // 1000, known % 1000
        sure = named or (years.max() > years.min() and days.max() >= DECEMBER)  # numbers such as 2024017 are ids too
        if not sure or of_type(pd.Series(known), how)[1].any():
            return "", False
        return ("datetime[%Y%j]", False) if named else ("datetime[%Y%j]?", True)
    for unit, second in EPOCH_UNITS.items():
        by_size = unit in ("ms", "us") and not QUANTITY_NAME.search(name)
        within = low >= FIRST_SECOND * second and high < LAST_SECOND * second
        if within and (named or by_size) and (whole or unit == "s"):
            return f"datetime[{unit}]", not named
    return "", False
