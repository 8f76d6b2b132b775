"""Arrow's younger types as those that pandas and the loops here know, wherever a table enters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def usual_types(table: pa.Table) -> pa.Table:
    """The table with every column as `usual_column` makes it; the same one where none is of such a type.

    Examples
    --------
    >>> import pyarrow as pa
    >>> usual_types(pa.table({"city": pa.array(["Oslo"]).cast(pa.string_view())})).schema.types
    [DataType(large_string)]
    """
    for place, column in enumerate(table.columns):
        if (found := usual_column(column)) is not column:
            table = table.set_column(place, table.schema.field(place).with_type(found.type), found)
    return table


def usual_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text views as `large_string`, also within dictionaries and lists, and runs as their values; others as they are.

    Of string views pandas knows no values and Arrow no dictionaries, of runs Arrow takes no rows.
    """
    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        chunks = [_repeated(chunk) for chunk in column.chunks]
        return usual_column(pa.chunked_array(chunks) if chunks else pa.chunked_array([], kind.value_type))
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        usual = pa.dictionary(kind.index_type, pa.large_string(), kind.ordered)
        chunks = [
            pa.DictionaryArray.from_arrays(
                chunk.indices, chunk.dictionary.cast(pa.large_string()), ordered=kind.ordered
            )
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, usual)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_string_view(kind.value_type):
        usual = pa.list_(pa.large_string(), kind.list_size)
        chunks = [_of_fixed_size(chunk, usual) for chunk in column.chunks]
        return pa.chunked_array(chunks, usual)
    if (usual := _without_views(kind)) != kind:
        return column.cast(usual)
    return column


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type of lists, of lists of lists and so on, whose text is no view; others as they are."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return kind
    inner = kind.value_type
    usual = pa.large_string() if pa.types.is_string_view(inner) else _without_views(inner)
    return kind if usual == inner else pa.large_list(usual)


def _of_fixed_size(lists: pa.FixedSizeListArray, usual: pa.DataType) -> pa.Array:
    """Arrow itself casts them no more where one is null."""
    size = usual.list_size
    values = lists.values.slice(lists.offset * size, len(lists) * size)
    return pa.FixedSizeListArray.from_arrays(values.cast(usual.value_type), type=usual, mask=lists.is_null())


def _repeated(runs: pa.RunEndEncodedArray) -> pa.Array:
    """The values [N] of runs; Arrow's own function knows neither dictionaries nor views."""
    values = usual_column(pa.chunked_array([runs.values])).combine_chunks()
    values = values.chunk(0) if isinstance(values, pa.ChunkedArray) else values
    rows = np.arange(runs.offset, runs.offset + len(runs))
    return values.take(pa.array(np.searchsorted(runs.run_ends.to_numpy(), rows, side="right")))


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As of `usual_column`, and without dictionaries, short strings, decimals and halves, which steps do not take."""
    column = usual_column(column)
    kind = column.type
    if pa.types.is_dictionary(kind):  # by hand: Arrow has no cast of the dictionaries that Polars makes
        value_type = pa.large_string() if is_text(kind.value_type) else kind.value_type
        chunks = [chunk.dictionary.cast(value_type).take(chunk.indices) for chunk in column.chunks]
        column = pa.chunked_array(chunks, value_type)
        kind = column.type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_text(kind.value_type):
        return column.cast(pa.large_list(pa.large_string()))
    if is_text(kind):
        return column.cast(pa.large_string())
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    return column.cast(pa.float32()) if pa.types.is_float16(kind) else column


def is_clock(kind: pa.DataType) -> bool:
    """Whether a column of this type holds durations or times of day, which are read by way of their text."""
    return pa.types.is_duration(kind) or pa.types.is_time(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
