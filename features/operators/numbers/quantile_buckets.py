"""QuantileBuckets: numbers to buckets of about equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gigabatch.features.columns.numbers import naming, ranked_values, require_numbers, tell_of_rounding
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Ranked
from gigabatch.features.exact.quantiles import Search, interpolated, linear_place
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.rank_search import NextPass, RankingOperator, require_method


@dataclass(frozen=True)
class Edges:
    """edges: ascending and distinct. merged: how many of the asked edges fell together with another one.

    errors: how far the fit's exact quantile can be from each edge; empty where the edges are exact.
    """

    edges: tuple[float, ...]
    merged: int
    errors: tuple[float, ...] = ()


class QuantileBuckets(RankingOperator):
    """Number the quantile bucket that a value lies in.

    Edges are the quantiles i / num_buckets of the known train values, i from 1 to num_buckets - 1, by NumPy's `linear`
    definition (Hyndman and Fan 1996, definition 7). Equal edges are merged, so a column with few distinct values has
    fewer buckets; the state's `merged` says by how many. Integers above 2^53 are taken as the nearest float64, and a
    fit logs it.

    Parameters
    ----------
    column
        Numbers or booleans.
    num_buckets
        How many buckets, at least 2.
    method
        `exact`, or `sketch`, which settles for quantiles from counts by leading bits, after one pass however many rows
        there are. Each is within 2^-8 of the larger of the two values that it lies between (2^-7 where it is given as
        0); the state's `errors` say how near they are.
    output
        Name of the new int32 column of buckets, 0 for null, 1 up to the first edge inclusive, 2 above it, and so on;
        `column` itself by default.

    Raises
    ------
    DataError
        Fewer than 2 buckets, an unknown method; no known value at fit, an infinity at fit, a column that is no number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import QuantileBuckets
    >>> frame = pd.DataFrame({"price": [1.0, 2.0, 3.0, 4.0, None]})
    >>> operator = QuantileBuckets("price", 2)
    >>> state = operator.fit([frame])
    >>> state.edges
    (2.5,)
    >>> operator.apply(frame, state)["price"].tolist()
    [1, 1, 2, 2, 0]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, num_buckets: int, method: str = "exact", output: str | None = None) -> None:
        if num_buckets < 2:
            raise DataError(f"QuantileBuckets of {column!r}: num_buckets must be at least 2, found {num_buckets}.")
        require_method(method, "QuantileBuckets")
        self.column, self.num_buckets, self.method = column, num_buckets, method
        self.output = column if output is None else output

    def partial(self, frame: Frame) -> Ranked:
        tell_of_rounding(frame[self.column], "QuantileBuckets")
        return ranked_values(frame[self.column], keep=self.method == "exact")

    def merge(self, left: Ranked, right: Ranked) -> Ranked:
        return naming(self.column, left.merge, right)

    def following(self, partial: Ranked) -> FittedOperator | None:
        if self.method == "sketch" or partial.kept is not None or not partial.histogram.total:
            return None
        search = Search.start(partial.histogram, self._ranks(partial))
        return None if search.resolved else NextPass(self, partial, search)

    def finish(self, partial: Ranked) -> Edges:
        if not partial.histogram.total:
            raise DataError(f"QuantileBuckets: column {self.column!r} has no known value in the train split.")
        if self.method == "sketch":
            found = [partial.histogram.sketched_quantile(fraction) for fraction in self._fractions()]
            nearest: dict[float, float] = {}
            for edge, error in found:  # of equal edges the one with the larger error stays
                nearest[edge] = max(error, nearest.get(edge, 0.0))
            edges = sorted(nearest)
            return Edges(tuple(edges), len(found) - len(edges), tuple(nearest[edge] for edge in edges))
        return self.state_of(partial, partial.search(self._ranks(partial)))

    def state_of(self, partial: Ranked, search: Search) -> Edges:
        """The state, from the two values that each quantile lies between."""
        values = search.values().tolist()
        places = [linear_place(fraction, partial.histogram.total) for fraction in self._fractions()]
        found = [
            interpolated(low, high, part)
            for low, high, (_, _, part) in zip(values[::2], values[1::2], places, strict=True)
        ]
        edges = tuple(sorted(set(found)))
        return Edges(edges, len(found) - len(edges))

    def _fractions(self) -> list[float]:
        return [i / self.num_buckets for i in range(1, self.num_buckets)]

    def _ranks(self, partial: Ranked) -> Sequence[int]:
        total = partial.histogram.total
        return [rank for fraction in self._fractions() for rank in linear_place(fraction, total)[:2]]

    def columns(self, frame: Frame, state: Edges) -> dict[str, Column]:
        engine = engine_of(frame)
        column = frame[self.column]
        require_numbers(column)
        values = engine.array(column.astype("float64"), fill=0.0)
        buckets = 1 + engine.arrays.searchsorted(engine.arrays.asarray(state.edges), values)
        buckets = engine.arrays.where(engine.array(column.isna()), 0, buckets)
        return {self.output: engine.series(buckets.astype("int32"), frame)}
