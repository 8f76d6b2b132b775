"""RankWithinGroup: a value's place among those of its group."""

from __future__ import annotations

from collections.abc import Sequence

from gigabatch.features.columns.numbers import float_values, is_empty
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.operators.base import ColumnOperator, WithinGroups, listed


class RankWithinGroup(WithinGroups, ColumnOperator):
    """Rank each row's value among those of its group.

    The group's smallest number has rank 1 (the largest, with `descending`), the next one 2, and so on. Equal values
    share the lowest of their ranks. A null value, or a null key, has a null rank and takes up none. Group-wise: needs
    every row of a group.

    Parameters
    ----------
    by
        Key columns.
    value
        Column of numbers that are ranked.
    output
        Name of the new float32 column.
    descending
        Whether the largest value comes first.

    Raises
    ------
    DataError
        `value` holds something else than numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import RankWithinGroup
    >>> frame = pd.DataFrame({"session": [1, 1, 1, 2], "price": [30.0, 10.0, None, 5.0]})
    >>> RankWithinGroup(["session"], "price", "rank")(frame)
       session  price  rank
    0        1   30.0   2.0
    1        1   10.0   1.0
    2        1    NaN   NaN
    3        2    5.0   1.0
    """

    reads, writes = ("by", "value"), ("output",)

    def __init__(self, by: Sequence[str], value: str, output: str, descending: bool = False) -> None:
        self.by, self.value, self.output, self.descending = listed(by, "RankWithinGroup"), value, output, descending

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        groups = group_codes(frame, frame, self.by, "RankWithinGroup")[0]
        column = frame[self.value]
        if is_empty(column, "iubf", "RankWithinGroup") or column.dtype.kind == "f":
            values = float_values(column, "RankWithinGroup")
            known = (groups >= 0) & ~engine.arrays.isnan(values)
        else:  # by their own type: float64 would tie different integers of 2^53 and beyond
            values = engine.array(column, fill=False if column.dtype.kind == "b" else 0)
            known = (groups >= 0) & engine.array(column.notna())
        ranks = engine.arrays.zeros(len(frame), dtype="float32")
        ranks[known] = engine.ranks_in_groups(groups[known], values[known], self.descending)
        return {self.output: engine.series(ranks, frame, valid=known)}
