"""Recipe: raw tables to the features stage's splits and schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from features.errors import DataError
from features.schema import Schema


@dataclass(frozen=True)
class FeatureTables:
    """What a recipe makes. splits: `train`, `valid`, `test` and any further named frame, all with the schema's columns.

    notes: plain sentences for the report, such as rows left out and why.
    """

    splits: dict[str, Any]
    schema: Schema
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            if name not in self.splits:
                raise DataError(f"recipe: split {name!r} is missing.")
            if len(self.splits[name]) == 0:
                raise DataError(f"recipe: split {name!r} is empty. Give more data or other split fractions.")


class Recipe(ABC):
    """One data set's way from files to features. Subclasses carry a frozen dataclass `Settings` of what can be set."""

    Settings: ClassVar[type]

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.report: Callable[[str], None] = lambda step: None
        """Called with a word about each step when it is done; the pipeline shows them as progress."""

    @abstractmethod
    def inputs(self) -> list[str]:
        """Every raw file that is read; their checksums are part of the artifact's key."""

    @abstractmethod
    def build(self, engine: str) -> FeatureTables:
        """Read, compute, split. engine: `pandas` or `cudf`."""

    def submission(self, rows: Any, predictions: Any) -> Any | None:
        """The frame that `gigabatch score` writes as CSV, from feature rows and their predictions (same length).

        None, the default, has it write the key columns and the predictions instead.
        """
        return None


@dataclass(frozen=True)
class SplitFractions:
    """Shares of the rows, in time order; they sum to 1."""

    train: float = 0.8
    valid: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.train, self.valid, self.test)
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise DataError(f"split: fractions must be positive and sum to 1, found {shares}.")


def split_by_time(frame: Any, time: str, order: str, fractions: SplitFractions) -> dict[str, Any]:
    """Three frames cut at moments of `time`: rows of one moment stay together, in the earlier split.

    order: a unique column that settles the order of rows within a moment.

    The cut falls on the moment of the row at that fraction, so every row of a later split has a later time than
    every row of an earlier one.
    """
    ordered = frame.sort_values([time, order]).reset_index(drop=True)
    times = ordered[time]
    first = times.iloc[max(int(len(ordered) * fractions.train) - 1, 0)]
    second = times.iloc[max(int(len(ordered) * (fractions.train + fractions.valid)) - 1, 0)]
    return {
        "train": ordered[times <= first].reset_index(drop=True),
        "valid": ordered[(times > first) & (times <= second)].reset_index(drop=True),
        "test": ordered[times > second].reset_index(drop=True),
    }
