"""Which integer stands for which category: the id layout and the vocabulary built on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.errors import DataError
from features.frame import engine_of, load_engine


@dataclass(frozen=True)
class IdLayout:
    """Ids: 0 padding, 1 null, 2 unseen, then the vocabulary. The only place where this order is written down.

    buckets: how many ids unseen values share, from `unseen` on: XXH64 of the value modulo `buckets` picks one.
    """

    padding: int = 0
    null: int = 1
    unseen: int = 2
    buckets: int = 1

    @property
    def first(self) -> int:
        """The id of the vocabulary's first value."""
        return max(self.padding, self.null, self.unseen + self.buckets - 1) + 1

    def num_ids(self, num_values: int) -> int:
        """Rows that an embedding table needs for a vocabulary of `num_values`."""
        return self.first + num_values


LAYOUT = IdLayout()


@dataclass(frozen=True)
class Vocabulary:
    """The known values of one column, by descending frequency at the first fit, ties by ascending value.

    values: a column of the values, of string, int64, int32, bool or float type. counts: int64, how often each was
    seen at fit.
    """

    values: Any
    counts: Any

    @property
    def num_ids(self) -> int:
        return LAYOUT.num_ids(len(self.values))

    def encode(self, column: Any) -> Any:
        """int32 ids, one a row. Values are looked up by value, never by a frame's own category codes."""
        engine = engine_of(column)
        positions = engine.positions_in(column, self.values)
        null = engine.array(column.isna())
        ids = engine.arrays.where(positions >= 0, positions + LAYOUT.first, LAYOUT.unseen)
        return engine.arrays.where(null, LAYOUT.null, ids).astype("int32")

    def decode(self, ids: Any) -> Any:
        """The value of each id, as a column; null for padding, null and unseen."""
        engine = engine_of(self.values)
        positions = engine.arrays.asarray(ids).astype("int64") - LAYOUT.first
        if len(positions) and (int(positions.min()) < -LAYOUT.first or int(positions.max()) >= len(self.values)):
            raise DataError(f"decode: ids must lie in [0, {self.num_ids}).")
        known = engine.frames.DataFrame({"position": engine.arrays.arange(len(self.values))})
        known["value"] = self.values
        asked = engine.frames.DataFrame({"position": positions, "row": engine.arrays.arange(len(positions))})
        return asked.merge(known, on="position", how="left").sort_values("row").reset_index(drop=True)["value"]

    def save(self, path: Path) -> None:
        engine = engine_of(self.values)
        frame = engine.frames.DataFrame({"value": self.values, "count": self.counts})
        engine.write_parquet(frame, path)

    @classmethod
    def load(cls, path: Path, engine: str) -> Vocabulary:
        frame = load_engine(engine).read_parquet(path)
        if list(frame.columns) != ["value", "count"] or frame["value"].isna().any():
            raise DataError(f"vocabulary {path}: damaged, it must hold the columns value and count without nulls.")
        return cls(frame["value"], frame["count"])
