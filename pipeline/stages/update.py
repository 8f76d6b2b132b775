"""`gigabatch update`: a fitted preprocessor extended by new feature rows, and how these differ from the old."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gigabatch.features.encoding.growth import changed_settings
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import counted_rows, engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import PARQUET_ENDINGS, expand
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.runs.find import FoundRun, find_run
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.stages.asked import PREPROCESSOR, UPDATE, require_preprocessor, require_update
from gigabatch.pipeline.stages.encode import CHURN_TEXT, write_churn
from gigabatch.pipeline.stages.score import columns_of, raw_rows
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.store.artifacts import Artifact
from gigabatch.pipeline.store.keys import artifact_key, input_checksums, require_same_inputs, source_hash
from gigabatch.pipeline.store.locks import own_folder, remove_leftovers, temporary_path

# As Parquet files of the features stage hold the types of a schema; null is a column of which no value is known.
STORED_AS = {
    "string": ("string", "large_string", "string_view", "null"),
    **{name: (name, "null") for name in ("int32", "int64", "bool")},
    "float32": ("float", "null"),
    "float64": ("double", "null"),
}


def update_preprocessor(
    config: str | Path,
    overrides: Sequence[str],
    data: str,
    preprocessor: Path | None = None,
    refresh_scales: bool = False,
    run: str | Path | None = None,
) -> int:
    """Write the next version of a preprocessor as an artifact of the stage `update`; print the churn and where it is.

    data: files of rows that no version before has seen: path, folder or glob. Raw ones, as `score --input` takes them,
    go through the steps of the run; Parquet files with the columns and types of the features stage are taken as they
    are.
    preprocessor: the folder to start from; where none is given, the run's. Raw rows then go through the steps of the
    current run, which must be of the same columns. run: see `find_run`; the current one where
    it is None. The same data on the same state is the same artifact, which is then not made again. How columns are
    encoded stays as it was, and where the configuration says otherwise, a line printed names it.
    """
    require_update(data, run, preprocessor)
    pipeline = Pipeline.from_config(config, *overrides)
    if preprocessor is None:
        used = find_run(pipeline.config, run)
        source, start = used.path / "model" / PREPROCESSOR, str(used)
    else:
        require_preprocessor(preprocessor, pipeline.store.root)
        source, start = preprocessor, str(preprocessor)
    found = Preprocessor.load(source, pipeline.engine)
    with _feature_files(pipeline, found, data, None if preprocessor else used, start) as files:
        artifact = _updated(pipeline, found, files, refresh_scales)
    print(f"from {start}")
    for clause in changed_settings(found.schema, found.settings, pipeline.config.preprocess.encoding):
        print(f"kept as at the start, whatever the configuration says: {clause}")
    print((artifact.path / CHURN_TEXT).read_text(), end="")
    print(f"version {artifact.manifest['version']}  {artifact.path / PREPROCESSOR}")
    return 0


def _updated(pipeline: Pipeline, found: Preprocessor, files: Sequence[str], refresh_scales: bool) -> Artifact:
    checksums = input_checksums(files, pipeline.store.root)
    inputs = {"preprocessor": found.checksum, "data": checksums}
    settings = {"refresh_scales": refresh_scales, "engine": pipeline.engine}
    key = artifact_key(UPDATE, inputs, settings, source_hash(["gigabatch.features"]))

    def write(folder: Path) -> dict[str, Any]:
        started = time.perf_counter()
        report = found.update([(pipeline.engine, path) for path in files], refresh_scales)
        require_same_inputs(files, checksums, (), pipeline.store.root)
        found.save(folder / PREPROCESSOR)
        write_churn(report, folder)
        seconds = time.perf_counter() - started
        return {"rows": report.rows, "version": found.version.number, "seconds": seconds}

    return pipeline.store.build(UPDATE, key, write)


@contextmanager
def _feature_files(
    pipeline: Pipeline, found: Preprocessor, data: str, used: FoundRun | None, start: str
) -> Iterator[Sequence[str]]:
    """Parquet files of the features stage, within a `with` block: those of `data`, or one that is made of raw ones.

    Rows of weight 0 are left out, as a training does, where the files hold the weights.

    used: the run whose steps raw rows go through; the current one where it is None, as found lies in a folder, start.
    """
    files, lists = expand(data), [name for column in found.schema.lists for name in column.columns]
    there = {path: _columns(path) for path in files}
    columns = [*found.schema.names("categorical", "continuous"), *lists]
    lacking = [path for path, names in there.items() if names is None or not set(columns).issubset(names)]
    lacking = lacking or _raw_ones(pipeline, found, there, used)
    weight = found.schema.only("weight")
    if not lacking:
        if weight is None or not any(weight in (names or ()) for names in there.values()):
            yield files
            return
        _require_weights(weight, files, [path for path, names in there.items() if weight in (names or ())])
        with _own_rows(pipeline) as folder:
            yield [
                _counted(path, columns, weight, folder / f"rows-{place}.parquet") for place, path in enumerate(files)
            ]
        return
    path, names = lacking[0], there[lacking[0]]
    steps = used or find_run(pipeline.config, None)
    bundle = load_bundle(steps.path / "model", "cpu", pipeline.engine)
    if used is None and bundle.preprocessor.schema != found.schema:
        raise DataError(
            f"update: {path} holds no rows of the features stage, and the columns of {start} are others than those of "
            f"{steps}, through whose steps raw rows would go. Give Parquet files as `gigabatch features` writes them."
        )
    if used is None:
        print(f"raw rows through the steps of {steps}")
    if names is not None and not (bundle.workflow and set(bundle.workflow.applied_inputs).issubset(names)):
        raise DataError.missing_columns([name for name in columns if name not in names], names, f"update, {path}")
    weighed = [path for path in files if weight is not None and weight in columns_of(pipeline, path)]
    _require_weights(weight, files, weighed)
    raw = raw_rows(pipeline, bundle, data, [weight] if weight and weighed else [])
    rows = bundle.from_raw(counted_rows(raw, weight if weight in raw.columns else None))
    with _own_rows(pipeline) as folder:
        made = folder / "rows.parquet"  # the same name each time, by which the same rows are the same artifact
        engine_of(rows).write_parquet(rows[columns], made)
        yield [str(made)]


def _raw_ones(
    pipeline: Pipeline, found: Preprocessor, there: Mapping[str, Sequence[str] | None], used: FoundRun | None
) -> list[str]:
    """Of Parquet files with all columns that are encoded, those of raw rows: they hold what the steps read, where these
    replace columns, and are no files of the features stage, which has columns and types of its own."""
    wanted = {name: STORED_AS.get(dtype) for name, dtype in found.schema.table_dtypes.items()}
    others = []
    for path in there:
        stored = {field.name: str(field.type) for field in pq.read_schema(path)}
        if not all(name in stored and (types is None or stored[name] in types) for name, types in wanted.items()):
            others.append(path)
    try:
        steps = used or find_run(pipeline.config, None) if others else None
    except RunError:  # rows of the features stage need none
        return []
    if steps is None:
        return []
    bundle = load_bundle(steps.path / "model", "cpu", pipeline.engine)
    if bundle.workflow is None or (used is None and bundle.preprocessor.schema != found.schema):
        return []
    return [path for path in others if set(bundle.workflow.applied_inputs).issubset(there[path] or ())]


def _require_weights(weight: str | None, files: Sequence[str], weighed: Sequence[str]) -> None:
    """Raise `DataError` where some files have the column of weights and others have not."""
    if bare := [path for path in files if weighed and path not in weighed]:
        raise DataError(
            f"update: {bare[0]} lacks the column of weights {weight!r}, which {weighed[0]} has, so it cannot be told "
            "which rows weigh 0 and are to be left out. Add the column, 1 in each row, or update by those files apart."
        )


@contextmanager
def _own_rows(pipeline: Pipeline) -> Iterator[Path]:
    """A folder for rows that are there within the block alone."""
    pipeline.store.root.mkdir(parents=True, exist_ok=True)  # nothing may have been made there yet
    remove_leftovers(pipeline.store.root)
    folder = temporary_path(pipeline.store.root / "rows")
    with own_folder(folder):
        yield folder


def _counted(path: str, columns: Sequence[str], weight: str, made: Path) -> str:
    """The Parquet file, or where some of its rows weigh 0, `made` with these columns of the others."""
    if pq.read_table(path, columns=[weight], filters=pc.field(weight) == 0).num_rows == 0:
        return path
    pq.write_table(pq.read_table(path, columns=list(columns), filters=pc.field(weight) > 0), made)
    return str(made)


def _columns(path: str) -> Sequence[str] | None:
    """Names of the columns of a Parquet file; None of a file of another kind."""
    if not path.endswith(PARQUET_ENDINGS):
        return None
    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"update: {path} cannot be read as Parquet ({error}).") from error
