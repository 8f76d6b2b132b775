"""The trivago pairs of a log of any size: tasks over blocks and chunks, and the scan between them.

Each task reads files and writes files under names that follow from its number, whole or not at all, so that it may run
in any process that sees the folder, and again where a process was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.history.past import NotLater
from gigabatch.features.operators.categories.text_flags import Words
from gigabatch.features.reading.csv_blocks import CsvBlock
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.carrying import History
from gigabatch.features.recipes.trivago.chunk import FAMILIES, OWNED, Chunk, Tables, explode, owner_of, totals
from gigabatch.features.recipes.trivago.features import PairBuilder, Properties
from gigabatch.features.recipes.trivago.history import ITEM_BITS, Ledger, read_arrays, write_arrays
from gigabatch.features.recipes.trivago.log import (
    BlockTask,
    Books,
    OpenRows,
    Survey,
    atomic_path,
    chunk_bounds,
    code_block,
    read_chunk,
    survey_block,
)
from gigabatch.features.recipes.trivago.nights import Kept, Nights, Part

TaskMap = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
TABLES = ("rows", "clickouts", "pairs")
# A log that would be a few chunks is cut so often that several workers have equal shares, but not below so much weight
# a chunk: then what each costs by itself shows.
SHARES, LEAST_SHARE = 4, 100_000
PIECES = 8  # parts of a chunk that is kept: the fewer rows a part has, the fewer are written again for the next cut


@dataclass(frozen=True)
class ChunkTask:
    """Chunk `number` of the log and what it takes to make its pairs.

    groups: (block, row group) of its rows. start, stop: its timestamps, stop None for the last one. finished: whether
    no later run computes it again, so that all of it is kept.
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
    finished: bool = False

    def path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.number:05d}"

    @property
    def books(self) -> Books:
        return Books.load(self.folder / "books", self.engine)


@dataclass(frozen=True)
class ChunkFacts:
    """Rows of a chunk, and of its clickouts how many are used, the timestamps of those with a reference, and how many
    were left out."""

    num_rows: int
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
        # Any session may go on in a later night: a finished chunk tells of all.
        name: books.array(f"{name}_id", "last") >= (2**62 if task.stop is None else 0 if task.finished else task.stop)
        for name in ("session", "user")
    }
    for name in TABLES:
        with atomic_path(task.path(name)) as path:
            engine.write_passing(getattr(tables, name), path)
    write_arrays(task.path("totals"), totals(Chunk(tables, books, task.num_folds, None), began, goes_on))
    labelled = tables.clickouts["timestamp"][tables.clickouts["has_reference"]]
    return ChunkFacts(
        len(tables.rows),
        len(tables.clickouts),
        engine.to_host(engine.array(labelled)),
        tables.without_list,
        tables.not_in_list,
    )


def scan(tasks: Sequence[ChunkTask], nights: Nights | None = None) -> None:
    """Pass 2: chunk after chunk, what its groups carry over from earlier ones.

    nights: says what rows amount to that an earlier run finished, and is told what this one's do.
    """
    last, first = (_spans(tasks[0], name) for name in ("last", "first"))
    ledgers = {name: Ledger(rules) for name, rules in FAMILIES.items()}
    if nights is not None and nights.runs.runs:
        ledgers = nights.ledgers(lambda name: _asked(tasks, name), np.flatnonzero(first["session"] < tasks[0].start))
    some_finished = False
    for task in tasks:
        if nights is not None and some_finished and not task.finished:  # the front
            nights.add_run(task.path("run"), {name: ledger.carry() for name, ledger in ledgers.items()}, whole=True)
            some_finished = False
        some_finished |= task.finished
        found = read_arrays(task.path("totals"))
        carried: dict[str, np.ndarray] = {}
        for name, ledger in ledgers.items():
            told = ledger.carry(found.get(f"{name}/asked"))
            carried |= {f"{name}/{column}": values for column, values in told.items()}
        write_arrays(task.path("carried"), carried)
        _settle_visits(found, ledgers["session"])
        ended: dict[str, dict[str, np.ndarray]] = {}
        for name, ledger in ledgers.items():
            ledger.add(found[f"{name}/key"], {column: found[f"{name}/{column}"] for column in ledger.rules})
            if name in OWNED and task.stop is not None:
                owners = owner_of(name, ledger.keys, task.num_folds)
                stays = last[OWNED[name][0]][owners] >= task.stop
                if task.finished:
                    ended[name] = ledger.carry(ledger.keys[~stays])
                ledger.keep(stays)
        if nights is not None and ended:
            nights.add_run(task.path("ended"), ended, whole=False)
        task.path("totals").unlink()


def _spans(task: ChunkTask, name: str) -> dict[str, np.ndarray]:
    """When every session and user began (`first`) or ended (`last`)."""
    import pandas as pd

    books = {owner: task.folder / "books" / f"{owner}_id.parquet" for owner in ("session", "user")}
    return {owner: pd.read_parquet(path, columns=[name])[name].to_numpy() for owner, path in books.items()}


def _asked(tasks: Sequence[ChunkTask], family: str) -> np.ndarray:
    """Ascending keys of the family that chunks ask about."""
    asked = [read_arrays(task.path("totals"), f"{family}/asked") for task in tasks]
    return np.unique(np.concatenate([part for found in asked for part in found.values()]))


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
    """Pass 3 of a chunk: its pairs into the parts of the splits that they belong to.

    number: of its parts. piece_rows: how many pairs a part holds of a chunk that is finished.
    """

    chunk: ChunkTask
    out: Path
    number: int
    first_clickout: int
    columns: tuple[str, ...]
    train_until: int
    valid_until: int
    piece_rows: int


@dataclass(frozen=True)
class Written:
    """rows: pairs by split. parts: of a finished chunk, with the number of each session of tonight's books; and of each
    whether all belong to train."""

    rows: dict[str, int]
    parts: tuple[tuple[Part, bool], ...] = ()


def write_chunk(task: WriteTask) -> Written:
    """Write `<split>/part-<number>.parquet` where the split has rows of this chunk."""
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
    tables = Tables(frames[0], frames[1], frames[2], 0, 0)
    pairs = builder.build(tables, carried, task.first_clickout)
    ends = books.array("session_id", "last")[engine.array(pairs["session"])]
    split = split_of(engine, pairs["target"], ends, task.train_until, task.valid_until)
    rows = {name: int(mask.sum()) for name, mask in split.items()}
    pairs = pairs[list(task.columns)]
    if not chunk.finished:
        for name, mask in split.items():
            _write_rows(engine, pairs, mask, task.out / name / part_name(task.number))
        return Written(rows)
    clicks = _clicks(engine, tables)
    parts = []
    for piece, (start, stop) in enumerate(_pieces(clicks["pairs"], task.piece_rows)):
        name = part_name(task.number, piece)
        clickouts = {column: values[start:stop] for column, values in clicks.items()}
        first, end = (int(clicks["pairs"][:place].sum()) for place in (start, stop))
        masks = {split_name: mask[first:end] for split_name, mask in split.items()}
        frame, sizes = pairs.iloc[first:end], {split_name: int(mask.sum()) for split_name, mask in masks.items()}
        for split_name, mask in masks.items():
            _write_rows(engine, frame, mask, task.out / split_name / name)
        score = task.out / "score" / name if sizes["score"] else None
        of = [split_name for split_name in ("train", "valid", "test") if sizes[split_name]]
        whole = task.out / of[0] / name if of else None
        if len(of) > 1:  # whatever split they will belong to
            whole = chunk.folder / f"pairs-{name}"
            _write_rows(engine, frame, ~masks["score"], whole)
        rows_of_part = (end - first - sizes["score"], sizes["score"])
        parts.append((Part(whole, score, rows_of_part, clickouts), of in ([], ["train"])))
    return Written(rows, tuple(parts))


def part_name(number: int, piece: int | None = None) -> str:
    """The file of a part, or of a piece of one; names in order are rows in order."""
    return f"part-{number:05d}{'' if piece is None else f'-{piece:04d}'}.parquet"


def _write_rows(engine: Any, frame: Any, mask: Any, path: Path) -> None:
    """The rows of the mask as one file, if there are any."""
    if bool(mask.any()):
        part = frame if bool(mask.all()) else frame[engine.series(mask, frame)]
        with atomic_path(path) as temporary:
            engine.write_parquet(part.reset_index(drop=True), temporary)


def _clicks(engine: Any, tables: Tables) -> dict[str, np.ndarray]:
    """Of each clickout what is kept, by `nights.CLICKS`."""
    clickouts = tables.clickouts
    of_pair = engine.to_host(engine.array(tables.pairs["clickout"]))
    found = {
        "session": clickouts["session"], "labelled": clickouts["has_reference"], "timestamp": clickouts["timestamp"],
    }  # fmt: skip
    host = {name: engine.to_host(engine.array(values)) for name, values in found.items()}
    return host | {"pairs": np.bincount(of_pair, minlength=len(clickouts)).astype(np.int64)}


def _pieces(pairs: np.ndarray, piece_rows: int) -> list[tuple[int, int]]:
    """[start, stop) of clickouts so that a piece holds about so many pairs."""
    before = np.cumsum(pairs) - pairs
    starts = [int(start) for start in np.flatnonzero(np.diff(before // piece_rows, prepend=-1))]
    return list(pairwise([*starts, len(pairs)])) if starts else []


@dataclass(frozen=True)
class CutTask:
    """Pairs that an earlier run finished, and the split that each of their clickouts belongs to now.

    splits: by clickout its place in `LABELLED`. pairs: by clickout.
    """

    engine: str
    source: Path
    out: Path
    name: str
    splits: np.ndarray
    pairs: np.ndarray


LABELLED = ("train", "valid", "test")


def cut_part(task: CutTask) -> None:
    """Write the pairs of each split as its part."""
    engine = load_engine(task.engine)
    frame, of_pair = engine.read_parquet(task.source), np.repeat(task.splits, task.pairs)
    for place, split in enumerate(LABELLED):
        _write_rows(engine, frame, engine.arrays.asarray(of_pair == place), task.out / split / task.name)


def split_of(engine: Any, target: Any, ends: Any, train_until: int, valid_until: int) -> dict[str, Any]:
    """bool masks of train, valid, test and score, by the last moment `ends` of each pair's session."""
    return _split_masks(engine.array(target.notna()), ends, train_until, valid_until)


def _split_masks(labelled: Any, ends: Any, train_until: int, valid_until: int) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Carrying:
    """Where a stream goes on, and what it leaves. kept: what an earlier run left. num_days: how many of the files are
    of days; those behind them, the challenge's test files, may be of any time."""

    history: History
    kept: Kept
    num_days: int


def stream_pairs(
    blocks: Sequence[tuple[int, CsvBlock | OpenRows]],
    properties: Properties,
    columns: Sequence[str],
    blank: ChunkTask,
    split: SplitFractions,
    out: Path,
    chunk_weight: int,
    run: TaskMap,
    report: Callable[[str], None],
    carrying: Carrying | None = None,
    several: bool = False,
) -> Streamed:
    """Write the pairs of a log to `out/<split>/part-*.parquet`, chunk by chunk, in order of time.

    blocks: each with the place of its file. blank: a task without a number; its folder holds what lies between the
    passes. split: of the labelled clickouts. chunk_weight: log rows and pairs that a chunk holds together at most
    (nearly). run: calls a function on each of a list of tasks, in any process, and gives the results in order.
    carrying: None computes all. several: whether tasks run beside each other.

    Raises
    ------
    NotLater
        Where a row lies before those that are open.
    """
    import pandas as pd

    engine, folder = blank.engine, blank.folder
    kept = Kept() if carrying is None else carrying.kept
    pieces = [BlockTask(engine, block, number, folder, place) for number, (place, block) in enumerate(blocks)]
    surveys = run(survey_block, pieces)
    front = None if carrying is None else _front(surveys, pieces, carrying)
    also = Nights.names_kept(kept)
    frames = Books.frames_of(surveys, also)
    nights = None if front is None else Nights(kept, frames, blank.num_folds, front)
    Books(engine, frames).save(folder / "books")
    save_properties(properties, folder / "properties", engine)
    times = pd.concat([item.times for item in surveys], ignore_index=True)
    weight = chunk_weight
    if several:
        weight = min(chunk_weight, max(int(times["weight"].sum()) // SHARES, LEAST_SHARE))
    cuts = {int(bound) for bound in chunk_bounds(times, weight)}
    if front is not None and bool((times["timestamp"] < front).any()):
        cuts.add(front)
    limits = tuple(sorted(cuts))
    del surveys, times
    report("read")
    present = run(code_block, [replace(piece, bounds=limits, front=front) for piece in pieces])
    _remove(folder, "block")
    report("coded")
    tasks = []
    for number, (start, stop) in enumerate(zip((kept.front, *limits), (*limits, None), strict=True)):
        groups = [(block, chunks.index(number)) for block, chunks in enumerate(present) if number in chunks]
        finished = front is not None and stop is not None and stop <= front
        tasks.append(replace(blank, number=number, groups=tuple(groups), start=start, stop=stop, finished=finished))
    facts = run(gather_chunk, tasks)
    _remove(folder, "coded")
    report("gathered")
    scan(tasks, nights)
    report("history")
    before = [part.clicks["timestamp"][part.clicks["labelled"]] for part in kept.parts]
    until = split_times(np.concatenate([*before, *(fact.labelled_at for fact in facts)]), split)
    for name in ("train", "valid", "test", "score"):
        (out / name).mkdir()
    num_known = sum(len(part.clicks["pairs"]) for part in kept.parts)
    first = num_known + np.cumsum([0, *(fact.num_clickouts for fact in facts)])
    piece_rows = max(chunk_weight // PIECES, 1)
    written = run(
        write_chunk,
        [
            WriteTask(
                task, out, len(kept.parts) + task.number, int(first[task.number]), tuple(columns), *until, piece_rows
            )
            for task in tasks
        ],
    )
    report("pairs")
    sizes = {name: sum(part.rows[name] for part in written) for name in written[0].rows}
    counts = _counts(kept.counts, facts)
    if carrying is not None and nights is not None:
        computed = sum(sizes.values())
        settled = [] if not kept.parts else _cut_kept(kept, nights, engine, out, until, sizes, run, carrying.history)
        parts = list(zip(kept.parts, settled, strict=True))
        for result in written:
            for part, is_train in result.parts:
                sessions = nights.numbers["session_id"][part.clicks["session"]]
                parts.append((replace(part, clicks=part.clicks | {"session": sessions}), is_train))
        done = _counts(kept.counts, [fact for fact, task in zip(facts, tasks, strict=True) if task.finished])
        opened = [(piece.place, path) for piece in pieces if (path := piece.path("open")).exists()]
        share = carrying.history.share
        carrying.history.keep_files(
            lambda target: nights.write(target, parts, opened, done, engine, piece_rows, share),
            nights.new_front,
            sum(sum(part.rows) for part, _ in parts),
            sum(sum(part.rows) for part in kept.parts),
            computed,
        )
        report("kept")
    _finish_splits(engine, out, sizes)
    Books.load.cache_clear()
    load_properties.cache_clear()
    return Streamed(sizes, counts)


def _front(surveys: Sequence[Survey], pieces: Sequence[BlockTask], carrying: Carrying) -> int:
    """The last time of the days' files; rows before that of the earlier run are refused."""
    first = min((int(survey.times["timestamp"].min()) for survey in surveys if survey.num_rows), default=0)
    if first < carrying.kept.front:
        raise NotLater(f"a row is of second {first}, before {carrying.kept.front}, where finished ones end")
    days = [survey for survey, piece in zip(surveys, pieces, strict=True) if piece.place < carrying.num_days]
    latest = max((int(survey.times["timestamp"].max()) for survey in days if survey.num_rows), default=0)
    return max(latest, carrying.kept.front)


def _counts(before: Mapping[str, int], facts: Sequence[ChunkFacts]) -> dict[str, int]:
    """Log rows, clickouts and those left out, of chunks and of what came before them."""
    found = {"rows": sum(fact.num_rows for fact in facts)}
    found |= {name: sum(getattr(fact, name) for fact in facts) for name in ("without_list", "not_in_list")}
    used = sum(fact.num_clickouts for fact in facts)
    found["clickouts"] = used + found["without_list"] + found["not_in_list"]
    return {name: before.get(name, 0) + number for name, number in found.items()}


def _cut_kept(
    kept: Kept,
    nights: Nights,
    engine: str,
    out: Path,
    until: tuple[int, int],
    sizes: dict[str, int],
    run: TaskMap,
    history: History,
) -> list[bool]:
    """Put the kept pairs into the splits that they belong to now, and count them in `sizes`; a part of one split is
    only given a second name. Returns of each part whether all of it belongs to train."""
    ends, cuts, settled = nights.ends(), [], []
    for number, part in enumerate(kept.parts):
        clicks, name = part.clicks, part_name(number, 0)
        masks = _split_masks(clicks["labelled"], ends[clicks["session"]], *until)
        rows = {split: int(clicks["pairs"][mask].sum()) for split, mask in masks.items()}
        for split, count in rows.items():
            sizes[split] += count
        of = [split for split in LABELLED if rows[split]]
        settled.append(of in ([], ["train"]))
        if part.score is not None:
            history.share(part.score, out / "score" / name)
        if part.pairs is None:
            continue
        if len(of) == 1:
            history.share(part.pairs, out / of[0] / name)
        else:
            splits = np.select([masks[split] for split in LABELLED], range(len(LABELLED)))[clicks["labelled"]]
            cuts.append(CutTask(engine, part.pairs, out, name, splits, clicks["pairs"][clicks["labelled"]]))
    run(cut_part, cuts)
    return settled


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
