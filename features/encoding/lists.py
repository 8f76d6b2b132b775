"""List columns of the preprocessor: what of each row's list is not null, in order, and its ids as flat arrays."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from gigabatch.features.columns.lists import list_entries, row_of_entry
from gigabatch.features.columns.numbers import float_values
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.tally import tally
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.refit.statistics import CategoryStatistics, FitCategoryStatistics
from gigabatch.features.schema import ListColumn, Schema
from gigabatch.features.vocabulary.vocabulary import Vocabulary

WHERE = "Preprocessor"


class PackedList(NamedTuple):
    """The lists of N rows with T elements together, as NumPy arrays.

    ids: int32 [T], those of row 0 first; offsets: int64 [N+1], row n has ids[offsets[n] : offsets[n + 1]]; weights:
    float32 [T], or None.
    """

    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None


class KnownEntries(NamedTuple):
    """entries: a column [T] without nulls; lengths: int64 [N]; weights: float32 [T], or None; arrays of the engine."""

    entries: Any
    lengths: Any
    weights: Any


def require_list_weights(frame: Any, column: ListColumn, where: str, rows: Any) -> None:
    """Raise `DataError` where weights of a list column cannot be, as `known_entries` does, with the row's number.

    where: the input, which the error begins with. rows: [N] ints, the number of each row in it.
    """
    known_entries(frame, column, where=where, rows=rows)


def known_entries(
    frame: Any, column: ListColumn, weights: bool = True, where: str = WHERE, rows: Any = None
) -> KnownEntries:
    """The elements of each row's list that are not null, the last `max_length` of them.

    frame: has the column's `columns`, of the types of `ListColumn.dtypes`. weights: whether to take them too. where,
    rows: what an error begins with, and the numbers by which it names rows; None for their places in the frame.
    Errors (`DataError`): weights of another length than their list; a weight of an element that is null, NaN or
    infinite.
    """
    engine = engine_of(frame)
    xp = engine.arrays
    entries, lengths = list_entries(frame[column.name], f"{where}, list column {column.name!r}")
    values = None
    if column.weights is not None and weights:
        values = _weights(frame, column, lengths, where, rows)
    known = engine.array(entries.notna())
    if not bool(known.all()):
        rows_of = row_of_entry(xp, lengths)[known]
        entries, lengths = entries[known], tally(xp, rows_of, len(lengths)).astype("int64")
        values = None if values is None else values[known]
    if column.max_length is not None and len(lengths) and int(lengths.max()) > column.max_length:
        kept = xp.cumsum(lengths)[row_of_entry(xp, lengths)] - xp.arange(len(entries)) <= column.max_length
        entries, lengths = entries[kept], xp.minimum(lengths, column.max_length)
        values = None if values is None else values[kept]
    if values is not None and not bool(xp.isfinite(values).all()):
        place = int(xp.flatnonzero(~xp.isfinite(values))[0])
        first_bad = int(row_of_entry(xp, lengths)[place])
        number = first_bad if rows is None else int(rows[first_bad])
        raise DataError(
            f"{where}: the weights {column.weights!r} of list column {column.name!r} hold a null, NaN or infinity in "
            f"row {number}. Give every element a finite weight, or take the element out."
        )
    return KnownEntries(entries.reset_index(drop=True), lengths, values)


def _weights(frame: Any, column: ListColumn, lengths: Any, where: str, rows: Any) -> Any:
    found, own = list_entries(frame[column.weights], f"{where}, weights {column.weights!r}")
    other = own != lengths
    if bool(other.any()):
        row = int(other.argmax())
        raise DataError(
            f"{where}: row {row if rows is None else int(rows[row])} has {int(lengths[row])} elements in list column "
            f"{column.name!r} and {int(own[row])} weights in {column.weights!r}. Every element has one weight."
        )
    return float_values(found, f"{where}, weights").astype("float32")


def packed_list(frame: Any, column: ListColumn, vocabulary: Vocabulary) -> PackedList:
    """Ids of the elements of each row that are not null; `frame` as of `known_entries`."""
    entries, lengths, weights = known_entries(frame, column)
    to_host = engine_of(frame).to_host
    ids = to_host(vocabulary.encode(entries)).astype(np.int32) if len(entries) else np.zeros(0, np.int32)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(to_host(lengths))])
    return PackedList(ids, offsets, None if weights is None else to_host(weights))


class FitListStatistics(FitCategoryStatistics):
    """`CategoryStatistics` of a list column's elements that are not null, each of which counts as a row."""

    def __init__(self, column: ListColumn) -> None:
        self.column, self.list_column = column.name, column

    def partial(self, frame: Any) -> tuple[int, Any]:
        entries = known_entries(frame, self.list_column, weights=False).entries
        return len(entries), Categorify(self.column).partial(entries.to_frame(self.column))


class Counts(NamedTuple):
    """A column before its vocabulary is made. rows: of the column, or elements of its lists; counted: columns value and
    count."""

    rows: int
    counted: Any

    def statistics(self) -> CategoryStatistics:
        return CategoryStatistics.of_counts(self.rows, self.counted)


class FitListCounts(FitListStatistics):
    """Counts of a list column's elements that are not null."""

    def finish(self, partial: tuple[int, Any]) -> Counts:  # type: ignore[override]
        return Counts(*partial)


class FitCounts(FitCategoryStatistics):
    """Counts of a categorical column whose vocabulary lists share."""

    def finish(self, partial: tuple[int, Any]) -> Counts:  # type: ignore[override]
        return Counts(*partial)


def shared_vocabulary(owner: str, counts: list[Counts], settings: PreprocessorSettings) -> Vocabulary:
    """The vocabulary of a column and of the lists that share it, by the counts of all of them together."""
    operator = settings.category(owner)
    vocabulary = operator.finish(reduce(operator.merge, [item.counted for item in counts]))
    assert isinstance(vocabulary, Vocabulary), "one column, not a combination"
    return vocabulary


def list_owners(schema: Schema) -> dict[str, str]:
    """By the name of a list column, the column whose vocabulary it takes."""
    return {column.name: column.owner for column in schema.lists}
