"""RankWithinGroup: a value's place among those of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.columns.numbers import float_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.history.asof import group_codes
from gigabatch.features.operators.base import ColumnOperator, WithinGroups


class RankWithinGroup(WithinGroups, ColumnOperator):
    """float32 column `output`: 1 for the group's smallest number (largest with `descending`), 2 for the next, ...

    Equal values share the lowest of their ranks; a null value has a null rank and takes up none. Group-wise: needs
    every row of a group.
    """

    reads, writes = ("by", "value"), ("output",)

    def __init__(self, by: Sequence[str], value: str, output: str, descending: bool = False) -> None:
        self.by, self.value, self.output, self.descending = tuple(by), value, output, descending

    def compute(self, frame: Any) -> dict[str, Any]:
        engine = engine_of(frame)
        groups = group_codes(frame, frame.head(0), self.by, "RankWithinGroup")[0]
        values = float_values(frame[self.value], "RankWithinGroup")
        known = (groups >= 0) & ~engine.arrays.isnan(values)
        table = engine.frames.DataFrame({"group": groups, "value": values})
        ranks = table.groupby("group")["value"].rank(method="min", ascending=not self.descending)
        return {self.output: engine.series(engine.array(ranks, fill=0.0).astype("float32"), frame, valid=known)}
