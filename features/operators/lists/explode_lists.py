"""ExplodeLists: one row for each entry of delimited lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigabatch.features.columns.lists import row_of_entry
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import Operator

NUMBERS = "int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64"


class ExplodeLists(Operator):
    """Make one row for each entry of delimited lists.

    Rows with lists such as '12|7|31' become one row an entry, in row order and then list order, on a new index. A row
    whose lists are all null yields nothing. A row's entries depend on that row alone, but the number of rows changes.

    Parameters
    ----------
    lists
        (output name, dtype) by one column or more; dtype is string, or what Arrow calls a type of numbers or times, as
        int64, float32 or timestamp[s]. The lists of a row must be of equal length.
    position
        Name of the new int32 column with the entry's place, from 1.
    keep
        Columns that are repeated for each entry.
    separator
        What stands between two entries.

    Raises
    ------
    DataError
        No column of lists, or an unknown dtype; two columns of one name; lists of different length, with the row; an
        entry that is not of its dtype.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import ExplodeLists
    >>> frame = pd.DataFrame({"session": ["s1", "s2"], "items": ["7|9", "5"], "prices": ["1.5|2", "3"]})
    >>> ExplodeLists({"items": ("item", "int64"), "prices": ("price", "float64")}, "place", ["session"])(frame)
      session  place  item  price
    0      s1      1     7    1.5
    1      s1      2     9    2.0
    2      s2      1     5    3.0
    """

    reads = ("keep", "lists")

    untold = ("keep",)

    changes_rows = True

    def __init__(
        self, lists: Mapping[str, tuple[str, str]], position: str, keep: Sequence[str], separator: str = "|"
    ) -> None:
        if not lists:
            raise DataError("ExplodeLists: give one column of lists or more.")
        for name, (_, dtype) in lists.items():
            if dtype != "string" and _plain_name(dtype) is None:
                raise DataError(
                    f"ExplodeLists of {name!r}: unknown dtype {dtype!r}. Known: string, {NUMBERS}, timestamp[s]."
                )
        self.lists, self.position, self.keep, self.separator = dict(lists), position, tuple(keep), separator
        self.require_free(self.keep, self.outputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.position, *(output for output, _ in self.lists.values()))

    def columns_after(self, before: Sequence[str]) -> tuple[str, ...]:
        return (*self.keep, *self.outputs)

    def transform(self, frame: Frame) -> Frame:
        xp = engine_of(frame).arrays
        flat = {
            output: (column, *split_lists(frame[column], dtype, self.separator))
            for column, (output, dtype) in self.lists.items()
        }
        lengths = self._common_length(flat)
        rows = row_of_entry(xp, lengths)
        first = xp.cumsum(lengths) - lengths
        out = frame[list(self.keep)].take(rows).reset_index(drop=True)
        out[self.position] = (1 + xp.arange(len(rows)) - first[rows]).astype("int32")
        for output, (_, values, _lengths) in flat.items():
            out[output] = values
        return out

    def _common_length(self, flat: Mapping[str, tuple[str, Any, Any]]) -> Any:
        (first, _, lengths), *others = flat.values()
        for other, _, found in others:
            wrong = lengths != found
            if bool(wrong.any()):
                row = int(wrong.argmax())
                raise DataError(
                    f"ExplodeLists: columns {first!r} and {other!r} hold lists of different length in "
                    f"{int(wrong.sum())} row(s), for example row {row}: {int(lengths[row])} and {int(found[row])} "
                    "entries. Repair or drop those rows."
                )
        return lengths


def split_lists(column: Column, dtype: str, separator: str = "|") -> tuple[Any, Array]:
    """(entries of all rows one after the other as `dtype`, int64 number of entries of every row; 0 for null).

    dtype `string` gives a column, other types an array.
    """
    engine = engine_of(column)
    if bool(column.isna().all()):  # whatever type they are of: a file's empty column is one of floats
        column = engine.frames.Series([None] * len(column), dtype="str", name=column.name)
    try:
        return (_split_cudf if engine.NAME == "cudf" else _split_pandas)(column, dtype, separator)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"column {column.name!r}: a list entry is not of type {dtype} ({error}). Correct the data or the type."
        ) from error


def _plain_name(dtype: Any) -> str | None:
    """NumPy's name of what Arrow calls so, where that is a type of numbers or times. `float` is of 32 bits to Arrow."""
    try:
        kind = pa.type_for_alias(dtype)
    except (ValueError, AttributeError):  # the latter for what is no text
        return None
    types = pa.types
    fits = types.is_integer(kind) or types.is_floating(kind) or types.is_timestamp(kind)
    return np.dtype(kind.to_pandas_dtype()).name if fits else None


def _split_pandas(column: Column, dtype: str, separator: str) -> tuple[Any, Any]:
    import pandas as pd  # only here, since a row is encoded without it (features/encoding/online.py)

    # Arrow keeps the entries in one buffer; pandas' own str.split makes a Python list and strings a row.
    values = pa.array(column, type=pa.large_string(), from_pandas=True)
    if isinstance(values, pa.ChunkedArray):  # of frames that were put together
        values = values.combine_chunks()
    lists = pc.split_pattern(values, separator)
    lengths = lists.value_lengths().fill_null(0).to_numpy().astype("int64")
    entries = lists.flatten()
    if dtype == "string":
        return pd.Series(entries.to_pandas(), dtype="str"), lengths
    found = entries.cast(dtype)
    if pa.types.is_integer(found.type):  # of whose texts Arrow takes 0x1F too, of int8 even 0xFF, as -1
        hexadecimal = entries.filter(pc.match_substring(entries, "x", ignore_case=True))
        if len(hexadecimal):
            raise ValueError(f"{hexadecimal[0].as_py()!r} is hexadecimal")
    return found.to_numpy(), lengths


def _split_cudf(column: Column, dtype: str, separator: str) -> tuple[Any, Any]:
    lists = column.str.split(separator, regex=False)
    lengths = lists.list.len().fillna(0).astype("int64").to_cupy()
    entries = lists.dropna().explode().reset_index(drop=True)
    return (entries, lengths) if dtype == "string" else (entries.astype(_plain_name(dtype)).to_cupy(), lengths)
