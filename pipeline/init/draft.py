"""A configuration of the recipe `table` for a table that nobody has described: roles, split, and what is left out."""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from gigabatch.features.columns.time_types import PIVOT, time_type
from gigabatch.features.errors import DataError, did_you_mean
from gigabatch.features.operators.base import unused
from gigabatch.features.operators.categories.text_hash import TextHash
from gigabatch.features.operators.categories.text_tokens import TextTokens
from gigabatch.features.operators.rows.date_parts import DateParts
from gigabatch.features.reading.encodings import GUESS, is_utf8
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.table.recipe import PARTED_BY, TableRecipe, TableSettings
from gigabatch.features.schema import indicator_name
from gigabatch.features.workflow.steps import to_steps
from gigabatch.features.workflow.workflow import ROW
from gigabatch.pipeline.init.columns import (
    MOST_HASHED_WORDS,
    MOST_TEXT_WORDS,
    MOST_WORDS,
    NULL_WORDS,
    PLAIN_NUMBER,
    SCALES,
    WEAK_NULL_WORDS,
    WORD_SHARE,
    Seen,
    holds_text,
    is_amount_name,
    is_code_name,
    list_separator,
    spaced_lower,
    take_later_commas,
    units_told,
)
from gigabatch.pipeline.init.dates import TIME_NAME, YEAR_NAME, now_us, written_dates
from gigabatch.pipeline.init.decimals import SeenColumns, columns_seen, is_written
from gigabatch.pipeline.init.doubts import doubts, unknown_numbers
from gigabatch.pipeline.init.entities import ENTITY_NAMES, log_of
from gigabatch.pipeline.init.leaks import added, in_text, leak
from gigabatch.pipeline.init.look import Table, header_below, look
from gigabatch.pipeline.init.names import are_dense, are_names, are_readable, as_names, digits_of
from gigabatch.pipeline.init.parts import days_tell, letters_tell, values_tell, words_tell
from gigabatch.pipeline.init.series import series, steps_back
from gigabatch.pipeline.init.target import Labels, labels_of
from gigabatch.pipeline.init.texts import Texts, found_in
from gigabatch.pipeline.init.training import (
    ENOUGH_HELD,
    FEWEST_TOLD,
    MOST_HELD,
    MOST_ROWS,
    WARM_EPOCHS,
    held_out_rows,
    task_of,
    training_for,
)

DEFAULT_NULLS = ("", "NA")
DAY = 86_400_000_000  # microseconds
FEWEST_ROWS_OF_IDS, OWN_VALUE = 50, 0.9  # from so many rows on, a share of distinct values that only ids and texts have
# As R and pandas write the numbers of rows, of which a part of a table has some.
ROW_NAME = re.compile(r"^(row[ _.-]?(names?|num|number|no|nr|index|idx)|index|idx|unnamed: 0|level_0)$")
PANDAS_INDEX = "__index_level_0__"  # of a Parquet file, whose numbers come again where frames were put together
OWN_SENTENCE, SENTENCE = 0.5, 5  # the same share of sentences, of five words and more in the middle
FEW_ROWS_A_VALUE, FEWEST_WITH_WORDS = 0.1, 20  # distinct texts by rows, and in all, of more of which words may tell
FEWEST_TIMES = 20
MANY, MOSTLY = 20, 0.5  # texts of which that many rows are numbers may be amounts; fewer make a category all the same
# Behind numbers: days, hours, grams, litres, units, factors.
UNIT_LETTERS = {*"dhmsglu", *(word for words in SCALES for word in words if len(word) == 1)}
RARE, FEW_HELD = 0.05, 50  # share of a label, and its rows in valid and in test, below which they say little
NOT_WHEN = re.compile(
    r"birth|born|dob|expir|until|end|deliver|due|clos|updat|modif|last|return|cancel|paid|geburt|liefer|bezahlt|storn"
)
WITHIN_WORDS = re.compile(  # in which those mean nothing; an end may stand in any other (vertragsende, tripendtime)
    r"(?<![a-z])((re|ge|ab|ver)?send|lend)|[ck]alend|sender|vendor|vending|weekend|wochenend|spend(en)?|trend|render|friend"
    r"|attend|append|recommend|agenda|(back|front)end|disclos|blast|plastic|elastic|airborne|adobe|residue"
)
WHOSE = re.compile(
    r"user|customer|client|patient|visitor|member|account|session|household|person|subject|kunde|nutzer|machine|device"
    r"|^id[ _-]?(no|nr|num|number|code)?$"
)
ALIKE = "rows of one number have labels alike, and those of neighbouring numbers have not"
HISTORY_LENGTH = 20
NO_VALUES = {*NULL_WORDS, *WEAK_NULL_WORDS}
TOTAL = re.compile(r"(?i)(grand |sub)?totals?:?|sum(me)?:?|gesamt(summe)?:?|somme:?|totale:?|suma:?")
RANDOM = "of the random split"
FIRST_COLUMNS, FIRST_TIMES = 10, 100
FEWEST_COPIES = 0.01  # share of rows, from which on copies are spoken of
MOST_TRIED_ROWS, SEEDS = 50_000, 20
# Lists are made with all rows in memory; of larger tables texts are hashed to floats, which are made in parts.
MOST_ROWS_OF_TOKENS, FEWEST_OF_WORD = 1_000_000, 5
FEWEST_OF_NAME = 2  # texts with a word of names, which are short: each word tells more (docs/tried.md)
CHECKED = ("split", "class(es)", "multiclass needs two")  # what another seed may mend


@dataclass
class Draft:
    """Hold a configuration with what is to be said of it.

    Parameters
    ----------
    features
        Settings of the recipe.
    notes
        By a column's name: the comment beside it.
    role_notes
        By a setting's name, such as `time` or `split`: the comment beside it.
    left_out
        Why, by column.
    leaks
        Columns among `left_out` that tell the label.
    ids
        Columns among `left_out` with another value in each row.
    remarks
        Sentences for the head of the file.
    training
        Other sections of the configuration: what `training_for` chooses.
    texts
        By column of text: the features that are made of it.
    words
        Settings under `preprocess.columns` of the lists of words among them, and of categories whose values tell
        little.
    proposed
        Further `steps`, `lists` and columns of `continuous`, which the file holds as comments.
    proposed_settings
        Further settings of the recipe, likewise.
    recipe
        Its name.
    labelled
        Share of the rows looked at that no target leaves out.
    """

    features: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    role_notes: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    training: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, dict[str, Any]] = field(default_factory=dict)
    proposed: dict[str, Any] = field(default_factory=dict)
    proposed_settings: dict[str, Any] = field(default_factory=dict)
    recipe: str = "table"
    labelled: float = 1.0

    @property
    def categories(self) -> dict[str, str]:
        """Type of each category."""
        found = self.features.get("categorical", ())
        return dict(found) if isinstance(found, Mapping) else dict.fromkeys(found, "string")

    @property
    def engine(self) -> dict[str, str]:
        """The engine, where another than that which the machine has is needed."""
        return {"engine": "pandas"} if self.features.get("lists") else {}

    @property
    def of_names(self) -> bool:
        """Whether words of categories are among the lists, which tell of the label, and all lists are words."""
        named = any(name in self.categories for name in self.texts)
        return named and set(self.features.get("lists", ())) <= set(self.words)

    @property
    def at_random(self) -> bool:
        """Whether the splits are random parts of the rows, row by row."""
        return self.recipe == "table" and not any(self.features.get(name) for name in PARTED_BY)

    @property
    def has_features(self) -> bool:
        """Whether a column is one."""
        return any(self.features.get(role) for role in ("categorical", "continuous", "lists"))

    def roles(self, most: int = 20) -> str:
        """What columns are taken for, the first so many of each kind."""
        one, several = ("user", "item", "rating", "time"), ("categorical", "continuous", "lists")
        named = {role: self.features[role] for role in (*one, *several) if self.features.get(role)}
        of_texts = {name for made in self.texts.values() for name in made}
        named |= {role: [name for name in named.get(role, ()) if name not in of_texts] for role in several}
        named |= {"text": list(self.texts)}
        texts = {role: names if role in one else first_of(names, most) for role, names in named.items() if names}
        return "; ".join(f"{role} {text}" for role, text in texts.items())

    def told(self) -> str:
        """One line that says what each column is taken for."""
        left_out = [f"{name} ({why})" for name, why in self.left_out.items()]
        texts = [self.roles(), f"left out {first_of(left_out, 20)}" if left_out else ""]
        return "; ".join(filter(None, texts))


def draft_config(pattern: str, target: str, task: str | None, most_rows: int, encoding: str | None = None) -> Draft:
    """Look at a table and say how the recipe `table` is to read it.

    Parameters
    ----------
    pattern
        Path, folder, glob or URL.
    target
        Name of the column to predict.
    task
        `binary`, `multiclass`, `regression`, or None to see for itself.
    most_rows
        About how many rows are looked at.
    encoding
        Of CSV files, or None to see for itself.

    Raises
    ------
    DataError
        What `look` and `labels_of` refuse, no such target, no feature left, or too few rows to split.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.pipeline.init.draft import draft_config
    >>> rows = [f"{place},{place % 7},{'yes' if place % 3 else 'no'}" for place in range(300)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "shop.csv")
    ...     _ = path.write_text("\\n".join(["order_id,visits,sold", *rows]))
    ...     made = draft_config(str(path), "sold", None, 1000)
    >>> made.features["keys"], made.features["continuous"], made.features["targets"]
    (['order_id'], ['visits'], {'sold': {'task': 'binary', 'positive': 'yes'}})
    """
    try:
        table = look(pattern, most_rows, encoding)
    except DataError as error:
        if line := header_below(pattern, target, encoding):
            raise _lines_above(target, line) from error
        raise
    if target in table.left_out and "train_path" in table.paths:  # the test files of a competition hold no label
        made = draft_config(table.paths["train_path"], target, task, most_rows, encoding)
        made.remarks.append(f"The target is {table.left_out[target]}, so the train file alone is split.")
        return made
    if target not in table.sample:
        line = 0 if target in table.left_out else header_below(pattern, target, encoding)
        raise _lines_above(target, line) if line else _no_target(target, table)
    columns = columns_seen(table)
    labels = labels_of(target, table.sample[target], table.arrow.get(target), task, columns.decimal)
    made = draft_columns(table, {target: labels}, columns, timed="path" in table.paths)
    if log := log_of(table.sample.columns, target):
        user, item = (json.dumps(name, ensure_ascii=False, allow_nan=False) for name in log)
        made.remarks.append(
            f"The target's name says ids, of a log of choices. To learn what each user chooses next: gigabatch init "
            f"DATA --user {user} --item {item}, without --target."
        )
    if not made.has_features:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in made.left_out.items()) or "It is alone."
        raise DataError(f"input {pattern!r}: no feature is left beside the target {target!r}. {reasons}")
    made.features = {**table.paths, **form_of_files(made, table, encoding), **made.features}
    if made.ids:
        made.features["keys"] = made.ids[:1]
        arrow = table.arrow.get(made.ids[0])
        if arrow is not None and pa.types.is_integer(arrow) and not pa.types.is_uint64(arrow):
            made.features["inputs"] = {**made.features.get("inputs", {}), made.ids[0]: "int64"}  # no text in scores
        made.left_out[made.ids[0]] += "; carried to predictions as a key"
    split_phrases(made, table)
    _entities(made, table, {target, *made.features.get("keys", ())})
    if table.whole and len(table.sample) <= MOST_TRIED_ROWS:
        try_splits(made)
    _history(made, set(table.sample.columns))
    if table.whole and not made.proposed and labels.settings["task"] == "regression":
        _look_back(made, columns.columns, target, labels)
    return made


def form_of_files(made: Draft, table: Table, encoding: str | None) -> dict[str, str]:
    """The settings of separator and encoding, where they are not the usual ones; an encoding that nobody has given gets
    its comment."""
    found = {"separator": table.separator} if table.separator != "," else {}
    if not is_utf8(table.encoding):
        found["encoding"] = table.encoding
        if encoding is None:
            made.role_notes["encoding"] = _encoding_note(table)
    return found


def _encoding_note(table: Table) -> str:
    """Why the files are read in an encoding other than UTF-8, with a text that shows whether it is the right one."""
    if table.encoding != GUESS:
        return "by the byte order mark"
    texts = (text for name in table.sample for text in (str(name), *table.sample[name].dropna().drop_duplicates()))
    shown = next((f", by which a text is {text[:40]!r}" for text in texts if not text.isascii()), "")
    return f"not UTF-8, so taken for that of Windows{shown}; another is set by --encoding"


def draft_columns(
    table: Table, labels: Mapping[str, Labels], seen: SeenColumns | None = None, *, timed: bool,
    time: str | None = None, names: Collection[str] = (), numbers: Collection[str] = (), more: bool = False,
    lists: bool = True,
) -> Draft:  # fmt: skip
    """What the columns of a table are: the settings of the recipe but for its files.

    Parameters
    ----------
    table
        As `look` or `look_at` makes it, with the columns of the labels or without.
    labels
        By name of the label; none where no possible leak is looked for.
    seen
        What the columns hold; by default what `columns_seen` says.
    timed
        Whether rows may be split by a column of times.
    time
        The column of times that rows are split by, where it is given.
    names
        Of columns beside these, which no column that steps make may have.
    numbers
        Those of them that are continuous features.
    more
        Whether there are other features than these columns, so that possible leaks need not be kept for want of any.
    lists
        Whether lists of words may be made of texts; otherwise those of a few words are hashed to floats.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from gigabatch.pipeline.init.draft import draft_columns
    >>> from gigabatch.pipeline.init.look import look_at
    >>> rows = pa.table({"city": ["Oslo", "Bonn"], "price": [1.0, 2.0], "shop_id": [7, 8], "land": ["no", "no"]})
    >>> made = draft_columns(look_at(rows, 1000), {}, timed=False)
    >>> made.categories, made.features["continuous"], made.left_out
    ({'city': 'string', 'shop_id': 'int64'}, ['price'], {'land': 'one value alone, no'})
    """
    made = Draft(left_out=dict(table.left_out))
    seen = columns_seen(table) if seen is None else seen
    columns = {name: found for name, found in seen.columns.items() if name not in labels}
    _head(made, table, labels)
    made.remarks += [seen.remark] if seen.remark else []
    made.remarks += [] if table.arrow else _odd_ends(table, columns)
    flags = {
        indicator_name(name): name for name in (*numbers, *columns) if name in numbers or _is_number(columns[name])
    }
    for name in [name for name in columns if name in flags]:
        del columns[name]
        made.left_out[name] = f"the name of the flag that says where {flags[name]} is null; rename yours to keep it"
    rows = len(table.sample) if table.whole else table.rows
    lists = lists and rows is not None and rows <= MOST_ROWS_OF_TOKENS
    most_words = MOST_TEXT_WORDS if lists else MOST_HASHED_WORDS
    words = lists and rows is not None and rows <= MOST_ROWS  # measured on tables of TabM
    kept = _kept(made, columns, labels, more, most_words, words)
    _nulls(made, table, columns, kept, labels)
    _names(made, table, kept, labels, seen.decimal)
    for name, found in kept.items():
        if seen.decimal == "," and found.kind == "number" and is_written(table, name):
            take_later_commas(found)
    taken = {*table.sample.columns, *names}
    labelled = ~np.any(
        [np.zeros(len(table.sample), bool), *(np.isnan(item.values) for item in labels.values())], axis=0
    )
    split_by = kept.get(time or "") or (moment_of(kept, labelled) if timed else None)
    _roles(made, table, kept, timed, split_by, taken, lists, labelled)
    made.labelled = float(labelled.mean()) if len(labelled) else 1.0
    if made.words and not more and not made.features["categorical"] and not made.features["continuous"]:
        _hash_too(made, taken)
    made.features = {name: value for name, value in made.features.items() if value not in (None, [], {}, ())}
    if rows is not None:  # of a CSV file that was not read to its end nobody knows; it is larger than the sample
        rows, of_one = round(rows * made.labelled), set(table.paths) <= {"path"}
        made.training = training_for(
            rows,
            bool(made.features.get("categorical")),
            len(made.features.get("continuous", ())),
            task=task_of(found.settings["task"] for found in labels.values()),
            names=made.of_names,
            at_random=made.at_random and of_one,
        )
        _split(made, rows, labels, of_one=of_one)
    if made.words:
        made.training.setdefault("preprocess", {})["columns"] = made.words
    return made


def _split(made: Draft, rows: int, labels: Mapping[str, Labels], *, of_one: bool) -> None:
    """Numbers of valid and test rows, where they are fewer than the tenth that the recipe takes and lie anywhere: the
    newest tenths stay, from which `--final` learns in the end; and what few rows need of nights, where these have a
    time. rows: with labels. of_one: no file is a split by itself."""
    binary = [found.values for found in labels.values() if found.settings["task"] == "binary"]
    ones = [float(np.nanmean(values)) for values in binary]
    classes = [len(np.unique(found.values[~np.isnan(found.values)])) for found in labels.values()
               if found.settings["task"] == "multiclass"]  # fmt: skip
    held = held_out_rows(rows, min((min(share, 1 - share) for share in ones), default=0.5), max(classes, default=2))
    size = int(rows * MOST_HELD) if "time" in made.features else held
    if "time" in made.features:
        few = {"min_window_rows": max(size // 2, FEWEST_TOLD)} if size < ENOUGH_HELD else {}
        warm = {"warm_epochs": WARM_EPOCHS} if "epochs" in made.training.get("train", {}) else {}  # for a new model
        made.training |= {"nightly": warm | few} if warm or few else {}
    for name, found in labels.items():
        share = float(np.nanmean(found.values)) if found.settings["task"] == "binary" else 0.5
        share = min(share, 1 - share)
        if of_one and share < RARE and size * share < FEW_HELD:
            made.remarks.append(
                f"Of the rarer label of {in_short(name)} valid and test hold about {size * share:.0f} rows each, by "
                "which few models can be told apart. Give more rows, or set features.split to more valid_rows and "
                "test_rows."
            )
    if of_one and labels and held < int(rows * MOST_HELD) and "time" not in made.features:
        made.features["split"] = {"valid_rows": held, "test_rows": held}


def _is_number(seen: Seen) -> bool:
    """Whether a column will be continuous."""
    return seen.kind == "number" and not id_reason(seen) and (seen.num_values > 1 or bool(seen.null.any()))


def _lines_above(target: str, line: int) -> DataError:
    return DataError(
        f"target {target!r}: it is not in the first line. Delete lines above the header: {target!r} stands "
        f"in line {line}."
    )


def _no_target(target: str, table: Table) -> DataError:
    if target in table.left_out:
        return DataError(f"target {target!r}: cannot be used, {table.left_out[target]}.")
    names = [str(name) for name in table.sample]
    shown = ", ".join(map(repr, names[:30])) + (", ..." if len(names) > 30 else "")
    return DataError(f"target {target!r}: no such column.{did_you_mean(target, names)} Columns: {shown}.")


def _head(made: Draft, table: Table, labels: Mapping[str, Labels]) -> None:
    """How many rows were looked at, and the targets."""
    made.features = {"null_values": None, "targets": {name: found.settings for name, found in labels.items()}}
    nulls = max((found.nulls for found in labels.values()), default=0)
    made.features["drop_null_targets"] = True if nulls else None
    made.notes |= {name: found.note for name, found in labels.items()}
    if nulls:
        made.role_notes["drop_null_targets"] = f"{nulls:,} of the rows have no label"
    made.remarks.append(rows_looked_at(table))
    for name, found in labels.items():
        made.remarks.append(f"Target {in_short(name)}: {found.settings['task']}; {found.note}.")
    if nulls:
        made.remarks.append(f"Rows without a label are left out: {nulls:,} of those looked at.")
    made.remarks += [found.advice for found in labels.values() if found.advice]
    for found in labels.values():
        if found.settings["task"] != "multiclass":
            continue
        rare = pd.Series(found.values).dropna().value_counts()
        if int(rare.iloc[-1]) < 30:
            made.remarks.append(
                f"{int((rare < 30).sum())} class(es) have fewer than 30 rows. A class of valid or test that train has "
                "not stops the run: leave such rows out, or put the classes together."
            )


def rows_looked_at(table: Table) -> str:
    """How many rows the sample has, and whether those are all."""
    of = "all" if table.whole else f"a sample; the files hold {table.rows:,}" if table.rows else "a sample"
    return f"Rows looked at: {len(table.sample):,} ({of})."


def _odd_ends(table: Table, columns: Mapping[str, Seen]) -> list[str]:
    """What is said of a first row that is a second header or holds units, and of a last one that holds totals."""
    found = []
    for place, which, what in ((0, "first", "a second header, or units"), (-1, "last", "a total, or a note")):
        row = {name: str(table.sample[name].iloc[place]).strip() for name in columns}
        words = [
            name for name, seen in columns.items()
            if seen.kind in ("number", "date") and pd.isna(seen.values[place]) and row[name] not in NO_VALUES
        ]  # fmt: skip
        totals = [
            name for name in columns if TOTAL.fullmatch(row[name]) and (table.sample[name] == row[name]).sum() == 1
        ]
        shown = totals if which == "last" and totals else words if len(words) > 1 else []
        if shown and (which == "first" or table.whole):
            texts = ", ".join(f"{in_short(row[name])!r} in {in_short(name)}" for name in shown[:3])
            found.append(f"The {which} row holds {texts}: where it is {what}, delete it from the file.")
    return found


def _kept(
    made: Draft, columns: Mapping[str, Seen], labels: Mapping[str, Labels], more: bool, most_words: int, words: bool
) -> dict[str, Seen]:
    """The columns that may be features or times; the others are left out and said. most_words: of a middle text.
    words: whether categories of many values get lists of their words."""
    kept, leaks = {}, {}
    made.remarks += unknown_numbers({in_short(name): seen for name, seen in columns.items()})
    for name, seen in columns.items():
        made.remarks += doubts(in_short(name), seen)
        if seen.decimals:
            both = " and ".join(map(repr, seen.decimals[::-1]))
            made.remarks.append(
                f"{in_short(name)} holds numbers with two decimal signs ({both}), so each text is a value of its own. "
                "Write them with one in the file."
            )
        elif told := _mostly_numbers(seen):
            made.remarks.append(told)
        if seen.kind == "other":
            made.left_out[name] = seen.note
        elif seen.kind == "list":
            kept[name] = seen
        elif seen.num_values == 0 or (seen.num_values == 1 and not seen.null.any()):
            alone = pd.Series(seen.values).dropna()
            shown = in_short if seen.kind != "date" else day_of
            value = "" if seen.num_values == 0 else f", {shown(alone.iloc[0])}"
            made.left_out[name] = f"one value alone{value}"
        elif told := next(filter(None, (_in_text(seen, label) for label in labels.values())), ""):
            leaks[name] = f"a possible leak: {told}"
        elif ((reason := id_reason(seen)) and holds_text(seen, most_words)) or _is_prose(seen, most_words):
            seen.kind, seen.dtype, seen.steps = "text", "string", []
            kept[name] = seen
        elif reason:
            made.left_out[name] = reason
            if not seen.null.any() and "each row" in reason and not seen.decimals:
                made.ids.append(name)
            if told := next(filter(None, (_letters(seen, label) for label in labels.values())), ""):
                made.remarks.append(_of_letters(name, told, {*columns, *labels, *made.left_out}))
        elif any(_is_copy(seen, label) for label in labels.values()):
            made.left_out[name] = "a copy of the target"
        elif not (seen.kind == "date" and not seen.null.any() and _says_when(seen)) and (
            reason := next(filter(None, (_leak(seen, label) for label in labels.values())), "")
        ):  # when a row was is no feature but splits them, and tells all of what rises from day to day
            leaks[name] = f"a possible leak: {reason}"
        else:
            seen.has_words = words and any(_has_words(seen, label) for label in labels.values())
            seen.tells_little = words and not seen.has_words and _tells_little(seen, labels.values())
            seen.has_days = any(_days_tell(seen, label) for label in labels.values())
            kept[name] = seen
    for label in labels.values():
        numbers = {name: seen.values for name, seen in kept.items() if seen.kind == "number"}
        while label.settings["task"] == "regression" and (parts := added(numbers, label.values)):
            together = " and ".join(filter(None, (", ".join(map(in_short, parts[:-1])), in_short(parts[-1]))))
            for name in parts:
                leaks[name] = f"a possible leak: the target is a sum or difference of {together}"
                del kept[name], numbers[name]
    features = [name for name in kept if kept[name].kind in ("number", "category", "text")]
    if leaks and not features and not more and len(leaks) < 50:
        made.remarks.append(f"Nothing else is left, so possible leaks are features: {', '.join(leaks)}.")
        made.notes |= leaks
        return {name: seen for name, seen in columns.items() if name in kept or name in leaks}
    made.left_out |= leaks
    made.leaks = list(leaks)
    return kept


def _is_prose(seen: Seen, most_words: int) -> bool:
    """Whether a category holds sentences, of which more than half of the rows have one of their own, beside a few that
    come again ("no damage")."""
    known = len(seen.values) - int(seen.null.sum())
    if seen.kind != "category" or known < FEWEST_ROWS_OF_IDS or seen.num_values <= OWN_SENTENCE * known:
        return False
    return holds_text(seen, most_words, SENTENCE) and not list_separator(pd.Series(seen.values))


def _has_words(seen: Seen, label: Labels) -> bool:
    """Whether a category, such as titles of jobs, has so many values that few rows have each, and words that come again
    in other values and tell of the label there."""
    if not _is_of_few_rows(seen) or not holds_text(seen, MOST_TEXT_WORDS):
        return False
    known = ~np.isnan(label.values)
    told = words_tell(seen.values[known], label.values[known], label.settings["task"])
    return told and not list_separator(pd.Series(seen.values))


def _tells_little(seen: Seen, labels: Iterable[Labels]) -> bool:
    """Whether few rows have each value of a category, which is no list in one text, and values tell of no label in
    other rows."""
    if not _is_of_few_rows(seen) or list_separator(pd.Series(seen.values)):
        return False
    known = [(label, ~np.isnan(label.values)) for label in labels]
    return not any(values_tell(seen.values[rows], label.values[rows], label.settings["task"]) for label, rows in known)


def _is_of_few_rows(seen: Seen) -> bool:
    many = FEW_ROWS_A_VALUE * (len(seen.values) - int(seen.null.sum()))
    return seen.kind == "category" and seen.num_values > max(many, FEWEST_WITH_WORDS)


def _days_tell(seen: Seen, label: Labels) -> bool:
    """Whether days of the calendar, such as holidays, tell of the label in a column of dates of several years."""
    if seen.kind != "date" or _is_of_day(seen) or not _has_days(seen):
        return False
    known = ~seen.null & ~np.isnan(label.values)
    zone = None if seen.zone in ("", "?") else seen.zone
    return days_tell(seen.values[known], label.values[known], label.settings["task"], zone)


def _mostly_numbers(seen: Seen) -> str:
    """The remark that most of the texts of a category are numbers with a few others among them, such as <0.5 and 90+,
    or one of a few words; empty where they are not, or are codes by their name or their letters (12a, V45)."""
    if seen.kind != "category" or seen.categories != "string" or is_code_name(seen.name) or seen.num_values < MANY:
        return ""
    known = seen.texts
    others = known.kept(~found_in(known.distinct, PLAIN_NUMBER))
    few = 0 < others.num_rows <= (1 - MOSTLY) * known.num_rows
    if not few or bool(found_in(known.distinct, "^0[0-9]").any()):
        return ""
    amounts = others.kept(found_in(others.distinct, "[0-9]"))
    share = 1 - others.num_rows / known.num_rows
    holds = f"{in_short(seen.name)} holds numbers in {share:.0%} of the rows with a value, and"
    if not len(amounts.distinct):
        if len(others.distinct) > MOST_WORDS:
            return ""
        often = np.argsort(-others.counts, kind="stable")[:2]
        words = ", ".join(map(repr, others.distinct[often]))
        return (
            f"{holds} words such as {words} in more than {WORD_SHARE:.0%}, so each text is a value of its own. Where "
            "the numbers are amounts, add the words to null_values."
        )
    if 2 * _num_lettered(amounts) >= amounts.num_rows:
        return ""
    shown = ", ".join(map(repr, amounts.distinct[:2]))
    return (
        f"{holds} texts such as {shown}, so each text is a value of its own. Where they are amounts, write numbers in "
        "the file, or nothing."
    )


def _num_lettered(texts: Texts) -> int:
    """In how many rows texts are numbers with a letter in front (V45.8), or with different ones behind that are not all
    scales or units (12a, 7-9 b), as codes of diseases and numbers of houses are."""
    before = int(texts.counts[found_in(texts.distinct, r"^\s*[^\W\d_][-. ]?[0-9][0-9.]*\s*$")].sum())
    letters = texts.distinct.str.lower().str.extract(r"^\s*[0-9]+(?:\s?[-/]\s?[0-9]+)?\s?([a-z])\s*$")[0]
    there = letters.dropna()
    of_codes = there.nunique() > 1 and not set(there) <= UNIT_LETTERS
    return before + int(texts.counts[letters.notna()].sum()) * of_codes


def _is_copy(seen: Seen, label: Labels) -> bool:
    known = ~np.isnan(label.values)
    are_numbers = seen.values.dtype.kind == "f"
    of_numbers = are_numbers and label.settings["task"] == "regression"
    values, told = seen.values[known], (label.values if of_numbers else label.texts)[known]
    for rows in (slice(100), slice(None)):  # the first ones tell of most columns that they are none
        labels = told[rows]
        if are_numbers and not of_numbers:  # numbers of classes, which are text
            labels = pd.to_numeric(pd.Series(labels, dtype=object), errors="coerce").to_numpy()
        if not bool((values[rows] == labels).all()):
            return False
    return True


def _in_text(seen: Seen, label: Labels) -> str:
    known = ~np.isnan(label.values)
    of_text = label.settings["task"] == "regression" and seen.kind == "category" and seen.categories == "string"
    return in_text(seen.values[known], label.values[known]) if of_text else ""


def _leak(seen: Seen, label: Labels) -> str:
    known = ~np.isnan(label.values)
    values = seen.values if seen.values.dtype.kind == "f" else seen.texts.codes
    return leak(values[known], label.values[known], label.settings["task"])


def _letters(seen: Seen, label: Labels) -> str:
    known = ~np.isnan(label.values)
    of_text = seen.kind == "category" and seen.categories == "string"
    return letters_tell(seen.values[known], label.values[known], label.settings["task"]) if of_text else ""


def _of_letters(name: str, side: str, taken: Collection[str]) -> str:
    """The remark that letters of a column which is left out tell of the label. taken: names of columns."""
    names = name, unused(f"{name}_letters", taken)
    column, output = (json.dumps(text, ensure_ascii=False, allow_nan=False) for text in names)
    step = f"text_tokens: {{column: {column}, output: {output}, letters: 3}}"
    return (
        f"{in_short(name)} is left out, but the {side} letters of its texts tell of the label. Where they are known "
        f"before it, and texts to come are of this kind, add their letters: - {step} under steps, {output}: "
        f"{{elements: string}} under lists, and {column}: string under inputs."
    )


def _names(made: Draft, table: Table, kept: dict[str, Seen], labels: Mapping[str, Labels], decimal: str) -> None:
    """Take whole numbers for names where the labels of their rows say so: text, and numbers without large gaps. Tell of
    the others. decimal: as of `columns_seen`."""
    found, doubted = [], []
    for name, seen in kept.items():
        digits = digits_of(seen, table.sample[name]) if name in table.arrow else None
        if digits is None and (seen.kind != "number" or not seen.whole or seen.steps):
            continue
        if is_amount_name(name):
            continue
        if digits is None and not are_readable(table.sample[name][~seen.null], table.arrow.get(name)):
            continue
        known = ((~np.isnan(label.values), label) for label in labels.values())
        if not any(are_names(seen.values[rows], label.values[rows], label.settings["task"]) for rows, label in known):
            continue
        if digits is not None or are_dense(seen.values):
            kept[name] = as_names(seen, digits)
            if decimal == "," and is_written(table, name):
                kept[name].categories = "string"  # int64 would take a later 1.000 for 1
            found.append(in_short(name))
        else:
            doubted.append(in_short(name))
    if found:
        made.remarks.append(
            f"Numbers of {', '.join(found)} are taken for ids or codes: {ALIKE}. Where they are amounts, take them "
            "from categorical to continuous."
        )
    if doubted:
        made.remarks.append(
            f"Numbers of {', '.join(doubted)} may be ids or codes: {ALIKE}. Where they are, take them from continuous "
            f"to categorical, as {doubted[0]}: int64{', and out of inputs and steps' if decimal else ''}."
        )


def id_reason(seen: Seen) -> str:
    """Why a column says which row it is, and nothing of it; empty where it may say more."""
    known = seen.values[~seen.null]
    if len(known) < FEWEST_ROWS_OF_IDS and not (seen.kind == "number" and ROW_NAME.search(spaced_lower(seen.name))):
        return ""  # values of so few rows may all differ by chance
    if seen.kind == "date":
        return ""
    if seen.kind == "number":
        if seen.whole and seen.name == PANDAS_INDEX:
            return "the index of a frame of pandas without a name"
        span = float(known.max() - known.min()) + 1
        if not seen.whole or seen.num_values <= OWN_VALUE * len(known):
            return ""
        of_a_part = seen.num_values == len(seen.values) and ROW_NAME.search(spaced_lower(seen.name))
        if span >= 2 * len(known) and not of_a_part:
            return ""
        counts = seen.num_values < len(known)
        return "whole numbers that count the rows, some twice" if counts else "another number in each row"
    if seen.num_values == len(known):
        return "another value in each row"
    if seen.num_values > OWN_VALUE * len(known):
        return f"{seen.num_values:,} values in {len(known):,} rows, ids or free text"
    return ""


def _nulls(
    made: Draft, table: Table, columns: Mapping[str, Seen], kept: dict[str, Seen], labels: Mapping[str, Labels]
) -> None:
    """Words that stand for null; those that are labels or names too are left to the columns where they are null."""
    if table.arrow:
        made.features["null_values"] = [""]
        return
    said = {str(text): "a label" for label in labels.values() for text in label.texts if text is not None}
    for name in (*kept, *made.leaks, *made.ids):
        if columns[name].kind in ("category", "text"):
            there = table.sample[name].drop_duplicates()
            said |= dict.fromkeys(there[there.isin(WEAK_NULL_WORDS)], f"a value of {in_short(name)}")
    words = dict.fromkeys(DEFAULT_NULLS)
    for name, seen in list(kept.items()):
        clash = [word for word in seen.null_words if word in said and word in WEAK_NULL_WORDS]
        words |= dict.fromkeys(word for word in seen.null_words if word not in clash)
        if clash and seen.kind == "number":
            first = seen.steps[0] if seen.steps and "clip" not in seen.steps[0] else {"parse_number": {"column": name}}
            ((operator, options),) = first.items()
            own = [*options.get("null_values", ()), *clash]
            left = [step for step in seen.steps if step is not first]
            seen.dtype, seen.steps = "string", [{operator: {**options, "null_values": own}}, *left]
        elif clash and (dtype := _lenient(seen, table.sample[name])):
            seen.dtype = dtype
        elif clash:
            del kept[name]
            made.left_out[name] = f"{clash[0]!r} stands for null here and is {said[clash[0]]}; write another word"
    for target, label in labels.items():
        found = np.array(table.sample[target], dtype=object)
        steps = [options for step in label.settings.get("label_steps", ()) for options in step.values()]
        its_own = {word for options in steps for word in options.get("null_values", ())}
        its_own |= {word for options in steps for word, new in options.get("replace", {}).items() if new is None}
        nulls = [str(word) for word in pd.unique(found[np.isnan(label.values)])]
        words |= dict.fromkeys(word for word in nulls if its_own.isdisjoint((word.strip(), word.strip().lower())))
    if set(words) != set(DEFAULT_NULLS):
        made.features["null_values"] = list(words)


def _lenient(seen: Seen, column: pd.Series) -> str:
    """The type that reads a column of dates and takes other words for null; empty where no one format has them all."""
    if seen.dtype != "datetime":
        return f"{seen.dtype.rstrip('?')}?"
    known = column[~seen.null]
    found = written_dates(known.astype("str"), lenient=True)
    return found.dtype if found else ""


def _roles(
    made: Draft, table: Table, kept: Mapping[str, Seen], timed: bool, time: Seen | None, names: set[str], tokens: bool,
    labelled: np.ndarray,
) -> None:  # fmt: skip
    """Roles of the columns, the split, and the steps. time: to split by; names: that are taken; tokens: whether texts
    become lists; labelled: whether each row has all labels, as others are left out."""
    steps: list[dict[str, Any]] = []
    inputs: dict[str, str] = {}
    categorical: dict[str, str] = {}
    continuous: list[str] = []
    lists: dict[str, Any] = {}
    for name, seen in kept.items():
        known = len(seen.values) - int(seen.null.sum())
        if seen.kind == "list":
            lists[name] = {"elements": seen.elements}
            continue
        if seen.kind == "text":
            if tokens:
                words = unused(f"{name}_words", names)
                step: TextTokens | TextHash = TextTokens(name, words)
                lists[words] = {"elements": "string"}
                made.words[words] = {"min_count": FEWEST_OF_WORD}
                made.notes[words] = f"the words of {in_short(name)}"
            else:
                step = TextHash(name, _free_prefix(name, names))
                continuous += step.outputs
                made.notes[step.outputs[0]] = f"to {step.outputs[-1]}: hashes of the words of {in_short(name)}"
            steps += to_steps([step])
            names.update(step.outputs)
            made.texts[name] = list(step.outputs)
            inputs[name] = seen.dtype
            made.notes[f"inputs.{name}"] = f"{seen.num_values:,} texts, whose words come again in other rows"
            continue
        if seen.kind == "date":
            told = _parts_alone(seen)
            more = _date_features(seen, time, names, told)
            parts = _parts(seen, time)
            if alone := [f"{part} ({value})" for part, value in told.items() if part in parts]:
                made.remarks.append(
                    f"{in_short(name)} has one {' and one '.join(alone)} alone in all rows looked at, which is no "
                    "feature."
                )
            categorical |= more[0]
            continuous += more[1]
            steps += more[2]
            names.update((*more[0], *more[1]))
            made.notes |= dict.fromkeys((*more[0], *more[1]), f"made of {in_short(name)}")
            for part in (one for one in more[0] if one.endswith("_month_day")):
                made.notes[part] = f"made of {in_short(name)}: 1225 is 25 December; such days tell of the label"
            if time is None or name != time.name or seen.dtype != "datetime":
                inputs[name] = seen.dtype
            if seen.note:
                made.notes[f"inputs.{name}"] = seen.note
            if seen.zone == "?" and more[2]:
                made.remarks.append(
                    f"{in_short(name)} has offsets from UTC, and its weekday and hour are those of UTC. Set zone, "
                    "such as zone: Europe/Berlin, in its date_parts for those of local time."
                )
            split_by = "time, " * (time is not None and name == time.name)
            no_time = f"take the column out of inputs, {split_by}steps and what these make, and put it under continuous"
            made.remarks += time_doubts(seen, no_time, "inputs")
            continue
        if seen.kind == "category":
            categorical[name] = seen.categories
        else:
            continuous.append(name)
        if seen.other_units:
            made.remarks.append(units_told(in_short(name), seen.other_units))
        if seen.dtype:
            inputs[name] = seen.dtype
        steps += seen.steps
        if seen.has_words:
            words = unused(f"{name}_words", names)
            steps += to_steps([TextTokens(name, words)])
            names.add(words)
            lists[words] = {"elements": "string"}
            made.words[words] = {"min_count": FEWEST_OF_NAME}
            made.notes[words] = f"the words of {in_short(name)}"
            made.texts[name] = [name, words]
            inputs[name] = "string"
        elif seen.tells_little:
            made.words[name] = {"min_count": FEWEST_OF_WORD}
            seen.note = ", ".join(filter(None, ("which tell nothing of the label in other rows", seen.note)))
        about = [f"{seen.num_values:,} values"] if seen.kind == "category" else [
            f"{np.nanmin(seen.values):.6g} to {np.nanmax(seen.values):.6g}"]  # fmt: skip
        if known < len(seen.values):
            about.append(f"{1 - known / len(seen.values):.1%} null")
        made.notes[name] = ", ".join([*about, *([seen.note] if seen.note else []),
                                      *([made.notes[name]] if name in made.notes else [])])  # fmt: skip
    if with_words := [in_short(name) for name in made.texts if name in categorical]:
        made.remarks.append(
            f"Few rows have each value of {', '.join(with_words)}, and words tell of the label: they are features too "
            "(text_tokens)."
        )
    if alone := [in_short(name) for name in made.texts if name not in categorical]:
        shown = ", ".join(alone)
        how = (
            f"A model learns a vector of each word that {FEWEST_OF_WORD} texts or more have (text_tokens)"
            if tokens
            else "Its words are hashed to floats (text_hash), in which two words may share a place; text_tokens with "
            "rows in memory learns more"
        )
        made.remarks.append(f"Text: {shown}. {how}.")
    if time is not None:
        made.features["time"] = time.name
        span = f"{day_of(np.nanmin(time.values))} to {day_of(np.nanmax(time.values))}"
        late = int((time.values > now_us() + DAY).sum())
        if late and "%y" not in time.dtype:  # which is told above
            made.remarks.append(
                f"{late:,} row(s) of {in_short(time.name)} lie in the future, up to {day_of(np.nanmax(time.values))}. "
                "The model is tested on them, and gigabatch nightly refuses them: correct or remove them."
            )
        made.role_notes["time"] = (
            f"{span}: the last tenth of the rows is test, the tenth before it valid; train --final learns from them too"
        )
    else:
        made.features["seed"] = 0
        made.role_notes["seed"] = RANDOM
        whose = [
            name for name, seen in kept.items()
            if seen.kind == "category" and WHOSE.search(spaced_lower(name)) and is_code_name(name)
            and seen.num_values * 1.2 < len(seen.values)
        ]  # fmt: skip
        if whose and timed:
            made.remarks.append(
                f"Rows of one {in_short(whose[0])} may lie in train and in test. Set split_key: {in_short(whose[0])} "
                "to measure on others than those that were learnt from."
            )
        half = next((name for name, seen in kept.items() if seen.kind == "date" and _says_when(seen)), None)
        if half is not None and timed and kept[half].null.any():
            made.remarks.append(
                f"{in_short(half)} is null in {int(kept[half].null.sum()):,} rows, so rows are not split by it. "
                f"Without these rows, time: {in_short(half)} measures on later rows than those that were learnt from."
            )
        if timed and (years := next(filter(None, map(_decimal_years, kept.values())), "")):
            made.remarks.append(
                f"Numbers of {years} are years with fractions, which go on growing. To split rows by them take {years} "
                f"from continuous and set time: {years}."
            )
        if timed and (copies := _share_of_copies(table, labelled)) >= FEWEST_COPIES:
            made.remarks.append(
                f"{copies:.1%} of the rows looked at are copies of another in every column, and a random split puts "
                "copies into train and test, where they are no test. Leave copies out, or set split_key to a column "
                "whose values copies share."
            )
    plain = set(categorical.values()) <= {"string"}
    made.features |= {
        "categorical": list(categorical) if plain else categorical, "continuous": continuous, "lists": lists,
        "inputs": inputs, "steps": steps,
    }  # fmt: skip


def split_phrases(made: Draft, table: Table) -> None:
    """Make lists of texts that hold several values each ("red, new"), of those that one sign parts, where rows have
    another feature and may be in memory."""
    rows = len(table.sample) if table.whole else table.rows
    cleaned = {options.get("column") for step in made.features.get("steps", ()) for options in step.values()}
    names = [name for name, dtype in made.categories.items() if dtype == "string" and name in table.sample]
    found = {name: list_separator(table.sample[name]) for name in names if name not in cleaned}
    found = {name: separator for name, separator in found.items() if separator}
    chosen = max(found.values(), key=list(found.values()).count, default="")
    lists = [name for name, separator in found.items() if separator == chosen]
    left = len(made.categories) + len(made.features.get("continuous", ())) - len(lists)
    if not lists or not left or rows is None or rows > MOST_ROWS_OF_TOKENS:
        return
    plain = isinstance(made.features["categorical"], list)
    kept = {name: dtype for name, dtype in made.categories.items() if name not in lists}
    made.features |= {"categorical": list(kept) if plain else kept, "list_separator": chosen}
    made.features["lists"] = {name: {"elements": "string"} for name in lists} | made.features.get("lists", {})
    made.training.get("model", {}).pop("pooling", None)  # which is for words alone
    if not kept:
        del made.features["categorical"]
    for name, separator in found.items():
        texts = table.sample[name].dropna().drop_duplicates().astype("str")
        texts = texts[texts != ""]  # a list without a value
        parts = texts.str.split(separator, regex=False).explode()
        values = parts[parts != ""].nunique()
        if name in lists:
            made.notes[name] = f"{values:,} values in {len(texts):,} texts"
            made.remarks.append(
                f"{in_short(name)} holds several values each, {separator!r} between them, so it is a list. Where the "
                "whole text is one value, take it from lists to categorical."
            )
        else:
            made.remarks.append(
                f"{in_short(name)} holds several values each, but between them is another sign, {separator!r}, than "
                f"the one list_separator, so each whole text is one category. Write {chosen!r} there in the file."
            )


def _hash_too(made: Draft, names: set[str]) -> None:
    """Make floats of the texts beside their lists, as rows of lists alone are not encoded. names: that are taken."""
    steps = [TextHash(name, _free_prefix(name, names)) for name in made.texts]
    for step in steps:
        made.texts[step.column] += step.outputs
        made.notes[step.outputs[0]] = f"to {step.outputs[-1]}: hashes of the words of {in_short(step.column)}"
    made.features["steps"] += to_steps(steps)
    made.features["continuous"] = [name for step in steps for name in step.outputs]
    made.remarks.append("Rows need a feature beside lists, so that words are hashed to floats too (text_hash).")


def _entities(made: Draft, table: Table, taken: Collection[str]) -> None:
    """Say who the users and which the items are, by names of categories whose values come again, and which other
    features each of them has always alike. taken: columns of other roles."""
    rows = len(table.sample)
    found: dict[str, str] = {}
    for entity, named in ENTITY_NAMES.items():
        keys = [
            name for name in made.categories
            if name in table.sample and named.search(spaced_lower(name)) and table.sample[name].nunique() * 1.2 < rows
        ]  # fmt: skip
        if keys:
            found[entity] = max(keys, key=lambda name: table.sample[name].nunique())
    if len(found) < len(ENTITY_NAMES) or len(set(found.values())) < len(found):
        return
    plain = (*made.categories, *made.features.get("continuous", ()), *made.features.get("lists", ()))
    of_raw = {name: [name] for name in plain} | made.texts
    left = [name for name in of_raw if name in table.sample and name not in taken and name not in found.values()]
    left = [name for name in left if not pa.types.is_nested(table.arrow.get(name, pa.null()))]
    entities: dict[str, Any] = {}
    for entity, key in found.items():
        values = table.sample[[key, *left]].drop_duplicates()
        own = [name for name in left if not bool(values[[key, name]].drop_duplicates()[key].duplicated().any())]
        of_key = made.texts.get(key, [key])[1:]  # its words
        columns = of_key + [feature for name in own for feature in of_raw[name]]
        entities[entity] = {"key": key, **({"columns": columns} if columns else {})}
        left = [name for name in left if name not in own]
    made.features["entities"] = entities
    user, item = (in_short(found[entity]) for entity in ENTITY_NAMES)
    one = all(target["task"] in ("binary", "regression") for target in made.features["targets"].values())
    towers = "; for /recommend take model: {kind: two_tower, loss: bce}" if one else ""
    made.remarks.append(
        f"{user} is taken for a user and {item} for an item, so that after embed serve answers /rank{towers}; to learn "
        f"from choices alone, init without --target (docs/recommenders.md). Set group: {user} to measure how the rows "
        "of each user are ranked; without a time it keeps them in one split too."
    )


def _history(made: Draft, names: set[str]) -> None:
    """Propose the list of each user's last items where there are users, items and a time. names: that are taken."""
    entities, time = made.features.get("entities"), made.features.get("time")
    if entities is None or time is None:
        return
    user, item = (entities[entity]["key"] for entity in ENTITY_NAMES)
    made_names = (*made.categories, *made.features.get("continuous", ()), *made.features.get("lists", ()))
    output = unused("history", names.union(made_names))
    options = {"by": [user], "time": time, "order": ROW, "column": item, "length": HISTORY_LENGTH, "output": output}
    made.proposed = {"steps": [{"history": options}], "lists": {output: {"shares": item}}}
    made.remarks.append(
        f"The last {HISTORY_LENGTH} values of {in_short(item)} that each {in_short(user)} had before a row are a step "
        "and a list in comments, since they help some tables and not others, and rows to be predicted must bring them "
        "(docs/lists.md). Delete the leading '# ' of these lines and compare."
    )


def time_doubts(seen: Seen, no_time: str, place: str) -> Iterator[str]:
    """What may be wrong in how a column of times is read. no_time: what to do where it holds none; place: the setting
    that says how they are written."""
    shown = in_short(seen.name)
    if seen.by_size:
        known = seen.values[~seen.null]
        yield (
            f"The numbers of {shown} are taken for {seen.note} by their size alone ({day_of(known.min())} to "
            f"{day_of(known.max())}). If they are no times, {no_time}."
        )
    if seen.either:
        first, other = ("day", "month") if seen.dtype.index("%d") < seen.dtype.index("%m") else ("month", "day")
        yield (
            f"In {shown} day and month could be either in all rows looked at; the {first} is taken to stand first. If "
            f"it is the {other}, exchange %d and %m under {place}."
        )
    if seen.others:
        yield (
            f"{shown} could be read as {' or '.join(seen.others)} too in all rows looked at. Where that is right, "
            f"write it under {place}."
        )
    if "%y" in seen.dtype and (late := int((seen.values > now_us()).sum())):
        yield (
            f"{shown} has years of two digits, of which 00 to {PIVOT - 1} are 2000 to {2000 + PIVOT - 1}, so that "
            f"{late:,} row(s) lie in the future, up to {day_of(np.nanmax(seen.values))}. Write years of four digits in "
            "the file."
        )


def _look_back(made: Draft, columns: Mapping[str, Seen], target: str, labels: Labels) -> None:
    """Propose earlier labels where rows are series that tell of the next row."""
    time = made.features.get("time")
    if time is None or "label_steps" in labels.settings:
        return
    known = ~columns[time].null
    keys = {name: columns[name].values[known] for name in made.categories if name in columns}
    found = series(columns[time].values[known].astype(np.int64), labels.values[known], keys)
    if found is None:
        return
    taken = {*columns, *made.categories, *made.features.get("continuous", ()), *made.features.get("lists", ())}
    steps, names = steps_back(found, time, target, taken)
    made.proposed = {"steps": steps, "continuous": names}
    whose = f" of each {' and '.join(map(in_short, found.by))}" if found.by else ""
    made.remarks.append(
        f"Rows are a series{whose}, a row every {found.step}, in which {in_short(target)} is like the one before. "
        "Earlier values are steps and columns in comments, since rows to be predicted then need the rows before them "
        "(docs/forecasting.md). Delete the leading '# ' of these lines, make preprocess.scale true, and compare."
    )


def _free_prefix(name: str, names: Collection[str]) -> str:
    """The name as the start of new names, with `_` behind it until none of them is there."""
    while any(name_.startswith(f"{name}_") and name_[len(name) + 1 :].isdecimal() for name_ in names):
        name += "_"
    return name


def _share_of_copies(table: Table, labelled: np.ndarray) -> float:
    """Share of the labelled rows of the sample that equal an earlier one in every column but pandas' own types; 0 where
    there are lists alone."""
    types = {name: table.arrow.get(name, pa.null()) for name in table.sample}
    plain, nested = _plain(types), [name for name, kind in types.items() if pa.types.is_nested(kind)]
    beside = pa.table({}) if table.beside is None else table.beside
    others = dict(zip(beside.column_names, beside.schema.types, strict=True))
    if (not plain and not _plain(others)) or not labelled.any():
        return 0.0
    # A copy in all columns is one in a few, which most rows are not.
    rows = table.sample.reset_index(drop=True).loc[labelled, [*plain, *nested]]
    alike = rows[rows[plain[:FIRST_COLUMNS]].duplicated(keep=False)] if plain else rows
    lists = [name for name, kind in others.items() if pa.types.is_nested(kind)]
    given = beside.select([*_plain(others), *lists])
    if given.num_columns:
        taken = given.take(alike.index.to_numpy()).to_pandas(types_mapper=pd.ArrowDtype)
        alike = pd.concat([alike.reset_index(drop=True), taken], axis=1)
    texts = {name: alike[name].map(_as_text) for name in (*nested, *lists)}  # pandas compares no lists
    return int(alike.assign(**texts).duplicated().sum()) / len(rows)


def _as_text(value: Any) -> str:
    """A value of a column of lists, for comparison."""
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def _plain(types: Mapping[str, pa.DataType]) -> list[str]:
    """The columns that are neither lists nor of pandas' own types."""
    return [
        name for name, kind in types.items() if not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))
    ]


def moment_of(kept: Mapping[str, Seen], labelled: np.ndarray) -> Seen | None:
    """The column of times to split by: full in rows that have labels, with many moments, and by its name of when a row
    was."""
    found = [
        seen for seen in kept.values()
        if seen.kind == "date" and not (seen.null & labelled).any() and _says_when(seen)
    ]  # fmt: skip
    return max(found, key=lambda seen: (bool(TIME_NAME.search(spaced_lower(seen.name))), seen.num_values), default=None)


def _says_when(seen: Seen) -> bool:
    """Whether a column of dates may say when a row was, by its name and its many values."""
    name = WITHIN_WORDS.sub(" ", spaced_lower(seen.name))
    return not NOT_WHEN.search(name) and seen.num_values >= FEWEST_TIMES and not _is_of_day(seen)


def _is_of_day(seen: Seen) -> bool:
    """Whether a column of dates holds the time of day alone."""
    how = time_type(seen.dtype)
    return how is not None and how.of_day


def _decimal_years(seen: Seen) -> str:
    """The name of a column that is named as times or years and whose numbers are years with fractions; else empty."""
    name = spaced_lower(seen.name)
    if seen.kind != "number" or seen.whole or seen.null.any() or not (TIME_NAME.search(name) or YEAR_NAME.search(name)):
        return ""
    return in_short(seen.name) if seen.values.min() >= 1800 and seen.values.max() < 2101 else ""


def _has_days(seen: Seen) -> bool:
    """Whether a column of dates says more than the month."""
    how = time_type(seen.dtype)
    return how is None or not how.pattern or bool({"d", "j"} & set(how.directives))


def _date_features(
    seen: Seen, time: Seen | None, names: Collection[str], alone: Collection[str]
) -> tuple[dict[str, str], list[str], list[dict[str, Any]]]:
    """Categories with their types, numbers and steps that are made of a column of dates.

    Of the time that rows are split by, parts that come round alone, days of the calendar where they tell. Of other
    dates the place in the year as a point on a circle, the weekday, the hour and the days; of times of day the minutes,
    and the place in the day. Parts that are `alone`, the same in all rows, are no features.
    """
    if _is_of_day(seen):
        part, prefix = "minute_of_day", seen.name
        while any(name.startswith(f"{prefix}_{part}") for name in names):
            prefix += "_"
        options = {"column": seen.name, "parts": [part], "prefix": prefix, "cyclical": [part]}
        return {}, [f"{prefix}_{part}{end}" for end in ("", "_sin", "_cos")], [{"date_parts": options}]
    left = [part for part in _parts(seen, time) if part not in alone]
    is_time = time is not None and seen.name == time.name
    parts, cyclical = [part for part in left if part != "day_of_year"], [part for part in left if part == "day_of_year"]
    prefix = seen.name
    while any(f"{prefix}_{part}" in names for part in (*parts, *cyclical, "days")):
        prefix += "_"
    options = {"column": seen.name, "parts": parts, "prefix": prefix} | ({"cyclical": cyclical} if cyclical else {})
    options |= {} if seen.zone in ("", "?") else {"zone": seen.zone}
    steps: list[dict[str, Any]] = [{"date_parts": options}] if parts or cyclical else []
    numbers = [f"{prefix}_{part}_{side}" for part in cyclical for side in ("sin", "cos")]
    if not is_time:
        column = _col(seen)
        days = f"{column} / {DAY}" if time is None else f"{_col(time)} / {DAY} - {column} / {DAY}"
        steps.append({"expression": {"output": f"{prefix}_days", "expression": days}})
        numbers.append(f"{prefix}_days")
    return {f"{prefix}_{part}": "string" for part in parts}, numbers, steps


def _parts(seen: Seen, time: Seen | None) -> list[str]:
    """The parts of a column of dates that may be features, by how long the times last and what they tell."""
    if _is_of_day(seen):
        return []
    known = seen.values[~seen.null]
    span, is_time = float(known.max() - known.min()) / DAY, time is not None and seen.name == time.name
    parts = [("month" if is_time else "day_of_year")] if span > 730 else []
    parts += ["month_day"] if is_time and seen.has_days else []
    parts += ["weekday"] if span > 14 and _has_days(seen) else []
    return parts + (["hour"] if bool((known % DAY != 0).any()) else [])


def _parts_alone(seen: Seen) -> dict[str, str]:
    """Parts of a column of dates that are the same in all rows, with their value; 31 December is one day of year."""
    known = pd.DataFrame({"at": pd.unique(seen.values[~seen.null]).astype("int64")})
    zone = None if seen.zone in ("", "?") else seen.zone
    parts = ["month", "day", "weekday", "hour"]
    for rows in (known.head(FIRST_TIMES), known):  # the first times tell of most parts that they vary
        if not parts:
            return {}
        found = DateParts("at", parts, "", unit="us", zone=zone)(rows).iloc[:, 1:]
        parts = [part for part in parts if found[f"_{part}"].nunique() == 1]
    first = {name[1:]: int(found[name].iloc[0]) for name in found if found[name].nunique() == 1}
    told = {part: str(value) for part, value in first.items()}
    if "weekday" in first:
        told["weekday"] = calendar.day_name[first["weekday"]]
    if {"month", "day"} <= set(first):
        told["day_of_year"] = f"{first['day']} {calendar.month_name[first['month']]}"
    return told


def first_of(names: Collection[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*list(names)[:most], *more])


def _col(seen: Seen) -> str:
    return f"col({json.dumps(seen.name, ensure_ascii=False, allow_nan=False)})"


def day_of(moment: float) -> str:
    return str(np.datetime64(int(moment), "us").astype("datetime64[D]"))


def in_short(value: object) -> str:
    """A value in a comment: one line, not long."""
    text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = repr(text) if text != text.strip() else text  # blanks at the edges are part of a name
    return text if len(text) <= 60 else f"{text[:57]}..."


def try_splits(made: Draft) -> None:
    """Take a split whose parts hold rows and labels: of the time, else of the first seed that has one.

    Of several labels, one of which few rows have, no seed may put some into each part: then the first seed whose train
    rows hold both of each label is taken, and told of. A part without has no AUC of that label.

    Raises
    ------
    DataError
        Where there is none, or the labels and the times cannot be read by the draft.
    """
    wrong = ""
    if "time" in made.features:
        wrong, _ = _split_error(made)
        if not wrong:
            return
        name = made.features.pop("time")
        made.remarks.append(f"A split by the time {in_short(name)} is not possible ({wrong}), so it is random.")
        dated = made.features.setdefault("inputs", {})
        dated.setdefault(name, "datetime")
        made.role_notes["seed"] = RANDOM
    passable: dict[int, list[str]] = {}
    for seed in range(SEEDS):
        made.features["seed"] = seed
        wrong, alone = _split_error(made)
        if not wrong:
            return
        if alone and len(_binary_labels(made)) > 1 and "train" not in alone:
            passable[seed] = sorted({label for labels in alone.values() for label in labels})
    if not passable:
        raise DataError(f"no random split of the rows can be trained on and measured: {wrong} Give more rows.")
    seed = min(passable, key=lambda seed: len(passable[seed]))
    made.features["seed"] = seed
    made.remarks.append(
        f"Few rows are of the rarer label of {_labels_shown(passable[seed])}: by each of {SEEDS} seeds valid or test "
        "hold none of some label, whose AUC there is not known."
    )


def _binary_labels(made: Draft) -> list[str]:
    return [
        label for name, item in made.features["targets"].items() if item["task"] in ("binary", "multilabel")
        for label in item.get("columns", [name])
    ]  # fmt: skip


def _labels_shown(labels: Collection[str]) -> str:
    return first_of([in_short(label) for label in labels], 5)


def _split_error(made: Draft) -> tuple[str, dict[str, list[str]]]:
    """What is wrong with the splits of the configuration, empty if nothing is; and the labels by split of which it
    holds one alone, where that is what is wrong."""
    try:
        fractions = SplitFractions(**made.features.get("split", {}))
        splits = TableRecipe(TableSettings(**made.features | {"split": fractions})).label_splits("pandas")
    except DataError as error:
        if not any(words in str(error) for words in CHECKED):
            raise
        return str(error), {}
    binary, alone = _binary_labels(made), {}
    for split, frame in splits.items():
        if labels := [label for label in binary if frame[label].nunique() < 2]:
            alone[split] = labels
    if not alone:
        return "", {}
    split, labels = next(iter(alone.items()))
    of = f" of {_labels_shown(labels)}" if len(binary) > 1 else ""
    return f"the split {split!r} holds one label alone{of}.", alone
