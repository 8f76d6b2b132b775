"""Columns that tell the label all by themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

MOST_ROWS = 50_000
NUM_BINS = 64
FEWEST_ROWS = 100
AUC, ACCURACY, R2 = 0.99, 0.99, 0.99
PURE, FEWEST_FILLED, CHANCE = 0.995, 20, 1e-4  # of a class among filled or null rows; such rows; that they are by luck
FEWEST_OF_VALUE, MOST_VALUES = 5, 1000
NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
THOUSANDS = re.compile(r",(?=[0-9]{3}(?:[,.]|$))")
MOST_TEXTS = 5_000
# How far off a weight may be, as a share and in all, and how many times another, as cents and minutes are.
PART, MOST_OFF, MOST_TIMES = 1e-3, 0.1, 1000
EXACT, MOST_ADDED = 1e-6, 500  # share of the variance that rounding leaves of a sum; columns that may be its parts
NO_WEIGHT = 1e-4  # in deviations: of less than rounding
MORE_THAN_CHANCE = 0.5  # share of the texts that hold the target of their row, less that of another row
FACTORS = {1.0: "", 100.0: "100 times ", 1000.0: "1000 times ", 0.01: "a 100th of ", 0.001: "a 1000th of "}


def leak(values: np.ndarray, label: np.ndarray, task: str) -> str:
    """Why a column may be a leak: what it alone tells of the label; nothing where it tells less.

    Each value (numbers: each of 64 bins of about equal size, and null) is given the mean label that it has in the other
    half of the rows, so that a value that stands in one row alone tells nothing.

    Parameters
    ----------
    values
        float64 numbers, text, or whole numbers that stand for texts, (rows,); NaN, None or -1 where null.
    label
        (rows,): 0 and 1, numbers of classes, or the numbers to predict.
    task
        `binary`, `multiclass` or `regression`.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.leaks import leak
    >>> label = np.arange(1000) % 2
    >>> leak(np.where(label == 1, "paid", "open"), label, "binary")
    'it alone reaches an AUC of 1.000'
    >>> leak(np.arange(1000) % 7.0, label, "binary")
    ''
    """
    if len(label) < FEWEST_ROWS:
        return ""
    null = values < 0 if values.dtype.kind == "i" else pd.isna(values)
    if task != "regression" and (reason := _told_by_nulls(null, label)):
        return reason
    if task == "regression" and _are_ranges(values, label):
        return "each of its values stands for a range of the target"
    rows = shuffled(len(label))[:MOST_ROWS]
    values, label = values[rows], label[rows]
    if values.dtype.kind == "f":
        known = values[np.isfinite(values)]
        edges = np.unique(np.quantile(known, np.linspace(0, 1, NUM_BINS + 1)[1:-1])) if len(known) else np.empty(0)
        codes = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values))
    else:
        codes = pd.factorize(values, use_na_sentinel=False)[0]
    half = np.arange(len(label)) % 2 == 0
    if task == "multiclass":
        hits = [_guess(codes[half == fit], label[half == fit], codes[half != fit]) == label[half != fit]
                for fit in (True, False)]  # fmt: skip
        accuracy = float(np.mean(np.concatenate(hits)))
        most = float(np.bincount(label.astype("int64")).max() / len(label))
        return f"it alone tells {accuracy:.1%} of the classes" if accuracy > max(ACCURACY, 1 - (1 - most) / 20) else ""
    score = _score(codes, label, half)
    if task == "binary":
        auc = _auc(score, label)
        if values.dtype.kind == "f" and not np.isnan(values).any() and (auc > AUC or _may_part(codes, label)):
            plain = _auc(values, label)
            auc = max(auc, plain, 1 - plain)
        return f"it alone reaches an AUC of {auc:.3f}" if auc > AUC else ""
    ranks = pd.Series(label).rank().to_numpy()  # a few large values hide in the variance what all others tell
    r2 = max(_explained(score, label), _explained(_score(codes, ranks, half), ranks))
    if values.dtype.kind == "f" and np.isfinite(values).all() and np.var(values):
        r2 = max(r2, float(np.corrcoef(values, label)[0, 1]) ** 2)
    return f"it alone explains {r2:.1%} of the target's variance" if r2 > R2 else ""


def in_text(texts: np.ndarray, label: np.ndarray) -> str:
    """Why a column of text may be a leak of a regression: which share of its texts hold the target of their row,
    rounded or not, or a hundred times the target; nothing where about as many hold that of another row.

    Parameters
    ----------
    texts
        (rows,): text, None where null.
    label
        float64 numbers to predict, (rows,).

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.leaks import in_text
    >>> size = np.arange(1000) / 100
    >>> in_text(np.array([f"M {one:.1f} near Guam" for one in size], dtype=object), size)
    'a number in its text is the target in 100.0% of the rows'
    """
    rows = shuffled(len(label))[:MOST_TEXTS]
    found = [(place, text) for place, row in enumerate(rows) if texts[row] for text in NUMBER.findall(texts[row])]
    if len(rows) < FEWEST_ROWS or not found:
        return ""
    plain = [THOUSANDS.sub("", text) if "." in text or text.count(",") > 1 else text for _, text in found]
    plain = [text.replace(",", ".") if text.count(",") == 1 else text for text in plain]
    fits = np.array([text.replace(".", "", 1).isdecimal() for text in plain])
    numbers = np.array([float(text) if fit else np.nan for text, fit in zip(plain, fits, strict=True)])
    places = np.array([place for place, _ in found])
    half = 0.5 * 10.0 ** -np.array([len(text.partition(".")[2]) for text in plain])
    wanted = np.abs(label[rows])
    for factor, called in FACTORS.items():
        own, other = (
            len(np.unique(places[np.abs(numbers - one[places] * factor) <= half * (1 + 1e-9)])) / len(rows)
            for one in (wanted, np.roll(wanted, 1))
        )
        if own - other >= MORE_THAN_CHANCE:
            return f"a number in its text is {called}the target in {own:.1%} of the rows"
    return ""


def added(columns: Mapping[str, np.ndarray], label: np.ndarray) -> tuple[str, ...]:
    """Those of the columns whose sum or difference the target of a regression is, such as the parts of a total; none of
    them can be left out. Each may be so many times another, as with cents and minutes; other weights are a formula,
    which a model may be asked to learn. Nothing where the target is no such sum.

    Parameters
    ----------
    columns
        float64 numbers by name, (rows,), NaN where null; those with more than a tenth of nulls take no part.
    label
        float64 numbers to predict, (rows,).

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.pipeline.init.leaks import added
    >>> random = np.random.default_rng(0)
    >>> guests, members, heat = random.poisson(20, (3, 500)).astype("float64")
    >>> added({"guests": guests, "heat": heat, "members": members}, guests + members)
    ('guests', 'members')
    """
    rows = shuffled(len(label))[:MOST_TEXTS]
    found = {name: values[rows] for name, values in columns.items()}
    found = {name: values for name, values in found.items() if np.isnan(values).mean() <= 0.1}
    known = np.all([np.isfinite(values) for values in (*found.values(), label[rows])], axis=0)
    found = {name: values[known] for name, values in found.items()}
    names = [name for name, values in found.items() if _varies(values)]
    wanted = label[rows][known]
    if not 2 <= len(names) <= MOST_ADDED or len(wanted) < max(FEWEST_ROWS, 10 * len(names)) or not _varies(wanted):
        return ()
    matrix = np.stack([found[name] for name in names], axis=1)
    spread = matrix.std(axis=0)
    matrix = (matrix - matrix.mean(axis=0)) / spread
    wanted = (wanted - wanted.mean()) / wanted.std()

    def fitted(places: Sequence[int]) -> np.ndarray:
        return np.linalg.lstsq(matrix[:, places], wanted, rcond=None)[0]

    def exact(places: Sequence[int]) -> bool:
        return float(np.mean((wanted - matrix[:, places] @ fitted(places)) ** 2)) <= EXACT

    places = list(range(len(names)))
    if not exact(places):
        return ()
    some = [place for place, weight in enumerate(fitted(places)) if abs(weight) > NO_WEIGHT]
    if some and exact(some):  # mostly: of hundreds of columns each alone would take minutes
        places = some
    for place in list(places):
        fewer = [other for other in places if other != place]
        if len(places) > 1 and exact(fewer):
            places = fewer
    weights = np.abs(fitted(places)) / spread[places]
    times = weights.max() / weights
    if np.any(np.abs(times - times.round()) > np.minimum(PART * times, MOST_OFF)) or times.max() > MOST_TIMES:
        return ()
    return tuple(names[place] for place in places)


def _varies(values: np.ndarray) -> bool:
    """Whether numbers have a deviation that float64 can hold, as 1e-200 among zeros and numbers near 1e308 have not."""
    if not len(values):
        return False
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return bool(0 < values.std() < np.inf)


@lru_cache(maxsize=4)
def shuffled(rows: int) -> np.ndarray:
    """Places of rows in an order that is the same for every column."""
    found = np.random.default_rng(0).permutation(rows)
    found.flags.writeable = False
    return found


def _may_part(codes: np.ndarray, label: np.ndarray) -> bool:
    """Whether numbers may reach an AUC beyond the bound, up or down, by their bins in the order of the numbers: within
    a bin any order is possible, which moves the AUC by half of the pairs that lie in one bin."""
    ones = np.bincount(codes, label == 1)
    zeros = np.bincount(codes, label != 1)
    pairs = max(float(ones.sum() * zeros.sum()), 1.0)
    binned = float((ones * (np.cumsum(zeros) - zeros / 2)).sum()) / pairs
    return max(binned, 1 - binned) + float((ones * zeros).sum()) / 2 / pairs > AUC - 1e-9


def _told_by_nulls(null: np.ndarray, label: np.ndarray) -> str:
    """What it says that a column is filled or null, where that is so in one class alone; most often it is written once
    the label is known, such as the date of a refund.

    Of a frequent class that takes more: a twentieth of the other rows that chance would bring, and so many filled rows
    that chance brings them hardly ever (Chernoff's bound of the binomial).
    """
    if min(null.sum(), len(null) - null.sum()) < FEWEST_FILLED:
        return ""
    codes = label.astype("int64")
    shares = np.bincount(codes) / len(label)
    for rows, what in ((~null, "filled"), (null, "null")):
        count = int(rows.sum())
        found = np.bincount(codes[rows], minlength=len(shares)) / count
        most = int(found.argmax())
        share, own = float(shares[most]), float(found[most])
        if own < max(PURE, 1 - (1 - share) / 20) or share >= own:
            continue
        others = 1 - own
        unlikely = own * math.log(own / share) + (others * math.log(others / (1 - share)) if others else 0.0)
        if count * unlikely >= -math.log(CHANCE):
            return f"it is {what} in {rows.mean():.1%} of the rows, which are of one class alone"
    return ""


def _are_ranges(values: np.ndarray, label: np.ndarray) -> bool:
    """Whether each of a few values (null is one) lies in one unbroken range of the target, so that it follows from it;
    values of less than five rows apart. Of rounded targets two ranges may share an end, but not all of one, unless both
    are that one number: a shop that is closed sells nothing, and so do others that are open."""
    codes, distinct = pd.factorize(values, use_na_sentinel=False)
    counts = np.bincount(codes)
    often = counts >= FEWEST_OF_VALUE
    if not 2 <= often.sum() <= MOST_VALUES or len(distinct) > MOST_VALUES or counts[often].sum() < 0.9 * len(codes):
        return False
    codes, label = codes[often[codes]], label[often[codes]]
    low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(low, codes, label)
    np.maximum.at(high, codes, label)
    by_low = np.lexsort((high[often], low[often]))
    low, high = low[often][by_low], high[often][by_low]
    within = (low[1:] == high[:-1]) & ((low[:-1] == high[:-1]) ^ (low[1:] == high[1:]))
    return bool(((low[1:] >= high[:-1]) & ~within).all()) and label.min() < label.max()


def _score(codes: np.ndarray, label: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The mean label of each row's code in the other half of the rows."""
    score = np.empty(len(label))
    for fit in (True, False):
        score[half != fit] = _means(codes[half == fit], label[half == fit], codes[half != fit])
    return score


def _explained(score: np.ndarray, label: np.ndarray) -> float:
    spread = float(np.var(label))
    return 1 - float(np.mean((score - label) ** 2)) / spread if spread else 0.0


def _means(codes: np.ndarray, label: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The mean label of each wanted code; of one that was not seen the mean of all."""
    size = int(max(codes.max(), wanted.max())) + 1
    counts = np.bincount(codes, minlength=size)
    sums = np.bincount(codes, weights=label, minlength=size)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), label.mean())
    return means[wanted]


def _guess(codes: np.ndarray, label: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The most frequent class of each wanted code; of one that was not seen that of all."""
    pairs = pd.DataFrame({"code": codes, "label": label}).value_counts().reset_index()
    best = pairs.drop_duplicates("code").set_index("code")["label"]
    return pd.Series(wanted).map(best).fillna(pd.Series(label).mode().iloc[0]).to_numpy()


def _auc(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve; ties count half."""
    positive = label == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return 0.5
    codes, distinct = pd.factorize(score)  # of few scores, by which a sort of all rows is spared
    order = np.argsort(distinct)
    rows, hits = np.bincount(codes)[order], np.bincount(codes[positive], minlength=len(distinct))[order]
    ranks = np.cumsum(rows) - (rows - 1) / 2  # of each score, the mean of its rows'
    return float(((ranks * hits).sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
