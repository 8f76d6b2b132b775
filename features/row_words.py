"""What `engine.weave` is asked for: the words of a packed row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.errors import DataError


@dataclass(frozen=True)
class IdWord:
    """ids: int32 or float32 [N]. With a table (int32 by code), `ids` are codes into it; -1 takes the table's last."""

    ids: Any
    place: int
    table: Any = None


@dataclass(frozen=True)
class FloatWord:
    """A float32 column (`column`, nulls as they are), what its nulls become, how it is scaled, and where it goes.

    std: 0 leaves it unscaled. flag_place: the word of its indicator, or -1.
    """

    column: Any
    fill: float
    mean: float
    std: float
    place: int
    flag_place: int


def infinity(word: FloatWord, scaled: bool) -> DataError:
    """What is said of an infinity before or after scaling."""
    name = word.column.name
    if not scaled:
        return DataError(f"column {name!r} holds an infinity. Clip it or make it null before this stage.")
    return DataError(
        f"column {name!r}: scaled by mean {word.mean} and deviation {word.std}, a value leaves float32. Clip the "
        "column or take its logarithm before this stage."
    )
