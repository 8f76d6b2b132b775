"""Primitives that differ by data frame library, on pandas, Arrow and NumPy.

`features/engine_cudf.py` holds the same names with the same meaning; a test compares the signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import xxhash

NAME = "pandas"
frames = pd
arrays = np


def read_csv(path: Any, **options: Any) -> pd.DataFrame:
    """A CSV file as a frame; options are those that pandas and cuDF share."""
    return pd.read_csv(path, **options)


def read_parquet(path: Any, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A Parquet file as a frame; strings come Arrow-backed."""
    return pd.read_parquet(path, columns=None if columns is None else list(columns))


def write_parquet(frame: pd.DataFrame, path: Any) -> None:
    """The frame as one Parquet file, without its index."""
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, compression="zstd", compression_level=1)


def array(series: pd.Series, fill: Any = None) -> np.ndarray:
    """The column as a NumPy array; nulls become `fill`, which must be given when there are any."""
    if fill is not None:
        series = series.fillna(fill)
    return series.to_numpy()


def series(values: np.ndarray, like: pd.DataFrame, valid: np.ndarray | None = None) -> pd.Series:
    """An array as a column on the index of `like`, without a copy; null where `valid` is False."""
    column = pd.Series(values, index=like.index, copy=False)
    return column if valid is None else column.where(pd.Series(valid, index=like.index))


def with_nulls(whole: pd.Series, null: pd.Series) -> pd.Series:
    """An integer column with nulls where `null` is True; pandas needs its masked integer type for that."""
    return whole.astype("Int64" if whole.dtype == "int64" else "Int32").mask(null)


def codes(column: pd.Series) -> np.ndarray:
    """int64 number of each value, equal values equal numbers, dense from 0; -1 for null."""
    return pd.factorize(column)[0].astype("int64")


def value_counts(column: pd.Series) -> pd.DataFrame:
    """Columns `value` and `count` (int64), nulls left out, by descending count, ties by ascending value."""
    counted = pa.Table.from_struct_array(pc.value_counts(_arrow(column).drop_null()))
    counted = counted.rename_columns(["value", "count"])
    counted = counted.sort_by([("count", "descending"), ("value", "ascending")])
    return counted.to_pandas()


def positions_in(column: pd.Series, vocabulary: pd.Series) -> np.ndarray:
    """Position of every value in `vocabulary` (int64), -1 for null and for a value that is not there."""
    values = _arrow(column)
    known = _arrow(vocabulary).cast(values.type) if len(vocabulary) else pa.array([], values.type)
    found = pc.index_in(values, value_set=known, skip_nulls=True)
    return found.fill_null(-1).to_numpy().astype(np.int64)


def hash64(column: pd.Series) -> np.ndarray:
    """XXH64, seed 0, of each value's bytes as int64: UTF-8 for strings, 8 little-endian bytes for integers."""
    codes, values = pd.factorize(column)
    if (codes < 0).any():
        raise ValueError(f"hash64: column {column.name!r} holds nulls; fill them first.")
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iu":
        data = (int(value).to_bytes(8, "little", signed=True) for value in values)
    else:
        data = (str(value).encode() for value in values)
    table = np.fromiter((xxhash.xxh64_intdigest(item) for item in data), np.uint64, len(values))
    return table.view(np.int64)[codes]


def columns_to_torch(frame: pd.DataFrame, columns: Sequence[str]) -> list[torch.Tensor]:
    """One 1-d tensor a column, zero-copy by DLPack: the tensor shares the column's memory. Nulls must be filled."""
    return [torch.from_dlpack(_plain(frame[name])) for name in columns]


def map_columns(function: Any, columns: Sequence[str]) -> list[Any]:
    """`function` of each column name, in threads: Arrow and NumPy release the interpreter lock."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, columns))


def to_host(values: Any) -> np.ndarray:
    """An array of this engine as a NumPy array."""
    return np.asarray(values)


def from_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """A pandas frame as a frame of this engine."""
    return frame


def to_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of this engine as a pandas frame."""
    return frame


def _plain(column: pd.Series) -> pa.Array:
    values = column.to_numpy()
    if values.dtype.kind not in "iuf":
        raise ValueError(
            f"column {column.name!r} is {column.dtype} and cannot become a tensor; fill and cast it first."
        )
    # pandas hands out read-only memory, which NumPy's own DLPack export may refuse; Arrow wraps it without a copy.
    return pa.array(values)


def _arrow(column: pd.Series) -> pa.Array:
    converted = pa.Array.from_pandas(column)
    if isinstance(converted, pa.ChunkedArray):
        converted = converted.combine_chunks()
    return converted.dictionary_decode() if pa.types.is_dictionary(converted.type) else converted
