"""Primitives that differ by data frame library, on cuDF, CuPy and Triton kernels.

What `features/engines/cudf_plain.py` does by calls of the two libraries alone is done here in fewer passes, with fewer
temporaries and reads back, to the same values: statistics, counts and rows of all columns by one kernel each, and
categories by 64-bit keys that are sorted, where the plain engine factorises and joins text. Until a GPU has confirmed
it, `engine: cudf_plain` is the other choice. Docstrings of `features/engines/pandas.py` apply here.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cudf
import cupy
import numpy as np
import torch

from gigabatch.features.engines import cudf_plain
from gigabatch.features.engines.cudf_plain import (
    array,
    as_typed,
    decoded,
    direct_counts,
    float_text,
    frame,
    from_pandas,
    hash64,
    map_columns,
    parquet_columns,
    places_in_groups,
    positions_and_nulls,
    ranks_in_groups,
    read_columns,
    read_csv,
    read_parquet,
    series,
    sort_counts,
    stable_order,
    sum_counts,
    text,
    to_host,
    to_pandas,
    value_counts,
    with_nulls,
    write_parquet,
    write_passing,
)
from gigabatch.features.engines.frame import CodedColumn, FloatWord, IdWord, require_every_word
from gigabatch.features.engines.row_loops_cuda import CODED, COPIED, FLAG, FLOAT, INFINITE, DeviceWord, pack_words
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.dense_counts import DenseCounts
from gigabatch.features.exact.float_order import InfinityFound
from gigabatch.features.exact.loops_cuda import PATTERNS, DeviceColumn, add_leading_moments32, add_rest_counts32
from gigabatch.features.exact.quantiles import LEADING_BITS, RadixHistogram, Search

__all__ = [
    "array",
    "as_typed",
    "coded",
    "codes",
    "column_count",
    "column_statistics",
    "counts_together",
    "decoded",
    "direct_counts",
    "float_text",
    "frame",
    "from_pandas",
    "hash64",
    "lookup",
    "map_columns",
    "pack",
    "parquet_columns",
    "places_in_groups",
    "positions_and_nulls",
    "positions_in",
    "ranks_in_groups",
    "read_columns",
    "read_csv",
    "read_parquet",
    "series",
    "sort_counts",
    "stable_order",
    "statistics_together",
    "sum_counts",
    "text",
    "to_host",
    "to_pandas",
    "value_counts",
    "with_nulls",
    "write_parquet",
    "write_passing",
]

NAME = "cudf"
frames = cudf
arrays = cupy

INFINITIES = [0x7F80, 0xFF80]  # upper 16 bits of infinity, which some NaN share
TOGETHER_BINS = 2048  # that one launch looks into: tables of half a gigabyte on the device
KEPT_BINS = 8 * TOGETHER_BINS  # whose tables stay there until a pass ends; what others hold goes to the host


def codes(column: cudf.Series) -> cupy.ndarray:
    found = _numbered(column)
    if found is None:
        return cudf_plain.codes(column)
    number = cupy.full(len(found.first) + 1, -1, dtype="int64")  # by first appearance, as other engines; last: of null
    number[cupy.argsort(found.first)] = cupy.arange(len(found.first))
    return number[found.codes]


def coded(column: cudf.Series) -> CodedColumn:
    found = _numbered(column)
    if found is None:
        return cudf_plain.coded(column)
    frame = cudf.DataFrame({"value": found.values})
    frame["count"] = found.counts
    counted = frame.sort_values(["count", "value"], ascending=[False, True])
    order = cupy.asarray(counted.index.values)
    return CodedColumn(found.codes, counted.reset_index(drop=True), order, len(frame))


def lookup(vocabulary: cudf.Series) -> Lookup | None:
    """None for values that have no keys, and for text of which two values have one hash: those are found by a join."""
    keys = _keys(vocabulary)
    if keys is None:
        return None
    place = cupy.argsort(keys)
    keys, text = keys[place], _is_text(vocabulary)
    if text and bool((keys[1:] == keys[:-1]).any()):
        _warn_of_collision(vocabulary, "its values are looked up by a join")
        return None
    return Lookup(keys, place, vocabulary.reset_index(drop=True), text)


def positions_in(column: cudf.Series, vocabulary: cudf.Series, table: Any = None) -> cupy.ndarray:
    if isinstance(column.dtype, cudf.CategoricalDtype):
        column = column.astype(vocabulary.dtype)
    table = lookup(vocabulary) if table is None else table
    keys = _keys(column)
    if table is None or keys is None or table.text != _is_text(column):
        return cudf_plain.positions_in(column, vocabulary)
    if len(vocabulary) == 0 or len(column) == 0:
        return cupy.full(len(column), -1, dtype="int64")
    near = cupy.minimum(cupy.searchsorted(table.keys, keys), len(table.keys) - 1)
    found = table.keys[near] == keys
    known = _known(column)
    found = found if known is None else found & known
    positions = cupy.where(found, table.place[near], -1)
    # The vocabulary's hashes differ, so that a row with one of them holds this very value or one that is not there.
    return cupy.where(_differ(column, table.values, positions), -1, positions) if table.text else positions


def column_statistics(column: cudf.Series) -> ColumnStatistics:
    return _statistics(column, _moments([column])[0])


def statistics_together(columns: Sequence[cudf.Series]) -> list[ColumnStatistics]:
    found = []
    for column, moments in zip(columns, _moments(columns), strict=True):
        try:
            found.append(_statistics(column, moments))
        except InfinityFound:
            raise DataError.infinity(column.name) from None
    return found


def column_count(column: cudf.Series, search: Search) -> RadixHistogram | DenseCounts:
    return counts_together([(column, search)])[0]


def counts_together(asked: Sequence[tuple[cudf.Series, Search]]) -> list[RadixHistogram | DenseCounts]:
    patterns = [search.leading_patterns() for _, search in asked]
    found: dict[int, RadixHistogram | DenseCounts] = {}
    kept = 0

    def count(places: Sequence[int]) -> None:
        nonlocal kept  # by what is asked alone, which is the same of each partition
        kept += sum(len(patterns[place]) for place in places)
        counts = _rest_counts(asked, patterns, places)
        found.update(counts if kept <= KEPT_BINS else {place: one.histogram() for place, one in counts.items()})

    launch: list[int] = []  # the columns that the kernel counts next
    for place, (column, search) in enumerate(asked):
        # Looked into once more only where a first pass counted fewer values than it might.
        known = search.kind == "float32" and search.bits == LEADING_BITS["float32"]
        if not known or len(patterns[place]) > TOGETHER_BINS:
            found[place] = cudf_plain.column_count(column, search)
            continue
        if launch and sum(len(patterns[other]) for other in (*launch, place)) > TOGETHER_BINS:
            count(launch)
            launch = []
        launch = [*launch, place]
    if launch:
        count(launch)
    return [found[place] for place in range(len(asked))]


def _rest_counts(
    asked: Sequence[tuple[cudf.Series, Search]], patterns: Sequence[np.ndarray], places: Sequence[int]
) -> dict[int, DenseCounts]:
    """The counts of the columns at these places, by one launch; they stay on the device."""
    placed = [_placed(asked[place][0]) for place in places]
    sizes = [len(patterns[place]) for place in places]
    rows, ends = np.full((len(places), PATTERNS), -1, np.int32), np.cumsum(sizes)
    for number, (place, end, size) in enumerate(zip(places, ends.tolist(), sizes, strict=True)):
        rows[number, patterns[place]] = np.arange(end - size, end)
    with _in_order():
        tables = torch.from_dlpack(cupy.zeros((int(ends[-1]), PATTERNS), dtype="int32"))
        add_rest_counts32([column.at for column in placed], torch.from_numpy(rows).to(tables.device), tables)
    return {
        place: DenseCounts(patterns[place], table, len(asked[place][0]))
        for place, table in zip(places, tables.split(sizes), strict=True)
    }


def pack(num_rows: int, num_words: int, ids: Sequence[IdWord], floats: Sequence[FloatWord]) -> cupy.ndarray:
    require_every_word(num_words, ids, floats)
    words: dict[int, DeviceWord] = {}
    held: list[Any] = []  # what the kernel reads
    for word in ids:
        values = cupy.ascontiguousarray(word.ids)
        table = None if word.table is None else cupy.ascontiguousarray(word.table)
        held += [values, table]
        at = DeviceColumn(values.data.ptr, 0, 0, num_rows)
        words[word.place] = (
            DeviceWord(COPIED, at) if table is None else DeviceWord(CODED, at, table.data.ptr, len(table) - 1)
        )
    for item in floats:
        column = _placed(item.column)
        held.append(column)
        words[item.place] = DeviceWord(FLOAT, column.at, fill=item.fill, mean=item.mean, std=item.std, clip=item.clip)
        if item.flag_place >= 0:
            words[item.flag_place] = DeviceWord(FLAG, column.at)
    out, faults = cupy.empty((num_rows, num_words), dtype="int32"), cupy.zeros(num_words, dtype="int32")
    with _in_order():
        pack_words([words[place] for place in range(num_words)], torch.from_dlpack(out), torch.from_dlpack(faults))
    found = cupy.asnumpy(faults)
    for item in floats:
        if found[item.place]:
            raise item.infinity(scaled=found[item.place] < INFINITE)
    return out


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
    """What torch and Triton launch within is ordered with CuPy's and cuDF's work, whatever torch's current stream is.

    That work is on the legacy default stream, for which torch's other streams do not wait; the current one waits at
    the end.
    """
    if not torch.cuda.is_available():  # a stand-in
        yield
        return
    current, legacy = torch.cuda.current_stream(), torch.cuda.default_stream()
    with torch.cuda.stream(legacy):
        yield
    if current != legacy:
        current.wait_stream(legacy)


@dataclass(frozen=True)
class Lookup:
    """A vocabulary by the keys of its values.

    keys: int64 [V], ascending. place: int64 [V], where each one's value stands. values: the vocabulary. text: whether
    keys are hashes.
    """

    keys: cupy.ndarray
    place: cupy.ndarray
    values: cudf.Series
    text: bool


@dataclass(frozen=True)
class _Numbered:
    """codes: int32 [N], -1 for null. first: row, values: a column of each value once, counts: int64, by code."""

    codes: cupy.ndarray
    first: cupy.ndarray
    values: cudf.Series
    counts: cupy.ndarray


def _numbered(column: cudf.Series) -> _Numbered | None:
    """None for a column that has no keys, and for text of which two values have one hash."""
    keys, known = _keys(column), _known(column)
    if keys is None:
        return None
    rows = None if known is None else cupy.flatnonzero(known)
    _, first, codes, counts = cupy.unique(
        keys if rows is None else keys[rows], return_index=True, return_inverse=True, return_counts=True
    )
    codes = codes.astype("int32")
    if rows is not None:
        first, everywhere = rows[first], cupy.full(len(column), -1, dtype="int32")
        everywhere[rows] = codes
        codes = everywhere
    values = column.take(first).reset_index(drop=True)
    if _is_text(column) and bool(_differ(column, values, codes).any()):
        _warn_of_collision(column, "it is factorised")
        return None
    return _Numbered(codes, first, values, counts.astype("int64"))


def _is_text(column: cudf.Series) -> bool:
    return column.dtype.kind == "O" and not isinstance(column.dtype, cudf.CategoricalDtype | cudf.ListDtype)


def _keys(column: cudf.Series) -> cupy.ndarray | None:
    """int64 [N], equal for equal values: integers themselves, text's XXH64; whatever there is where it is null."""
    if _is_text(column):
        return column.hash_values(method="xxhash64").to_cupy().view("int64")
    if column.dtype.kind == "i" or (column.dtype.kind == "u" and column.dtype.itemsize < 8):
        return (column.fillna(0) if column.null_count else column).astype("int64").to_cupy()
    return None


def _known(column: cudf.Series) -> cupy.ndarray | None:
    """bool [N], or None where no row is null."""
    return column.notna().to_cupy() if column.null_count else None


def _differ(column: cudf.Series, values: cudf.Series, places: cupy.ndarray) -> cupy.ndarray:
    """bool [N]: whether a row holds another value than `values` at its place; False where that is negative."""
    if len(values) == 0:
        return cupy.zeros(len(column), dtype="bool")
    expected = values.take(cupy.maximum(places, 0)).reset_index(drop=True)
    other = (column.reset_index(drop=True) != expected).fillna(True)
    return array(other) & (places >= 0)


def _warn_of_collision(column: cudf.Series, what: str) -> None:
    warnings.warn(f"column {column.name!r}: two of its values have one 64-bit hash; {what} instead.", stacklevel=3)


@dataclass(frozen=True)
class _Placed:
    """A float32 column and where it lies. column: keeps that memory."""

    column: Any
    at: DeviceColumn


def _placed(column: cudf.Series) -> _Placed:
    """Without a copy of a column that is float32 already; nulls stay in its bitmap."""
    if str(column.dtype) != "float32":
        raise ValueError(f"column {column.name!r} is {column.dtype}; its memory holds no float32.")
    memory, _ = column.to_pylibcudf()
    data, mask, offset = memory.data(), memory.null_mask(), memory.offset()
    values = data.ptr + 4 * offset if memory.size() else 0  # an empty column may have no buffer at all
    return _Placed(memory, DeviceColumn(values, mask.ptr if memory.null_count() else 0, offset, memory.size()))


def _moments(columns: Sequence[cudf.Series]) -> np.ndarray:
    """int64 [C, 65536, 3] of `loops.leading_moments32`, by one launch and one read."""
    placed = [_placed(column) for column in columns]
    found = cupy.zeros((len(columns), PATTERNS, 3), dtype="int64")
    with _in_order():
        add_leading_moments32([column.at for column in placed], torch.from_dlpack(found))
    return cupy.asnumpy(found)


def _statistics(column: cudf.Series, moments: np.ndarray) -> ColumnStatistics:
    if moments[INFINITIES, 0].any() and bool(cupy.isinf(column.dropna().to_cupy()).any()):
        raise InfinityFound("the values hold an infinity; remove it first.")
    return ColumnStatistics.of_moments(len(column), moments)
