"""HashBucket: a column's values as a fixed number of ids, without a fit."""

from __future__ import annotations

from typing import Any

from features.category_values import FLOAT, TEXT, Settled, settle
from features.errors import DataError
from features.frame import engine_of
from features.operators.base import OneColumn, Operator


class HashBucket(OneColumn, Operator):
    """int32 column `output` (default: `column` itself): 1 + XXH64(value) mod num_buckets, 0 where null. Row-wise.

    So ids are in [0, num_buckets], and a null shares its id with no value. The hash (XXH64, seed 0, unsigned; Collet,
    xxHash specification) is over UTF-8 for text and 8 little-endian bytes for integers and booleans, the same on CPU
    and GPU. Whole floats (integers read with nulls) hash as integers; the number 7 and the text "7" hash differently. A
    category type and a column of Python objects of one type hash as their values.

    Errors (`DataError`): num_buckets outside 1..2^31-1; a fraction, an infinity or a float of 2^53 and beyond; an
    integer of 2^63 and beyond; a column that is neither text nor numbers.
    """

    def __init__(self, column: str, num_buckets: int, output: str | None = None) -> None:
        require_num_buckets(num_buckets, f"HashBucket of {column!r}")
        self.column, self.num_buckets, self.output = column, num_buckets, column if output is None else output

    def transform(self, frame: Any) -> Any:
        hashes, null = hash_values(frame[self.column], "HashBucket")
        out = frame.copy(deep=False)
        out[self.output] = engine_of(frame).series(bucket_ids(hashes, null, self.num_buckets), frame)
        return out


def require_num_buckets(num_buckets: int, where: str) -> None:
    """Raise `DataError` unless the number fits an int32 id."""
    if isinstance(num_buckets, bool) or not isinstance(num_buckets, int) or not 1 <= num_buckets < 2**31:
        raise DataError(f"{where}: num_buckets must be a whole number from 1 to 2147483647, found {num_buckets!r}.")


def bucket_ids(hashes: Any, null: Any, num_buckets: int) -> Any:
    """int32 array: 1 + hash mod num_buckets of uint64 hashes, 0 where `null`."""
    ids = (hashes % hashes.dtype.type(num_buckets)).astype("int64") + 1
    ids[null] = 0
    return ids.astype("int32")


def hash_values(column: Any, where: str) -> tuple[Any, Any]:
    """(uint64 XXH64 of every value, bool array of nulls); the hash of a null means nothing."""
    engine = engine_of(column)
    settled = settle(column, where)
    if settled.kind is None:
        return engine.arrays.zeros(len(column), dtype="uint64"), settled.null
    return engine.hash64(_hashable(settled, where)).view("uint64"), settled.null


def _hashable(settled: Settled, where: str) -> Any:
    """The column as text or int64 without nulls."""
    if settled.kind == TEXT:
        return settled.values.astype("str").fillna("")
    if settled.kind == FLOAT:
        _require_whole(settled.values, where)
    return settled.values.astype("int64")


def _require_whole(column: Any, where: str) -> None:
    wrong = ~((column == column.round()) & (column.abs() < 2**53))  # an infinity equals its own rounding
    if bool(wrong.any()):
        raise DataError(
            f"{where}: column {column.name!r} is {column.dtype} and {int(wrong.sum())} value(s) have a fraction, are "
            "infinite or reach 2^53, so they are no ids. Use Bucketize for quantities, or read the ids as text."
        )
