"""Which integer stands for which category: the id layout and the vocabulary built on it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.columns.categories import (
    TEXT,
    Canonical,
    canonicalize,
    category_kind,
    comparable,
    nullable,
    same_kind,
)
from gigabatch.features.columns.hashing import buckets_of, hash_values
from gigabatch.features.engines.arrow_tables import write_with_checksums
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError, raise_of_system

METADATA = b"gigabatch.vocabulary"


@dataclass(frozen=True)
class IdLayout:
    """Which ids stand for padding, null and unseen; the known values follow after them.

    The usual layout is 0 padding, 1 null, 2 unseen. This is the only place where that order is written down. Layouts of
    other libraries can be expressed too: in fastai's, `IdLayout(0, 0, 0)`, one id stands for padding, null and unseen.

    Parameters
    ----------
    padding, null, unseen
        Ids: whole numbers from 0.
    buckets
        How many ids unseen values share, from `unseen` on: XXH64 of the value modulo `buckets` picks one (the hash of
        `HashBucket`).

    Raises
    ------
    DataError
        An id that is no whole number from 0, buckets below 1, padding or null inside the ids of the unseen but at their
        first.

    Examples
    --------
    >>> from gigabatch.features.vocabulary.vocabulary import IdLayout
    >>> layout = IdLayout(buckets=4)
    >>> layout.first, layout.num_ids(10)
    (6, 16)
    """

    padding: int = 0
    null: int = 1
    unseen: int = 2
    buckets: int = 1

    def __post_init__(self) -> None:
        for name, lowest in (("padding", 0), ("null", 0), ("unseen", 0), ("buckets", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < 2**31:
                raise DataError(f"id layout: {name} must be a whole number from {lowest}, found {value!r}.")
        for name in ("padding", "null"):
            if self.unseen < getattr(self, name) < self.unseen + self.buckets:
                raise DataError(f"id layout: {name} {getattr(self, name)} lies inside the ids of the unseen.")

    @property
    def first(self) -> int:
        """The id of the vocabulary's first value."""
        return max(self.padding, self.null, self.unseen + self.buckets - 1) + 1

    def num_ids(self, num_values: int) -> int:
        """Rows that an embedding table needs for a vocabulary of `num_values`."""
        return self.first + num_values

    def is_unseen(self, ids: Any) -> Any:
        """Bool array of ids, of any library: which stand for values that the vocabulary does not have."""
        return (ids >= self.unseen) & (ids < self.unseen + self.buckets)

    def ids(self, positions: Any, null: Any, buckets: Any) -> Any:
        """int32 ids of positions in a vocabulary (-1: not there), of nulls (bool array) and of the unseen.

        buckets: a function of the bool array of unseen rows; gives their buckets, one each. Not asked if one bucket.
        """
        ids = positions.astype("int32") + _arrays(positions).int32(self.first)
        missing = positions < 0
        if bool(missing.any()):
            ids[missing] = self.unseen
            unseen = missing & ~null
            if self.buckets > 1 and bool(unseen.any()):
                ids[unseen] += buckets(unseen).astype("int32")
            ids[null] = self.null
        return ids


LAYOUT = IdLayout()


@dataclass(frozen=True)
class Vocabulary:
    """The known values of one column and their ids.

    Values stand by descending frequency at the first fit, ties by ascending value. What counts as the same value: see
    `gigabatch.features.columns.categories`.

    Parameters
    ----------
    values
        Column of the values, each once, of string, int64, int32, bool or float64 type.
    counts
        int64 column: how often each was seen at fit, 0 where the values were given and not counted.
    layout
        Which id is the first one, and the ids of padding, null and unseen.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.vocabulary.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary(pd.Series(["Oslo", "Bonn"]), pd.Series([5, 2]))
    >>> vocabulary.encode(pd.Series(["Bonn", "Rome", None])).tolist()
    [4, 2, 1]
    >>> vocabulary.decode([3, 4]).tolist()
    ['Oslo', 'Bonn']
    """

    values: Any  # a column; what a workflow saves as a table is annotated with Any
    counts: Any
    layout: IdLayout = LAYOUT

    @property
    def num_ids(self) -> int:
        return self.layout.num_ids(len(self.values))

    def encode(self, column: Column) -> Any:
        """int32 ids, one a row. Values are looked up by value, never by a frame's own category codes.

        Errors (`DataError`): a column of another kind than the values, for example text where they are numbers.
        """
        # Of Python objects and of types that hold no categories only `canonicalize` speaks properly.
        plain = str(column.dtype) != "object" and category_kind(column) is not None
        found = engine_of(self.values).positions_and_nulls(column, self._table) if plain else None
        if found is not None:
            positions, null = found
            return self.layout.ids(
                positions, null, lambda unseen: self._buckets(canonicalize(column, "Vocabulary"), unseen)
            )
        canonical = canonicalize(column, "Vocabulary")
        positions = self._positions(canonical)
        return self.layout.ids(positions, canonical.null, lambda unseen: self._buckets(canonical, unseen))

    @cached_property
    def _table(self) -> Any:
        """Made once, however many partitions are encoded."""
        return engine_of(self.values).lookup(self.values)

    def with_table(self, table: Any) -> Vocabulary:
        """This vocabulary, with what `engine.lookup(values)` would have to make."""
        found = replace(self)
        found.__dict__["_table"] = table  # where `cached_property` looks
        return found

    def _positions(self, canonical: Canonical) -> Any:
        """Position of each row's value, -1 for null and unseen."""
        engine = engine_of(self.values)
        if canonical.kind is None or len(self.values) == 0:
            return engine.arrays.full(len(canonical.null), -1, dtype="int64")
        asked, known, foreign = comparable(canonical, self.values, "Vocabulary")
        positions = engine.positions_in(asked, known, self._table if known is self.values else None)
        if canonical.kind == TEXT:
            return positions
        missing = canonical.null if foreign is None else canonical.null | foreign
        return engine.arrays.where(missing, -1, positions)

    def _buckets(self, canonical: Canonical, unseen: Any) -> Any:
        hashes, _ = hash_values(canonical.values[unseen], "Vocabulary with several unseen ids")
        return buckets_of(hashes, self.layout.buckets)

    def decode(self, ids: Any) -> Any:
        """The value of each id, as a column on a new index; null for padding, null and unseen."""
        engine = engine_of(self.values)
        positions = self.positions_of(ids)
        unknown = positions < 0
        if len(self.values) == 0:
            return engine.frames.Series([None] * len(positions), dtype=self.values.dtype)
        found = self.values.take(engine.arrays.clip(positions, 0, None)).reset_index(drop=True)
        if not bool(unknown.any()):
            return found
        return nullable(found, engine.frames.Series(unknown))

    def positions(self, column: Column) -> Any:
        """int64 position in the vocabulary of each row's value, -1 for null and unseen; unseen values need no hash."""
        return self._positions(canonicalize(column, "Vocabulary"))

    def positions_of(self, ids: Any) -> Any:
        """int64 position in the vocabulary of each id, negative for padding, null and unseen.

        Errors (`DataError`): an id outside the table.
        """
        positions = engine_of(self.values).arrays.asarray(ids).astype("int64") - self.layout.first
        if len(positions) and (int(positions.min()) < -self.layout.first or int(positions.max()) >= len(self.values)):
            raise DataError(f"decode: ids must lie in [0, {self.num_ids}).")
        return positions

    def update(self, counted: Frame, min_count: int = 1, max_size: int | None = None) -> Vocabulary:
        """This vocabulary after more rows: old ids stay, new values follow by descending count, ties by value.

        counted: columns value and count (as `engine.value_counts` gives them), each value once. min_count, max_size:
        a new value enters if it was counted so often in `counted`, and while there are fewer than max_size values.
        Counts of known values are added up; those of values that do not enter are not kept.
        """
        engine = engine_of(self.values)
        canonical = canonicalize(counted["value"], "Vocabulary.update")
        if canonical.kind is None:
            return self
        positions = self._positions(canonical)
        added = engine.array(counted["count"]).astype("int64")
        counts = engine.array(self.counts).astype("int64").copy()
        counts[positions[positions >= 0]] += added[positions >= 0]
        fresh = engine.frames.DataFrame({"value": canonical.values.reset_index(drop=True), "count": added})
        fresh = fresh[(positions < 0) & (added >= min_count)]
        fresh = fresh.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)
        if max_size is not None:
            fresh = fresh.head(max(max_size - len(self.values), 0))
        concat = engine.frames.concat
        if len(fresh) == 0:
            return replace(self, counts=engine.frames.Series(counts)).with_table(self._table)
        old, new = same_kind(self.values, fresh["value"], "Vocabulary.update")
        values = concat([old, new], ignore_index=True)
        counts = concat([engine.frames.Series(counts), fresh["count"]], ignore_index=True)
        return replace(self, values=values, counts=counts)

    def uncounted(self) -> Vocabulary:
        """The same values and ids with counts of 0, for `update` to count them anew."""
        engine = engine_of(self.values)
        counts = engine.frames.Series(engine.arrays.zeros(len(self.values), dtype="int64"))
        return replace(self, counts=counts).with_table(self._table)

    def save(self, path: Path) -> None:
        """One Parquet file: columns value and count in id order; the layout in its metadata."""
        engine = engine_of(self.values)
        frame = engine.to_pandas(engine.frames.DataFrame({"value": self.values, "count": self.counts}))
        table = pa.Table.from_pandas(frame, preserve_index=False)
        layout = json.dumps({"layout": asdict(self.layout)}, allow_nan=False).encode()
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), METADATA: layout})
        write_with_checksums(table, path)

    @classmethod
    def load(cls, path: Path, engine: str) -> Vocabulary:
        """What `save` wrote; a file without a layout in its metadata is from before there was a choice: LAYOUT.

        Errors (`DataError`): no such file or no Parquet, other columns, nulls, a value twice, values of a type that
        holds no categories, counts that are no whole numbers from 0, a layout that is none.
        """
        where = f"vocabulary {path}"
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            table.validate(full=True)  # text that is no UTF-8, for one
            layout = _layout((table.schema.metadata or {}).get(METADATA), where)
            frame = load_engine(engine).read_parquet(path)
        except DataError:
            raise
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise_of_system(error, str(where))
            raise DataError(f"{where}: damaged, it cannot be read as Parquet ({error}).") from error
        if list(frame.columns) != ["value", "count"] or bool(frame["value"].isna().any()):
            raise DataError(f"{where}: damaged, it must hold the columns value and count without nulls.")
        counts = frame["count"]
        if getattr(counts.dtype, "kind", "?") != "i" or bool(counts.isna().any()) or bool((counts < 0).any()):
            raise DataError(f"{where}: damaged, counts must be whole numbers from 0, found {counts.dtype}.")
        values = canonicalize(frame["value"], where).values  # refuses types that hold no categories
        if bool(values.duplicated().any()):
            raise DataError(f"{where}: damaged, {int(values.duplicated().sum())} value(s) are there twice.")
        return cls(values, counts, layout)


def _layout(metadata: bytes | None, where: str) -> IdLayout:
    if metadata is None:
        return LAYOUT
    try:
        found = json.loads(metadata)["layout"]
        known = {field.name for field in fields(IdLayout)}
        if set(found) != known:
            raise DataError(f"it has the keys {', '.join(sorted(found))}; known: {', '.join(sorted(known))}")
        return IdLayout(**found)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: damaged, its id layout cannot be read ({error}).") from error


def _arrays(positions: Any) -> Any:
    """NumPy or CuPy, whichever the array is of."""
    return load_engine("cudf" if type(positions).__module__.partition(".")[0] == "cupy" else "pandas").arrays
