"""Difference: one column less another."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import float_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.operators.base import ColumnOperator


class Difference(ColumnOperator):
    """float32 column `output` = left - right, taken in float64; null where either is null. Row-wise."""

    reads, writes = ("left", "right"), ("output",)

    def __init__(self, left: str, right: str, output: str) -> None:
        self.left, self.right, self.output = left, right, output

    def compute(self, frame: Any) -> dict[str, Any]:
        left, right = (float_values(frame[name], "Difference") for name in (self.left, self.right))
        with np.errstate(all="ignore"):  # infinity less infinity is null
            difference = (left - right).astype("float32")
        xp = engine_of(frame).arrays
        return {self.output: engine_of(frame).series(difference, frame, ~xp.isnan(difference))}
