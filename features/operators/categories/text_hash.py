"""TextHash: short text as a fixed number of floats, by hashes of its words or of their letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gigabatch.features.columns.hashing import buckets_of
from gigabatch.features.columns.times import is_dates
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.tally import tally
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.operators.lists.explode_lists import row_of_entry, split_lists
from gigabatch.features.reading.sources import cast_text
from gigabatch.features.setting_checks import require_whole

# Blanks and punctuation, written out: what else is a letter or a blank, engines see differently. Behind those of ASCII
# stand Unicode's blanks, the inverted marks, and the quotes, dashes and dots of typesetting.
BLANKS = "\x0b\x0c\x1c-\x1f\x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
BETWEEN_WORDS = r"[ \t\n\r!-/:-@\[-`{-~" + BLANKS + "\u00a1\u00ab\u00bb\u00bf\u2010-\u201f\u2026\u2039\u203a" + "]+"
MOST_BUCKETS, MOST_LETTERS = 4096, 40


class TextHash(ColumnOperator):
    """Make floats of short text, such as the title of a product, by hashes of its words, without a fit.

    The text is put in lower case and cut into words at blanks (all of Unicode), ASCII punctuation and typographic
    quotes, dashes and dots. Each word, or each `letters` letters in a row of a word with a blank before and behind it,
    adds 1 or -1 to the column of its hash. Rows are then divided by their Euclidean length, so that texts of one word
    weigh as much as texts of ten (feature hashing; Weinberger et al. 2009, arXiv:0902.2206). Null and text without a
    word are 0 in all columns. Numbers and booleans are taken as their text. Row-wise.

    The hash is XXH64 (seed 0) of UTF-8, the same on CPU and GPU: the column is its value mod `num_buckets`, and the
    sign is negative where its highest bit is set.

    Parameters
    ----------
    column
        Text.
    prefix
        Start of the new columns' names: the float32 columns `<prefix>_0`, `<prefix>_1` and so on. No column may have
        such a name already.
    num_buckets
        How many columns there are, from 1 to 4096.
    letters
        How many letters in a row are a piece, from 1 to 10, of the first 40 letters of a word; such pieces see that
        "colour" and "colours" are alike. A shorter word is one piece. None for whole words.

    Raises
    ------
    DataError
        A number out of its range, or a column that holds dates or lists.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import TextHash
    >>> frame = pd.DataFrame({"title": ["Red shoes", "shoes, red!", "Red", None]})
    >>> TextHash("title", "t", num_buckets=4)(frame).round(2)
             title  t_0   t_1   t_2  t_3
    0    Red shoes  0.0 -0.71 -0.71  0.0
    1  shoes, red!  0.0 -0.71 -0.71  0.0
    2          Red  0.0  0.00 -1.00  0.0
    3          NaN  0.0  0.00  0.00  0.0
    """

    reads = ("column",)
    by_value = True

    def __init__(self, column: str, prefix: str, num_buckets: int = 32, letters: int | None = None) -> None:
        where = f"TextHash of {column!r}"
        require_whole(where, "num_buckets", num_buckets, MOST_BUCKETS)
        if letters is not None:
            require_whole(where, "letters", letters, 10)
        self.column, self.prefix, self.num_buckets, self.letters = column, prefix, num_buckets, letters

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}_{bucket}" for bucket in range(self.num_buckets))

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        xp = engine.arrays
        words, rows = words_of(frame, self.column, "TextHash")
        flat = xp.zeros(len(frame) * self.num_buckets)
        for pieces, where in pieces_of(words, rows, self.letters):
            hashes = engine.hash64(pieces).view("uint64")
            signs = 1.0 - 2.0 * (hashes >> hashes.dtype.type(63)).astype("float64")
            places = where * self.num_buckets + buckets_of(hashes, self.num_buckets)
            flat = flat + tally(xp, places, len(flat), signs)
        found = flat.reshape(len(frame), self.num_buckets)
        length = xp.sqrt((found * found).sum(axis=1))  # of whole numbers, so exact in any order
        length[length == 0] = 1.0
        found = (found / length.reshape(len(frame), 1)).astype("float32")
        return {name: engine.series(found[:, bucket], frame) for bucket, name in enumerate(self.outputs)}


def words_of(frame: Frame, column: str, who: str) -> tuple[Any, Any]:
    """(a column of the words of all rows one after the other, int64 array of the row of each).

    who: the operator, for the `DataError` about dates and what else is no text.
    """
    if is_dates(frame[column]) and bool(frame[column].notna().any()):
        raise DataError(f"{who}: column {column!r} holds dates or times, no text. Leave it out.")
    engine = engine_of(frame)
    text = cast_text(frame, column, who)
    text = text.str.lower().str.replace(BETWEEN_WORDS, " ", regex=True).str.strip()
    words, lengths = split_lists(text, "string", " ")
    rows = row_of_entry(engine.arrays, lengths)
    known = words != ""
    return words[known].reset_index(drop=True), rows[engine.array(known)]


def pieces_of(words: Column, where: Any, letters: int | None) -> Iterator[tuple[Any, Any]]:
    """What is taken of the words, a column of text and of each piece the entry of its word in `where`, one or several
    times; the pieces of one word come in their order."""
    engine = engine_of(words)
    if letters is None:
        yield words, where
        return
    words = " " + words.str.slice(0, MOST_LETTERS) + " "
    start = 0
    while len(words):
        yield words.str.slice(start, start + letters), where
        start += 1
        left = words.str.len() >= start + letters
        words, where = words[left].reset_index(drop=True), where[engine.array(left)]
