"""HashedCross: the combination of several columns as a fixed number of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.columns.hashing import bucket_ids, combined_hashes, require_num_buckets
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator


class HashedCross(ColumnOperator):
    """int32 column `output`: 1 + hash of the row's combination mod num_buckets, 0 where all columns are null. Row-wise.

    hash = mix(... mix((mix((0 ^ h1) + GAMMA) ^ h2) + GAMMA) ...) with h_k the XXH64 of column k as in `HashBucket` and
    mix the SplitMix64 finalizer, a bijection of 64 bits; so the order of `columns` counts: (a, b) and (b, a) differ.
    A null in some of the columns is a value of its own. Ids are in [0, num_buckets], the same on CPU and GPU.

    Errors (`DataError`): fewer than two columns, a column twice, num_buckets outside 1..2^31-1, and those of
    `HashBucket` for each column.
    """

    reads, writes = ("columns",), ("output",)

    def __init__(self, columns: Sequence[str], num_buckets: int, output: str) -> None:
        require_num_buckets(num_buckets, f"HashedCross into {output!r}")
        if isinstance(columns, str) or len(columns) < 2 or len(set(columns)) != len(columns):
            raise DataError(f"HashedCross into {output!r}: give two or more different columns, found {columns!r}.")
        self.columns, self.num_buckets, self.output = tuple(columns), num_buckets, output

    def compute(self, frame: Any) -> dict[str, Any]:
        hashes, all_null = combined_hashes([frame[name] for name in self.columns], "HashedCross")
        return {self.output: engine_of(frame).series(bucket_ids(hashes, all_null, self.num_buckets), frame)}
