"""Difference: one column less another."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gigabatch.features.columns.numbers import number_parts
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.operators.base import ColumnOperator


class Difference(ColumnOperator):
    """Subtract one column from another, row by row.

    The difference is taken before it is rounded to float32, so that times keep their digits, those in nanoseconds too.
    It is null where either number is null.

    Parameters
    ----------
    left, right
        Columns of numbers or booleans.
    output
        Name of the new float32 column, left - right.

    Raises
    ------
    DataError
        A column holds something else than numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Difference
    >>> frame = pd.DataFrame({"actual": [65, 70], "planned": [60, None]})
    >>> Difference("actual", "planned", "delay")(frame)
       actual  planned  delay
    0      65     60.0    5.0
    1      70      NaN    NaN
    """

    reads, writes = ("left", "right"), ("output",)

    def __init__(self, left: str, right: str, output: str) -> None:
        self.left, self.right, self.output = left, right, output

    def dates(self, names: Collection[str], times: Collection[str]) -> tuple[str, ...]:
        return () if {self.left, self.right} <= set(times) else self.tells(names)

    def compute(self, frame: Frame) -> dict[str, Column]:
        left, right = (number_parts(frame[name], "Difference") for name in (self.left, self.right))
        with np.errstate(all="ignore"):  # infinity less infinity is null
            difference = (left[0] - right[0] + (left[1] - right[1])).astype("float32")
        xp = engine_of(frame).arrays
        return {self.output: engine_of(frame).series(difference, frame, ~xp.isnan(difference))}
