"""What may be meant otherwise: numbers that are unknown, days as Excel counts them, weights, two numbers in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from gigabatch.features.columns.time_types import MONTH_NAME, of_type, time_type
from gigabatch.pipeline.init.columns import Seen, is_code_name, spaced_lower
from gigabatch.pipeline.init.dates import MONTHS_OF_YEARS, TIME_NAME
from gigabatch.pipeline.init.texts import all_match

UNKNOWN = re.compile(r"-?(7{2,}|8{2,}|9{2,})(\.9+)?")  # as surveys and loggers write it
DATE_NAME = re.compile(r"(datum|date)$")
FIRST_SERIAL, LAST_SERIAL = 30_000, 60_000  # 1982 to 2064, days since 30 December 1899
WEIGHT_NAME = re.compile(r"(sample|sampling|case|row|survey|instance|observation)[ _.-]?weights?$")
FEWEST = 20  # different days, and texts of two numbers
PAIR = r"\s*(?:0|[1-9][0-9]*)(?:[.,][0-9]+)?\s*{sign}\s*(?:0|[1-9][0-9]*)(?:[.,][0-9]+)?\s*$"
SIGNS = ("/", "-", "x", "×", ":")
MONTH_AND_NUMBER = rf"\s*(?:{MONTH_NAME}\.?[- ]\d{{2}}|\d{{2}}[- ]{MONTH_NAME}\.?)\s*$"


def doubts(shown: str, seen: Seen) -> Iterator[str]:
    """Sentences for the head of the file.

    Parameters
    ----------
    shown
        The column's name in a sentence.
    seen
        What the column holds.
    """
    if seen.kind == "number":
        yield from _serials(shown, seen)
        yield from _weights(shown, seen)
    elif seen.kind == "category" and not is_code_name(seen.name):
        yield from _pairs(shown, seen) if seen.num_values >= FEWEST else ()
        yield from _months(shown, seen)


def unknown_numbers(columns: Mapping[str, Seen]) -> Iterator[str]:
    """One sentence for each number such as -999 that stands for unknown, by its first column.

    Parameters
    ----------
    columns
        By their names in a sentence.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.columns import Seen
    >>> from gigabatch.pipeline.init.doubts import unknown_numbers
    >>> ages = Seen("age", "number", np.array([30.0, 41.0, 999.0, 999.0]))
    >>> next(unknown_numbers({"age": ages}))[:64]
    '999 in age stands in 2 rows, far from all other numbers (30 to 4'
    """
    found: dict[str, list[str]] = {}
    for shown, seen in columns.items():
        for number, told in _unknown(shown, seen) if seen.kind == "number" else ():
            found.setdefault(number, []).append(told)
    for number, all_told in found.items():
        more = f", and so in {len(all_told) - 1:,} more columns" if len(all_told) > 1 else ""
        yield (
            f"{number} in {all_told[0]}{more}. Where it means that nothing is known, add it to null_values as the file "
            "writes it."
        )


def _unknown(shown: str, seen: Seen) -> Iterator[tuple[str, str]]:
    """Numbers such as -999, each in several rows and further from all others than those are from one another."""
    numbers, counts = np.unique(seen.values[~seen.null], return_counts=True)
    # Between others none is further from them than those are from one another, so that the ends tell.
    first = next(_places_of_others(numbers, counts, range(len(numbers))), len(numbers))
    last = next(_places_of_others(numbers, counts, range(len(numbers) - 1, first, -1)), first)
    if first == last:
        return
    low, high = numbers[first], numbers[last]
    for place in (*range(first), *range(last + 1, len(numbers))):
        if max(low - numbers[place], numbers[place] - high) > high - low:
            told = f"{shown} stands in {counts[place]:,} rows, far from all other numbers ({low:.6g} to {high:.6g})"
            yield f"{numbers[place]:.12g}", told


def _places_of_others(numbers: np.ndarray, counts: np.ndarray, places: range) -> Iterator[int]:
    """Those of these places whose number stands for itself."""
    return (place for place in places if counts[place] == 1 or not UNKNOWN.fullmatch(f"{numbers[place]:.12g}"))


def _serials(shown: str, seen: Seen) -> Iterator[str]:
    name, known = spaced_lower(seen.name), seen.values[~seen.null]
    if not (TIME_NAME.search(name) or DATE_NAME.search(name)) or seen.num_values < FEWEST:
        return
    if known.min() >= FIRST_SERIAL and known.max() < LAST_SERIAL:
        first, last = (str(np.datetime64("1899-12-30") + int(days)) for days in (known.min(), known.max()))
        yield (
            f"Numbers of {shown} ({known.min():.12g} to {known.max():.12g}) may be days as Excel counts them, {first} "
            f"to {last}. Where they are, write dates in the file."
        )


def _weights(shown: str, seen: Seen) -> Iterator[str]:
    if WEIGHT_NAME.search(spaced_lower(seen.name)) and seen.values[~seen.null].min() >= 0:
        yield (
            f"{shown} is taken for a feature. Where it says how much each row counts, set it as weight under features "
            "and take it out of continuous."
        )


def _months(shown: str, seen: Seen) -> Iterator[str]:
    """Texts such as Jan-24, which may be January of 2024 or a day of January; one of a number beyond 31 would tell."""
    texts = seen.texts.distinct
    if not len(texts) or not all_match(texts, MONTH_AND_NUMBER):
        return
    for form in MONTHS_OF_YEARS:
        how = time_type(f"datetime[{form}]?")
        if how is not None and not bool(of_type(texts, how)[1].any()):
            yield (
                f"Texts of {shown} ({texts[0]!r}) may be months with their years or days without them, and are "
                f"categories. Where they are months, put datetime[{form}] for the column under inputs."
            )


def _pairs(shown: str, seen: Seen) -> Iterator[str]:
    texts = seen.texts.distinct
    if any(all_match(texts, PAIR.format(sign=sign)) for sign in SIGNS):
        yield (
            f"{shown} holds two numbers in each text ({texts[0]!r}), and each of its {seen.num_values:,} texts is "
            "a value of its own. Write two columns in the file, or make them by a step lambda_function "
            "(docs/own_code.md)."
        )
