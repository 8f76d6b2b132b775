"""Anyone's own CSV or Parquet table, by settings alone: which columns are what, and how the rows are split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from features.errors import DataError
from features.frame import engine_of, load_engine
from features.recipes.base import FeatureTables, Recipe, SplitFractions, split_by_time
from features.recipes.table_labels import TargetSettings, encode_targets, moments, require_filled, target_settings
from features.schema import Column, Schema
from features.sources import expand, read_files

ROW = "row_number"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class TableSettings:
    """What can be set in YAML.

    Files: either `path`, which is split, or `train_path` and `test_path` with or without `valid_path`; without it the
    valid split is cut off the train file. Each is a path, folder, glob, `package://` or fsspec URL.
    categorical: names (read as strings), or `{name: int64}` for whole numbers. continuous: names, float32.
    targets: `{name: {task: binary | multiclass | regression}}`. A binary label is 0 or 1, or any two values of which
    `positive` names one; `label_strip` takes these characters off both ends of a label. Multiclass labels are text.
    weight: float column of at least 0, scales a row's loss. group: rows that are ranked together.
    time: a column of numbers or ISO 8601 times; rows are then split in time order. Without it they are split by a
    hash of `split_key` (default: group, else the row number) and `seed`, so that equal keys share a split.
    keys: columns carried along to predictions, as text; without any it is `row_number`, int64.
    null_values: what stands for null. column_names: for CSV files without a header row.
    """

    path: str | None = None
    train_path: str | None = None
    valid_path: str | None = None
    test_path: str | None = None
    categorical: dict[str, str] | tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    weight: str | None = None
    group: str | None = None
    time: str | None = None
    split_key: str | None = None
    keys: tuple[str, ...] = ()
    seed: int = 0
    split: SplitFractions = field(default_factory=SplitFractions)
    null_values: tuple[str, ...] = ("", "NA")
    separator: str = ","
    column_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        apart = [name for name in SPLITS if getattr(self, f"{name}_path")]
        if bool(self.path) == bool(apart) or (apart and not {"train", "test"} <= set(apart)):
            raise DataError(
                "table: give either path, or train_path and test_path (and valid_path if there is one); found "
                f"{', '.join([*(['path'] if self.path else []), *(f'{name}_path' for name in apart)]) or 'none'}."
            )
        if not self.targets:
            raise DataError("table: targets is empty. Name at least one, for example targets: {label: {task: binary}}.")
        if not self.categorical and not self.continuous:
            raise DataError("table: no feature. Name columns under categorical or continuous.")
        for name, dtype in self.categories.items():
            if dtype not in ("string", "int64"):
                raise DataError(f"table: categorical column {name!r} has type {dtype!r}. Known: string, int64.")
        if self.time and apart:
            raise DataError("table: time splits one path; with separate files leave it out.")
        target_settings(self.targets)

    @property
    def categories(self) -> dict[str, str]:
        """Type of each categorical column."""
        return (
            dict(self.categorical)
            if isinstance(self.categorical, Mapping)
            else dict.fromkeys(self.categorical, "string")
        )


class TableRecipe(Recipe):
    """One table, no feature engineering; see `TableSettings`."""

    Settings = TableSettings
    settings: TableSettings

    def inputs(self) -> list[str]:
        return [path for pattern in self._patterns().values() for path in expand(pattern)]

    def build(self, engine: str) -> FeatureTables:
        splits = self._split({name: self._read(engine, pattern) for name, pattern in self._patterns().items()})
        splits, targets = encode_targets(splits, self.targets)
        schema = Schema(tuple(self._columns(splits["train"])), targets)
        return FeatureTables({name: frame[schema.names()] for name, frame in splits.items()}, schema)

    @property
    def targets(self) -> dict[str, TargetSettings]:
        return target_settings(self.settings.targets)

    def _patterns(self) -> dict[str, str]:
        """What each file is: `all`, or one of the splits."""
        given = {"all": self.settings.path} | {name: getattr(self.settings, f"{name}_path") for name in SPLITS}
        return {name: pattern for name, pattern in given.items() if pattern}

    def _read(self, engine: str, pattern: str) -> Any:
        chosen = self.settings
        texts = [name for name in (chosen.group, chosen.time, chosen.split_key, *chosen.keys) if name]
        dtypes = dict.fromkeys(texts, "string") | chosen.categories | dict.fromkeys(chosen.continuous, "float32")
        dtypes |= {name: target.dtype for name, target in self.targets.items()}
        if chosen.weight:
            dtypes[chosen.weight] = "float32"
        frame = read_files(
            engine,
            pattern,
            dtypes,
            null_values=chosen.null_values,
            separator=chosen.separator,
            names=chosen.column_names,
            nullable=set(chosen.categories),
        )
        for name in (*self.targets, chosen.weight, chosen.group, chosen.time, chosen.split_key):
            if name:
                require_filled(frame[name], pattern)
        if chosen.weight and not bool(((frame[chosen.weight] >= 0) & (frame[chosen.weight] < float("inf"))).all()):
            raise DataError(f"input {pattern}: weight {chosen.weight!r} holds negative or infinite values.")
        frame[ROW] = load_engine(engine).arrays.arange(len(frame))
        return frame

    def _split(self, files: dict[str, Any]) -> dict[str, Any]:
        shares = self.settings.split
        if "all" in files:
            frame = files["all"]
            if self.settings.time:
                frame[self.settings.time] = moments(frame[self.settings.time])
                return split_by_time(frame, self.settings.time, ROW, shares)
            place = self._place(frame)
            cuts = {"train": (0.0, shares.train), "valid": (shares.train, shares.train + shares.valid)}
            return _cut(frame, place, cuts | {"test": (shares.train + shares.valid, 1.0)})
        if "valid" not in files:
            share = shares.train / (shares.train + shares.valid)
            place = self._place(files["train"])
            files = _cut(files["train"], place, {"train": (0.0, share), "valid": (share, 1.0)}) | {
                "test": files["test"]
            }
        return {name: files[name] for name in SPLITS}

    def _place(self, frame: Any) -> Any:
        """float64 in [0, 1), one a row, equal for equal keys: two rounds of XXH64 with the seed in between."""
        engine = engine_of(frame)
        key = frame[self.settings.split_key or self.settings.group or ROW]
        mixed = engine.hash64(engine.series(engine.hash64(key) ^ (self.settings.seed & (2**63 - 1)), frame))
        return (mixed.view("uint64") >> engine.arrays.uint64(11)).astype("float64") / 2.0**53

    def _columns(self, frame: Any) -> list[Column]:
        chosen = self.settings
        columns = [Column(name, "categorical", dtype) for name, dtype in chosen.categories.items()]
        columns += [Column(name, "continuous", "float32") for name in chosen.continuous]
        columns += [Column(name, "target", target.stored) for name, target in self.targets.items()]
        columns += [Column(chosen.weight, "weight", "float32")] if chosen.weight else []
        columns += [Column(chosen.group, "group", "string")] if chosen.group else []
        columns += [Column(chosen.time, "time", str(frame[chosen.time].dtype))] if chosen.time else []
        return columns + ([Column(name, "key", "string") for name in chosen.keys] or [Column(ROW, "key", "int64")])


def _cut(frame: Any, place: Any, cuts: dict[str, tuple[float, float]]) -> dict[str, Any]:
    engine = engine_of(frame)
    return {
        name: frame[engine.series((place >= low) & (place < high), frame)].reset_index(drop=True)
        for name, (low, high) in cuts.items()
    }
