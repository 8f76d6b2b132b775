"""A small data set for whole runs: days of clicks as CSV files, and the recipe that reads them.

`signal` and `city` decide the label, `noise` and `store` do not; `gap` is null in a tenth of the rows. Five rows share
a moment and a session.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import expand, read_files
from gigabatch.features.recipes.base import FeatureTables, Recipe, SplitFractions, split_by_time
from gigabatch.features.schema import Column, Schema, Target

RAW = {
    "row": "int64", "at": "int64", "session": "int64", "city": "string", "product": "string", "store": "int64",
    "signal": "float64", "gap": "float64", "noise": "float64", "other": "float64", "clicked": "float64",
}  # fmt: skip
CITIES = {"Oslo": -1.0, "Bonn": -0.5, "Lima": 0.0, "Pune": 0.5, "Cork": 1.0}
CATEGORICAL, CONTINUOUS = ("city", "product", "store"), ("signal", "gap", "noise", "other")


def day_of_rows(day: int, rows: int = 3000) -> pd.DataFrame:
    """The raw rows of a day; every day has its own seed and comes after the one before."""
    random = np.random.default_rng(1000 + day)
    city = random.choice(list(CITIES), rows)
    signal, gap, noise, other = random.normal(size=(4, rows))
    logit = 1.5 * signal + np.array([CITIES[name] for name in city]) + 0.3 * gap
    moment = day * 100_000 + np.arange(rows) // 5
    return pd.DataFrame(
        {
            "row": day * 1_000_000 + np.arange(rows),
            "at": moment,
            "session": moment,
            "city": city,
            "product": random.choice([f"p{i}" for i in range(20)], rows),
            "store": random.integers(1, 9, rows),
            "signal": signal,
            "gap": np.where(random.random(rows) < 0.1, np.nan, gap),
            "noise": noise,
            "other": other,
            "clicked": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(float),
        }
    )


def write_day(folder: Path, day: int, rows: int = 3000) -> Path:
    """`day-<day>.csv` in `folder`, the same bytes each time."""
    path = Path(folder) / f"day-{day:03d}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    day_of_rows(day, rows).to_csv(path, index=False)
    return path


@dataclass(frozen=True)
class TinySettings:
    """shuffled: labels of the train and valid splits in random order, for a model that cannot be good."""

    path: str
    files: str = "day-*.csv"
    group: bool = False
    shuffled: bool = False
    split: SplitFractions = field(default_factory=SplitFractions)


class TinyRecipe(Recipe):
    Settings = TinySettings
    settings: TinySettings

    def _pattern(self) -> str:
        return f"{self.settings.path}/{self.settings.files}"

    def inputs(self) -> list[str]:
        return expand(self._pattern())

    def build(self, engine: str) -> FeatureTables:
        frame = read_files(engine, self._pattern(), RAW, cache=self.cache)
        if frame["row"].duplicated().any():
            raise DataError(f"input {self._pattern()}: column 'row' must be unique.")
        splits = split_by_time(frame, "at", "row", self.settings.split)
        if self.settings.shuffled:
            for split in ("train", "valid"):
                order = np.random.default_rng(0).permutation(len(splits[split]))
                splits[split]["clicked"] = splits[split]["clicked"].to_numpy()[order]
        return FeatureTables(splits, self.schema(), ("clicks of a made-up shop",))

    def schema(self) -> Schema:
        columns = [Column(name, "categorical", RAW[name]) for name in CATEGORICAL]
        columns += [Column(name, "continuous", "float32") for name in CONTINUOUS]
        columns.append(Column("clicked", "target", "float32"))
        if self.settings.group:
            columns.append(Column("session", "group", "int64"))
        columns += [Column("at", "time", "int64"), Column("row", "key", "int64")]
        return Schema(tuple(columns), (Target("clicked", "binary"),))

    def submission(self, rows: Any, predictions: Any) -> Any | None:
        if not self.settings.group:
            return None
        return rows[["session", "row"]].assign(score=predictions["clicked"])
