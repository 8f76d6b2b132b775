"""A preprocessor's folder: `preprocessor.json`, a Parquet file a vocabulary, the fit statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import UNREADABLE, DataError, raise_of_system
from gigabatch.features.exact.column_statistics import RobustScale, Scale
from gigabatch.features.operators.missing.fill_missing import Fill
from gigabatch.features.refit.update import Version
from gigabatch.features.schema import Schema

FORMAT = 1
FILE = "preprocessor.json"


@dataclass(frozen=True)
class SavedState:
    """What `preprocessor.json` holds. version: None where there are no statistics of the fit."""

    schema: Schema
    settings: PreprocessorSettings
    fills: dict[str, Fill]
    scales: dict[str, Scale]
    version: Version | None
    edges: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        content = {
            "format": FORMAT,
            "schema": json.loads(self.schema.to_json()),
            # Those of a configuration may say more, such as where a state began.
            "settings": {item.name: asdict(self.settings)[item.name] for item in fields(PreprocessorSettings)},
            "fills": {name: asdict(fill) for name, fill in self.fills.items()},
            "scales": {name: asdict(scale) for name, scale in self.scales.items()},
            "edges": self.edges,
            "version": None if self.version is None else asdict(self.version),
        }
        (folder / FILE).write_text(json.dumps(content, indent=1, allow_nan=False))

    @classmethod
    def read(cls, folder: Path) -> SavedState:
        """Call it inside `damage`: what cannot be read is any of `UNREADABLE`."""
        content = json.loads((folder / FILE).read_text())
        if content["format"] != FORMAT:
            raise DataError(f"preprocessor {folder}: format {content['format']}, this version reads {FORMAT}.")
        return cls(
            Schema.from_json(json.dumps(content["schema"], allow_nan=False)),
            PreprocessorSettings(**_whole_settings(content["settings"])),
            {name: Fill(**_numbers(name, fill)) for name, fill in content["fills"].items()},
            {name: _scale(**_numbers(name, scale)) for name, scale in content["scales"].items()},
            None if content.get("version") is None else Version.from_dict(content["version"]),
            {name: _ascending(name, edges) for name, edges in content.get("edges", {}).items()},
        )


def _whole_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """With what a state that is older than a setting was fitted with."""
    return ({"distinct": 0} if "bins" in settings else {}) | settings


def _scale(**numbers: float) -> Scale:
    return RobustScale(**numbers) if "bound" in numbers else Scale(**numbers)


def _numbers(column: str, fields: dict[str, Any]) -> dict[str, Any]:
    for name, value in fields.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{name} of {column!r} is {value!r}, not a number")
    return fields


def _ascending(column: str, edges: list[Any]) -> tuple[float, ...]:
    numbers = all(isinstance(edge, int | float) for edge in edges)
    if not numbers or any(left >= right for left, right in pairwise(edges)):
        raise ValueError(f"the edges of {column!r} do not ascend")
    return tuple(map(float, edges))


def vocabulary_path(folder: Path, position: int) -> Path:
    """Of the categorical column at that position of the schema's."""
    return folder / f"vocabulary-{position:03d}.parquet"


@contextmanager
def damage(folder: Path) -> Iterator[None]:
    """Whatever a damaged folder raises becomes a `DataError` that names it."""
    try:
        yield
    except DataError:
        raise
    except (*UNREADABLE, pa.ArrowException) as error:
        raise_of_system(error, f"preprocessor {folder}")
        raise DataError(f"preprocessor {folder}: damaged ({error}). Run the encode stage again.") from error
