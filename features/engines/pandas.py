"""Primitives that differ by data frame library, on pandas, Arrow and NumPy.

`features/engines/cudf.py` holds the same names with the same meaning; a test compares the signatures.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas.io.common import get_handle

from gigabatch.features.engines.arrow_columns import (
    Coded,
    Lookup,
    codable,
    distinct,
    exact_frame_of,
    float_pieces,
    frequency_order,
    int64_values,
    is_valid,
    is_whole,
    one_array,
    read_arrow,
    string_buffers,
    to_arrow,
)
from gigabatch.features.engines.frame import CodedColumn, FloatWord, IdWord
from gigabatch.features.engines.hash_tables import count_codes, find_in_groups, rank_in_groups
from gigabatch.features.engines.hash_tables import stable_order as radix_stable_order
from gigabatch.features.engines.row_loops import NUM_THREADS, pack_rows
from gigabatch.features.engines.xxh64 import hash_bytes
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.quantiles import RadixHistogram, Search

NAME = "pandas"
TEXT = pd.StringDtype("pyarrow", na_value=np.nan)  # "str", whatever the option mode.string_storage says
AHEAD = 1 << 12  # characters that are read further where a block ends in blanks
SHORT = 64  # rows of a group that are sorted by insertion
SMALL_FILE = 1 << 20  # bytes of a Parquet file that one thread reads
frames = pd
arrays = np


def read_csv(path: Any, **options: Any) -> pd.DataFrame:
    """A CSV file as a frame; options are those that pandas and cuDF share."""
    # In pieces pandas would not hold the first row of each against the number of columns.
    options = {"low_memory": False, **options}
    if len(options.get("sep", ",").encode()) > 1:  # read by Python, line by line
        return pd.read_csv(path, **options)
    with get_handle(path, "r", encoding="utf-8", compression="infer") as opened:
        return pd.read_csv(_BlanksKept(opened.handle), **options)


class _BlanksKept:
    """A file of text none of whose blocks ends within the blanks that begin a line: pandas goes back there, once it
    knows that the line is not blank, but not into the block before, so that those at its end were lost."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> str:
        block: str = self._file.read(size)
        while block[-1:] in (" ", "\t") and block.rstrip(" \t")[-1:] in ("", "\n", "\r"):
            more = self._file.read(AHEAD)
            if not more:
                break
            block += more
        return block

    def __iter__(self) -> Iterator[str]:  # which pandas looks for
        return iter(self._file)


def read_parquet(path: Any, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A Parquet file as a frame; strings come Arrow-backed, integers and flags with nulls of pandas' masked types.

    By itself pandas makes floats of such integers, which skip whole numbers from 2^53, and objects of such flags.
    """
    if columns is None and (small := _small_table(path)) is not None:
        return exact_frame_of(small)
    with fsspec.open(path, "rb") if "://" in str(path) else nullcontext(path) as source:
        asked = None if columns is None else list(columns)
        table = pq.read_table(source, columns=asked, page_checksum_verification=True)
    return exact_frame_of(table)


def _small_table(path: Any) -> pa.Table | None:
    """A small file as `read_table` has it, four times sooner, as no data set is made of it and no thread started: a
    preprocessor has a file or two a column. None for what is no such file, or cannot be read: `read_table` says why."""
    try:
        if not stat.S_ISREG((found := os.stat(path)).st_mode) or found.st_size > SMALL_FILE:
            return None
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            return file.read(use_threads=False) if len(set(names)) == len(names) else None
    except (OSError, ValueError, TypeError, pa.ArrowException):
        return None


def parquet_columns(path: Any) -> list[str]:
    """Names of a Parquet file's columns, from its footer."""
    return pq.read_schema(path).names


def read_columns(path: Any, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A Parquet file as a frame in the form that is the cheapest to encode: Arrow-backed, text as the file has it."""
    return read_arrow(path, columns)


def write_parquet(frame: pd.DataFrame, path: Any) -> None:
    """The frame as one Parquet file, without its index."""
    table = _without_list_types(pa.Table.from_pandas(frame, preserve_index=False))
    # Floats are rarely few: a dictionary of them is filled, found too large and thrown away, column by column.
    few = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    pq.write_table(table, path, compression="zstd", compression_level=1, use_dictionary=few)


def write_passing(frame: pd.DataFrame, path: Any) -> None:
    """As `write_parquet`, of rows that this run reads again and then deletes: quick to write and to read, not small."""
    table = _without_list_types(pa.Table.from_pandas(frame, preserve_index=False))
    pq.write_table(table, path, compression="lz4", use_dictionary=False, write_statistics=False)


def _without_list_types(table: pa.Table) -> pa.Table:
    """The table, whose metadata for pandas call lists objects: pandas writes an Arrow type of lists that it then cannot
    read."""
    metadata = table.schema.metadata or {}
    if b"pandas" not in metadata or not any(pa.types.is_large_list(field.type) for field in table.schema):
        return table
    told = json.loads(metadata[b"pandas"])
    for column in told["columns"]:
        if "list<" in column["numpy_type"]:
            column["numpy_type"] = "object"
    return table.replace_schema_metadata({**metadata, b"pandas": json.dumps(told, allow_nan=False).encode()})


def array(series: pd.Series, fill: Any = None) -> np.ndarray:
    """The column as a NumPy array; nulls become `fill`, which must be given when there are any."""
    if fill is not None:
        series = series.fillna(fill)
    return series.to_numpy()


def series(values: np.ndarray, like: pd.DataFrame, valid: np.ndarray | None = None) -> pd.Series:
    """An array as a column on the index of `like`, without a copy; null where `valid` is False."""
    column = pd.Series(values, index=like.index, copy=False)
    return column if valid is None else column.where(pd.Series(valid, index=like.index))


def frame(columns: Mapping[str, Any], like: pd.DataFrame) -> pd.DataFrame:
    """Columns and arrays as a frame on the index of `like`, without a copy."""
    return pd.DataFrame(dict(columns), index=like.index, copy=False)


def with_nulls(whole: pd.Series, null: pd.Series) -> pd.Series:
    """An integer or bool column with nulls where `null` is True; pandas needs masked (or Arrow's) types."""
    if isinstance(whole.dtype, np.dtype):
        name = str(whole.dtype)
        whole = whole.astype("boolean" if name == "bool" else name.replace("u", "U").replace("int", "Int"))
    return whole.mask(null)


def codes(column: pd.Series) -> np.ndarray:
    """int64 number of each value, equal values equal numbers, from 0 by first appearance; -1 for null."""
    values = _arrow(column)
    if codable(values.type):
        return distinct(values).codes.astype("int64")
    if pa.types.is_floating(values.type):  # Arrow tells -0.0 from 0.0
        return pd.factorize(values.to_numpy(zero_copy_only=False))[0].astype("int64")
    return pd.factorize(column)[0].astype("int64")


def stable_order(keys: np.ndarray) -> np.ndarray:
    """int64 positions that sort int64 keys ascending; equal keys keep their order."""
    return radix_stable_order(np.ascontiguousarray(keys))


def places_in_groups(begins: np.ndarray, keys: np.ndarray, groups: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """int64 [M]: the place of the first key that is not below each `wanted` int64 among those of its group; at the
    group's end where all are below, 0 for group -1.

    keys: int64, those of group g from begins[g] to begins[g + 1], ascending there.
    """
    return find_in_groups(begins, *(np.ascontiguousarray(values) for values in (keys, groups, wanted)))


def ranks_in_groups(groups: np.ndarray, values: np.ndarray, descending: bool) -> np.ndarray:
    """float32 [N]: 1 and the number of values of the row's group that are smaller (larger, with `descending`).

    groups: int64 [N], from 0 on, few without rows. values: [N] numbers or flags, none of them NaN.
    """
    values = np.ascontiguousarray(values, {"f": np.float64, "u": np.uint64}.get(values.dtype.kind, np.int64))
    counts = np.bincount(groups)
    order = np.arange(len(groups)) if counts.max(initial=0) <= SHORT else np.argsort(values)
    return rank_in_groups(np.ascontiguousarray(groups), values, counts, order, descending)


def coded(column: pd.Series) -> CodedColumn:
    """Of a column of text or integers, in one pass over it."""
    values = one_array(to_arrow(column))
    if not codable(values.type):  # floats and flags
        encoded = values.dictionary_encode()
        values = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
        counted = value_counts(column)
        order = pc.index_in(pa.Array.from_pandas(counted["value"]).cast(values.dictionary.type), values.dictionary)
        codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return CodedColumn(codes.astype(np.int32), counted, order.to_numpy(), len(values.dictionary))
    found = distinct(values)
    counted, order = _counted(found)
    return CodedColumn(found.codes, counted, order, len(found.values), partial(_lookup_of, found, order))


def _lookup_of(found: Coded, order: np.ndarray, num_values: int) -> Lookup | None:
    """`lookup` of the first `num_values` values of `order`, by the hash table that numbered them, if there is one."""
    if found.slots is None:
        return None
    place = np.full(len(found.values) + 1, -1, np.int32)
    place[order[:num_values]] = np.arange(num_values, dtype=np.int32)
    return Lookup(found.values, found.slots, place)


def _counted(found: Coded) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns `value` and `count` of the codes that some row has, and these codes, in the order of `value_counts`."""
    counts = count_codes(found.codes, len(found.values))
    order = frequency_order(found.values, counts)[: np.count_nonzero(counts)]
    return pd.DataFrame({"value": found.values.take(pa.array(order)).to_pandas(), "count": counts[order]}), order


def value_counts(column: pd.Series) -> pd.DataFrame:
    """Columns `value` and `count` (int64), nulls left out, by descending count, ties by ascending value."""
    values = one_array(to_arrow(column))
    if codable(values.type):
        return _counted(distinct(values))[0]
    counted = pa.Table.from_struct_array(pc.value_counts(_arrow(column).drop_null()))
    counted = counted.rename_columns(["value", "count"])
    counted = counted.sort_by([("count", "descending"), ("value", "ascending")])
    return counted.to_pandas()


def direct_counts(column: pd.Series) -> pd.DataFrame | None:
    """`value_counts` of an Arrow-backed column of text, int32 or int64, whose values are what they look like; else
    None."""
    if not isinstance(column.dtype, pd.ArrowDtype) or not codable(column.dtype.pyarrow_dtype):
        return None
    kind = column.dtype.pyarrow_dtype
    return None if is_whole(kind) and kind not in (pa.int32(), pa.int64()) else value_counts(column)


def sum_counts(counted: pd.DataFrame) -> pd.DataFrame:
    """Columns `value` and `count`, each value once: the sum of the rows that have it. `value` holds no null."""
    values = one_array(to_arrow(counted["value"]))
    if not codable(values.type):
        return counted.groupby("value").agg({"count": "sum"}).reset_index()
    found = distinct(values)
    counts = np.zeros(len(found.values), np.int64)
    np.add.at(counts, found.codes, counted["count"].to_numpy())
    return pd.DataFrame({"value": found.values.to_pandas(), "count": counts})


def sort_counts(counted: pd.DataFrame) -> pd.DataFrame:
    """Columns `value` (no null) and `count` in the order of `value_counts`, on a new index."""
    values = _arrow(counted["value"])
    if not codable(values.type):
        return counted.sort_values(["count", "value"], ascending=[False, True]).reset_index(drop=True)
    counts = counted["count"].to_numpy()
    ascending = pc.less(values[:-1], values[1:]).to_numpy(zero_copy_only=False) if len(values) else counts
    if ((counts[:-1] > counts[1:]) | (counts[:-1] == counts[1:]) & ascending).all():
        return counted.reset_index(drop=True)  # to look costs a tenth of sorting
    order = frequency_order(values, counts)
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return pd.DataFrame({"value": values.take(pa.array(order)).to_pandas(), "count": counts[order]})


def lookup(vocabulary: pd.Series) -> Any:
    """A hash table of the vocabulary (distinct values without nulls), for `positions_in`."""
    known = one_array(to_arrow(vocabulary))
    return Lookup(known) if codable(known.type) else known


def positions_in(column: pd.Series, vocabulary: pd.Series, table: Any = None) -> np.ndarray:
    """Position of every value in `vocabulary` (int64), -1 for null and for a value that is not there.

    table: what `lookup(vocabulary)` gave, so that it need not be made again.
    """
    values = one_array(to_arrow(column))
    table = lookup(vocabulary) if table is None else table
    if isinstance(table, Lookup) and (table.whole == is_whole(values.type)) and codable(values.type):
        return table.positions(values).astype(np.int64)
    values, known = _arrow(column), _arrow(vocabulary)
    known = known.cast(values.type) if len(known) else pa.array([], values.type)
    found = pc.index_in(values, value_set=known, skip_nulls=True)
    return found.fill_null(-1).to_numpy().astype(np.int64)


def positions_and_nulls(column: pd.Series, table: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """int32 positions (-1: null or not there) and bool nulls, if the column is of the very kind that the vocabulary
    of `table` (a `lookup`) is, so that nothing has to be brought into another form first."""
    values = one_array(to_arrow(column))
    if not (isinstance(table, Lookup) and codable(values.type) and table.whole == is_whole(values.type)):
        return None
    positions = table.positions(values)
    valid = is_valid(values)
    return positions, ~valid if len(valid) else np.zeros(len(positions), np.bool_)


def column_statistics(column: pd.Series) -> ColumnStatistics:
    """Of a float32 column; `ValueError` for an infinity."""
    return ColumnStatistics.of_pieces(float_pieces(column))


def statistics_together(columns: Sequence[pd.Series]) -> list[ColumnStatistics] | None:
    """`column_statistics` of many columns in one pass; `DataError` names the one that holds an infinity. None where
    columns are as fast one by one."""
    return None


def column_count(column: pd.Series, search: Search) -> RadixHistogram:
    """`search.count` of a float32 column."""
    return search.count_pieces(float_pieces(column))


def counts_together(asked: Sequence[tuple[pd.Series, Search]]) -> list[RadixHistogram] | None:
    """`column_count` of many columns in one pass; None where columns are as fast one by one."""
    return None


def pack(num_rows: int, num_words: int, ids: Sequence[IdWord], floats: Sequence[FloatWord]) -> np.ndarray:
    """int32 [num_rows, num_words], as `gigabatch.features.engines.row_loops.pack_rows`."""
    return pack_rows(num_rows, num_words, ids, floats)


def hash64(column: pd.Series) -> np.ndarray:
    """XXH64, seed 0, of each value's bytes as int64: UTF-8 for strings, 8 little-endian bytes for integers."""
    values = one_array(to_arrow(column))
    if values.null_count:
        raise ValueError(f"hash64: column {column.name!r} holds nulls; fill them first.")
    if not pa.types.is_dictionary(values.type):
        return _hash64(values).view(np.int64)
    return _hash64(values.dictionary)[values.indices.to_numpy()].view(np.int64)


def _hash64(values: pa.Array) -> np.ndarray:
    """uint64 of an array of text or whole numbers without nulls."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return hash_bytes(*string_buffers(values))
    if len(values) and not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        raise ValueError(f"hash64: neither text nor whole numbers, but {values.type}.")
    words = np.ascontiguousarray(int64_values(values.cast(pa.int64())))
    return hash_bytes(np.arange(0, 8 * len(words) + 1, 8), words.view(np.uint8))


def map_columns(function: Any, columns: Sequence[str]) -> list[Any]:
    """`function` of each column name, in threads: Arrow and NumPy release the interpreter lock."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(function, columns))


def as_typed(column: pd.Series, dtype: str, nullable: bool) -> pd.Series | None:
    """The column as the schema's type where that takes no look at its values: as it is, or Arrow's integers widened.

    None where values must be looked at. An Arrow-backed column stays one.
    """
    kind = column.dtype
    if not isinstance(kind, pd.ArrowDtype):
        return column if str(kind) == dtype or (dtype == "string" and kind == "str") else None
    found = kind.pyarrow_dtype
    if dtype == "string":
        return column if codable(found) and not is_whole(found) else None
    if dtype in ("int32", "int64"):
        fits = is_whole(found) and not pa.types.is_dictionary(found) and found.bit_width <= int(dtype[3:])
        if not fits or not (nullable or not column.isna().any()):
            return None
        return column if found.bit_width == int(dtype[3:]) else column.astype(pd.ArrowDtype(pa.type_for_alias(dtype)))
    return column if str(found) == {"float32": "float", "float64": "double"}.get(dtype) else None


def text(column: pd.Series) -> pd.Series:
    """The column as text of one storage, so that a method of text gives the same whatever pandas holds; null is null.

    Python lowers some letters otherwise than Arrow does, and its patterns take other digits and ends of a text.
    """
    return column if column.dtype == TEXT else column.astype(TEXT)


def float_text(column: pd.Series) -> pd.Series:
    """The floats as the shortest text that stands for each alone; of a null some text."""
    if isinstance(column.dtype, pd.ArrowDtype):  # which pandas writes as Python's floats: .1 as 0.10000000149011612
        floats = column.to_numpy(column.dtype.numpy_dtype, na_value=np.nan)
        column = pd.Series(floats, index=column.index, name=column.name)
    return column.astype("str")


def decoded(column: pd.Series) -> pd.Series:
    """The column; one of Arrow's dictionaries as one of their values, which are text of the engine's one storage."""
    kind = column.dtype
    if not isinstance(kind, pd.ArrowDtype) or not pa.types.is_dictionary(kind.pyarrow_dtype):
        return column
    values = kind.pyarrow_dtype.value_type
    found = column.astype(pd.ArrowDtype(values))
    return text(found) if codable(values) and not is_whole(values) else found


def to_host(values: Any) -> np.ndarray:
    """An array of this engine as a NumPy array."""
    return np.asarray(values)


def from_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """A pandas frame as a frame of this engine."""
    return frame


def to_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of this engine as a pandas frame."""
    return frame


def _arrow(column: pd.Series) -> pa.Array:
    converted = one_array(to_arrow(column))
    return converted.dictionary_decode() if pa.types.is_dictionary(converted.type) else converted
