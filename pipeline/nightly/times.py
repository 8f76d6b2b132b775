"""Times of rows against the clock: rows of tomorrow would be trained on tonight, and no night would have new ones."""

from __future__ import annotations

import time
from typing import Any

from gigabatch.features.columns.times import moments
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.encodings import UTF8
from gigabatch.features.reading.sources import read_files
from gigabatch.features.recipes import recipe_class
from gigabatch.features.setting_checks import time_unit
from gigabatch.pipeline.clock import guessed_unit, shown, unit_seconds
from gigabatch.pipeline.stages.stages import Features

EXAMPLES = 3


def refuse_future(features: Features) -> None:
    """Raise `DataError` where rows that a model would be trained or judged on lie after now.

    Parameters
    ----------
    features
        Tonight's.

    Raises
    ------
    DataError
        Names the rows by split and key, the files that hold such a time where the column is one of theirs, and the
        setting that allows them. `nightly.max_future_seconds` is what clocks and time zones may differ by.
    """
    unit, column = unit_of_times(features), features.schema.only("time")
    if unit is None or column is None:
        return
    allowed = time.time() + features.pipeline.config.nightly.max_future_seconds
    limit = allowed / unit_seconds(unit)
    engine, keys = load_engine(features.pipeline.engine), features.schema.names("key")
    found: list[str] = []
    examples: list[dict[str, Any]] = []
    count, latest = 0, limit
    for split in ("train", "valid", "test"):
        late = 0
        for part in features.parts(split):
            frame = engine.read_parquet(part, [column, *keys])
            frame = engine.to_pandas(frame[frame[column] > limit])
            late += len(frame)
            latest = max(latest, float(frame[column].max())) if len(frame) else latest
            examples += frame[keys].head(EXAMPLES - len(examples)).to_dict("records")
        if late:
            found.append(f"{late:,} of {split}")
            count += late
    if not count:
        return
    named = "; ".join(", ".join(f"{key}={value}" for key, value in row.items()) for row in examples)
    files = future_files(features, column, limit)
    raise DataError(
        f"time column {column!r}: {count:,} row(s) lie after now, up to {shown(latest, unit)} ({', '.join(found)}"
        f"{'; for example ' + named if named else ''}). {'Found in ' + ', '.join(files) + '. ' if files else ''}"
        "A model that is trained on them would keep every later night from finding new rows. Correct or remove them; "
        "nightly.max_future_seconds allows for clocks, nightly.time_unit=none takes such times as they are."
    )


def unit_of_times(features: Features) -> str | None:
    """The unit in which the time column counts from 1970, a key of `TIME_UNITS`; None where it only orders the rows."""
    unit: str = features.pipeline.config.nightly.time_unit
    if unit != "auto":
        return None if unit == "none" else time_unit(unit, "nightly.time_unit")
    column = features.schema.only("time")
    if column is None:
        return None
    if features.schema.dtypes()[column] == "datetime":
        return "us"
    engine = load_engine(features.pipeline.engine)
    medians = sorted(float(engine.read_parquet(part, [column])[column].median()) for part in features.parts("train"))
    middle = medians[len(medians) // 2]
    return guessed_unit(middle)


def future_files(features: Features, column: str, limit: float) -> list[str]:
    """The input files that have this column with a time after `limit`; of files without it, or with it in a form of
    their own, nothing is known."""
    pipeline, found = features.pipeline, []
    settings: Any = pipeline.config.features
    for path in recipe_class(pipeline.config.recipe)(settings).inputs():
        try:
            frame = read_files(
                pipeline.engine,
                path,
                {column: getattr(settings, "inputs", {}).get(column, "time")},
                separator=getattr(settings, "separator", ","),
                encoding=getattr(settings, "encoding", UTF8),
                names=getattr(settings, "column_names", None),
            )
            if bool((moments(frame[column]) > limit).any()):
                found.append(path)
        except DataError:
            continue
    return found
