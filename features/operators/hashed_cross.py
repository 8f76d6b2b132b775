"""HashedCross: the combination of several columns as a fixed number of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from features.errors import DataError
from features.frame import engine_of
from features.operators.base import Operator
from features.operators.hash_bucket import bucket_ids, hash_values, require_num_buckets

# SplitMix64's increment and the multipliers of its finalizer (Steele, Lea and Flood 2014, "Fast splittable
# pseudorandom number generators"; the multipliers are Stafford's variant 13).
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Stands for the hash of a null: any fixed number that is no value's hash but by chance.
NULL_HASH = 0xD6E8FEB86659FD93


class HashedCross(Operator):
    """int32 column `output`: 1 + hash of the row's combination mod num_buckets, 0 where all columns are null. Row-wise.

    hash = mix(... mix((mix((0 ^ h1) + GAMMA) ^ h2) + GAMMA) ...) with h_k the XXH64 of column k as in `HashBucket` and
    mix the SplitMix64 finalizer, a bijection of 64 bits; so the order of `columns` counts: (a, b) and (b, a) differ.
    A null in some of the columns is a value of its own. Ids are in [0, num_buckets], the same on CPU and GPU.

    Errors (`DataError`): fewer than two columns, a column twice, num_buckets outside 1..2^31-1, and those of
    `HashBucket` for each column.
    """

    def __init__(self, columns: Sequence[str], num_buckets: int, output: str) -> None:
        require_num_buckets(num_buckets, f"HashedCross into {output!r}")
        if isinstance(columns, str) or len(columns) < 2 or len(set(columns)) != len(columns):
            raise DataError(f"HashedCross into {output!r}: give two or more different columns, found {columns!r}.")
        self.columns, self.num_buckets, self.output = tuple(columns), num_buckets, output

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.columns

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    def transform(self, frame: Any) -> Any:
        xp = engine_of(frame).arrays
        state = xp.zeros(len(frame), dtype="uint64")
        all_null = xp.ones(len(frame), dtype="bool")
        for name in self.columns:
            hashes, null = hash_values(frame[name], "HashedCross")
            part = xp.where(null, xp.uint64(NULL_HASH), hashes)
            state = _mix(xp, (state ^ part) + xp.uint64(GAMMA))
            all_null &= null
        out = frame.copy(deep=False)
        out[self.output] = engine_of(frame).series(bucket_ids(state, all_null, self.num_buckets), frame)
        return out


def _mix(xp: Any, state: Any) -> Any:
    state = (state ^ (state >> xp.uint64(30))) * xp.uint64(FIRST)
    state = (state ^ (state >> xp.uint64(27))) * xp.uint64(SECOND)
    return state ^ (state >> xp.uint64(31))
