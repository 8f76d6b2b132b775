"""Columns of the CPU engine as the buffers that compiled loops take, without copies where the types allow it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.engines import hash_tables as coding
from gigabatch.features.engines.arrow_types import plain_column, usual_types
from gigabatch.features.exact.float_order import ALL_VALID, Bitmap

# A Parquet column whose values take fewer bytes than this is stored as codes of a dictionary, and is read as them.
DICTIONARY_BYTES = 4.0
# Types of pandas that hold such integers and flags beside nulls as they are.
MASKED: dict[pa.DataType, Any] = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


def read_arrow(path: Any, columns: Collection[str] | None = None) -> pd.DataFrame:
    """A Parquet file as a frame of Arrow-backed columns (`pd.ArrowDtype`): no value is converted or copied.

    Text that the file stores as dictionary codes stays codes (type dictionary<int32, string>).
    """
    with pq.ParquetFile(path, memory_map=True) as file:
        coded = dictionary_columns(file)
    table = pq.read_table(
        path,
        columns=None if columns is None else list(columns),
        read_dictionary=coded,
        memory_map=True,
        pre_buffer=False,
        partitioning=None,
    )
    return frame_of(table, types_mapper=pd.ArrowDtype)


def frame_of(table: pa.Table, **options: Any) -> pd.DataFrame:
    """`table.to_pandas`, in which a named index that pandas wrote is a column as others are, and types that pandas has
    no values for stay Arrow's. Also where pandas wrote Arrow-backed lists or other nested columns: the types that it
    names for these (`large_list<element: string>[pyarrow]`) it does not know itself when it reads."""
    table = usual_types(table)
    told = table.schema.pandas_metadata or {}
    nested = [entry for entry in told.get("columns", ()) if "<" in str(entry.get("numpy_type"))]
    index = told.get("index_columns", [])
    unnamed = [entry for entry in index if not isinstance(entry, str) or entry.startswith("__index_level_")]
    if nested or unnamed != index:
        told["index_columns"] = unnamed
        for entry in nested:
            entry["numpy_type"] = "object"
        table = table.replace_schema_metadata(
            {**table.schema.metadata, b"pandas": json.dumps(told, allow_nan=False).encode()}
        )
    strange = {place: table.column(place) for place, kind in enumerate(table.schema.types) if not _of_pandas(kind)}
    for place in strange:
        table = table.set_column(place, table.schema.names[place], pa.nulls(len(table)))
    frame = table.to_pandas(**options)
    for place, column in strange.items():
        frame[table.schema.names[place]] = pd.arrays.ArrowExtensionArray(column)
    return frame


@cache
def _of_pandas(kind: pa.DataType) -> bool:
    """Whether pandas has values of its own for this type of Arrow's, of which it has none for unions, or for categories
    within lists."""
    if not pa.types.is_nested(kind):
        return True
    try:
        pa.nulls(1, kind).to_pandas()
    except pa.ArrowNotImplementedError:
        return False
    return True


def exact_frame_of(table: pa.Table) -> pd.DataFrame:
    """`frame_of` whose integers and flags beside nulls are of pandas' masked types. Large lists stay Arrow's, and those
    of integers with a null, of which pandas would make floats."""
    frame = frame_of(table)
    for field, column in zip(table.schema, table.columns, strict=True):
        if (pa.types.is_large_list(field.type) or _holds_null_integers(column)) and field.name in frame.columns:
            frame[field.name] = pd.arrays.ArrowExtensionArray(column)
        if column.null_count and field.type in MASKED and field.name in frame.columns:
            frame[field.name] = column.to_pandas(types_mapper=MASKED.get).array
    return frame


def frame_with_decimals(table: pa.Table) -> pd.DataFrame:
    """As `exact_frame_of`, with decimals as Arrow's own, of which pandas would make objects of Python."""
    decimals = [field.name for field in table.schema if pa.types.is_decimal(field.type)]
    found = exact_frame_of(table.drop_columns(decimals))
    for name in decimals:
        found.insert(table.column_names.index(name), name, pd.arrays.ArrowExtensionArray(table.column(name)))
    return found


def as_of_table(column: pd.Series) -> Any:
    """A pandas column of one of Arrow's types as `arrow_tables.own_frame` gives it of an Arrow table, on its own index.

    >>> import pandas as pd
    >>> import pyarrow as pa
    >>> as_of_table(pd.Series(["Oslo"], dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())))).dtype == "str"
    True
    """
    arrow = pa.chunked_array(column.array.__arrow_array__())
    found = exact_frame_of(pa.table([plain_column(arrow)], names=["column"]))["column"].rename(column.name)
    found.index = column.index
    return found


def _holds_null_integers(column: pa.ChunkedArray) -> bool:
    """Whether it is one of lists with a null among integers."""
    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and pa.types.is_integer(kind.value_type) and any(chunk.flatten().null_count for chunk in column.chunks)


def dictionary_columns(file: pq.ParquetFile) -> list[str]:
    """Text columns whose values take few bytes in the file, by its footer."""
    schema, metadata = file.schema_arrow, file.metadata
    text = {field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)}
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema in text:
                sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + column.total_uncompressed_size
    return sorted(name for name, size in sizes.items() if size < DICTIONARY_BYTES * max(metadata.num_rows, 1))


def to_arrow(column: pd.Series) -> pa.Array | pa.ChunkedArray:
    """The column's Arrow form, without a copy where it has one; NaN of a NumPy-backed column is null."""
    return column.array.__arrow_array__() if isinstance(column.dtype, pd.ArrowDtype) else pa.Array.from_pandas(column)


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column in one piece; chunks of dictionaries are brought to one dictionary, which holds no null."""
    if isinstance(column, pa.ChunkedArray):
        found = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        column = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        return column.dictionary_decode()
    return column


def _indices(column: pa.DictionaryArray) -> np.ndarray:
    """int32 [N] places in the dictionary, -1 for null."""
    found = column.indices.cast(pa.int32())  # they may be unsigned, which hold no -1
    return (found if found.null_count == 0 else found.fill_null(-1)).to_numpy(zero_copy_only=False)


def is_valid(column: pa.Array) -> np.ndarray:
    """bool [N], or `coding.NO_NULLS` where no row is null."""
    if column.null_count == 0:
        return coding.NO_NULLS
    bitmap = np.frombuffer(column.buffers()[0], np.uint8)
    bits = np.unpackbits(bitmap, count=column.offset + len(column), bitorder="little")
    return bits[column.offset :].view(np.bool_)


def string_buffers(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """offsets int32 or int64 [N + 1] and data uint8 of an array of strings."""
    width = np.int64 if pa.types.is_large_string(column.type) else np.int32
    _, offsets, data = column.buffers()
    if offsets is None or len(column) == 0:
        return np.zeros(1, width), np.empty(0, np.uint8)
    found = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    return found, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def int64_values(column: pa.Array) -> np.ndarray:
    """int64 [N] of an array of integers of any width up to 64 bits signed; whatever there is where it is null."""
    kind = column.type.to_pandas_dtype()
    values = np.frombuffer(column.buffers()[1], kind) if len(column) else np.empty(0, kind)
    return values[column.offset : column.offset + len(column)].astype(np.int64, copy=False)


@dataclass(frozen=True)
class Coded:
    """A column as codes of its distinct values.

    codes: int32 [N], -1 for null. values: Arrow array [V] without nulls, each value once; a value of a dictionary that
    no row holds may be among them. slots: the hash table that they were numbered with, None where there was none.
    """

    codes: np.ndarray
    values: pa.Array
    slots: np.ndarray | None = None


def codable(kind: pa.DataType) -> bool:
    """Whether `distinct` takes columns of this type: text, signed integers, and dictionaries of these."""
    if pa.types.is_dictionary(kind):
        return codable(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_signed_integer(kind)


def is_whole(kind: pa.DataType) -> bool:
    """Whether a column of this type holds integers."""
    return pa.types.is_signed_integer(kind.value_type if pa.types.is_dictionary(kind) else kind)


def distinct(column: pa.Array) -> Coded:
    """Codes of a column for which `codable` holds, in order of first appearance (in its dictionary, if any)."""
    if pa.types.is_dictionary(column.type):
        inner = distinct(column.dictionary)
        codes = _indices(column)
        # The dictionary may hold a null, or a value twice.
        if len(inner.values) == len(column.dictionary):
            return Coded(codes, inner.values)
        return Coded(np.append(inner.codes, np.int32(-1))[codes], inner.values)
    if pa.types.is_signed_integer(column.type):
        values, valid = int64_values(column), is_valid(column)
        codes, rows, *slots = coding.code_narrow(values, valid) or coding.code_integers(values, valid)
    else:
        codes, rows, *slots = coding.code_strings(*string_buffers(column), is_valid(column))
    return Coded(codes, column.take(pa.array(rows)), slots[0] if slots else None)


def frequency_order(values: pa.Array, counts: np.ndarray) -> np.ndarray:
    """int64 positions of the values (no nulls) by descending count, ties by ascending value."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_signed_integer(values.type):
        return coding.order_integers(counts, int64_values(values))
    return coding.order_strings(counts, *string_buffers(values))


class Lookup:
    """Where each of a column's values stands among known ones.

    known: Arrow array of distinct values without nulls, of a type for which `codable` holds.
    slots: the hash table of `known`, where it was numbered by `distinct`; else one is made.
    place: int32 [V + 1], where each of `known` stands, -1 for nowhere and at the end; None for their own order.
    """

    def __init__(self, known: pa.Array, slots: np.ndarray | None = None, place: np.ndarray | None = None) -> None:
        self.known = distinct(known).values if pa.types.is_dictionary(known.type) else known
        self.whole = pa.types.is_signed_integer(self.known.type)
        self.buffers = (np.empty(0, np.int64),) * 2 if self.whole else string_buffers(self.known)
        self.place = place
        if slots is not None:
            self.slots = slots
        elif self.whole:
            self.slots = coding.code_integers(int64_values(self.known))[2]
        else:
            self.slots = coding.code_strings(*self.buffers)[2]

    def positions(self, column: pa.Array) -> np.ndarray:
        """int32 [N]: position in `known`, -1 for null and for what is not there. Of the same kind as `known`."""
        if pa.types.is_dictionary(column.type):
            found = np.append(self.positions(column.dictionary), np.int32(-1))
            return found[_indices(column)]
        if self.whole:
            found = coding.find_integers(int64_values(column), is_valid(column), self.slots)
        else:
            found = coding.find_strings(*string_buffers(column), is_valid(column), self.buffers, self.slots)
        return found if self.place is None else self.place[found]


def float_pieces(column: pd.Series) -> list[tuple[np.ndarray, Bitmap]]:
    """A float32 column, NumPy- or Arrow-backed, as pieces of its memory: the values, Arrow's validity bitmap (uint8,
    lowest bit first, empty where all are valid) and the place in it of the first value. NaN is null too."""
    if str(column.dtype) not in ("float32", "float[pyarrow]"):
        raise ValueError(f"column {column.name!r} is {column.dtype}; its memory holds no float32.")
    if not isinstance(column.dtype, pd.ArrowDtype):
        return [(np.ascontiguousarray(column.to_numpy()), ALL_VALID)]
    found = to_arrow(column)
    pieces = []
    for chunk in found.chunks if isinstance(found, pa.ChunkedArray) else [found]:
        if len(chunk):
            bitmap, data = chunk.buffers()
            values = np.frombuffer(data, np.float32)[chunk.offset : chunk.offset + len(chunk)]
            nulls = (np.frombuffer(bitmap, np.uint8), chunk.offset) if chunk.null_count else ALL_VALID
            pieces.append((values, nulls))
    return pieces
