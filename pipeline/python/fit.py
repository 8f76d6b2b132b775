"""`fit`: from a data frame in memory to an evaluated run."""

from __future__ import annotations

import hashlib
import io
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.engines.arrow_types import is_text
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import PARTED_BY
from gigabatch.features.workflow.steps import parse_steps
from gigabatch.models.shelf import MODELS, model_class
from gigabatch.pipeline.config.config import ConfigError, load_config, overrides_alone
from gigabatch.pipeline.display import note
from gigabatch.pipeline.init.columns import Seen, column_seen
from gigabatch.pipeline.init.draft import MOST_TRIED_ROWS, try_splits
from gigabatch.pipeline.init.frame import MOST_ROWS, draft_frame
from gigabatch.pipeline.init.look import look_at
from gigabatch.pipeline.init.training import left_to_rows, task_of, with_words
from gigabatch.pipeline.stages.final import can_be_final
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.store.artifacts import Artifact, ArtifactStore
from gigabatch.pipeline.training.callbacks import Callback
from gigabatch.pipeline.training.checkpoint import TrainingError

log = logging.getLogger(__name__)
FRAMES, ROWS = "frames", "rows.parquet"
BLOCK_ROWS = 1 << 16
OWN = ("path", "train_path", "valid_path", "test_path", "targets", "separator", "encoding", "column_names")
SPLIT = ("time", "group", "split", "split_key", "seed")


def fit(
    frame: Any,
    *overrides: str | Mapping[str, Any],
    target: str | Mapping[str, Mapping[str, Any]],
    categorical: Sequence[str] | Mapping[str, str] = (),
    continuous: Sequence[str] = (),
    drop: Sequence[str] = (),
    name: str = "frame",
    final: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **features: Any,
) -> Run:
    """Train and evaluate a model on a data frame: split, encoded, trained and reported as by a configuration.

    The frame is written to `artifacts/frames/` by its content, so that a second call with the same rows reuses every
    stage whose settings are the same.

    Parameters
    ----------
    frame
        Of pandas, Polars or cuDF, or an Arrow table.
    overrides
        Of the configuration: `"train.epochs=2"`, or mappings such as `{"train.epochs": 2, "artifacts": "/tmp/a"}`.
        Split, model, scale, epochs and the average of weights follow from the rows (`held_out_rows`, `training_for`),
        each unless it is set here; the last three not where another model is named.
    target
        Name of the label, whose task follows from its values (`labels_of`); or targets with their settings, such as
        `{"stars": {"task": "multiclass"}}`.
    categorical, continuous
        Columns whose role is given; the others are what `gigabatch init` takes them for (`draft_columns`).
    drop
        Columns to leave out.
    name
        Of the run: `runs/<name>/`.
    final
        Whether a second training follows on nearly all rows (`Pipeline.train_final`), whose run is returned; None:
        where the rows are split by a time that was found, so that the model has learnt from the newest ones too.
    callbacks
        As of `Pipeline`.
    features
        Further settings of the recipe `table`: weight, group, time, keys, split, split_key, entities, ...

    Returns
    -------
    Run
        The evaluated run, whose `predict` takes rows like those of `frame`, without the target.

    Raises
    ------
    DataError
        Where the frame has no rows, a column is missing or has two roles, no feature is left, there is only one label,
        or no split of the rows can be trained on and measured.
    ConfigError
        For a setting that does not exist, also of the model that follows from the rows.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import fit
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": [k % 7 for k in range(100)]})
    >>> rows["sold"] = ["yes", "no", "no", "yes", "no"] * 20
    >>> run = fit(rows, {"train.epochs": 4}, target="sold")
    >>> run.summary["rows"], run.predict(rows.head(2)).columns.tolist()
    (100, ['sold'])
    >>> fit(rows, {"train.epochs": 4}, target="sold").skipped
    ('features', 'encode', 'train', 'evaluate')
    """
    table = arrow_table(frame, "fit")
    if not len(table):
        raise DataError("fit: the frame has no rows.")
    if own := [key for key in OWN if key in features]:
        raise ConfigError(f"fit: {own[0]} is not to be set, it follows from the frame and `target`. Leave it out.")
    for role, given in (("categorical", categorical), ("continuous", continuous), ("drop", drop)):
        if isinstance(given, str):
            raise ConfigError(f"fit: {role} is a list of columns, found {given!r}. Write [{given!r}].")
    settings = (
        target.values() if isinstance(target, Mapping) else [None if isinstance(target, str) else "of another type"]
    )
    if not all(item is None or isinstance(item, Mapping) for item in settings):
        raise ConfigError(
            f"fit: target is a column's name, or targets with their settings, such as "
            f'{{"stars": {{"task": "multiclass"}}}}; found {target!r}.'
        )
    targets = {target: None} if isinstance(target, str) else dict(target)
    labels = {label: item for key, item in targets.items() for label in (item or {}).get("columns", [key])}
    if missing := [label for label in labels if label not in table.column_names]:
        raise DataError.missing_columns(missing, table.column_names, "fit: target")
    sections = overrides_alone(overrides)
    asked = sections.get("features")
    said = (asked if isinstance(asked, dict) else {}) | features  # overrides of the recipe's settings say it too
    taken = _named(said, table.column_names)
    timed, lists = not any(setting in said for setting in SPLIT), _takes_lists(sections.get("model"))
    when = _time_seen(table, said)
    by_time = said["time"] if when is not None and _may_be_parted(said) else None
    made = draft_frame(
        table, labels={label: _task(item) for label, item in labels.items()},
        taken=[column for column in taken if column != by_time], categorical=categorical, continuous=continuous,
        stepped={name for step in parse_steps(said.get("steps", ())) for name in (*step.inputs, *step.outputs)},
        drop=drop, timed=timed, time=by_time, null_values=said.get("null_values", ("",)),
        lists=lists, phrases=lists and "lists" not in said and "list_separator" not in said,
    )  # fmt: skip
    if not made.has_features and not features.get("lists"):
        raise DataError(f"fit: no column is left to learn from: {made.told() or 'there is none but the target'}.")
    found = made.features
    if when is not None and when.dtype.startswith("datetime["):
        found["inputs"] = {said["time"]: when.dtype} | found.get("inputs", {})
    if "split" in said:
        found.pop("split", None)
    inferred = found.pop("targets")
    found |= {
        "path": ROWS, "steps": [*found.get("steps", []), *features.pop("steps", [])],
        "inputs": found.get("inputs", {}) | dict(features.pop("inputs", {})),
        "lists": found.get("lists", {}) | dict(features.pop("lists", {})),
        "targets": {key: _with_type(item or inferred[key], key, table) for key, item in targets.items()}, **features,
    }  # fmt: skip
    config = {"name": name, "recipe": "table", "features": found, **made.engine}
    task = task_of(item.get("task", "binary") for item in found["targets"].values())
    num_floats = len(found.get("continuous", ()))
    left = left_to_rows(
        sections,
        round(len(table) * made.labelled),
        bool(made.categories),
        num_floats,
        task=task,
        names=made.of_names,
        at_random=made.at_random and not any(said.get(name) for name in PARTED_BY),
    )
    if made.words:
        left.setdefault("preprocess", {})["columns"] = with_words(made.words, sections.get("preprocess", {}))
    overrides = (*overrides, {f"{part}.{key}": value for part, keys in left.items() for key, value in keys.items()})
    checked = load_config(config, overrides)
    rows = _stored(table, ArtifactStore(checked.artifacts, checked.name))
    if timed and len(table) <= MOST_TRIED_ROWS:
        found["path"] = str(rows.path / ROWS)
        try_splits(made)
    if unread := [name for name in getattr(getattr(frame, "index", None), "names", ()) if name is not None]:
        made.remarks.append(f"The index {', '.join(map(repr, unread))} is not read; reset_index() makes columns of it.")
    elif isinstance(getattr(frame, "index", None), pd.DatetimeIndex | pd.PeriodIndex):
        made.remarks.append("The index, of times, is not read; reset_index(names='time') makes a column of it.")
    remarks = "".join(f" {remark}" for remark in made.remarks)
    note(f"fit: {made.told()}; target {found['targets']}.{remarks}")
    if made.leaks:
        log.warning(
            "fit: left out %s, as predictions may not have what tells the target. Where a value is known when you "
            "predict, keep its column by a role: %s.",
            ", ".join(f"{column} ({made.left_out[column]})" for column in made.leaks),
            _roles({column: table.schema.field(column).type for column in made.leaks}),
        )
    pipeline = Pipeline.from_config(config, *overrides, {"features.path": str(rows.path / ROWS)}, callbacks=callbacks)
    if final is not None or not (timed and "time" in found and can_be_final(pipeline.config, len(table))):
        return pipeline.train_final() if final else pipeline.train()
    try:
        return pipeline.train_final()
    except (ConfigError, DataError, TrainingError) as error:  # nobody has asked for it
        run = pipeline.train()
        note(f"fit: {error} So the run of the measured model is returned.")
        return run


def _takes_lists(model: Any) -> bool:
    """Whether a model has a use for lists of words; model: the section of a configuration, or None."""
    kind = model.get("kind") if isinstance(model, Mapping) else None
    return not (isinstance(kind, str) and kind in MODELS) or model_class(kind).takes_lists


def _with_type(settings: Mapping[str, Any], name: str, table: pa.Table) -> Mapping[str, Any]:
    """The settings of a target; of classes that the frame has as numbers or flags, with their type."""
    if settings.get("task") != "multiclass" or settings.keys() & {"label_strip", "label_steps", "label_type"}:
        return settings
    kind = table.schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return settings
    return {**settings, "label_type": np.dtype(kind.to_pandas_dtype()).name}


def _task(settings: Mapping[str, Any] | None) -> str | None:
    """The task of a label, if its target has settings; of numbers that a threshold makes binary, that of numbers."""
    task = "regression" if "threshold" in (settings or {}) else (settings or {}).get("task")
    return "binary" if task == "multilabel" else task if task in ("binary", "multiclass", "regression") else None


def _time_seen(table: pa.Table, said: Mapping[str, Any]) -> Seen | None:
    """What the time column that was named holds, where these are times, and no other type of it was given."""
    name = said.get("time")
    if name is None or name not in table.column_names or name in said.get("inputs", {}):
        return None
    sample = look_at(table.select([name]), MOST_ROWS)
    seen = column_seen(name, sample.sample[name], sample.arrow[name])
    return seen if seen.kind == "date" else None


def _may_be_parted(said: Mapping[str, Any]) -> bool:
    """Whether month, weekday and hour of the time that was named may be features: no given step makes any of it."""
    return not any(step.inputs == (said["time"],) for step in parse_steps(said.get("steps", ())))


def _roles(kinds: Mapping[str, pa.DataType]) -> str:
    """The arguments that keep columns of these types."""
    found: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        role = "categorical" if is_text(kind) or pa.types.is_boolean(kind) else "continuous"
        found.setdefault("time" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else role, []).append(name)
    times = [f"time={name!r}" for name in found.pop("time", ())]
    return ", ".join([*times, *(f"{role}={names!r}" for role, names in found.items())])


def _named(features: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Columns that settings of the recipe give a role other than a feature's."""
    named = [features.get(role) for role in ("weight", "group", "time")]
    named += [*features.get("keys", ()), *features.get("inputs", {}), *features.get("lists", {})]
    named += [item.get("weights") for item in features.get("lists", {}).values() if isinstance(item, Mapping)]
    made = {name for step in parse_steps(features.get("steps", ())) for name in step.outputs}
    found = list(dict.fromkeys(item for item in named if item))
    if missing := [item for item in found if item not in columns and item not in made]:
        raise DataError.missing_columns(missing, columns, "fit")
    return [item for item in found if item in columns]


def _stored(table: pa.Table, store: ArtifactStore) -> Artifact:
    """The rows as one Parquet file, in a folder that is named by what they are."""

    def write(folder: Path) -> dict[str, Any]:
        started = time.perf_counter()
        pq.write_table(table, folder / ROWS, compression="zstd", compression_level=1)
        return {"rows": len(table), "seconds": time.perf_counter() - started}

    return store.build(FRAMES, _content_key(table), write)


class _Digest(io.RawIOBase):
    """Takes bytes as a file does, and keeps no more than their hash."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return memoryview(data).nbytes


def _content_key(table: pa.Table) -> str:
    """A hash of names, types and values, in blocks, so that no copy of the table is made."""
    digest = _Digest()
    with pa.ipc.new_stream(pa.PythonFile(digest, mode="w"), table.schema) as stream:
        for batch in table.to_batches(max_chunksize=BLOCK_ROWS):
            stream.write_batch(batch)
    return digest.hash.hexdigest()
