"""CleanText: text without blanks at its ends, in one case, and with other words for some."""

from __future__ import annotations

from collections.abc import Mapping

from gigabatch.features.columns.times import is_dates
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.reading.sources import cast_text
from gigabatch.features.setting_checks import require_whole

CASES = ("lower", "upper")


class CleanText(ColumnOperator):
    """Make one category of texts that differ in blanks, case or spelling alone.

    First blanks are taken off both ends, then the case is changed, then zeros are put before short numbers, then whole
    texts are replaced; what is empty at the
    end is null. Null stays null. Numbers and booleans are taken as their text, whole floats without a point (3.0 is
    `3`). Letters change case one by one (İ becomes i). Row-wise.

    Parameters
    ----------
    column
        Text.
    output
        Name of the new column of text; `column` itself by default.
    strip
        Whether blanks (also tabs and line breaks) are taken off both ends.
    case
        `lower` or `upper`; None leaves letters as they are.
    replace
        Other texts, or None for null, by whole texts as they are after `strip` and `case`; parts of texts stay. All
        are replaced at once, so that two can change places.
    width
        Texts of fewer digits, and nothing else, get zeros in front: with 5, a zip code that came as the number 1067 is
        01067. None for no zeros.

    Raises
    ------
    DataError
        An unknown `case`, a `width` that is no whole number from 1 to 100, nothing to do, a `replace` that is no
        mapping from text to text or null, a column that is no text, or floats of 2^53 and beyond.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import CleanText
    >>> frame = pd.DataFrame({"country": ["US", "us ", "u.s.", "unknown", " "]})
    >>> CleanText("country", case="lower", replace={"u.s.": "us", "unknown": None})(frame)["country"].tolist()
    ['us', 'us', 'us', nan, nan]
    """

    reads, writes = ("column",), ("output",)
    by_value = True

    def __init__(
        self,
        column: str,
        output: str | None = None,
        strip: bool = True,
        case: str | None = None,
        replace: Mapping[str, str | None] | None = None,
        width: int | None = None,
    ) -> None:
        if case is not None and case not in CASES:
            raise DataError(f"CleanText of {column!r}: unknown case {case!r}. Known: {', '.join(CASES)}.")
        if replace is not None and not _is_of_texts(replace):
            raise DataError(
                f"CleanText of {column!r}: replace gives a text or null by text, such as {{n/a: null, ny: new york}}; "
                f"found {replace!r}. Put numbers and yes or no in quotes."
            )
        if width is not None:
            require_whole(f"CleanText of {column!r}", "width", width, 100)
        if not strip and case is None and not replace and width is None:
            raise DataError(f"CleanText of {column!r}: nothing to do. Set strip, case, replace or width.")
        self.column, self.output = column, column if output is None else output
        self.strip, self.case, self.replace = strip, case, None if replace is None else dict(replace)
        self.width = width

    def compute(self, frame: Frame) -> dict[str, Column]:
        if is_dates(frame[self.column]) and bool(frame[self.column].notna().any()):
            raise DataError(f"CleanText: column {self.column!r} holds dates or times, no text. Leave it out.")
        text = cast_text(frame, self.column, "CleanText")
        if self.strip:
            text = text.str.strip()
        if self.case is not None:
            # Arrow makes another letter of ß in some versions, and Python SS: a category must not hang on that.
            text = text.str.lower() if self.case == "lower" else text.str.replace("ß", "SS", regex=False).str.upper()
        if self.width is not None:
            digits = text.str.match(r"^[0-9]+$").fillna(False).astype("bool")
            text = text.where(~digits, text.str.zfill(self.width))
        found = text
        for old, new in (self.replace or {}).items():
            others = ~text.isin([old])
            found = found.where(others) if new is None else found.where(others, new)
        return {self.output: found.where(~found.isin([""]))}


def _is_of_texts(replace: object) -> bool:
    return isinstance(replace, Mapping) and all(
        isinstance(old, str) and (new is None or isinstance(new, str)) for old, new in replace.items()
    )
