"""ParseDuration: seconds out of text such as 02:13 or 1:02:13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.columns.times import holds_text
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.reading.sources import cast, cast_text

SIXTY = "[0-5]?[0-9]"
FRACTION = "([.][0-9]{1,9})?"
# By `short`: what two parts look like, and what stands before and behind them where all three are given.
SHORT = {"mm:ss": (f"[0-9]{{1,9}}:{SIXTY}{FRACTION}", "0:", ""), "hh:mm": (f"[0-9]{{1,9}}:{SIXTY}", "", ":00")}
LONG = f"[0-9]{{1,9}}:{SIXTY}:{SIXTY}{FRACTION}"
# In lower case. Of negative days the time is added, as Python and pandas write it ("-1 day, 23:00:00",
# "-1 days +23:00:00"); behind a blank alone it may be meant either way.
DAYS_AND_CLOCK = (
    rf"([0-9]{{1,9}} ?(?:days|day|d)(?:,? \+?| ?\+)|-[0-9]{{1,9}} ?(?:days|day|d)(?:, | ?\+))"
    rf"([0-9]{{1,2}}):({SIXTY})(?::({SIXTY}(?:[.][0-9]{{1,9}})?))?"
)
SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
WORDS = ("days|day|d", "hours|hour|hrs|hr|h", "minutes|minute|mins|min|m", "seconds|second|secs|sec|s")
BLANK = " \t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
COUNT = "([0-9]{1,9}(?:[.][0-9]{1,9})?)"
IN_UNITS = "".join(f"(?:{COUNT}[{BLANK}]*(?:{words})[.]?(?:[,{BLANK}]|and)*)?" for words in WORDS)
ISO_PART = "(?:[0-9]{1,9}(?:[.][0-9]{1,9})?"
ISO = f"p{ISO_PART}d)?(?:t{ISO_PART}h)?{ISO_PART}m)?{ISO_PART}s)?)?"


class ParseDuration(ColumnOperator):
    """Read durations, or times of day, that are written with colons or with units, as seconds.

    Three parts between colons are hours, minutes and seconds; what two parts are `short` says. Days may stand before
    them ("2 days 03:00:00", "1 day, 2:03:04"), before two parts under `hh:mm` alone; of negative days only as Python
    and pandas write them ("-1 days +23:00:00" is an hour back). Units are days, hours, minutes and seconds in this
    order, as letters or English words in any case ("5h 52m", "1 hr 20 min"; m is minutes), or as ISO 8601 has them
    ("PT5H52M"). Seconds and counts of units may have a fraction, and a duration a minus sign. Numbers are taken as they
    are. Null stays null, and empty text becomes null. Row-wise.

    Parameters
    ----------
    column
        Text, or numbers of seconds.
    output
        Name of the new float64 column of seconds; `column` itself by default.
    short
        What two parts are: `mm:ss` or `hh:mm`.
    null_values
        Whole texts that are null.

    Raises
    ------
    DataError
        An unknown `short`, or text that is no duration, such as "1:75"; the message names the column and the text.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import ParseDuration
    >>> frame = pd.DataFrame({"length": ["02:13", "1:02:13", None]})
    >>> ParseDuration("length")(frame)["length"].tolist()
    [133.0, 3733.0, nan]
    >>> ParseDuration("length", short="hh:mm")(frame)["length"].tolist()
    [7980.0, 3733.0, nan]
    >>> ParseDuration("length")(pd.DataFrame({"length": ["5h 52m", "PT30M", "1 days 00:00:01.5"]}))["length"].tolist()
    [21120.0, 1800.0, 86401.5]
    """

    reads, writes = ("column",), ("output",)
    by_value = True

    def __init__(
        self, column: str, output: str | None = None, short: str = "mm:ss", null_values: Sequence[str] = ()
    ) -> None:
        if short not in SHORT:
            raise DataError(f"ParseDuration of {column!r}: unknown short {short!r}. Known: {', '.join(SHORT)}.")
        if isinstance(null_values, str):
            raise DataError(f"ParseDuration of {column!r}: null_values is a list of texts, found {null_values!r}.")
        self.column, self.output = column, column if output is None else output
        self.short, self.null_values = short, tuple(null_values)

    def compute(self, frame: Frame) -> dict[str, Column]:
        column = frame[self.column]
        if not holds_text(column):
            return {self.output: cast(frame[[self.column]], {self.column: "float64"}, "ParseDuration")[self.column]}
        text = cast_text(frame, self.column, "ParseDuration")
        text = text.where(~text.isin(list(self.null_values))).str.strip()
        text = text.where(~text.isin([""]))
        two_parts, front, behind = SHORT[self.short]
        wrong = text.notna() & ~_known(text.str.match(f"^-?({two_parts}|{LONG})$"))
        worded, others = wrong, None
        if bool(worded.any()):
            others, wrong = self._worded(text.where(worded, "0s").str.lower())
        if bool(wrong.any()):
            example = engine_of(text).to_pandas(text[wrong].head(1).to_frame("text"))["text"].tolist()[0]
            raise DataError(
                f"ParseDuration: column {self.column!r} holds {example!r}, which is not written as {self.short} or "
                "hh:mm:ss, nor with units. Correct short, or name the text under null_values."
            )
        if others is not None:
            text = text.where(~worded, "0:0:0")
        bare = text.str.replace("-", "", regex=False)
        bare = bare.where(_known(bare.str.count(":") == 2), front + bare + behind)
        parts = bare.str.extract("^([0-9]+):([0-9]+):([0-9.]+)$")
        hours, minutes, seconds = (parts[place].astype("float64") for place in (0, 1, 2))
        found = hours * 3600 + minutes * 60 + seconds
        found = found.where(~_known(text.str.startswith("-")), -found)
        return {self.output: found if others is None else found.where(~worded, others)}

    def _worded(self, text: Column) -> tuple[Column, Column]:
        """Seconds of texts in lower case with units or days, and which texts are neither."""
        long = text.str.extract(f"^{DAYS_AND_CLOCK}$")
        is_long = long[0].notna()
        if self.short != "hh:mm":
            is_long = is_long & long[3].notna()
        iso = _known(text.str.match(f"^-?{ISO}$")) & _known(text.str.match("^.*[dhms]$"))
        bare = text.where(~iso, text.str.replace("[pt]", "", regex=True)).str.replace("^-", "", regex=True)
        units = bare.str.extract(f"^{IN_UNITS}$")
        is_units = units[0].notna() | units[1].notna() | units[2].notna() | units[3].notna()
        is_units = is_units & ~is_long & ~_known(text.str.match("^.*(,|and)$"))
        days = long[0].fillna("0").str.replace("[^0-9-]", "", regex=True).astype("float64")
        clock = [long[place].fillna("0").astype("float64") for place in (1, 2, 3)]
        parts = [units[place].fillna("0").astype("float64") for place in range(4)]
        found = _seconds(parts)
        found = found.where(~_known(text.str.startswith("-")), -found)
        return found.where(~is_long, _seconds([days, *clock])), ~(is_long | is_units)


def _seconds(parts: list[Column]) -> Any:
    """Seconds of days, hours, minutes and seconds."""
    days, hours, minutes, seconds = parts
    return days * SECONDS["d"] + hours * SECONDS["h"] + minutes * SECONDS["m"] + seconds


def _known(flags: Column) -> Column:
    """Flags of texts, false where the text is null."""
    return flags.fillna(False).astype("bool")
