"""The peers of benchmarks/preprocess.py, by hand: pandas, Polars, scikit-learn and fastai, from Parquet to arrays.

    python benchmarks/preprocess_peers.py pandas|polars|sklearn|fastai FILE

Run by the benchmark in the environment of `make bench-env`. Each one reads the pair table, codes 13 categorical columns
by descending frequency (scikit-learn and fastai: by value, their own order), fills 20 continuous ones by their medians,
flags what was filled, scales, and ends with the model's inputs as int32 and float32 matrices. Prints one JSON line:
seconds of reading, of the rest, and CPU seconds of both.

pandas and Polars are here in the fastest form that was found, which is faster than ../shared/bench/peer_frames.py: the
distinct values of a column are found once and its codes are mapped to ranks, instead of looked up a second time.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")
CATEGORICAL = ["user_id", "item_id", "platform", "city", "device", "current_filters"] + [f"is_{i}" for i in range(7)]
CONTINUOUS = [f"cont_{i}" for i in range(20)]
COLUMNS = [*CATEGORICAL, *CONTINUOUS, "target"]
FIRST = 3  # ids 0 to 2 are padding, null and unseen
NULL = 1


def ranked(codes: np.ndarray) -> np.ndarray:
    """int32 ids of codes (-1 null) by descending frequency."""
    counts = np.bincount(codes + 1)[1:]
    rank = np.empty(len(counts) + 1, np.int32)
    rank[np.argsort(-counts, kind="stable")] = np.arange(FIRST, FIRST + len(counts))
    rank[-1] = NULL
    return rank[codes]


def pandas_floats(frame) -> list[np.ndarray]:
    floats, flags = [], []
    for name in CONTINUOUS:
        column = frame[name].to_numpy()
        null = np.isnan(column)
        filled = np.where(null, np.float32(np.median(column[~null])), column)
        floats.append(((filled - filled.mean(dtype="float64")) / filled.std(dtype="float64")).astype("float32"))
        flags.append(null.astype("float32"))
    return floats + flags


def with_pandas(path: str, clock) -> None:
    import pandas as pd

    frame = pd.read_parquet(path, columns=COLUMNS)
    clock()
    ids = [ranked(pd.factorize(frame[name])[0]) for name in CATEGORICAL]
    np.stack(ids, 1), np.stack(pandas_floats(frame), 1)


def with_pandas_dictionary(path: str, clock) -> None:
    """Text is read as categories, so that only integers are factorized."""
    import pandas as pd
    import pyarrow.parquet as pq

    text = [name for name in CATEGORICAL if not name.startswith("is_") and name != "item_id"]
    frame = pq.read_table(path, columns=COLUMNS, read_dictionary=text).to_pandas()
    clock()
    codes = [frame[n].cat.codes.to_numpy() if n in text else pd.factorize(frame[n])[0] for n in CATEGORICAL]
    ids = [ranked(found.astype("int64")) for found in codes]
    np.stack(ids, 1), np.stack(pandas_floats(frame), 1)


def with_pandas_lookup(path: str, clock) -> None:
    """As ../shared/bench/peer_frames.py."""
    import pandas as pd

    frame = pd.read_parquet(path, columns=COLUMNS)
    clock()
    ids, floats, flags = [], [], []
    for name in CATEGORICAL:
        values = frame[name].value_counts().index
        ids.append((pd.Index(values).get_indexer(frame[name]) + FIRST).astype("int32"))
    for name in CONTINUOUS:
        column = frame[name]
        flags.append(column.isna().to_numpy("float32"))
        column = column.fillna(column.median())
        floats.append(((column - column.mean()) / column.std()).to_numpy("float32"))
    np.stack(ids, 1), np.stack(floats + flags, 1)


def with_polars(path: str, clock) -> None:
    import polars as pl

    frame = pl.read_parquet(path, columns=COLUMNS)
    clock()
    lazy = frame.lazy()
    counted = pl.collect_all(
        [
            lazy.select(name).drop_nulls().group_by(name).len().sort("len", descending=True)
            .select(name, pl.int_range(FIRST, FIRST + pl.len(), dtype=pl.Int32).alias(f"{name}_id"))
            for name in CATEGORICAL
        ]
    )  # fmt: skip
    medians = lazy.select(pl.col(CONTINUOUS).median()).collect().row(0, named=True)
    filled = [pl.col(name).fill_null(medians[name]) for name in CONTINUOUS]
    floats = lazy.select(
        [((column - column.mean()) / column.std()).cast(pl.Float32) for column in filled]
        + [pl.col(name).is_null().cast(pl.Float32).alias(f"{name}_na") for name in CONTINUOUS]
    )
    joined = [
        lazy.select(name).join(values.lazy(), on=name, how="left", maintain_order="left")
        .select(pl.col(f"{name}_id").fill_null(NULL))
        for name, values in zip(CATEGORICAL, counted, strict=True)
    ]  # fmt: skip
    found = pl.collect_all([floats, *joined])
    pl.concat(found[1:], how="horizontal").to_numpy(), found[0].to_numpy()


def with_polars_categorical(path: str, clock) -> None:
    """Text by its physical category codes, which NumPy ranks; `item_id` by a join."""
    import polars as pl

    frame = pl.read_parquet(path, columns=COLUMNS)
    clock()
    text = [name for name in CATEGORICAL if frame.schema[name] == pl.String]
    small = [name for name in CATEGORICAL if name.startswith("is_")]
    lazy = frame.lazy()
    values = (
        lazy.select("item_id").drop_nulls().group_by("item_id").len().sort("len", descending=True)
        .select("item_id", pl.int_range(FIRST, FIRST + pl.len(), dtype=pl.Int32).alias("id"))
    )  # fmt: skip
    medians = lazy.select(pl.col(CONTINUOUS).median()).collect().row(0, named=True)
    filled = [pl.col(name).fill_null(medians[name]) for name in CONTINUOUS]
    floats = lazy.select(
        [((column - column.mean()) / column.std()).cast(pl.Float32) for column in filled]
        + [pl.col(name).is_null().cast(pl.Float32).alias(f"{name}_na") for name in CONTINUOUS]
    )
    codes = lazy.select(
        [pl.col(name).cast(pl.Categorical).to_physical().cast(pl.Int64).fill_null(-1) for name in text]
        + [pl.col(name).cast(pl.Int64).fill_null(-1) for name in small]
    )
    items = lazy.select("item_id").join(values, on="item_id", how="left", maintain_order="left").select("id")
    found, coded, item = pl.collect_all([floats, codes, items])
    ids = {name: ranked(coded[name].to_numpy()) for name in text + small} | {"item_id": item["id"].to_numpy()}
    np.stack([ids[name] for name in CATEGORICAL], 1), found.to_numpy()


def with_polars_replace(path: str, clock) -> None:
    """As ../shared/bench/peer_frames.py."""
    import polars as pl

    frame = pl.read_parquet(path, columns=COLUMNS)
    clock()
    lazy = frame.lazy()
    counted = pl.collect_all(
        [
            lazy.select(name).drop_nulls().group_by(name).len().sort(["len", name], descending=[True, False])
            for name in CATEGORICAL
        ]
    )
    medians = lazy.select(pl.col(CONTINUOUS).median()).collect().row(0, named=True)
    filled = [pl.col(name).fill_null(medians[name]) for name in CONTINUOUS]
    ids = [
        pl.col(name).replace_strict(
            values[name],
            pl.Series(range(FIRST, len(values) + FIRST), dtype=pl.Int32),
            default=NULL,
            return_dtype=pl.Int32,
        )
        for name, values in zip(CATEGORICAL, counted, strict=True)
    ]
    floats = [((column - column.mean()) / column.std()).cast(pl.Float32) for column in filled]
    flags = [pl.col(name).is_null().cast(pl.Float32).alias(f"{name}_na") for name in CONTINUOUS]
    found = lazy.select(ids + floats + flags).collect()
    found.select(CATEGORICAL).to_numpy(), found.select(CONTINUOUS + [f"{name}_na" for name in CONTINUOUS]).to_numpy()


def with_sklearn(path: str, clock) -> None:
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    frame = pd.read_parquet(path, columns=COLUMNS)
    clock()
    frame[CATEGORICAL] = frame[CATEGORICAL].astype(object)
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    ColumnTransformer([("ids", encoder, CATEGORICAL), ("floats", numbers, CONTINUOUS)]).fit_transform(frame)


def with_fastai(path: str, clock) -> None:
    import pandas as pd
    from fastai.tabular.all import Categorify, FillMissing, Normalize, TabularPandas

    frame = pd.read_parquet(path, columns=COLUMNS)
    clock()
    table = TabularPandas(
        frame, [FillMissing, Categorify, Normalize], CATEGORICAL, CONTINUOUS, y_names="target", inplace=True
    )
    table.cats.to_numpy("int32"), table.conts.to_numpy("float32")


PEERS = {
    "pandas": with_pandas,
    "pandas_dictionary": with_pandas_dictionary,
    "pandas_lookup": with_pandas_lookup,
    "polars": with_polars,
    "polars_categorical": with_polars_categorical,
    "polars_replace": with_polars_replace,
    "sklearn": with_sklearn,
    "fastai": with_fastai,
}

if __name__ == "__main__":
    peer, file = sys.argv[1:3]
    times: list[tuple[float, float]] = []

    def tick() -> None:
        times.append((time.perf_counter(), time.process_time()))

    __import__({"sklearn": "sklearn.compose", "fastai": "fastai.tabular.all"}.get(peer, peer.partition("_")[0]))
    tick()
    PEERS[peer](file, tick)
    tick()
    (start, cpu), (read, _), (stop, cpu_stop) = times
    print(json.dumps({"peer": peer, "read": read - start, "rest": stop - read, "cpu": cpu_stop - cpu}, allow_nan=False))
