"""Columns of lists, and the flat arrays that stand behind them."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column
from gigabatch.features.errors import DataError

ARROW_TYPES = {"string": pa.large_string(), "int64": pa.int64(), "float32": pa.float32()}
DEVICE_TYPES = {"string": ("str", "object"), "int64": ("int64",), "float32": ("float32",)}  # as cuDF calls them
WINDOW_BLOCK = 1 << 22
DEVICE_BLOCK = 1 << 26  # of a GPU, whose every call has a price
MOST_ELEMENTS = (1 << 31) - 1  # of a column of cuDF
BRACKETS = r"(?s)^\s*\[.*,.*\]\s*$"
# Three or more: "030 1234" may be one element.
WHOLE_NUMBERS = r"^\s*[0-9]+(?:(?: [0-9]+){2,}|(?:, ?[0-9]+){2,}|(?:; ?[0-9]+){2,}|(?: ?\|[0-9]+){2,})\s*$"


def list_entries(column: Column, where: str = "list column") -> tuple[Any, Any]:
    """(a column of the entries of all lists one after the other, int64 array of the entries of every row; 0 for null).

    On pandas a list may be anything that Arrow takes for one: Python lists, NumPy arrays, Arrow's own type.
    Errors (`DataError`): a column that holds no lists, or lists of different types.
    """
    try:
        return (_entries_cudf if engine_of(column).NAME == "cudf" else _entries_pandas)(column)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{where}: not a column of lists ({error}).") from error


def is_list_type(dtype: str) -> bool:
    """Whether a declared type is that of a column of lists: `list[string]`, `list[int64]` or `list[float32]`, behind
    which the text may stand that separates the elements of a list in text."""
    return dtype.startswith("list[")


def holds_lists(kind: pa.DataType) -> bool:
    """Whether a column of this type of Arrow's is one of lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def list_types(dtype: str) -> tuple[str, str]:
    """(type of the elements, separator or "") of a declared type; `ValueError` for what is none."""
    elements, bracket, separator = dtype.removeprefix("list[").partition("]")
    if not is_list_type(dtype) or not bracket or elements not in ARROW_TYPES:
        raise ValueError(f"{dtype!r} is no type of lists; known elements: {', '.join(ARROW_TYPES)}")
    return elements, separator


def require_separated(text: str, separator: str) -> None:
    """Raise `ValueError` for a list that is written as `[3, 5, 7]` or `3 5 7`: split at another separator it is one
    element, which no vocabulary knows."""
    in_brackets = re.match(BRACKETS, text) and "," in separator
    if in_brackets or (separator not in text and re.match(f"{BRACKETS}|{WHOLE_NUMBERS}", text)):
        raise ValueError(
            f"{reprlib.repr(text)} is a list in another form; the list separator {separator!r} alone stands between "
            f"elements, as in {f'3{separator}5{separator}7'!r} (features.list_separator, of a history of interactions "
            "features.history.separator)"
        )


def of_arrow(lists: pa.ChunkedArray, index: Any, name: Any) -> Any:
    """A pandas column that keeps Arrow's lists."""
    import pandas as pd
    from pandas.arrays import ArrowExtensionArray

    return pd.Series(ArrowExtensionArray(lists), index=index, name=name)


def row_of_entry(xp: Any, lengths: Any) -> Any:
    """int64: the row that each entry came from, by the number of entries of every row. `repeat` takes no array of
    counts in CuPy."""
    if xp is np:
        return np.repeat(np.arange(len(lengths)), lengths)
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return xp.searchsorted(ends, xp.arange(total), side="right")


def typed_lists(column: Column, dtype: str, cast_entries: Callable[[Any, str], Any]) -> Any:
    """A column as lists of the declared type, on pandas Arrow-backed; null stays null. Of text, empty text is an empty
    list, and an empty element a null.

    cast_entries: casts a column to a type, as `gigabatch.features.reading.sources.cast` does.
    Errors (`ValueError`): a column that holds no lists, text without a separator or of another form.
    """
    elements, separator = list_types(dtype)
    if engine_of(column).NAME == "cudf":
        return _typed_cudf(column, elements, separator, cast_entries)
    wanted = pa.large_list(ARROW_TYPES[elements])
    arrow = pa.Array.from_pandas(column)
    arrow = arrow.combine_chunks() if isinstance(arrow, pa.ChunkedArray) else arrow
    if pa.types.is_dictionary(arrow.type):
        arrow = arrow.dictionary_decode()
    if arrow.type != wanted:
        arrow = _cast_lists(column.name, arrow, wanted, elements, separator, cast_entries)
    elif str(arrow.type) != str(wanted):  # equal but for the name of its entries, which Parquet files give
        arrow = arrow.view(wanted)
    return of_arrow(pa.chunked_array([arrow]), column.index, column.name)


def _cast_lists(
    name: Any, arrow: Any, wanted: pa.DataType, elements: str, separator: str, cast_entries: Callable[[Any, str], Any]
) -> pa.Array:
    if arrow.null_count == len(arrow):  # as of other declared types: pandas makes floats of a row without its list
        return pa.nulls(len(arrow), wanted)
    if pa.types.is_string(arrow.type) or pa.types.is_large_string(arrow.type):
        _require_separator(separator)
        arrow = pc.cast(arrow, pa.large_string())
        for text in arrow.filter(pc.match_substring_regex(arrow, f"{BRACKETS}|{WHOLE_NUMBERS}")).unique().to_pylist():
            require_separated(text, separator)
        arrow = pc.split_pattern(arrow, separator)
        values = arrow.flatten()
        lengths = arrow.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        empty = (lengths == 1) & _first_is_empty(values, lengths)
        kept = np.repeat(~empty, lengths)
        values, lengths, null = values.filter(pa.array(kept)), np.where(empty, 0, lengths), arrow.is_null()
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    elif holds_lists(arrow.type):
        values, null = arrow.flatten(), arrow.is_null()
        lengths = pc.list_value_length(arrow).fill_null(0).to_numpy().astype(np.int64)
    else:
        raise ValueError(f"a column of {arrow.type} holds no lists")
    if values.null_count == len(values):
        found = pa.nulls(len(values), wanted.value_type)
    else:
        typed = cast_entries(_exact_series(values).rename(name), elements)
        found = pc.cast(pa.Array.from_pandas(typed), wanted.value_type)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, found, type=wanted, mask=null if null.true_count else None)


def _require_separator(separator: str) -> None:
    if not separator:
        raise ValueError("it holds text, and no separator is set by which a list of text is split")


def _first_is_empty(values: pa.Array, lengths: np.ndarray) -> np.ndarray:
    """bool of each row: whether its first element is the empty text."""
    if not len(values):
        return np.zeros(len(lengths), bool)
    first = np.minimum(np.cumsum(lengths) - lengths, len(values) - 1)
    return pc.equal(values, "").fill_null(False).to_numpy(zero_copy_only=False)[first]


def element_values(column: Column, dtype: str) -> Any:
    """A column of a type of `ARROW_TYPES` as one array of Arrow's, on cuDF as a column, of which `take` takes."""
    if engine_of(column).NAME == "cudf":
        return column if str(column.dtype) in DEVICE_TYPES[dtype] else column.astype(DEVICE_TYPES[dtype][0])
    values = pc.cast(pa.Array.from_pandas(column), ARROW_TYPES[dtype])
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def window_lists(
    entries: Callable[[np.ndarray, np.ndarray], Any], first: np.ndarray, stop: np.ndarray, dtype: str, like: Any
) -> Any:
    """A column of lists on the index of the frame `like`, on pandas Arrow's own, whose list n holds the entries at the
    places first[n] to stop[n] (not that one), in order.

    Parameters
    ----------
    entries
        Gives the entries as an array of T, on cuDF or as a column, from two int64 arrays [T]: the row of each and its
        place. Asked for about `WINDOW_BLOCK` (`DEVICE_BLOCK`) at once, so that what it takes beside the lists
        themselves is bounded.
    first, stop
        int64 [N], stop >= first.
    dtype
        Of the elements, a key of `ARROW_TYPES`.
    like
        A frame of N rows.

    Raises
    ------
    DataError
        On cuDF more elements together than a column holds.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> letters = np.array(["a", "b", "c"])
    >>> frame = pd.DataFrame(index=range(2))
    >>> lists = window_lists(lambda row, place: letters[place], np.array([0, 2]), np.array([2, 2]), "string", frame)
    >>> [list(row) for row in lists]
    [['a', 'b'], []]
    """
    if engine_of(like).NAME == "cudf":
        return _windows_cudf(entries, first, stop, like)
    wanted, lengths = ARROW_TYPES[dtype], stop - first
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, np.arange(WINDOW_BLOCK, ends[-1] if len(ends) else 0, WINDOW_BLOCK))
    chunks = []
    for start, end in zip(np.concatenate([[0], cuts]), np.concatenate([cuts, [len(lengths)]]), strict=True):
        own = lengths[start:end]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(own)])
        rows = np.repeat(np.arange(start, end), own)
        places = np.arange(offsets[-1]) + np.repeat(first[start:end] - offsets[:-1], own)
        chunks.append(pa.LargeListArray.from_arrays(offsets, pc.cast(pa.array(entries(rows, places)), wanted)))
    return of_arrow(pa.chunked_array(chunks, pa.large_list(wanted)), like.index, None)


def list_column(entries: Any, lengths: Any, like: Any) -> Any:
    """A column of lists on the index of the frame `like`, from arrays or columns as `list_entries` gives them.

    On pandas a row is a NumPy array, as in what `read_parquet` gives for lists; one of whole numbers and nulls holds
    Python's numbers and None, since a float would round what is beyond 2^53.
    Errors (`DataError`): on cuDF entries that are neither text nor numbers, or more than a column holds.
    """
    return (_column_cudf if engine_of(like).NAME == "cudf" else _column_pandas)(entries, lengths, like)


def _entries_pandas(column: Column) -> tuple[Any, Any]:
    import pandas as pd  # only here, since a row is encoded without it (features/encoding/online.py)

    lists = pa.Array.from_pandas(column)
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    if lists.null_count == len(lists):
        return pd.Series([], dtype="str", name=column.name), np.zeros(len(column), np.int64)
    if not holds_lists(lists.type):
        raise ValueError(f"column {column.name!r} is {column.dtype} and holds no lists")
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return _exact_series(lists.flatten()).rename(column.name), lengths


def _exact_series(values: pa.Array) -> Any:
    """As a pandas column, in which integers and flags beside nulls stay what they are."""
    from gigabatch.features.engines.arrow_columns import MASKED

    return values.to_pandas(types_mapper=MASKED.get)


def _column_pandas(entries: Any, lengths: Any, like: Any) -> Any:
    import pandas as pd

    offsets, values = np.concatenate([[0], np.cumsum(lengths)]), pa.array(entries)
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values  # text of pandas may be
    exact = values.fill_null(0) if values.null_count and pa.types.is_integer(values.type) else values
    rows = pa.LargeListArray.from_arrays(offsets, exact).to_pandas().to_numpy(copy=True)
    if exact is not values:
        places = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        for row in np.unique(np.searchsorted(offsets, places, side="right") - 1):
            rows[row] = np.array(values[offsets[row] : offsets[row + 1]].to_pylist(), dtype=object)
    return pd.Series(rows, index=like.index, dtype=object)


def _entries_cudf(column: Column) -> tuple[Any, Any]:
    import cudf

    engine = engine_of(column)
    if not isinstance(column.dtype, cudf.ListDtype):
        if bool(column.isna().all()):  # a file's column of nulls alone is of whatever type
            nothing = engine.frames.Series([], dtype="str", name=column.name)
            return nothing, engine.arrays.zeros(len(column), dtype="int64")
        raise ValueError(f"column {column.name!r} is {column.dtype} and holds no lists")
    lengths = engine.array(column.list.len(), fill=0).astype("int64")
    there = column[lengths > 0]  # explode makes a null of a list without entries
    return there.explode().reset_index(drop=True), lengths


def _typed_cudf(column: Column, elements: str, separator: str, cast_entries: Callable[[Any, str], Any]) -> Any:
    import cudf

    engine = engine_of(column)
    if str(column.dtype) == "category":
        column = column.astype(column.cat.categories.dtype)
    are_lists = isinstance(column.dtype, cudf.ListDtype)
    if are_lists and str(column.dtype.element_type) in DEVICE_TYPES[elements]:
        return column
    if are_lists or bool(column.isna().all()):
        entries, lengths = _entries_cudf(column)
    elif str(column.dtype) in DEVICE_TYPES["string"]:
        _require_separator(separator)
        entries, lengths = _split_cudf(column, separator)
    else:
        raise ValueError(f"a column of {column.dtype} holds no lists")
    if bool(entries.notna().any()):
        found = cast_entries(entries.rename(column.name), elements)
    else:
        null = engine.frames.Series([None], dtype=DEVICE_TYPES[elements][0])
        found = null.take(engine.arrays.zeros(len(entries), dtype="int64"))
    typed = _column_cudf(found, lengths, column, engine.array(column.notna()))
    return typed.rename(column.name)


def _split_cudf(column: Column, separator: str) -> tuple[Any, Any]:
    """The elements of lists in text, null where they are empty, and how many each row has; 0 for empty text."""
    engine = engine_of(column)
    xp = engine.arrays
    # What may be of another form is looked at by Python, whose patterns libcudf has not all.
    odd = column.str.match(r"^\s*[0-9]+[ ,;|]") & ~column.str.contains(separator, regex=False)
    odd = odd | column.str.match(r"^\s*\[")
    texts = column[engine.array(odd.fillna(False).astype("bool"))].unique()
    for text in engine.to_pandas(texts.to_frame("text"))["text"].tolist() if len(texts) else []:
        require_separated(text, separator)
    entries, lengths = _entries_cudf(column.str.split(separator, regex=False))
    if not len(entries):
        return entries, lengths
    blank = engine.array(entries == "")
    empty = (lengths == 1) & blank[xp.clip(xp.cumsum(lengths) - lengths, 0, len(entries) - 1)]
    kept = ~empty[row_of_entry(xp, lengths)]
    entries = entries.where(engine.frames.Series(~blank))
    return entries[kept].reset_index(drop=True), xp.where(empty, 0, lengths)


def _windows_cudf(entries: Callable[[Any, Any], Any], first: Any, stop: Any, like: Any) -> Any:
    engine = engine_of(like)
    xp, lengths = engine.arrays, stop - first
    ends = xp.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    _require_fit(total)
    parts = []
    for start in range(0, max(total, 1), DEVICE_BLOCK):  # one block at least, which says of what type the entries are
        element = xp.arange(start, min(start + DEVICE_BLOCK, total))
        rows = xp.searchsorted(ends, element, side="right")
        parts.append(entries(rows, element - (ends - lengths)[rows] + first[rows]))
    if len(parts) == 1:
        found = parts[0]
    elif isinstance(parts[0], engine.frames.Series):
        found = engine.frames.concat(parts, ignore_index=True)
    else:
        found = xp.concatenate(parts)
    return _column_cudf(found, lengths, like)


def _require_fit(total: int) -> None:
    if total > MOST_ELEMENTS:
        raise DataError(
            f"lists of {total:,} elements together: on a GPU a column holds {MOST_ELEMENTS:,} at most. Keep fewer "
            "elements of each list, or set engine: pandas."
        )


def _require_plain(entries: Any) -> None:
    """Raise `DataError` for a column of cuDF that is neither text nor numbers or flags."""
    if getattr(entries.dtype, "kind", "O") not in "iufb" and str(entries.dtype) not in DEVICE_TYPES["string"]:
        raise DataError(
            f"column {entries.name!r}: on a GPU a column of lists is made of text, numbers or flags, and these hold "
            f"{entries.dtype}. Cast them, or set engine: pandas."
        )


def _column_cudf(entries: Any, lengths: Any, like: Any, known: Any = None) -> Any:
    """known: bool array of the rows whose list is not null; None for all."""
    import cudf
    import cupy
    import pylibcudf as plc

    _require_fit(len(entries))
    mask, nulls = None, 0
    if known is not None and not bool(known.all()):
        mask, nulls = plc.transform.bools_to_mask(plc.Column.from_cuda_array_interface(known))
    offsets = cupy.zeros(len(lengths) + 1, dtype="int32")
    offsets[1:] = cupy.cumsum(lengths)
    children = [plc.Column.from_cuda_array_interface(offsets), _memory_of(entries)]
    column = cudf.Series.from_pylibcudf(_lists_of(children, len(lengths), mask, nulls))
    column.index = like.index
    return column


def _memory_of(entries: Any) -> Any:
    """A column or array as pylibcudf has it, nulls with it."""
    import cudf
    import pylibcudf as plc

    if isinstance(entries, cudf.Series):
        _require_plain(entries)
        memory, _ = entries.to_pylibcudf()
        return memory.copy() if memory.offset() else memory  # a part of a column begins inside its memory
    return plc.Column.from_cuda_array_interface(entries)


def _lists_of(children: Any, size: int, mask: Any, nulls: int) -> Any:
    """pylibcudf's column of `size` lists. children: int32 offsets, one more than there are lists, and the entries.

    mask: bits of the rows that are not null, of which there are `nulls`; None for none.
    """
    import pylibcudf as plc

    return plc.Column(plc.DataType(plc.TypeId.LIST), size, None, mask, nulls, 0, children)
