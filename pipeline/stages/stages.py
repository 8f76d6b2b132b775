"""The stages, each an artifact: features -> encode -> train -> evaluate. `Pipeline` is the way in from Python.

    from gigabatch import Pipeline
    run = Pipeline.from_config("conf/flights.yaml").features().train()
    run.summary["auc"]; run.bundle().predict(frame)

A stage whose artifact exists and checks out is skipped. What each one returns shows itself in Jupyter.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import engine_of, load_engine, resolve_engine
from gigabatch.features.errors import DataError, repeated
from gigabatch.features.reading.row_bytes import RowBytes, frame_row_bytes, parquet_row_bytes
from gigabatch.features.reading.sources import require_once
from gigabatch.features.recipes.base import FeatureTables, TargetChecks, part_path, typed_rows
from gigabatch.features.refit.churn import Churn
from gigabatch.features.schema import Schema
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.loaders.batches.dataset import BatchSource
from gigabatch.loaders.batches.residency import Residency, open_source, residency_here
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter
from gigabatch.loops import is_serial
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from gigabatch.models.modes import plain_defaults
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import OWN as OWN_MODELS
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, load_bundle, target_loss
from gigabatch.pipeline.config.config import ConfigError, RankingSettings, RunConfig, WholeTrainSettings, load_config
from gigabatch.pipeline.contract.state import FilesState
from gigabatch.pipeline.display import note, progress
from gigabatch.pipeline.evaluation.baseline_learners import SOURCES as BASELINE_SOURCES
from gigabatch.pipeline.evaluation.checks import missing_shares
from gigabatch.pipeline.evaluation.labels import changed_labels
from gigabatch.pipeline.evaluation.rank_evaluate import Catalogue, positive_rows, rank_evaluate
from gigabatch.pipeline.evaluation.ranking_baselines import rank_with_baselines
from gigabatch.pipeline.launched import ranks_of_machine
from gigabatch.pipeline.machine import available_memory, busy_text, free_memory, resolve_device, tell_of_compilation
from gigabatch.pipeline.runs.find import FoundRun, find_run, home_of, run_link
from gigabatch.pipeline.runs.pointers import CURRENT, LATEST
from gigabatch.pipeline.runs.promote import promote_first
from gigabatch.pipeline.runs.verify import loaded_by
from gigabatch.pipeline.stages.asked import MADE_FROM, PREPROCESSOR, ask_features, require_split
from gigabatch.pipeline.stages.cluster import Cluster, open_cluster
from gigabatch.pipeline.stages.encode import (
    CHURN_JSON,
    encode_split,
    fit,
    grow,
    pack,
    packed_split,
    read_together,
    write_churn,
)
from gigabatch.pipeline.stages.final import (
    best_epochs,
    final_configs,
    final_note,
    held_out,
    measured_text,
    measurement,
    promote_final,
    require_final,
)
from gigabatch.pipeline.stages.finished import SPLITS, Run, positive_labels
from gigabatch.pipeline.stages.handover import HandedOver, hands_over_here, write_behind
from gigabatch.pipeline.stages.part_rows import rows_of_part_here
from gigabatch.pipeline.stages.run import EvaluationData, RunData, evaluate_beside, write_run
from gigabatch.pipeline.stages.start import Start, find_start, require_lasting_values, start_of_manifest
from gigabatch.pipeline.stopping import stopped_by
from gigabatch.pipeline.store.artifacts import (
    Artifact,
    ArtifactStore,
    Extra,
    Rest,
    Writing,
    artifacts_newest_first,
)
from gigabatch.pipeline.store.files import ArtifactError, atomic_symlink
from gigabatch.pipeline.store.garbage import CHECKPOINTS
from gigabatch.pipeline.store.keys import artifact_key, require_same_inputs, run_id_of, source_hash
from gigabatch.pipeline.store.leases import Lease
from gigabatch.pipeline.store.locks import folder_lock, own_folder, remove_leftovers, temporary_path
from gigabatch.pipeline.store.parsed_files import ParsedFiles
from gigabatch.pipeline.store.row_history import RowHistory
from gigabatch.pipeline.tracking import require_tracking, tell_champion, tell_run, training_callbacks
from gigabatch.pipeline.training.beside import Beside, MemberTraining, members_at_once
from gigabatch.pipeline.training.callbacks import Callback, require_callbacks
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.codistill import Codistillation, seed_of, share_rows
from gigabatch.pipeline.training.defaults import (
    few_steps_text,
    id_sizes,
    positives_text,
    rule_of,
    rule_text,
    settle,
)
from gigabatch.pipeline.training.ensemble import members_text, require_members_differ, train_members
from gigabatch.pipeline.training.folds import Folds, require_folds_fit
from gigabatch.pipeline.training.negatives import (
    first_id,
    implicit_batches,
    require_labels_or_negatives,
    require_positives,
    users_text,
    warn_of_unknown_users,
    with_negatives,
)
from gigabatch.pipeline.training.start import FOLDER as TRAINING
from gigabatch.pipeline.training.start import Carried, ChangedError, WarmStart, held_ids
from gigabatch.pipeline.training.table_memory import FLOAT_BYTES, large_tables
from gigabatch.pipeline.training.target_scales import (
    fitted_loss,
    require_labels,
    require_steps_in_order,
    require_weights,
)
from gigabatch.pipeline.training.threads import threads_of_training, training_threads
from gigabatch.pipeline.training.train import (
    Trained,
    batch_size_for,
    id_counts,
    model_inputs,
    model_spec,
    new_model,
    rank_shares,
    train_model,
)
from gigabatch.pipeline.training.window import Window, choose_rows, times_held
from gigabatch.pipeline.views.stages import ROWS_LOOKED_AT, encoded_html, features_html, pipeline_html
from gigabatch.pipeline.warm.warm import compile_first

__all__ = ["Encoded", "Features", "Pipeline", "pack"]
log = logging.getLogger(__name__)
T = TypeVar("T")
# Settings of train that all groups of a codistillation have alike.
TAUGHT_ALIKE = ("losses", "epochs", "batch_size", "optimizer", "optimizer_settings", "lr_max", "weight_decay",
                "schedule", "schedule_settings")  # fmt: skip
PERIOD = ("trained_from", "trained_until", "train_times")  # of a bundle's info
HEAD_BLOCK = 1 << 16  # rows that are decoded at a time where a few are wanted
WINDOW_BLOCK = 1 << 20  # rows that are copied at a time
SHARED_FOLDER_S = 60.0  # in which a folder that machines share shows what another one has written
SOURCES = {
    "encode": ["gigabatch.features", "gigabatch.loaders", "gigabatch.pipeline.stages.encode"],
    "train": [
        "gigabatch.features",
        "gigabatch.loaders",
        "gigabatch.models",
        "gigabatch.pipeline.training.train",
        "gigabatch.pipeline.training.train_step",
        "gigabatch.pipeline.training.target_metrics",
        "gigabatch.pipeline.training.lines",
        "gigabatch.pipeline.training.target_scales",
        "gigabatch.pipeline.training.calibration",
        "gigabatch.pipeline.training.negatives",
        "gigabatch.pipeline.training.checkpoint",
        "gigabatch.pipeline.training.start",
        "gigabatch.pipeline.training.codistill",
        "gigabatch.pipeline.training.ensemble",
        "gigabatch.pipeline.training.folds",
        "gigabatch.pipeline.training.threads",
        "gigabatch.pipeline.training.window",
        "gigabatch.pipeline.bundle",
    ],
}


class Pipeline:
    """Run a configuration's stages: features, encode, train, evaluate.

    Each stage makes an artifact in the folder `config.artifacts`. One that is there for the same inputs, settings and
    sources is not made again.

    Parameters
    ----------
    config
        The checked configuration. `num_threads` sets torch's threads for the whole process.
    callbacks
        Told of a training as it goes on.
    ranks
        The processes that make this run together (`gigabatch.pipeline.joining.joined`), each of which calls the same
        methods: the first makes features and tensors, all train and evaluate, and the first writes what comes of it.

    Raises
    ------
    DataError
        Where the configuration asks for a device or a library of data frames that is not there.
    TypeError
        Where `callbacks` is no list of `Callback` objects.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": range(100), "clicked": [1, 0] * 50})
    >>> rows.to_csv("clicks.csv", index=False)
    >>> columns = {"categorical": ["city"], "continuous": ["price"], "targets": {"clicked": {"task": "binary"}}}
    >>> config = RunConfig(name="clicks", recipe="table", features={"path": "clicks.csv", **columns})
    >>> run = Pipeline(config).train()
    >>> run.skipped, run.summary["rows_by_split"]["train"] > 50
    ((), True)
    >>> list(run.bundle().predict(rows.head(2)).columns)
    ['clicked']
    >>> Pipeline(config).train().skipped
    ('features', 'encode', 'train', 'evaluate')
    """

    def __init__(self, config: RunConfig, callbacks: Sequence[Callback] = (), ranks: Ranks | None = None) -> None:
        if not isinstance(config, RunConfig):
            raise ConfigError(
                f"Pipeline takes a RunConfig, not a {type(config).__name__}. Give a mapping, or the path of a YAML "
                "file, to Pipeline.from_config."
            )
        self.ranks = Ranks() if ranks is None else ranks
        self.config, self.callbacks = config, require_callbacks(callbacks)
        self.engine = resolve_engine(config.engine)
        self.device = resolve_device(config.device)
        self.store = ArtifactStore(config.artifacts, config.name)
        self.lease = Lease(config.runs)
        require_tracking(config)
        require_folds_fit(config, self.ranks.num_ranks)
        self.starts: list[FoundRun] = []
        self.measured: Run | None = None  # of a final run: the one whose best epoch it takes
        tell_of_compilation()
        if config.num_threads is not None and not is_serial():
            torch.set_num_threads(config.num_threads)

    @classmethod
    def from_config(
        cls,
        config: str | Path | Mapping[str, Any],
        *overrides: str | Mapping[str, Any],
        callbacks: Sequence[Callback] = (),
    ) -> Pipeline:
        """Read a configuration, with overrides.

        Parameters
        ----------
        config
            A YAML file, or what one would hold as a mapping, which is not changed.
        overrides
            In order: `"train.epochs=2"`, or mappings such as `{"train.epochs": 2}`, whose values keep their types.
        callbacks
            As of the class.

        Raises
        ------
        ConfigError
            Where the configuration or an override cannot be used.
        """
        return cls(load_config(config, overrides), callbacks)

    def with_config(self, config: RunConfig) -> Pipeline:
        """The same stages by another configuration; what this one has built or found stays safe from `gigabatch gc` as
        long as either lives."""
        other = type(self)(config, self.callbacks)
        other.store, other.lease = self.store, self.lease
        return other

    def features(self, files: FilesState | None = None) -> Features:
        """Read the raw files and write them as Parquet features.

        Parameters
        ----------
        files
            What was decided tonight, in place of what `runs/<name>/files.json` says: files that it does not tell of
            are left out, as are those in quarantine.

        Raises
        ------
        DataError
            Where a file is not what the recipe expects; the message names file and column.
        RunError
            Where `preprocess.from` names no run or folder that can be used.
        ConfigError
            Where that was fitted with other settings of `preprocess`.
        """
        return self.in_turn(lambda: self._features(files))

    def in_turn(self, work: Callable[[], T]) -> T:
        """What `work` returns, which the others do after the first rank, so that they find what that has made."""
        if self.ranks.is_first:
            made = work()
            self.ranks.tell(None, "turns")
            return made
        self.ranks.tell(None, "turns")
        return work()

    def _features(self, files: FilesState | None) -> Features:
        config = self.config
        _ = self.start  # before any work
        compile_first(self.device)  # every other stage begins here too
        asked = ask_features(config, self.engine, self.store.root, files)
        recipe = asked.recipe

        def write(folder: Path) -> dict[str, Any]:
            started = time.perf_counter()
            for kind in recipe.raw_files():
                require_once(recipe.files(kind.pattern))
            with progress(None, "features") as bar:
                recipe.report = lambda step: bar.advance(0, step)
                recipe.cache = cache = ParsedFiles(self.store, self.engine)
                recipe.history = history = RowHistory(self.store, cache, asked.named, recipe.without)
                part_rows = self.part_rows(recipe.row_bytes)
                with self.cluster(folder) as cluster:
                    parts = recipe.write_parts(self.engine, folder, part_rows, cluster.map)
                if parts is not None:
                    parts.schema.save(folder / "schema.json")
                    if parts.workflow is not None:
                        parts.workflow.save(folder / "workflow")
                    rows, notes = parts.rows, parts.notes
                else:
                    tables = recipe.build(self.engine)
                    part_rows = self.part_rows(lambda: frame_row_bytes(tables.splits["train"]))
                    rows, notes = write_features(tables, folder, part_rows), tables.notes
                bar.advance(sum(rows.values()))
            require_same_inputs(asked.inputs, asked.checksums, cache.parsed, self.store.root)
            for text in notes:
                log.info("features: %s", text)
            seconds = time.perf_counter() - started
            if history.told is not None and history.told["note"]:
                log.info("features: %s", history.told["note"])
            return {
                "rows": rows,
                "rows_per_part": part_rows,
                "notes": list(notes),
                "history": history.told,
                "inputs": cache.files,
                "seconds": seconds,
            }

        return Features(self, self.store.build("features", asked.key, write), files)

    def part_rows(self, row: Callable[[], RowBytes | None]) -> int:
        """`rows_of_part_here`: how many rows a task holds at once."""
        return rows_of_part_here(self.config, self.engine, self.device, row)

    @cached_property
    def start(self) -> Start | None:
        """What the encode stage starts from, found once: later steps of `current` change nothing here."""
        return find_start(self.config, self.engine)

    def cluster(self, folder: Path) -> AbstractContextManager[Cluster]:
        """Where a stage's tasks run that read and write `folder`, for a `with` block."""
        config = self.config
        return open_cluster(config.cluster, config.cluster_settings, folder, self.engine, config.imports)

    def encode(self) -> Encoded:
        """Run the stages up to the packed tables."""
        return self.features().encode()

    def train(self) -> Run:
        """Run every stage, up to the evaluated model in `runs/<name>/<id>/`; a first one becomes `current`."""
        return self.features().train()

    def train_final(self) -> Run:
        """Train and measure as `train` does, then train again with nearly all rows: the model to serve.

        The second run takes the best number of epochs, the batch size and the rate of the first, with a warm-up cut to
        end before these epochs, and holds out a hundredth of the rows for valid and for test each, at least 50. Where
        rows are split by time, it has learnt from the newest ones too. Its report names the first run, whose metrics
        are the measurement. It becomes `current` where there is none, and where that is the first run.

        Returns
        -------
        Run
            The second run.

        Raises
        ------
        ConfigError
            Where splits are files of their own, the model has no epochs, or `train` has `calibration`, `codistill` or
            `start_from`.
        DataError
            Where there are too few rows, or no such split can be measured.
        """
        require_final(self.config)
        encoded = self.encode()
        held = held_out(encoded.features.rows)
        trained = encoded.fit_model()
        measured, settings = encoded.publish(trained, promote=False), encoded.train_settings
        note(measured_text(measured.summary))
        epochs = best_epochs(trained.manifest, settings, measured.curve)
        refused: DataError | None = None
        for config in final_configs(self.config, settings, epochs, held, encoded.num_trained):
            final = self.with_config(config)
            final.measured = measured
            try:
                run = final.train()
            except DataError as error:  # such as a last moment with so many rows that none are left for test
                log.info("final: %s", error)
                refused = error
                continue
            note(run.summary["notes"][0])
            promote_final(run.path, measured.path)
            return run
        raise DataError(f"final: no rows can be held out of a training of nearly all. {refused}") from refused

    def __repr__(self) -> str:
        name, recipe = self.config.name, self.config.recipe
        return f"Pipeline({name!r}, recipe {recipe}, model {self.config.model.kind}, {self.engine}, {self.device})"

    def _repr_html_(self) -> str:
        return pipeline_html(self.config, self.engine, self.device)


@dataclass
class Features:
    """The result of the features stage: Parquet files by split.

    Parameters
    ----------
    pipeline
        What made it.
    artifact
        Its folder.
    decided
        The `files` that `Pipeline.features` was given.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": range(100), "clicked": [1, 0] * 50})
    >>> rows.to_csv("clicks.csv", index=False)
    >>> columns = {"categorical": ["city"], "continuous": ["price"], "targets": {"clicked": {"task": "binary"}}}
    >>> config = RunConfig(name="clicks", recipe="table", features={"path": "clicks.csv", **columns})
    >>> features = Pipeline(config).features()
    >>> sorted(features.rows), sum(features.rows.values())
    (['test', 'train', 'valid'], 100)
    >>> list(features.frame("train").columns)
    ['city', 'price', 'clicked', 'row_number']
    >>> features.head(2, columns=["city", "price"])
       city  price
    0  Oslo    0.0
    1  Bonn    1.0
    >>> features.sample(3, seed=1, split="test", columns=["price"]).shape
    (3, 1)
    """

    pipeline: Pipeline
    artifact: Artifact
    decided: FilesState | None = None

    @property
    def schema(self) -> Schema:
        return Schema.load(self.artifact.path / "schema.json")

    @property
    def rows(self) -> dict[str, int]:
        return dict(self.artifact.manifest["rows"])

    @property
    def notes(self) -> list[str]:
        return list(self.artifact.manifest["notes"])

    @cached_property
    def workflow(self) -> Workflow | None:
        """The fitted steps from raw rows to these columns; None where the recipe has no such steps."""
        folder = self.artifact.path / "workflow"
        return Workflow.load(folder, self.pipeline.engine) if folder.is_dir() else None

    def raw_of(self, name: str) -> tuple[str, ...]:
        """The raw columns that a column is made of; itself where no step makes it, or the recipe has no such steps."""
        workflow = self.workflow
        return (name,) if workflow is None else workflow.raw_of(name)

    def earlier(self, name: str) -> set[str]:
        """The columns that steps make of a raw column of earlier rows; none where the recipe has no such steps."""
        return set() if self.workflow is None else self.workflow.earlier(name)

    @property
    def files(self) -> dict[str, int]:
        """How many input files were `read`, how many `reused` as they were parsed before, and, where there are any,
        how many `carried`: not even looked into, because their rows were computed before."""
        states = [entry["state"] for entry in self.artifact.manifest.get("inputs", [])]
        known = ("read", "reused", *(["carried"] if "carried" in states else []))
        return {state: states.count(state) for state in known}

    @property
    def history(self) -> dict[str, Any] | None:
        """Of a recipe whose rows look back at earlier ones: how many rows were `reused` as an earlier run computed
        them, how many `computed`, the key of that run's history (`from`), and a `note` where all were computed anew
        although there was one. None for other recipes."""
        told = self.artifact.manifest.get("history")
        return None if told is None else dict(told)

    def parts(self, split: str) -> list[Path]:
        """Parquet files of a split, in row order.

        Raises
        ------
        DataError
            For a split that does not exist; the message lists those that do.
        """
        require_split(split, self.rows)
        return sorted((self.artifact.path / split).glob("part-*.parquet"))

    def frame(self, split: str, columns: Sequence[str] | None = None) -> Any:
        """A whole split as one frame of the pipeline's engine.

        Parameters
        ----------
        split
            `train`, `valid`, `test`, or another one of `rows`.
        columns
            Which are read, in this order; None: all.

        Raises
        ------
        DataError
            For a split or a column that does not exist, where the message lists those that do; or a column that is
            named twice.
        """
        engine = load_engine(self.pipeline.engine)
        wanted = self._columns(columns)
        parts = [engine.read_parquet(path, wanted)[wanted] for path in self.parts(split)]
        return parts[0] if len(parts) == 1 else engine.frames.concat(parts, ignore_index=True)

    def frames(self, split: str, rows: int) -> Iterator[Any]:
        """The rows of `frame`, in frames of a multiple of `rows` rows, but for the last; no more than a file's rows and
        `rows` are in memory.

        Parameters
        ----------
        split
            As of `frame`.
        rows
            1 or more.
        """
        engine, wanted, left = load_engine(self.pipeline.engine), self._columns(None), None
        for path in self.parts(split):
            part = engine.read_parquet(path, wanted)[wanted]
            part = part if left is None else engine.frames.concat([left, part], ignore_index=True)
            whole = len(part) // rows * rows
            if whole:
                yield part.iloc[:whole]
            left = part.iloc[whole:].copy() if whole < len(part) else None
        if left is not None:
            yield left

    def head(self, n: int = 5, split: str = "train", columns: Sequence[str] | None = None) -> Any:
        """The first `n` rows of a split, or all where it has fewer; no file is read beyond them.

        Parameters
        ----------
        n
            Number of rows, 0 or more.
        split, columns
            As of `frame`.
        """
        return self._rows_at(split, np.arange(min(_num_rows(n), self._num_rows(split))), columns)

    def sample(self, n: int, seed: int = 0, split: str = "train", columns: Sequence[str] | None = None) -> Any:
        """`n` rows of a split drawn without replacement, or all where it has fewer, in the split's order.

        The split is read block by block, so that no more than a block and the drawn rows are in memory.

        Parameters
        ----------
        n
            Number of rows, 0 or more.
        seed
            Of the draw: the same rows for the same seed and split.
        split, columns
            As of `frame`.
        """
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise DataError(f"features: seed is a whole number from 0 on, found {seed!r}.")
        num_rows = self._num_rows(split)
        drawn = np.random.default_rng(seed).choice(num_rows, min(_num_rows(n), num_rows), replace=False)
        return self._rows_at(split, np.sort(drawn), columns)

    def _num_rows(self, split: str) -> int:
        self.parts(split)  # refuses a split that is not there
        return self.rows[split]

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that are asked for."""
        known = list(self.schema.table_columns)
        if columns is None:
            return known
        if isinstance(columns, str):
            raise DataError(f"features: columns is a list of names, found {columns!r}. Give [{columns!r}].")
        if missing := [name for name in columns if name not in known]:
            raise DataError.missing_columns(missing, known, "features")
        if twice := repeated(columns):
            raise DataError(f"features: column(s) {', '.join(map(repr, twice))} are named twice. Name each once.")
        return list(columns)

    def _rows_at(self, split: str, places: np.ndarray, columns: Sequence[str] | None) -> Any:
        """The rows at these places of a split, int64 ascending, as `frame` would give them."""
        wanted = self._columns(columns)
        buffer = io.BytesIO()  # so that the engine makes the types of it that it makes of the files
        pq.write_table(self._arrow_rows(split, places, wanted), buffer)
        buffer.seek(0)
        return load_engine(self.pipeline.engine).read_parquet(buffer, wanted)[wanted]

    def _arrow_rows(self, split: str, places: np.ndarray, wanted: list[str]) -> pa.Table:
        """These columns of the rows at these places of a split, int64 ascending, as the files hold them."""
        found, start = [], 0
        schema = pq.read_schema(self.parts(split)[0])
        for path in self.parts(split):
            with pq.ParquetFile(path) as file:
                stop = start + file.metadata.num_rows
                if np.searchsorted(places, start) < np.searchsorted(places, stop):
                    for batch in file.iter_batches(HEAD_BLOCK, columns=wanted):
                        first, last = np.searchsorted(places, [start, start + len(batch)])
                        if last > first:
                            found.append(batch.take(pa.array(places[first:last] - start)))
                        start += len(batch)
                        if last == len(places):
                            break
            start = stop
            if not len(places) or start > places[-1]:
                break
        kind = pa.schema([schema.field(name) for name in wanted], schema.metadata)
        rows = pa.Table.from_batches(found) if found else kind.empty_table()
        return rows.replace_schema_metadata(schema.metadata)

    def encode(self) -> Encoded:
        """Fit the preprocessor on the train split, or grow that of `preprocess.from`; every split as a packed table.

        With the setting `handover` this may return while a thread still writes the artifact (`Encoded.artifact`).

        Raises
        ------
        DataError
            Where columns are not those of the preprocessor that is grown; the message names them.
        ConfigError
            Where a step of `features.steps` numbers values anew each time that growth would have to know again.
        ArtifactError
            Where a file of an artifact is not what was written; the artifact is put aside.
        """
        try:
            return self.pipeline.in_turn(self._encode)
        except (DataError, LoaderError, pa.ArrowInvalid, OSError) as error:
            # Arrow's error of a page that it cannot unpack has no number; an error of the machine tells of no damage.
            if getattr(error, "errno", None) is None and stopped_by(error) is None:
                self.pipeline.store.require_whole("features", "encode")
            raise

    @plain_defaults()
    def _encode(self) -> Encoded:
        pipeline, config = self.pipeline, self.pipeline.config
        start, engine = pipeline.start, pipeline.engine
        if start is None:
            preprocessor = Preprocessor(self.schema, config.preprocess.encoding)
        else:
            preprocessor = start.preprocessor.carried_to(self.schema, config.preprocess.encoding)
            require_lasting_values(self.workflow, self.schema)
        key = self._encode_key(start.checksum if start else None)
        if start is not None and (same := self._grown_before(key)) is not None:
            return Encoded(self, same)
        handed: HandedOver | None = None

        def begin(folder: Path) -> Extra | Rest:
            nonlocal handed
            started = time.perf_counter()
            tables, report = {}, None
            with pipeline.cluster(folder) as cluster:
                part_rows = partial(pipeline.part_rows, lambda: parquet_row_bytes(self.parts("train")[0]))
                at_once = 1 if cluster.distributed else part_rows()
                # Workers take a file each.
                together = {split: read_together(engine, self.parts(split), at_once) for split in SPLITS}
                if start is None:
                    packed = fit(preprocessor, engine, together["train"], cluster)
                else:
                    packed, report = grow(
                        preprocessor, engine, together["train"], cluster, config.preprocess.refresh_scales
                    )
                preprocessor.save(folder / PREPROCESSOR)
                if report is not None:
                    write_churn(report, folder)
                rows = {split: self.rows[split] for split in SPLITS}
                row_bytes = 4 * preprocessor.tensor_schema.num_words
                # Else the others read what is written, and lists are mapped from there.
                alone = pipeline.ranks.num_ranks == 1 and not preprocessor.schema.lists
                behind = alone and hands_over_here(config, engine, pipeline.device, rows, row_bytes)
                with progress(sum(rows.values()), "encode") as bar:
                    for split in SPLITS:
                        parts = together[split]
                        ready, packed = packed if split == "train" else [], []
                        if behind:
                            tables[split] = packed_split(preprocessor, engine, parts, rows[split], ready)
                        else:
                            encode_split(preprocessor, engine, parts, rows[split], folder / split, cluster, ready)
                        bar.advance(rows[split], split)
            extra = {
                "rows": rows,
                "version": preprocessor.version.number,
                "same_as": self._encode_key(preprocessor.checksum),
                "seconds": time.perf_counter() - started,
            }
            if not behind:
                return extra
            handed = HandedOver(tables, Preprocessor.load(folder / PREPROCESSOR, engine))
            return write_behind(tables, folder, extra)

        return Encoded(self, pipeline.store.build_behind("encode", key, begin), handed)

    def encoded_before(self) -> Artifact | None:
        """The artifact that `encode` finds, where there is one that is whole."""
        start, store = self.pipeline.start, self.pipeline.store
        key = self._encode_key(start.checksum if start else None)
        same = None if start is None else self._grown_before(key)
        return store.find("encode", key) if same is None else same

    def _encode_key(self, start: str | None) -> str:
        """Of the encode artifact; start: checksum of the preprocessor that is grown, wherever it lies."""
        inputs = {"features": self.artifact.key} | ({} if start is None else {"start": start})
        chosen = self.pipeline.config.preprocess
        settings: dict[str, Any] = {"preprocess": asdict(chosen.encoding), "engine": self.pipeline.engine}
        settings |= {"refresh_scales": True} if start is not None and chosen.refresh_scales else {}
        return artifact_key("encode", inputs, settings, source_hash(SOURCES["encode"]))

    def _grown_before(self, key: str) -> Artifact | None:
        """The artifact of these features whose own preprocessor is the one to be grown, if it is whole.

        A growth by the rows that it knows changes nothing: the same preprocessor and the same packed rows. So a night
        that runs again after its promotion finds what it made.
        """
        folder = self.pipeline.store.root / "encode"
        if not folder.is_dir() or (folder / key).is_dir():
            return None
        same = [path for path in artifacts_newest_first(folder) if start_of_manifest(path) == key]
        return next(filter(None, (self.pipeline.store.find("encode", path.name) for path in same)), None)

    def train(self) -> Run:
        """Encode, train and evaluate."""
        return self.encode().train()

    def __repr__(self) -> str:
        return f"Features({_counts(self.rows)} rows, {len(self.schema.table_columns)} columns)"

    def _repr_html_(self) -> str:
        num_rows = min(ROWS_LOOKED_AT, self.rows["train"])
        first = self._arrow_rows("train", np.arange(num_rows), list(self.schema.table_columns))
        return features_html(self.pipeline.config.name, self.rows, self.schema, first, self.notes)


@dataclass
class Encoded:
    """The result of the encode stage: packed tables by split, and the preprocessor that made them.

    Parameters
    ----------
    features
        What was encoded.
    made
        The artifact, or the thread that is writing it.
    handed
        The rows in memory where a thread is writing them, else None.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": range(100), "clicked": [1, 0] * 50})
    >>> rows.to_csv("clicks.csv", index=False)
    >>> columns = {"categorical": ["city"], "continuous": ["price"], "targets": {"clicked": {"task": "binary"}}}
    >>> config = RunConfig(name="clicks", recipe="table", features={"path": "clicks.csv", **columns})
    >>> encoded = Pipeline(config).features().encode()
    >>> table = encoded.table("train")
    >>> [(column.name, column.num_ids) for column in table.schema.ids], table.schema.floats
    ([('city', 5)], ('price', 'price_na'))
    >>> len(encoded.evaluation_table("test")) == len(encoded.table("test"))
    True
    """

    features: Features
    made: Artifact | Writing
    handed: HandedOver | None = None

    @property
    def key(self) -> str:
        """The artifact's, which is known before it is whole."""
        return self.made.key

    @property
    def artifact(self) -> Artifact:
        """The whole artifact; waits for it while a thread writes it. From then on tables are those of its files.

        Raises
        ------
        ArtifactError, OSError
            Where it could not be written, as `Features.encode` raises it without a handover.
        """
        made = self.made if isinstance(self.made, Artifact) else self.made.result()
        self.handed = None
        return made

    @property
    def churn(self) -> Churn | None:
        """How the train split differs from what the preprocessor of `preprocess.from` knew; waits for the artifact.

        None where it was fitted on this very split.
        """
        path = self.artifact.path / CHURN_JSON
        return Churn.from_json(path.read_text()) if path.is_file() else None

    @property
    def preprocessor(self) -> Preprocessor:
        if (handed := self.handed) is not None:
            return handed.preprocessor
        return self._preprocessor

    @cached_property
    def _preprocessor(self) -> Preprocessor:
        return Preprocessor.load(self.artifact.path / PREPROCESSOR, self.features.pipeline.engine)

    def table(self, split: str) -> PackedTable:
        """A split's packed table on the host: in memory while a thread writes it, else memory-mapped."""
        if (handed := self.handed) is not None and handed.on_host:
            return handed.tables[split]
        return PackedTable.load(self.artifact.path / split)

    def _resident(self, split: str) -> PackedTable:
        """A split's packed table where it lies: on the GPU too, while a thread writes it."""
        return self.table(split) if (handed := self.handed) is None else handed.tables[split]

    def evaluation_table(self, split: str) -> PackedTable:
        """A split as its loss and metrics are measured.

        Returns
        -------
        PackedTable
            The split's table, on the GPU where it lies there. Where `train.negatives` is set, each of its rows with the
            negatives that are drawn for it, the same each time, in memory where the split's table is.
        """
        tables = {name: self._resident(name) for name in SPLITS}
        config, preprocessor = self.features.pipeline.config, self.preprocessor
        inputs, device = model_inputs(preprocessor), self.features.pipeline.device
        place = list(tables).index(split)
        return with_negatives(preprocessor, inputs, list(tables.values()), place, config, device)

    @cached_property
    def config(self) -> RunConfig:
        """The run's configuration, with the train settings that it leaves to the rule filled in."""
        config, schema = self.features.pipeline.config, self._resident("train").schema
        warm = self.warm_start is not None
        rule = rule_of(model_class(config.model.kind), model_inputs(self.preprocessor))
        whole = settle(config.train, self.num_trained, id_sizes(schema), warm, **rule)
        return config.model_copy(update={"train": whole})

    @property
    def train_settings(self) -> WholeTrainSettings:
        """Those of the configuration, and of the rule where it leaves them out."""
        settings = self.config.train
        assert isinstance(settings, WholeTrainSettings)
        return settings

    @property
    def learns_by_steps(self) -> bool:
        """Whether the configured model has epochs and batches, or is fitted to all train rows at once."""
        return model_class(self.features.pipeline.config.model.kind).learns_by_steps

    @property
    def ruled(self) -> list[str]:
        """What rules filled in, in words: of positives, and of the number of rows; nothing where all was set."""
        config = self.features.pipeline.config
        found = [positives_text(config.chosen)]
        if self.learns_by_steps:  # else there are no epochs
            found.append(rule_text(config.train, self.train_settings, self.num_trained))
        return [text for text in found if text]

    @cached_property
    def _warm_start(self) -> tuple[WarmStart | None, str]:
        """What the training starts from, and why it starts cold where a start is asked for and it does."""
        pipeline, config = self.features.pipeline, self.features.pipeline.config
        name = config.train.start_from
        if name is None:
            return None, ""
        if run_link(config, name) == home_of(config) / CURRENT and not os.path.lexists(home_of(config) / CURRENT):
            return None, f"Trained cold: train.start_from is {name}, and no run of {config.name} is current yet."
        found = find_run(config, name)
        pipeline.starts.append(found)  # whose lease keeps it from gc as long as the pipeline is there
        start, preprocessor = WarmStart.load(found.path, pipeline.engine), self.preprocessor
        spec = start.spec_after(replace(model_spec(preprocessor, config), members=config.train.ensemble))
        loss = target_loss(self.features.schema, config.train.losses).description
        try:
            start.require_unchanged(preprocessor, spec, loss)
            targets = start.bundle.schema.targets, self.features.schema.targets
            if labels := [*changed_labels(*targets, Run(found.path).summary["config"], config.to_dict())]:
                raise ChangedError(f"train.start_from: run {found.id} cannot be carried over: {' '.join(labels)}")
        except ChangedError as error:
            if config.train.changed == "refuse":
                raise
            return None, f"Trained cold (train.changed=cold): {error}"
        if learnt := learnt_of(self.features, "test", Run(found.path).summary, start.bundle.info):
            log.warning(
                "train.start_from: final run %s has learnt from test rows (%s): no measurement. Start from the run "
                "that was measured.", found.id, learnt,
            )  # fmt: skip
        if learnt := learnt_of(self.features, "valid", Run(found.path).summary, start.bundle.info):
            log.warning(
                "train.start_from: run %s has learnt from valid rows (%s): valid is no measurement, and chooses the "
                "epoch by what is known. Start from a run of train.ensemble_by=seeds.", found.id, learnt,
            )  # fmt: skip
        return start, ""

    @property
    def warm_start(self) -> WarmStart | None:
        """The run that the training goes on from; None where it starts cold.

        Raises
        ------
        RunError, BundleError, TrainingError
            Where `train.start_from` names no run that can be used, or one that does not fit (`train.changed`).
        """
        return self._warm_start[0]

    @property
    def cold_note(self) -> str:
        """Why the training starts cold where `train.start_from` asks for a start, as a sentence; else empty."""
        return self._warm_start[1]

    @cached_property
    def window(self) -> Window | None:
        """The train rows that are trained on; None where all are.

        Raises
        ------
        DataError
            Where the rows have no time, or none is new to the start.
        """
        config, start = self.features.pipeline.config, self.warm_start
        settings = config.train.window
        if start is None or settings is None or settings.since is None:
            return None
        times = split_times(self.features, "train")
        if times is None:
            raise DataError(
                "train.window: rows are chosen by time, and the schema has no time column. Name it in the recipe's "
                "settings, or set train.window=null, which trains on all rows."
            )
        return choose_rows(times, start.bundle.info, settings.replay, config.seed)

    @cached_property
    def chosen_rows(self) -> np.ndarray | None:
        """Places of the train rows that are trained on, int64 ascending: those of the window, or of the group of a
        codistillation. None where all are."""
        config = self.features.pipeline.config
        if config.train.codistill is not None and config.train.codistill.rows == "disjoint":
            return share_rows(self.features.rows["train"], config.train.codistill, config.seed)
        return None if self.window is None else self.window.rows

    @property
    def seed(self) -> int:
        """Of weights, order of rows and dropout: the configuration's, or that of the group of a codistillation."""
        config = self.features.pipeline.config
        return seed_of(config.seed, config.train.codistill)

    @property
    def num_trained(self) -> int:
        """Rows of an epoch, as far as they fill batches."""
        return self.features.rows["train"] if self.chosen_rows is None else len(self.chosen_rows)

    def _trained_rows(self) -> PackedTable:
        """The train split's packed rows that are trained on, where they lie."""
        rows = self._resident("train")
        if self.chosen_rows is None:
            return rows
        if self.handed is not None:
            return rows.with_words(rows.words[torch.from_numpy(self.chosen_rows).to(rows.device)])
        return PackedTable.load(self._chosen(self.chosen_rows).path)

    def _chosen(self, places: np.ndarray) -> Artifact:
        """The packed rows at these places of the train split, from where every residency can take them."""
        table = PackedTable.load(self.artifact.path / "train")
        rows = hashlib.blake2b(places.tobytes(), digest_size=16).hexdigest()
        key = artifact_key(
            "window", {"encode": self.artifact.key, "rows": rows}, {}, source_hash(["gigabatch.loaders"])
        )

        def write(folder: Path) -> dict[str, Any]:
            with PackedWriter(folder, table.schema, len(places)) as writer:
                for part in torch.from_numpy(places).split(WINDOW_BLOCK):
                    writer.write(table.with_words(table.words[part]))
            return {"rows": len(places)}

        pipeline = self.features.pipeline
        return pipeline.in_turn(lambda: pipeline.store.build("window", key, write))

    def shuffled(self) -> Artifact:
        """The rows that are trained on in a global random order, of which blocks can be streamed."""
        stored, seed = PackedShards(self._train_path), self.seed
        sources = source_hash(["gigabatch.features.schema", "gigabatch.loaders"])
        inputs = {"encode": self.artifact.key} | ({} if self.chosen_rows is None else {"window": self._train_path.name})
        key = artifact_key("shuffled", inputs, {"seed": seed}, sources)

        def write(folder: Path) -> dict[str, Any]:
            write_shuffled(stored.parts(), folder, stored.schema, stored.num_rows, seed)
            return {"rows": stored.num_rows}

        pipeline = self.features.pipeline
        return pipeline.in_turn(lambda: pipeline.store.build("shuffled", key, write))

    @property
    def _train_path(self) -> Path:
        return self.artifact.path / "train" if self.chosen_rows is None else self._chosen(self.chosen_rows).path

    def train_source(self, seed: int | None = None, rows: PackedTable | None = None) -> BatchSource:
        """Batches of the train split, or of its window, from where `train.residency` wants the rows; the log says it.

        Rows that were handed over in memory go from there to where a model trains. seed: of another order of the rows
        than the run's own, for a member of an ensemble; blocks that are streamed are those of the run's one shuffle.
        rows: that a member by folds learns instead. `TrainingError` where these would have to be streamed.
        """
        seed, device = self.seed if seed is None else seed, self.features.pipeline.device
        residency: Residency | str
        table: PackedTable | PackedShards
        if self.handed is not None:
            table, residency = self._trained_rows() if rows is None else rows, "host" if device == "cpu" else "device"
            log.info("residency %s: %s rows were handed over in memory", residency, f"{len(table):,}")
        else:
            table = stored = PackedShards(self._train_path)
            residency = self.residency(stored)
            if rows is not None:
                if residency.kind == "stream":
                    raise TrainingError(f"train.ensemble_by=folds: {residency.reason}. Set it to seeds.")
                table = rows
            elif residency.kind == "stream":
                table = PackedShards(self.shuffled().path)
        num_rows = table.num_rows if isinstance(table, PackedShards) else len(table)
        shares = rank_shares(batch_size_for(num_rows, self.train_settings), self.features.pipeline.ranks)
        return open_source(table, residency, device=device, seed=seed, drop_last=True, **shares)

    def residency(self, stored: PackedShards) -> Residency:
        """Where the rows that are trained on are to be, which are `stored`; the log says it."""
        config, device = self.features.pipeline.config, self.features.pipeline.device
        valid = PackedShards(self.artifact.path / "valid")
        # Beside the train split lies valid as it is evaluated, which has rows of negatives too.
        ranks, free = self.features.pipeline.ranks, available_memory() // ranks_of_machine()
        found = residency_here([stored, *[valid] * config.train.copies], device, free, config.train.residency)
        return Residency(*ranks.tell([found.kind, found.reason], "residency"))  # of one order on all

    def train(self) -> Run:
        """Train, evaluate, report; everything under runs/<name>/<id>/."""
        return self.publish(self.fit_model())

    @property
    def train_key(self) -> str:
        """Of the artifact that `fit_model` makes or finds."""
        config, start = self.config, self.warm_start
        raw = config.to_dict()
        if raw["train"]["codistill"] is not None:  # where groups meet changes nothing
            raw["train"]["codistill"].pop("folder")
        # Of a start what it holds matters, not what it is called; without one, nothing that asks for it. `tables`, as
        # the number of ranks, is where a training lies: with another one it goes on.
        asks = ("start_from", "changed", "tables") + (() if start is not None else ("new_rows", "sums_kept", "window"))
        asks += ("ensemble",) if config.train.ensemble == 1 else ()
        asks += () if config.train.by_folds else ("ensemble_by",)
        train = {name: value for name, value in raw["train"].items() if name not in asks}
        device = self.features.pipeline.device
        settings = {"model": raw["model"], "train": train, "seed": config.seed, "device": device}
        settings |= {"code": code} if (code := OWN_MODELS.code(config.model.kind)) else {}
        if config.num_threads is not None:  # the last bits of weights follow from it
            settings |= {"num_threads": config.num_threads}
        inputs = {"encode": self.key} | ({} if start is None else {"start": start.key})
        return artifact_key("train", inputs, settings, source_hash(SOURCES["train"]))

    def _codistillation(self) -> Codistillation | None:
        """The group that this training is, if it is one."""
        config, pipeline = self.config, self.features.pipeline
        settings = config.train.codistill
        if settings is None:
            return None
        # As it was written: what is left to the rule follows from a group's own rows, and may differ. Another learning
        # rate makes another team, or an experiment would learn from the weights that the one before it has left.
        raw = self.features.pipeline.config.to_dict()
        alike = {name: raw["train"][name] for name in TAUGHT_ALIKE}
        alike |= {k: v for k, v in raw["train"]["codistill"].items() if k not in ("group", "folder")}
        team = {
            "features or encoding": self.key,
            "model": artifact_key("model", {}, raw["model"], OWN_MODELS.code(pipeline.config.model.kind)),
            "settings of train": artifact_key("codistill", {}, alike, ""),
            "seed": str(config.seed),
        }
        name = f"codistill-{artifact_key('codistill', team, {}, '')}"
        pipeline.store.use(CHECKPOINTS, name)
        return Codistillation(settings, settings.folder or pipeline.store.root / CHECKPOINTS / name, team)

    @plain_defaults()
    def fit_model(self) -> Artifact:
        """The trained bundle and metrics.jsonl as an artifact. A run that was killed goes on from its checkpoint."""
        pipeline, config, start = self.features.pipeline, self.config, self.warm_start
        if start is None and not config.train.epochs:
            raise TrainingError(f"train.epochs=0: there is nothing to start from. {self.cold_note}")
        key = self.train_key
        work = pipeline.store.root / CHECKPOINTS / key
        pipeline.store.use(CHECKPOINTS, key)
        ranks = pipeline.ranks
        if len(set(ranks.gather(key, "key"))) > 1:
            raise TrainingError(
                "several ranks: they see other files, settings or sources, so they would train other models. Give all "
                "machines the same."
            )
        if not ranks.is_first:
            return self._trained_beside(key, work)

        def write(folder: Path) -> dict[str, Any]:
            ranks.tell(True, "training")
            started = time.perf_counter()
            work.mkdir(parents=True, exist_ok=True)
            trained, bundle, told = self._train(work)
            bundle.save(folder / "model")
            trained.record.save(folder / TRAINING)
            shutil.copy(work / "metrics.jsonl", folder / "metrics.jsonl")
            seconds = time.perf_counter() - started
            _ = self.artifact  # waits: no model is kept whose rows could not be
            kept = ("rows", "best_epoch", "steps", "skipped_steps", "earlier_rows")
            # Those of a process that was killed count up to the checkpoint, as its rows do.
            return (
                {name: getattr(trained, name) for name in kept} | told | {"seconds": trained.earlier_seconds + seconds}
            )

        if pipeline.store.find("train", key) is not None and not work.exists():
            _ = self.artifact
            ranks.tell(False, "training")
            return pipeline.store.build("train", key, write)
        # Held until the checkpoints are gone, so that no other run takes them up or loses them meanwhile.
        # Of several ranks the others would not wait so long for the first one.
        with folder_lock(work.with_suffix(".lock"), "trains the same" if ranks.num_ranks == 1 else ""):
            artifact = pipeline.store.build("train", key, write)
            shutil.rmtree(work, ignore_errors=True)
        ranks.tell(False, "training")  # there is none, or it is over
        return artifact

    def _trained_beside(self, key: str, work: Path) -> Artifact:
        """The artifact that the first rank makes or finds, whose training this one takes part in."""
        pipeline = self.features.pipeline
        if pipeline.ranks.tell(None, "training"):
            self._train(work)
            pipeline.ranks.tell(None, "training")
        until = time.monotonic() + SHARED_FOLDER_S
        while (found := pipeline.store.find("train", key)) is None and time.monotonic() < until:
            time.sleep(0.2)  # folders that machines share show a new name a while later
        if found is None:
            raise ArtifactError(
                f"{pipeline.store.root / 'train' / key}: the first rank has made it, and this one does not find it. "
                "All ranks must share the folder of artifacts."
            )
        return found

    def _train(self, work: Path) -> tuple[Trained, Bundle, dict[str, Any]]:
        """The trained model, its bundle, and what the artifact's manifest says of the start."""
        pipeline, config = self.features.pipeline, self.features.pipeline.config
        preprocessor, device, settings = self.preprocessor, pipeline.device, self.train_settings
        require_positives(config, preprocessor)
        require_members_differ(settings, config.model.kind)
        loss = target_loss(self.features.schema, settings.losses, settings.label_smoothing)
        spec, start, window = model_spec(preprocessor, config), self.warm_start, self.window
        if self.cold_note:
            log.warning("train.start_from: %s", self.cold_note)
        if start is not None:
            spec = start.spec_after(spec)
        few, tensors = few_steps_text(settings, self.num_trained), preprocessor.tensor_schema
        with_tables = [column.name for column in tensors.ids]
        with_tables += [column.name for column in tensors.lists if column.shares is None]
        for text in large_tables(spec, with_tables, free_memory(device)):
            log.warning(text)
        for text in self.ruled:
            log.info(text)
        for split in ("train", "valid", "test"):
            require_weights(self._resident(split), split, self.features.schema.only("weight"))
        require_labels(loss, self._resident("test"), "test")
        for split in ("train", "valid", "test"):  # here, where rows have the order of the split
            require_steps_in_order(model_class(spec.name), self._resident(split), split)
        if config.evaluate.ranking is not None:  # an error of what is asked of test comes before the training
            tables = {split: self._resident(split) for split in SPLITS}
            require_questions(preprocessor, tables, spec.inputs, device, config.evaluate.ranking)
        codistillation = self._codistillation()
        training = ModelTraining(self, work, spec, loss, codistillation, few)
        valid, held = training.valid, training.held
        told: dict[str, Any] = {}
        members: dict[str, Any] = {}
        if settings.ensemble == 1:
            trained, carried = training(MemberTraining(0, self.seed, work, settings))
        else:
            whole, given = replace(spec, members=settings.ensemble), self._trained_rows()
            beside = training.beside()
            places: dict[str, Any] = {"device": device, "folder": work, "ranks": pipeline.ranks, "beside": beside}
            trained, carried, members = train_members(
                training, whole, given, valid, loss, settings, seed=self.seed, **places
            )
        told["threads"] = training.threads or torch.get_num_threads()
        period = self._period(start) if settings.epochs else {}
        if start is not None and not settings.epochs:
            period = {name: start.bundle.info[name] for name in PERIOD if name in start.bundle.info}
        info = {"name": config.name, "recipe": config.recipe, "seed": config.seed, "loss": loss.description, **period}
        if trained.prior_shift and settings.prior is not None:
            info |= {"prior_shift": trained.prior_shift}
            info |= {} if settings.prior.serve is None else {"prior_serve": settings.prior.serve}
        nulls = getattr(config.features, "null_values", None)
        info |= {} if nulls is None else {"null_values": list(nulls)}
        if positive := positive_labels(getattr(config.features, "targets", None), self.features.schema):
            info["positive"] = positive
        seen = held if self.chosen_rows is None else held_ids(self._trained_rows())
        if not settings.epochs:
            seen = {name: torch.zeros_like(ids) for name, ids in seen.items()}
        if start is not None and carried is not None:
            info["started_from"] = start.lineage
            seen = {name: ids | carried.record.trained[name] for name, ids in seen.items()}
            told["started"] = start.lineage | {"moments": carried.moments, "columns": carried.columns}
            told["started"] |= {} if window is None else {"window": window.counts()}
            told["notes"] = [carried.note()] + ([] if window is None else [window.note()])
            told["notes"] += [few] if few else []
        elif self.cold_note:
            told["notes"] = [self.cold_note]
        if members:
            told["ensemble"] = members
            info["members"] = {name: members[name] for name in ("seeds", "folds") if name in members}
            told["notes"] = [*told.get("notes", []), members_text(members)]
            log.info(told["notes"][-1])
        if codistillation is not None:
            told["notes"] = [codistillation.note(trained.steps, self.num_trained)]
            log.info(told["notes"][0])
        trained.record = replace(trained.record, trained=seen)
        workflow, looking_back, refused = raw_steps(self.features)
        if refused is not None:
            info["raw_refused"] = refused
        return trained, Bundle(preprocessor, trained.model, info, device, workflow, looking_back), told

    def _period(self, start: WarmStart | None) -> dict[str, Any]:
        """First and last moment that the model, or one that it goes on from, was fitted or selected on; and the train
        rows by time, for a window that begins after them. Nothing without a time column."""
        found = training_period(self.features)
        if not found:
            return {}
        if start is not None and "trained_until" in start.bundle.info:
            before = start.bundle.info
            found["trained_from"] = min(found["trained_from"], before["trained_from"])
            found["trained_until"] = max(found["trained_until"], before["trained_until"])
        times = split_times(self.features, "train")
        if times is not None and self.window is None and self.chosen_rows is not None:
            times = times[self.chosen_rows]  # of the others a start from this run has seen nothing
        return found if times is None else found | {"train_times": times_held(times)}

    @plain_defaults()
    def publish(self, trained: Artifact, promote: bool = True) -> Run:
        """Evaluate a trained artifact and put the run's folder in place, then point runs/<name>/latest at it.

        A run that is there and damaged is mended. promote: whether the run becomes `current` where none is.
        """
        features, pipeline, config = self.features, self.features.pipeline, self.config
        settings = {"evaluate": config.to_dict()["evaluate"], "name": config.name}
        measured = None if pipeline.measured is None else pipeline.measured.summary
        settings |= {} if measured is None else {"measured": measured["id"]}
        final = [] if measured is None else [final_note(measured["id"], self.train_settings.epochs, features.rows)]
        key = artifact_key(
            "evaluate", {"train": trained.key}, settings, source_hash(["gigabatch.pipeline", "gigabatch.models"])
        )
        artifacts = {"features": features.artifact, "encode": self.artifact, "train": trained}
        path, ranks = config.runs / config.name / run_id_of(key), pipeline.ranks

        def evaluated() -> EvaluationData:
            tables = {split: self.table(split) for split in SPLITS}
            by_folds = config.train.by_folds
            measured = ("test",) if by_folds else ("valid", "test")  # whose rows members by folds have learnt
            data = evaluation_data(features, self.preprocessor, tables, measured, "test")
            left_out = self._left_out() if by_folds else ()
            return replace(data, keep_baselines=self._keep_baselines, left_out=left_out)

        if not ranks.is_first:
            if ranks.tell(None, "evaluation"):
                with using_kernels(config.train.kernels):
                    bundle = load_bundle(trained.path / "model", pipeline.device, pipeline.engine)
                    evaluate_beside(bundle, evaluated())
                ranks.tell(None, "evaluation")
            return Run(path)

        def write(folder: Path) -> dict[str, Any]:
            ranks.tell(True, "evaluation")
            data = RunData(
                config=config,
                engine=pipeline.engine,
                rows=features.rows,
                notes=[*final, *features.notes, *self.ruled, *trained.manifest.get("notes", ())],
                stages=artifacts,
                evaluated=evaluated(),
                measured=None if measured is None else measurement(measured),
            )
            with using_kernels(config.train.kernels), progress(None, "evaluate") as bar:
                summary = write_run(folder, run_id_of(key), data)
                bar.advance(summary["rows_by_stage"]["evaluate"])
            return {
                "rows": summary["rows"],
                "seconds": summary["seconds"]["evaluate"],
                MADE_FROM: {name: artifact.key for name, artifact in artifacts.items()},
                **loaded_by(),
            }

        artifact = pipeline.store.build("evaluate", key, write)
        pipeline.lease.add(f"{config.name}/{path.name}")
        pipeline.store.copy(artifact, path)
        atomic_symlink(Path(path.name), path.parent / LATEST)
        tell_run(config, path)
        if promote and promote_first(path.parent, path):
            tell_champion(config, path)
        ranks.tell(False, "evaluation")  # there is none, or it is over
        return Run(path, tuple(name for name, item in (artifacts | {"evaluate": artifact}).items() if item.skipped))

    def _left_out(self) -> tuple[PackedTable, ...]:
        """The rows that each member by folds has left out."""
        members, rows = self.config.train.ensemble, (self.table("train"), self.evaluation_table("valid"))
        folds = Folds.deal(*rows, members, self.seed)
        return tuple(folds.tables(number)[1] for number in range(members))

    def _keep_baselines(self, asked: dict[str, Any], write: Callable[[Path], dict[str, Any]]) -> Path:
        """The folder of what baselines predict of these tables."""
        key = artifact_key("baselines", {"encode": self.key}, asked, source_hash(BASELINE_SOURCES))
        return self.features.pipeline.store.build("baselines", key, write).path

    def ranking(self, inputs: ModelInputs) -> Callable[[Model], dict[str, Any]] | None:
        """`rank_evaluate` on the test split, of models with these inputs; None where none is asked for."""
        tables = {split: self.table(split) for split in SPLITS}
        return ranking_of(self.features.pipeline, self.preprocessor, tables, "test", inputs)

    def __repr__(self) -> str:
        schema = self.preprocessor.tensor_schema
        columns = f"{len(schema.ids)} ids, {len(schema.floats)} numbers, {len(schema.lists)} lists"
        return f"Encoded({_counts(self.features.rows)} rows, {columns})"

    def _repr_html_(self) -> str:
        rows = {split: self.features.rows[split] for split in SPLITS}
        return encoded_html(self.preprocessor, self.table("train"), self.table("valid"), rows)


@dataclass
class ModelTraining:
    """What trains the model of a run, or a member of its ensemble: here, or in another process, which reads the tables
    for itself. threads: of one member, once they are known."""

    encoded: Encoded
    work: Path
    spec: ModelSpec
    loss: TargetLoss
    codistillation: Codistillation | None
    few: str
    threads: int = 0

    @cached_property
    def valid(self) -> PackedTable:
        return self.encoded.evaluation_table("valid")

    @cached_property
    def folds(self) -> Folds:
        """Of all members, dealt once."""
        rows, members = self.encoded._resident("train"), self.encoded.train_settings.ensemble
        return Folds.deal(rows, self.valid, members, self.encoded.seed)

    @cached_property
    def held(self) -> dict[str, torch.Tensor]:
        """The ids that the train split's rows have, by column."""
        return held_ids(self.encoded._resident("train"))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("valid", "folds", "held")}

    @property
    def of_a_step(self) -> int:
        """Rows, with drawn negatives."""
        settings = self.encoded.train_settings
        return min(settings.batch_size, self.encoded.num_trained) * settings.copies

    def beside(self) -> Beside | None:
        """How the members are trained side by side. None where they are trained in turn: where it saves nothing, on a
        GPU, by several ranks, with callbacks, which are objects of this process, and where rows are streamed or not on
        disk yet."""
        encoded, pipeline, settings = self.encoded, self.encoded.features.pipeline, self.encoded.train_settings
        on_disk = isinstance(encoded.made, Artifact)
        if pipeline.device != "cpu" or pipeline.ranks.num_ranks > 1 or pipeline.callbacks or not on_disk:
            return None

        def threads() -> int:
            with torch.random.fork_rng([]):
                model = new_model(self.spec, encoded._resident("train"), encoded.seed, self.loss)
            self.threads = threads_of_training(model, self.valid, self.of_a_step, "cpu", pipeline.config.num_threads)
            return self.threads

        steps = settings.epochs * (encoded.num_trained * settings.copies // self.of_a_step)
        rows = settings.epochs * encoded.num_trained * settings.copies
        at_once = members_at_once(settings.ensemble, steps, rows, threads, FLOAT_BYTES * self.spec.table_parameters)
        if at_once == 1 or encoded.residency(PackedShards(encoded._train_path)).kind == "stream":
            return None
        return Beside(at_once, pipeline.config.imports, (("model", self.spec.name), ("recipe", pipeline.config.recipe)))

    def __call__(self, asked: MemberTraining) -> tuple[Trained, Carried | None]:
        encoded, pipeline = self.encoded, self.encoded.features.pipeline
        config, settings, device, ranks = pipeline.config, encoded.train_settings, pipeline.device, pipeline.ranks
        preprocessor, start, window = encoded.preprocessor, encoded.warm_start, encoded.window
        # A failure of the thread that writes the rows ends the training at its next step.
        watched = {"after_step": lambda _: writing.check()} if isinstance(writing := encoded.made, Writing) else {}
        whole = encoded._resident("train")
        rows, valid = self.folds.tables(asked.number) if settings.by_folds else (whole, self.valid)
        learnt = rows if settings.by_folds else None
        source = encoded.train_source(asked.seed, learnt) if encoded.learns_by_steps else rows
        negatives = None
        if settings.negatives is not None:
            inputs = self.spec.inputs
            negatives = implicit_batches(preprocessor, inputs, rows, settings.negatives, asked.seed, device)
        if source.device.type != "cpu":  # there is room for both; else its blocks are fetched from where it lies
            valid = valid.to(source.device)
        with torch.random.fork_rng(range(torch.cuda.device_count()) if device != "cpu" else []):
            # A fold may lack a class: what is fitted to labels is of all train rows.
            loss = fitted_loss(self.loss, whole) if settings.by_folds else self.loss
            model, carried = new_model(self.spec, rows, asked.seed, loss, scaled_by=whole), None
            require_labels_or_negatives(model, rows, negatives)
            if start is not None:
                own = start if settings.ensemble == 1 else start.of_member(asked.number)
                carried = own.carry(preprocessor, model, settings.new_rows, self.held)
                for text in [carried.note()] + ([] if window is None else [window.note()]):
                    log.info("train.start_from: %s", text)
                if self.few:
                    log.warning("few steps: %s", self.few)
            tracked = training_callbacks(config, self.work.name, asked.folder.name if asked.folder != self.work else "")
            shared = model, valid, self.of_a_step, device, config.num_threads, ranks.num_ranks
            with training_threads(*shared) as self.threads:
                if device == "cpu" and (text := busy_text(self.threads)):
                    log.warning("the machine is busy: %s", text)
                trained = train_model(
                    model,
                    source,
                    valid,
                    loss,
                    asked.settings,
                    seed=asked.seed,
                    device=device,
                    folder=asked.folder,
                    negatives=negatives,
                    start=carried,
                    callbacks=[*tracked, *pipeline.callbacks, *asked.callbacks] if ranks.is_first else [],
                    ranks=ranks,
                    id_counts=id_counts(preprocessor),
                    codistillation=self.codistillation,
                    run=asked.folder.relative_to(self.work.parent).as_posix(),
                    **watched,
                )
        return trained, carried


def _counts(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in rows.items())


def catalogue_of(
    preprocessor: Preprocessor, tables: Mapping[str, PackedTable], inputs: ModelInputs, device: str
) -> Catalogue:
    """What can be recommended, to whom, by these packed tables."""
    entities = preprocessor.schema.entities
    first = {f"first_{entity.name}": preprocessor.vocabularies[entity.key].layout.first for entity in entities}
    return replace(Catalogue.of(tables, inputs, device, **first), told=partial(users_text, preprocessor))


def require_questions(
    preprocessor: Preprocessor,
    tables: Mapping[str, PackedTable],
    inputs: ModelInputs,
    device: str,
    settings: RankingSettings,
) -> None:
    """Raise `RankingError` where all users of test positives leave too few items to draw `settings.negatives` from."""
    positives, user, item = positive_rows(tables["test"]).counted(), inputs.user, inputs.item
    if user is not None and item is not None and len(positives):
        first = first_id(preprocessor, "item")
        asked = positives.words[positives.words[:, item.key] >= first, user.key].long().unique()
        most = inputs.num_ids[item.key] - first - (settings.negatives or 0)  # items that a user may have
        # One user of few rows is enough. One has at most the mean of them, for which no row of train is read.
        if len(asked) and sum(map(len, tables.values())) // len(asked) <= most:
            return
        # To count rows takes a hundredth of the time that pairs do.
        sizes = [tables[name].words[:, user.key].long().bincount(minlength=inputs.num_ids[user.key]) for name in tables]
        if bool((torch.stack(sizes).sum(0)[asked] <= most).any()):
            return
    catalogue_of(preprocessor, tables, inputs, device).left_out(positives, settings)


def ranking_of(
    pipeline: Pipeline,
    preprocessor: Preprocessor,
    tables: Mapping[str, PackedTable],
    split: str,
    inputs: ModelInputs,
    baselines: bool = False,
) -> Callable[[Model], dict[str, Any]] | None:
    """`rank_evaluate` on a split of these packed tables; None where the configuration asks for none.

    baselines: `rank_with_baselines`, which learn the train split."""
    settings = pipeline.config.evaluate.ranking
    if settings is None:
        return None
    catalogue, positives = catalogue_of(preprocessor, tables, inputs, pipeline.device), positive_rows(tables[split])
    left_out = catalogue.left_out(positives, settings)
    asked = left_out[positives.words[:, catalogue.user_column].long()]
    if bool(asked.any()):
        log.warning(
            "evaluate.ranking: known positives of %s leave fewer than %s items to rank theirs among "
            "(evaluate.ranking.negatives): %s of %s questions of the %s split are left out.",
            users_text(preprocessor, left_out), settings.negatives, f"{int(asked.sum()):,}", f"{len(asked):,}", split,
        )  # fmt: skip
    warn_of_unknown_users(preprocessor, pipeline.config, positives.words[:, catalogue.user_column], split)
    given: dict[str, Any] = {
        "positives": positives,
        "catalogue": catalogue,
        "settings": settings,
        "seed": pipeline.config.seed,
        "device": pipeline.device,
    }
    if not baselines:
        return partial(rank_evaluate, **given)
    return partial(rank_with_baselines, **given, train=tables["train"], inputs=inputs, split=split)


def evaluation_data(
    features: Features,
    preprocessor: Preprocessor,
    tables: Mapping[str, PackedTable],
    measured: Sequence[str],
    split: str,
) -> EvaluationData:
    """What a model with this preprocessor is evaluated on. tables: the splits as it packs them, `SPLITS` first;
    measured: those whose metrics are wanted; split: see `EvaluationData`."""
    pipeline, inputs = features.pipeline, model_inputs(preprocessor)
    config, places = pipeline.config, list(tables)
    require_positives(config, preprocessor)
    item = inputs.item if config.train.negatives is not None else None
    if config.evaluate.ranking is None and inputs.user is not None:  # else ranking_of tells of them
        warn_of_unknown_users(preprocessor, config, tables[split].words[:, inputs.user.key], split)
    packed = list(tables.values())
    return EvaluationData(
        config=config,
        device=pipeline.device,
        tables=tables,
        evaluation_tables={
            name: with_negatives(
                preprocessor, inputs, packed, places.index(name), config, pipeline.device, tell=name == split
            )
            for name in measured
        },
        split=split,
        rank=ranking_of(pipeline, preprocessor, tables, split, inputs, baselines=True),
        missing=missing_shares(
            {name: features.parts(name) for name in tables},
            preprocessor.schema.names("categorical", "continuous"),
            preprocessor.schema.only("weight"),
        ),
        raw_of=features.raw_of,
        earlier=features.earlier,
        item_column=None if item is None else item.key,
        ranks=pipeline.ranks,
    )


@contextmanager
def packed_splits(
    preprocessor: Preprocessor, features: Features, splits: Sequence[str]
) -> Iterator[dict[str, PackedTable]]:
    """Splits of today's features as a bundle's own preprocessor packs them, memory-mapped, within a `with` block.

    They are packed part by part into a temporary folder of the store, so that no split need fit in memory.
    """
    pipeline = features.pipeline
    remove_leftovers(pipeline.store.root)
    folder = temporary_path(pipeline.store.root / "evaluate")
    with own_folder(folder), pipeline.cluster(folder) as cluster:
        preprocessor.save(folder / PREPROCESSOR)  # for the workers of a cluster
        for split in splits:
            encode_split(
                preprocessor, pipeline.engine, features.parts(split), features.rows[split], folder / split, cluster
            )
        yield {split: PackedTable.load(folder / split) for split in splits}


def evaluation_table_of(bundle: Bundle, features: Features, frame: Any) -> PackedTable:
    """Rows of the features stage as a bundle's metrics are measured on them: with negatives where the run draws them.

    These are drawn from the bundle's own vocabulary, and pairs of today's splits are known.
    """
    pipeline, table = features.pipeline, pack(bundle.preprocessor, frame)
    if pipeline.config.train.negatives is None:
        return table
    require_positives(pipeline.config, bundle.preprocessor)
    tables = [pack(bundle.preprocessor, features.frame(split)) for split in SPLITS]
    inputs = model_inputs(bundle.preprocessor)
    return with_negatives(bundle.preprocessor, inputs, [*tables, table], 3, pipeline.config, pipeline.device)


def write_features(tables: FeatureTables, folder: Path, rows_per_part: int) -> dict[str, int]:
    """`<split>/part-*.parquet` in the schema's order and types, schema.json and workflow/; returns rows by split."""
    schema, checks, finished = tables.schema, TargetChecks(tables.schema), tables.finished
    # Parts end where finished rows begin and end, too.
    ends = () if finished is None else (finished.start, finished.stop)
    parts: list[tuple[Any, Path]] = []
    kept: list[Path] = []
    first = 0  # place of the split's first row among all rows
    for split, frame in tables.splits.items():
        checks.look(split, frame)
        checks.require()
        typed = typed_rows(schema, split, frame)
        (folder / split).mkdir()
        num_rows = max(len(typed), 1)
        cuts = {*range(0, num_rows, rows_per_part), *(end - first for end in ends if 0 < end - first < num_rows)}
        for number, (start, stop) in enumerate(pairwise([*sorted(cuts), num_rows])):
            path = part_path(folder, split, number)
            parts.append((typed.iloc[start:stop], path))
            if finished is not None and finished.start <= first + start < finished.stop:
                kept.append(path)
        first += len(frame)
    engine = engine_of(tables.splits["train"])
    engine.map_columns(lambda part: engine.write_parquet(*part), parts)
    if finished is not None:
        finished.keep(kept)
    schema.save(folder / "schema.json")
    if tables.workflow is not None:
        tables.workflow.save(folder / "workflow")
    return {split: len(frame) for split, frame in tables.splits.items()}


def _num_rows(n: Any) -> int:
    """A number of rows that was asked for."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise DataError(f"features: the number of rows is a whole number from 0 on, found {n!r}.")
    return int(n)


def split_times(features: Features, split: str) -> np.ndarray | None:
    """The time of each row of a split, [N] in row order, as the features stage has it; None without a time column."""
    time_column = features.schema.only("time")
    if time_column is None:
        return None
    engine = load_engine(features.pipeline.engine)
    parts = [engine.read_parquet(part, [time_column])[time_column] for part in features.parts(split)]
    return np.concatenate([engine.to_pandas(part).to_numpy() for part in parts])


def learnt_of(features: Features, split: str, summary: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    """Which rows of a split that was held out a run has learnt from, in words: a final run, or by folds those of valid.
    Empty where there are none.

    summary, info: of the run, and of its bundle."""
    if split == "valid" and "folds" in info.get("members", {}):
        return f"all but one fold in {info['members']['folds']} by each member"
    if not summary.get("measured"):
        return ""
    times = split_times(features, split)
    if times is not None and "trained_until" in info:
        learnt = int((times <= info["trained_until"]).sum())
        return f"{learnt:,} of {len(times):,}" if learnt else ""
    now = features.pipeline.config.to_dict()["features"]
    return "" if summary["config"]["features"].get("split") == now.get("split") else "its split was another"


def raw_steps(features: Features) -> tuple[Workflow | None, Workflow | None, str | None]:
    """What a bundle takes raw rows through: steps that need the row alone, or else those that look at earlier rows too;
    and why it has not the first, or neither."""
    workflow, schema = features.workflow, features.schema
    if workflow is None:
        return None, None, None
    lists = [name for column in schema.lists for name in column.columns]
    served = [*schema.names("categorical", "continuous"), *lists]
    try:
        return workflow.serving(served), None, None
    except DataError as error:  # the model is served from rows of the features stage alone, and says why
        refused = str(error)
    try:
        found = workflow.serving(served, history=True)
    except DataError as error:
        return None, None, str(error)
    classes = [target.name for target in schema.targets if target.task == "multiclass"]
    if told := [name for name in classes if name in found.applied_inputs]:
        return (
            None,
            None,
            f"steps read the classes of {told[0]!r} as of earlier rows, whose numbers training gave them.",
        )
    return None, found if found.needs_history else None, refused


def training_period(features: Features) -> dict[str, Any]:
    """First and last moment that the model was fitted or selected on, where the schema has a time column."""
    time_column = features.schema.only("time")
    if time_column is None:
        return {}
    engine = load_engine(features.pipeline.engine)
    spans = []
    for part in (part for split in ("train", "valid") for part in features.parts(split)):
        moments = engine.read_parquet(part, [time_column])[time_column]
        if len(moments):
            spans.append((float(moments.min()), float(moments.max())))
    return {"trained_from": min(first for first, _ in spans), "trained_until": max(last for _, last in spans)}
