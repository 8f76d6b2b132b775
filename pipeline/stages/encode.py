"""The encode stage's work: parts of the features stage to packed tables, never more than a few parts in memory."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.refit.churn import Churn, churn_text
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter
from gigabatch.pipeline.bundle import frame_lists
from gigabatch.pipeline.stages.asked import PREPROCESSOR
from gigabatch.pipeline.stages.cluster import Cluster

CHURN_JSON, CHURN_TEXT = "churn.json", "churn.txt"  # in an artifact
_LOADING = threading.Lock()
Part = Path | list[Path]  # Parquet files that are read as one frame


def read_together(engine: str, parts: Sequence[Path], rows_per_part: int) -> list[Part]:
    """The parts of a split as they are read: on cuDF, whose every call has a price, as many files at once as hold
    `rows_per_part` rows together; one that holds more by itself. The packed rows are the same."""
    if not engine.startswith("cudf"):
        return list(parts)
    found: list[list[Path]] = []
    filled = 0
    for path in parts:
        rows = pq.read_metadata(path).num_rows
        if not found or filled + rows > rows_per_part:
            found.append([])
            filled = 0
        found[-1].append(path)
        filled += rows
    return [paths[0] if len(paths) == 1 else paths for paths in found]


def pack(preprocessor: Preprocessor, frame: Any) -> PackedTable:
    """A features-stage frame as a packed table in host memory."""
    return _table(preprocessor, preprocessor.pack(frame), on_host=True, lists=frame_lists(preprocessor, frame))


def _table(preprocessor: Preprocessor, rows: Any, on_host: bool, lists: tuple[JaggedColumn, ...] = ()) -> PackedTable:
    """Packed rows of the engine's arrays as a table: a view of their memory, which lives as long as the table does,
    unless it is a GPU's and they are wanted on the host. torch's current stream waits for the one that made them."""
    words = torch.from_dlpack(rows)
    return PackedTable.from_rows(preprocessor.tensor_schema, words.cpu() if on_host else words, lists)


def fit(preprocessor: Preprocessor, engine: str, parts: Sequence[Part], cluster: Cluster) -> list[Any]:
    """Fit on the parts of the train split. What is no more than one part is read once, and comes back packed: rows as
    `Preprocessor.pack` gives them."""
    found: list[tuple[str, Part]] = [(engine, path) for path in parts]
    if len(found) > 1 or cluster.distributed or preprocessor.schema.lists:  # lists are packed part by part
        preprocessor.fit(found, scheduler=cluster.scheduler)
        return []
    return preprocessor.fit_pack(found)


def grow(
    preprocessor: Preprocessor, engine: str, parts: Sequence[Part], cluster: Cluster, refresh_scales: bool
) -> tuple[list[Any], Churn]:
    """As `fit` for a preprocessor that is fitted already and learns what is new; and how the parts differ from what it
    knew. refresh_scales: as of `Preprocessor.grow`."""
    found: list[tuple[str, Part]] = [(engine, path) for path in parts]
    if len(found) > 1 or cluster.distributed or preprocessor.schema.lists:
        return [], preprocessor.grow(found, scheduler=cluster.scheduler, refresh_scales=refresh_scales)
    return preprocessor.grow_pack(found, refresh_scales=refresh_scales)


def write_churn(report: Churn, folder: Path) -> None:
    """Write how new data differs from what was known, for machines and for people."""
    (folder / CHURN_JSON).write_text(report.to_json())
    (folder / CHURN_TEXT).write_text(churn_text(report) + "\n")


class GroupNumbers:
    """int32 numbers of groups over all parts of a split, from 0 by first appearance, as if the split were one part."""

    def __init__(self) -> None:
        self.known: Any = None

    def number(self, column: Any) -> torch.Tensor:
        """The number of each row's group, int32 [N] where the column is; parts must come in order."""
        engine = engine_of(column)
        xp = engine.arrays
        size = 0 if self.known is None else len(self.known)
        both = column if self.known is None else engine.frames.concat([self.known, column], ignore_index=True)
        codes = engine.codes(both)
        values, rows = xp.unique(codes, return_index=True)
        rows = rows[values >= 0]  # of the first row of every group, by code
        number = xp.full(len(rows), -1, dtype="int64")
        number[codes[:size]] = xp.arange(size)
        fresh = number < 0
        number[fresh] = size + xp.arange(int(fresh.sum()))
        self.known = both.take(rows[xp.argsort(number)]).reset_index(drop=True)
        found = xp.where(codes >= 0, number[codes], -1)[size:] if len(number) else codes[size:]
        return torch.from_dlpack(found.astype("int32"))


@dataclass(frozen=True)
class PackTask:
    """A Parquet part to be packed into a folder of its own by a worker that has the fitted preprocessor's folder."""

    engine: str
    preprocessor: Path
    part: Part
    out: Path


def absolute(part: Part) -> Part:
    """The files' paths as a worker finds them, which has another working folder."""
    return [path.absolute() for path in part] if isinstance(part, list) else part.absolute()


@lru_cache(maxsize=1)
def _load(folder: Path, engine: str) -> Preprocessor:
    return Preprocessor.load(folder, engine)


def _loaded(folder: Path, engine: str) -> Preprocessor:
    """Read once a process; threads that ask at the same time wait for the one that reads."""
    with _LOADING:
        return _load(folder, engine)


def pack_part(task: PackTask) -> Path:
    """The packed part, with its lists, as the table `task.out`; it replaces one that is there, so that the task may run
    again."""
    preprocessor = _loaded(task.preprocessor, task.engine)
    pack(preprocessor, preprocessor.read((task.engine, task.part))).save(task.out)
    return task.out


def encode_split(
    preprocessor: Preprocessor,
    engine: str,
    parts: Sequence[Part],
    num_rows: int,
    folder: Path,
    cluster: Cluster,
    packed: Sequence[Any] = (),
) -> None:
    """Write a split's packed table to `folder`, part after part. packed: its parts, where `fit` gave them already.

    Workers of a cluster find the saved preprocessor in `preprocessor/` beside `folder` and leave their parts there.
    """
    with PackedWriter(folder, preprocessor.tensor_schema, num_rows) as writer:
        if cluster.distributed:
            tables = _tables_of_workers(engine, parts, folder, cluster)
        else:
            tables = _tables(preprocessor, engine, parts, packed, on_host=True)
        for table in _counted_on(preprocessor, engine, parts, tables):
            writer.write(table)


def packed_split(
    preprocessor: Preprocessor, engine: str, parts: Sequence[Part], num_rows: int, packed: Sequence[Any] = ()
) -> PackedTable:
    """A split's packed table in memory, where the engine packs it: on the host, or on the GPU by cuDF.

    The rows of one part are taken as they are. Of several parts the whole is allocated once and filled part by part,
    where putting them together at the end would take twice the memory. packed: as of `encode_split`.

    Raises:
        LoaderError: where the parts do not hold `num_rows` rows.
    """
    schema, whole, filled = preprocessor.tensor_schema, None, 0
    for table in _counted_on(preprocessor, engine, parts, _tables(preprocessor, engine, parts, packed, on_host=False)):
        stop = filled + len(table)
        if len(parts) == 1:
            whole = table.words
        elif whole is None:
            whole = torch.empty((num_rows, schema.num_words), dtype=torch.int32, device=table.device)
        if len(parts) > 1 and stop <= num_rows:
            whole[filled:stop] = table.words
            if whole.is_cuda:  # before the engine, whose streams are not torch's, takes the part's memory back
                torch.cuda.current_stream(whole.device).synchronize()
        filled = stop
    if whole is None or filled != num_rows:
        raise LoaderError(f"encode: {filled} rows were packed and the features stage announced {num_rows}.")
    return PackedTable(whole, schema)


def _counted_on(
    preprocessor: Preprocessor, engine: str, parts: Sequence[Part], tables: Iterator[PackedTable]
) -> Iterator[PackedTable]:
    """The tables of a split's parts with groups that are numbered over all of them, where a part numbers its own from
    0: the last word of a row."""
    group = preprocessor.schema.only("group")
    numbers, module = GroupNumbers(), load_engine(engine)
    for part, table in zip(parts, tables, strict=True):
        if group is not None and len(parts) > 1:
            table.words[:, table.schema.group_word] = numbers.number(module.read_parquet(part, [group])[group]).to(
                table.device
            )
        yield table


def _tables(
    preprocessor: Preprocessor, engine: str, parts: Sequence[Part], packed: Sequence[Any], on_host: bool
) -> Iterator[PackedTable]:
    if packed:
        return (_table(preprocessor, rows, on_host) for rows in packed)
    if preprocessor.schema.lists:
        return (pack(preprocessor, preprocessor.read((engine, part))) for part in parts)
    found = (preprocessor.pack(preprocessor.read((engine, part))) for part in parts)
    return (_table(preprocessor, rows, on_host) for rows in found)


def _tables_of_workers(engine: str, parts: Sequence[Part], folder: Path, cluster: Cluster) -> Iterator[PackedTable]:
    with tempfile.TemporaryDirectory(prefix=".parts-", dir=folder) as name:
        work, saved = Path(name).absolute(), folder.absolute().parent / PREPROCESSOR
        tasks = [PackTask(engine, saved, absolute(part), work / f"{number:05d}") for number, part in enumerate(parts)]
        for path in cluster.in_turn(pack_part, tasks):
            yield PackedTable.load(path, mmap=False)
            shutil.rmtree(path)
