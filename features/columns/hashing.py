"""64-bit hashes of values, the same on CPU and GPU, and what ids, folds and splits make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigabatch.features.columns.categories import FLOAT, TEXT, Canonical, canonicalize
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column
from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import EXACT

# SplitMix64's increment and the multipliers of its finalizer (Steele, Lea and Flood 2014, "Fast splittable
# pseudorandom number generators"; the multipliers are Stafford's variant 13).
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Stands for the hash of a null: any fixed number that is no value's hash but by chance.
NULL_HASH = 0xD6E8FEB86659FD93


def hash_values(column: Column, where: str) -> tuple[Any, Any]:
    """(uint64 XXH64 of every value, bool array of nulls); the hash of a null means nothing."""
    engine = engine_of(column)
    canonical = canonicalize(column, where)
    if canonical.kind is None:
        return engine.arrays.zeros(len(column), dtype="uint64"), canonical.null
    return engine.hash64(_hashable(canonical, column, where)).view("uint64"), canonical.null


def _hashable(canonical: Canonical, column: Column, where: str) -> Any:
    """The column as text or int64 without nulls."""
    if canonical.kind == TEXT:
        return canonical.values.astype("str").fillna("")
    if canonical.kind == FLOAT:
        _require_whole(canonical, column, where)
    return canonical.values.astype("int64")


def _require_whole(canonical: Canonical, column: Column, where: str) -> None:
    values, exact = canonical.values, canonical.exact
    wrong = ~((values == values.round()) & (values.abs() < exact))  # an infinity equals its own rounding
    if bool(wrong.any()):
        raise DataError(
            f"{where}: column {column.name!r} is {column.dtype} and {int(wrong.sum())} value(s) have a fraction, are "
            f"infinite or reach 2^{exact.bit_length() - 1}, so they are no ids. Use Bucketize for quantities, "
            "or read the ids as text."
        )


def combined_hashes(columns: Sequence[Any], where: str) -> tuple[Any, Any]:
    """(uint64 hash of every row's combination, bool array of rows that are null in every column).

    hash = mix(... mix((mix((0 ^ h1) + GAMMA) ^ h2) + GAMMA) ...) with h_k the XXH64 of column k and mix the SplitMix64
    finalizer, so the order of the columns counts. A null in some of them is a value of its own.
    """
    xp = engine_of(columns[0]).arrays
    state = xp.zeros(len(columns[0]), dtype="uint64")
    all_null = xp.ones(len(columns[0]), dtype="bool")
    for column in columns:
        hashes, null = hash_values(column, where)
        state = splitmix64((state ^ xp.where(null, xp.uint64(NULL_HASH), hashes)) + xp.uint64(GAMMA))
        all_null &= null
    return state, all_null


def splitmix64(values: Any) -> Any:
    """The finalizer of SplitMix64: uint64 array to uint64, a bijection without visible pattern."""
    word = values.dtype.type
    values = (values ^ (values >> word(30))) * word(FIRST)
    values = (values ^ (values >> word(27))) * word(SECOND)
    return values ^ (values >> word(31))


def unit_interval(hashes: Array) -> Any:
    """float64 in [0, 1) of uint64 hashes."""
    return (hashes >> hashes.dtype.type(11)).astype("float64") / EXACT


def require_num_buckets(num_buckets: int, where: str) -> None:
    """Raise `DataError` unless the number fits an int32 id."""
    if isinstance(num_buckets, bool) or not isinstance(num_buckets, int) or not 1 <= num_buckets < 2**31:
        raise DataError(f"{where}: num_buckets must be a whole number from 1 to 2147483647, found {num_buckets!r}.")


def buckets_of(hashes: Array, num_buckets: int) -> Any:
    """int64 array: hash mod num_buckets of uint64 hashes."""
    return (hashes % hashes.dtype.type(num_buckets)).astype("int64")


def bucket_ids(hashes: Array, null: Any, num_buckets: int) -> Any:
    """int32 array: 1 + hash mod num_buckets of uint64 hashes, 0 where `null`."""
    ids = buckets_of(hashes, num_buckets) + 1
    ids[null] = 0
    return ids.astype("int32")
