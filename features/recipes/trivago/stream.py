"""The trivago pairs of a log of any size: tasks over blocks and chunks, and the scan between them.

Each task reads files and writes files under names that follow from its number, whole or not at all, so that it may run
in any process that sees the folder, and again where a process was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.text_flags import Words
from gigabatch.features.reading.csv_blocks import CsvBlock
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.trivago.chunk import FAMILIES, OWNED, Chunk, Tables, explode, owner_of, totals
from gigabatch.features.recipes.trivago.features import PairBuilder, Properties
from gigabatch.features.recipes.trivago.history import ITEM_BITS, Ledger, read_arrays, write_arrays
from gigabatch.features.recipes.trivago.log import (
    BlockTask,
    Books,
    atomic_path,
    chunk_bounds,
    code_block,
    read_chunk,
    survey_block,
)

TaskMap = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
TABLES = ("rows", "clickouts", "pairs")


@dataclass(frozen=True)
class ChunkTask:
    """Chunk `number` of the log and what it takes to make its pairs.

    groups: (block, row group) of its rows. start, stop: its timestamps, stop None for the last one.
    """

    engine: str
    folder: Path
    number: int
    groups: tuple[tuple[int, int], ...]
    start: int
    stop: int | None
    num_folds: int
    ctr_smoothing: float
    target_smoothing: float

    def path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.number:05d}"

    @property
    def books(self) -> Books:
        return Books.load(self.folder / "books", self.engine)


@dataclass(frozen=True)
class ChunkFacts:
    """Clickouts of a chunk: how many are used, the timestamps of those with a reference, and how many were left out."""

    num_clickouts: int
    labelled_at: np.ndarray
    without_list: int
    not_in_list: int


def gather_chunk(task: ChunkTask) -> ChunkFacts:
    """Pass 1: the chunk's tables and totals."""
    books, engine = task.books, load_engine(task.engine)
    tables = explode(read_chunk(task.engine, task.folder, task.groups), books)
    began = {name: books.array(f"{name}_id", "first") < task.start for name in ("session", "user")}
    goes_on = {
        name: books.array(f"{name}_id", "last") >= (2**62 if task.stop is None else task.stop)
        for name in ("session", "user")
    }
    for name in TABLES:
        with atomic_path(task.path(name)) as path:
            engine.write_parquet(getattr(tables, name), path)
    write_arrays(task.path("totals"), totals(Chunk(tables, books, task.num_folds, None), began, goes_on))
    labelled = tables.clickouts["timestamp"][tables.clickouts["has_reference"]]
    return ChunkFacts(
        len(tables.clickouts), engine.to_host(engine.array(labelled)), tables.without_list, tables.not_in_list
    )


def scan(tasks: Sequence[ChunkTask]) -> None:
    """Pass 2: chunk after chunk, what its groups carry over from earlier ones."""
    ledgers = {name: Ledger(rules) for name, rules in FAMILIES.items()}
    last = {
        owner: pd.read_parquet(tasks[0].folder / "books" / f"{owner}_id.parquet")["last"].to_numpy()
        for owner in ("session", "user")
    }
    for task in tasks:
        found = read_arrays(task.path("totals"))
        carried: dict[str, np.ndarray] = {}
        for name, ledger in ledgers.items():
            told = ledger.carry(found.get(f"{name}/asked"))
            carried |= {f"{name}/{column}": values for column, values in told.items()}
        write_arrays(task.path("carried"), carried)
        _settle_visits(found, ledgers["session"])
        for name, ledger in ledgers.items():
            ledger.add(found[f"{name}/key"], {column: found[f"{name}/{column}"] for column in ledger.rules})
            if name in OWNED and task.stop is not None:
                owners = owner_of(name, ledger.keys, task.num_folds)
                ledger.keep(last[OWNED[name][0]][owners] >= task.stop)
        task.path("totals").unlink()


def _settle_visits(found: dict[str, np.ndarray], sessions: Ledger) -> None:
    """Count the visits whose start hung on the session's last item before the chunk."""
    session, item = found["first/session"], found["first/item"]
    asked = np.unique(session)
    before = sessions.carry(asked)
    place = np.clip(np.searchsorted(before["key"], session), 0, max(len(before["key"]) - 1, 0))
    known = before["key"][place] == session if len(before["key"]) else np.zeros(len(session), dtype=bool)
    same = known.copy()
    same[known] = before["interacted"][place[known]] == item[known]
    keys = (session[~same] << ITEM_BITS) + item[~same]
    np.add.at(found["session_item/visits"], np.searchsorted(found["session_item/key"], keys), 1)


@dataclass(frozen=True)
class WriteTask:
    """Pass 3 of a chunk: its pairs into the parts of the splits that they belong to."""

    chunk: ChunkTask
    out: Path
    first_clickout: int
    columns: tuple[str, ...]
    train_until: int
    valid_until: int


def write_chunk(task: WriteTask) -> dict[str, int]:
    """Write `<split>/part-<chunk>.parquet` where the split has rows of this chunk; returns rows by split."""
    chunk = task.chunk
    engine, books = load_engine(chunk.engine), chunk.books
    frames = [engine.read_parquet(chunk.path(name)) for name in TABLES]
    flat = read_arrays(chunk.path("carried"))
    carried = {
        name: {column: flat[f"{name}/{column}"] for column in ("key", *rules)} for name, rules in FAMILIES.items()
    }
    builder = PairBuilder(
        books,
        load_properties(chunk.folder / "properties", chunk.engine),
        chunk.num_folds,
        chunk.ctr_smoothing,
        chunk.target_smoothing,
    )
    pairs = builder.build(Tables(frames[0], frames[1], frames[2], 0, 0), carried, task.first_clickout)
    ends = books.array("session_id", "last")[engine.array(pairs["session"])]
    split = split_of(engine, pairs["target"], ends, task.train_until, task.valid_until)
    rows = {}
    for name, mask in split.items():
        part = pairs[list(task.columns)][engine.series(mask, pairs)]
        rows[name] = len(part)
        if len(part):
            with atomic_path(task.out / name / f"part-{chunk.number:05d}.parquet") as path:
                engine.write_parquet(part.reset_index(drop=True), path)
    return rows


def split_of(engine: Any, target: Any, ends: Any, train_until: int, valid_until: int) -> dict[str, Any]:
    """bool masks of train, valid, test and score, by the last moment `ends` of each pair's session."""
    labelled = engine.array(target.notna())
    return {
        "train": labelled & (ends <= train_until),
        "valid": labelled & (ends > train_until) & (ends <= valid_until),
        "test": labelled & (ends > valid_until),
        "score": ~labelled,
    }


def split_times(times: np.ndarray, split: SplitFractions) -> tuple[int, int]:
    """The times by which train, and train and valid, have their share of the labelled clickouts; times: ascending."""
    if len(times) == 0:
        raise DataError("trivago: no clickout has a reference among its impressions, so there is nothing to learn.")
    first, second = (times[max(end - 1, 0)] for end in split.ends(len(times)))
    return int(first), int(second)


def save_properties(properties: Properties, folder: Path, engine: str) -> None:
    """The properties of items for tasks to load."""
    module = load_engine(engine)
    folder.mkdir(parents=True)
    np.save(folder / "has.npy", module.to_host(properties.has))
    np.save(folder / "item_id.npy", module.to_host(module.array(properties.item_id)))
    (folder / "words.json").write_text(json.dumps(asdict(properties.words), allow_nan=False))


@lru_cache(maxsize=1)
def load_properties(folder: Path, engine: str) -> Properties:
    """What `save_properties` wrote; kept for the next task of this process."""
    module = load_engine(engine)
    words = json.loads((folder / "words.json").read_text())
    return Properties(
        module.frames.Series(module.arrays.asarray(np.load(folder / "item_id.npy"))),
        module.arrays.asarray(np.load(folder / "has.npy")),
        Words(tuple(words["words"]), tuple(words["columns"])),
    )


@dataclass(frozen=True)
class Streamed:
    """What a stream wrote. counts: log rows, clickouts, without_list and not_in_list."""

    rows: dict[str, int]
    counts: dict[str, int]


def stream_pairs(
    blocks: Sequence[CsvBlock],
    properties: Properties,
    columns: Sequence[str],
    blank: ChunkTask,
    split: SplitFractions,
    out: Path,
    chunk_weight: int,
    run: TaskMap,
    report: Callable[[str], None],
) -> Streamed:
    """Write the pairs of a log to `out/<split>/part-*.parquet`, chunk by chunk, in order of time.

    blank: a task without a number; its folder holds what lies between the passes. split: of the labelled clickouts.
    chunk_weight: log rows and pairs that a chunk holds together. run: calls a function on each of a
    list of tasks, in any process, and gives the results in order.
    """
    engine, folder = blank.engine, blank.folder
    pieces = [BlockTask(engine, block, number, folder) for number, block in enumerate(blocks)]
    surveys = run(survey_block, pieces)
    Books.of(surveys, engine).save(folder / "books")
    save_properties(properties, folder / "properties", engine)
    bounds = chunk_bounds(pd.concat([item.times for item in surveys], ignore_index=True), chunk_weight)
    counts = {"rows": sum(s.num_rows for s in surveys), "clickouts": sum(s.num_clickouts for s in surveys)}
    del surveys
    report("read")
    limits = tuple(int(bound) for bound in bounds)
    present = run(code_block, [replace(piece, bounds=limits) for piece in pieces])
    _remove(folder, "block")
    report("coded")
    tasks = []
    for number, (start, stop) in enumerate(zip((0, *limits), (*limits, None), strict=True)):
        groups = [(block, chunks.index(number)) for block, chunks in enumerate(present) if number in chunks]
        tasks.append(replace(blank, number=number, groups=tuple(groups), start=start, stop=stop))
    facts = run(gather_chunk, tasks)
    _remove(folder, "coded")
    report("gathered")
    scan(tasks)
    report("history")
    until = split_times(np.concatenate([fact.labelled_at for fact in facts]), split)
    for name in ("train", "valid", "test", "score"):
        (out / name).mkdir()
    first = np.cumsum([0, *(fact.num_clickouts for fact in facts)])
    rows = run(write_chunk, [WriteTask(task, out, int(first[task.number]), tuple(columns), *until) for task in tasks])
    report("pairs")
    sizes = {name: sum(part[name] for part in rows) for name in rows[0]}
    _finish_splits(engine, out, sizes)
    Books.load.cache_clear()
    load_properties.cache_clear()
    left_out = {name: sum(getattr(fact, name) for fact in facts) for name in ("without_list", "not_in_list")}
    return Streamed(sizes, counts | left_out)


def _finish_splits(engine: str, out: Path, rows: dict[str, int]) -> None:
    """Remove what lost workers left, and give a split without rows one part, so that its columns can be read."""
    module = load_engine(engine)
    for name in rows:
        _remove(out / name, ".part")
    first = min((path for name in rows for path in (out / name).glob("part-*")), default=None)
    for name, number in rows.items():
        if number == 0 and first is not None:
            module.write_parquet(module.read_parquet(first).head(0), out / name / "part-00000.parquet")


def _remove(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}-*"):
        path.unlink()
