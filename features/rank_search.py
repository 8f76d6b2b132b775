"""Passes over the partitions of a column until the values of wanted ranks are known, for operators that need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from features.errors import DataError
from features.operators.base import FittedOperator
from features.quantiles import RadixHistogram, Search, selected

KEPT_VALUES = 1 << 22  # 16 MB of float32: with no more values than that in all, the partitions are not read again
METHODS = ("exact", "sketch")


@dataclass(frozen=True, eq=False)
class Ranked:
    """What the first pass knows of a column's values.

    kept: the partitions' arrays (NumPy or CuPy, references where possible), while they are few; else None.
    """

    histogram: RadixHistogram
    kept: tuple[Any, ...] | None

    @classmethod
    def of(cls, values: Any, keep: bool = True) -> Ranked:
        """Of a float32 or float64 array; NaN is left out, an infinity is `InfinityFound`."""
        histogram = RadixHistogram.of(values)
        kept = (values,) if histogram.total else ()
        return cls(histogram, kept if keep and len(values) <= KEPT_VALUES else None)

    def merge(self, other: Ranked) -> Ranked:
        """Of both. More values never become fewer, so the order does not decide whether they are kept."""
        kept = None if self.kept is None or other.kept is None else self.kept + other.kept
        if kept is not None and sum(map(len, kept)) > KEPT_VALUES:
            kept = None
        return Ranked(self.histogram.merge(other.histogram), kept)

    def search(self, ranks: Sequence[int]) -> Search:
        """The search for these ranks, resolved if the values are at hand."""
        search = Search.start(self.histogram, ranks)
        return search if self.kept is None else selected(search, self.kept)


class RankingOperator(Protocol):
    """What `NextPass` asks of the operator that it works for."""

    column: str

    def state_of(self, partial: Any, search: Search) -> Any:
        """The state, given the first pass's merged partial and the resolved search."""

    def count(self, frame: Any, search: Search) -> RadixHistogram:
        """`search.count` of the partition's values."""


class NextPass(FittedOperator):
    """One more pass over the partitions, which finds where the wanted ranks lie more closely. Adds no column."""

    def __init__(self, operator: Any, first: Any, search: Search) -> None:
        self.operator, self.first, self.search = operator, first, search

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.operator.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    def partial(self, frame: Any) -> RadixHistogram:
        return self.operator.count(frame, self.search)

    def merge(self, left: RadixHistogram, right: RadixHistogram) -> RadixHistogram:
        return self.search.merge(left, right)

    def following(self, partial: RadixHistogram) -> FittedOperator | None:
        search = self.search.narrowed(partial)
        return None if search.resolved else NextPass(self.operator, self.first, search)

    def finish(self, partial: RadixHistogram) -> Any:
        return self.operator.state_of(self.first, self.search.narrowed(partial))

    def columns(self, frame: Any, state: Any) -> dict[str, Any]:
        return {}


def require_method(method: str, operator: str) -> None:
    """`DataError` for a method that is neither exact nor a sketch."""
    if method not in METHODS:
        raise DataError(f"{operator}: unknown method {method!r}. Known: {', '.join(METHODS)}.")
