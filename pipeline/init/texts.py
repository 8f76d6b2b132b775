"""Questions to all texts of a column at once, without what pandas does around each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

FIRST_TEXTS = 20  # whose look spares that of all, where they tell
FEW_TEXTS = 2_000  # whose look takes as long as that of the first ones: the pattern is parsed at each


@dataclass(frozen=True)
class Texts:
    """Hold the texts of a column, each once, in the order in which each is met first.

    Most questions to a column are answered by its different texts, of which there are few.

    Parameters
    ----------
    distinct
        The texts, without null.
    codes
        Of each row the place of its text among them; -1 where null.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.texts import Texts
    >>> texts = Texts.of(pd.Series(["b", "a", None, "b"]))
    >>> texts.distinct.tolist(), texts.counts.tolist(), texts.of_rows(np.array([2.0, 1.0])).tolist()
    (['b', 'a'], [2, 1], [2.0, 1.0, nan, 2.0])
    """

    distinct: pd.Series
    codes: np.ndarray

    @classmethod
    def of(cls, column: pd.Series) -> Texts:
        """Those of a column, as text."""
        codes, distinct = (column if column.dtype == "str" else column.astype("str")).array.factorize()
        return cls(pd.Series(distinct), codes)

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of rows with each text."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.distinct))

    @property
    def num_rows(self) -> int:
        """Number of rows that are not null."""
        return int(self.counts.sum())

    def kept(self, which: np.ndarray) -> Texts:
        """These texts alone; the others are null."""
        if which.all():
            return self
        places = np.append(np.where(which, np.cumsum(which) - 1, -1), -1)
        return Texts(self.distinct[which].reset_index(drop=True), places[self.codes])

    def of_rows(self, values: np.ndarray | pd.Series) -> np.ndarray:
        """The value of each row by those of the texts: of numbers NaN where null, of a series of texts None."""
        if isinstance(values, np.ndarray):
            return np.append(values, np.nan)[self.codes]
        found = np.append(values.to_numpy(dtype=object), [None])
        found[pd.isna(found)] = None
        return found[self.codes]

    @property
    def first_rows(self) -> np.ndarray:
        """The row in which each text is met first."""
        codes, rows = np.unique(self.codes, return_index=True)
        return rows[codes >= 0]

    def among_first(self, rows: int) -> pd.Series:
        """The texts of so many of the first rows that are not null."""
        first = self.codes[self.codes >= 0][:rows]
        return self.distinct[: int(first.max()) + 1 if len(first) else 0]


def found_in(texts: pd.Series, pattern: str) -> np.ndarray:
    """What `str.contains` says, which parses the pattern at each call before Arrow does.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.texts import found_in
    >>> found_in(pd.Series(["a1", "b"]), "[0-9]").tolist()
    [True, False]
    """
    return _found_in(pa.array(texts, from_pandas=True), pattern)


def _found_in(texts: pa.Array, pattern: str) -> np.ndarray:
    found = pc.match_substring_regex(texts, pattern)
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=bool)


def all_match(texts: pd.Series, pattern: str) -> bool:
    """Whether every text matches from its start on, as of `str.match`; the first ones tell mostly that not all do.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.texts import all_match
    >>> all_match(pd.Series(["1", "23"]), "[0-9]"), all_match(pd.Series(["1", "a2"]), "[0-9]")
    (True, False)
    """
    pattern, array = f"^({pattern.removeprefix('^')})", pa.array(texts, from_pandas=True)
    parts = (array,) if len(array) <= FEW_TEXTS else (array[:FIRST_TEXTS], array)
    return all(bool(_found_in(part, pattern).all()) for part in parts)


def are_among(texts: pd.Series, words: tuple[str, ...]) -> np.ndarray:
    """Whether each text is one of the words; a null is none.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.texts import are_among
    >>> are_among(pd.Series(["", "7", None]), ("", "NA")).tolist()
    [True, False, False]
    """
    array = pa.array(texts, from_pandas=True)
    return np.asarray(pc.is_in(array, _array_of(words, array.type)).to_numpy(zero_copy_only=False))


@lru_cache(maxsize=8)
def _array_of(words: tuple[str, ...], kind: pa.DataType) -> pa.Array:
    return pa.array(words, kind)
