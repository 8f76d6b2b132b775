"""Log: the logarithm of a column."""

from __future__ import annotations

import math

import numpy as np

from gigabatch.features.columns.numbers import float_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator

INVALID = ("error", "null")


class Log(ColumnOperator):
    """Take the natural logarithm of a column plus an offset.

    It is computed in float64 and rounded to float32. Null (and NaN) stays null; plus infinity stays one, for
    `FillMissing` to refuse by name. Row-wise.

    Parameters
    ----------
    column
        Numbers or booleans.
    output
        Name of the new float32 column; `column` itself by default.
    offset
        Finite number that is added first.
    invalid
        What happens where x + offset is not above 0: `error` refuses the column, `null` makes those rows null.

    Raises
    ------
    DataError
        An unknown `invalid`, an offset that is not finite, a column that holds something else than numbers, or, with
        `invalid="error"`, rows without a logarithm; the message says how many.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Log
    >>> Log("fare", "log_fare")(pd.DataFrame({"fare": [0.0, 99.0, None]}))
       fare  log_fare
    0   0.0   0.00000
    1  99.0   4.60517
    2   NaN       NaN
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, output: str | None = None, offset: float = 1.0, invalid: str = "error") -> None:
        if invalid not in INVALID:
            raise DataError(f"Log of {column!r}: unknown invalid={invalid!r}. Known: {', '.join(INVALID)}.")
        if not math.isfinite(offset):
            raise DataError(f"Log of {column!r}: offset must be a finite number, found {offset}.")
        self.column, self.output = column, column if output is None else output
        self.offset, self.invalid = offset, invalid

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        xp = engine.arrays
        values = float_values(frame[self.column], "Log")
        invalid = values + self.offset <= 0
        if self.invalid == "error" and bool(invalid.any()):
            raise DataError(
                f"Log: column {self.column!r} + {self.offset} is not above 0 in {int(invalid.sum())} row(s). Choose a "
                "larger offset, clip the column, or set invalid='null'."
            )
        with np.errstate(all="ignore"):  # what is undefined becomes null below
            # log1p keeps the digits of a small x that x + 1 would round away.
            logs = xp.log1p(values) if self.offset == 1 else xp.log(values + self.offset)
        valid = ~(invalid | xp.isnan(values))
        return {self.output: engine.series(logs.astype("float32"), frame, valid)}
