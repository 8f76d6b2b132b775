"""A table larger than memory on its way to its splits: rows that wait in files, and parts that are written."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import require_columns
from gigabatch.features.history.past import NotLater
from gigabatch.features.reading.blocks import Kinds, NotInParts
from gigabatch.features.recipes.base import (
    SPLITS,
    FeatureParts,
    Recipe,
    SplitFractions,
    TargetChecks,
    part_path,
    typed_rows,
)
from gigabatch.features.schema import Schema

log = logging.getLogger(__name__)

FLAGS = ["true", "false"]


class StagedRows:
    """Keep rows in files, in the order in which they come, and give them back in that of their time.

    Of a row in memory there is nothing; on disk there are its time's 8 bytes beside it. Rows that come in order of time
    stay in their files. Others are dealt out to files of neighbouring times, each of about `rows` rows, and sorted one
    file after the other.

    Parameters
    ----------
    engine
        Of the frames.
    folder
        Where the files go; it is made here.
    rows
        About how many rows a frame that is given back holds.
    time, row
        Columns of a row's time, without nulls, and of its place among all, by which rows of one time are in order. No
        time: rows come back as they came. No row: rows of one time come back in one frame, in no order of their own.
    by_row
        Whether rows of one time come in the order of `row`. Where only those of each frame do, all of one time come
        back in one frame.
    kept
        Whether files of rows that came in order may become parts of what is written; others are read once and deleted.
    """

    def __init__(
        self,
        engine: str,
        folder: Path,
        rows: int,
        time: str | None,
        row: str | None,
        by_row: bool = True,
        kept: bool = False,
    ) -> None:
        self._write = load_engine(engine).write_parquet if kept else load_engine(engine).write_passing
        self.engine, self.folder, self.rows, self.time, self.row = load_engine(engine), folder, rows, time, row
        self._together = row is None or not by_row
        self.num_rows = 0
        self._groups: list[list[Path]] = []
        self._sizes: list[int] = []
        self._times, self._last, self._in_order = folder / "times", -np.inf, True
        self._type: Any = None
        folder.mkdir(parents=True)

    def add(self, frame: Any) -> Path | None:
        """Keep further rows; gives the file that holds them, None for no row."""
        if not len(frame):
            return None
        path = self._next_path()
        self._write(frame, path)
        self._count(frame)
        return path

    def add_file(self, path: Path) -> None:
        """Keep the rows of a Parquet file, which is not touched and stays where it is."""
        self._next_path().symlink_to(path.absolute())
        self._count(self.engine.read_parquet(path, None if self.time is None else [self.time]))

    def _next_path(self) -> Path:
        path = self.folder / f"block-{len(self._groups):06d}.parquet"
        self._groups.append([path])
        return path

    def _count(self, frame: Any) -> None:
        """Further rows are kept: how many, and when."""
        self.num_rows += len(frame)
        self._sizes.append(len(frame))
        if self.time is not None:
            times = self._host(frame, self.time)
            self._type = times.dtype
            with self._times.open("ab") as file:
                times.tofile(file)
            later = times[0] > self._last if self._together else times[0] >= self._last
            self._in_order &= bool(later) and bool((times[1:] >= times[:-1]).all())
            self._last = times[-1]

    def settle(self) -> None:
        """All rows are there: put them in order."""
        if self.time is None or not self.num_rows:
            return
        times = np.memmap(self._times, self._type, mode="r+")
        if not self._in_order:
            times.sort()
            self._deal(times)
        self._sorted = times

    def time_at(self, place: int) -> Any:
        """The time of the row at this place in order of time."""
        return self._sorted[place]

    def frames(self) -> Iterator[Any]:
        """All rows, frame by frame."""
        yield from map(self._frame, self._groups)  # of which nothing is held while its rows are worked on

    def _frame(self, paths: Sequence[Path]) -> Any:
        frame = self.engine.frames.concat([self.engine.read_parquet(path) for path in paths], ignore_index=True)
        if self._in_order or self.row is None:
            return frame
        order = np.lexsort((self._host(frame, self.row), self._host(frame, self.time)))
        return frame.iloc[order].reset_index(drop=True)

    def cut(self, fractions: SplitFractions, whole_files: bool = False) -> Iterator[tuple[str, Any]]:
        """Parts of train, valid and test, cut at the moments at which `split_by_time` cuts whole tables.

        whole_files: give the path of a file all of whose rows are of one split, which is not read then; rows must have
        come in order.
        """
        if not self.num_rows:
            return
        moments = [self.time_at(max(end - 1, 0)) for end in fractions.ends(self.num_rows)]
        ends = [0, *map(int, np.searchsorted(self._sorted, moments, side="right")), self.num_rows]
        cuts, start = dict(zip(SPLITS, pairwise(ends), strict=True)), 0
        for number, paths in enumerate(self._groups):
            if whole_files:
                stop = start + self._sizes[number]
                if whole := [split for split, (low, high) in cuts.items() if low <= start and stop <= high]:
                    yield whole[0], paths[0]
                    start = stop
                    continue
            frame = self._frame(paths)
            for split, (low, high) in cuts.items():
                part = frame.iloc[max(low - start, 0) : max(high - start, 0)]
                if len(part):
                    yield split, part.reset_index(drop=True)
            start += len(frame)

    def _deal(self, times: np.ndarray) -> None:
        """Deal the rows out to files of neighbouring times; times: ascending."""
        starts, counts = np.unique(times[self.rows :: self.rows], return_counts=True)
        # A time of very many rows has files to itself, whose rows are in order as they come, if they are to have one.
        many = starts[counts > 1]
        ends = np.searchsorted(times, many, side="right")
        after = times[ends[ends < len(times)]]
        starts = np.unique(np.concatenate([starts, after]))
        dealt: dict[int, list[Path]] = {}
        for number, (path,) in enumerate(self._groups):
            frame = self.engine.read_parquet(path)
            file_of = np.searchsorted(starts, self._host(frame, self.time), side="right")
            order = np.argsort(file_of, kind="stable")
            bounds = np.flatnonzero(np.diff(file_of[order], prepend=-1))
            for start, stop in zip(bounds, [*bounds[1:], len(order)], strict=True):
                place = int(file_of[order[start]])
                folder = self.folder / f"times-{place:06d}"
                folder.mkdir(exist_ok=True)
                dealt.setdefault(place, []).append(folder / f"block-{number:06d}.parquet")
                self.engine.write_passing(frame.iloc[order[start:stop]].reset_index(drop=True), dealt[place][-1])
            path.unlink()
        self._groups = []
        alone = set() if self._together else set(np.searchsorted(starts, many, side="right").tolist())
        for place in sorted(dealt):
            self._groups += [[path] for path in dealt[place]] if place in alone else [dealt[place]]

    def _host(self, frame: Any, name: str | None) -> np.ndarray:
        return self.engine.to_host(self.engine.array(frame[name]))


class StagedSplits:
    """Keep parts of splits in files, until all of them are there.

    Parameters
    ----------
    engine
        Of the frames.
    folder
        Where.
    """

    def __init__(self, engine: str, folder: Path) -> None:
        self.name, self.engine, self.folder = engine, load_engine(engine), folder
        self._paths: dict[str, list[Path]] = {}

    def add(self, split: str, frame: Any) -> None:
        """Keep a part of a split."""
        paths = self._paths.setdefault(split, [])
        paths.append(part_path(self.folder, split, len(paths)))
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        self.engine.write_passing(frame, paths[-1])

    def parts(self, split: str) -> list[tuple[str, str]]:
        """The parts of a split as `Workflow.fit` takes them."""
        return [(self.name, str(path)) for path in self._paths.get(split, [])]

    def frames(self) -> Iterator[tuple[str, Any]]:
        """Each part with the name of its split, splits in the order in which they came; read once."""
        for split, paths in self._paths.items():
            for path in paths:
                yield split, self.engine.read_parquet(path)
                path.unlink()


class SplitWriter:
    """Write the splits of a table part by part, checked as a whole table is.

    Parameters
    ----------
    engine
        Of the frames.
    folder
        Of the features stage.
    schema_of
        Gives the schema that train rows, after the steps, tell.
    """

    def __init__(self, engine: str, folder: Path, schema_of: Callable[[Any], Schema]) -> None:
        self.engine, self.folder, self.schema_of = load_engine(engine), folder, schema_of
        self.rows: Counter[str] = Counter()
        self._parts: Counter[str] = Counter()
        self._kinds = Kinds("the steps")
        self._schema: Schema | None = None

    def write(self, split: str, frame: Any) -> None:
        """Write a part of a split.

        Raises
        ------
        NotInParts
            Where the parts differ in what the whole table has one of.
        """
        schema = self._look(split, frame)
        if not len(frame):
            return
        self.engine.write_parquet(typed_rows(schema, split, frame), self._next_path(split))
        self.rows[split] += len(frame)

    def write_file(self, split: str, path: Path) -> None:
        """Make a Parquet file a part of a split, by a second name where the file system has one. It holds typed rows
        whose targets can be used, and nobody writes to it any more.

        Raises
        ------
        NotInParts
            As `write`.
        """
        from gigabatch.features.engines.arrow_columns import exact_frame_of

        file = pq.read_metadata(path)
        self._look(split, exact_frame_of(file.schema.to_arrow_schema().empty_table()))
        target = self._next_path(split)
        try:
            os.link(path.resolve(), target)
        except OSError:
            shutil.copyfile(path, target)
        self.rows[split] += file.num_rows

    def _look(self, split: str, frame: Any) -> Schema:
        """Check a part of a split; gives the schema that all of them have."""
        if self._schema is None:
            self._schema = self.schema_of(frame)
            self._checks = TargetChecks(self._schema)
        elif split == "train" and self.schema_of(frame) != self._schema:
            raise NotInParts("a step makes columns of other types of other rows")
        require_columns(frame, self._schema.table_columns, "table, after the steps")
        self._kinds.look(frame, self._schema.table_columns)
        self._checks.look(split, frame)
        return self._schema

    def _next_path(self, split: str) -> Path:
        path = part_path(self.folder, split, self._parts[split])
        path.parent.mkdir(exist_ok=True)
        self._parts[split] += 1
        return path

    def finish(self, splits: Sequence[str]) -> tuple[dict[str, int], Schema]:
        """Rows by split and the schema, once all parts were written; `DataError` for targets that cannot be used."""
        if self._schema is None:
            raise NotInParts("no row is left")
        self._checks.require()
        return {split: self.rows[split] for split in splits}, self._schema


class FlagTexts:
    """Find columns of text that hold nothing but true and false, in one case or another, part by part.

    Parameters
    ----------
    names
        Of the columns that are asked about.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._some = dict.fromkeys(names, False)

    def look(self, frame: Any) -> None:
        """Tell of a part."""
        for name in list(self._some):
            for column in (frame[name].head(1000), frame[name]):
                if not bool((column.isna() | column.str.lower().isin(FLAGS)).all()):
                    del self._some[name]
                    break
            else:
                self._some[name] |= bool(frame[name].notna().any())

    def found(self) -> list[str]:
        """Those that hold flags alone, and at least one."""
        return [name for name, some in self._some.items() if some]


def part_by_part(
    recipe: Recipe, engine: str, folder: Path, rows: float, reason: str | None, write: Callable[[], FeatureParts]
) -> FeatureParts | None:
    """What `write` makes in a folder; None where all of about so many rows are to be held in memory at once, as frames
    of the engine, a `reason` that is known before, or what `write` raises leave no other way. The log says why."""
    if engine != "pandas":
        reason = f"parts are for pandas, and the frames are of {engine}"
    if reason is None:
        try:
            return write()
        except (NotInParts, NotLater) as error:
            reason = str(error)
            remove(folder)
            if recipe.cache is not None:
                recipe.cache.start_again()
    log.info("about %s rows are held in memory at once: %s.", f"{float(f'{rows:.2g}'):,.0f}", reason)
    return None


def remove(folder: Path) -> None:
    """Take away what stands in a folder."""
    for path in folder.iterdir():
        shutil.rmtree(path)
