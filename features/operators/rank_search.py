"""Passes over the partitions of a column until the values of wanted ranks are known, for operators that need them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from gigabatch.features.columns.numbers import rankable_values
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.quantiles import Counts, Search
from gigabatch.features.operators.base import FittedOperator

METHODS = ("exact", "sketch")


class RankingOperator(FittedOperator):
    """An operator of one column whose state follows from the values of some ranks, found in further passes."""

    column: str

    @abstractmethod
    def state_of(self, partial: Any, search: Search) -> Any:
        """The state, given the first pass's merged partial and the resolved search."""

    def count(self, frame: Frame, search: Search) -> Counts:
        """Of the next pass: `search.count` of the partition's values."""
        return search.count(rankable_values(frame[self.column]))

    def count_together(self, frame: Frame, search: Search) -> tuple[Callable[[list[Any]], Any], Any] | None:
        """`count` as `together` is to `partial`."""
        return None


class NextPass(FittedOperator):
    """One more pass over the partitions, which finds where the wanted ranks lie more closely. Adds no column."""

    is_step = False

    def __init__(self, operator: RankingOperator, first: Any, search: Search) -> None:
        self.operator, self.first, self.search = operator, first, search
        self._narrowed: tuple[Any, Search] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.operator.inputs

    def partial(self, frame: Frame) -> Counts:
        return self.operator.count(frame, self.search)

    def together(self, frame: Frame) -> tuple[Callable[[list[Any]], Any], Any] | None:
        return self.operator.count_together(frame, self.search)

    def merge(self, left: Counts, right: Counts) -> Counts:
        return self.search.merge(left, right)

    def narrowed(self, partial: Counts) -> Search:
        """The search after this pass, found once."""
        if self._narrowed is None or self._narrowed[0] is not partial:
            self._narrowed = (partial, self.search.narrowed(partial))
        return self._narrowed[1]

    def following(self, partial: Counts) -> FittedOperator | None:
        search = self.narrowed(partial)
        return None if search.resolved else type(self)(self.operator, self.first, search)

    def finish(self, partial: Counts) -> Any:
        return self.operator.state_of(self.first, self.narrowed(partial))

    def columns(self, frame: Frame, state: Any) -> dict[str, Column]:
        return {}


def require_method(method: str, operator: str) -> None:
    """`DataError` for a method that is neither exact nor a sketch."""
    if method not in METHODS:
        raise DataError(f"{operator}: unknown method {method!r}. Known: {', '.join(METHODS)}.")
