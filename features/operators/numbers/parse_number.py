"""ParseNumber: numbers out of text with currency signs, units and separators of thousands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gigabatch.features.columns.times import is_text
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.reading.sources import cast

SIGNS = ("$", "€", "£", "¥", "%", " ", "\N{NO-BREAK SPACE}")


class ParseNumber(ColumnOperator):
    """Read numbers that are written as text, such as "$1,234.50", "1.234,50 €", "12 %" or "(3)".

    What `remove` names is taken away wherever it stands, a number in parentheses is negative, separators of thousands
    are taken away where they stand before groups of three digits, and the decimal sign becomes a point. Nothing is
    scaled: "12 %" is 12. Numbers are taken as they are. Null stays null, and empty text becomes null. Row-wise.

    Parameters
    ----------
    column
        Text, or numbers.
    output
        Name of the new float64 column; `column` itself by default.
    remove
        Texts that are no part of the number: signs of currencies, units.
    decimal
        The decimal sign, one character.
    thousands
        The separator of thousands, one character; None for none.
    null_values
        Whole texts that are null.

    Raises
    ------
    DataError
        Signs that are no single character or equal each other, or text that is no number then, such as "1,5" where the
        comma separates thousands; the message names the column and the text.

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
    """

    reads, writes = ("column",), ("output",)

    def __init__(
        self,
        column: str,
        output: str | None = None,
        remove: Sequence[str] = SIGNS,
        decimal: str = ".",
        thousands: str | None = ",",
        null_values: Sequence[str] = (),
    ) -> None:
        for name, sign in (("decimal", decimal), ("thousands", "'" if thousands is None else thousands)):
            if len(sign) != 1 or sign.isalnum() or sign in "+-()":
                raise DataError(f"ParseNumber of {column!r}: {name} is one character, no digit, found {sign!r}.")
        if decimal == thousands:
            raise DataError(f"ParseNumber of {column!r}: decimal and thousands are both {decimal!r}. Set thousands.")
        for name, texts in (("remove", remove), ("null_values", null_values)):
            if isinstance(texts, str) or (name == "remove" and "" in texts):
                raise DataError(f"ParseNumber of {column!r}: {name} is a list of texts, found {texts!r}.")
        if both := [text for text in remove if re.search(r"[0-9+()-]", text) or text in (decimal, thousands)]:
            raise DataError(f"ParseNumber of {column!r}: remove holds {both[0]!r}, which is part of numbers.")
        self.column, self.output = column, column if output is None else output
        self.remove, self.decimal, self.thousands = tuple(remove), decimal, thousands
        self.null_values = tuple(null_values)
        # Patterns that are taken away one after the other: signs of one character may go in one pass.
        single = "".join(re.escape(sign) for sign in self.remove if len(sign) == 1)
        alone = all(len(sign) == 1 for sign in self.remove)
        self._signs = ([f"[{single}]"] if single else []) if alone else [re.escape(sign) for sign in self.remove]

    def compute(self, frame: Frame) -> dict[str, Column]:
        column = frame[self.column]
        if is_text(column):
            column = self._plain(cast(frame[[self.column]], {self.column: "string"}, "ParseNumber")[self.column])
        plain = column.to_frame(self.column)
        return {self.output: cast(plain, {self.column: "float64"}, "ParseNumber")[self.column]}

    def _plain(self, text: Column) -> Column:
        """The texts as numbers are written in files; null where they are empty or among `null_values`."""
        # A row that is served pays for every call, so what no text holds is looked for once.
        number = text.where(~text.isin(list(self.null_values))) if self.null_values else text
        for sign in self._signs:
            number = number.str.replace(sign, "", regex=True)
        number = number.str.strip()
        if _any_holds(number, "("):
            negative = _known(number.str.startswith("(")) & _known(number.str.endswith(")"))
            number = number.where(~negative, "-" + number.str.strip("()"))
        if self.thousands is not None and _any_holds(number, self.thousands):
            thousands, decimal = re.escape(self.thousands), re.escape(self.decimal)
            grouped = rf"^[+-]?[0-9]{{1,3}}({thousands}[0-9]{{3}})+({decimal}[0-9]*)?$"
            wrong = _known(number.str.contains(self.thousands, regex=False)) & ~_known(number.str.match(grouped))
            self._require_none(wrong, text, f"where {self.thousands!r} stands before no group of three digits")
            number = number.str.replace(self.thousands, "", regex=False)
        if self.decimal != ".":
            points = _known(number.str.contains(".", regex=False))
            self._require_none(points, text, f"whose point is not the decimal sign {self.decimal!r}")
            number = number.str.replace(self.decimal, ".", regex=False)
        return number.where(~number.isin([""]))

    def _require_none(self, wrong: Column, text: Column, why: str) -> None:
        if bool(wrong.any()):
            example = engine_of(text).to_pandas(text[wrong].head(1).to_frame("text"))["text"].tolist()[0]
            raise DataError(
                f"ParseNumber: column {self.column!r} holds {example!r}, {why}. Set decimal and thousands to what the "
                "column means by them."
            )


def _any_holds(text: Column, part: str) -> bool:
    return bool(_known(text.str.contains(part, regex=False)).any())


def _known(flags: Column) -> Column:
    """Flags of texts, false where the text is null."""
    return flags.fillna(False).astype("bool")
