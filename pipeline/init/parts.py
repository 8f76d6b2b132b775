"""Which parts of texts tell of the label: words of those of which few rows are alike, letters of those that differ."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gigabatch.pipeline.init.leaks import MOST_ROWS, shuffled

LETTERS = (1, 2, 3)  # at either end of a text
FEWEST_PARTS, HALF = 10, 0.5  # parts that two halves have, and their share of the rows
MUCH, DEVIATIONS = 0.03, 4  # share of the variance of the labels' ranks that parts tell, in all and in those of chance


def words_tell(texts: np.ndarray, label: np.ndarray, task: str) -> bool:
    """Whether words of texts tell of the label in other texts than those from which it is known.

    What they tell is the product of the mean labels of a word in two halves of the different texts, which noise leaves
    near 0.

    Parameters
    ----------
    texts
        (rows,); None where null.
    label
        (rows,): 0 and 1, numbers of classes, or the numbers to predict; no NaN.
    task
        `binary`, `multiclass` or `regression`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.parts import words_tell
    >>> draw = np.random.default_rng(0)
    >>> kind, own = draw.integers(0, 20, 2000), draw.integers(0, 30, 2000)
    >>> titles = np.array([f"f{a} k{b}" for a, b in zip(own, kind)], dtype=object)
    >>> words_tell(titles, kind * 1.0, "regression"), words_tell(titles, draw.normal(size=2000), "regression")
    (True, False)
    """
    rows = _some(texts)
    codes, distinct = pd.factorize(texts[rows])
    words = pd.Series(distinct, dtype="str").str.lower().str.findall(r"[^\W_]+").map(set).explode().dropna()
    of_text, parts = words.index.to_numpy(), pd.factorize(words)[0]
    counts = np.bincount(codes, minlength=len(distinct))[of_text]
    for scores in _scores(label[rows], task):
        sums = np.bincount(codes, scores, len(distinct))[of_text]
        if _told(parts, of_text % 2, counts, sums) > MUCH:
            return True
    return False


def letters_tell(texts: np.ndarray, label: np.ndarray, task: str) -> str:
    """Which letters of texts that are nearly all different tell of the label, as those of a postcode or of a first name
    do, `first` or `last`; empty where none do.

    Parameters
    ----------
    texts, label, task
        As of `words_tell`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.parts import letters_tell
    >>> codes = np.random.default_rng(0).permutation(9000)[:3000] + 1000
    >>> texts = np.array([str(code) for code in codes], dtype=object)
    >>> letters_tell(texts, codes // 100 % 7 * 1.0, "regression"), letters_tell(texts, codes % 7 * 1.0, "regression")
    ('first', '')
    """
    rows = _some(texts)
    known, ones = pd.Series(texts[rows], dtype="str"), np.ones(len(rows))
    found = {"": MUCH, "first": 0.0, "last": 0.0}
    for scores in _scores(label[rows], task):
        for letters in LETTERS:
            for side, parts in (("first", known.str[:letters]), ("last", known.str[-letters:])):
                told = _told(pd.factorize(parts)[0], np.arange(len(rows)) % 2, ones, scores)
                found[side] = max(found[side], told)
    return max(found, key=lambda side: found[side])


def _some(texts: np.ndarray) -> np.ndarray:
    rows = shuffled(len(texts))[:MOST_ROWS]
    return rows[~pd.isna(texts[rows])]


def _scores(label: np.ndarray, task: str) -> list[np.ndarray]:
    """The labels' ranks in deviations; of classes also whether it is the most frequent one."""
    of_classes = task == "multiclass" and len(label)  # no row may have both a text and a label
    labels = [label, label == np.bincount(label.astype("int64")).argmax()] if of_classes else [label]
    ranks = [pd.Series(found).rank() for found in labels if len(np.unique(found)) > 1]
    return [((found - found.mean()) / found.std(ddof=0)).to_numpy() for found in ranks]


def _told(parts: np.ndarray, half: np.ndarray, counts: np.ndarray, sums: np.ndarray) -> float:
    """The share of the labels' variance that parts tell; 0 where it may be chance, or few parts are in both halves.
    parts, half, counts, sums: of entries of a part, their half, rows and the sum of these rows' scores."""
    num = int(parts.max(initial=-1)) + 1
    rows, totals, squares = (
        np.stack([np.bincount(parts[half == side], values[half == side], num) for side in (0, 1)])
        for values in (counts, sums, sums**2)
    )
    both = (rows > 0).all(axis=0)
    if both.sum() < FEWEST_PARTS or rows[:, both].sum() < HALF * rows.sum():
        return 0.0
    rows, totals, squares = rows[:, both], totals[:, both], squares[:, both]
    weights = np.sqrt(rows.prod(axis=0))
    products = weights * (totals / rows - totals.sum() / rows.sum()).prod(axis=0)
    chance = np.sqrt((squares.prod(axis=0) / rows.prod(axis=0)).sum())  # where no entry tells of another
    return float(products.sum() / weights.sum()) if products.sum() > DEVIATIONS * chance else 0.0
