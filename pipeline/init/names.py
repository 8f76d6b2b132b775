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
# Share of the variance of the labels' ranks that values tell, in all and in deviations of chance; share of that which
# neighbours may tell.
FEWEST_TOLD, FEWEST_DEVIATIONS, MOST_OF_NEIGHBOURS = 0.005, 6, 0.5
LETTERS, MUCH = (1, 2, 3), 0.05  # at either end of texts; the share that they tell


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
    if task == "multiclass":  # some are in the order of their names, such as marks; else the most frequent one tells
        most = np.bincount(label.astype("int64")).argmax()
        return any(_are_names(values[rows], found[rows]) for found in (label, label == most))
    return _are_names(values[rows], label[rows])


def _are_names(values: np.ndarray, label: np.ndarray) -> bool:
    distinct, codes = np.unique(values, return_inverse=True)
    halves = _halves(codes, len(distinct), label)
    if halves is None:
        return False
    counts, sums = halves
    told, sure = _told(counts, sums)
    means, rows_of = sums.sum(axis=0) / counts.sum(axis=0) - sums.sum() / counts.sum(), counts.sum(axis=0)
    weights = np.minimum(rows_of[1:], rows_of[:-1])
    beside = weights * means[1:] * means[:-1]
    most = (beside.sum() + 2 * np.sqrt((beside**2).sum())) / weights.sum()
    return bool(sure and told > FEWEST_TOLD and most < MOST_OF_NEIGHBOURS * told)


def _halves(codes: np.ndarray, num_codes: int, label: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Numbers of rows and sums of the labels' ranks, in deviations, of each half of the rows, (2, codes), of the codes
    that both have; None where these are few."""
    halves = [slice(0, None, 2), slice(1, None, 2)]
    counts = np.stack([np.bincount(codes[half], minlength=num_codes) for half in halves])
    often = (counts > 0).all(axis=0)
    if often.sum() < FEWEST_VALUES or counts[:, often].sum() < 0.5 * len(codes):
        return None
    ranks = pd.Series(label).rank()
    if ranks.nunique() < 2:
        return None
    scores = ((ranks - ranks.mean()) / ranks.std(ddof=0)).to_numpy()
    sums = np.stack([np.bincount(codes[half], scores[half], num_codes) for half in halves])
    return counts[:, often], sums[:, often]


def _told(counts: np.ndarray, sums: np.ndarray) -> tuple[float, bool]:
    """The share of the variance of the labels' ranks that codes tell, and whether that is no chance."""
    weights = np.sqrt(counts.prod(axis=0))
    products = weights * (sums / counts - sums.sum() / counts.sum()).prod(axis=0)  # by chance alone of deviation 1
    sure = products.sum() > FEWEST_DEVIATIONS * np.sqrt(len(products))
    return float(products.sum() / weights.sum()), bool(sure)


def letters_tell(texts: np.ndarray, label: np.ndarray, task: str) -> str:
    """Which letters of texts that are nearly all different tell of the label, as those of a postcode or of a first name
    do; empty where none tells much.

    Parameters
    ----------
    texts
        (rows,); None where null.
    label
        As of `are_names`.
    task
        `binary`, `multiclass` or `regression`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.names import letters_tell
    >>> codes = np.random.default_rng(0).permutation(9000)[:3000] + 1000
    >>> texts = codes.astype(str).astype(object)
    >>> letters_tell(texts, codes // 1000 % 4 * 1.0, "regression"), letters_tell(texts, codes % 7 * 1.0, "regression")
    ('first', '')
    """
    rows = shuffled(len(label))[:MOST_ROWS]
    rows = rows[~pd.isna(texts[rows])]
    known, labels = pd.Series(texts[rows], dtype="str"), [label[rows]]
    if task == "multiclass" and len(rows):
        labels.append(labels[0] == np.bincount(labels[0].astype("int64")).argmax())
    best, where = MUCH, ""
    for letters in LETTERS:
        for side, parts in (("first", known.str[:letters]), ("last", known.str[-letters:])):
            codes, distinct = pd.factorize(parts)
            for found in labels:
                halves = _halves(codes, len(distinct), found)
                told, sure = _told(*halves) if halves is not None else (0.0, False)
                if sure and told > best:
                    best, where = told, side
    return where


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
