"""Recipe: raw tables to the features stage's splits and schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from gigabatch.features.columns.lists import is_list_type, list_types
from gigabatch.features.encoding.label_spread import LabelSpread
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.reading.encodings import UTF8
from gigabatch.features.reading.row_bytes import RowBytes
from gigabatch.features.reading.sources import FileCache, cast, kept_files, read_files, same_file
from gigabatch.features.recipes.carrying import History
from gigabatch.features.schema import Schema
from gigabatch.features.workflow.workflow import Workflow

SPLITS = ("train", "valid", "test")
HISTORY_UNTIL = "__history_until__"  # of users with the histories of now: the time up to which these go
BESIDE = ("schema.json", "manifest.json", "workflow")  # what the artifact of the splits holds beside them


@dataclass(frozen=True)
class Finished:
    """Say which rows are asked for as files, once all are written, so that nobody writes them twice.

    Parameters
    ----------
    start, stop
        The first and the end of their places among the rows of train, valid and test, one below the other.
    keep
        Takes the Parquet files of these rows, in order.
    """

    start: int
    stop: int
    keep: Callable[[Sequence[Path]], None]


@dataclass(frozen=True)
class FeatureTables:
    """Hold what a recipe makes.

    Parameters
    ----------
    splits
        `train`, `valid`, `test` and any further named frame, all with the schema's columns. Frames of other libraries
        become pandas'.
    schema
        Columns, roles and types of the splits.
    notes
        Plain sentences for the report, such as rows left out and why.
    workflow
        The fitted steps from raw rows to these columns, for recipes whose models can be given raw rows.
    finished
        Rows whose files the recipe asks for; None for none.

    Raises
    ------
    DataError
        If one of the three splits is missing or empty, one is called as no folder can be, is no frame, or has a column
        of the schema not at all or twice.
    """

    splits: dict[str, Any]
    schema: Schema
    notes: tuple[str, ...] = ()
    workflow: Workflow | None = None
    finished: Finished | None = None

    def __post_init__(self) -> None:
        from gigabatch.features.engines.arrow_tables import own_frame  # only where rows are there

        own = {name: own_frame(frame, f"recipe: split {name!r}") for name, frame in self.splits.items()}
        require_splits({name: len(frame) for name, frame in own.items()})
        for name, frame in own.items():
            require_columns(frame, self.schema.table_columns, f"recipe: split {name!r}")
        object.__setattr__(self, "splits", own)


@dataclass(frozen=True)
class FeatureParts:
    """Describe what a recipe wrote by itself, part by part, as `<split>/part-*.parquet`.

    The parts have the schema's columns and types; targets hold no null but in splits beyond the three.

    Parameters
    ----------
    rows
        Number of rows by split, checked as in `FeatureTables`.
    schema, notes, workflow
        As of `FeatureTables`.
    """

    rows: dict[str, int]
    schema: Schema
    notes: tuple[str, ...] = ()
    workflow: Workflow | None = None

    def __post_init__(self) -> None:
        require_splits(self.rows)


class TargetChecks:
    """Check the targets of the rows that are written, part by part: no null but in splits beyond the three, and labels
    of a regression whose differences float32 keeps.

    Parameters
    ----------
    schema
        Of the splits.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._nulls: Counter[tuple[str, str]] = Counter()
        self._spreads: dict[str, LabelSpread] = {}

    def look(self, split: str, frame: Any) -> None:
        """Tell of a part of a split, before its columns are cast to the schema's types."""
        for target in self.schema.targets if split in SPLITS else ():
            self._nulls[target.name, split] += int(frame[target.name].isna().sum())
            if target.task == "regression" and split == "train":  # before the cast rounds what they differ by
                spread = LabelSpread.of(frame[target.name], target.name)
                earlier = self._spreads.get(target.name)
                self._spreads[target.name] = spread if earlier is None else earlier.merge(spread)

    def require(self) -> None:
        """Raise `DataError` for what was found in all parts."""
        for (name, split), nulls in self._nulls.items():
            if nulls:
                raise DataError(f"target {name!r}: {nulls} null(s) in split {split!r}. Drop rows without a label.")
        for name, spread in self._spreads.items():
            spread.require(name)


def typed_rows(schema: Schema, split: str, frame: Any) -> Any:
    """Rows of a split in the schema's order and types, as they are written."""
    keys = schema.names("key")
    dates = [name for name in keys if schema.dtypes()[name] == "datetime"]
    nulls = [name for name in keys if name not in dates and bool(frame[name].isna().any())]
    nullable = {*schema.names("categorical"), *dates, *nulls}
    return cast(frame[schema.table_columns], schema.table_dtypes, f"split {split!r}", nullable=nullable)


def part_path(folder: Path, split: str, number: int) -> Path:
    """Where part `number` of a split lies."""
    return folder / split / f"part-{number:05d}.parquet"


def require_splits(rows: Mapping[str, int]) -> None:
    """Refuse splits that are missing or empty, and names that are none of a folder in the artifact's own."""
    for name in rows:
        if not isinstance(name, str) or not name or Path(name).name != name or name.startswith(".") or name in BESIDE:
            raise DataError(
                f"recipe: split {name!r} is no name of a folder, which it gets. Call it such as 'later': without "
                f"slashes, without a point in front, and none of {', '.join(BESIDE)}."
            )
    for name in SPLITS:
        if name not in rows:
            raise DataError(f"recipe: split {name!r} is missing.")
        if rows[name] == 0:
            raise DataError(
                f"recipe: split {name!r} is empty. Give more data or other split fractions. Cut by time, rows of one "
                "moment stay together in the earlier split: one that has more rows than a split's share leaves it "
                "empty, and finer times do not."
            )


def number_name(name: str) -> str:
    """What checks of files call the numbers that steps read in a column of text."""
    return f"{name} (number)"


@dataclass(frozen=True)
class RawFiles:
    """Say how one kind of a recipe's raw files is read, and what its columns are, for checks of new files.

    Parameters
    ----------
    name
        Of the kind, such as `flights` or `weather`.
    pattern
        Path, folder, glob or URL of the files.
    dtypes, null_values, separator, encoding, names, nullable, decimal_marks
        As of `read_files`. A check reads as the recipe does, so that the rows are kept for the recipe (`FileCache`).
    roles
        By column: `category`, `number`, `time`, `label`, `weight`, `key` or `group`. Text without one is a category,
        a column of lists is a `list`, or `weights` where its elements are float32; what else has none is a number.
    tasks
        Of columns of role `label`: binary, multiclass or regression.
    filled
        Columns in which the recipe takes no null.
    unit
        What numbers of the column of times count since 1970, a key of `TIME_UNITS`; None where it is not known.
    fixed
        Whether the recipe cannot do without any of these files.
    blocks
        Whether files may be larger than memory and are read block by block; those rows are kept for nobody.
    make
        Adds columns that roles name and files do not hold, such as a label that follows from two columns.
    made_from
        The settings that `make` goes by and that are not their defaults, as JSON types.
    texts_read
        Columns of text of numbers that steps or a model read as text, too.
    """

    name: str
    pattern: str
    dtypes: Mapping[str, str]
    roles: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    null_values: tuple[str, ...] = ("", "NA")
    separator: str = ","
    encoding: str = UTF8
    names: tuple[str, ...] | None = None
    nullable: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    unit: str | None = None
    fixed: bool = False
    blocks: bool = False
    make: Callable[[Any], Any] | None = None
    made_from: Mapping[str, Any] = field(default_factory=dict)
    decimal_marks: Mapping[str, str] = field(default_factory=dict)
    texts_read: frozenset[str] = frozenset()

    @property
    def time(self) -> str | None:
        """The column of times."""
        return next((name for name, role in self.roles.items() if role == "time"), None)

    def role(self, name: str) -> str:
        """What a column is."""
        dtype = self.dtypes.get(name, "")
        if is_list_type(dtype):
            return "weights" if list_types(dtype)[0] == "float32" else "list"
        return self.roles.get(name, "category" if dtype == "string" else "number")

    @property
    def numbers_in_text(self) -> list[str]:
        """Columns of text that are numbers to steps and nothing else to steps or a model: see `number_name`."""
        apart = self.roles.keys() | self.texts_read
        return [name for name in self.dtypes if number_name(name) in self.roles and name not in apart]

    def read(self, engine: str, path: str, cache: FileCache | None = None) -> Any:
        """The rows of one file, as the recipe gets them."""
        return read_files(
            engine, path, self.dtypes, null_values=self.null_values, separator=self.separator, encoding=self.encoding,
            names=self.names, nullable=self.nullable, cache=cache, decimal_marks=self.decimal_marks,
        )  # fmt: skip


class Recipe(ABC):
    """Lead one data set from its files to features, split and typed.

    A subclass carries a frozen dataclass `Settings` of what can be set under `features` of a configuration, and is
    named in `gigabatch.features.recipes.RECIPES`.

    Parameters
    ----------
    settings
        An instance of the class's `Settings`.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.recipes.base import FeatureTables, Recipe
    >>> from gigabatch.features.schema import Column, Schema, Target
    >>> class Coins(Recipe):
    ...     def inputs(self):
    ...         return []
    ...     def build(self, engine):
    ...         frame = pd.DataFrame({"side": ["heads", "tails"], "won": [1.0, 0.0]})
    ...         columns = (Column("side", "categorical", "string"), Column("won", "target", "float32"))
    ...         splits = {"train": frame, "valid": frame, "test": frame}
    ...         return FeatureTables(splits, Schema(columns, (Target("won", "binary"),)))
    >>> len(Coins(None).build("pandas").splits["train"])
    2
    """

    Settings: ClassVar[type]
    submission_columns: ClassVar[tuple[str, ...] | None] = None
    """Columns that `submission` reads beside keys, group and time, which alone are held in memory; None: any."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.report: Callable[[str], None] = lambda step: None
        """Called with a word about each step when it is done; the pipeline shows them as progress."""
        self.cache: FileCache | None = None
        """Pass it to `read_files`, so that files that did not change need not be parsed again."""
        self.leave_out: frozenset[str] = frozenset()
        """Files that are neither read nor among `inputs`, such as those in quarantine."""
        self.without: Mapping[str, Sequence[int]] = {}
        """Rows that are not read, for `read_files`; part of the artifact's key, too."""
        self.history: History | None = None
        """What earlier runs left of their rows, and where this one's are kept; None computes all rows."""

    @abstractmethod
    def inputs(self) -> list[str]:
        """Every raw file that is read; their checksums are part of the artifact's key."""

    def inputs_by_split(self) -> dict[str, int]:
        """How many of `inputs` each split has, where splits are files of their own; else none. Part of the artifact's
        key too: a file that moves from the end of one split to the front of the next changes nothing else there."""
        return {}

    def files(self, pattern: str) -> list[str]:
        """The files of a pattern, but those of `leave_out`; `DataError` where none is left."""
        return kept_files(pattern, self.leave_out)

    def require_files_of_one_split(self, patterns: Mapping[str, str]) -> None:
        """Raise `DataError` where a file is in two splits. patterns: by split."""
        owners: dict[str, str] = {}
        for split, pattern in patterns.items():
            for path in self.files(pattern):
                if (other := owners.setdefault(same_file(path), split)) != split:
                    raise DataError(f"input {path} is in {other} and in {split}. Name it under one of them.")

    def raw_files(self) -> tuple[RawFiles, ...]:
        """Each kind of raw file that is read, for checks of new ones; none where the recipe does not say."""
        return ()

    def code(self) -> dict[str, str]:
        """Hashes of code that the settings only name, such as a registered function; part of the artifact's key too."""
        return {}

    @abstractmethod
    def build(self, engine: str) -> FeatureTables:
        """Read the files, compute the features and split the rows.

        Parameters
        ----------
        engine
            Library of the frames, `pandas` or `cudf`.

        Raises
        ------
        DataError
            If a file is missing, damaged or does not fit the settings.
        """

    def history_rows(self, engine: str, pattern: str | None, columns: Sequence[str]) -> tuple[Any, int]:
        """Read the earlier rows that features of rows to be scored look at.

        Parameters
        ----------
        engine
            As for `build`.
        pattern
            Of their files; None for those that the features stage reads.
        columns
            Raw columns that are needed, labels among them.

        Returns
        -------
        (data frame, int)
            The rows as `raw_rows` gives them, with their labels as steps read them, and the number of the row that
            comes after them.

        Raises
        ------
        DataError
            If the recipe has none.
        """
        raise DataError(
            f"recipe {type(self).__name__}: takes no history of rows to be scored. Score a split of the features stage "
            "instead (--split), or use recipe: table."
        )

    def raw_rows(self, engine: str, pattern: str, columns: Sequence[str]) -> Any:
        """Read rows to be scored, from files as the recipe reads them.

        Parameters
        ----------
        engine
            As for `build`.
        pattern
            Path, folder, glob or URL of the files.
        columns
            Raw columns that are needed.

        Returns
        -------
        data frame
            These columns and the key columns, no label.

        Raises
        ------
        DataError
            If scores need more than the row itself, such as the history that flights are scored with.
        """
        raise DataError(
            f"recipe {type(self).__name__}: has no way from raw rows alone to predictions, because its features need "
            "more than the row. Score a split of the features stage instead (--split), or use recipe: table."
        )

    def with_newest_histories(self, engine: str, users: Any) -> Any:
        """Rows of users with the histories that they have now, in place of those before the rows' own times.

        Parameters
        ----------
        engine
            As for `build`.
        users
            Data frame of one feature row of each user.

        Returns
        -------
        data frame
            The same rows. Those of a recipe that makes no histories, the default, are as they were. A column
            `__history_until__` says up to which time each history goes, where that may be later than the row.
        """
        return users

    def write_parts(
        self, engine: str, folder: Path, rows_per_part: int, run: Callable[[Callable[[Any], Any], Sequence[Any]], list]
    ) -> FeatureParts | None:
        """Write the splits as files, for data larger than memory. None, the default, has `build` called instead.

        Parameters
        ----------
        engine
            As for `build`.
        folder
            Where the parts go.
        rows_per_part
            About how many rows a part is to hold; the rows must not depend on it.
        run
            Calls a function on each of a list of tasks, in any process that sees the folder, and gives the results in
            order.
        """
        return None

    def row_bytes(self) -> RowBytes | None:
        """Bytes of a row that `write_parts` holds, where a GPU's memory decides how many; None, the default: unknown,
        and parts are as large as on a CPU."""
        return None

    def submission(self, rows: Any, predictions: Any) -> Any | None:
        """Make the frame that `gigabatch score` writes as CSV, from N feature rows and their N predictions.

        None, the default, has it write the key columns and the predictions instead.
        """
        return None


@dataclass(frozen=True)
class SplitFractions:
    """Set how the rows are split, in time order where there is one: by shares that sum to 1, or by numbers of rows.

    With shares a year of rows leaves the newest two months untrained; `valid_rows` and `test_rows` keep what is
    measured on as large as it is, and train gets all that comes before.

    Parameters
    ----------
    train, valid, test
        Shares of the rows.
    valid_rows, test_rows
        Numbers of rows instead, both or neither; train gets the others.

    Raises
    ------
    DataError
        If a share is not above 0, or they do not sum to 1; if one number alone is given, or one below 1.

    Examples
    --------
    >>> SplitFractions().ends(1000)
    (800, 900)
    >>> SplitFractions(valid_rows=20, test_rows=30).ends(1000)
    (950, 970)
    """

    train: float = 0.8
    valid: float = 0.1
    test: float = 0.1
    valid_rows: int | None = None
    test_rows: int | None = None

    def __post_init__(self) -> None:
        shares = (self.train, self.valid, self.test)
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise DataError(f"split: fractions must be positive and sum to 1, found {shares}.")
        numbers = (self.valid_rows, self.test_rows)
        if numbers == (None, None):
            return
        if any(type(number) is not int or number < 1 for number in numbers):
            raise DataError(
                f"split: valid_rows and test_rows must both be whole numbers of at least 1, found {numbers}."
            )
        if shares != (0.8, 0.1, 0.1):
            raise DataError("split: give either fractions or valid_rows and test_rows, not both.")

    def ends(self, num_rows: int) -> tuple[int, int]:
        """How many of the rows lie before the end of train, and before that of valid.

        Raises
        ------
        DataError
            Where `valid_rows` and `test_rows` leave no row for train.
        """
        if self.valid_rows is None or self.test_rows is None:
            # In floats .7 + .2 is less than .9; and a third, written as a decimal, is less than one.
            train, valid = (Fraction(share).limit_denominator(10**7) for share in (self.train, self.valid))
            return int(num_rows * train), int(num_rows * (train + valid))
        rest = num_rows - self.valid_rows - self.test_rows
        if rest < 1:
            raise DataError(
                f"split: {num_rows:,} rows leave none for train beside valid_rows={self.valid_rows:,} and "
                f"test_rows={self.test_rows:,}. Give more data, or smaller numbers."
            )
        return rest, rest + self.valid_rows

    def cuts(self, num_rows: int) -> dict[str, tuple[float, float]]:
        """[low, high) of each split in [0, 1), for `cut_by_place`; of so many rows."""
        first, second = self.train, self.train + self.valid
        if self.valid_rows is not None:
            first, second = (end / num_rows for end in self.ends(num_rows))
        return {"train": (0.0, first), "valid": (first, second), "test": (second, 1.0)}

    def train_of_two(self, num_rows: int) -> float:
        """Share of train where test rows lie apart, of so many rows of train and valid together."""
        if self.valid_rows is None:
            return self.train / (self.train + self.valid)
        if self.valid_rows >= num_rows:
            raise DataError(
                f"split: {num_rows:,} rows leave none for train beside valid_rows={self.valid_rows:,}. Give more data, "
                "or a smaller number."
            )
        return 1 - self.valid_rows / num_rows


def cut_by_place(frame: Any, place: Any, cuts: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Of each name the rows whose place, a float in [0, 1), is in its [low, high)."""
    engine = engine_of(frame)
    return {
        name: frame[engine.series((place >= low) & (place < high), frame)].reset_index(drop=True)
        for name, (low, high) in cuts.items()
    }


def split_by_time(frame: Any, time: str, order: str, fractions: SplitFractions) -> dict[str, Any]:
    """Cut a frame into train, valid and test at moments of `time`.

    The cut falls on the moment of the row at that fraction, and rows of one moment stay together in the earlier split,
    so every row of a later split has a later time than every row of an earlier one.

    Parameters
    ----------
    frame
        The rows, in any order.
    time
        Column of the times.
    order
        A unique column that says which of two rows of one moment comes first.
    fractions
        Shares or numbers of the rows.
    """
    is_ordered = frame[time].is_monotonic_increasing and frame[order].is_monotonic_increasing
    ordered = frame if is_ordered else frame.sort_values([time, order])
    ordered = ordered.reset_index(drop=True)
    times = ordered[time]
    ends = [int((times <= times.iloc[max(end - 1, 0)]).sum()) for end in fractions.ends(len(ordered))]
    cuts = dict(zip(("train", "valid", "test"), zip((0, *ends), (*ends, len(ordered)), strict=True), strict=True))
    return {name: ordered.iloc[start:stop].reset_index(drop=True) for name, (start, stop) in cuts.items()}
