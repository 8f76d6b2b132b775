"""HashBucket: a column's values as a fixed number of ids, without a fit."""

from __future__ import annotations

from typing import Any

from gigabatch.features.columns.hashing import bucket_ids, hash_values, require_num_buckets
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.operators.base import ColumnOperator


class HashBucket(ColumnOperator):
    """int32 column `output` (default: `column` itself): 1 + XXH64(value) mod num_buckets, 0 where null. Row-wise.

    So ids are in [0, num_buckets], and a null shares its id with no value. The hash (XXH64, seed 0, unsigned; Collet,
    xxHash specification) is over UTF-8 for text and 8 little-endian bytes for integers and booleans, the same on CPU
    and GPU. Whole floats (integers read with nulls) hash as integers; the number 7 and the text "7" hash differently. A
    category type and a column of Python objects of one type hash as their values.

    Errors (`DataError`): num_buckets outside 1..2^31-1; a fraction, an infinity or a float of 2^53 and beyond; an
    integer of 2^63 and beyond; a column that is neither text nor numbers.
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, num_buckets: int, output: str | None = None) -> None:
        require_num_buckets(num_buckets, f"HashBucket of {column!r}")
        self.column, self.num_buckets, self.output = column, num_buckets, column if output is None else output

    def compute(self, frame: Any) -> dict[str, Any]:
        hashes, null = hash_values(frame[self.column], "HashBucket")
        return {self.output: engine_of(frame).series(bucket_ids(hashes, null, self.num_buckets), frame)}
