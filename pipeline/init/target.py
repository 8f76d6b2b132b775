"""What the target is: its task, the label that counts as 1, and labels that are null."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from gigabatch.features.engines.arrow_types import is_text
from gigabatch.features.errors import DataError
from gigabatch.pipeline.init.columns import (
    NULL_WORDS,
    PLAIN_NUMBER,
    WEAK_NULL_WORDS,
    Seen,
    odd_words,
    other_units,
    take_later_commas,
    units_told,
    values_seen,
)
from gigabatch.pipeline.init.scalars import scalar
from gigabatch.pipeline.init.texts import Texts

POSITIVE = (
    "yes", "y", "true", "t", "positive", "pos", "ja", "wahr", "oui", "vrai", "si", "sí", "sì",
    "verdadero", "vero", "sim", "verdadeiro", "tak", "ano", "+",
)  # fmt: skip
NEGATIVE = ("no", "false", "negative", "neg", "nein", "falsch", "non", "faux")
LEFT_OVER = ("-", "none", "other", "rest")
# The first is positive beside the second.
PAIRS = (
    ("p", "n"), ("j", "n"), ("s", "n"), ("o", "n"), ("good", "bad"), ("success", "failure"), ("pass", "fail"),
    ("passed", "failed"), ("win", "loss"), ("won", "lost"), ("high", "low"), ("above", "below"), ("on", "off"),
    ("present", "absent"), ("case", "control"), ("malignant", "benign"), ("spam", "ham"), ("sick", "healthy"),
    ("fraud", "legit"), ("fake", "real"), ("approved", "declined"), ("approved", "rejected"), ("approved", "denied"),
    ("accepted", "rejected"), ("accepted", "declined"), ("granted", "denied"),
    *((end, going_on) for end in ("dead", "deceased", "died") for going_on in ("alive", "living")),
    ("gewonnen", "verloren"), ("churned", "active"), ("churned", "retained"), ("churned", "stayed"),
    # Yes and no in languages whose short words are others elsewhere, such as ne for the north-east.
    ("да", "нет"), ("evet", "hayır"), ("evet", "hayir"), ("kyllä", "ei"), ("igen", "nem"), ("da", "nu"), ("da", "ne"),
    ("はい", "いいえ"), ("是", "否"), ("예", "아니오"), ("ναι", "όχι"),
)  # fmt: skip
NEGATING = {
    "no", "not", "non", "without", "never", "nicht", "kein", "keine", "ohne", "pas", "sans", "sin", "geen", "niet",
}  # fmt: skip
NEGATIVE_PREFIXES = ("not", "non", "un", "dis", "in", "il", "im", "ir")
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Words that are no third label beside two others; the latter only beside yes and no, for elsewhere they are a grade.
NO_LABEL = {word.lower() for word in (*NULL_WORDS, *WEAK_NULL_WORDS)} - {"none", "nil", "inf", "-inf"}
NO_ANSWER = ("none", "nil")
LEAST_DELTA = 1e-3  # of Huber's loss, in deviations of the target
MOST_INTEGER_CLASSES = 10
MOST_CLASSES = 1000
MOST_CODES, LEAST_ROWS_A_CODE = 100, 5
AMONG_NUMBERS = 0.01  # share at most of the labels, such as a unit or a total, that are none among numbers
FAR, LEAST_FAR, MOST_FAR = 10, 5e-5, 0.05  # distances of the quartiles; shares of the values, of which 5e-5 is 0.01 %
# Deviation over mean of amounts whose effects may multiply; and the share of the largest that is left out, so that no
# error of input decides. Of exponential amounts it is near 1 (docs/tried.md).
SKEWED, LEFT_OUT = 1.25, 0.01
AS_FREQUENT = 3  # times as rare at most are two codes; a slip of the shift key is rarer
ENDS = (" ", ".", "$", "€", "£", "%", " .", "$ ", "€ ", "£ ", "% ")


@dataclass(frozen=True)
class Labels:
    """Hold what the target is.

    Parameters
    ----------
    settings
        Of the target in a configuration: task, positive, label_strip, label_steps.
    values
        (rows,) of the sample: 0 and 1, numbers of classes or numbers; NaN where null.
    texts
        (rows,): the labels as text, None where null.
    nulls
        Number of nulls in the sample.
    note
        What is said of it.
    advice
        What else to set, a sentence; or empty.
    """

    settings: dict[str, Any]
    values: np.ndarray
    texts: np.ndarray
    nulls: int
    note: str
    advice: str = ""


def labels_of(name: str, column: pd.Series, arrow: pa.DataType | None, task: str | None, decimal: str = "") -> Labels:
    """What a target is.

    Parameters
    ----------
    name
        Of the column.
    column
        The sample of it, as `column_seen` takes it.
    arrow
        Its type in a Parquet file, or None.
    task
        `binary`, `multiclass` or `regression` where a user says so.
    decimal
        The decimal sign of the table's texts, as `columns_seen` tells it.

    Raises
    ------
    DataError
        No label, one label alone, labels that do not fit the task, or more classes than a model is made for.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.target import labels_of
    >>> labels_of("sold", pd.Series(["yes", "no", ""]), None, None).settings
    {'task': 'binary', 'positive': 'yes'}
    """
    texts = _texts(name, column, arrow)
    null = pd.isna(texts)
    known = pd.Series(texts[~null], dtype="object").astype("str")
    if not len(known):
        raise DataError(f"target {name!r}: it holds no label in {len(texts):,} rows. Name another column.")
    missing = _missing_labels(known) if task in (None, "binary") else known.isin([])
    null[~null] = missing
    words, known = known[missing], known[~missing]
    strip = _strip(known)
    steps: list[dict[str, Any]] = []
    raw, scales, spellings = known, (), known.nunique()
    known = known.str.strip(strip) if strip else known
    if _in_several_cases(known):
        known, steps = known.str.strip().str.lower(), [{"clean_text": {"case": "lower"}}]
    if len(words):
        options = steps[0]["clean_text"] if steps else {}
        as_read = words.str.strip().str.lower() if steps else words.str.strip()
        steps = [{"clean_text": {**options, "replace": dict.fromkeys(sorted(set(as_read)))}}]
    counts = known.value_counts()
    if len(counts) == 1:
        raise DataError(
            f"target {name!r}: it holds one label alone, {counts.index[0]!r}, in {len(known):,} rows"
            + (f", and {null.sum():,} are blank, which is no label" if null.any() else "")
            + ", so there is nothing to learn. "
            + ("Where a blank means the other label, write it there; else name" if null.any() else "Name")
            + " another column, or give rows of the other label too."
        )
    numeric, numbers, told = bool(known.str.match(PLAIN_NUMBER).all()), known, ""
    # "1.262" is 1262 where the comma is the decimal sign, unless it is a float of a Parquet file.
    maybe_grouped = numeric and decimal == "," and (arrow is None or is_text(arrow))
    if maybe_grouped and task is None:
        maybe_grouped = not _are_few_and_whole(set(known.drop_duplicates().astype("float64")))
    if (maybe_grouped or not numeric) and (task == "regression" or (task is None and len(counts) > 2)):
        written, is_number = _written_numbers(name, known, task, decimal)
        if written is not None and written.steps:
            ((operator, options),) = written.steps[0].items()
            steps.append({operator: {key: value for key, value in options.items() if key != "column"}})
            null[~null] = ~is_number
            known, raw, scales = known[is_number], raw[is_number], tuple(options.get("scales", ()))
            numbers, numeric, told, task = pd.Series(written.values), True, f"; {written.note}", "regression"
        elif written is None and len(odd := _odd_among_numbers(name, known, decimal)):
            shown = ", ".join(map(repr, odd[:3])) + (", ..." if len(odd) > 3 else "")
            raise DataError(
                f"target {name!r}: {shown} is no number, as the other labels are. Where that is a unit, a total or a "
                "note, delete its row from the file; where all labels are classes, set the task to multiclass."
            )
    labels = set(numbers.drop_duplicates().astype("float64")) if numeric else set(counts.index)
    # Of numbers, and not of floats, which whole numbers of 2^53 and beyond share.
    if len(labels) == 1 and task in (None, "regression") and len({Decimal(str(label)) for label in set(numbers)}) == 1:
        ways = ", ".join(map(repr, sorted(counts.index)[:5]))
        raise DataError(
            f"target {name!r}: it holds one label alone, {labels.pop():g}, written in {len(counts)} ways ({ways}), "
            "so there is nothing to learn. Name another column; where these are classes, set the task to multiclass."
        )
    named = arrow is not None and pa.types.is_dictionary(arrow) and len(counts) <= MOST_CLASSES
    given, task = task is not None, task or _task(labels, len(counts), numeric, named)
    settings: dict[str, Any] = {"task": task}
    values, advice = np.full(len(texts), np.nan), ""
    if task == "regression":
        if not numeric:
            example = known[~known.str.match(PLAIN_NUMBER)].iloc[0]
            raise DataError(
                f"target {name!r}: {example!r} is no number, as a regression needs. Write it as a number in the file, "
                "say under label_steps what it is (docs/init.md), or set --task."
            )
        values[~null] = numbers.astype("float64")
        note = f"{np.nanmin(values):g} to {np.nanmax(values):g}{told}"
        key = scalar(name)
        share, delta = _far_out(values[~null])
        if share and delta >= LEAST_DELTA:  # below, nearly every row's loss would be its absolute error
            advice = (
                f"{share:.2%} of the values of {name} lie far out. A loss that they pull less at: train: {{losses: "
                f"{{{key}: {{kind: huber, delta: {delta:.2g}}}}}}}"
            )
        if (times := _deviation_in_means(values[~null])) >= SKEWED:
            advice += (
                f"{' ' * bool(advice)}{name} is never below 0, and its deviation is {times:.1f} times its mean. Where "
                "effects multiply, such as those of a place and of a year, a loss of logarithms may be far better, and "
                f"elsewhere it is worse: train: {{losses: {{{key}: {{kind: tweedie}}}}}}. The rmse of the valid split "
                "tells."
            )
        if not given and len(labels) < len(counts) and _are_few_and_whole(labels):
            advice = (
                f"{name} holds one number in several ways, such as 1 and 1.0, so its few values are taken for a "
                "regression. For classes write each number in one way."
            )
        if not given and not told and _may_be_codes(numbers.astype("float64")):
            advice += (
                f"{' ' * bool(advice)}{name} holds {len(labels)} whole numbers that are about as frequent as each "
                "other, and is taken for an amount. Where they are codes of classes, set the task to multiclass."
            )
        has_units = bool(strip) or any("parse_number" in step for step in steps)
        if has_units and (others := other_units(raw, scales)):
            advice = f"{units_told(name, others)}{' ' * bool(advice)}{advice}"
    elif task == "binary":
        plain = not strip and not steps and (set(counts.index) == {"0", "1"} or (len(counts) > 2 and labels == {0, 1}))
        if len(counts) > 2 and not plain:
            shown = ", ".join(map(repr, counts.index[:5]))
            raise DataError(f"target {name!r}: a binary target has two labels, found {len(counts)}: {shown}.")
        positive, why = ("1", "") if plain else _positive(counts)
        if not plain:
            settings["positive"] = positive
        is_positive = known.astype("float64") == 1 if plain else known == positive
        values[~null] = is_positive
        note = f"{float(is_positive.mean()):.1%} of the labels are {positive!r}, which is 1{why}"
    else:
        values[~null] = pd.factorize(known, sort=True)[0]
        note = f"{len(counts)} classes; the rarest, {counts.index[-1]!r}, has {counts.iloc[-1]:,} rows"
        if len(counts) > MOST_CLASSES and not given:
            raise DataError(
                f"target {name!r}: it has {len(counts):,} different labels in {len(known):,} rows, so it is more of an "
                "id than a class. Name another column; for items to recommend see docs/recommenders.md."
            )
    if len(words):
        shown = " or ".join(map(repr, sorted(set(words.str.strip()))))
        advice = (
            f"{len(words):,} row(s) are left out, as their {name} is {shown}, which is taken for a missing label. "
            "Where it is a class of its own, set the task to multiclass."
        )
    if task != "regression" and spellings > len(counts) and (strip or steps):
        note += f"; {spellings} spellings of {len(counts)} labels are read as one each"
    if strip:
        settings["label_strip"] = strip
    if steps:
        settings["label_steps"] = steps
    stripped = np.full(len(texts), None, dtype=object)
    stripped[~null] = known
    return Labels(settings, values, stripped, int(null.sum()), note, advice)


def _is_date(name: str, example: str) -> str:
    return (
        f"target {name!r}: {example!r} is a date, and a date is no target. Write the number to predict in a column of "
        "its own, such as the days until then."
    )


def _far_out(values: np.ndarray) -> tuple[float, float]:
    """Share of the values farther from the median than ten times the distance of the quartiles, 0 where many are or
    next to none; and that distance in deviations, from which on an error should count linearly."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    share = float((np.abs(values - middle) > FAR * (high - low)).mean()) if high > low else 0.0
    return (share, float((high - low) / values.std())) if LEAST_FAR <= share <= MOST_FAR else (0.0, 1.0)


def _deviation_in_means(values: np.ndarray) -> float:
    """Deviation over mean of values of 0 and more, without the largest of them; 0 where some are below 0."""
    most = np.sort(values)[: math.ceil(len(values) * (1 - LEFT_OUT))]
    return float(most.std() / most.mean()) if most[0] >= 0 and most[-1] > 0 else 0.0


def _texts(name: str, column: pd.Series, arrow: pa.DataType | None) -> np.ndarray:
    """The labels as the recipe would read them as text."""
    if arrow is None:
        raw = np.array(column, dtype=object)
        raw[np.isin(raw.astype("str"), NULL_WORDS)] = None
        return raw
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
        column = column.astype(pd.ArrowDtype(arrow))
    if pa.types.is_boolean(arrow):
        column = column.map({True: "True", False: "False"})
    elif pa.types.is_null(arrow):
        return np.full(len(column), None, dtype=object)
    elif pa.types.is_floating(arrow) or pa.types.is_decimal(arrow):
        floats = column.astype("float64").to_numpy(na_value=np.nan)
        return np.array(
            [None if np.isnan(v) else str(int(v)) if v == np.floor(v) and abs(v) < 2**53 else repr(float(v))
             for v in floats], dtype=object)  # fmt: skip
    elif pa.types.is_integer(arrow) or pa.types.is_duration(arrow):
        column = column.astype("str").where(column.notna(), None)
    elif pa.types.is_timestamp(arrow) or pa.types.is_date(arrow):
        raise DataError(_is_date(name, str(column.dropna().iloc[0]) if column.notna().any() else str(arrow)))
    elif not is_text(arrow):
        raise DataError(f"target {name!r}: a column of type {arrow} is no target. Name one of text or numbers.")
    found = np.array(column.astype("object"), dtype=object)
    found[pd.isna(found)] = None
    found[found == ""] = None
    return found


def _missing_labels(known: pd.Series) -> pd.Series:
    """Which labels are words that stand for null, where two others are left without them."""
    texts = known.str.strip().str.lower()
    others = set(texts) - (NO_LABEL - {"-"} if bool((texts == "+").any()) else NO_LABEL)
    answers = others - set(NO_ANSWER)
    if len(answers) == 2:
        bare = [_bare(label) for label in answers]
        yes = {*bare, *_apart(*bare)} & set(POSITIVE)
        if yes or all(re.match(PLAIN_NUMBER, label) for label in answers):
            others = answers
    found = ~texts.isin(others)
    return found if len(others) == 2 else texts.isin([])


def _strip(known: pd.Series) -> str:
    """Characters without which fewer labels are left, or without which all labels are numbers."""
    distinct = pd.Series(known.unique(), dtype="str")
    if len(distinct) > MOST_CLASSES and bool(distinct.str.match(PLAIN_NUMBER).all()):
        return ""
    numbers = bool(distinct.str.match(PLAIN_NUMBER).all())
    for ends in ENDS:
        bare = distinct.str.strip(ends)
        if not numbers and bool(bare.str.match(PLAIN_NUMBER).all()):
            return ends
        if bare.nunique() < len(distinct) and not numbers and bool((bare != "").all()):
            return ends
    return ""


def _in_several_cases(known: pd.Series) -> bool:
    """Whether some labels differ in case alone; of single letters, such as grades, only where two are left.

    Codes that are as frequent as each other and hold a capital behind a small letter, such as the vowels `hid` and
    `hId`, are different ones.

    >>> [_in_several_cases(pd.Series(labels)) for labels in (["Yes", "yes", "no"], ["hid", "hId", "had"])]
    [True, False]
    """
    counts = known.str.strip().value_counts()
    distinct = pd.Series(counts.index, dtype="str")
    lower = distinct.str.lower()
    folded = lower.nunique()
    if not (1 < folded < len(distinct) and (folded == 2 or bool((distinct.str.len() > 1).all()))):
        return False
    of_one = pd.Series(counts.to_numpy()).groupby(lower).transform("max")
    frequent = counts.to_numpy() * AS_FREQUENT >= of_one
    inside = distinct.str.contains("[a-z][A-Z]")
    return not bool((frequent & inside & lower.duplicated(keep=False)).any())


def _written_numbers(name: str, known: pd.Series, task: str | None, decimal: str) -> tuple[Seen | None, np.ndarray]:
    """Labels that are numbers in another form, and which they are; the others are the few words that stand for null.

    None where the labels are names, or few enough whole numbers to be classes.
    """
    weak = known.isin(WEAK_NULL_WORDS)
    own = tuple(sorted(set(known[weak]))) + odd_words(Texts.of(known[~weak]))
    is_number = ~known.isin(own)
    left = known[is_number]
    found = values_seen(name, left, True, own, decimal) if len(left) else None
    if found is not None and found.kind == "date":
        raise DataError(_is_date(name, left.iloc[0]))
    if found is None or found.kind != "number":
        return None, is_number.to_numpy()
    few = left.nunique() <= MOST_INTEGER_CLASSES and bool((found.values == np.floor(found.values)).all())
    if few and task is None and found.steps and "parse_number" in found.steps[0]:
        return None, is_number.to_numpy()
    if decimal == ",":
        found.whole = bool((found.values == np.floor(found.values)).all())
        take_later_commas(found)
    if own:
        found.note += f"{', ' * bool(found.note)}{', '.join(map(repr, own))} {'is' if len(own) == 1 else 'are'} null"
    return found, is_number.to_numpy()


def _odd_among_numbers(name: str, known: pd.Series, decimal: str) -> list[str]:
    """The few labels that are no numbers where all others are numbers, of more values than codes have; empty where it
    is not so. They are told by what is left of a text without its number, which few labels share.

    >>> prices = pd.Series([f"{price} €" for price in range(500)] + ["Total: 124750 €"])
    >>> _odd_among_numbers("price", prices, "")
    ['Total: 124750 €']
    """
    known = known[~known.isin(WEAK_NULL_WORDS)]
    beside = known.str.replace(r"[0-9.,'\s+-]+", "", regex=True)
    is_odd = beside.map(beside.value_counts()) <= AMONG_NUMBERS * len(known)
    left = known[~is_odd]
    if not 0 < is_odd.sum() <= AMONG_NUMBERS * len(known) or left.nunique() <= MOST_CODES:
        return []
    found = values_seen(name, left, True, (), decimal)
    return list(known[is_odd].unique()) if found is not None and found.kind == "number" else []


def _task(labels: set[Any], num_written: int, numeric: bool, named: bool) -> str:
    """By the labels, numbers where they are some: few whole ones are classes, or `named` ones, of a type category,
    however they are written, unless one of them is written in several ways. num_written: number of different texts."""
    if num_written == 2 or (numeric and labels == {0, 1}):
        return "binary"
    if not numeric:
        return "multiclass"
    classes = _are_whole(labels) if named else _are_few_and_whole(labels)
    return "multiclass" if len(labels) == num_written and classes else "regression"


def _may_be_codes(numbers: pd.Series) -> bool:
    """Whether more whole numbers than are taken for classes are about as frequent as each other, as codes often are and
    amounts seldom."""
    counts = numbers.value_counts()
    few = MOST_INTEGER_CLASSES < len(counts) <= MOST_CODES and _are_whole(set(counts.index))
    return bool(few and counts.min() >= LEAST_ROWS_A_CODE and counts.max() <= AS_FREQUENT * counts.min())


def _are_whole(labels: set[Any]) -> bool:
    return all(number == np.floor(number) for number in labels)


def _are_few_and_whole(labels: set[Any]) -> bool:
    return len(labels) <= MOST_INTEGER_CLASSES and _are_whole(labels)


def _positive(counts: pd.Series) -> tuple[str, str]:
    """The greater of two numbers, the label that says yes or more, or whose opposite says no; else the rarer one. And
    in words why it is."""
    if all(re.match(PLAIN_NUMBER, label) for label in counts.index):
        greater = max(counts.index, key=lambda number: Decimal(number.strip()))  # floats skip some from 2^53 on
        return str(greater), " as the greater one"
    for label, other in (counts.index, counts.index[::-1]):
        if _says_yes(_bare(label), _bare(other)):
            return str(label), " by what the two say"
    other, rarer = map(str, counts.index)
    return rarer, f" as the rarer one, for the two do not say which is; for {other!r} set positive to it"


def _bare(label: str) -> str:
    """A label in lower case, without the blanks, points and signs of currencies around it."""
    return label.strip().strip("".join(ENDS)).lower()


def _says_yes(label: str, other: str) -> bool:
    """Whether a label, as of `_bare`, is the positive one of the two: by yes, no and not, else by 1 and 0 before them,
    else by words such as good and bad; as a whole, or by what it has beside the words of both and its number
    (churn=yes and churn=no, 2-yes and 1-no)."""
    pairs = ((label, other), _apart(label, other))
    yes = any(_affirms(*pair) for pair in pairs) or _is_denied(label, other)
    no = any(_affirms(*pair[::-1]) for pair in pairs) or _is_denied(other, label)
    if yes != no:
        return yes
    first = [found[0] if found else "" for found in (_words(label), _words(other))]
    if {*first} == {"0", "1"}:
        return first[0] == "1"
    return any(_is_more(*pair) for pair in pairs)


def _words(label: str) -> list[str]:
    return WORD.findall(label)


def _apart(label: str, other: str) -> tuple[str, str]:
    """What each of two labels, as of `_bare`, has beside the words of both and its numbers."""
    words, others = _words(label), _words(other)
    shared = {*words} & {*others}
    rest, other_rest = (
        " ".join(word for word in found if word not in shared and not word.isdecimal()) for found in (words, others)
    )
    return rest, other_rest


def _affirms(label: str, other: str) -> bool:
    """Whether a label says yes, or the other one no."""
    if label in POSITIVE or other in NEGATIVE:
        return True
    return "negative" in other and label == other.replace("negative", "positive")


def _is_denied(label: str, other: str) -> bool:
    """Whether the other label denies what a label says: not spam, didn't buy, inactive, unsuccessful (success)."""
    words, others = {*_words(label)}, {*_words(other)}
    if any(word in NEGATING or word.endswith(("n't", "n’t")) for word in others - words):
        return True
    denied = {prefix + word for word in words - others for prefix in NEGATIVE_PREFIXES}
    return any(word in denied or word.startswith(tuple(d for d in denied if len(d) > 6)) for word in others - words)


def _is_more(label: str, other: str) -> bool:
    """Whether a label is the greater or better one of the two, or the other stands for what is left."""
    if other in LEFT_OVER or (label, other) in PAIRS:
        return True
    if (label[-1:], other[-1:]) == ("+", "-") and label[:-1] == other[:-1]:  # HER2+
        return True
    return label[:1] in (">", "≥") and other[:1] in ("<", "≤")
