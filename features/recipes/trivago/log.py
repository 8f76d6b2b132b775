"""The trivago log as numbers, cut in time: books of its names, and chunks of consecutive moments on disk.

A block is a piece of the input files, a chunk a range of timestamps. `survey` reads every block once and finds what
names there are and when; `Books` numbers the names; `code_block` writes every block again as numbers, parted by chunk;
`read_chunk` gathers one chunk's rows from all blocks, in order of time. Nothing here holds more than a block, a chunk
or the books in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.csv_blocks import CsvBlock

if TYPE_CHECKING:
    import pandas as pd

LOG = {
    "user_id": "string", "session_id": "string", "timestamp": "int64", "step": "int64", "action_type": "string",
    "reference": "string", "platform": "string", "city": "string", "device": "string", "current_filters": "string",
    "impressions": "string", "prices": "string",
}  # fmt: skip
CLICKOUT, SEARCH_ITEM, SORT_CHANGE = "clickout item", "search for item", "change of sort order"
VIEWS = ("interaction item image", "interaction item info", "interaction item deals", "interaction item rating")
ITEM_ACTIONS = (*VIEWS, CLICKOUT, SEARCH_ITEM)
NO_FILTERS = "none"
# Columns of the log whose values are numbered, and under which name the number goes.
NUMBERED = {
    "user_id": "user", "session_id": "session", "action_type": "action", "platform": "platform", "city": "city",
    "device": "device", "current_filters": "filters", "sort_order": "sort_order",
}  # fmt: skip
TIMED = ("user_id", "session_id")  # whose first and last moments are kept


def check_log(log: Any) -> None:
    """Refuse rows that cannot be put in order or belong to nobody."""
    if bool((log["timestamp"] < 0).any()) or bool((log["step"] < 0).any()):
        bad = log[(log["timestamp"] < 0) | (log["step"] < 0)].head(1)[["session_id", "timestamp", "step"]]
        raise DataError(f"trivago log: negative timestamp or step, for example {bad.to_dict('records')[0]}.")
    for name in ("user_id", "session_id", "action_type"):
        if bool(log[name].isna().any()):
            raise DataError(f"trivago log: column {name!r} holds {int(log[name].isna().sum())} null(s).")


@dataclass(frozen=True)
class Survey:
    """What is in some rows: names by column, with first and last timestamp for users and sessions (pandas frames on
    the host), and `times`, columns timestamp and weight: rows, and entries of lists shown, at each timestamp."""

    names: dict[str, pd.DataFrame]
    times: pd.DataFrame
    num_rows: int
    num_clickouts: int


def survey(log: Any) -> Survey:
    """The survey of a raw log or of a block of one."""
    check_log(log)
    engine = engine_of(log)
    named = log[["timestamp"]].copy(deep=False)
    for column in NUMBERED:
        named[column] = _named(log, column)
    names = {}
    for column in NUMBERED:
        if column in TIMED:
            span = named.groupby(column, sort=False)["timestamp"].agg(["min", "max"]).reset_index()
            span.columns = ["value", "first", "last"]
            names[column] = engine.to_pandas(span)
        else:
            found = named[column].dropna().drop_duplicates().reset_index(drop=True)
            names[column] = engine.to_pandas(engine.frames.DataFrame({"value": found}))
    entries = engine.array(log["impressions"].str.count(r"\|"), fill=-1).astype("int64") + 1
    weights = engine.frames.DataFrame({"timestamp": log["timestamp"], "weight": engine.series(entries + 1, log)})
    times = weights.groupby("timestamp", sort=False).agg({"weight": "sum"}).reset_index()
    clickouts = int((log["action_type"] == CLICKOUT).sum())
    return Survey(names, engine.to_pandas(times), len(log), clickouts)


def _named(log: Any, column: str) -> Any:
    """The text that is numbered: no filters are the filter 'none', a sort order is the reference of its change."""
    if column == "current_filters":
        return log[column].fillna(NO_FILTERS)
    if column == "sort_order":
        return log["reference"].where(log["action_type"] == SORT_CHANGE)
    return log[column]


@dataclass(frozen=True)
class OpenRows:
    """Rows that an earlier run left raw, in place of the block that they came from."""

    path: str

    def read(self, engine: str, dtypes: Mapping[str, str], *, null_values: Sequence[str] = ()) -> Any:
        """The rows, which have their types already."""
        return load_engine(engine).read_parquet(self.path, list(dtypes))


@dataclass(frozen=True)
class BlockTask:
    """Block `number` of the files. place: that of its file among all. bounds: where chunks begin, known once all blocks
    have been surveyed. front: the time from which rows are kept raw too, None for no rows."""

    engine: str
    block: CsvBlock | OpenRows
    number: int
    folder: Path
    place: int = 0
    bounds: tuple[int, ...] = ()
    front: int | None = None

    def path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.number:05d}.parquet"


def survey_block(task: BlockTask) -> Survey:
    """`survey` of a block of the files, which is kept as Parquet for `code_block`: text is slow to read twice."""
    log = task.block.read(task.engine, LOG, null_values=("",))
    with atomic_path(task.path("block")) as path:
        load_engine(task.engine).write_passing(log, path)
    return survey(log)


class Books:
    """The number of every name: its place among the column's names in order of value.

    frames: a pandas frame for each column of `NUMBERED`, with `value`, for users and sessions also `first` and `last`
    timestamp, for sessions also `hash`, XXH64 of the id.
    """

    def __init__(self, engine: str, frames: dict[str, pd.DataFrame]) -> None:
        self.engine = load_engine(engine)
        self.frames = {name: self.engine.from_pandas(frame) for name, frame in frames.items()}
        self._actions: np.ndarray | None = None

    @classmethod
    def of(cls, surveys: Sequence[Survey], engine: str) -> Books:
        return cls(engine, cls.frames_of(surveys))

    @staticmethod
    def frames_of(surveys: Sequence[Survey], also: Mapping[str, pd.DataFrame] | None = None) -> dict[str, pd.DataFrame]:
        """`frames` on the host. also: by column further names, of columns without times."""
        import pandas as pd

        found = {}
        for column in NUMBERED:
            more = [also[column]] if also and column in also else []
            whole = pd.concat([*(item.names[column] for item in surveys), *more], ignore_index=True)
            how = [("first", "min"), ("last", "max")] if column in TIMED else []
            values = {"value": pa.array(whole["value"], pa.large_string())}
            table = pa.table(values | {name: pa.array(whole[name]) for name, _ in how})
            # By Arrow: pandas sorts text as Python's objects.
            table = table.filter(pc.is_valid(table["value"])).group_by("value").aggregate(how).sort_by("value")
            table = table.select(["value", *("_".join(part) for part in how)])
            table = table.rename_columns(["value", *(name for name, _ in how)])
            found[column] = table.to_pandas().astype({"value": "str"})
        sessions = load_engine("pandas").hash64(found["session_id"]["value"])
        found["session_id"]["hash"] = sessions
        return found

    def codes(self, log: Any, column: str) -> Any:
        """int64 numbers of the column's values, -1 for null."""
        return self.engine.positions_in(_named(log, column), self.frames[column]["value"])

    def acted(self, actions: Sequence[str]) -> Any:
        """bool [names + 1]: whether a number of `action_type` is one of these actions; the last entry is that of -1.

        The names are read once: asked for one by one, each would be a join on a GPU.
        """
        if self._actions is None:
            self._actions = self.engine.to_pandas(self.frames["action_type"])["value"].to_numpy(dtype=object)
        return self.engine.arrays.asarray(np.append(np.isin(self._actions, list(actions)), False))

    def array(self, column: str, field: str) -> Any:
        return self.engine.array(self.frames[column][field])

    def decode(self, column: str, codes: Any) -> Any:
        """The names behind numbers, as a column; null for -1."""
        values, xp = self.frames[column]["value"], self.engine.arrays
        if len(values) == 0:
            return self.engine.frames.Series([None] * len(codes), dtype="str")
        taken = values.take(xp.clip(codes, 0, None)).reset_index(drop=True)
        return taken if bool((codes >= 0).all()) else taken.where(self.engine.frames.Series(codes >= 0))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for column, frame in self.frames.items():
            self.engine.write_parquet(frame, folder / f"{column}.parquet")

    @staticmethod
    @lru_cache(maxsize=1)
    def load(folder: Path, engine: str) -> Books:
        """What `save` wrote; kept for the next task of this process."""
        import pandas as pd

        return Books(engine, {column: pd.read_parquet(folder / f"{column}.parquet") for column in NUMBERED})


def code_rows(log: Any, books: Books) -> Any:
    """The log as numbers: those of `NUMBERED`, timestamp, step, session_hash, item_id (-1 for none), whether it has a
    reference, and for clickouts the lists as text."""
    engine = books.engine
    xp = engine.arrays
    out = log[["timestamp", "step", "impressions", "prices"]].copy(deep=False)
    for column, number in NUMBERED.items():
        out[number] = engine.series(books.codes(log, column).astype("int32"), log)
    out["session_hash"] = engine.series(books.array("session_id", "hash")[engine.array(out["session"])], log)
    reference = log["reference"]
    out["has_reference"] = reference.notna()
    is_item = log["action_type"].isin(list(ITEM_ACTIONS)) & reference.fillna("").str.isdigit()
    known = engine.array(is_item)
    item = xp.full(len(log), -1, dtype="int64")
    item[known] = engine.array(reference[is_item].astype("int64"))
    out["item_id"] = engine.series(item, log)
    return out


def in_order(coded: Any) -> Any:
    """Coded rows in order of (timestamp, step), with `moment`, the number of their (timestamp, step) among these."""
    engine = engine_of(coded)
    xp = engine.arrays
    out = coded.sort_values(["timestamp", "step", "session_hash"]).reset_index(drop=True)
    changes = (xp.diff(engine.array(out["timestamp"])) != 0) | (xp.diff(engine.array(out["step"])) != 0)
    moment = xp.zeros(len(out), dtype="int64")
    moment[1:] = xp.cumsum(changes)
    out["moment"] = moment
    return out


def chunk_bounds(times: pd.DataFrame, weight: int) -> np.ndarray:
    """int64: the timestamps at which a new chunk begins, so that chunks hold about `weight` of rows and entries.

    times: columns timestamp and weight, in any order. Rows of one timestamp are never parted.
    """
    times = times.groupby("timestamp", sort=True)["weight"].sum()
    before = times.cumsum().to_numpy() - times.to_numpy()
    starts = np.flatnonzero(np.diff(before // weight, prepend=0))
    return times.index.to_numpy()[starts].astype(np.int64)


def code_block(task: BlockTask) -> list[int]:
    """Write a block as numbers, one row group for each chunk that it has rows of; returns those chunks, in order.

    Rows from the task's front on are written as they are, too, as `open`, if there are any.
    """
    books = Books.load(task.folder / "books", task.engine)
    engine = books.engine
    log = engine.read_parquet(task.path("block"))
    if task.front is not None:
        stay = log[log["timestamp"] >= task.front].reset_index(drop=True)
        if len(stay):
            with atomic_path(task.path("open")) as path:
                engine.write_parquet(stay, path)
    coded = engine.to_pandas(code_rows(log, books))
    chunk = np.searchsorted(np.asarray(task.bounds, dtype=np.int64), coded["timestamp"].to_numpy(), side="right")
    order = np.argsort(chunk, kind="stable")
    table = pa.Table.from_pandas(coded.take(order), preserve_index=False)
    present, starts = np.unique(chunk[order], return_index=True)
    with (
        atomic_path(task.path("coded")) as path,
        pq.ParquetWriter(path, table.schema, compression="lz4") as writer,
    ):
        for start, stop in zip(starts, [*starts[1:], len(table)], strict=True):
            writer.write_table(table.slice(start, stop - start), row_group_size=len(table))
    return [int(number) for number in present]


def read_chunk(engine: str, folder: Path, groups: Sequence[tuple[int, int]]) -> Any:
    """The rows of a chunk in order of time. groups: the (block, row group) pairs that hold them."""
    paths = [folder / f"coded-{block:05d}.parquet" for block, _ in groups]
    tables = [pq.ParquetFile(path).read_row_group(group) for path, (_, group) in zip(paths, groups, strict=True)]
    return in_order(load_engine(engine).from_pandas(pa.concat_tables(tables).to_pandas()))


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path to write to, moved to `path` when the block ends well: a task may run twice, or be killed midway."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
