"""The vocabulary of several columns that make one category together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gigabatch.features.columns.categories import canonical_column, canonicalize, same_kind
from gigabatch.features.columns.hashing import buckets_of, combined_hashes
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Frame
from gigabatch.features.errors import require_columns
from gigabatch.features.vocabulary.vocabulary import IdLayout, Vocabulary

PART = IdLayout(padding=0, null=0, unseen=1)  # of the numbers that one column's values have inside this module


@dataclass(frozen=True)
class CombinedVocabulary:
    """The known combinations of several columns and their ids.

    Combinations stand by descending frequency at the first fit, ties by their values, null before any value. A row is
    null if all of its columns are; a null in some of them is a value of its own. A combination not seen at fit is
    unseen, whether or not each of its values is known.

    Parameters
    ----------
    parts
        Frame of the columns, one row a combination.
    counts
        int64 column: how often each was seen at fit.
    buckets
        How many ids the unseen share; `HashedCross` of the row, modulo `buckets`, picks one.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.vocabulary.combined import CombinedVocabulary
    >>> parts = pd.DataFrame({"origin": ["JFK", "EWR"], "hour": [6, 7]})
    >>> vocabulary = CombinedVocabulary(parts, pd.Series([3, 1]))
    >>> vocabulary.encode(pd.DataFrame({"origin": ["EWR", "EWR"], "hour": [7, 6]})).tolist()
    [4, 2]
    """

    parts: Any  # a frame and a column; what a workflow saves as a table is annotated with Any
    counts: Any
    buckets: int = 1

    @property
    def names(self) -> list[str]:
        return list(self.parts.columns)

    @property
    def layout(self) -> IdLayout:
        return IdLayout(buckets=self.buckets)

    @property
    def num_ids(self) -> int:
        return self.layout.num_ids(len(self.parts))

    def encode(self, frame: Frame) -> Any:
        """int32 ids, one a row of a frame that holds the columns."""
        require_columns(frame, self.names, "CombinedVocabulary")
        positions, null = self._positions(frame)
        return self.layout.ids(positions, null, lambda unseen: self._bucket_numbers(frame[unseen]))

    def decode(self, ids: Any) -> Any:
        """A frame of the columns, one row an id, on a new index; all null for padding, null and unseen."""
        engine = engine_of(self.parts)
        positions = Vocabulary(self.counts, self.counts, self.layout).positions_of(ids)
        known = engine.frames.Series(positions >= 0)
        if len(self.parts) == 0:
            return self.parts.reindex(range(len(positions)))
        rows = self.parts.take(engine.arrays.clip(positions, 0, None)).reset_index(drop=True)
        return engine.frames.DataFrame({name: rows[name].where(known) for name in self.names})

    def update(self, counted: Frame, min_count: int = 1, max_size: int | None = None) -> CombinedVocabulary:
        """As `Vocabulary.update`, of a frame of the columns and their `count`."""
        engine = engine_of(self.parts)
        if len(counted) == 0:
            return self
        positions, _ = self._positions(counted)
        added = engine.array(counted["count"]).astype("int64")
        counts = engine.array(self.counts).astype("int64").copy()
        counts[positions[positions >= 0]] += added[positions >= 0]
        fresh = counted[(positions < 0) & (added >= min_count)].reset_index(drop=True)
        fresh = by_frequency(fresh, self.names)
        if max_size is not None:
            fresh = fresh.head(max(max_size - len(self.parts), 0))
        pairs = {name: same_kind(self.parts[name], fresh[name], "CombinedVocabulary") for name in self.names}
        concat = engine.frames.concat
        parts = engine.frames.DataFrame({name: concat(list(pair), ignore_index=True) for name, pair in pairs.items()})
        return replace(
            self, parts=parts, counts=concat([engine.frames.Series(counts), fresh["count"]], ignore_index=True)
        )

    def _positions(self, frame: Frame) -> tuple[Any, Any]:
        """(position of each row's combination, -1 where it is not known; bool array of rows that are all null)."""
        xp = engine_of(self.parts).arrays
        numbers = xp.zeros(len(frame), dtype="int64")
        known, null = xp.full(len(frame), len(self.parts) > 0), xp.ones(len(frame), dtype="bool")
        for name, dictionary, prefixes in self._lookup[0]:
            part = dictionary.encode(frame[name])
            null &= part == PART.null
            known &= part != PART.unseen
            if len(self.parts):
                numbers = numbers * dictionary.num_ids + part
                places = xp.clip(xp.searchsorted(prefixes, numbers), 0, len(prefixes) - 1)
                known &= prefixes[places] == numbers
                numbers = places
        positions = self._lookup[1][numbers] if len(self.parts) else numbers
        return xp.where(known & ~null, positions, -1), null

    @cached_property
    def _lookup(self) -> tuple[list[tuple[str, Vocabulary, Any]], Any]:
        """([(column, vocabulary of its values, sorted int64 keys of the first columns' combinations)], position of
        each of the last keys).

        A key is (place of the columns before among their keys) * (ids of this column) + (id of this value), so it
        stays far below 2^63 however many columns there are.
        """
        xp = engine_of(self.parts).arrays
        numbers, steps = xp.zeros(len(self.parts), dtype="int64"), []
        for name in self.names:
            values = (
                canonicalize(self.parts[name], "CombinedVocabulary").known().drop_duplicates().reset_index(drop=True)
            )
            dictionary = Vocabulary(values, values, PART)  # its counts are never asked for
            numbers = numbers * dictionary.num_ids + dictionary.encode(self.parts[name])
            prefixes = xp.unique(numbers)
            numbers = xp.searchsorted(prefixes, numbers)
            steps.append((name, dictionary, prefixes))
        positions = xp.zeros(len(self.parts), dtype="int64")
        positions[numbers] = xp.arange(len(self.parts))
        return steps, positions

    def _bucket_numbers(self, frame: Frame) -> Any:
        columns = [frame[name] for name in self.names]
        return buckets_of(combined_hashes(columns, "CombinedVocabulary with several unseen ids")[0], self.buckets)


def count_combinations(frame: Frame, names: list[str], where: str) -> Any:
    """Columns `names` and count of the frame's combinations, those that are all null left out."""
    engine = engine_of(frame)
    columns = {name: canonical_column(canonicalize(frame[name], where)) for name in names}
    return _summed(engine.frames.DataFrame({**columns, "count": engine.arrays.ones(len(frame), dtype="int64")}), names)


def merge_combinations(left: Any, right: Any, names: list[str], where: str) -> Any:
    """Two of what `count_combinations` gives as one."""
    engine = engine_of(left)
    columns = {}
    for name in names:
        columns[name] = engine.frames.concat(same_kind(left[name], right[name], where), ignore_index=True)
    columns["count"] = engine.frames.concat([left["count"], right["count"]], ignore_index=True)
    return _summed(engine.frames.DataFrame(columns), names)


def by_frequency(counted: Frame, names: list[str]) -> Any:
    """Sorted by descending count, ties by the columns' values, null first; on a new index."""
    if names == ["value"]:
        return engine_of(counted).sort_counts(counted)
    ordered = counted.sort_values(["count", *names], ascending=[False, *[True] * len(names)], na_position="first")
    return ordered.reset_index(drop=True)


def _summed(counted: Frame, names: list[str]) -> Any:
    known = counted.dropna(subset=names, how="all")
    return known.groupby(names, dropna=False).agg({"count": "sum"}).reset_index()[[*names, "count"]]
