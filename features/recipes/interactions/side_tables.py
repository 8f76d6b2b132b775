"""Side tables of the recipes for interactions: what is known of each user or item, looked up by key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gigabatch.features.encoding.lists import require_list_weights
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.text_flags import TextFlags
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.reading.encodings import UTF8, require_encoding
from gigabatch.features.reading.sources import FileCache, cast, expand, read_files
from gigabatch.features.recipes.base import RawFiles
from gigabatch.features.recipes.table.labels import require_filled
from gigabatch.features.recipes.table.list_settings import list_column_of
from gigabatch.features.schema import ListColumn

FOUND = "__found__"


@dataclass(frozen=True)
class SideTable:
    """Set how a table of users or items is read.

    Parameters
    ----------
    path
        File, glob, folder, `package://` or fsspec URL.
    key
        Its column of ids, by default named as in the interactions.
    categorical
        Names of columns read as text, or `{name: int64}` for whole numbers.
    continuous
        Names of columns of numbers, read as float32.
    flags
        Columns of words parted by `|`; each word becomes a column of 0 and 1, `<column>_<word>`.
    separator, encoding, column_names
        As of the interactions.
    lists
        Columns of lists of categories, as `{genres: {max_length: 5}}`, keys as of `lists` of the recipe `table`. Lists
        in Parquet files, delimited text in CSV files.
    list_separator
        What stands between two elements of delimited text.

    Raises
    ------
    DataError
        If no column is named, or one in two places.
    """

    path: str
    key: str | None = None
    categorical: dict[str, str] | tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    separator: str = ","
    encoding: str = UTF8
    column_names: tuple[str, ...] | None = None
    lists: dict[str, dict[str, Any]] = field(default_factory=dict)
    list_separator: str = "|"

    def __post_init__(self) -> None:
        require_encoding(self.encoding, f"side table {self.path}")
        types = categorical_types(self.categorical, f"side table {self.path}")
        if not (types or self.continuous or self.flags or self.lists):
            raise DataError(
                f"side table {self.path}: no column is named. Name some under categorical, continuous, flags or lists."
            )
        if not isinstance(self.list_separator, str) or not self.list_separator:
            raise DataError(
                f"side table {self.path}: list_separator is text that is not empty, found {self.list_separator!r}."
            )
        places = [("key", self.key)] if self.key else []
        places += [("categorical", name) for name in types if name != self.key]
        places += [("continuous", name) for name in self.continuous]
        places += [("flags", name) for name in self.flags]
        places += [("lists", name) for column in self.list_columns for name in column.columns]
        seen: dict[str, str] = {}
        for place, name in places:
            if name in seen:
                raise DataError(
                    f"side table {self.path}: column {name!r} is named under {seen[name]} and again under {place}. "
                    "Leave it in one place."
                )
            seen[name] = place

    @property
    def types(self) -> dict[str, str]:
        """Types of the categorical columns."""
        return categorical_types(self.categorical, f"side table {self.path}")

    def sharing(self, types: Mapping[str, str]) -> SideTable:
        """The table with the elements of those lists that share one of these columns, by its type, said."""
        lists = {
            name: {"elements": types[str(options["shares"])]} | options
            if isinstance(options, Mapping) and str(options.get("shares")) in {*types} - {*self.types}
            else options
            for name, options in self.lists.items()
        }
        return replace(self, lists=lists)

    @property
    def list_columns(self) -> tuple[ListColumn, ...]:
        """The columns of lists, in order."""
        where, types = f"side table {self.path}", categorical_types(self.categorical, f"side table {self.path}")
        return tuple(list_column_of(name, options or {}, types, where) for name, options in self.lists.items())

    @property
    def list_types(self) -> dict[str, str]:
        """Types of the columns of lists and of weights, as files are read."""
        found = {name: dtype for column in self.list_columns for name, dtype in column.dtypes().items()}
        return {name: f"{dtype}{self.list_separator}" for name, dtype in found.items()}

    def files(self) -> list[str]:
        return expand(self.path)

    def raw_files(self, name: str, key: str, key_type: str, null_values: tuple[str, ...]) -> RawFiles:
        """How its files are read. name: of the entity; key and key_type: the column of the interactions."""
        here = self.key or key
        types = categorical_types(self.categorical, f"side table {self.path}")
        dtypes = {here: key_type} | types | dict.fromkeys(self.continuous, "float32")
        roles = dict.fromkeys(types, "category") | {here: "key"}
        names = None if self.column_names is None else tuple(self.column_names)
        return RawFiles(
            name, self.path, dtypes | dict.fromkeys(self.flags, "string") | self.list_types, roles, {}, null_values,
            self.separator, self.encoding, names, frozenset(types), fixed=True,
        )  # fmt: skip

    def read(
        self,
        engine: str,
        key: str,
        key_type: str,
        null_values: tuple[str, ...],
        cache: FileCache | None,
        leave_out: Collection[str] = (),
    ) -> Any:
        """`SideColumns` to be looked up by `key` of the interactions, which is of `key_type`."""
        here = self.key or key
        types = categorical_types(self.categorical, f"side table {self.path}")
        how = self.raw_files("", key, key_type, null_values)
        frame = read_files(
            engine, self.path, how.dtypes, null_values=null_values, separator=self.separator,
            encoding=self.encoding, names=self.column_names, nullable=set(types), cache=cache, leave_out=leave_out,
        )  # fmt: skip
        require_filled(frame[here], self.path)
        names = [name for name in (*types, *self.continuous) if name != here]
        types.pop(here, None)
        frame = frame.rename(columns={here: key})
        notes = tuple(self._nulls(frame, [name for name, dtype in types.items() if dtype == "string"], null_values))
        for column in self.list_columns:
            if column.weights is not None:
                require_list_weights(frame, column, f"side table {self.path}", range(len(frame)))
        columns = frame[[key, *names, *self.flags, *self.list_types]]
        found = SideColumns.of(self.path, columns, key, types, self.continuous, self.flags, self.list_columns)
        return replace(found, list_types=self.list_types, notes=notes)

    def _nulls(self, frame: Any, texts: Collection[str], null_values: tuple[str, ...]) -> Iterator[str]:
        """A sentence about each column of text that has nulls, which may be a value (NA, Namibia's code)."""
        words = [repr(word) for word in null_values if word]
        for name in texts if words else ():
            if nulls := int(frame[name].isna().sum()):
                yield (
                    f"Side table {self.path}: {name!r} is null in {nulls:,} of {len(frame):,} rows, where it is empty "
                    f"or {' or '.join(words)} (features.null_values)."
                )


@dataclass(frozen=True)
class SideColumns:
    """Columns of users or items, ready to be looked up. categorical: their types; continuous: those of float32; lists:
    those of lists; list_types: how files with these are read; notes: what is to be told of them."""

    path: str
    key: str
    categorical: Mapping[str, str]
    continuous: tuple[str, ...]
    lookup: JoinExternal
    lists: tuple[ListColumn, ...] = ()
    list_types: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        path: str,
        frame: Any,
        key: str,
        categorical: Mapping[str, str],
        continuous: tuple[str, ...] = (),
        flags: tuple[str, ...] = (),
        lists: tuple[ListColumn, ...] = (),
    ) -> SideColumns:
        """From a frame of the key and these columns. `DataError` where a key or the name of a column comes twice."""
        engine, columns = engine_of(frame), tuple(continuous)
        owners = dict.fromkeys(frame.columns, "a column of that table")
        for name in flags:
            operator = TextFlags(name, f"{name}_")
            state = operator.fit([frame])
            made = operator.columns(frame, state)
            for column in sorted(made):
                if column in owners:
                    raise DataError(
                        f"side table {path}: a word of {name!r} makes the column {column!r}, which is "
                        f"{owners[column]} already. Rename one of the two in the file."
                    )
                owners[column] = f"made of a word of {name!r}"
                frame[column] = made[column]
            columns += tuple(sorted(made))
        for name in (name for name, dtype in categorical.items() if dtype == "int64"):
            # A key that is not found makes nulls, and in pandas integers without a place for them would become floats.
            frame[name] = engine.with_nulls(frame[name].fillna(0).astype("int64"), frame[name].isna())
        frame[FOUND] = frame[key].notna().astype("float32")
        of_lists = [name for column in lists for name in column.columns]
        taken = {name: name for name in (*categorical, *columns, *of_lists, FOUND)}
        return cls(path, key, dict(categorical), columns, JoinExternal(frame, (key,), taken, path), lists)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are looked up."""
        return (*self.features, *(column.weights for column in self.lists if column.weights is not None))

    @property
    def features(self) -> tuple[str, ...]:
        """Those that describe the user or item, all but weights of lists."""
        return (*self.categorical, *self.continuous, *(column.name for column in self.lists))

    def attach(self, frame: Any) -> tuple[Any, int]:
        """The frame with these columns, and the number of its rows whose key is not found; null there."""
        present = [name for name in self.names if name in frame.columns]
        if present:
            raise DataError(
                f"side table {self.path}: column {present[0]!r} is a column of the interactions or of another side "
                "table too. Rename one."
            )
        joined = self.lookup(frame)
        missing = int(joined[FOUND].isna().sum())
        return cast(joined.drop(columns=[FOUND]), self.categorical, self.path, self.categorical), missing


def require_distinct_names(sides: Mapping[str, SideTable], keys: Mapping[str, str], others: Collection[str]) -> None:
    """Raise `DataError` where two columns would have one name once the side tables were looked up.

    sides: by entity. keys: by entity, the interactions' column of its ids, whose name the side table's key takes.
    others: every column of the interactions. Columns made of words are known once a file is read; `SideColumns` looks.
    """
    owners: dict[str, str] = {}
    for entity, side in sides.items():
        key, here = keys[entity], side.key or keys[entity]
        categorical = [name for name in categorical_types(side.categorical, f"side table {side.path}") if name != here]
        if key in (*categorical, *side.continuous, *side.flags, *side.list_types):
            found = "is its key" if here == key else f"is the name that its key {here!r} takes, the interactions' own"
            raise DataError(
                f"side table {side.path}: column {key!r} {found}. Rename the other column, or leave it out."
            )
        for name in (*categorical, *side.continuous, *side.list_types):
            if name in others:
                raise DataError(
                    f"side table {side.path}: column {name!r} is a column of the interactions too. Rename one."
                )
            if name in owners:
                raise DataError(
                    f"side table {side.path}: column {name!r} is a column of the side table {owners[name]} too. Rename "
                    "one."
                )
            owners[name] = side.path


def categorical_types(given: Mapping[str, str] | tuple[str, ...], where: str) -> dict[str, str]:
    """Type of each categorical column, as set in YAML; `DataError` for one other than string and int64."""
    types = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, "string")
    for name, dtype in types.items():
        if dtype not in ("string", "int64"):
            raise DataError(f"{where}: categorical column {name!r} has type {dtype!r}. Known: string, int64.")
    return types
