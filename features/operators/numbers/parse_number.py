"""ParseNumber: numbers out of text with currency signs, units and separators of thousands."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gigabatch.features.columns.numbers import FLOAT_TEXT
from gigabatch.features.columns.times import holds_text
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.reading.sources import cast, cast_text

SEPARATORS = "Set decimal and thousands to what the column means by them."
WITHIN = "Where it is the decimal sign, set decimal to it and remove without it."
SIGNS = ("$", "€", "£", "¥", "%", " ", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}", "\N{THIN SPACE}")
DASHES = "-\N{EN DASH}\N{EM DASH}"  # behind a decimal sign they stand for no cents
MINUS, APOSTROPHE = "\N{MINUS SIGN}", "\N{RIGHT SINGLE QUOTATION MARK}"


class ParseNumber(ColumnOperator):
    """Read numbers that are written as text, such as "$1,234.50", "1.234,50 €", "12 %" or "(3)".

    Of what `remove` names, words are taken away as whole words at an end of the number, signs wherever they stand, but
    those of currencies and % not between digits ("5€50"), and blanks, but between two digits only before groups of
    three. A number without a sign in one pair of parentheses is negative, and one with a minus behind it ("5-"). A dash
    behind the decimal sign stands for no cents ("5.-"). What `scales` names is taken off the end, separators of
    thousands are taken away where they stand before groups of three digits, the first of which begins with no 0, commas
    also in groups of two before the last one (12,34,567), and the decimal sign becomes a point. Nothing is scaled but
    by `scales`: "12 %" is 12. Numbers are taken as they are. The minus may be U+2212, and the apostrophe of thousands
    U+2019. Null stays null, and empty text and `nan`, in any case, become null; `inf` and `infinity` are an infinity;
    but text of which nothing else than what is taken away was there ("$", "%%") is an error. Row-wise.

    Parameters
    ----------
    column
        Text, or numbers.
    output
        Name of the new float64 column; `column` itself by default.
    remove
        Texts that are no part of the number: signs of currencies, units. What holds a letter is a word.
    decimal
        The decimal sign, one character.
    thousands
        The separator of thousands, one character; None for none.
    null_values
        Whole texts that are null.
    scales
        Factors by the text that a number may end in, such as `{k: 1000, M: 1000000}`; the longest that fits is taken.
        By powers of ten "16.1k" is the float nearest to 16100; other factors are multiplied with the float nearest to
        16.1, as a number with an exponent of its own ("1e3k") is.

    Raises
    ------
    DataError
        Signs that are no single character or equal each other, `scales` that are no positive numbers, or text that is
        no number then, such as "$", or "1,5" where the comma separates thousands; the message names the column and the
        text.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import ParseNumber
    >>> ParseNumber("price")(pd.DataFrame({"price": ["$1,234.50", "(3)", "12 %", None]}))["price"].tolist()
    [1234.5, -3.0, 12.0, nan]
    >>> frame = pd.DataFrame({"price": ["1.234,50 EUR", "ask"]})
    >>> ParseNumber("price", remove=["EUR", " "], decimal=",", thousands=".", null_values=["ask"])(frame)
        price
    0  1234.5
    1     NaN
    >>> frame = pd.DataFrame({"visits": ["12.5k", "3M", "870"]})
    >>> ParseNumber("visits", scales={"k": 1000, "M": 1000000})(frame)["visits"].tolist()
    [12500.0, 3000000.0, 870.0]
    """

    reads, writes = ("column",), ("output",)
    by_value = True

    def __init__(
        self,
        column: str,
        output: str | None = None,
        remove: Sequence[str] = SIGNS,
        decimal: str = ".",
        thousands: str | None = ",",
        null_values: Sequence[str] = (),
        scales: Mapping[str, float] | None = None,
    ) -> None:
        for name, sign in (("decimal", decimal), ("thousands", "'" if thousands is None else thousands)):
            if len(sign) != 1 or sign.isalnum() or sign in "+-()":
                raise DataError(f"ParseNumber of {column!r}: {name} is one character, no digit, found {sign!r}.")
        if decimal == thousands:
            raise DataError(f"ParseNumber of {column!r}: decimal and thousands are both {decimal!r}. Set thousands.")
        for name, texts in (("remove", remove), ("null_values", null_values)):
            if isinstance(texts, str) or (name == "remove" and "" in texts):
                raise DataError(f"ParseNumber of {column!r}: {name} is a list of texts, found {texts!r}.")
        if both := [text for text in remove if _of_numbers(text) or text in (decimal, thousands)]:
            raise DataError(f"ParseNumber of {column!r}: remove holds {both[0]!r}, which is part of numbers.")
        if scales is not None and not _is_of_factors(scales):
            raise DataError(
                f"ParseNumber of {column!r}: scales gives a positive number by the text that numbers end in, such as "
                f"{{k: 1000, M: 1000000}}; found {scales!r}."
            )
        self.column, self.output = column, column if output is None else output
        self.remove, self.decimal, self.thousands = tuple(remove), decimal, thousands
        self.null_values = tuple(null_values)
        words = [text for text in self.remove if any(letter.isalpha() for letter in text)]
        self._words = [_Word.of(text, decimal, thousands) for text in sorted(words, key=len, reverse=True)]
        # Patterns that are taken away one after the other: signs of one character may go in one pass.
        signs = [text for text in self.remove if text not in words and not text.isspace()]
        single = "".join(re.escape(sign) for sign in signs if len(sign) == 1)
        alone = all(len(sign) == 1 for sign in signs)
        self._signs = ([f"[{single}]"] if single else []) if alone else [re.escape(sign) for sign in signs]
        # Of these, which may be the decimal sign (5€50), none stands between digits.
        self._amounts = "".join(re.escape(sign) for sign in signs if sign == "%" or _is_currency(sign))
        self._blanks = "".join({letter for text in self.remove if text.isspace() for letter in text})
        self.scales = None if scales is None else dict(scales)

    def compute(self, frame: Frame) -> dict[str, Column]:
        column = frame[self.column]
        scaled: list[tuple[Column, float]] = []
        if holds_text(column):
            marks = {self.column: self.decimal}  # of floats among Python's objects
            column, scaled = self._plain(cast_text(frame, self.column, "ParseNumber", marks))
        try:
            number = cast(column.to_frame(self.column), {self.column: "float64"}, "ParseNumber")[self.column]
        except DataError:
            if holds_text(column):
                self._require_no_rest(column.notna() & ~_known(column.str.match(FLOAT_TEXT)), frame[self.column])
            raise
        for rows, factor in scaled:  # what no exponent says
            number = number.where(~rows, number * factor)
        return {self.output: number}

    def _plain(self, text: Column) -> tuple[Column, list[tuple[Column, float]]]:
        """The texts as numbers are written in files, null where they are empty or among `null_values`; and which of
        them are to be multiplied by what."""
        # A row that is served pays for every call, so what no text holds is looked for once.
        number = text.where(~text.isin(list(self.null_values))) if self.null_values else text
        number = number.str.strip()
        if MINUS not in self.remove:
            number = number.str.replace(MINUS, "-", regex=False)
        if self.thousands == "'":
            number = number.str.replace(APOSTROPHE, "'", regex=False)
        for word in self._words:
            number = word.taken_off(number)
        if self._amounts:
            edge = re.escape(self.decimal + (self.thousands or ""))
            within = rf"[0-9{edge}]\s*[{self._amounts}]+\s*[{edge}]?[0-9]"
            wrong = _known(number.str.contains(within, regex=True))
            self._require_none(wrong, text, "where a sign that is no part of numbers stands between digits", WITHIN)
        for sign in self._signs:
            number = number.str.replace(sign, "", regex=True)
        number = number.str.strip()
        if _any_holds(number, "("):
            negative = _known(number.str.match(r"^\([ ]*[^() +-][^()]*\)$"))
            number = number.where(~negative, "-" + number.str.strip("()").str.strip())
        for word in self._words:  # that stood beside signs, parentheses or other words
            number = word.taken_off(number)
        if self._blanks:
            number = self._without_blanks(number, text)
        if bool((dashed := _known(number.str.match(rf"^.*[{DASHES}]$"))).any()):
            decimal, thousands = re.escape(self.decimal), re.escape(self.thousands or "")
            behind = dashed & _known(number.str.match(rf"^[0-9{decimal}{thousands}]*[0-9]-$"))
            no_cents = dashed & _known(number.str.match(rf"^[+-]?[0-9{thousands}]*[0-9]{decimal}[{DASHES}]$"))
            number = number.where(~(behind | no_cents), number.str.slice(0, -1))
            number = number.where(~behind, "-" + number)
        scaled, shifted, bare = [], [], number
        for ending in sorted(self.scales or {}, key=len, reverse=True):
            rows = _known(bare.str.match(rf"^.*[0-9{re.escape(self.decimal)}]{re.escape(ending)}$"))
            if not bool(rows.any()):
                continue
            number = number.where(~rows, number.str.slice(0, -len(ending)))
            bare = bare.where(~rows)  # one ending a number
            factor = (self.scales or {})[ending]
            if (exponent := _power_of_ten(factor)) is not None:
                plain = rows & ~_known(number.str.contains("[eE]", regex=True))
                shifted.append((plain, f"e{exponent}"))
                rows = rows & ~plain
            scaled.append((rows, float(factor)))
        if self.thousands is not None and _any_holds(number, self.thousands):
            thousands, decimal = re.escape(self.thousands), re.escape(self.decimal)
            grouped = f"[1-9][0-9]{{0,2}}({thousands}[0-9]{{3}})+"
            if self.thousands == ",":  # of lakhs and crores; 1.10.234 may be a version
                grouped = f"({grouped}|[1-9][0-9]?(,[0-9]{{2}})+,[0-9]{{3}})"
            grouped = rf"^[+-]?{grouped}({decimal}[0-9]*)?$"
            wrong = _known(number.str.contains(self.thousands, regex=False)) & ~_known(number.str.match(grouped))
            self._require_none(wrong, text, f"where {self.thousands!r} stands before no group of three digits")
            number = number.str.replace(self.thousands, "", regex=False)
        if self.decimal != ".":
            points = _known(number.str.contains(".", regex=False))
            self._require_none(points, text, f"whose point is not the decimal sign {self.decimal!r}")
            number = number.str.replace(self.decimal, ".", regex=False)
        for rows, power in shifted:  # of which the reader of floats makes the nearest one
            number = number.where(~rows, number + power)
        empty = _known(number.isin([""]))
        if bool(empty.any()):  # "$" alone is no amount, and whether it is null only `null_values` can say
            signs = empty & ~_known(text.str.strip().isin([""]))
            self._require_none(signs, text, "of which no number is left", "Name it in null_values if it is null.")
        return number.where(~empty), scaled

    def _without_blanks(self, number: Column, text: Column) -> Column:
        """The texts without the blanks of `remove`; those between digits separate thousands."""
        blank, decimal = f"[{re.escape(self._blanks)}]", re.escape(self.decimal)
        other = "" if self.thousands is None else re.escape(self.thousands)
        if not bool(_known(number.str.contains(blank, regex=True)).any()):
            return number
        separated = rf"[0-9{decimal}{other}]{blank}+[{decimal}{other}]?[0-9]"
        between = _known(number.str.contains(separated, regex=True))
        grouped = rf"^[^0-9]*[1-9][0-9]{{0,2}}({blank}[0-9]{{3}})+({decimal}[0-9]*)?[^0-9]*$"
        wrong = between & ~_known(number.str.match(grouped))
        self._require_none(wrong, text, "where a blank stands before no group of three digits")
        return number.str.replace(blank, "", regex=True)

    def _require_none(self, wrong: Column, text: Column, why: str, advice: str = SEPARATORS) -> None:
        if bool(wrong.any()):
            self._require_no_rest(wrong, text)
            raise DataError(f"ParseNumber: column {self.column!r} holds {_first(text[wrong])!r}, {why}. {advice}")

    def _require_no_rest(self, wrong: Column, text: Column) -> None:
        """Raise `DataError` where something unknown stands beside the number in the first text that is wrong: whatever
        else is said of it, its separators may be right."""
        if not bool(wrong.any()):
            return
        example = str(_first(text[wrong]))
        separators = self.decimal + (self.thousands or "")
        parts = re.fullmatch(rf"([^0-9]*)[0-9](?:[0-9\s{re.escape(separators)}]*[0-9])?([^0-9]*)", example)
        signs = "".join(sign for sign in self.remove if len(sign) == 1 and not sign.isalpha())
        beside = [part.strip(f"{signs} ()") for part in (parts.groups() if parts else ())]
        rest = [part for part in (part.strip("+-").strip() for part in beside) if part.strip(separators)]
        said = f"ParseNumber: column {self.column!r}: {example!r} is not written as a number: "
        if rest and rest[0] not in self.remove:
            raise DataError(
                f"{said}{rest[0]!r} stands beside it. Add that to remove, to scales where it multiplies the number, or "
                "name the whole text in null_values where it stands for null."
            )


@dataclass(frozen=True)
class _Word:
    """Hold a text that is taken off as a whole word, and patterns of texts that begin or end in it. They look neither
    ahead nor behind, which cuDF's patterns cannot."""

    text: str
    front: str
    point: str
    end: str

    @classmethod
    def of(cls, text: str, decimal: str, thousands: str | None) -> _Word:
        # "Rs" is not the word of "Rs.500", of which ".500" would be left.
        separators = re.escape(decimal + (thousands or "")) if text[-1].isalpha() else ""
        return cls(
            text,
            rf"^[+-]?\s*{re.escape(text)}({_border(text[-1])}|$)",
            rf"^[+-]?\s*{re.escape(text)}[{separators}]" if separators else "",
            rf"^(.*{_border(text[0])})?{re.escape(text)}$",
        )

    def taken_off(self, number: Column) -> Column:
        """Texts without the word at their front, behind a sign of plus or minus, and at their end."""
        if not _any_holds(number, self.text):
            return number
        if bool((rows := _known(number.str.match(self.end))).any()):
            number = number.where(~rows, number.str.slice(0, -len(self.text)).str.strip())
            if not _any_holds(number, self.text):
                return number
        rows = _known(number.str.match(self.front))
        if self.point:
            rows = rows & ~_known(number.str.match(self.point))
        return number.where(~rows, number.str.replace(self.text, "", n=1, regex=False).str.strip())


def _first(column: Column) -> Any:
    return engine_of(column).to_pandas(column.head(1).to_frame("text"))["text"].tolist()[0]


def _border(letter: str) -> str:
    """A pattern of what may stand beside a letter where a word begins or ends."""
    return r"(\W|[0-9_])" if letter.isalpha() else "[^0-9]" if letter.isdigit() else "."


def _is_currency(sign: str) -> bool:
    return len(sign) == 1 and unicodedata.category(sign) == "Sc"


def _any_holds(text: Column, part: str) -> bool:
    return bool(_known(text.str.contains(part, regex=False)).any())


def _of_numbers(text: str) -> bool:
    """Whether a text is made of what numbers are written with; "m2" is not."""
    return re.search(r"[0-9+()-]", text) is not None and re.search(r"[^0-9+().,eE-]", text) is None


def _is_of_factors(scales: object) -> bool:
    return isinstance(scales, Mapping) and all(
        isinstance(ending, str) and bool(ending.strip()) and not _of_numbers(ending)
        and not isinstance(factor, bool) and isinstance(factor, int | float) and 0 < factor < math.inf
        for ending, factor in scales.items()
    )  # fmt: skip


def _power_of_ten(factor: float) -> int | None:
    """The exponent of a factor that is a power of ten, as it is written; else None."""
    _, digits, exponent = Decimal(repr(factor)).normalize().as_tuple()
    return int(exponent) if digits == (1,) else None


def _known(flags: Column) -> Column:
    """Flags of texts, false where the text is null."""
    return flags.fillna(False).astype("bool")
