"""Anyone's interactions of users with items, by settings alone: clicks, purchases, plays or ratings, with or without
contexts, for ranking from positives alone or for telling high ratings from low ones.

`splits` says what counts as a positive and how rows are split, `histories` what a row is told of earlier ones,
`side_tables` how what is known of users and items comes along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gigabatch.features.columns.time_types import time_type
from gigabatch.features.columns.times import is_calendar, moments
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.blocks import about_rows, file_frames
from gigabatch.features.reading.encodings import UTF8, is_utf8, require_encoding
from gigabatch.features.reading.sources import kept_files, read_files
from gigabatch.features.recipes.base import FeatureParts, FeatureTables, RawFiles, Recipe, SplitFractions
from gigabatch.features.recipes.interactions.histories import (
    newest_histories,
    require_times,
    scored_histories,
    scored_types,
)
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.parts import write_user_parts
from gigabatch.features.recipes.interactions.side_tables import (
    SideColumns,
    SideTable,
    categorical_types,
    require_distinct_names,
)
from gigabatch.features.recipes.interactions.splits import (
    GIVEN,
    SPLITS,
    TARGET,
    InteractionRules,
    interaction_tables,
    positives,
)
from gigabatch.features.recipes.table.labels import require_filled
from gigabatch.features.schema import ENTITIES
from gigabatch.features.workflow.workflow import ROW


@dataclass(frozen=True)
class InteractionsSettings(InteractionRules):
    """Set how interactions are read; what `features` may hold under `recipe: interactions` with `InteractionRules`.

    Parameters
    ----------
    path
        File, folder, glob, `package://` or fsspec URL of the interactions.
    valid_path, test_path
        As `path`, of splits that are given: then `path` is train alone, and `split_by`, `split` have no say. Both or
        neither. `repeats` is about the rows of one split; what is in two of them stays in both, unless it is `error`.
    user, item
        Columns of their ids.
    id_type
        Type of the ids, `string` or `int64`.
    time
        Column of numbers, timestamps, dates or ISO 8601 text; all but numbers are whole microseconds since 1970 in UTC
        in the features stage.
    time_type
        How times are written where that is not so: `datetime[%d.%m.%Y]` (a format) or `datetime[ms]` (a unit), as
        `inputs` of the recipe `table` has it; they become microseconds too.
    rating
        Column of numbers, for task rating and for a threshold.
    contexts
        Categorical columns: names, read as text, or `{name: int64}` for whole numbers.
    continuous
        Names of columns of numbers, read as float32.
    user_columns, item_columns
        Those of `contexts` and `continuous` that describe the user or the item of a row and are thus no context.
    side_tables
        What describes them in files of its own, `{item: {path: ..., categorical: [...]}}`; see `SideTable`.
    null_values
        Texts that stand for null; numbers that equal one do too.
    separator
        Between the fields of CSV files. Blanks beside it are part of a field, unless one stands behind it here: `", "`.
    encoding
        Of CSV files: `utf-8`, `cp1252` (Windows), `latin-1`, `utf-16` or another of Python's.
    column_names
        For CSV files without a header row.

    Raises
    ------
    DataError
        If a column has two roles, or a task, split or history needs a column that is not named; if one of `valid_path`
        and `test_path` is given alone, or beside `split_by` or `split`; no file is read.

    Examples
    --------
    >>> from gigabatch.features.recipes.interactions.recipe import InteractionsSettings
    >>> chosen = InteractionsSettings(path="plays.csv", user="listener", item="song", time="at", contexts=("device",))
    >>> chosen.layout.identity
    ['listener', 'song', 'device']
    """

    path: str | None = None
    valid_path: str | None = None
    test_path: str | None = None
    user: str = "user"
    item: str = "item"
    id_type: Literal["string", "int64"] = "string"
    time: str | None = None
    time_type: str | None = None
    rating: str | None = None
    contexts: dict[str, str] | tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    user_columns: tuple[str, ...] = ()
    item_columns: tuple[str, ...] = ()
    side_tables: dict[str, SideTable] = field(default_factory=dict)
    null_values: tuple[str, ...] = ("", "NA")
    separator: str = ","
    encoding: str = UTF8
    column_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise DataError("interactions: set path, the file or files of the interactions.")
        self._check_given_splits()
        require_encoding(self.encoding, "interactions")
        if self.id_type not in ("string", "int64"):
            raise DataError(f"interactions: id_type is {self.id_type!r}. Known: string, int64.")
        if unknown := [name for name in self.side_tables if name not in ENTITIES]:
            raise DataError(f"interactions: unknown side table {unknown[0]!r}. Known: {', '.join(ENTITIES)}.")
        if self.least_positive is not None and not self.rating:
            reason = "task rating" if self.task == "rating" else "a threshold"
            raise DataError(f"interactions: {reason} needs rating, the column of the ratings.")
        if self.way == "time" and not self.time:
            raise DataError("interactions: split_by time needs time, the column of the times.")
        self._check_time_type()
        if self.history is not None:
            require_times(self.time)
        self._check_columns()

    def _check_time_type(self) -> None:
        if self.time_type is None:
            return
        how = time_type(self.time_type)
        if how is None and self.time_type != "datetime":
            raise DataError(
                f"interactions: time_type is {self.time_type!r}. Known: datetime, datetime[%d.%m.%Y] (a format), "
                "datetime[ms] (a unit)."
            )
        if not self.time or (how is not None and how.of_day):
            reason = (
                "needs time, the column of the times" if not self.time else "is a time of day, which orders no rows"
            )
            raise DataError(f"interactions: time_type {self.time_type!r} {reason}.")

    def _check_given_splits(self) -> None:
        if bool(self.valid_path) != bool(self.test_path):
            one, other = ("valid_path", "test_path") if self.valid_path else ("test_path", "valid_path")
            raise DataError(
                f"interactions: {one} is given and {other} is not. Give both, with path for train alone, or neither, "
                "and set split_by."
            )
        if self.test_path and (self.split_by or self.split != SplitFractions()):
            raise DataError(
                "interactions: valid_path and test_path are splits already. Leave out split_by and split, or the two."
            )

    @property
    def way(self) -> str:
        """How the rows are split: `given` where they come as splits."""
        return "given" if self.test_path else super().way

    @property
    def paths(self) -> dict[str, str]:
        """Where the rows are, by split where splits are given."""
        found = {"train": self.path, "valid": self.valid_path, "test": self.test_path}
        return {name: str(path) for name, path in found.items() if path}

    def _check_columns(self) -> None:
        contexts = categorical_types(self.contexts, "interactions")
        roles = [self.user, self.item, *contexts, *self.continuous]
        roles += [name for name in (self.time, self.rating) if name]
        if twice := sorted({name for name in roles if roles.count(name) > 1}):
            raise DataError(f"interactions: column {twice[0]!r} has two roles. Give it one.")
        made = (ROW, TARGET, GIVEN, *(self.history.columns if self.history else ()))
        if taken := [name for name in roles if name in made]:
            raise DataError(f"interactions: {taken[0]!r} is a column that the recipe makes. Rename yours.")
        for entity, names in (("user", self.user_columns), ("item", self.item_columns)):
            if strange := [name for name in names if name not in (*contexts, *self.continuous)]:
                raise DataError(
                    f"interactions: {strange[0]!r} of {entity}_columns is neither in contexts nor in continuous. "
                    f"Columns there: {', '.join((*contexts, *self.continuous)) or 'none'}."
                )
        if both := [name for name in self.user_columns if name in self.item_columns]:
            raise DataError(f"interactions: {both[0]!r} is in user_columns and in item_columns. Leave it in one.")
        require_distinct_names(self.side_tables, {"user": self.user, "item": self.item}, {*roles, *made})

    @property
    def sides(self) -> dict[str, SideTable]:
        """The side tables, of whose lists those that share a column of another table have the type that it has."""
        types = {name: dtype for side in self.side_tables.values() for name, dtype in side.types.items()}
        types |= {self.user: self.id_type, self.item: self.id_type} | categorical_types(self.contexts, "")
        return {name: side.sharing(types) for name, side in self.side_tables.items()}

    @property
    def layout(self) -> Layout:
        """What is what in the frame that is read."""
        categorical = {self.user: self.id_type, self.item: self.id_type} | categorical_types(self.contexts, "")
        return Layout(
            self.user, self.item, categorical, self.continuous, self.time, self.rating, self.user_columns,
            self.item_columns, self.time_type or "time",
        )  # fmt: skip


class InteractionsRecipe(Recipe):
    """Read anyone's interactions of users with items; see `InteractionsSettings` and `InteractionRules`."""

    Settings = InteractionsSettings
    settings: InteractionsSettings

    def inputs(self) -> list[str]:
        sides = [path for side in self.settings.side_tables.values() for path in self.files(side.path)]
        return [path for pattern in self.settings.paths.values() for path in self.files(pattern)] + sides

    def inputs_by_split(self) -> dict[str, int]:
        if self.settings.way != "given":
            return {}
        return {name: len(self.files(pattern)) for name, pattern in self.settings.paths.items()}

    def build(self, engine: str) -> FeatureTables:
        frame, layout = self._timed(self.read(engine))
        self.report("read")
        return interaction_tables(frame, layout, self.settings, self._sides(engine))

    def write_parts(
        self, engine: str, folder: Path, rows_per_part: int, run: Callable[[Callable[[Any], Any], Sequence[Any]], list]
    ) -> FeatureParts | None:
        """As `write_user_parts`, where there are more than `rows_per_part` interactions."""
        chosen = self.settings
        about = sum(about_rows(path) for pattern in chosen.paths.values() for path in self.files(pattern))
        reason = None if is_utf8(chosen.encoding) else f"files in {chosen.encoding} are not read in parts"
        rows = about, rows_per_part
        return write_user_parts(
            self, engine, folder, rows, reason, lambda: map(self._timed, self._blocks(engine, rows_per_part)), chosen,
            lambda: self._sides(engine),
        )  # fmt: skip

    def _blocks(self, engine: str, rows: int) -> Iterator[Any]:
        """The rows that `read` gives, block by block."""
        module, chosen, dtypes, first_row = load_engine(engine), self.settings, self._dtypes(), 0
        self.require_files_of_one_split(chosen.paths)
        for split, pattern in chosen.paths.items():
            for path in self.files(pattern):
                first_of_file = first_row
                whole = partial(self._read_files, engine, [path], dtypes)
                for frame in file_frames(
                    path, dtypes, rows, whole, self.cache, self.without, null_values=chosen.null_values,
                    separator=chosen.separator, names=chosen.column_names, nullable=self._nullable,
                ):  # fmt: skip
                    start = first_row - first_of_file
                    self._require_filled(frame, f"{path}, rows {start:,} to {start + len(frame):,}")
                    frame[ROW] = module.arrays.arange(first_row, first_row + len(frame))
                    if chosen.way == "given":
                        frame[GIVEN] = module.arrays.full(len(frame), SPLITS.index(split), dtype="int64")
                    first_row += len(frame)
                    yield frame

    def _timed(self, frame: Any) -> tuple[Any, Layout]:
        """Rows with their times as numbers, and the layout that says what these are."""
        layout = self.settings.layout
        if layout.time:
            raw = frame[layout.time]
            frame[layout.time] = moments(raw)
            calendar = self.settings.time_type is not None or is_calendar(raw)
            dtype = "datetime" if calendar else str(frame[layout.time].dtype)
            layout = replace(layout, time_dtype=dtype, time_unit="us" if calendar else None)
        return frame, layout

    def read(self, engine: str) -> Any:
        """Every interaction of the files, with `row_number`, its place there, and its time as it is written."""
        layout, found = self.settings.layout, {}
        self.require_files_of_one_split(self.settings.paths)
        for split, pattern in self.settings.paths.items():
            frame = self._read_files(engine, pattern, self._dtypes())
            self._require_filled(frame, pattern)
            found[split] = frame
        if len(found) == 1:
            return found["train"]
        if layout.time and len({is_calendar(frame[layout.time]) for frame in found.values()}) > 1:
            raise DataError(
                f"interactions: {layout.time!r} holds dates in one of path, valid_path and test_path and numbers in "
                "another. Write times alike."
            )
        module = load_engine(engine)
        for number, name in enumerate(SPLITS):
            found[name][GIVEN] = module.arrays.full(len(found[name]), number, dtype="int64")
        frame = module.frames.concat([found[name] for name in SPLITS], ignore_index=True)
        frame[ROW] = module.arrays.arange(len(frame))
        return frame

    def _require_filled(self, frame: Any, where: str) -> None:
        """Raise `DataError` for a null in a column that takes none."""
        layout = self.settings.layout
        for name in (layout.user, layout.item, layout.time, layout.rating):
            if name:
                require_filled(frame[name], where)

    @property
    def _nullable(self) -> set[str]:
        """Columns of categories that may hold nulls."""
        return self.settings.layout.categorical.keys() - {self.settings.user, self.settings.item}

    def _dtypes(self) -> dict[str, str]:
        layout = self.settings.layout
        dtypes = {**layout.categorical} | dict.fromkeys(layout.continuous, "float32")
        dtypes |= {layout.time: layout.time_type} if layout.time else {}
        return dtypes | ({layout.rating: "float64"} if layout.rating else {})

    def raw_files(self) -> tuple[RawFiles, ...]:
        chosen, layout = self.settings, self.settings.layout
        roles = dict.fromkeys(layout.categorical, "category") | dict.fromkeys(layout.continuous, "number")
        roles |= {layout.time: "time"} if layout.time else {}
        roles |= {layout.rating: "label"} if layout.rating else {}
        nulls, names = tuple(chosen.null_values), chosen.column_names
        rows = [
            RawFiles(
                "interactions" if split == "train" else split, pattern, self._dtypes(), roles,
                {layout.rating: "regression"} if layout.rating else {}, nulls, chosen.separator,
                chosen.encoding,
                None if names is None else tuple(names),
                frozenset(self._nullable),
                frozenset(name for name in (layout.user, layout.item, layout.time, layout.rating) if name),
                unit=None if chosen.time_type is None else "us",
            )
            for split, pattern in chosen.paths.items()
        ]  # fmt: skip
        keys = {"user": chosen.user, "item": chosen.item}
        sides = chosen.sides.items()
        return (*rows, *(side.raw_files(name, keys[name], chosen.id_type, nulls) for name, side in sides))

    def raw_rows(self, engine: str, pattern: str, columns: Sequence[str]) -> Any:
        """Rows of users, items and contexts to be scored; what is known of users and items comes from side tables, and
        histories, where the files have none, from the interactions: see `scored_types`."""
        chosen, layout, sides = self.settings, self.settings.layout, self._sides(engine)
        looked_up = {name for side in sides.values() for name in side.names}
        known = {**layout.categorical} | dict.fromkeys(layout.continuous, "float32")
        keys = {layout.user, layout.item} if sides else set()
        paths = kept_files(pattern, self.leave_out)
        further = scored_types(
            engine, paths, columns, layout, chosen.history, chosen.separator, chosen.encoding, chosen.column_names
        )
        keys |= {layout.user} if further.looked_up else set()
        dtypes = {name: dtype for name, dtype in known.items() if name in keys.union(columns) - looked_up}
        frame = self._read_files(engine, pattern, dtypes | further.types)
        for side in sides.values():
            frame, _ = side.attach(frame)
        if not further.looked_up:
            return frame
        interactions, layout = self._timed(self.read(engine))
        assert chosen.history is not None
        return scored_histories(frame, pattern, positives(interactions, layout, chosen), layout, chosen.history, ROW)

    def with_newest_histories(self, engine: str, users: Any) -> Any:
        """Rows of users with the last positives of all interactions, the newest of which the users' rows are about."""
        chosen = self.settings
        if chosen.history is None:
            return users
        interactions, layout = self._timed(self.read(engine))
        return newest_histories(users, positives(interactions, layout, chosen), layout, chosen.history, ROW)

    def _read_files(self, engine: str, pattern: str | Sequence[str], dtypes: dict[str, str]) -> Any:
        chosen = self.settings
        frame = read_files(
            engine,
            pattern,
            dtypes,
            null_values=chosen.null_values,
            separator=chosen.separator,
            encoding=chosen.encoding,
            names=chosen.column_names,
            nullable=self._nullable,
            cache=self.cache,
            leave_out=self.leave_out,
            without=self.without,
        )
        frame[ROW] = load_engine(engine).arrays.arange(len(frame))
        return frame

    def _sides(self, engine: str) -> dict[str, SideColumns]:
        chosen = self.settings
        keys = {"user": chosen.user, "item": chosen.item}
        return {
            name: side.read(engine, keys[name], chosen.id_type, chosen.null_values, self.cache, self.leave_out)
            for name, side in chosen.sides.items()
        }
