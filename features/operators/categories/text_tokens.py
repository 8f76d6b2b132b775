"""TextTokens: the words of short text, or their letters, as one column of lists."""

from __future__ import annotations

from typing import Any

from gigabatch.features.columns.hashing import buckets_of
from gigabatch.features.columns.lists import list_column
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.exact.tally import tally
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.operators.categories.text_hash import pieces_of, words_of
from gigabatch.features.setting_checks import require_whole


class TextTokens(ColumnOperator):
    """Make one list of the words of short text, such as the title of a product, without a fit.

    Words are those of `TextHash`: in lower case, cut at blanks and punctuation. A model learns a vector of each
    and pools them, where `TextHash` gives it columns. Null and text without a word are empty lists. Numbers and
    booleans are taken as their text. Row-wise.

    Parameters
    ----------
    column
        Text.
    output
        Name of the new column of lists.
    letters
        How many letters in a row are an element, from 1 to 10, of the first 40 letters of a word with a blank before
        and behind it; a shorter word is one. None for whole words.
    num_buckets
        With it elements are whole numbers: XXH64 (seed 0) of the UTF-8 of each, mod so many, from 1 to 2^31 - 1. None
        for text, whose vocabulary the preprocessor makes.

    Raises
    ------
    DataError
        A number out of its range, or a column that holds dates or lists.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import TextTokens
    >>> frame = pd.DataFrame({"title": ["Red shoes, red!", None]})
    >>> [list(row) for row in TextTokens("title", "words")(frame)["words"]]
    [['red', 'shoes', 'red'], []]
    """

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, output: str, letters: int | None = None, num_buckets: int | None = None) -> None:
        for name, value, most in (("letters", letters, 10), ("num_buckets", num_buckets, 2**31 - 1)):
            if value is not None:
                require_whole(f"TextTokens of {column!r}", name, value, most)
        self.column, self.output, self.letters, self.num_buckets = column, output, letters, num_buckets

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        xp = engine.arrays
        words, rows = words_of(frame, self.column, "TextTokens")
        found = list(pieces_of(words, xp.arange(len(words)), self.letters))
        tokens: Any = words
        if found:
            word = xp.concatenate([where for _, where in found])
            order = engine.stable_order(word)  # word by word, its pieces in their order
            tokens = engine.frames.concat([pieces for pieces, _ in found], ignore_index=True).take(order)
            tokens, rows = tokens.reset_index(drop=True), rows[word[order]]
        if self.num_buckets is not None:
            tokens = engine.frames.Series(buckets_of(engine.hash64(tokens).view("uint64"), self.num_buckets))
        return {self.output: list_column(tokens, tally(xp, rows, len(frame)), frame)}
