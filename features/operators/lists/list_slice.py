"""ListSlice: a part of each row's list, such as its last ten entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigabatch.features.columns.categories import FLOAT, TEXT, WHOLE, canonicalize
from gigabatch.features.columns.lists import list_column, list_entries
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.operators.lists.explode_lists import row_of_entry, split_lists


class ListSlice(ColumnOperator):
    """Keep a part of each row's list, such as its last ten entries.

    Lists are delimited text such as '12|7|31' and stay so; empty text is a list of one empty entry, as in
    `ExplodeLists`. With `separator=None` the column holds lists (see `gigabatch.features.columns.lists`). A slice
    without entries, and that of a null, is null in text, which has no other way to write it, and an empty list in a
    column of lists. Row-wise.

    Parameters
    ----------
    column
        Delimited text, or lists.
    start, stop
        Places as in Python's slices: from 0, negative ones from the end, None for the end; bounds beyond a list are its
        ends.
    output
        Name of the new column; `column` itself by default.
    pad
        Text, or a number for lists of numbers. With it every row, also a null one, gets exactly stop - start entries,
        what lacks at the end being `pad`; start and stop must count from the same side then.
    separator
        What stands between two entries; None for a column of lists.

    Raises
    ------
    DataError
        Bounds that are no whole numbers; a pad without a fixed length, with the separator in it or of another kind than
        the entries; a column that is no text or holds no lists; on cuDF lists that it cannot hold.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import ListSlice
    >>> frame = pd.DataFrame({"items": ["12|7|31", "5"]})
    >>> ListSlice("items", -2)(frame)["items"].tolist()
    ['7|31', '5']
    >>> ListSlice("items", 0, 2, pad="0")(frame)["items"].tolist()
    ['12|7', '5|0']
    """

    reads, writes = ("column",), ("output",)

    def __init__(
        self,
        column: str,
        start: int | None = None,
        stop: int | None = None,
        output: str | None = None,
        pad: str | float | None = None,
        separator: str | None = "|",
    ) -> None:
        where = f"ListSlice of {column!r}"
        for bound in (start, stop):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise DataError(f"{where}: start and stop are whole numbers or None, found {bound!r}.")
        if separator == "":
            raise DataError(f"{where}: the separator must not be empty; None means a column of lists.")
        self.column, self.start, self.stop = column, start, stop
        self.output, self.pad, self.separator = column if output is None else output, pad, separator
        if pad is not None and not self._width():
            raise DataError(
                f"{where}: to pad, start and stop must count from the same side and leave one entry or more, as 0 to 5 "
                f"or -5 to None do; found {start} to {stop}."
            )
        if separator is not None and pad is not None and (not isinstance(pad, str) or separator in pad):
            raise DataError(f"{where}: pad is text without the separator {separator!r}, found {pad!r}.")

    def _width(self) -> int:
        """stop - start where both count from the same side, else 0."""
        start = self.start or 0
        if start < 0:
            return max((self.stop or 0) - start, 0) if self.stop is None or self.stop < 0 else 0
        return max(self.stop - start, 0) if self.stop is not None and self.stop >= 0 else 0

    def compute(self, frame: Frame) -> dict[str, Column]:
        entries, lengths = self._entries(frame[self.column])
        kept, new_lengths = self._slice(entries, lengths)
        if self.separator is None:
            return {self.output: list_column(kept, new_lengths, frame)}
        text = join_lists(kept, new_lengths, self.separator)
        text.index = frame.index
        return {self.output: text.where(engine_of(frame).series(new_lengths > 0, frame))}

    def _entries(self, column: Column) -> tuple[Any, Any]:
        if self.separator is not None:
            if canonicalize(column, "ListSlice").kind not in (TEXT, None):
                raise DataError(
                    f"ListSlice: column {column.name!r} is {column.dtype}, not delimited text. Cast it to string, or "
                    "set separator=None for a column of lists."
                )
            return split_lists(column.astype("str"), "string", self.separator)
        return list_entries(column, "ListSlice")

    def _slice(self, entries: Column, lengths: Array) -> tuple[Any, Any]:
        """The entries that stay, padded, and how many each row has."""
        engine = engine_of(entries)
        xp = engine.arrays
        low = self._place(xp, self.start or 0, lengths)
        high = lengths if self.stop is None else self._place(xp, self.stop, lengths)
        kept = xp.maximum(high - low, 0)
        new_lengths = kept if self.pad is None else xp.full(len(lengths), self._width(), dtype="int64")
        rows = row_of_entry(xp, new_lengths)
        place = xp.arange(len(rows)) - (xp.cumsum(new_lengths) - new_lengths)[rows]
        if self.pad is not None:
            self._require_alike(entries)
        if len(entries) == 0:
            return engine.frames.Series([self.pad] * len(rows), dtype=None if len(rows) else entries.dtype), new_lengths
        source = (xp.cumsum(lengths) - lengths)[rows] + low[rows] + place
        found = entries.take(xp.clip(source, 0, len(entries) - 1)).reset_index(drop=True)
        if self.pad is not None:
            found = found.where(engine.frames.Series(place < kept[rows]), self.pad)
        return found, new_lengths

    def _require_alike(self, entries: Column) -> None:
        """Raise `DataError` where `pad` is of another kind than the entries, or beyond their type."""
        kind = canonicalize(entries, "ListSlice").kind
        pad: Any = self.pad
        number = isinstance(pad, int | float) and not isinstance(pad, bool)
        if kind == WHOLE:
            bounds: Any = np.iinfo(str(entries.dtype).lower())
            fits = number and (isinstance(pad, int) or float(pad).is_integer()) and bounds.min <= pad <= bounds.max
        elif kind == FLOAT:
            most = float(np.finfo(str(entries.dtype).lower()).max)
            fits = number and (-most <= pad <= most or (isinstance(pad, float) and not math.isfinite(pad)))
        else:
            fits = kind is None or isinstance(pad, str if kind == TEXT else bool)
        if not fits:
            raise DataError(
                f"ListSlice: column {self.column!r} holds lists of {entries.dtype}, and pad is {pad!r}. Give a pad "
                "that could be an entry, or cast the lists."
            )

    def _place(self, xp: Any, bound: int, lengths: Any) -> Any:
        return xp.minimum(lengths, bound) if bound >= 0 else xp.maximum(lengths + bound, 0)


def join_lists(entries: Column, lengths: Array, separator: str) -> Any:
    """Text such as '12|7|31' of each row, on a new index, from a text column of all rows' entries, none of them null,
    and the number of entries of every row; the inverse of `split_lists`. Rows without entries give empty text."""
    join = _join_by_place if engine_of(entries).NAME == "cudf" else _join_pandas
    return join(entries, lengths, separator)


def _join_pandas(entries: Column, lengths: Array, separator: str) -> Any:
    import pandas as pd

    offsets = np.concatenate([[0], lengths.cumsum()])
    texts = pa.array(entries, type=pa.large_string(), from_pandas=True)
    if isinstance(texts, pa.ChunkedArray):  # of text of several frames below each other
        texts = texts.combine_chunks()
    lists = pa.LargeListArray.from_arrays(offsets, texts)
    return pd.Series(pc.binary_join(lists, pa.scalar(separator, pa.large_string())).to_pandas(), dtype="str")


def _join_by_place(entries: Column, lengths: Array, separator: str) -> Any:
    """The first entry of every row, then the second, and so on: the order of a list collected by cuDF is its own."""
    engine = engine_of(entries)
    xp = engine.arrays
    first = xp.cumsum(lengths) - lengths
    joined = engine.frames.Series([""], dtype="str").take(xp.zeros(len(lengths), dtype="int64")).reset_index(drop=True)
    for place in range(int(lengths.max()) if len(lengths) else 0):
        entry = entries.take(xp.clip(first + place, 0, len(entries) - 1)).reset_index(drop=True)
        joined = joined + (separator + entry).where(engine.frames.Series(lengths > place), "")
    return joined.str.slice(len(separator))
