"""How long does one row take from the features stage to the model's input? Ours, our batch path, scikit-learn.

Flights: the preprocessor of the encode stage, rows of the valid split, one at a time, after warm-up. The two batch
paths are given their row as a data frame that is already made; the online transformer starts at the mapping. The paths
take turns, round by round; a figure is the median (or the 99th percentile) of all calls, each timed by itself.

Every row of the valid split is also compared, bit for bit, with the batch path.

    python -m benchmarks.online [--quick] [--save] [--calls 20000]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from benchmarks.common import arguments, finish
from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Schema
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.stages.stages import Pipeline

BUDGET_MICROSECONDS = 50
ROUNDS = 10


def main() -> None:
    flags = arguments(__doc__ or "", calls=20_000)
    calls = 2_000 if flags.quick else flags.calls
    with tempfile.TemporaryDirectory() as folder:
        options = (f"artifacts={folder}/artifacts", f"runs={folder}/runs", "engine=pandas", "device=cpu")
        features = Pipeline.from_config("conf/flights.yaml", *options).features()
        schema, train, valid = features.schema, features.frame("train"), features.frame("valid")
        preprocessor = Preprocessor(schema).fit([train])
        preprocessor.save(Path(folder) / "preprocessor")
        started = time.perf_counter()
        transformer = OnlineTransformer.load(Path(folder) / "preprocessor")
        seconds = {"load the saved preprocessor": time.perf_counter() - started}

    sample = valid.sample(2_000, random_state=1)
    records = sample.to_dict("records")
    frames = [sample.iloc[[i]] for i in range(200)]
    sklearn.set_config(assume_finite=True, skip_parameter_validation=True)  # its quickest
    peer = column_transformer(schema).fit(plain(train, schema))
    peer_frames = [plain(frame, schema) for frame in frames]
    paths: dict[str, tuple[Callable[[Any], Any], Sequence[Any], int]] = {
        "online, mapping": (transformer, records, calls),
        "online, sequence": (transformer, [[row[name] for name in transformer.columns] for row in records], calls),
        "batch transform": (lambda frame: preprocessor.transform(frame, targets=False), frames, calls // 40),
        "sklearn": (peer.transform, peer_frames, calls // 40),
    }
    found = interleaved(paths)
    median = {name: float(np.median(times)) for name, times in found.items()}
    p99 = {name: float(np.percentile(times, 99)) for name, times in found.items()}
    render_table(
        [
            {"path": name, "median, microseconds": median[name], "p99": p99[name], "calls": len(found[name])}
            for name in paths
        ],
        f"one row, {len(schema.names('categorical'))} categorical and "
        f"{len(schema.names('continuous'))} continuous columns",
    )
    ours = median["online, mapping"]
    differing = rows_that_differ(preprocessor, transformer, valid)
    claims = {
        "microseconds a row": (ours, BUDGET_MICROSECONDS, ours < BUDGET_MICROSECONDS),
        "rows whose bits differ from the batch path": (differing, 0, differing == 0),
    }
    finish(
        "online",
        f"one flights row at a time, {len(valid)} rows compared",
        seconds,
        {name: median[path] / ours for name, path in (("batch", "batch transform"), ("sklearn", "sklearn"))},
        {} if flags.quick else claims,
        save=flags.save,
        details={
            "median_microseconds": {name: round(value, 2) for name, value in median.items()},
            "p99_microseconds": {name: round(value, 2) for name, value in p99.items()},
            "calls": {name: len(times) for name, times in found.items()},
            "rows_that_differ": differing,
        },
    )


def interleaved(paths: dict[str, tuple[Callable[[Any], Any], Sequence[Any], int]]) -> dict[str, np.ndarray]:
    """Microseconds of each call. paths: name -> (function, its inputs, taken in turn, and how many calls)."""
    found: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(-1, ROUNDS):  # the first is the warm-up
        for name, (function, inputs, calls) in paths.items():
            share = calls // ROUNDS
            for i in range(share):
                row = inputs[(max(turn, 0) * share + i) % len(inputs)]
                started = time.perf_counter_ns()
                function(row)
                elapsed = time.perf_counter_ns() - started
                if turn >= 0:
                    found[name].append(elapsed / 1000)
    return {name: np.array(times) for name, times in found.items()}


def rows_that_differ(preprocessor: Preprocessor, transformer: OnlineTransformer, frame: pd.DataFrame) -> int:
    """How many rows, each given alone, have another id or other bits of a float than in the frame transformed whole."""
    encoded = preprocessor.transform(frame, targets=False)
    expected_ids = encoded[preprocessor.schema.names("categorical")].to_numpy("int32")
    expected_floats = np.ascontiguousarray(encoded[preprocessor.float_names()].to_numpy("float32"))
    found = [transformer(row) for row in frame.to_dict("records")]
    ids, floats = (np.stack(arrays) for arrays in zip(*found, strict=True))
    same = (ids == expected_ids).all(axis=1) & (floats.view("int32") == expected_floats.view("int32")).all(axis=1)
    return int((~same).sum())


def plain(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The input columns as scikit-learn reads them fastest: objects with None, and float32."""
    categorical = schema.names("categorical")
    columns: dict[str, Any] = {name: frame[name].astype("object") for name in categorical}
    columns = {name: column.where(column.notna(), None) for name, column in columns.items()}
    return pd.DataFrame(columns | {name: frame[name].astype("float32") for name in schema.names("continuous")})


def column_transformer(schema: Schema) -> ColumnTransformer:
    """The same work in scikit-learn: ids with unseen and null, medians, z-scores, and where a null was."""
    categorical, continuous = schema.names("categorical"), schema.names("continuous")
    ids = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2, dtype=np.int32)
    floats = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    missing = MissingIndicator(error_on_new=False)
    return ColumnTransformer([("ids", ids, categorical), ("floats", floats, continuous), ("na", missing, continuous)])


if __name__ == "__main__":
    main()
