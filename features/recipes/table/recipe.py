"""Anyone's own CSV or Parquet table, by settings alone: which columns are what, and how the rows are split."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gigabatch.features.columns.hashing import unit_interval
from gigabatch.features.columns.lists import ARROW_TYPES, is_list_type, list_entries
from gigabatch.features.columns.time_types import is_time_type, time_type
from gigabatch.features.columns.times import is_calendar, moments, timestamps
from gigabatch.features.encoding.lists import require_list_weights
from gigabatch.features.engines.frame import counted_rows, engine_of, load_engine
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.history.past import NotLater
from gigabatch.features.operators.base import ColumnOperator, unused
from gigabatch.features.reading.blocks import NotInParts, about_rows, file_frames
from gigabatch.features.reading.encodings import UTF8, is_utf8, require_encoding
from gigabatch.features.reading.sources import cast, file_columns, read_files
from gigabatch.features.reading.tables import TIME, Reading
from gigabatch.features.recipes.base import (
    SPLITS,
    FeatureParts,
    FeatureTables,
    RawFiles,
    Recipe,
    SplitFractions,
    cut_by_place,
    number_name,
    require_splits,
    split_by_time,
)
from gigabatch.features.recipes.carrying import RowsSoFar, follow, front_of, gathered, leading_steps
from gigabatch.features.recipes.staging import FlagTexts, SplitWriter, StagedRows, StagedSplits, part_by_part
from gigabatch.features.recipes.table.labels import (
    SplitLabels,
    TargetSettings,
    clean_labels,
    encode_targets,
    frame_labels,
    require_filled,
    require_own_labels,
    target_settings,
    with_labels,
)
from gigabatch.features.recipes.table.list_settings import list_column_of
from gigabatch.features.schema import ENTITIES, LARGEST_WEIGHT, Column, Entity, ListColumn, Schema, Target
from gigabatch.features.workflow.fit import threads
from gigabatch.features.workflow.flow import first_group_wise, place
from gigabatch.features.workflow.steps import parse_steps, registered_code, table_files, to_steps
from gigabatch.features.workflow.workflow import DTYPES, ROW, Workflow

LIST_TYPES = tuple(f"list[{elements}]" for elements in ARROW_TYPES)
NUMBERS = ("float32", "float64", "int32", "int64", "bool")
ENTITY_KEYS = ("key", "columns")
GROUP_FEATURE = (
    "a model can learn the groups of the train split by heart, which says nothing of others. Leave them out, or "
    "describe a group by what other groups have too."
)
TIME_FEATURE = (
    "they go on growing, so that valid, test and serving hold values that the train split has not. Leave them out, or "
    "take parts that come round (date_parts) or differences of times."
)


# Settings by which a split is no random part of the rows, row by row.
PARTED_BY = ("time", "split_key", "group", "train_path", "valid_path")


@dataclass(frozen=True)
class TableSettings:
    """Set how a table of one's own is read, split and used; what `features` may hold under `recipe: table`.

    Parameters
    ----------
    path
        The file or files that are split: a path, folder, glob, `package://` or fsspec URL.
    train_path, valid_path, test_path
        In place of `path`, files that are splits already; without `valid_path` that split is cut off the train file.
    categorical
        Names of columns read as text, or `{name: int64}` for whole numbers, `{name: bool}` for flags: true, TRUE, 1
        and 1.0 are one category.
    continuous
        Names of columns of numbers, read as float32.
    targets
        `{name: {task: binary | multiclass | regression}}`, or `{name: {task: multilabel, columns: [a, b]}}` for binary
        targets a and b that are evaluated together too. A binary label is 0 or 1, any two values of which
        `positive` names one, or a number that is 1 from `threshold` on, such as a rating; `label_strip` takes these
        characters off both ends of a label, and `label_steps` make labels of text (`[{parse_number: {}}]` of "$1,200",
        `[{clean_text: {case: lower}}]` of Yes and yes), in every file that is read and in checks of files. Multiclass
        labels are text; with `label_type`, such as `int64`, `Run.predict` gives the likeliest one in that type.
    drop_null_targets
        Whether rows with a null target are left out; the notes of the report say how many. Without it they are an
        error.
    weight
        Column of numbers from 0 to 2^64 that scale a row's loss; only their ratios count. They are taken as float32, so
        one below 1e-38 loses digits and one below 7e-46 is 0. Train rows of weight 0 are left out; the notes of the
        report say how many.
    group
        Column whose equal values are ranked together.
    time
        Column of numbers, timestamps, dates or ISO 8601 text; rows are then split in its order. All but numbers are
        whole microseconds since 1970 in UTC from here on, for steps and in the features stage; `score` writes them as
        ISO text. Of times that are written otherwise `inputs` gives the type.
    split_key
        Without `time` rows are split by a hash of this column (by default `group`, else the row number) and `seed`, so
        that equal keys share a split. No column of floats.
    keys
        Columns carried along to predictions, as text, or as whole numbers where `inputs` says int64; without any it is
        `row_number`, int64: the row's place in the files, whatever column of that name they may have.
    seed
        Of the hash, a whole number.
    split
        Shares of the rows (`train`, `valid`, `test`), or with a time their numbers: `{valid_rows: 1, test_rows: 1}`.
    null_values
        Texts that stand for null, in CSV and Parquet files, those that steps name among them, and in rows to be
        predicted; numbers that equal one do too.
    separator
        Between the fields of CSV files. Blanks beside it are part of a field, unless one stands behind it here: `", "`.
    encoding
        Of CSV files, those that steps name among them: `utf-8`, `cp1252` (Windows), `latin-1`, `utf-16` or another of
        Python's.
    column_names
        For CSV files without a header row.
    steps
        Operators as in `gigabatch.features.workflow.steps`, fitted on the train split; roles may name the columns that
        they make.
    inputs
        `{name: type}` of columns that only steps read, or that steps read as another type than their role's: int32,
        int64, float32, float64, string, bool, or datetime: timestamps, dates or ISO 8601 text, for steps whole
        microseconds since 1970 in UTC. `datetime[%d.%m.%Y]` is text of this format,
        `datetime[ms]` whole numbers of this unit; `datetime[ms]?` makes null of what is neither. `list[string]`,
        `list[int64]` and `list[float32]` are lists as of `lists`, that only steps read.
    entities
        What rows are about, for recommenders: `{user: {key: user_id, columns: [age]}, item: {key: item_id}}`. A key is
        a categorical column; columns are features, by default the key alone. What belongs to neither is the row's
        context.
    lists
        Columns that give each row a list of categories: `{tags: {elements: string, weights: tag_weights, max_length:
        50}, history: {shares: item_id}}`, keys as of `gigabatch.features.schema.ListColumn`, all optional; with
        `shares` the elements have the type of that column. Lists in Parquet files, delimited text in CSV files, or
        columns of lists that steps make, such as `history`.
    list_separator
        What stands between two elements of delimited text; an empty element is null, empty text an empty list.

    Raises
    ------
    DataError
        If files, columns, targets, steps or entities do not fit together; no file is read to find that out.

    Examples
    --------
    >>> from gigabatch.features.recipes.table.recipe import TableSettings
    >>> chosen = TableSettings(path="shop.csv", categorical=("city",), targets={"sold": {"task": "binary"}})
    >>> chosen.categories
    {'city': 'string'}
    """

    path: str | None = None
    train_path: str | None = None
    valid_path: str | None = None
    test_path: str | None = None
    categorical: dict[str, str] | tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    drop_null_targets: bool = False
    weight: str | None = None
    group: str | None = None
    time: str | None = None
    split_key: str | None = None
    keys: tuple[str, ...] = ()
    seed: int = 0
    split: SplitFractions = field(default_factory=SplitFractions)
    null_values: tuple[str, ...] = ("", "NA")
    separator: str = ","
    encoding: str = UTF8
    column_names: tuple[str, ...] | None = None
    steps: tuple[dict[str, Any], ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    entities: dict[str, dict[str, Any]] = field(default_factory=dict)
    lists: dict[str, dict[str, Any]] = field(default_factory=dict)
    list_separator: str = "|"

    def __post_init__(self) -> None:
        apart = [name for name in SPLITS if getattr(self, f"{name}_path")]
        if bool(self.path) == bool(apart) or (apart and not {"train", "test"} <= set(apart)):
            raise DataError(
                "table: give either path, or train_path and test_path (and valid_path if there is one); found "
                f"{', '.join([*(['path'] if self.path else []), *(f'{name}_path' for name in apart)]) or 'none'}."
            )
        if not isinstance(self.drop_null_targets, bool):
            raise DataError(f"table: drop_null_targets is true or false, found {self.drop_null_targets!r}.")
        if not self.targets:
            raise DataError("table: targets is empty. Name at least one, for example targets: {label: {task: binary}}.")
        if not (self.categorical or self.continuous or self.lists):
            raise DataError("table: no feature. Name columns under categorical, continuous or lists.")
        require_encoding(self.encoding, "table")
        if not isinstance(self.list_separator, str) or not self.list_separator:
            raise DataError(f"table: list_separator is text that is not empty, found {self.list_separator!r}.")
        for name, dtype in self.categories.items():
            if dtype not in ("string", "int64", "bool"):
                raise DataError(f"table: categorical column {name!r} has type {dtype!r}. Known: string, int64, bool.")
        if self.time and apart:
            raise DataError("table: time splits one path; with separate files leave it out.")
        object.__setattr__(self, "targets", with_labels(self.targets))
        target_settings(self.targets)
        self._check_row_number()
        self._check_schema()
        self._check_steps()

    def _check_row_number(self) -> None:
        """Raise `DataError` where a column of the files is meant by the name of one that the recipe makes."""
        named = (*self.categories, *self.continuous, *self.targets, *self.keys, *self.inputs)
        if ROW in (*named, self.weight, self.group, self.time):
            raise DataError(
                f"table: {ROW!r} is a column that the recipe makes, the row's place in the files, and no column of "
                "theirs is read under this name. Rename yours; as a key the place is there without keys."
            )

    def _check_beside(self, workflow: Workflow, made: Collection[str]) -> None:
        """Raise `DataError` where checks of files would take what they put beside a column for a column of the files;
        made: columns that steps make."""
        beside = {length_name(name): "lengths of a list column" for name in lists_of(self.list_types | self.inputs)}
        beside |= {number_name(name): "numbers in a column of text" for name in workflow.numbers_in_text}
        if taken := [name for name in self.declared if name in beside and name not in made]:
            raise DataError(
                f"table: {taken[0]!r} is what checks of files call the {beside[taken[0]]}. Rename that column."
            )

    def _check_schema(self) -> None:
        """Raise what the schema would refuse once the files have been read."""
        columns = [Column(name, "categorical", self.categories[name]) for name in self.categorical]
        columns += [Column(name, "continuous", "float32") for name in self.continuous]
        columns += [Column(name, "target", "float32") for name in self.targets]
        columns += [Column(self.weight, "weight", "float32")] if self.weight else []
        columns += [Column(self.group, "group", "string")] if self.group else []
        columns += [Column(self.time, "time", "int64")] if self.time else []
        columns += [Column(name, "key", "string") for name in self.keys or (ROW,)]
        targets = tuple(Target(name, "regression") for name in self.targets)  # of what classes there are, files tell
        try:
            Schema(tuple(columns), targets, entity_settings(self.entities), self.list_columns)
        except DataError as error:
            raise DataError(f"table: {error}") from error

    def _check_steps(self) -> None:
        for name, dtype in self.inputs.items():
            if dtype not in (*DTYPES, *LIST_TYPES) and _time_type(name, dtype) is None:
                raise DataError(
                    f"table: input {name!r} has type {dtype!r}. Known: {', '.join((*DTYPES, *LIST_TYPES))}, "
                    "datetime[%d.%m.%Y] (a format), datetime[ms] (a unit)."
                )
        named = [
            name for name, dtype in self.inputs.items()
            if name in (*self.targets, self.weight, self.group)
            or (name == self.time and not dtype.startswith("datetime"))
        ]  # fmt: skip
        if named:
            raise DataError(f"table: inputs names {named[0]!r}, whose role says already how it is read. Leave it out.")
        how = _time_type(str(self.time), self.inputs.get(str(self.time)))
        if how is not None and how.of_day:
            raise DataError(
                f"table: time {self.time!r} is of type {self.inputs[str(self.time)]!r}, a time of day, which puts no "
                "rows in order. Name a column of dates, or leave time out."
            )
        try:
            workflow = self.workflow()
        except DataError as error:
            raise DataError(f"table: {error}") from error
        listed = [("split_key", self.split_key)] if self.split_key else []
        listed += [("inputs", name) for name in self.inputs if not workflow.makes(name)]
        for setting, name in listed:
            if name in self.list_types:
                raise DataError(
                    f"table: {setting} {name!r} is a column of lists, which is read as lists alone. Name another "
                    "column, or take it out of lists."
                )
        made = {name for step in workflow.steps for name in step.outputs}.difference(workflow.inputs, self.inputs)
        self._check_beside(workflow, made)
        features = (*self.categories, *self.continuous, *self.list_types)
        made.intersection_update(features)  # features that steps make are no raw columns
        try:
            workflow.check([name for name in self.declared if name not in made])
        except DataError as error:
            raise DataError(f"table: {error} Columns that only steps read are declared under inputs.") from error
        there = workflow.columns_after(self.declared)
        kept = {*there, *self.inputs, ROW}
        gone = [name for name in self.declared if name not in kept]
        if gone:
            raise DataError(
                f"table: column {gone[0]!r} has a role but is not there after the steps. Columns then: "
                f"{', '.join(map(repr, there))}."
            )

    @property
    def declared(self) -> tuple[str, ...]:
        """Every column that has a role or a type."""
        roles = (self.weight, self.group, self.time, self.split_key, *self.keys, *self.targets)
        named = [*self.inputs, *self.categories, *self.continuous, *self.list_types, *(name for name in roles if name)]
        return tuple(dict.fromkeys((*named, ROW)))

    def workflow(self, engine: str = "pandas", dtypes: Mapping[str, str] | None = None) -> Workflow:
        """The steps, not fitted."""
        labels = [*self.targets, *([self.weight] if self.weight else [])]
        roles = {**dict.fromkeys(self.keys, "string"), **dict.fromkeys(self.continuous, "float32"), **self.categories}
        if self.time and (dtypes is None or is_time_type(dtypes.get(self.time, ""))):
            roles[self.time] = TIME
        reading = Reading(tuple(self.null_values), self.separator, self.encoding, roles | self.inputs)
        return Workflow(parse_steps(self.steps, engine, reading), labels, dtypes)

    @property
    def list_columns(self) -> tuple[ListColumn, ...]:
        """The list columns, in order."""
        if not isinstance(self.lists, Mapping):
            raise DataError(f"table: lists are settings by column, found {self.lists!r}.")
        return tuple(
            list_column_of(name, options or {}, self.categories, "table") for name, options in self.lists.items()
        )

    @property
    def list_types(self) -> dict[str, str]:
        """Types of the columns of lists, as files are read."""
        found = {name: dtype for column in self.list_columns for name, dtype in column.dtypes().items()}
        return {name: f"{dtype}{self.list_separator}" for name, dtype in found.items()}

    @property
    def categories(self) -> dict[str, str]:
        """Type of each categorical column."""
        return (
            dict(self.categorical)
            if isinstance(self.categorical, Mapping)
            else dict.fromkeys(self.categorical, "string")
        )


def _flag_note(name: str) -> str:
    """What is said of a column of flags that is read as text."""
    return (
        f"Column {name!r} holds True and False and is read as text, so 1, or true in another case, is a value that the "
        f"model has not seen. Declare categorical: {{{name}: bool}}, by which all of these are flags."
    )


class TableRecipe(Recipe):
    """Read one table of anyone's own; see `TableSettings` for all that can be set.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
    >>> with tempfile.NamedTemporaryFile(suffix=".csv") as file:
    ...     pd.DataFrame({"x": range(200), "late": [0, 1] * 100}).to_csv(file.name, index=False)
    ...     chosen = TableSettings(path=file.name, continuous=("x",), targets={"late": {"task": "binary"}})
    ...     tables = TableRecipe(chosen).build("pandas")
    >>> sum(len(split) for split in tables.splits.values())
    200
    """

    Settings = TableSettings
    settings: TableSettings

    def inputs(self) -> list[str]:
        files = [path for pattern in self._patterns().values() for path in self.files(pattern)]
        return files + table_files(self.settings.steps)

    def inputs_by_split(self) -> dict[str, int]:
        patterns = self._patterns()
        return {} if "all" in patterns else {name: len(self.files(pattern)) for name, pattern in patterns.items()}

    def code(self) -> dict[str, str]:
        found = registered_code(self.settings.steps)
        for name, target in self.targets.items():
            found |= {f"target {name} {step}": code for step, code in registered_code(target.label_steps).items()}
        return found

    def build(self, engine: str) -> FeatureTables:
        self._nulls: dict[tuple[str, str], tuple[int, int]] = {}
        done = 0 if self.history is None else self._num_carried
        if done:
            frame, dtype = self._rows_so_far(engine, done)
            files, times = {"all": frame}, {str(self.settings.time): dtype}
        else:
            files, times = self._whole_files(engine, self._dtypes())
        weight = self.settings.weight
        splits, targets = self._labelled_splits(files)
        workflow = self._typed_workflow(engine, times)
        if weight and self._workflow.makes(weight):  # the weight of the files tells which rows count
            given = unused(f"raw__{weight}", self._workflow.columns_after(splits["train"].columns))
            splits = {name: frame.assign(**{given: frame[weight]}) for name, frame in splits.items()}
            weight = given
        # Rows of weight 0 are history to others, so they go when the steps are done.
        splits = workflow.fit_transform_splits(splits, done, weight)
        splits |= {"train": counted_rows(splits["train"], weight)}
        splits = {k: v.reset_index(drop=True) for k, v in splits.items()}
        made = {name: dtype for name, dtype in self._made_lists.items() if name in splits["train"]}
        splits = {name: cast(frame, made, "table, after the steps") for name, frame in splits.items()}
        schema = self._schema(splits["train"], times, targets)
        for frame in splits.values():
            require_columns(frame, schema.table_columns, "table, after the steps")
        flags = FlagTexts(self._flag_columns())
        flags.look(splits["train"])
        notes = self._all_notes(workflow, flags)
        return FeatureTables(
            {name: frame[schema.table_columns] for name, frame in splits.items()}, schema, notes, workflow
        )

    def label_splits(self, engine: str) -> dict[str, Any]:
        """The splits of `build` with labels and what rows are split by alone, where no step changes the rows."""
        chosen = self.settings
        if any(step.changes_rows for step in self._workflow.steps):
            return self.build(engine).splits
        names = (*self.targets, chosen.weight, chosen.group, chosen.time, chosen.split_key)
        self._nulls = {}
        files, _ = self._whole_files(engine, {name: dtype for name, dtype in self._dtypes().items() if name in names})
        splits, _ = self._labelled_splits(files)
        splits |= {"train": counted_rows(splits["train"], chosen.weight)}
        require_splits({name: len(frame) for name, frame in splits.items()})
        return splits

    def _whole_files(self, engine: str, dtypes: dict[str, str]) -> tuple[dict[str, Any], dict[Any, str]]:
        """The rows of each file with these columns, and the type of the time."""
        self._require_raw()
        self.require_files_of_one_split(self._patterns())
        files = {name: self._read(engine, pattern, dtypes) for name, pattern in self._patterns().items()}
        return files, {self.settings.time: self._number_times(files["all"])} if self.settings.time else {}

    def _labelled_splits(self, files: dict[str, Any]) -> tuple[dict[str, Any], tuple[Target, ...]]:
        """The splits with labels as numbers, and what the schema says of these."""
        weight = self.settings.weight
        splits = self._split(files)
        rows = len(splits["train"])
        self._note_idle(rows - len(counted_rows(splits["train"], weight)), rows)
        return encode_targets(splits, self.targets, weight)

    def _schema(self, frame: Any, times: Mapping[str, str], targets: tuple[Target, ...]) -> Schema:
        """Of the splits, from train rows after the steps."""
        chosen = self.settings
        columns = tuple(self._columns(frame, times))
        return Schema(columns, targets, entity_settings(chosen.entities), chosen.list_columns)

    def _all_notes(self, workflow: Workflow, flags: FlagTexts) -> tuple[str, ...]:
        """What the report is told; flags: of the train rows after the steps."""
        left_out = [
            f"{pattern}: {nulls:,} of {rows:,} rows left out, because their target {name!r} is null."
            for (pattern, name), (nulls, rows) in self._nulls.items()
            if nulls
        ]
        idle, rows = self._idle
        if idle:
            left_out.append(
                f"train split: {idle:,} of {rows:,} rows left out, because their weight {self.settings.weight!r} is 0."
            )
        return (*left_out, *self._told_notes(workflow), *map(_flag_note, flags.found()))

    def write_parts(
        self, engine: str, folder: Path, rows_per_part: int, run: Callable[[Callable[[Any], Any], Sequence[Any]], list]
    ) -> FeatureParts | None:
        """The splits in memory that does not grow with the table, where it has more than `rows_per_part` rows and no
        step looks at other rows; else None, which has `build` hold all rows."""
        paths = [path for pattern in self._patterns().values() for path in self.files(pattern)]
        rows = sum(map(about_rows, paths))
        if rows <= rows_per_part:
            return None
        return part_by_part(
            self, engine, folder, rows, self._why_whole(), lambda: self._write_parts(engine, folder, rows_per_part)
        )

    def _why_whole(self) -> str | None:
        """Why the settings let no part of the table be computed by itself; None where they do."""
        if self.settings.lists or any(is_list_type(dtype) for dtype in self._dtypes().values()):
            return "columns of lists are not read in parts"
        if not is_utf8(self.settings.encoding):
            return f"files in {self.settings.encoding} are not read in parts"
        steps = self._workflow.steps
        position = first_group_wise(steps)
        return None if position is None else f"{place(steps, position)} looks at other rows"

    def _write_parts(self, engine: str, folder: Path, rows_per_part: int) -> FeatureParts:
        """`write_parts`: rows are read and checked into files, split, and taken through the steps part by part."""
        raw, chosen = folder / "raw", self.settings
        self._require_raw()
        self.require_files_of_one_split(self._patterns())
        self._nulls = {}
        staged: dict[str, StagedRows] = {}
        time_type: str | None = None
        for name, pattern in self._patterns().items():
            staged[name] = StagedRows(engine, raw / name, rows_per_part, chosen.time, ROW)
            for frame in self._blocks(engine, pattern, rows_per_part):
                if chosen.time and len(frame):
                    own = self._number_times(frame)
                    if time_type not in (None, own):
                        raise NotInParts(f"the times are {own} and {time_type}")
                    time_type = own
                staged[name].add(frame)
            staged[name].settle()
            self.report(f"read {pattern}")
        labels = SplitLabels(self.targets)
        for split, frame in self._counted(staged) if labels.needs_a_look else ():
            labels.look(split, frame)
        times = {chosen.time: str(time_type)} if chosen.time else {}
        workflow = self._typed_workflow(engine, times)
        cut = self._counted(staged)
        parts: Iterator[tuple[str, Any]] = ((split, labels.encode(split, frame)) for split, frame in cut)
        if not workflow.fitted:
            waiting = StagedSplits(engine, raw / "splits")
            for split, frame in parts:
                waiting.add(split, frame)
            workflow.fit(waiting.parts("train"), threads(1))
            self.report("fit")
            parts = waiting.frames()
        writer = SplitWriter(engine, folder, lambda made: self._schema(made, times, labels.described()))
        flags = FlagTexts(self._flag_columns())
        for split, frame in parts:
            made = (workflow.transform_train if split == "train" else workflow.transform)(frame).reset_index(drop=True)
            writer.write(split, made)
            if split == "train":
                flags.look(made)
        labels.require()
        rows, schema = writer.finish(SPLITS)
        shutil.rmtree(raw)
        return FeatureParts(rows, schema, self._all_notes(workflow, flags), workflow)

    def _blocks(self, engine: str, pattern: str, rows: int) -> Iterator[Any]:
        """The rows of a pattern as `_read` gives them, block by block: a file of few rows is one, as it was kept."""
        first_row = 0
        for path in self.files(pattern):
            dtypes = self._dtypes()
            whole = partial(self._read_files, engine, [path], dtypes)
            for frame in file_frames(
                path, dtypes, rows, whole, self.cache, self.without, null_values=self.settings.null_values,
                separator=self.settings.separator, names=self.settings.column_names, nullable=self._nullable,
            ):  # fmt: skip
                stop = first_row + len(frame)
                yield self._prepared(frame, pattern, first_row, f"{pattern}, rows {first_row:,} to {stop:,}")
                first_row = stop

    def _cut(self, staged: Mapping[str, StagedRows]) -> Iterator[tuple[str, Any]]:
        """Parts of the splits, as `_split` cuts whole tables."""
        shares, time = self.settings.split, self.settings.time
        for name, rows in staged.items():
            if time:
                yield from rows.cut(shares)
                continue
            for frame in rows.frames():
                parts = {name: frame}
                if name == "all":
                    parts = cut_by_place(frame, self._place(frame), shares.cuts(rows.num_rows))
                elif name == "train" and "valid" not in staged:
                    share = shares.train_of_two(rows.num_rows)
                    parts = cut_by_place(frame, self._place(frame), {"train": (0.0, share), "valid": (share, 1.0)})
                for split, part in parts.items():
                    if len(part):
                        yield split, part.reset_index(drop=True)

    def _counted(self, staged: Mapping[str, StagedRows]) -> Iterator[tuple[str, Any]]:
        """`_cut` without the train rows of weight 0: here no step looks at other rows, so nobody misses them."""
        idle = rows = 0
        for split, frame in self._cut(staged):
            kept = counted_rows(frame, self.settings.weight) if split == "train" else frame
            idle, rows = idle + len(frame) - len(kept), rows + len(frame) * (split == "train")
            if len(kept):
                yield split, kept.reset_index(drop=True)
        self._note_idle(idle, rows)

    def _note_idle(self, idle: int, rows: int) -> None:
        """Keep for the report how many train rows weigh 0, of how many; `DataError` where all do."""
        if rows and idle == rows:
            raise DataError(
                f"train split: the weight {self.settings.weight!r} of all its {rows:,} rows is 0, so there is nothing "
                "to learn. Give some of them a weight above 0, split the rows otherwise, or leave features.weight out."
            )
        self._idle = idle, rows

    def _typed_workflow(self, engine: str, times: Mapping[str, str]) -> Workflow:
        """The steps, told what the columns are; times: what the files' time is."""
        raw = self._raw_types() | dict(times) | self._time_inputs()
        return self.settings.workflow(engine, raw | self._brought_types(raw))

    def _brought_types(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        """Types of the columns that steps make and rows to be scored bring themselves (`Configured.brought`), from
        those of the raw columns."""
        found: dict[str, str] = {}
        for step in self._workflow.steps:
            found |= {name: f"{dtype}{self.settings.list_separator}" for name, dtype in step.brought(dtypes).items()}
            dtypes = step.types_after(dtypes)
        return found | {name: dtype for name, dtype in self.settings.list_types.items() if name in found}

    @property
    def _made_lists(self) -> dict[str, str]:
        """Types of the columns of lists that steps make."""
        lists = {name: dtype for column in self.settings.list_columns for name, dtype in column.dtypes().items()}
        return {name: dtype for name, dtype in lists.items() if self._workflow.makes(name)}

    @cached_property
    def _num_carried(self) -> int:
        """How many of the first steps new rows can be taken through without the rows so far; 0 without one that looks
        back, and where rows are not in order of time or a step reads the number of a class."""
        chosen = self.settings
        if not (chosen.path and chosen.time):
            return 0
        number = leading_steps(
            self._workflow.steps, [*self.targets, ROW, *(name for name in (chosen.weight, chosen.time) if name)]
        )
        classes = {name for name, target in self.targets.items() if target.task == "multiclass"}
        return 0 if any(classes.intersection(step.inputs) for step in self._workflow.steps[:number]) else number

    def _rows_so_far(self, engine: str, done: int) -> tuple[Any, str]:
        """All rows after so many steps, of which those that an earlier run finished are not computed again; and the
        type of the times."""
        assert self.history is not None
        pattern = str(self.settings.path)
        paths = self.files(pattern)
        found = self.history.find(paths, True, table_files(self.settings.steps))
        if found is not None:
            before, new = found
            try:
                return self._follow(engine, done, self._with_lists(before), new)
            except NotLater as error:
                self.history.refuse(str(error))
        self._nulls = {}
        return self._follow(engine, done, None, paths)

    def _with_lists(self, before: RowsSoFar) -> RowsSoFar:
        """What an earlier run left, with lists of the types that those of new rows have; files keep none."""
        raw = self._dtypes()
        lists = {name: dtype for name, dtype in (raw | self._brought_types(raw)).items() if is_list_type(dtype)}

        def typed(frame: Any) -> Any:
            return cast(frame, {name: lists[name] for name in lists if name in frame}, "table, rows so far")

        return replace(before, open=typed(before.open), finished=lambda: typed(before.finished()))

    def _follow(self, engine: str, num_steps: int, before: RowsSoFar | None, paths: list[str]) -> tuple[Any, str]:
        """`_rows_so_far`, given what an earlier run left and the files that it did not have."""
        assert self.history is not None
        module, pattern, time = load_engine(engine), str(self.settings.path), str(self.settings.time)
        start = 0 if before is None else before.facts["rows"]
        time_type = None if before is None else before.facts["time"]
        if before is not None:
            self._nulls = {(pattern, name): (nulls, rows) for name, nulls, rows in before.facts["nulls"]}
        parts, num_rows = [] if before is None else [before.open], start
        if paths:
            fresh = self._read(engine, pattern, self._dtypes(), paths, start)
            num_rows = self._num_read
            if len(fresh):
                own = self._number_times(fresh)
                if time_type not in (None, own):
                    raise NotLater(f"the times are {own}, so far they were {time_type}")
                time_type = own
                if before is not None and bool((fresh[time] < before.front).any()):
                    raise NotLater(f"a row at {fresh[time].min()} lies before {before.front}, where finished rows end")
                parts.append(fresh)
        steps = self._typed_workflow(engine, {time: str(time_type)}).steps[:num_steps]
        frame = module.frames.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        frame = frame.sort_values([time, ROW]).reset_index(drop=True)
        front = front_of(frame[time], 0)
        finished = module.array(frame[time] < front)
        read = {name for step in steps for name in step.inputs}.intersection(self.targets)
        raw = {
            name: unused(f"raw__{name}", [*frame.columns, *self._workflow.columns_after(frame.columns)])
            for name in read
        }
        labelled = frame.assign(
            **{raw[name]: frame[name] for name in read},
            **{name: frame_labels(name, frame, self.targets[name], self.settings.weight) for name in read},
        )
        made, pasts = follow(steps, labelled, module.array(frame[ROW] >= start), finished, before)
        made = made.assign(**{name: made[raw[name]] for name in read}).drop(columns=list(raw.values()))
        done = module.series(finished, frame)
        facts = {
            "rows": num_rows,
            "time": time_type,
            "nulls": [[name, nulls, rows] for (_, name), (nulls, rows) in self._nulls.items()],
        }
        whole = made if before is None else gathered(before, made)
        self.history.keep(frame[~done], pasts, front, facts, made[done], len(made))
        return whole, str(time_type)

    def _told_notes(self, workflow: Workflow) -> tuple[str, ...]:
        """What is said of features that steps make of the group or of the time."""
        chosen, reasons = self.settings, {"group": GROUP_FEATURE, "time": TIME_FEATURE}
        names = {role: getattr(chosen, role) for role in reasons}
        # Times of one unit, microseconds; those of day have no date.
        how = {name: time_type(dtype) for name, dtype in chosen.inputs.items() if is_time_type(dtype)}
        times = {"time": {chosen.time or ""} | {name for name, form in how.items() if form is None or not form.of_day}}
        found = {role: workflow.told_by(name, times.get(role, ())) if name else set() for role, name in names.items()}
        features = (*chosen.categories, *chosen.continuous)
        return tuple(
            f"Feature(s) {', '.join(map(repr, told))} come from the {role} column {names[role]!r}: {reason}"
            for role, reason in reasons.items()
            if (told := [name for name in features if name in found[role]])
        )

    def _flag_columns(self) -> list[str]:
        """Columns that are read as text, where 1 and true are other values than True."""
        read = self._dtypes()
        return [
            name for name, dtype in self.settings.categories.items()
            if dtype == read.get(name) == "string" and not self._workflow.makes(name)
        ]  # fmt: skip

    def _as_checked(self, frame: Any) -> Any:
        """Rows of a file as they are checked: with clean labels, beside each list column the lengths of its lists,
        float32 and null where one is empty or null, and beside each text of numbers the numbers, float64."""
        frame = clean_labels(frame, self.targets)
        for name in lists_of(self._dtypes()):
            _, lengths = list_entries(frame[name], f"list column {name!r}")
            known = lengths.astype("float32")
            known[lengths == 0] = float("nan")
            frame = frame.assign(**{length_name(name): known})
        for name, steps in self._numbers_in_text().items():
            frame = frame.assign(**{number_name(name): self._numbers_of(frame, name, steps)})
        return frame

    def _numbers_of(self, frame: Any, name: str, steps: Sequence[ColumnOperator]) -> Any:
        """What `steps` make of a column of text. Text that is no number is an error, but in rows that are left out for
        want of a label: then theirs are null, as no step of a training reads them."""

        def made(column: Any) -> Any:
            for step in steps:
                column = step.made_of(column.to_frame(step.inputs[0]))[step.outputs[0]]
            return column

        labelled = frame[name]
        for target in self.targets if self.settings.drop_null_targets else ():
            labelled = labelled.where(frame[target].notna())
        if labelled.isna().sum() > frame[name].isna().sum():
            with suppress(DataError):
                return made(frame[name])
        return made(labelled)

    def _numbers_in_text(self) -> dict[str, tuple[ColumnOperator, ...]]:
        """Of columns of the files that hold text."""
        dtypes = self._dtypes()
        return {name: steps for name, steps in self._workflow.numbers_in_text.items() if dtypes.get(name) == "string"}

    def raw_rows(self, engine: str, pattern: str, columns: Sequence[str]) -> Any:
        dtypes = self._dtypes()
        brought = self._brought_types(dtypes)
        self._require_brought(engine, pattern, [name for name in brought if name in columns])
        dtypes |= brought
        dtypes = {name: dtype for name, dtype in dtypes.items() if name in (*columns, *self.settings.keys)}
        return _numbered(_moments(self._read_files(engine, pattern, dtypes), dtypes), 0)

    def history_rows(self, engine: str, pattern: str | None, columns: Sequence[str]) -> tuple[Any, int]:
        self._nulls, number, parts = {}, 0, []
        dtypes, weight = self._dtypes(), self.settings.weight
        for files in self._patterns().values() if pattern is None else [pattern]:
            frame = self._read(engine, files, dtypes, first_row=number)
            number = self._num_read
            read = [name for name in self.targets if name in columns]
            for name in read:
                require_own_labels(name, counted_rows(frame, weight)[name], self.targets[name])
            labels = {name: frame_labels(name, frame, self.targets[name], weight) for name in read}
            parts.append(_moments(frame.assign(**labels), dtypes)[[*columns]])
        frame = parts[0] if len(parts) == 1 else engine_of(parts[0]).frames.concat(parts, ignore_index=True)
        return frame, number

    def _require_brought(self, engine: str, pattern: str, names: Sequence[str]) -> None:
        """Raise `DataError` for a file to be scored without what a step makes of earlier rows."""
        chosen = self.settings
        for path in self.files(pattern) if names else ():
            there = chosen.column_names or file_columns(engine, path, chosen.separator, chosen.encoding)
            if missing := [name for name in names if name not in there]:
                raise DataError(
                    f"input {path}: it has no column {missing[0]!r}, which a step makes of earlier rows, so rows to be "
                    "scored bring it. Add it (docs/workflow.md: workflow.transform(rows, history=earlier) makes it), "
                    "or score a split."
                )

    @cached_property
    def _workflow(self) -> Workflow:
        """The steps, for what they read and make."""
        return self.settings.workflow()

    @property
    def targets(self) -> dict[str, TargetSettings]:
        return target_settings(self.settings.targets)

    def _patterns(self) -> dict[str, str]:
        """What each file is: `all`, or one of the splits."""
        given = {"all": self.settings.path} | {name: getattr(self.settings, f"{name}_path") for name in SPLITS}
        return {name: pattern for name, pattern in given.items() if pattern}

    def _read(
        self, engine: str, pattern: str, dtypes: dict[str, str], paths: Sequence[str] | None = None, first_row: int = 0
    ) -> Any:
        """Columns of a pattern, or of some of its files, whose rows are numbered from `first_row` on."""
        self._require_raw()
        frame = self._read_files(engine, pattern if paths is None else paths, dtypes)
        self._num_read = first_row + len(frame)
        return self._prepared(frame, pattern, first_row, pattern)

    def _require_raw(self) -> None:
        """Raise `DataError` where a step makes what is read before the steps, or rows would be split by floats."""
        chosen, dtypes = self.settings, self._dtypes()
        for name in (*self.targets, chosen.weight, chosen.group, chosen.time, chosen.split_key):
            if name and name not in dtypes and name != ROW:
                raise DataError(
                    f"table: {name!r} is made by a step, but targets, weight, group, time and split_key are read from "
                    "the files, before the steps. Name a column of the files; `threshold` of a target makes a binary "
                    "label of its numbers."
                )
        if (dtype := dtypes.get(chosen.split_key or "")) in ("float32", "float64"):
            raise DataError(
                f"table: split_key {chosen.split_key!r} is read as {dtype}, and floats that look alike may be two "
                "keys. Name a column of text, whole numbers or flags, or one that nothing reads as a float: it is read "
                "as text."
            )

    def _prepared(self, frame: Any, pattern: str, first_row: int, where: str) -> Any:
        """Rows of files, numbered, checked, with clean labels, those without one left out; where: for messages."""
        chosen = self.settings
        # Of the file, whatever rows are left out.
        frame = _numbered(frame, first_row)
        try:
            frame = clean_labels(frame, self.targets)
        except DataError as error:
            raise DataError(f"input {where}: {error}") from error
        frame = self._labelled(frame, pattern, where)
        for name in (chosen.weight, chosen.group, chosen.time, chosen.split_key):
            if name:
                require_filled(frame[name], where)
        raw = {name for name, dtype in self._dtypes().items() if is_list_type(dtype)}  # of others steps make lists
        for column in chosen.list_columns:
            if column.weights is not None and set(column.columns) <= raw.intersection(frame.columns):
                rows = engine_of(frame).to_pandas(frame[[ROW]])[ROW].to_numpy()
                require_list_weights(frame, column, f"input {where}", rows)  # later, rows are counted within a split
        weight = frame[chosen.weight] if chosen.weight else None
        if weight is not None and not bool(((weight >= 0) & (weight <= LARGEST_WEIGHT)).all()):
            raise DataError(
                f"input {where}: weight {chosen.weight!r} holds negative values, or some beyond 2^64. Only the "
                "ratios of weights count: divide them by their largest."
            )
        return frame

    def _labelled(self, frame: Any, pattern: str, where: str) -> Any:
        """The rows whose targets are known; without `drop_null_targets` a null is an error."""
        for name in self.targets:
            nulls = int(frame[name].isna().sum())
            if nulls and not self.settings.drop_null_targets:
                raise DataError(
                    f"input {where}: target {name!r} is null in {nulls} of {len(frame)} rows. Set "
                    "features.drop_null_targets=true to leave such rows out. Remove those rows or give them a label "
                    "otherwise."
                )
            earlier = self._nulls.get((pattern, name), (0, 0))
            self._nulls[pattern, name] = earlier[0] + nulls, earlier[1] + len(frame)
            if nulls:
                frame = frame[frame[name].notna()].reset_index(drop=True)
        return frame

    def _read_files(self, engine: str, pattern: str | Sequence[str], dtypes: dict[str, str]) -> Any:
        chosen = self.settings
        return read_files(
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
            decimal_marks=self._workflow.decimal_marks,
        )

    @property
    def _nullable(self) -> frozenset[str]:
        """Columns that may hold nulls, whatever their type."""
        return frozenset((*self.settings.categories, *self.settings.inputs))

    def raw_files(self) -> tuple[RawFiles, ...]:
        chosen = self.settings
        dtypes = self._dtypes()
        written = {name for name, dtype in dtypes.items() if dtype not in NUMBERS}  # steps make numbers of them
        numbers = [name for name in chosen.continuous if name not in written]
        roles = dict.fromkeys(chosen.categories, "category") | dict.fromkeys(numbers, "number")
        beside = dict.fromkeys(
            (*map(length_name, lists_of(dtypes)), *map(number_name, self._numbers_in_text())), "number"
        )
        roles |= dict.fromkeys(chosen.keys, "key") | dict.fromkeys(self.targets, "label")
        one = {"weight": chosen.weight, "group": chosen.group, "time": chosen.time}
        roles |= {name: role for role, name in one.items() if name}
        labels = () if chosen.drop_null_targets else tuple(self.targets)
        steps = {name: (target.label_strip, target.label_steps) for name, target in self.targets.items()}
        made_from: dict[str, Any] = {name: how for name, how in steps.items() if any(how)}
        made_from |= {
            name: [*steps[name], target.threshold]
            for name, target in self.targets.items()
            if target.threshold is not None
        }
        made_from |= {
            # By which statistics that were kept when rows without a label had no numbers are made again.
            number_name(name): [to_steps(operators), "all rows" if chosen.drop_null_targets else False]
            for name, operators in self._numbers_in_text().items()
        }
        filled = frozenset(name for name in (*labels, *one.values(), chosen.split_key) if name in dtypes)
        return tuple(
            RawFiles(
                name, pattern, dtypes, {column: role for column, role in roles.items() if column in dtypes} | beside,
                {column: target.task for column, target in self.targets.items()},
                tuple(chosen.null_values), chosen.separator, chosen.encoding,
                None if chosen.column_names is None else tuple(chosen.column_names),
                self._nullable,
                filled, make=self._as_checked, made_from=made_from, unit="us" if self._time_inputs() else None,
                decimal_marks=self._workflow.decimal_marks,
                texts_read=frozenset(self._workflow.texts_read((*chosen.categories, *chosen.keys))),
            )
            for name, pattern in self._patterns().items()
        )  # fmt: skip

    def _dtypes(self) -> dict[str, str]:
        """Type of each column that is read from the files: those that have a role, unless a step makes them, and those
        that steps read."""
        chosen, workflow = self.settings, self._workflow
        texts = [name for name in (chosen.group, chosen.split_key, *chosen.keys) if name]
        times = {chosen.time: "time"} if chosen.time else {}
        dtypes = (
            dict.fromkeys(texts, "string") | times | chosen.categories | dict.fromkeys(chosen.continuous, "float32")
        )
        dtypes |= {name: target.dtype for name, target in self.targets.items()}
        dtypes |= chosen.list_types
        if chosen.weight:
            dtypes[chosen.weight] = "float32"
        # What the words of the train rows may make (text_flags) is a column of the files if inputs says so.
        sure = {name for step in workflow.steps for name in step.outputs}
        raw = {name for name in chosen.inputs if name not in sure and workflow.makes(name)}
        read = raw.union(workflow.inputs)
        made = {name for name in dtypes if workflow.makes(name) and name not in read}
        needed = {name: dtype for name, dtype in chosen.inputs.items() if name in read or name in dtypes}
        needed |= {name: f"{dtype}{chosen.list_separator}" for name, dtype in needed.items() if is_list_type(dtype)}
        return {name: dtype for name, dtype in (dtypes | needed).items() if name not in made and name != ROW}

    def _raw_types(self) -> dict[str, str]:
        """What the workflow is to be given; label and weight are left out."""
        labels = (*self.targets, self.settings.weight)
        return {name: dtype for name, dtype in self._dtypes().items() if name not in labels}

    def _number_times(self, frame: Any) -> str:
        """Make the times of the frame numbers; their type: datetime, or that of numbers of the user's own unit."""
        time = str(self.settings.time)
        raw = frame[time]
        frame[time] = moments(raw)
        return "datetime" if self._time_inputs() or is_calendar(raw) else str(frame[time].dtype)

    def _time_inputs(self) -> dict[str, str]:
        """The type of the time where `inputs` gives it."""
        return {name: dtype for name, dtype in self.settings.inputs.items() if name == self.settings.time}

    def _split(self, files: dict[str, Any]) -> dict[str, Any]:
        shares = self.settings.split
        if "all" in files:
            frame = files["all"]
            if self.settings.time:
                return split_by_time(frame, self.settings.time, ROW, shares)
            place = self._place(frame)
            return cut_by_place(frame, place, shares.cuts(len(frame)))
        if "valid" not in files:
            share = shares.train_of_two(len(files["train"]))
            place = self._place(files["train"])
            files |= cut_by_place(files["train"], place, {"train": (0.0, share), "valid": (share, 1.0)})
        return {name: files[name] for name in SPLITS}

    def _place(self, frame: Any) -> Any:
        """float64 in [0, 1), one a row, equal for equal keys: two rounds of XXH64 with the seed in between."""
        engine = engine_of(frame)
        key = frame[self.settings.split_key or self.settings.group or ROW]
        mixed = engine.hash64(engine.series(engine.hash64(key) ^ (self.settings.seed & (2**63 - 1)), frame))
        return unit_interval(mixed.view("uint64"))

    def _columns(self, frame: Any, times: Mapping[str, str]) -> list[Column]:
        chosen = self.settings
        columns = [Column(name, "categorical", self._stored(frame, name)) for name in chosen.categories]
        columns += [Column(name, "continuous", "float32") for name in chosen.continuous]
        columns += [Column(name, "target", target.stored) for name, target in self.targets.items()]
        columns += [Column(chosen.weight, "weight", "float32")] if chosen.weight else []
        columns += [Column(chosen.group, "group", "string")] if chosen.group else []
        if chosen.time:
            made = self._workflow.makes(chosen.time)
            columns += [Column(chosen.time, "time", str(frame[chosen.time].dtype) if made else times[chosen.time])]
        declared = {name: "" if self._workflow.makes(name) else chosen.inputs.get(name, "") for name in chosen.keys}
        keys = {
            name: "datetime" if is_time_type(dtype) else dtype if dtype == "int64" else "string"
            for name, dtype in declared.items()
        }
        return columns + [Column(name, "key", dtype) for name, dtype in (keys or {ROW: "int64"}).items()]

    def _stored(self, frame: Any, name: str) -> str:
        """Type of a categorical column in the features stage; whole numbers that a step makes stay whole numbers."""
        declared = self.settings.categories[name]
        made = isinstance(self.settings.categorical, Sequence) and self._workflow.makes(name)
        return "int64" if made and frame[name].dtype.kind in "iu" else declared


def _time_type(name: str, dtype: Any) -> Any:
    """As `time_type`, with the input's name in errors."""
    try:
        return time_type(dtype) if isinstance(dtype, str) else None
    except DataError as error:
        raise DataError(f"table: input {name!r}: {error}") from error


def lists_of(dtypes: Mapping[str, str]) -> list[str]:
    """The columns of lists among these, but those of weights."""
    return [name for name, dtype in dtypes.items() if is_list_type(dtype) and not dtype.startswith("list[float32]")]


def length_name(name: str) -> str:
    """What checks of files call the lengths of a list column."""
    return f"{name} (length)"


def entity_settings(given: Mapping[str, Any]) -> tuple[Entity, ...]:
    """From `{user: {key: user_id, columns: [age]}, ...}`; the key is a column of its entity whether listed or not.

    Raises:
        DataError: for an unknown entity or option, a key that is no text, or columns that are no list of names.
    """
    return tuple(_entity(name, options) for name, options in given.items())


def _entity(name: str, options: Any) -> Entity:
    if name not in ENTITIES:
        raise DataError(f"entities: unknown entity {name!r}. Known: {', '.join(ENTITIES)}.")
    if not isinstance(options, Mapping) or not isinstance(options.get("key"), str):
        raise DataError(
            f"entities: {name} needs a key, the column that says which {name} a row is about, for example {name}: "
            f"{{key: {name}_id}}; found {options!r}."
        )
    if unknown := [option for option in options if option not in ENTITY_KEYS]:
        raise DataError(
            f"entities: unknown key(s) {', '.join(map(str, unknown))} of {name}. Known: {', '.join(ENTITY_KEYS)}."
        )
    columns = options.get("columns") or ()
    if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
        raise DataError(f"entities: columns of {name} is a list of names, found {columns!r}.")
    key = options["key"]
    return Entity(name, key, tuple(columns) if key in columns else (key, *columns))


def _moments(frame: Any, dtypes: Mapping[str, str]) -> Any:
    """The frame with times as timestamps, which say by themselves what they are, to the workflow and to whoever writes
    them."""
    for name, dtype in dtypes.items():
        if is_time_type(dtype) and name in frame.columns:
            frame[name] = timestamps(frame[name])
    return frame


def _numbered(frame: Any, first_row: int) -> Any:
    """The rows with their numbers, from `first_row` on; made at once, as pandas warns of a column that comes after
    hundreds."""
    module = engine_of(frame)
    numbers = module.arrays.arange(first_row, first_row + len(frame))
    return module.frame({name: frame[name] for name in frame.columns} | {ROW: numbers}, frame)
