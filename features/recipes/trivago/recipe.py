"""trivago, RecSys Challenge 2019: which hotel of the list shown will be clicked?

Reads the official files (train.csv, test.csv, item_metadata.csv) or a synthetic log in their format
(`gigabatch.features.synthetic.trivago`). One row is one (clickout, candidate) pair; `features` states the time
discipline.

Splits are by session, in time: a session belongs to the split in which its last log row falls, so that one which
crosses a boundary goes to the later split. Clickouts without a reference form the further split `score`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.history.past import NotLater
from gigabatch.features.reading.csv_blocks import CsvBlock, csv_blocks
from gigabatch.features.reading.row_bytes import RowBytes, line_bytes
from gigabatch.features.reading.sources import read_files
from gigabatch.features.recipes.base import FeatureParts, FeatureTables, RawFiles, Recipe, SplitFractions
from gigabatch.features.recipes.carrying import FilesSoFar, History
from gigabatch.features.recipes.trivago.features import CATEGORICAL, CONTINUOUS, Properties
from gigabatch.features.recipes.trivago.log import CLICKOUT, LOG, OpenRows
from gigabatch.features.recipes.trivago.nights import Kept
from gigabatch.features.recipes.trivago.stream import SHARES, Carrying, ChunkTask, Streamed, TaskMap, stream_pairs
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.setting_checks import require_smoothing

METADATA = {"item_id": "int64", "properties": "string"}
BLOCK_BYTES, LEAST_BLOCK_BYTES = 64 << 20, 4 << 20  # of the input files, read at a time
CHUNK_WEIGHT = 1_000_000  # log rows and pairs of a chunk together; what a worker holds at a time


@dataclass(frozen=True)
class TrivagoSettings:
    """Set which files of the challenge are read and how features are smoothed; under `recipe: trivago`.

    Parameters
    ----------
    path
        Folder or URL of the files.
    train, test, item_metadata
        Their names or globs; `item_metadata` may be null.
    max_properties
        At most so many item properties become columns, the most frequent.
    num_folds
        Folds of sessions for the out-of-fold target means, at least 2.
    ctr_smoothing, target_smoothing
        How many pairs the prior weighs as much as, in the click-through of an item and in the target means of filters,
        city, device and user.
    split
        Shares of the clickouts, in time order.

    Raises
    ------
    DataError
        If there are fewer than two folds, or a smoothing is negative or not finite.

    Examples
    --------
    >>> from gigabatch.features.recipes.trivago.recipe import TrivagoSettings
    >>> TrivagoSettings(path="data/trivago", item_metadata=None).num_folds
    5
    """

    path: str = "data/trivago"
    train: str = "train.csv"
    test: str = "test.csv"
    item_metadata: str | None = "item_metadata.csv"
    max_properties: int = 200
    num_folds: int = 5
    ctr_smoothing: float = 20.0
    target_smoothing: float = 400.0
    split: SplitFractions = field(default_factory=SplitFractions)

    def __post_init__(self) -> None:
        if self.num_folds < 2:
            raise DataError(f"trivago: num_folds must be at least 2, found {self.num_folds}.")
        require_smoothing("trivago", ctr_smoothing=self.ctr_smoothing, target_smoothing=self.target_smoothing)


class TrivagoRecipe(Recipe):
    """Splits train, valid, test and score; see the module's docstring."""

    Settings = TrivagoSettings
    submission_columns = "clickout", "user_id", "session_id", "timestamp", "step", "candidate_order", "item_id"
    settings: TrivagoSettings

    def _pattern(self, name: str) -> str:
        return f"{self.settings.path.rstrip('/')}/{getattr(self.settings, name)}"

    def inputs(self) -> list[str]:
        names = ["train", "test"] + (["item_metadata"] if self.settings.item_metadata else [])
        return [path for name in names for path in self.files(self._pattern(name))]

    def build(self, engine: str) -> FeatureTables:
        """The whole log in memory at the end, though not on the way."""
        with tempfile.TemporaryDirectory() as name:
            found = self.write_parts(engine, Path(name), CHUNK_WEIGHT, run_here)
            module, splits = load_engine(engine), {}
            for split in found.rows:
                paths = sorted((Path(name) / split).glob("part-*.parquet"))
                splits[split] = module.frames.concat([module.read_parquet(path) for path in paths], ignore_index=True)
            return FeatureTables(splits, found.schema, found.notes)

    def write_parts(
        self, engine: str, folder: Path, rows_per_part: int, run: TaskMap, block_bytes: int = BLOCK_BYTES
    ) -> FeatureParts:
        """Splits as parts, in order of time, in memory that does not grow with the log (`stream`).

        Pairs that an earlier run finished are not computed again (`nights`).
        """
        paths = self._log_files()
        # A file that both patterns name is read twice, which a history of files does not know.
        history = self.history if len(set(paths)) == len(paths) else None
        write = partial(self._write, engine, folder, rows_per_part, run, block_bytes, paths, history)
        if history is not None:
            others = self.files(self._pattern("item_metadata")) if self.settings.item_metadata else []
            found = history.find_files(paths, Kept.load, others)
            if found is not None:
                try:
                    return write(found)
                except NotLater as error:
                    history.refuse(str(error))
        return write(None)

    def _write(
        self,
        engine: str,
        folder: Path,
        rows_per_part: int,
        run: TaskMap,
        block_bytes: int,
        paths: list[str],
        history: History | None,
        found: FilesSoFar | None,
    ) -> FeatureParts:
        """`write_parts`, given what an earlier run left."""
        settings = self.settings
        kept = Kept() if found is None else found.left
        several = engine == "pandas" and run is not run_here
        if several:  # workers have equal shares (`stream.SHARES`)
            size = sum(os.path.getsize(path) for path in paths if "://" not in path)
            block_bytes = min(block_bytes, max(size // SHARES, LEAST_BLOCK_BYTES))
        blocks = self._blocks(paths, block_bytes, kept, {} if found is None else found.places)
        properties = Properties.of(self.read_metadata(engine), settings.max_properties, engine)
        schema = trivago_schema(properties.words.columns)
        # Its folder is one of the artifact's that is being written, so a crash leaves nothing of it.
        with tempfile.TemporaryDirectory(prefix=".work-", dir=folder) as work:
            streamed = stream_pairs(
                blocks,
                properties,
                schema.names(),
                ChunkTask(
                    engine, Path(work).absolute(), -1, (), 0, None,
                    settings.num_folds, settings.ctr_smoothing, settings.target_smoothing,
                ),
                settings.split,
                Path(folder).absolute(),
                rows_per_part,
                run,
                self.report,
                None if history is None else Carrying(history, kept, len(self.files(self._pattern("train")))),
                several,
            )  # fmt: skip
        return FeatureParts(streamed.rows, schema, self._notes(streamed))

    def _log_files(self) -> list[str]:
        return [path for name in ("train", "test") for path in self.files(self._pattern(name))]

    def _blocks(
        self, paths: Sequence[str], block_bytes: int, kept: Kept, places: Mapping[str, int]
    ) -> list[tuple[int, CsvBlock | OpenRows]]:
        """The blocks of all files, each with the place of its file; of known ones the open rows alone."""
        order = [places[path] for path in paths if path in places]
        if order != sorted(order):
            raise NotLater("files stand in another order of names, which rows of one moment follow")
        blocks: list[tuple[int, CsvBlock | OpenRows]] = []
        for place, path in enumerate(paths):
            if path in places:
                blocks += [(place, OpenRows(str(rows))) for rows in kept.open.get(places[path], ())]
            else:
                blocks += [(place, block) for block in csv_blocks(path, block_bytes)]
        return blocks

    def row_bytes(self) -> RowBytes:
        """Of a pair, whose numbers are the schema's and whose texts are no longer than its line of the log."""
        flags = tuple(map(str, range(self.settings.max_properties if self.settings.item_metadata else 0)))
        dtypes = trivago_schema(flags).dtypes().values()
        text = line_bytes(self.files(self._pattern("train"))[0])
        return RowBytes(text + sum(np.dtype(dtype).itemsize for dtype in dtypes if dtype != "string"), text)

    def submission(self, rows: Any, predictions: Any) -> Any:
        """The challenge's format, one line a clickout in order of user, session and step: user_id, session_id,
        timestamp, step and item_recommendations, its items by descending score, parted by spaces (a pandas frame)."""
        names = list(self.submission_columns)
        ranked = rows[names].reset_index(drop=True)
        ranked["score"] = predictions["target"].reset_index(drop=True)
        # Equal scores keep the shown order.
        ranked = ranked.sort_values(["clickout", "score", "candidate_order"], ascending=[True, False, True])
        ranked = engine_of(ranked).to_pandas(ranked)
        items = ranked["item_id"].astype("str").groupby(ranked["clickout"]).agg(" ".join)
        lines = ranked[names[:5]].drop_duplicates("clickout").set_index("clickout")
        lines["item_recommendations"] = items
        return lines.sort_values(["user_id", "session_id", "step"]).reset_index(drop=True)

    def blocks(self, block_bytes: int) -> list[CsvBlock]:
        """train and test one after the other, in pieces."""
        return [block for path in self._log_files() for block in csv_blocks(path, block_bytes)]

    def raw_files(self) -> tuple[RawFiles, ...]:
        roles = {"timestamp": "time", "session_id": "key", "reference": "key", "impressions": "key", "prices": "key",
                 "clicked_first": "label"}  # fmt: skip
        made: dict[str, Any] = {
            "tasks": {"clicked_first": "binary"}, "null_values": ("",), "unit": "s", "make": with_clicked_first,
            "filled": frozenset(("user_id", "session_id", "action_type")),
        }  # fmt: skip
        logs = [
            RawFiles(name, self._pattern(name), LOG, roles, fixed=name == "test", blocks=True, **made)
            for name in ("train", "test")
        ]
        if self.settings.item_metadata:
            pattern, roles = self._pattern("item_metadata"), {"item_id": "key", "properties": "key"}
            logs.append(RawFiles("item_metadata", pattern, METADATA, roles, null_values=("",), fixed=True))
        return tuple(logs)

    def read_metadata(self, engine: str) -> Any | None:
        """item_id (unique) and properties, or None where the settings name no such file."""
        if not self.settings.item_metadata:
            return None
        metadata = read_files(
            engine, self._pattern("item_metadata"), METADATA, null_values=("",), cache=self.cache,
            leave_out=self.leave_out,
        )  # fmt: skip
        twice = metadata["item_id"].duplicated()
        if bool(twice.any()):
            example = metadata["item_id"][twice].iloc[0]
            raise DataError(f"item metadata: {int(twice.sum())} item_id(s) appear twice, for example {example}.")
        return metadata

    def _notes(self, streamed: Streamed) -> tuple[str, ...]:
        counts = streamed.counts
        sizes = ", ".join(f"{name} {rows:,}" for name, rows in streamed.rows.items())
        return (
            f"{counts['clickouts']:,} clickouts in {counts['rows']:,} log rows; pairs: {sizes}.",
            f"{counts['not_in_list']:,} clickouts left out because their reference is not among their impressions, "
            f"{counts['without_list']:,} because they have no impressions; their rows still count in the history of "
            "others.",
        )


def with_clicked_first(log: Any) -> Any:
    """Log rows with whether the first item of the list was clicked: 0 or 1, null of what is no answered clickout."""
    first = log["impressions"].str.extract(r"^([^|]*)")[0]
    clicked = (log["reference"] == first).fillna(False).astype("float64")
    known = (log["action_type"] == CLICKOUT).fillna(False) & log["reference"].notna() & first.notna()
    return log.assign(clicked_first=clicked.where(known))


def run_here(function: Any, tasks: Sequence[Any]) -> list[Any]:
    """The results of the tasks, one after the other in this process."""
    return [function(task) for task in tasks]


def trivago_schema(flag_names: tuple[str, ...]) -> Schema:
    """Roles and types of the pair table; `clickout` gathers the candidates of one list."""
    columns = [Column(name, "categorical", dtype) for name, dtype in CATEGORICAL.items()]
    columns += [Column(name, "continuous", "float32") for name in (*CONTINUOUS, *flag_names)]
    columns += [
        Column("target", "target", "float32"),
        Column("clickout", "group", "int64"),
        Column("timestamp", "time", "int64"),
        Column("session_id", "key", "string"),
        Column("step", "key", "int64"),
    ]
    return Schema(tuple(columns), (Target("target", "binary"),))
