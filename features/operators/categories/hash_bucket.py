"""HashBucket: a column's values as a fixed number of ids, without a fit."""

from __future__ import annotations

from gigabatch.features.columns.hashing import bucket_ids, hash_values, require_num_buckets
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.operators.base import ColumnOperator


class HashBucket(ColumnOperator):
    """Number the values of a column by their hash, without a fit.

    An id is 1 + XXH64(value) mod num_buckets, so it lies in [1, num_buckets]; a null is 0 and shares its id with no
    value. The hash (XXH64, seed 0, unsigned; Collet, xxHash specification) is taken over UTF-8 for text and over 8
    little-endian bytes for integers and booleans, the same on CPU and GPU. Whole floats (integers read with nulls) hash
    as integers; the number 7 and the text "7" hash differently. A category type and a column of Python objects of one
    type hash as their values. Row-wise.

    Parameters
    ----------
    column
        Text, whole numbers or booleans.
    num_buckets
        How many ids there are beside that of null, from 1 to 2^31 - 1.
    output
        Name of the new int32 column; `column` itself by default.

    Raises
    ------
    DataError
        `num_buckets` is out of range; the column holds a fraction, an infinity, a float of 2^53 or more, an integer of
        2^63 or more, or neither text nor numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import HashBucket
    >>> frame = pd.DataFrame({"tail": ["N1", "N2", None, "N1"]})
    >>> HashBucket("tail", 1000)(frame)["tail"].tolist()
    [566, 714, 0, 566]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, num_buckets: int, output: str | None = None) -> None:
        require_num_buckets(num_buckets, f"HashBucket of {column!r}")
        self.column, self.num_buckets, self.output = column, num_buckets, column if output is None else output

    def compute(self, frame: Frame) -> dict[str, Column]:
        hashes, null = hash_values(frame[self.column], "HashBucket")
        return {self.output: engine_of(frame).series(bucket_ids(hashes, null, self.num_buckets), frame)}
