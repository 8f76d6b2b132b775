"""Whole numbers that are names of things, such as ids and codes, told from amounts by the labels of their rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from gigabatch.pipeline.init.columns import Seen, is_of_digits
from gigabatch.pipeline.init.leaks import MOST_ROWS, shuffled
from gigabatch.pipeline.init.texts import Texts, all_match

NOTE = "numbers taken for names, by the labels of their rows"
DENSE = 0.25  # share of the numbers between the ends that there are: things are counted, amounts leave gaps
AS_WHOLE = r"[-+]?[0-9]+(\.0*)?$"
FEWEST_VALUES = 10
HALVES = (slice(0, None, 2), slice(1, None, 2))
# Share of the variance of the labels' ranks that values tell, in all and in deviations of chance; share of that which
# neighbours may tell.
FEWEST_TOLD, FEWEST_DEVIATIONS, MOST_OF_NEIGHBOURS = 0.005, 6, 0.5


def are_names(values: np.ndarray, label: np.ndarray, task: str) -> bool:
    """Whether rows of one number have labels alike, and rows of neighbouring numbers have not.

    What values tell is the product of the mean labels that a value has in two halves of the rows, which noise leaves
    near 0; what neighbours tell is that of the mean labels of neighbouring values.

    Parameters
    ----------
    values
        float64 whole numbers, (rows,); NaN where null.
    label
        (rows,): 0 and 1, numbers of classes, or the numbers to predict; no NaN.
    task
        `binary`, `multiclass` or `regression`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.names import are_names
    >>> draw = np.random.default_rng(0)
    >>> shop, age = draw.integers(0, 50, 5000), draw.integers(0, 50, 5000)
    >>> good = draw.normal(size=50)[shop] + age / 10 + draw.normal(size=5000)
    >>> are_names(shop.astype("float64"), good, "regression"), are_names(age.astype("float64"), good, "regression")
    (True, False)
    """
    rows = shuffled(len(label))[:MOST_ROWS]
    rows = rows[~np.isnan(values[rows])]
    values, label = values[rows], label[rows]
    if not len(rows) or not _tell(values, label, task):
        return False
    # One number may stand for nobody, as an age of 0: all others have to tell without it.
    told = label == np.bincount(label.astype("int64")).argmax() if task == "multiclass" else pd.Series(label).rank()
    apart = pd.Series(np.asarray(told, "float64") - np.mean(told)).groupby(values).agg(["sum", "size"])
    others = values != (apart["sum"].abs() / np.sqrt(apart["size"])).idxmax()
    return _tell(values[others], label[others], task)


def _tell(values: np.ndarray, label: np.ndarray, task: str) -> bool:
    if task != "multiclass":
        return _are_names(values, label)
    # Some classes are in the order of their names, such as marks; else the most frequent one tells. Of an amount by
    # which each class has a range of its own, either jumps from value to value, but all classes together do not.
    most = np.bincount(label.astype("int64")).argmax()
    if not any(_are_names(values, found) for found in (label, label == most)):
        return False
    distinct, codes = np.unique(values, return_inverse=True)
    classes, numbers = np.unique(label, return_inverse=True)
    told, beside = 0.0, np.zeros(1)
    for number in range(len(classes)):  # the deviation of each is left as it is, so that rare classes weigh little
        products, weights, between, least = _told(distinct, codes, (numbers == number).astype("float64"))
        told, beside = told + products.sum() / weights.sum(), beside + between / least.sum()
    return bool(beside.sum() + 2 * np.sqrt((beside**2).sum()) < MOST_OF_NEIGHBOURS * told)


def _are_names(values: np.ndarray, label: np.ndarray) -> bool:
    distinct, codes = np.unique(values, return_inverse=True)
    counts = _counts(distinct, codes)
    often = (counts > 0).all(axis=0)
    if often.sum() < FEWEST_VALUES or counts[:, often].sum() < 0.5 * len(values):
        return False
    ranks = pd.Series(label).rank()
    if ranks.nunique() < 2:
        return False
    products, weights, beside, least = _told(distinct, codes, ((ranks - ranks.mean()) / ranks.std(ddof=0)).to_numpy())
    told = products.sum() / weights.sum()
    most = (beside.sum() + 2 * np.sqrt((beside**2).sum())) / least.sum()
    sure = products.sum() > FEWEST_DEVIATIONS * np.sqrt(len(products))
    return bool(sure and told > FEWEST_TOLD and most < MOST_OF_NEIGHBOURS * told)


def _counts(distinct: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Rows of each value in two halves, (2, values)."""
    return np.stack([np.bincount(codes[half], minlength=len(distinct)) for half in HALVES])


def _told(
    distinct: np.ndarray, codes: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Products of a value's mean scores in two halves of the rows, and of neighbouring values' means, each with its
    weights; of the values that both halves have.

    Without a difference between values, the first have the deviation 1 for scores of that deviation.
    """
    counts = _counts(distinct, codes)
    sums = np.stack([np.bincount(codes[half], scores[half], len(distinct)) for half in HALVES])
    often = (counts > 0).all(axis=0)
    counts, sums = counts[:, often], sums[:, often]
    middle = sums.sum() / counts.sum()
    weights = np.sqrt(counts.prod(axis=0))
    means, rows_of = sums.sum(axis=0) / counts.sum(axis=0) - middle, counts.sum(axis=0)
    least = np.minimum(rows_of[1:], rows_of[:-1])
    products = weights * (sums / counts - middle).prod(axis=0)
    return products, weights, least * means[1:] * means[:-1], least


def are_dense(values: np.ndarray) -> bool:
    """Whether numbers stand side by side, as those that were given to things one after another.

    Parameters
    ----------
    values
        float64 whole numbers, (rows,); NaN where null.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.names import are_dense
    >>> are_dense(np.array([3.0, 1.0, 4.0, np.nan])), are_dense(np.array([999.0, 1499.0, 1999.0]))
    (True, False)
    """
    known = np.unique(values[~np.isnan(values)])
    return bool(len(known) and len(known) >= DENSE * (known[-1] - known[0] + 1))


def digits_of(seen: Seen, texts: pd.Series) -> np.ndarray | None:
    """The texts [rows] of a column of text that all are whole numbers in digits alone, None where null; None of other
    columns.

    Parameters
    ----------
    seen
        What the column of a Parquet file or frame holds.
    texts
        Its sample.
    """
    if not is_of_digits(seen, texts):
        return None
    found = np.array(texts, dtype=object)
    found[seen.null] = None
    return found


def are_readable(texts: pd.Series, arrow: pa.DataType | None) -> bool:
    """Whether the files hold whole numbers as the type int64 reads them: no 1e3, and no decimals with a fraction, which
    are read as floats alone.

    Parameters
    ----------
    texts
        Those of a sample of whole numbers that are not null, of a CSV file text.
    arrow
        The type in a Parquet file; None for CSV files.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.names import are_readable
    >>> are_readable(pd.Series(["7", " +8.0"]), None), are_readable(pd.Series(["7", "1e3"]), None)
    (True, False)
    """
    if arrow is None:
        return all_match(Texts.of(texts).distinct.str.strip(), AS_WHOLE)
    kind = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    return not (pa.types.is_decimal(kind) and kind.scale > 0)


def as_names(seen: Seen, digits: np.ndarray | None) -> Seen:
    """A column of whole numbers as one of names. digits: as of `digits_of`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.columns import Seen
    >>> from gigabatch.pipeline.init.names import as_names
    >>> found = as_names(Seen("shop", "number", np.array([7.0, np.nan]), whole=True), None)
    >>> found.kind, found.categories, found.values.tolist()
    ('category', 'int64', ['7', None])
    """
    if digits is not None:
        return Seen(seen.name, "category", digits, note=NOTE, null_words=seen.null_words)
    values = np.array([None if np.isnan(value) else str(int(value)) for value in seen.values], dtype=object)
    return Seen(seen.name, "category", values, note=NOTE, null_words=seen.null_words, whole=True, categories="int64")
