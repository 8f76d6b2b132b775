"""The newest feature row of every user or item, part by part, and whole feature rows made of one entity's columns.

    newest = NewestRows(schema, schema.entity("item"))
    for path in parts:
        newest.add(engine.read_parquet(path))
    words = preprocessor.pack(feature_rows(schema, newest.entity, newest.frame), targets=False)

Frames of either engine, those with lists of pandas alone; memory holds one part and a row of each user or item.
"""

from __future__ import annotations

from typing import Any

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.reading.sources import cast
from gigabatch.features.schema import Entity, ListColumn, Schema


def kept_lists(schema: Schema, entity: Entity) -> list[ListColumn]:
    """The list columns that are kept of an entity's rows: its own; and of a user the histories too, lists of context
    that share the vocabulary of the item's key, since without what was chosen before a user's vector would be that of
    somebody who has chosen nothing."""
    item = schema.entity("item")
    of_somebody = {name for one in schema.entities for name in one.columns}

    def is_history(column: ListColumn) -> bool:
        return item is not None and column.shares == item.key and column.name not in of_somebody

    return [
        column
        for column in schema.lists
        if column.name in entity.columns or (entity.name == "user" and is_history(column))
    ]


def kept_columns(schema: Schema, entity: Entity) -> list[str]:
    """What is kept of an entity's rows, in the schema's order: its columns, the time, and its lists (`kept_lists`) with
    their weights."""
    wanted = {*entity.columns, *schema.names("time")}
    wanted |= {name for column in kept_lists(schema, entity) for name in column.columns}
    return [name for name in schema.table_columns if name in wanted]


class NewestRows:
    """Gathers the newest row of each user or item from frames that come in file order.

    Newest is the row with the greatest time, where the schema has a time column, and of those of equal time the last;
    without such a column the last of all. A row without time is older than any with one. Rows whose key is null belong
    to nobody and are left out; `rows` counts those that were given, `keyless` these.
    """

    def __init__(self, schema: Schema, entity: Entity) -> None:
        self.schema, self.entity = schema, entity
        self.columns = kept_columns(schema, entity)
        self.rows = self.keyless = 0
        self._newest: Any = None

    def add(self, frame: Any) -> NewestRows:
        """Take in rows that come after those so far; columns that are not needed are ignored."""
        where = f"rows of the {self.entity.name}"
        require_columns(frame, self.columns, where)
        dtypes = {name: dtype for name, dtype in self.schema.table_dtypes.items() if name in set(self.columns)}
        # Time may have nulls whatever its type; nothing is computed from it but an order.
        nullable = {*self.schema.names("categorical"), *self.schema.names("time")}
        typed = cast(frame[self.columns], dtypes, where, nullable=nullable)
        key = self.entity.key
        typed = cast(typed[typed[key].notna()], {key: dtypes[key]}, where)
        self.rows, self.keyless = self.rows + len(frame), self.keyless + len(frame) - len(typed)
        engine = engine_of(typed)
        known = [] if self._newest is None else [self._newest]
        both = engine.frames.concat([*known, typed], ignore_index=True)
        self._newest = both.take(self._chosen(both)).reset_index(drop=True)
        return self

    def _chosen(self, frame: Any) -> Any:
        """int64 places of the newest rows, in the order in which their keys first appear."""
        engine = engine_of(frame)
        xp = engine.arrays
        codes = engine.codes(frame[self.entity.key])
        places = xp.arange(len(frame), dtype="int64")
        order = xp.lexsort(xp.stack([places, self._ranks(frame), codes]))  # by code, then time, then place
        ordered = codes[order]
        last = xp.ones(len(frame), dtype="bool")
        last[:-1] = ordered[1:] != ordered[:-1]
        _, first = xp.unique(codes, return_index=True)  # both are in the order of the codes
        return order[last][xp.argsort(first)]

    def _ranks(self, frame: Any) -> Any:
        """int64 that order rows as their times do; 0 where there is none."""
        engine, time = engine_of(frame), self.schema.only("time")
        xp = engine.arrays
        ranks = xp.zeros(len(frame), dtype="int64")
        if time is None:
            return ranks
        there = engine.array(frame[time].notna())
        dtype = self.schema.dtypes()[time]
        if dtype == "string":
            raise DataError(f"rows of the {self.entity.name}: time column {time!r} is text. Make it a number.")
        # Not through float64, which would round a time in nanoseconds.
        moments = engine.array(frame[time].dropna().astype("int64" if dtype == "datetime" else dtype))
        ranks[there] = 1 + xp.unique(moments, return_inverse=True)[1].astype("int64")
        return ranks

    @property
    def frame(self) -> Any:
        """The newest rows so far: the entity's columns and the time, each key once, by first appearance."""
        if self._newest is None:
            raise DataError(f"rows of the {self.entity.name}: no frame was given.")
        return self._newest


def feature_rows(schema: Schema, entity: Entity, rows: Any) -> Any:
    """Whole feature rows, such as `Preprocessor.pack` takes, of which only the columns that are kept are filled.

    The other columns hold nulls, which are empty lists; continuous ones of whole numbers and flags, which cannot, hold
    0. What a model computes of the entity alone must not depend on them.
    """
    engine, dtypes = engine_of(rows), schema.dtypes()
    columns = {}
    for column in (column for column in schema.columns if column.role in ("categorical", "continuous")):
        if column.name in entity.columns:
            columns[column.name] = rows[column.name]
        else:
            columns[column.name] = _empty(rows, dtypes[column.name], null=column.role == "categorical")
    kept = {name for column in kept_lists(schema, entity) for name in column.columns}
    for name in (name for column in schema.lists for name in column.columns):
        columns[name] = rows[name] if name in kept else engine.frames.Series([None] * len(rows), index=rows.index)
    return engine.frames.DataFrame(columns, index=rows.index)


def _empty(rows: Any, dtype: str, null: bool) -> Any:
    """A column of nulls, or of zeros where a column of this type cannot hold them."""
    engine = engine_of(rows)
    xp = engine.arrays
    if dtype == "string":
        return engine.frames.Series([None] * len(rows), dtype="str", index=rows.index)
    if dtype.startswith("float"):
        return engine.series(xp.full(len(rows), float("nan"), dtype=dtype), rows)
    zeros = engine.series(xp.zeros(len(rows), dtype=dtype), rows)
    everywhere = engine.series(xp.ones(len(rows), dtype="bool"), rows)
    return engine.with_nulls(zeros, everywhere) if null else zeros
