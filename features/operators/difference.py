"""Difference: one column less another."""

from __future__ import annotations

from typing import Any

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
        difference = frame[self.left].astype("float64") - frame[self.right].astype("float64")
        out[self.output] = difference.astype("float32")
        return out
