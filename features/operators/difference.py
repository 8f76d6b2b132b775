"""Difference: one column less another."""

from __future__ import annotations

from typing import Any

import numpy as np

from features.frame import engine_of
from features.number_columns import float_values
from features.operators.base import Operator


class Difference(Operator):
    """float32 column `output` = left - right, taken in float64; null where either is null. Row-wise."""

    def __init__(self, left: str, right: str, output: str) -> None:
        self.left, self.right, self.output = left, right, output

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.left, self.right)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    def transform(self, frame: Any) -> Any:
        out = frame.copy(deep=False)
        left, right = (float_values(frame[name], "Difference") for name in (self.left, self.right))
        with np.errstate(all="ignore"):  # infinity less infinity is null
            difference = (left - right).astype("float32")
        xp = engine_of(frame).arrays
        out[self.output] = engine_of(frame).series(difference, frame, ~xp.isnan(difference))
        return out
