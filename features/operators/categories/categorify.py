"""Categorify: categories to ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigabatch.features.columns.categories import FLAG, FLOAT, TEXT, WHOLE, canonicalize, category_kind, same_kind
from gigabatch.features.columns.lists import list_column, list_entries
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.lists.explode_lists import split_lists
from gigabatch.features.reading.sources import cast
from gigabatch.features.reading.tables import plain_type
from gigabatch.features.setting_checks import require_counts
from gigabatch.features.vocabulary.combined import (
    CombinedVocabulary,
    by_frequency,
    count_combinations,
    merge_combinations,
)
from gigabatch.features.vocabulary.vocabulary import IdLayout, Vocabulary

MAX_CARDINALITY = 200_000_000  # of int64 ids: some 5 GB while they are counted and sorted


class Categorify(FittedOperator):
    """Number categories by descending frequency.

    Ids follow the layout of `gigabatch.features.vocabulary.vocabulary`: 0 padding, 1 null, 2 unseen, then the known
    values, ties by ascending value. What counts as the same value, and which types there are: see
    `gigabatch.features.columns.categories`. There are four forms:

    - `column`: its int32 ids, in `output` or in its place.
    - `column` of lists (`lists`, or text with a `separator`): a list of ids a row. A null row gives an empty list; a
      null in a list, and an empty entry of delimited text, is the null id. `entries` gives the same as flat arrays.
    - `shared`, several columns: ids of each, in its place, from one vocabulary; their values are counted together.
    - `combined`, several columns that are one category together, in `output`: null where all of them are null; a null
      in some is a value of its own (see `CombinedVocabulary`).

    Parameters
    ----------
    column, shared, combined
        The column, or two or more columns; exactly one of the three is given.
    min_count
        Values counted fewer times at fit encode as unseen.
    output
        Name of the new column; needed with `combined`, not taken with `shared`.
    lists
        Whether the column holds lists.
    separator
        What stands between two entries of delimited text.
    max_size
        How many values are kept; all but the most frequent ones encode as unseen.
    oov_buckets
        Ids 2 to 2 + oov_buckets - 1 share the unseen values by XXH64 of the value (as `HashBucket`; of a combination as
        `HashedCross`) modulo `oov_buckets`; the vocabulary follows after them. With two or more, unseen floats with a
        fraction are an error, as there.
    vocabulary
        The values in id order instead of a fit, or the path of a file of them: Parquet or CSV with a column `value`,
        one of the column's own name, or only one; or text with one value a line. Blank lines are passed over. Fields
        and lines are taken as they stand and become what the column holds: 01234 is a number only where the column is
        one.
    max_cardinality
        More distinct values at fit are an error, because counting them would exhaust memory.

    Raises
    ------
    DataError
        Settings that do not go together; a column of a type that holds no categories, or of another kind than at fit;
        too many distinct values; a vocabulary that cannot be read, is empty, or holds a null or a value twice.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Categorify
    >>> operator = Categorify("city")
    >>> state = operator.fit([pd.DataFrame({"city": ["Bonn", "Oslo", "Oslo"]})])
    >>> operator.apply(pd.DataFrame({"city": ["Oslo", "Bonn", "Rome", None]}), state)["city"].tolist()
    [3, 4, 2, 1]
    """

    reads = ("column", "shared", "combined")

    files = ("vocabulary",)

    def __init__(
        self,
        column: str | None = None,
        min_count: int = 1,
        *,
        shared: Sequence[str] | None = None,
        combined: Sequence[str] | None = None,
        output: str | None = None,
        lists: bool = False,
        separator: str | None = None,
        max_size: int | None = None,
        oov_buckets: int = 1,
        vocabulary: Sequence[str | int | float | bool] | str | None = None,
        max_cardinality: int = MAX_CARDINALITY,
    ) -> None:
        self.column, self.min_count, self.output = column, min_count, output
        self.shared, self.combined = _names(shared), _names(combined)
        self.lists, self.separator, self.max_size, self.oov_buckets = lists, separator, max_size, oov_buckets
        self.vocabulary = vocabulary if vocabulary is None or isinstance(vocabulary, str) else tuple(vocabulary)
        self.max_cardinality = max_cardinality
        self._check()

    def _check(self) -> None:
        given = [item for item in (self.column, self.shared, self.combined) if item is not None]
        if len(given) != 1:
            raise DataError("Categorify: give one of column, shared and combined.")
        (self._where,) = (f"Categorify of {item!r}" for item in given)
        if not isinstance(given[0], str) and not 1 < len(given[0]) == len(set(given[0])):
            raise DataError(f"{self._where}: name two or more different columns.")
        counts = ("min_count", "max_size", "oov_buckets", "max_cardinality")
        require_counts(self._where, **{name: getattr(self, name) for name in counts})
        if (self.combined is not None and self.output is None) or (self.shared is not None and self.output is not None):
            raise DataError(f"{self._where}: combined columns need an output, shared ones are replaced and have none.")
        if self.combined is not None and (self.is_list or self.vocabulary is not None or "count" in self.combined):
            raise DataError(
                f"{self._where}: combined columns take no lists, no given vocabulary and no column named 'count'."
            )
        if self.vocabulary is not None and (self.min_count, self.max_size) != (1, None):
            raise DataError(f"{self._where}: a given vocabulary is taken whole; leave out min_count and max_size.")
        if self.separator == "":
            raise DataError(f"{self._where}: the separator must not be empty.")

    @property
    def is_list(self) -> bool:
        """Whether a row holds several values."""
        return self.lists or self.separator is not None

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.inputs if self.output is None else (self.output,)

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.outputs

    def partial(self, frame: Frame) -> Any:
        """Columns value and count of this partition; of a combination its columns and count. With a given vocabulary
        only the engine's name and the kind of the values."""
        if self.vocabulary is not None:
            kinds = [self._kind(frame[name]) for name in self.inputs]
            return engine_of(frame).NAME, next(filter(None, kinds), None)
        if self.combined is not None:
            return self._guarded(count_combinations(frame, list(self.inputs), self._where))
        parts = [self._counted(frame[name]) for name in self.inputs]
        while len(parts) > 1:
            parts.append(self.merge(parts.pop(), parts.pop()))
        return self._guarded(parts[0])

    def _kind(self, column: Column) -> str | None:
        entries = self._entries(column)[0] if self.is_list else column
        return canonicalize(entries, self._where).kind or (
            None if str(entries.dtype) == "object" else category_kind(entries)
        )

    def _counted(self, column: Column) -> Any:
        engine = engine_of(column)
        direct = None if self.is_list else engine.direct_counts(column)
        if direct is not None:
            return direct
        canonical = canonicalize(self._entries(column)[0] if self.is_list else column, self._where)
        if canonical.kind is None:
            return engine.frames.DataFrame({"value": engine.frames.Series([], dtype="str"),
                                            "count": engine.arrays.zeros(0, dtype="int64")})  # fmt: skip
        return engine.value_counts(canonical.values if canonical.kind == TEXT else canonical.known())

    def merge(self, left: Any, right: Any) -> Any:
        if isinstance(left, tuple):
            return left if left[1] else right
        if self.combined is not None:
            return self._guarded(merge_combinations(left, right, list(self.inputs), self._where))
        values = same_kind(left["value"], right["value"], self._where)
        sides = [side.assign(value=value) for side, value in zip((left, right), values, strict=True)]
        both = engine_of(left).frames.concat(sides, ignore_index=True)
        return self._guarded(engine_of(left).sum_counts(both))

    def _guarded(self, counted: Any) -> Any:
        if len(counted) > self.max_cardinality:
            raise DataError(
                f"{self._where}: more than {self.max_cardinality:,} distinct values (max_cardinality). Use hash_bucket "
                "(hashed_cross for a combination), which needs no fit, or raise max_cardinality if memory allows."
            )
        return counted

    def finish(self, partial: Any) -> Vocabulary | CombinedVocabulary:
        if isinstance(partial, tuple):
            return self._given(load_engine(partial[0]), partial[1])
        names = list(self.inputs) if self.combined is not None else ["value"]
        counted = by_frequency(partial[partial["count"] >= self.min_count], names)
        if self.max_size is not None:
            counted = counted.head(self.max_size)
        if self.combined is not None:
            return CombinedVocabulary(counted[names], counted["count"], self.oov_buckets)
        return Vocabulary(counted["value"], counted["count"], IdLayout(buckets=self.oov_buckets))

    def update(self, state: Any, partial: Any) -> Vocabulary | CombinedVocabulary:
        """The state after more rows, of which `partial` is the merged partial: old ids stay; min_count and max_size
        hold for the values that are new. A given vocabulary stays as it is."""
        return state if isinstance(partial, tuple) else state.update(partial, self.min_count, self.max_size)

    def entries(self, column: Column, state: Vocabulary) -> tuple[Any, Any]:
        """(int32 ids of all lists one after the other, int64 number of ids of every row)."""
        entries, lengths = self._entries(column)
        return state.encode(entries), lengths

    def _entries(self, column: Column) -> tuple[Any, Any]:
        if self.separator is not None:
            entries, lengths = split_lists(column, "string", self.separator)
            return entries.where(entries != "").rename(column.name), lengths
        return list_entries(column, self._where)

    def columns(self, frame: Frame, state: Vocabulary | CombinedVocabulary) -> dict[str, Column]:
        engine = engine_of(frame)
        if isinstance(state, CombinedVocabulary):
            return {self.outputs[0]: engine.series(state.encode(frame), frame)}
        found = {}
        for name, output in zip(self.inputs, self.outputs, strict=True):
            if self.is_list:
                found[output] = list_column(*self.entries(frame[name], state), frame)
            else:
                found[output] = engine.series(state.encode(frame[name]), frame)
        return found

    def _given(self, engine: Any, kind: str | None) -> Vocabulary:
        values = canonicalize(self._read(engine, kind), f"{self._where}, given vocabulary")
        if values.kind is None or bool(values.null.any()):
            raise DataError(f"{self._where}: the given vocabulary is empty or holds a null. Remove the null.")
        known = values.values.astype("str") if str(values.values.dtype) == "category" else values.values
        if bool(known.duplicated().any()):
            double = engine.to_pandas(known[known.duplicated()].head(3).to_frame())[known.name].tolist()
            raise DataError(f"{self._where}: the given vocabulary holds values twice, for example {double}.")
        known = known.reset_index(drop=True)
        counts = engine.frames.Series(engine.arrays.zeros(len(known), dtype="int64"))
        return Vocabulary(known, counts, IdLayout(buckets=self.oov_buckets))

    def _read(self, engine: Any, kind: str | None) -> Any:
        given = self.vocabulary
        if not isinstance(given, str):
            return engine.frames.Series(list(given or ()), name="value")
        path = Path(given)
        try:
            if path.suffix not in (".parquet", ".csv"):
                # Not str.splitlines, which also ends a line at U+2028, U+0085 and others that a value may hold.
                lines = path.read_bytes().decode("utf-8").replace("\r\n", "\n").split("\n")
                lines = [line for line in lines if line.strip()]
                return self._as_kind(engine.frames.Series(lines, dtype="str", name="value"), kind)
            whole = path.suffix == ".parquet"
            frame = engine.read_parquet(path) if whole else self.reading.text(engine.NAME, given)
        except (OSError, ValueError) as error:
            raise DataError(f"{self._where}: vocabulary {given!r} cannot be read ({error}).") from error
        names = [name for name in ("value", self.column) if name in frame.columns]
        if not names and len(frame.columns) != 1:
            raise DataError(
                f"{self._where}: vocabulary {given!r} has the columns {', '.join(map(repr, frame.columns))}; it must "
                f"have a column 'value' or {self.column!r}, or only one."
            )
        values = frame[names[0] if names else frame.columns[0]]
        return values if whole else self._as_kind(values, kind)

    def _as_kind(self, text: Column, kind: str | None) -> Any:
        """The text as values of the kind that the column holds: 01234 is a number only where the column is one."""
        dtype = {WHOLE: "int64", FLOAT: plain_type(text), FLAG: "bool"}.get(str(kind), "string")
        found = cast(text.to_frame("value"), {"value": dtype}, f"{self._where}, given vocabulary", ("value",))
        return found["value"]


def _names(columns: Any) -> tuple[str, ...] | None:
    if isinstance(columns, str):
        raise DataError(f"Categorify: several columns are a list of names, found {columns!r}.")
    return None if columns is None else tuple(columns)
