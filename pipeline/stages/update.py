"""`gigabatch update`: a fitted preprocessor extended by new feature rows, and how these differ from the old."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.encoding.growth import changed_settings
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import PARQUET_ENDINGS, expand
from gigabatch.pipeline.runs.find import find_run
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.stages.encode import CHURN_TEXT, PREPROCESSOR, write_churn
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.store.keys import artifact_key, input_checksums, source_hash


def update_preprocessor(
    config: str | Path,
    overrides: Sequence[str],
    data: str,
    preprocessor: Path | None = None,
    refresh_scales: bool = False,
    run: str | Path | None = None,
) -> int:
    """Write the next version of a preprocessor as an artifact of the stage `update`; print the churn and where it is.

    data: Parquet files of the features stage that no version before has seen: path, folder or glob.
    preprocessor: the folder to start from; where none is given, the run's. run: see `find_run`; the current one where
    it is None. The same data on the same state is the same artifact, which is then not made again. How columns are
    encoded stays as it was, and where the configuration says otherwise, a line printed names it.
    """
    pipeline = Pipeline.from_config(config, *overrides)
    if preprocessor is None:
        used = find_run(pipeline.config, run)
        source, start = used.path / "model" / PREPROCESSOR, str(used)
    elif run is not None:
        raise RunError("update: give either --run or --preprocessor, not both.")
    else:
        source, start = preprocessor, str(preprocessor)
    found = Preprocessor.load(source, pipeline.engine)
    files = expand(data)
    for path in files:
        _require_features(path, found.schema.names("categorical", "continuous"))
    inputs = {"preprocessor": found.checksum, "data": input_checksums(files, pipeline.store.root)}
    settings = {"refresh_scales": refresh_scales, "engine": pipeline.engine}
    key = artifact_key("update", inputs, settings, source_hash(["gigabatch.features"]))

    def write(folder: Path) -> dict[str, Any]:
        started = time.perf_counter()
        report = found.update([(pipeline.engine, path) for path in files], refresh_scales)
        found.save(folder / PREPROCESSOR)
        write_churn(report, folder)
        seconds = time.perf_counter() - started
        return {"rows": report.rows, "version": found.version.number, "seconds": seconds}

    artifact = pipeline.store.build("update", key, write)
    print(f"from {start}")
    for clause in changed_settings(found.schema, found.settings, pipeline.config.preprocess.encoding):
        print(f"kept as at the start, whatever the configuration says: {clause}")
    print((artifact.path / CHURN_TEXT).read_text(), end="")
    print(f"version {artifact.manifest['version']}  {artifact.path / PREPROCESSOR}")
    return 0


def _require_features(path: str, columns: Sequence[str]) -> None:
    """Refuse a file that does not hold these columns of the features stage."""
    if not path.endswith(PARQUET_ENDINGS):
        raise DataError(f"update: {path} is not a Parquet file. Give rows as `gigabatch features` writes them.")
    try:
        there = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"update: {path} cannot be read as Parquet ({error}).") from error
    missing = [name for name in columns if name not in there]
    if missing:
        raise DataError.missing_columns(missing, there, f"update, {path}")
