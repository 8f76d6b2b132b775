"""Primitives that differ by data frame library, on cuDF and CuPy.

`features/engine_pandas.py` holds the same names with the same meaning; docstrings there apply here. Only imported
when the cuDF engine was picked: the CPU path never gets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cudf
import cupy
import numpy as np
import pandas as pd
import torch

NAME = "cudf"
frames = cudf
arrays = cupy


def read_csv(path: Any, **options: Any) -> cudf.DataFrame:
    return cudf.read_csv(path, **options)


def read_parquet(path: Any, columns: Sequence[str] | None = None) -> cudf.DataFrame:
    return cudf.read_parquet(path, columns=None if columns is None else list(columns))


def write_parquet(frame: cudf.DataFrame, path: Any) -> None:
    frame.to_parquet(path, index=False, compression="ZSTD")


def array(series: cudf.Series, fill: Any = None) -> cupy.ndarray:
    if fill is not None:
        series = series.fillna(fill)
    return series.to_cupy()


def series(values: cupy.ndarray, like: cudf.DataFrame, valid: cupy.ndarray | None = None) -> cudf.Series:
    column = cudf.Series(values, index=like.index)
    return column if valid is None else column.where(cudf.Series(valid, index=like.index))


def with_nulls(whole: cudf.Series, null: cudf.Series) -> cudf.Series:
    return whole.mask(null)


def codes(column: cudf.Series) -> cupy.ndarray:
    return cupy.asarray(column.factorize()[0]).astype("int64")


def value_counts(column: cudf.Series) -> cudf.DataFrame:
    values = column.dropna().reset_index(drop=True)
    frame = cudf.DataFrame({"value": values, "count": cupy.ones(len(values), dtype="int64")})
    counted = frame.groupby("value").agg({"count": "sum"}).reset_index()
    return counted.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)


def positions_in(column: cudf.Series, vocabulary: cudf.Series) -> cupy.ndarray:
    if isinstance(column.dtype, cudf.CategoricalDtype):
        column = column.astype(vocabulary.dtype)
    # A join does not keep row order: carry the row number through it and write each position to its row.
    rows = cudf.DataFrame({"value": column.reset_index(drop=True), "row": cupy.arange(len(column))})
    known = cudf.DataFrame({"value": vocabulary.reset_index(drop=True), "position": cupy.arange(len(vocabulary))})
    known["value"] = known["value"].astype(rows["value"].dtype)
    joined = rows.dropna(subset=["value"]).merge(known, on="value", how="inner")
    positions = cupy.full(len(column), -1, dtype="int64")
    positions[joined["row"].to_cupy()] = joined["position"].to_cupy()
    return positions


def hash64(column: cudf.Series) -> cupy.ndarray:
    if column.isna().any():
        raise ValueError(f"hash64: column {column.name!r} holds nulls; fill them first.")
    wide = column if column.dtype.kind == "O" else column.astype("int64")
    return wide.hash_values(method="xxhash64").to_cupy().view(cupy.int64)


def columns_to_torch(frame: cudf.DataFrame, columns: Sequence[str]) -> list[torch.Tensor]:
    return [torch.from_dlpack(frame[name].to_cupy()) for name in columns]


def map_columns(function: Any, columns: Sequence[str]) -> list[Any]:
    return [function(name) for name in columns]


def to_host(values: Any) -> np.ndarray:
    return cupy.asnumpy(values)


def from_pandas(frame: pd.DataFrame) -> cudf.DataFrame:
    return cudf.from_pandas(frame)


def to_pandas(frame: cudf.DataFrame) -> pd.DataFrame:
    return frame.to_pandas()
