"""Which parts of texts and times tell of the label: words of texts of which few rows are alike, letters of those that
differ, days of the calendar."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gigabatch.pipeline.init.leaks import MOST_ROWS, shuffled

LETTERS = (1, 2, 3)  # at either end of a text
LITTLE = 0.05  # share of it that the values of a category tell, below which rare ones are learnt by heart
# Years that tell days of the calendar from chance, such days that both halves have, days that one is compared with.
FEWEST_YEARS, FEWEST_DAYS, AROUND = 4, 180, 15
MUCH_OF_DAYS, SHIFTS = 0.01, (0, *range(15, 357, 7))  # share of the variance; days by which calendars are shifted
FEWEST_PARTS, HALF = 10, 0.5  # parts that two halves have, and their share of the rows
MUCH, DEVIATIONS = 0.03, 4  # share of the variance of the labels' ranks that parts tell, in all and in those of chance
FEW_DEVIATIONS = 2  # of chance, where that is no proof


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


def values_tell(values: np.ndarray, label: np.ndarray, task: str) -> bool:
    """Whether values of a category tell of the label in other rows than those from which it is known.

    Parameters
    ----------
    values
        (rows,); None where null.
    label, task
        As of `words_tell`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.parts import values_tell
    >>> draw = np.random.default_rng(0)
    >>> values = draw.integers(0, 500, 2000).astype(object)
    >>> values_tell(values, values % 7 * 1.0, "regression"), values_tell(values, draw.normal(size=2000), "regression")
    (True, False)
    """
    rows = _some(values)
    codes, ones = pd.factorize(values[rows])[0], np.ones(len(rows))
    half = np.arange(len(rows)) % 2
    return any(_told(codes, half, ones, scores, sure=False) > LITTLE for scores in _scores(label[rows], task))


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


def days_tell(times: np.ndarray, label: np.ndarray, task: str, zone: str | None = None) -> bool:
    """Whether days of the calendar, such as 25 December, tell of the label in other years than those from which it is
    known, beyond what the days around them and the weekday tell.

    What they tell is the product of a day's means in odd and in even years; it counts where no shift of the calendar of
    one against the other tells half as much.

    Parameters
    ----------
    times
        (rows,): microseconds since 1970; no NaN.
    label, task
        As of `words_tell`.
    zone
        Whose days they are, such as `Europe/Berlin`; None: those of UTC.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.parts import days_tell
    >>> days = pd.date_range("2015-01-01", "2022-12-31")
    >>> sold = 90 + np.random.default_rng(0).normal(size=len(days))
    >>> closed = days.strftime("%m%d").isin(["0101", "1225"])
    >>> times = days.as_unit("us").asi8
    >>> days_tell(times, sold, "regression"), days_tell(times, np.where(closed, 0, sold), "regression")
    (False, True)
    """
    moments = pd.DatetimeIndex(times.astype("int64").view("datetime64[us]"), tz="UTC").tz_convert(zone or "UTC")
    dates = moments.tz_localize(None).normalize()
    if dates.year.nunique() < FEWEST_YEARS:
        return False
    plain = [(label - label.mean()) / label.std()] if task == "regression" and label.std() > 0 else []
    for scores in (*_scores(label, task), *plain):  # few days, far off, are little of the ranks
        days = pd.Series(scores).groupby(dates).agg(["mean", "size"])
        own = days["mean"] - days["mean"].groupby(days.index.weekday).transform("mean")
        own = own - own.rolling(f"{AROUND}D", center=True, min_periods=AROUND // 2).median()
        own, rows = own.fillna(0.0).to_numpy(), days["size"].to_numpy()
        place = (days.index.month * 31 + days.index.day - 32).to_numpy()  # 0 to 371 of 372, in every year alike
        odd = days.index.year.to_numpy() % 2 == 1
        counts, sums = (
            np.stack([np.bincount(place[half], found[half], 372) for half in (odd, ~odd)])
            for found in (rows, rows * own)
        )
        if (counts > 0).all(axis=0).sum() < FEWEST_DAYS:
            return False
        means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
        told = []
        for shift in SHIFTS:
            weights = np.sqrt(counts[0] * np.roll(counts[1], shift))
            told.append(float((weights * means[0] * np.roll(means[1], shift)).sum() / max(weights.sum(), 1.0)))
        if told[0] > max(MUCH_OF_DAYS, 2 * max(told[1:])):
            return True
    return False


def _some(texts: np.ndarray) -> np.ndarray:
    rows = shuffled(len(texts))[:MOST_ROWS]
    return rows[~pd.isna(texts[rows])]


def _scores(label: np.ndarray, task: str) -> list[np.ndarray]:
    """The labels' ranks in deviations; of classes also whether it is the most frequent one."""
    of_classes = task == "multiclass" and len(label)  # no row may have both a text and a label
    labels = [label, label == np.bincount(label.astype("int64")).argmax()] if of_classes else [label]
    ranks = [pd.Series(found).rank() for found in labels if len(np.unique(found)) > 1]
    return [((found - found.mean()) / found.std(ddof=0)).to_numpy() for found in ranks]


def _told(parts: np.ndarray, half: np.ndarray, counts: np.ndarray, sums: np.ndarray, *, sure: bool = True) -> float:
    """The share of the labels' variance that parts tell; 0 where it may be chance, or, if it has to be `sure`, where
    few parts are in both halves.

    parts, half, counts, sums: of entries of a part, their half, rows and the sum of these rows' scores.
    """
    num = int(parts.max(initial=-1)) + 1
    rows, totals, squares = (
        np.stack([np.bincount(parts[half == side], values[half == side], num) for side in (0, 1)])
        for values in (counts, sums, sums**2)
    )
    both = (rows > 0).all(axis=0)
    if both.sum() < FEWEST_PARTS or (sure and rows[:, both].sum() < HALF * rows.sum()):
        return 0.0
    rows, totals, squares = rows[:, both], totals[:, both], squares[:, both]
    weights = np.sqrt(rows.prod(axis=0))
    products = weights * (totals / rows - totals.sum() / rows.sum()).prod(axis=0)
    chance = np.sqrt((squares.prod(axis=0) / rows.prod(axis=0)).sum())  # where no entry tells of another
    return (
        float(products.sum() / weights.sum())
        if products.sum() > (DEVIATIONS if sure else FEW_DEVIATIONS) * chance
        else 0.0
    )
