"""Questions to all texts of a column at once, without what pandas does around each of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

FIRST_TEXTS = 20  # whose look spares that of all, where they tell
FEW_TEXTS = 2_000  # whose look takes as long as that of the first ones: the pattern is parsed at each


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


def distinct_of(texts: pd.Series) -> pd.Series:
    """The different texts, in the order in which each is met first.

    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.texts import distinct_of
    >>> distinct_of(pd.Series(["b", "a", "b"])).tolist()
    ['b', 'a']
    """
    return pd.Series(pc.unique(pa.array(texts, from_pandas=True)).to_pandas(), dtype="str")


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
