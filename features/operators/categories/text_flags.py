"""TextFlags: one 0/1 column for each word of delimited text."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.lists.explode_lists import row_of_entry, split_lists


@dataclass(frozen=True)
class Words:
    """words: by descending frequency at fit, ties by value. columns: the output names, in the same order."""

    words: tuple[str, ...]
    columns: tuple[str, ...]


class TextFlags(FittedOperator):
    """Make one 0/1 column for each word of delimited text.

    The float32 column `<prefix><word>` is 1 where the word is in the row's list, else 0, also where the text is null.
    The words are those of the train rows, so the names of the outputs follow from the fit; words not seen at fit are
    left out. Words are taken as they stand, blanks at their ends too; an empty one is none.

    Parameters
    ----------
    column
        Delimited text such as 'WiFi|Pool'.
    prefix
        Start of the new columns' names. The word follows in lower case with `_` for what is neither letter nor digit;
        words that then are equal get a number, in the order of the words (WiFi before wifi). No column may have such a
        name already, the label neither.
    max_words
        At most so many words, the most frequent, counted as often as they stand there; None for all.
    separator
        What stands between two words.

    Raises
    ------
    DataError
        A `max_words` that is negative or no whole number, or a column that holds no text.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import TextFlags
    >>> frame = pd.DataFrame({"tags": ["WiFi|Pool", "WiFi", None]})
    >>> operator = TextFlags("tags", "has_")
    >>> operator.apply(frame, operator.fit([frame]))[["has_wifi", "has_pool"]]
       has_wifi  has_pool
    0       1.0       1.0
    1       1.0       0.0
    2       0.0       0.0
    """

    reads = ("column",)

    def __init__(self, column: str, prefix: str, max_words: int | None = None, separator: str = "|") -> None:
        whole = isinstance(max_words, int | np.integer) and not isinstance(max_words, bool)
        if max_words is not None and (not whole or max_words < 0):
            raise DataError(
                f"TextFlags of {column!r}: max_words is a whole number and must not be negative, found {max_words!r}."
            )
        self.max_words = None if max_words is None else int(max_words)
        self.column, self.prefix, self.separator = column, prefix, separator

    def outputs_of(self, state: Words) -> tuple[str, ...]:
        return state.columns

    def may_make(self, name: str) -> bool:
        word = name.removeprefix(self.prefix)
        return name.startswith(self.prefix) and word == _plain(word)

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        return (f"{self.prefix}*",) if self.column in names else ()

    def partial(self, frame: Frame) -> Any:
        """Columns value and count of this partition's words; a word counts once a mention."""
        words, _ = split_lists(frame[self.column], "string", self.separator)
        return engine_of(frame).value_counts(words)

    def merge(self, left: Any, right: Any) -> Any:
        both = engine_of(left).frames.concat([left, right], ignore_index=True)
        return both.groupby("value").agg({"count": "sum"}).reset_index()

    def finish(self, partial: Any) -> Words:
        counted = partial[partial["value"] != ""].sort_values(["count", "value"], ascending=[False, True])
        kept = counted.head(len(counted) if self.max_words is None else self.max_words)
        names = tuple(engine_of(partial).to_pandas(kept)["value"].tolist())
        called = self._column_names(names)
        return Words(names, tuple(called[word] for word in names))

    def _column_names(self, words: Collection[str]) -> dict[str, str]:
        """The column of each word. By the words alone: by their frequency, columns would swap what they mean."""
        names: dict[str, str] = {}
        for word in sorted(words):
            name = first = self.prefix + _plain(word)
            number = 1
            while name in names:
                number += 1
                name = f"{first}_{number}"
            names[name] = word
        return {word: name for name, word in names.items()}

    def matrix(self, frame: Frame, state: Words) -> Any:
        """int8 array [rows, words] of the same flags."""
        engine = engine_of(frame)
        xp = engine.arrays
        words, lengths = split_lists(frame[self.column], "string", self.separator)
        rows = row_of_entry(xp, lengths)
        positions = engine.positions_in(words, engine.frames.Series(list(state.words), dtype="str"))
        flags = xp.zeros((len(frame), len(state.words)), dtype="int8")
        known = positions >= 0
        flags[rows[known], positions[known]] = 1
        return flags

    def columns(self, frame: Frame, state: Words) -> dict[str, Column]:
        flags = self.matrix(frame, state).astype("float32")
        return {name: engine_of(frame).series(flags[:, k], frame) for k, name in enumerate(state.columns)}


def _plain(word: str) -> str:
    """The word as part of a column's name."""
    return re.sub(r"\W+", "_", word.lower()).strip("_")
