"""Categorify: categories to ids."""

from __future__ import annotations

from typing import Any

from features.frame import engine_of
from features.operators.base import FittedOperator
from features.vocabulary import Vocabulary


class Categorify(FittedOperator):
    """int32 ids of one column by the layout of `features.vocabulary`, replacing the column.

    min_count: values seen fewer times at fit are left out of the vocabulary and so encode as unseen.
    """

    def __init__(self, column: str, min_count: int = 1) -> None:
        if min_count < 1:
            raise ValueError(f"Categorify of {column!r}: min_count must be at least 1, found {min_count}.")
        self.column, self.min_count = column, min_count

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, frame: Any) -> Any:
        """Columns value and count of this partition."""
        return engine_of(frame).value_counts(frame[self.column])

    def merge(self, left: Any, right: Any) -> Any:
        both = engine_of(left).frames.concat([left, right], ignore_index=True)
        return both.groupby("value").agg({"count": "sum"}).reset_index()

    def finish(self, partial: Any) -> Vocabulary:
        counted = partial[partial["count"] >= self.min_count]
        counted = counted.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)
        return Vocabulary(counted["value"], counted["count"])

    def columns(self, frame: Any, state: Vocabulary) -> dict[str, Any]:
        return {self.column: engine_of(frame).series(state.encode(frame[self.column]), frame)}
