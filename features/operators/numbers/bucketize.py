"""Bucketize: numbers as the intervals between given edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gigabatch.features.columns.numbers import float_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator


class Bucketize(ColumnOperator):
    """Number the interval between given edges that a value lies in.

    Intervals are closed on the left and open on the right: 1 for x < edges[0], k + 1 for edges[k-1] <= x < edges[k],
    len(edges) + 1 for x >= edges[-1]. Null and NaN are 0, infinities fall into the outermost intervals. Values are
    compared without rounding. Row-wise.

    Parameters
    ----------
    column
        Numbers or booleans.
    edges
        One or more finite numbers, each above the one before.
    output
        Name of the new int32 column; `column` itself by default.

    Raises
    ------
    DataError
        There are no edges, they are not finite or do not increase, or the column holds something else than numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Bucketize
    >>> Bucketize("age", [18, 65])(pd.DataFrame({"age": [17, 18, 70, None]}))["age"].tolist()
    [1, 2, 3, 0]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, edges: Sequence[float], output: str | None = None) -> None:
        # Whole numbers that no float64 is stay whole.
        edges = tuple(edge if isinstance(edge, int) and int(float(edge)) != edge else float(edge) for edge in edges)
        increasing = all(low < high for low, high in pairwise(edges))
        if not edges or not increasing or not all(map(math.isfinite, edges)):
            raise DataError(
                f"Bucketize of {column!r}: edges must be one or more finite numbers, each above the one before, "
                f"found {list(edges)}."
            )
        self.column, self.edges, self.output = column, edges, column if output is None else output

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        xp = engine.arrays
        column = frame[self.column]
        if column.dtype.kind in "iu":
            lowest, beyond = (0, 2**64) if column.dtype.kind == "u" else (-(2**63), 2**63)
            dtype = "int64" if lowest else "uint64"
            values, null = engine.array(column, fill=0).astype(dtype), engine.array(column.isna())
            # x >= edge is x >= the next whole number, and one above every value of the type is never reached.
            bounds = [max(math.ceil(edge), lowest) for edge in self.edges if math.ceil(edge) < beyond]
            edges = xp.asarray(bounds, dtype=dtype)
        else:
            values = float_values(column, "Bucketize")
            edges, null = xp.asarray([_float_from(edge) for edge in self.edges]), xp.isnan(values)
        buckets = 1 + xp.searchsorted(edges, values, side="right")
        buckets[null] = 0
        return {self.output: engine.series(buckets.astype("int32"), frame)}


def _float_from(edge: float) -> float:
    """The least float64 that is not below the edge."""
    found = float(edge)
    return found if found >= edge else math.nextafter(found, math.inf)
