"""The encode stage's work: parts of the features stage to packed tables, never more than a few parts in memory."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter
from gigabatch.pipeline.stages.cluster import Cluster
from gigabatch.pipeline.store.files import replacing

_LOADING = threading.Lock()


def pack(preprocessor: Preprocessor, frame: Any) -> PackedTable:
    """A features-stage frame as a packed table in host memory."""
    rows = torch.from_dlpack(preprocessor.pack(frame))
    return PackedTable.from_rows(preprocessor.tensor_schema, rows.cpu())


def fit(preprocessor: Preprocessor, engine: str, parts: Sequence[Path], cluster: Cluster) -> list[PackedTable]:
    """Fit on the parts of the train split. What is no more than one part is read once, and comes back packed."""
    found: list[tuple[str, Path]] = [(engine, path) for path in parts]
    if len(found) > 1 or cluster.distributed:
        preprocessor.fit(found, scheduler=cluster.scheduler)
        return []
    packed = preprocessor.fit_pack(found)
    return [PackedTable.from_rows(preprocessor.tensor_schema, torch.from_dlpack(rows).cpu()) for rows in packed]


class GroupNumbers:
    """int32 numbers of groups over all parts of a split, from 0 by first appearance, as if the split were one part."""

    def __init__(self) -> None:
        self.known: Any = None

    def number(self, column: Any) -> torch.Tensor:
        """The number of each row's group; parts must come in order."""
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
        return torch.from_numpy(engine.to_host(found).astype(np.int32))


@dataclass(frozen=True)
class PackTask:
    """A Parquet part to be packed into a `.npy` file by a worker that has the fitted preprocessor's folder."""

    engine: str
    preprocessor: Path
    part: Path
    out: Path


@lru_cache(maxsize=1)
def _load(folder: Path, engine: str) -> Preprocessor:
    return Preprocessor.load(folder, engine)


def _loaded(folder: Path, engine: str) -> Preprocessor:
    """Read once a process; threads that ask at the same time wait for the one that reads."""
    with _LOADING:
        return _load(folder, engine)


def pack_part(task: PackTask) -> Path:
    """The words of the packed part as `task.out`; written whole or not at all, so that the task may run again."""
    preprocessor = _loaded(task.preprocessor, task.engine)
    words = pack(preprocessor, preprocessor.read((task.engine, task.part))).words
    with replacing(task.out) as temporary, open(temporary, "wb") as file:
        np.save(file, words.numpy())
    return task.out


def encode_split(
    preprocessor: Preprocessor,
    engine: str,
    parts: Sequence[Path],
    num_rows: int,
    folder: Path,
    cluster: Cluster,
    packed: Sequence[PackedTable] = (),
) -> None:
    """Write a split's packed table to `folder`, part after part. packed: its parts, where `fit` gave them already.

    Workers of a cluster find the saved preprocessor in `preprocessor/` beside `folder` and leave their words there.
    """
    schema = preprocessor.tensor_schema
    group = preprocessor.schema.only("group")
    numbers, module = GroupNumbers(), load_engine(engine)
    with PackedWriter(folder, schema, num_rows) as writer:
        tables = packed or _tables(preprocessor, engine, parts, folder, cluster)
        for part, table in zip(parts, tables, strict=True):
            if group is not None and len(parts) > 1:
                # A part numbers its groups from 0; the last word of a row is made to count on from earlier parts.
                table.words[:, -1] = numbers.number(module.read_parquet(part, [group])[group])
            writer.write(table)


def _tables(preprocessor: Preprocessor, engine: str, parts: Sequence[Path], folder: Path, cluster: Cluster) -> Any:
    if not cluster.distributed:
        for part in parts:
            yield pack(preprocessor, preprocessor.read((engine, part)))
        return
    with tempfile.TemporaryDirectory(prefix=".words-", dir=folder) as name:
        work, saved = Path(name).absolute(), folder.absolute().parent / "preprocessor"
        tasks = [
            PackTask(engine, saved, Path(part).absolute(), work / f"{number:05d}.npy")
            for number, part in enumerate(parts)
        ]
        for path in cluster.in_turn(pack_part, tasks):
            yield PackedTable(torch.from_numpy(np.load(path)), preprocessor.tensor_schema)
            path.unlink()
