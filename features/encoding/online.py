"""Single rows to model inputs without a data frame: what a service calls once a request.

The same bits as `Preprocessor.transform` of a frame that holds the row alone, about a thousand times sooner: a
vocabulary is a dict, and the continuous columns of a row are one NumPy vector. Importing, loading and calling need
neither pandas nor torch.
"""

from __future__ import annotations

import copy
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash

from gigabatch.features.columns.numbers import FLOAT_TEXT, POINT_TEXT, WHOLE_TEXT
from gigabatch.features.encoding.lists import PackedList
from gigabatch.features.encoding.online_lists import OnlineList, values_of
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.state import SavedState, damage, vocabulary_path
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Scale
from gigabatch.features.exact.float_order import EXACT, exact_below
from gigabatch.features.schema import ListColumn
from gigabatch.features.vocabulary.vocabulary import LAYOUT, METADATA, IdLayout, Vocabulary

WHERE = "OnlineTransformer"
FLOATS = frozenset({float, type(None), np.float64, np.float32})  # what NumPy reads as pandas would, None as NaN
# What a dict finds rightly: it also finds a whole number by a narrow float that may be another one, and by decimals,
# fractions and complex numbers, which are refused.
FOUND: frozenset[type] = frozenset({
    str, int, float, bool, type(None), np.str_, np.bool_, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8,
    np.uint16, np.uint32, np.uint64,
})  # fmt: skip
INTEGERS = (int, np.bool_, np.integer)  # bool is an int
PLAIN = (str, *INTEGERS, float, np.float16, np.float32)

Row = Mapping[str, Any] | Sequence[Any]


class OnlineTransformer:
    """Encode single rows: ids int32 [C] and floats float32 [F], in the order of the preprocessor's tensor schema.

    A row is a mapping of column names, whose other keys are ignored, or a list or tuple in the order of `columns`.
    Values are str, bool, int, float, their NumPy kinds, or null: None, NaN, pd.NA or pd.NaT. They are cast to the
    schema's types by the rules of `gigabatch.features.reading.sources.cast`. What a data frame would guess at is
    refused: bytes, dates and decimals.

    List columns are encoded apart, by `pack_lists`, as those of a `Preprocessor` are.

    Arrays are new at each call and nothing is changed after construction, so threads may share a transformer.

    Parameters
    ----------
    preprocessor
        Fitted or loaded, of any engine.

    Raises
    ------
    DataError
        If it is not fitted. A call raises one that names the column that is missing, holds an infinity or does not fit
        its type.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Preprocessor
    >>> from gigabatch.features.encoding.online import OnlineTransformer
    >>> from gigabatch.features.schema import Column, Schema
    >>> schema = Schema((Column("city", "categorical", "string"), Column("price", "continuous", "float32")), ())
    >>> train = pd.DataFrame({"city": ["Oslo", "Bonn"], "price": [1.0, 3.0]})
    >>> ids, floats = OnlineTransformer(Preprocessor(schema).fit([train]))({"city": "Oslo", "price": 3.0})
    >>> ids.tolist(), floats.tolist()
    ([4], [1.0, 0.0])
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        preprocessor.tensor_schema  # noqa: B018 - an unfitted preprocessor is refused here
        schema = preprocessor.schema
        dtypes = schema.dtypes()
        categorical, continuous = schema.names("categorical"), schema.names("continuous")
        text = [name for name in continuous if dtypes[name] == "string"]
        if text:
            raise DataError(f"{WHERE}: continuous column {text[0]!r} is declared string. Declare it float32.")
        self._features: tuple[str, ...] = tuple(schema.names("categorical", "continuous"))
        in_lists = [name for column in schema.lists for name in column.columns]
        self.columns: tuple[str, ...] = (*self._features, *in_lists)
        ordered = [*categorical, *continuous]
        self._by_name = _getter(ordered)
        self._by_position = _getter([self.columns.index(name) for name in ordered])
        self._categories = [_Category(name, dtypes[name], preprocessor.vocabularies[name]) for name in categorical]
        known = {category.name: category for category in self._categories}
        self._lists = [_list(column, preprocessor.list_vocabulary(column.name), known) for column in schema.lists]
        self._finds = [category.known.get for category in self._categories]
        self._numbers = [_Number(name, dtypes[name]) for name in continuous]
        self._always_cast = any(not dtypes[name].startswith("float") for name in continuous)
        fills = [preprocessor.fills[name] for name in continuous]
        scales = [preprocessor.scales.get(name, Scale(0.0, 1.0)) for name in continuous]  # changes no bit
        with np.errstate(over="ignore"):  # a fill beyond float32 is an infinity, refused where it is used
            self._fills = np.array([fill.value for fill in fills], np.float64).astype(np.float32)
        self._means = np.array([scale.mean for scale in scales], np.float64)
        self._stds = np.array([scale.std for scale in scales], np.float64)
        # What bounds a column, endless where nothing does, which changes no bit; None where nothing bounds any.
        clips = np.array([scale.clip or np.inf for scale in scales], np.float64)
        self._clips = clips if np.isfinite(clips).any() else None
        self._indicated = np.array([i for i, fill in enumerate(fills) if fill.indicator], np.intp)
        self._loud = np.array([not fill.silent for fill in fills if fill.indicator], bool)

    @classmethod
    def load(cls, folder: str | Path) -> OnlineTransformer:
        """Of what `Preprocessor.save` wrote, read without a data frame library; a damaged folder is an error."""
        folder = Path(folder)
        with damage(folder):
            state = SavedState.read(folder)
            own = [column.name for column in state.schema.lists if column.shares is None]
            vocabularies = {
                name: _read_vocabulary(vocabulary_path(folder, position))
                for position, name in enumerate([*state.schema.names("categorical"), *own])
            }
            return cls(Preprocessor(state.schema, state.settings, vocabularies, state.fills, state.scales))

    def __call__(self, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """ids int32 [C] and floats float32 [F] of one row."""
        ids, floats = self.batch((row,))
        return ids[0], floats[0]

    def batch(self, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
        """ids int32 [N, C] and floats float32 [N, F] of a few rows; each row's bits are those that it has alone."""
        values = [self._values(row) for row in rows]
        ids = np.array([self._ids(of_row) for of_row in values], np.int32)
        return ids.reshape(len(values), len(self._categories)), self._floats(values)

    def pack_lists(self, rows: Sequence[Row]) -> tuple[PackedList, ...]:
        """Encode the list columns of rows.

        Parameters
        ----------
        rows
            N rows. A list is a list, a tuple or an array of one dimension; null, or a name that is not among a row's
            keys, is an empty list. An element is null or a value as of any column, cast to the column's `elements`;
            weights are numbers, one for each element.

        Returns
        -------
        tuple of PackedList
            One a list column, in the order of the schema: ids int32 [T], offsets int64 [N+1], weights float32 [T] or
            None, the same bits as `Preprocessor.pack_lists` gives.

        Raises
        ------
        DataError
            For what is no list, an element or a weight that does not fit its type, weights that are not finite or not
            as many as elements. The message names column and row.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.encoding.online import OnlineTransformer
        >>> from gigabatch.features.schema import Column, ListColumn, Schema
        >>> schema = Schema((Column("price", "continuous", "float32"),), (), lists=(ListColumn("tags"),))
        >>> train = pd.DataFrame({"price": [1.0, 2.0], "tags": [["new", "red"], ["red"]]})
        >>> transformer = OnlineTransformer(Preprocessor(schema).fit([train]))
        >>> (tags,) = transformer.pack_lists([{"price": 1.0, "tags": ["red", "blue"]}, {"price": 2.0, "tags": None}])
        >>> tags.ids.tolist(), tags.offsets.tolist()
        ([3, 2], [0, 2, 2])
        """
        packed = []
        for item in self._lists:
            names = item.column.columns
            places = [self.columns.index(name) for name in names]
            packed.append(item.pack([values_of(self._checked(row), names, places) for row in rows]))
        return tuple(packed)

    def _checked(self, row: Row) -> Row:
        """The row; `DataError` unless it is a mapping, or a list or tuple of as many values as there are columns."""
        if isinstance(row, (list, tuple)):
            if len(row) != len(self.columns):
                raise DataError(
                    f"{WHERE}: a row in schema order has {len(self.columns)} values, found {len(row)}. "
                    f"Columns: {', '.join(map(repr, self.columns))}."
                )
        elif not hasattr(row, "keys"):
            raise DataError(
                f"{WHERE}: a row is a mapping, or a list or tuple in the order of `columns`; found "
                f"{type(row).__name__}."
            )
        return row

    def _values(self, row: Row) -> tuple[Any, ...]:
        """The values of the row: categorical columns, then continuous ones."""
        if isinstance(row, (list, tuple)):
            return self._by_position(self._checked(row))
        try:
            return self._by_name(row)
        except (KeyError, TypeError, IndexError) as error:
            there = list(self._checked(row).keys())  # type: ignore[union-attr]
            missing = [name for name in self._features if name not in there]
            if not missing:
                raise
            raise DataError.missing_columns(missing, there, WHERE) from error

    def _ids(self, values: tuple[Any, ...]) -> list[int | None]:
        try:
            found = [find(value) for find, value in zip(self._finds, values, strict=False)]
            if not FOUND.issuperset(map(type, values)):
                found = [known if type(value) in FOUND else None for known, value in zip(found, values, strict=False)]
        except TypeError:  # a value that cannot be looked up; `encode` names its column
            found = [None] * len(self._finds)
        if None in found:
            asked = zip(self._categories, values, found, strict=False)
            found = [category.encode(value) if known is None else known for category, value, known in asked]
        return found

    def _floats(self, values: list[tuple[Any, ...]]) -> np.ndarray:
        first, width = len(self._categories), len(self._numbers)
        cells = [of_row[first:] for of_row in values]
        if self._always_cast or not FLOATS.issuperset(map(type, chain.from_iterable(cells))):
            cells = [tuple([n.cast(cell) for n, cell in zip(self._numbers, row, strict=True)]) for row in cells]
        wide = np.fromiter(chain.from_iterable(cells), np.float64, len(cells) * width).reshape(len(cells), width)
        out = np.empty((len(cells), width + len(self._indicated)), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # what leaves float32 is refused by name below
            single = wide.astype(np.float32)
            null = np.isnan(single)
            scaled = (np.where(null, self._fills, single) - self._means) / self._stds
            out[:, :width] = scaled if self._clips is None else scaled / np.sqrt(1 + (scaled / self._clips) ** 2)
        out[:, width:] = null[:, self._indicated] & self._loud
        finite = np.isfinite(out)
        if not finite.all():
            raise DataError.infinity(self._numbers[int(np.argmin(finite.all(axis=0)))].name)
        return out


class _Category:
    """Ids of one categorical column. known: value to id, also of null, for everything that a dict finds rightly.

    wide: integers of 2^53 and beyond, which a float must not find, though a dict holds it equal to them. rounded: what
    known float64 become in float32 where that is another number.
    """

    def __init__(self, name: str, dtype: str, vocabulary: Vocabulary) -> None:
        self.name, self.dtype, self.layout = name, dtype, vocabulary.layout
        values = as_list(vocabulary.values)
        kinds = sorted(kind.__name__ for kind in set(map(type, values)))
        if not set(kinds) <= {_KINDS[dtype]}:
            raise DataError(
                f"{WHERE}: column {name!r} is declared {dtype}, but its vocabulary holds {' and '.join(kinds)}. "
                "Run the encode stage again."
            )
        self.known: dict[Any, int] = dict(
            zip(values, range(self.layout.first, self.layout.num_ids(len(values))), strict=True)
        )
        if len(self.known) != len(values):
            raise DataError(
                f"{WHERE}: the vocabulary of column {name!r} holds a value twice. Run the encode stage again."
            )
        self.wide: dict[int, int] = {}
        self._cast = partial(_CASTS[dtype], dtype=dtype)
        self.rounded: frozenset[float] = frozenset()
        if dtype == "float64":
            full = np.array(values, np.float64)
            short = _short(full)
            self.rounded = frozenset(short[short != full].tolist())
        if dtype in ("int32", "int64"):
            self.wide = {value: self.known.pop(value) for value in values if abs(value) >= EXACT}
        if dtype == "float32" and not all(map(self._holds, values)):  # `Vocabulary` refuses what they would be rounded
            raise DataError(
                f"{WHERE}: column {name!r} is declared float32, but its vocabulary holds fractions in float64. Run the "
                "encode stage again."
            )
        if dtype == "int32":  # a dict must not find what a column of this type cannot hold
            self.known = {value: id for value, id in self.known.items() if self._holds(value)}
        self.known[None] = self.layout.null

    def _holds(self, value: Any) -> bool:
        try:
            return self._cast(value) == value
        except ValueError:
            return False

    def encode(self, value: Any) -> int:
        """The id of a value that `known` does not hold as it is: cast first, then null, known or unseen."""
        try:
            if _is_null(value):
                return self.layout.null
            key = self._cast(value)
            if key != key:  # the text "nan" in a column of floats
                return self.layout.null
            found = self.known.get(key)
            if found is None:
                found = self.wide.get(key)
            if found is None and self.dtype == "float64":
                self._require_unrounded(key)
            return self._unseen(key) if found is None else found
        except (ValueError, TypeError, OverflowError) as error:
            raise _refusal(self.name, self.dtype, value, error) from error

    def _require_unrounded(self, key: float) -> None:
        """As `gigabatch.features.columns.categories.require_unrounded` of a column that holds the number alone."""
        if key in self.rounded and _tells(key):
            raise ValueError("a known value becomes it in float32; give all of its digits")
        short = float(_short(np.float64(key)))
        if not self.rounded and short != key and short in self.known and _tells(short):
            raise ValueError("it becomes a known value in float32, and all known ones are such; give it in float32")

    def _unseen(self, key: Any) -> int:
        """As `Vocabulary.encode`: with several unseen ids, the value's hash (see `HashBucket`) picks one."""
        if self.layout.buckets == 1:
            return self.layout.unseen
        data = key.encode() if isinstance(key, str) else _as_whole(key, "int64").to_bytes(8, "little", signed=True)
        return self.layout.unseen + xxhash.xxh64_intdigest(data) % self.layout.buckets


def _list(column: ListColumn, vocabulary: Vocabulary, known: dict[str, _Category]) -> OnlineList:
    """What encodes a list column. known: by column, grows; columns of one vocabulary share its dict, which may be
    large."""
    if column.owner not in known:
        known[column.owner] = _Category(column.owner, column.elements, vocabulary)
    category = copy.copy(known[column.owner])
    category.name = column.name
    as_weight = partial(_as_float, dtype="float32")
    return OnlineList(column, category, vocabulary.layout.null, as_weight, _is_null, FOUND, WHERE)


class _Number:
    """Values of one continuous column as float64 that rounds to float32 as the column would, NaN or None for null."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype = name, dtype
        self._cast = partial(_CASTS[dtype], dtype=dtype)
        self._takes_floats = dtype.startswith("float")

    def cast(self, value: Any) -> float | None:
        kind = type(value)
        if self._takes_floats and (kind in FLOATS or (kind is int and -EXACT <= value <= EXACT)):
            return value
        try:
            if not _is_null(value):
                # A whole number goes to float32 in one rounding, never through float64.
                return self._cast(value) if self._takes_floats else _as_float(int(self._cast(value)), "float32")
            if self._takes_floats:
                return None
            raise ValueError("a null; a float64 column may hold nulls")
        except (ValueError, TypeError, OverflowError) as error:
            raise _refusal(self.name, self.dtype, value, error) from error


def cast_value(value: Any, dtype: str, mark: str = ".") -> str | int | float | bool:
    """One value cast as `gigabatch.features.reading.sources.cast` casts a column's.

    Parameters
    ----------
    value
        Text, bool, int, float, or a NumPy scalar of these; no null.
    dtype
        int32, int64, float32, float64, string or bool.
    mark
        What stands for the point of a float as text.

    Raises
    ------
    ValueError, TypeError, OverflowError
        The value does not fit.

    Examples
    --------
    >>> cast_value("7", "int64"), cast_value(7.0, "string"), cast_value("TRUE", "bool")
    (7, '7', True)
    """
    return _as_text(value, dtype, mark) if dtype == "string" else _CASTS[dtype](value, dtype=dtype)


def _is_null(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # pandas' own nulls, without importing it
        return True
    return isinstance(value, (float, np.floating)) and bool(value != value)


def _require_plain(value: Any) -> None:
    if not isinstance(value, PLAIN) or isinstance(value, np.timedelta64):  # NumPy counts durations as integers
        raise TypeError(f"it is a {type(value).__name__}; text, numbers and booleans can be read")


def _require_exact(value: Any) -> None:
    exact = exact_below(value.dtype) if isinstance(value, np.floating) else EXACT
    if not abs(value) < exact:
        raise ValueError(
            f"it reaches 2^{exact.bit_length() - 1}, where such floats skip whole numbers; give an integer or text"
        )


def _short(values: Any) -> Any:
    """float64 in float32 and back, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64)


def _tells(value: float) -> bool:
    """Whether a number that float32 holds has come from there: whole ones and fractions of few bits may be exact."""
    with np.errstate(over="ignore"):
        return value != np.floor(value) and float(np.float16(value)) != value


def _require_digits(value: Any, pattern: str) -> None:
    if isinstance(value, str) and re.fullmatch(pattern, value) is None:  # `$` alone would pass a line end
        raise ValueError("it is not written as a number: digits 0 to 9, a sign, a point, an exponent")


def _as_text(value: Any, dtype: str, mark: str = ".") -> str:
    if isinstance(value, str):
        value.encode()  # half of a surrogate pair is no text
        return value
    _require_plain(value)
    if isinstance(value, (float, np.floating)):  # as in `sources.cast`: a whole one is the integer's text
        number = float(value)
        _require_exact(value)
        return str(int(number)) if number == int(number) else str(value).replace(".", mark)
    return str(value)


def _as_whole(value: Any, dtype: str) -> int:
    _require_plain(value)
    if isinstance(value, str) and re.fullmatch(POINT_TEXT, value):
        value = value.partition(".")[0]
    if isinstance(value, str) and not re.fullmatch(WHOLE_TEXT, value) and re.fullmatch(FLOAT_TEXT, value):
        raise ValueError("it is not written as a whole number: digits 0 to 9, a sign, a point with zeros")
    _require_digits(value, WHOLE_TEXT)
    whole = int(value)  # an infinity is an OverflowError
    if isinstance(value, (float, np.floating)):
        if whole != value:
            raise ValueError("it has a fraction")
        _require_exact(value)
    half = 2 ** (31 if dtype == "int32" else 63)
    if not -half <= whole < half:
        raise ValueError(f"it is outside the range of {dtype}")
    return whole


def _as_float(value: Any, dtype: str) -> float:
    _require_plain(value)
    _require_digits(value, FLOAT_TEXT)
    if dtype == "float64":
        return float(value)
    # NumPy picks int64, uint64 or object for an integer, as pandas does, and each rounds in its own way.
    exact = np.array(int(value)) if isinstance(value, INTEGERS) else np.float64(value)
    with np.errstate(over="ignore"):  # an infinity is refused by the column's name, or is a category
        return float(exact.astype(np.float32))


def _as_flag(value: Any, dtype: str) -> bool:
    _require_plain(value)
    key = value.lower() if isinstance(value, str) else value
    if key not in _FLAGS:
        raise ValueError("neither true nor false, 0 nor 1")
    return _FLAGS[key]


_FLAGS = {True: True, False: False, "true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_KINDS = {"string": "str", "int32": "int", "int64": "int", "float32": "float", "float64": "float", "bool": "bool"}
_CASTS: dict[str, Callable[..., Any]] = {
    "string": _as_text,
    "int32": _as_whole,
    "int64": _as_whole,
    "float32": _as_float,
    "float64": _as_float,
    "bool": _as_flag,
}


def _refusal(name: str, dtype: str, value: Any, error: Exception) -> DataError:
    return DataError(
        f"{WHERE}: column {name!r} is declared {dtype} but holds {reprlib.repr(value)}, which does not fit ({error}). "
        "Correct the row or the declared type."
    )


def _getter(keys: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """itemgetter that gives a tuple for any number of keys."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda row: tuple([row[key] for key in keys])


def as_list(column: Any) -> list[Any]:
    """A column of Arrow, cuDF or pandas as Python values."""
    if hasattr(column, "to_pylist"):
        return column.to_pylist()
    return column.to_arrow().to_pylist() if hasattr(column, "to_arrow") else column.tolist()


def _read_vocabulary(path: Path) -> Vocabulary:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:  # pq.read_table would import pandas
        table = file.read()
    if table.column_names != ["value", "count"] or table["value"].null_count:
        raise DataError(f"vocabulary {path}: damaged, it must hold the columns value and count without nulls.")
    metadata = (table.schema.metadata or {}).get(METADATA)
    layout = LAYOUT if metadata is None else IdLayout(**json.loads(metadata)["layout"])
    return Vocabulary(table["value"], table["count"], layout)
