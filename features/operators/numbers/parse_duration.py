"""ParseDuration: seconds out of text such as 02:13 or 1:02:13."""

from __future__ import annotations

from collections.abc import Sequence

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


class ParseDuration(ColumnOperator):
    """Read durations, or times of day, that are written with colons, as seconds.

    Three parts are hours, minutes and seconds; what two parts are `short` says. Seconds may have a fraction, and a
    duration a minus sign. Numbers are taken as they are. Null stays null, and empty text becomes null. Row-wise.

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
        if bool(wrong.any()):
            example = engine_of(text).to_pandas(text[wrong].head(1).to_frame("text"))["text"].tolist()[0]
            raise DataError(
                f"ParseDuration: column {self.column!r} holds {example!r}, which is not written as {self.short} or "
                "hh:mm:ss. Correct short, or name the text under null_values."
            )
        bare = text.str.replace("-", "", regex=False)
        bare = bare.where(_known(bare.str.count(":") == 2), front + bare + behind)
        parts = bare.str.extract("^([0-9]+):([0-9]+):([0-9.]+)$")
        hours, minutes, seconds = (parts[place].astype("float64") for place in (0, 1, 2))
        found = hours * 3600 + minutes * 60 + seconds
        return {self.output: found.where(~_known(text.str.startswith("-")), -found)}


def _known(flags: Column) -> Column:
    """Flags of texts, false where the text is null."""
    return flags.fillna(False).astype("bool")
