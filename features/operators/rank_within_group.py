"""RankWithinGroup: a value's place among those of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from features.operators.base import Operator


class RankWithinGroup(Operator):
    """float32 column `output`: 1 for the smallest value of the group (largest with `descending`), 2 for the next, ...

    Equal values share the lowest of their ranks; a null value has a null rank and takes up none. Group-wise: needs
    every row of a group.
    """

    def __init__(self, by: Sequence[str], value: str, output: str, descending: bool = False) -> None:
        self.by, self.value, self.output, self.descending = tuple(by), value, output, descending

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.by, self.value)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def group_keys(self) -> tuple[str, ...]:
        return self.by

    def transform(self, frame: Any) -> Any:
        ranks = frame.groupby(list(self.by))[self.value].rank(method="min", ascending=not self.descending)
        out = frame.copy(deep=False)
        out[self.output] = ranks.astype("float32")
        return out
