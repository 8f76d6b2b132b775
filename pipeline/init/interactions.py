"""A configuration of the recipe `interactions` for a log of users who choose items: MovieLens, plays, orders."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa

from gigabatch.features.columns.numbers import FLOAT_TEXT
from gigabatch.features.errors import DataError, did_you_mean
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.splits import FEWEST, GIVEN, TARGET
from gigabatch.pipeline.init.columns import Seen, spaced_lower
from gigabatch.pipeline.init.dates import TIME_NAME
from gigabatch.pipeline.init.decimals import columns_seen
from gigabatch.pipeline.init.draft import (
    DEFAULT_NULLS,
    FEWEST_TIMES,
    MOST_TRIED_ROWS,
    Draft,
    day_of,
    first_of,
    form_of_files,
    id_reason,
    in_short,
    moment_of,
    rows_looked_at,
    time_doubts,
)
from gigabatch.pipeline.init.entities import ENTITY_NAMES, named_as
from gigabatch.pipeline.init.look import Table, look

RATING_NAME = re.compile(
    r"(^|_)(ratings?|rates?|scores?|stars|grades?|marks?|relevance|feedback|labels?|clicks?|clicked|likes?|liked"
    r"|preferences?|bewertung|note|y)$"
)
EVENT_NAME = re.compile(r"(^|_)(events?|actions?|activity|behaviou?r|interactions?)([_ -]?(type|kind|name))?$")
MADE = (TARGET, GIVEN)  # columns of the recipe
MOST_EVENTS = 20  # kinds of them
MOST_WORDS = 10  # that rate
MOST_RATINGS = 200  # different ones; of a greater number they are an amount, such as plays
WHOLE = re.compile(r"(0|-?[1-9][0-9]{0,17})")  # as int64 holds and writes them
MOST_EASE_ITEMS = 5_000  # up to which EASE chooses its l2; where it is the better one says docs/tried.md
LEAST_USERS = 50  # of whom one interaction each is left out; where there are fewer, shares of all are
MOST_CONTEXT_VALUES = 1_000
TOLD_REPEATS = 0.01  # share of rows from which on they are spoken of
COME_BACK = 0.1  # from which on users come back, and what they had is asked about again (docs/tried.md)


def draft_interactions(
    pattern: str, user: str | None, item: str | None, most_rows: int, encoding: str | None = None
) -> Draft:
    """Look at a log of interactions and say how the recipe `interactions` is to read it.

    Parameters
    ----------
    pattern
        Path, folder, glob or URL. Files named train, valid and test are these splits.
    user, item
        Columns of the ids; None takes the one whose name says so, such as `userId` or `movie_id`.
    most_rows
        About how many rows are looked at.
    encoding
        Of CSV files, or None to see for itself.

    Returns
    -------
    Draft
        Of recipe `interactions`; a column of ratings, and columns that describe users or items, are proposed.

    Raises
    ------
    DataError
        What `look` refuses; no such column; no column whose name says user or item, where none is given; a row without
        a user or an item; fewer rows than can be split.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.pipeline.init.interactions import draft_interactions
    >>> rows = [f"u{place % 60},{place * 7 % 41},{place % 5 + 1},{1_600_000_000 + place}" for place in range(600)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ratings.csv")
    ...     _ = path.write_text("\\n".join(["userId,movieId,rating,timestamp", *rows]))
    ...     made = draft_interactions(str(path), None, None, 1000)
    >>> [made.features[name] for name in ("user", "item", "time", "time_type", "rating")]
    ['userId', 'movieId', 'timestamp', 'datetime[s]', 'rating']
    """
    table = look(pattern, most_rows, encoding)
    keys = dict(zip(ENTITY_NAMES, _keys(table, user, item), strict=True))
    user, item = keys["user"], keys["item"]
    made = Draft(left_out=dict(table.left_out), recipe="interactions")
    made.remarks.append(rows_looked_at(table))
    seen = columns_seen(table).columns
    for name in keys.values():
        _require_ids(table, name)
    made.features = {**_paths(made, table), "user": user, "item": item}
    made.features |= form_of_files(made, table, encoding)
    whole = all(_are_whole(table, name) for name in keys.values())
    made.features["id_type"] = "int64" if whole else "string"
    if whole and not table.whole:
        made.role_notes["id_type"] = "as the rows looked at hold; other text is an error, then take string"
    for entity, name in keys.items():
        made.role_notes[entity] = f"{table.sample[name].nunique():,} values"
    left = {name: column for name, column in seen.items() if name not in keys.values()}
    _take_time(made, left)
    _take_rating(made, left)
    _tell_kinds(made, left)
    _take_split(made, table, user, item)
    _propose_columns(made, table, left, keys)
    kind = "mf"
    if _take_repeats(made, table, user, item):
        kind = "top_frequency"
    elif "time" not in made.features and table.whole and table.sample[item].nunique() <= MOST_EASE_ITEMS:
        kind = "ease"
    made.training = {"model": {"kind": kind}}
    others = [name for name in ("mf", "ease", "item_knn", "two_tower") if name != kind]
    made.remarks.append(
        f"Each row says that {in_short(user)} chose {in_short(item)}; the model learns what each chooses next, and the "
        "report ranks the whole catalogue (docs/recommenders.md). Which model is best here: gigabatch compare "
        f"--models '{', '.join([kind, *others])}'."
    )
    if table.whole and len(table.sample) <= MOST_TRIED_ROWS:
        InteractionsRecipe(InteractionsSettings(**made.features)).build("pandas")  # refuses what cannot be split
    return made


def _keys(table: Table, user: str | None, item: str | None) -> tuple[str, str]:
    """The columns of users and items: those given, else the one of most values whose name says so."""
    names = [str(name) for name in table.sample]
    lists = [name for name in names if pa.types.is_nested(table.arrow.get(name, pa.null()))]
    found = {}
    for entity, given, other in (("user", user, item), ("item", item, user)):
        if given in table.left_out:
            raise DataError(f"{entity} {given!r}: cannot be used, {table.left_out[given]}.")
        if given is not None and given not in names:
            raise DataError(
                f"{entity} {given!r}: no such column.{did_you_mean(given, names)} Columns: {first_of(names, 30)}."
            )
        if given in lists:
            raise DataError(
                f"{entity} {given!r}: holds lists, and a row is to hold one id. Write a row for each of them."
            )
        there = [name for name in named_as(entity, names) if name != other and name not in lists]
        if given is None and not there:
            if not table.arrow and any(re.match(FLOAT_TEXT, name) for name in names):
                raise DataError(
                    f"init: the first line looks like a row, not like names of columns ({first_of(names, 10)}). Write "
                    "names above it; the recipe movielens reads files of MovieLens as downloaded "
                    "(docs/recommenders.md)."
                )
            raise DataError(
                f"init: no column's name says that it holds {entity}s. Give --target, the column to predict, or for a "
                f"log of what was chosen --user and --item. Columns: {first_of(names, 30)}."
            )
        counts = {name: table.sample[name].nunique() for name in there}
        found[entity] = given if given is not None else max(there, key=lambda name: counts[name])
    if found["user"] == found["item"]:
        raise DataError(f"init: {found['user']!r} is given as user and as item. Give each a column of its own.")
    return found["user"], found["item"]


def _require_ids(table: Table, name: str) -> None:
    column = table.sample[name]
    null = column.isna() if table.arrow else column.isin(DEFAULT_NULLS)
    if bool(null.any()):
        raise DataError(f"column {name!r}: {int(null.sum()):,} of the rows looked at hold no id. Leave these rows out.")
    if column.nunique() < 2:
        raise DataError(f"column {name!r}: one value alone, {in_short(column.iloc[0])}, so nothing can be ranked.")


def _are_whole(table: Table, name: str) -> bool:
    """Whether all ids are whole numbers as int64 writes them, so that their text is told by the number."""
    arrow = table.arrow.get(name)
    if arrow is not None and pa.types.is_integer(arrow):
        return not pa.types.is_uint64(arrow)
    distinct = table.sample[name].drop_duplicates()
    return arrow is None and bool(distinct.astype("str").str.fullmatch(WHOLE.pattern).all())


def _paths(made: Draft, table: Table) -> dict[str, str]:
    """The settings of the files: one split each where there are three."""
    if "path" in table.paths:
        return table.paths
    if "valid_path" in table.paths:
        return {"path": table.paths["train_path"], **{name: table.paths[name] for name in ("valid_path", "test_path")}}
    made.remarks.append(
        f"{table.paths['test_path']} is left aside, since given splits are three files, train, valid and test: "
        f"{table.paths['train_path']} alone is split."
    )
    return {"path": table.paths["train_path"]}


def _take_time(made: Draft, left: dict[str, Seen]) -> None:
    """Take the time of a row: a full column of many moments, else of numbers that is named as a time."""
    dates = {name: seen for name, seen in left.items() if seen.kind == "date"}
    time = moment_of(dates, np.ones(len(next(iter(left.values())).values) if left else 0, bool))
    if time is None:
        time = next(
            (
                seen for name, seen in left.items()
                if seen.kind == "number" and TIME_NAME.search(spaced_lower(name)) and not seen.null.any()
                and not seen.steps
            ),
            None,
        )  # fmt: skip
    if time is None:
        _tell_no_time(made, left)
        return
    del left[time.name]
    made.features["time"] = time.name
    if time.dtype.startswith("datetime["):
        made.features["time_type"] = time.dtype
    if time.kind == "date":
        made.role_notes["time"] = f"{day_of(time.values.min())} to {day_of(time.values.max())}"
        made.remarks += time_doubts(time, "take time and time_type out", "time_type")
    else:
        made.role_notes["time"] = "numbers that order the rows"


def _tell_no_time(made: Draft, left: dict[str, Seen]) -> None:
    """Say of columns that may say when a row was why none is taken; texts named so are no context."""
    for name, seen in list(left.items()):
        shown, named = in_short(name), bool(TIME_NAME.search(spaced_lower(name)))
        if seen.null.any() and (seen.kind == "date" or (seen.kind == "number" and named)):
            made.remarks.append(
                f"{shown} is null in {int(seen.null.sum()):,} rows, so it is not taken for the time. Leave these rows "
                "out where it says when a row was."
            )
        elif seen.kind == "date":
            made.remarks.append(f"{shown} holds times, but not one of each row that says when it was.")
        elif named and seen.kind in ("category", "text") and seen.num_values >= FEWEST_TIMES:
            made.remarks.append(
                f"{shown} is named as a time, but no one way of writing times fits all of it, such as "
                f"{seen.texts.distinct[0]!r}. Where it says when a row was, write all of them alike."
            )
            made.left_out[name] = "texts that are no times"
            del left[name]


def _tell_kinds(made: Draft, left: dict[str, Seen]) -> None:
    """Say of ratings that are no numbers, and of kinds of events, that each row is a choice all the same."""
    for name, seen in list(left.items()):
        shown, lower = in_short(name), spaced_lower(name)
        if seen.kind == "number" and seen.steps and RATING_NAME.search(lower) and "rating" not in made.features:
            made.remarks.append(
                f"{shown} is named as a rating and its numbers are written in a way that the recipe does not read, so "
                "each row is a choice, however rated. Write them with a point and without units, and run init again."
            )
        if seen.kind != "category" or not 1 < seen.num_values <= MOST_EVENTS:
            continue
        if RATING_NAME.search(lower) and seen.num_values <= MOST_WORDS and "rating" not in made.features:
            made.remarks.append(
                f"{shown} is named as a rating and holds no numbers, so each row is a choice, whatever it says. "
                "Write 1 for a choice and 0 for none, and run init again."
            )
            made.left_out[name] = "ratings that are no numbers"
            del left[name]
        elif EVENT_NAME.search(lower):
            kinds = first_of(sorted(map(str, set(seen.values[~seen.null]))), 5)
            made.remarks.append(
                f"{shown} says what users did ({kinds}), and each row is a choice alike. Leave rows of the kinds that "
                "are none out of the file."
            )


def _take_rating(made: Draft, left: dict[str, Seen]) -> None:
    """Take the ratings: of two the greater is a positive; of more a threshold is proposed."""
    named = [
        name for name, seen in left.items()
        if RATING_NAME.search(spaced_lower(name)) and not seen.steps and (seen.kind == "number" or _are_flags(seen))
    ]  # fmt: skip
    for name in named:
        seen = left[name]
        known = seen.values[~seen.null]
        known = known if seen.kind == "number" else np.array([str(text).lower() == "true" for text in known], float)
        values, counts = np.unique(known, return_counts=True)
        if seen.null.any():
            made.remarks.append(
                f"{in_short(name)} is null in {int(seen.null.sum()):,} rows, so no threshold is proposed."
            )
            made.left_out[name] = "ratings, of which some are null"
            del left[name]
        elif len(values) > MOST_RATINGS:
            made.remarks.append(f"{in_short(name)} has {len(values):,} values, which are amounts rather than ratings.")
        elif len(values) > 1:
            del left[name]
            made.features["rating"] = name
            made.role_notes["rating"] = f"{values[0]:g} to {values[-1]:g}"
            if len(values) == 2:
                made.features["threshold"] = float(values[1])
                made.role_notes["threshold"] = f"{int(counts[0]):,} rows of {values[0]:g} are no choice, and left out"
                return
            middle = values[int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))]
            share = counts[values >= middle].sum() / counts.sum()
            made.proposed_settings["threshold"] = float(middle)
            made.role_notes["threshold"] = f"{share:.0%} of the rows; without it each row is a choice, however rated"
            return


def _are_flags(seen: Seen) -> bool:
    """Whether a column holds true and false, which the recipe reads as 1 and 0."""
    return seen.kind == "category" and {str(text).lower() for text in set(seen.values[~seen.null])} == {"true", "false"}


def _take_split(made: Draft, table: Table, user: str, item: str) -> None:
    """Leave out one interaction of each user where enough have some; else shares of all."""
    if "test_path" in made.features:
        return
    pairs = table.sample[[user, item]].drop_duplicates()[user].value_counts()
    users = int((pairs >= FEWEST).sum())
    if users < LEAST_USERS:
        made.features["split_by"] = "time" if "time" in made.features else "random"
        made.role_notes["split_by"] = f"{users} users alone have chosen {FEWEST} or more"
    elif "time" in made.features:
        made.proposed_settings["split_by"] = "time"
        made.role_notes["split_by"] = "what gigabatch nightly needs; without it the last choice of each user is test"


def _propose_columns(made: Draft, table: Table, left: Mapping[str, Seen], keys: Mapping[str, str]) -> None:
    """Propose what describes users, items or the row as columns for models that take them."""
    contexts: dict[str, str] = {}
    continuous: list[str] = []
    of: dict[str, list[str]] = {"user": [], "item": []}
    for name, seen in left.items():
        whose = next((entity for entity, key in keys.items() if _tells(table.sample, key, name)), None)
        key = keys.get(whose or "")
        if told := "the recipe makes a column of this name; rename yours" if name in MADE else id_reason(seen):
            made.left_out[name] = told
            continue
        if seen.kind == "number" and not seen.steps and (seen.num_values > 1 or seen.null.any()):
            continuous.append(name)
        elif (
            seen.kind == "category" and not seen.steps and 1 < seen.num_values <= MOST_CONTEXT_VALUES
            and (key is None or seen.num_values <= table.sample[key].nunique() / 2)
        ):  # fmt: skip
            contexts[name] = "int64" if seen.categories == "int64" else "string"
        else:
            made.left_out[name] = _why_not(seen, key)
            continue
        if whose:
            of[whose].append(name)
    found = {"contexts": contexts, "continuous": continuous}
    found |= {f"{entity}_columns": names for entity, names in of.items()}
    found = {name: columns for name, columns in found.items() if columns}
    made.proposed_settings |= found
    if found:
        bare = [name for name in (*contexts, *continuous) if name not in (*of["user"], *of["item"])]
        needed = f" Recommending then asks for {first_of(bare, 20)}." if bare else ""
        made.remarks.append(
            f"Other columns ({first_of([*contexts, *continuous], 20)}) are settings in comments, from which two_tower "
            f"and ncf learn. Delete the leading '# ' of these lines and compare.{needed}"
        )


def _why_not(seen: Seen, key: str | None) -> str:
    if seen.kind in ("list", "other"):
        return seen.note or "a list; of a side table it can be a feature"
    if seen.kind == "date":
        return "times beside that of the row"
    if seen.num_values == 1:
        return "one value alone"
    return f"nearly another value for each {key}" if key else "texts, or categories of too many values"


def _tells(sample: pd.DataFrame, key: str, name: str) -> bool:
    """Whether each key has one value alone, and some key comes again."""
    try:
        pairs = sample[[key, name]].drop_duplicates()
    except (TypeError, pa.ArrowException):  # lists
        return False
    return len(pairs) < len(sample) and not bool(pairs[key].duplicated().any())


def _take_repeats(made: Draft, table: Table, user: str, item: str) -> bool:
    """Whether users come back to what they had, so that every row is kept; a few repeats are told of alone."""
    pair = [user, item]
    repeated = float(table.sample[pair].duplicated().mean())
    moments = table.sample[pair]
    if "time" in made.features:  # copies of a row do not say that a user came back
        moments = table.sample[[*pair, made.features["time"]]].drop_duplicates()
    if float(moments[pair].duplicated().mean()) >= COME_BACK:
        made.features["repeats"] = "all"
        made.role_notes["repeats"] = "each is kept, and what a user had is asked about and recommended again"
        made.remarks.append(
            f"{repeated:.0%} of the rows looked at repeat a {in_short(user)} and {in_short(item)}: users come back, "
            "and what each chose most often is what they choose next. To recommend what is new to them alone delete "
            "the line repeats: all, and take another model."
        )
        return True
    if repeated >= TOLD_REPEATS:
        made.proposed_settings["repeats"] = "all"
        made.role_notes["repeats"] = "keeps them, and asks again about what a user had"
        made.remarks.append(
            f"{repeated:.0%} of the rows looked at repeat a {in_short(user)} and {in_short(item)}: they count once, "
            "unless repeats: all is set."
        )
    return False
