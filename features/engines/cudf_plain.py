"""Primitives that differ by data frame library, on cuDF and CuPy, by calls of these two libraries alone.

`features/engines/pandas.py` holds the same names with the same meaning; docstrings there apply here. Only imported
when a cuDF engine was picked: the CPU path never gets here. `features/engines/cudf.py` does better what can be done
better, and takes the rest from here.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cudf
import cupy
import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from gigabatch.features.engines.frame import CodedColumn, FloatWord, IdWord, require_every_word
from gigabatch.features.engines.rapids_memory import use_pool
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.quantiles import RadixHistogram, Search
from gigabatch.features.exact.tally import tally

if cupy.cuda.is_available():  # the API check imports this file without a device
    use_pool()  # before the first allocation
NAME = "cudf"
# As readers on a GPU want it: few large row groups, whose pages (of 20,000 rows) keep every multiprocessor busy. About
# 10 million rows were best on an A100 (arXiv 2602.17335); cuDF's own million would cut up larger parts. No limit of
# bytes: libcudf gave up its 128 MB, which cut wide tables small (NVIDIA/cudf, pull request 16750).
ROW_GROUP_ROWS = 10_000_000
# An H100 unpacks it in about the time in which it decodes pages (NVIDIA/cudf, issue 18350), so a read waits for link
# and disk, and for them fewer bytes are better than none packed. Blackwell unpacks it in hardware, and no zstd (nvCOMP,
# "Decompression Engine").
COMPRESSION = "snappy"
frames = cudf
arrays = cupy


def read_csv(path: Any, **options: Any) -> cudf.DataFrame:
    if isinstance(path, str | Path) and str(path).endswith(".zip"):
        # libcudf takes sizes from the headers before the members, where a zip that was written as a stream has none
        with fsspec.open(str(path), "rb", compression="infer") as file:
            path = io.BytesIO(file.read())
    return cudf.read_csv(path, **options)


def read_parquet(path: Any, columns: Sequence[str] | None = None) -> cudf.DataFrame:
    return cudf.read_parquet(path, columns=None if columns is None else list(columns))


def parquet_columns(path: Any) -> list[str]:
    return pq.read_schema(path[0] if isinstance(path, list) else path).names  # parts of one split are alike


def read_columns(path: Any, columns: Sequence[str] | None = None) -> cudf.DataFrame:
    return read_parquet(path, columns)


def write_parquet(frame: cudf.DataFrame, path: Any) -> None:
    frame.to_parquet(path, index=False, compression=COMPRESSION, row_group_size_rows=ROW_GROUP_ROWS)


def write_passing(frame: cudf.DataFrame, path: Any) -> None:
    write_parquet(frame, path)  # a GPU compresses faster than a disk writes


def array(series: cudf.Series, fill: Any = None) -> cupy.ndarray:
    if fill is not None:
        series = series.fillna(fill)
    kind = _plain_kind(series.dtype)
    return (series if kind is None else series.astype(kind)).to_cupy()


def series(values: cupy.ndarray, like: cudf.DataFrame, valid: cupy.ndarray | None = None) -> cudf.Series:
    column = cudf.Series(values, index=like.index)
    return column if valid is None else column.where(cudf.Series(valid, index=like.index))


def frame(columns: Mapping[str, Any], like: cudf.DataFrame) -> cudf.DataFrame:
    return cudf.DataFrame(dict(columns), index=like.index)  # `copy` is not implemented there


def with_nulls(whole: cudf.Series, null: cudf.Series) -> cudf.Series:
    return whole.mask(null)


def codes(column: cudf.Series) -> cupy.ndarray:
    return cupy.asarray(column.factorize()[0]).astype("int64")


def stable_order(keys: cupy.ndarray) -> cupy.ndarray:
    return cupy.argsort(keys)  # always a stable one there


def places_in_groups(
    begins: cupy.ndarray, keys: cupy.ndarray, groups: cupy.ndarray, wanted: cupy.ndarray
) -> cupy.ndarray:
    """By one search for `group * span + key`; where groups and keys are too many for that product, keys are ranked."""
    if len(keys) == 0 or len(wanted) == 0:
        return cupy.zeros(len(wanted), dtype="int64")
    ends = cupy.stack([keys.min(), keys.max(), wanted.min(), wanted.max()]).tolist()
    low, span = min(ends), max(ends) - min(ends) + 2
    if len(begins) * span >= 2**63:
        ranked = cupy.unique(keys)
        keys, wanted = (cupy.searchsorted(ranked, values) for values in (keys, wanted))
        low, span = 0, len(ranked) + 1
    own = cupy.searchsorted(begins, cupy.arange(len(keys)), side="right") - 1
    return cupy.searchsorted(own * span + (keys - low), groups * span + (wanted - low))


def ranks_in_groups(groups: cupy.ndarray, values: cupy.ndarray, descending: bool) -> cupy.ndarray:
    table = cudf.DataFrame({"group": groups, "value": values})
    ranks = table.groupby("group")["value"].rank(method="min", ascending=not descending)
    return array(ranks).astype("float32")


def coded(column: cudf.Series) -> CodedColumn:
    numbers, values = column.factorize()
    numbers = cupy.asarray(numbers).astype("int32")
    frame = cudf.DataFrame({"value": cudf.Series(values).reset_index(drop=True)})
    frame["count"] = tally(cupy, numbers + 1, len(frame) + 1)[1:].astype("int64")
    counted = frame.sort_values(["count", "value"], ascending=[False, True])
    order = cupy.asarray(counted.index.values)
    return CodedColumn(numbers, counted.reset_index(drop=True), order, len(frame))


def value_counts(column: cudf.Series) -> cudf.DataFrame:
    values = column.dropna().reset_index(drop=True)
    frame = cudf.DataFrame({"value": values, "count": cupy.ones(len(values), dtype="int64")})
    counted = frame.groupby("value").agg({"count": "sum"}).reset_index()
    return counted.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)


def direct_counts(column: cudf.Series) -> None:
    return None


def sum_counts(counted: cudf.DataFrame) -> cudf.DataFrame:
    return counted.groupby("value").agg({"count": "sum"}).reset_index()


def sort_counts(counted: cudf.DataFrame) -> cudf.DataFrame:
    return counted.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)


def lookup(vocabulary: cudf.Series) -> None:
    return None  # a join builds its own table, in a few milliseconds


def positions_in(column: cudf.Series, vocabulary: cudf.Series, table: Any = None) -> cupy.ndarray:
    if isinstance(column.dtype, cudf.CategoricalDtype):
        column = column.astype(vocabulary.dtype)
    # A join does not keep row order: carry the row number through it and write each position to its row.
    rows = cudf.DataFrame({"value": column.reset_index(drop=True), "row": cupy.arange(len(column))})
    known = cudf.DataFrame({"value": vocabulary.reset_index(drop=True), "position": cupy.arange(len(vocabulary))})
    kind = rows["value"].dtype
    if kind.kind in "iu" and known["value"].dtype.kind in "iu":  # the narrower type would wrap the other's values
        kind = np.promote_types(kind, known["value"].dtype)
        rows["value"] = rows["value"].astype(kind)
    known["value"] = known["value"].astype(kind)
    joined = rows.dropna(subset=["value"]).merge(known, on="value", how="inner")
    positions = cupy.full(len(column), -1, dtype="int64")
    positions[joined["row"].to_cupy()] = joined["position"].to_cupy()
    return positions


def positions_and_nulls(column: cudf.Series, table: Any) -> None:
    return None


def column_statistics(column: cudf.Series) -> ColumnStatistics:
    return ColumnStatistics.of(column.astype("float32").to_cupy(na_value=np.nan))


def statistics_together(columns: Sequence[cudf.Series]) -> list[ColumnStatistics] | None:
    return None


def column_count(column: cudf.Series, search: Search) -> RadixHistogram:
    return search.count(column.astype("float32").to_cupy(na_value=np.nan))


def counts_together(asked: Sequence[tuple[cudf.Series, Search]]) -> list[RadixHistogram] | None:
    return None


def pack(num_rows: int, num_words: int, ids: Sequence[IdWord], floats: Sequence[FloatWord]) -> cupy.ndarray:
    require_every_word(num_words, ids, floats)
    columns: list[Any] = [None] * num_words
    for word in ids:
        words = word.ids if word.table is None else word.table[word.ids]  # -1 takes the last, that of null
        columns[word.place] = cupy.ascontiguousarray(words).view("int32")
    for item in floats:
        values = item.column.astype("float32").to_cupy(na_value=np.nan)
        null = cupy.isnan(values)
        filled = cupy.where(null, cupy.float32(item.fill), values)
        _require_finite(item, filled, scaled=False)
        if item.std:
            scaled = (filled.astype("float64") - item.mean) / item.std
            if item.clip:
                part = scaled / item.clip
                scaled = scaled / cupy.sqrt(1 + part * part)
            filled = scaled.astype("float32")
            _require_finite(item, filled, scaled=True)
        columns[item.place] = filled.view("int32")
        if item.flag_place >= 0:
            columns[item.flag_place] = null.astype("float32").view("int32")
    return cupy.stack(columns, axis=1) if columns else cupy.empty((num_rows, 0), dtype="int32")


def _require_finite(word: FloatWord, values: cupy.ndarray, scaled: bool) -> None:
    if not bool(cupy.isfinite(values).all()):
        raise word.infinity(scaled)


def hash64(column: cudf.Series) -> cupy.ndarray:
    if column.isna().any():
        raise ValueError(f"hash64: column {column.name!r} holds nulls; fill them first.")
    wide = column if column.dtype.kind == "O" else column.astype("int64")
    return wide.hash_values(method="xxhash64").to_cupy().view(cupy.int64)


def map_columns(function: Any, columns: Sequence[str]) -> list[Any]:
    return [function(name) for name in columns]


def as_typed(column: cudf.Series, dtype: str, nullable: bool) -> cudf.Series | None:
    if dtype == "string":
        return column if str(column.dtype) in ("str", "object") else None
    whole = dtype in ("int32", "int64", "bool")
    fits = str(column.dtype) == dtype and (not whole or nullable or not bool(column.isna().any()))
    return column if fits else None


def text(column: cudf.Series) -> cudf.Series:
    return column.astype("str")


def float_text(column: cudf.Series) -> cudf.Series:
    # cuDF's own has ten digits: other values, one text; and pandas writes Arrow's float32 with those of float64.
    return cudf.Series(column.to_pandas().astype(f"float{8 * column.dtype.itemsize}").astype("str"))


def decoded(column: cudf.Series) -> cudf.Series:
    return column  # there are no dictionaries but categories


def to_host(values: Any) -> np.ndarray:
    return cupy.asnumpy(values)


def from_pandas(frame: pd.DataFrame) -> cudf.DataFrame:
    found = cudf.from_pandas(frame)
    kinds = {name: kind for name in found.columns if (kind := _plain_kind(found[name].dtype)) is not None}
    return found.astype(kinds) if kinds else found


def _plain_kind(dtype: Any) -> str | None:
    """The type that a column has where cuDF itself makes it, for one of pandas' masked or Arrow types, else None.

    cuDF takes such types over from a pandas frame, and `to_cupy` then refuses the column.
    """
    if not isinstance(dtype, pd.api.extensions.ExtensionDtype) or dtype.kind not in "iufb":
        return None
    return str(dtype.numpy_dtype)


def to_pandas(frame: cudf.DataFrame) -> pd.DataFrame:
    return frame.to_pandas()
