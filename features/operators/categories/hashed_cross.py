"""HashedCross: the combination of several columns as a fixed number of ids."""

from __future__ import annotations

from collections.abc import Sequence

from gigabatch.features.columns.hashing import bucket_ids, combined_hashes, require_num_buckets
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator


class HashedCross(ColumnOperator):
    """Number the combinations of several columns by their hash, without a fit.

    An id is 1 + hash mod num_buckets, and 0 where all columns are null. With h_k the XXH64 of column k as in
    `HashBucket`, hash = mix(... mix((mix((0 ^ h1) + GAMMA) ^ h2) + GAMMA) ...), where mix is the finalizer of
    SplitMix64, a bijection of 64 bits. So the order of `columns` counts: (a, b) and (b, a) differ. A null in some of
    the columns is a value of its own. Ids are the same on CPU and GPU. Row-wise.

    Parameters
    ----------
    columns
        Two or more different columns of text, whole numbers or booleans.
    num_buckets
        How many ids there are beside 0, from 1 to 2^31 - 1.
    output
        Name of the new int32 column.

    Raises
    ------
    DataError
        Fewer than two columns, a column twice, `num_buckets` out of range, or what `HashBucket` refuses in a column.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import HashedCross
    >>> frame = pd.DataFrame({"origin": ["JFK", "JFK", None], "hour": [6, 7, None]})
    >>> HashedCross(["origin", "hour"], 1000, "origin_hour")(frame)["origin_hour"].tolist()
    [456, 841, 0]
    """

    reads, writes = ("columns",), ("output",)

    def __init__(self, columns: Sequence[str], num_buckets: int, output: str) -> None:
        require_num_buckets(num_buckets, f"HashedCross into {output!r}")
        if isinstance(columns, str) or len(columns) < 2 or len(set(columns)) != len(columns):
            raise DataError(f"HashedCross into {output!r}: give two or more different columns, found {columns!r}.")
        self.columns, self.num_buckets, self.output = tuple(columns), num_buckets, output

    def compute(self, frame: Frame) -> dict[str, Column]:
        hashes, all_null = combined_hashes([frame[name] for name in self.columns], "HashedCross")
        return {self.output: engine_of(frame).series(bucket_ids(hashes, all_null, self.num_buckets), frame)}
