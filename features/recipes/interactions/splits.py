"""From interactions, rows of a user and an item, to labelled splits: what is a positive, and which split it is in.

The recipes `interactions` and `movielens` differ in how they read files; the rest is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gigabatch.features.columns.hashing import GAMMA, splitmix64, unit_interval
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.tally import tally
from gigabatch.features.recipes.base import FeatureTables, SplitFractions, cut_by_place, split_by_time
from gigabatch.features.recipes.interactions.histories import (
    HistorySettings,
    require_pandas,
    require_times,
    split_histories,
)
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.side_tables import SideColumns
from gigabatch.features.schema import Column, Entity, ListColumn, Schema, Target
from gigabatch.features.workflow.workflow import Workflow

ROW = "row_number"
TARGET = "target"
ORDER = "__order__"
GIVEN = "__split__"  # place in `SPLITS` of each row, where the splits are given
SPLITS = ("train", "valid", "test")
RATING_THRESHOLD = 4.0
FEWEST = 3  # interactions of a user that leave-one-out splits: one for each of train, valid and test


@dataclass(frozen=True)
class InteractionRules:
    """Set what counts as a positive among interactions, and how they are split.

    Parameters
    ----------
    task
        `ranking`, where every row is a positive (target 1) and training draws the negatives, or `rating`, where the
        target is 1 for a rating of at least `threshold` and 0 for a lower one.
    threshold
        In the unit of the ratings. With task rating it is 4 by default; with task ranking every row is a positive by
        default, and with a threshold those rated lower are left out.
    split_by
        `leave_one_out`: of each user the last interaction is in test, the one before in valid, the others in train;
        users with fewer than three stay in train. `time`: shares in time order. `random`: shares by a hash of user,
        item, contexts and `seed`. By default leave_one_out for ranking and random for rating. With `repeats: last` an
        interaction counts once, as of its first row.
    split
        The shares. Where there is no time column, leave_one_out takes the order of the same hash for time; rows of one
        moment are in the order of the file.
    repeats
        What is done about several rows of the same user, item and categorical contexts. `last` keeps one: cut by time
        (`time`, and `leave_one_out` where there are times), train has the last up to its end, so that nothing later
        changes it, and valid and test have the first of what is new by then; with `history` train has the first too,
        since the history of a later one would hold the answer. Else it is the last in time (without a time column, in
        the file). `all` keeps every one, `error` refuses them.
    seed
        Of the hash, a whole number.
    history
        Each row's list of the user's earlier positives, such as `{length: 50, half_life: 30d}`; see `HistorySettings`.
        None for no lists.

    Raises
    ------
    DataError
        If a word is unknown or the threshold is no finite number.

    Examples
    --------
    >>> from gigabatch.features.recipes.interactions.splits import InteractionRules
    >>> rules = InteractionRules(task="rating")
    >>> rules.least_positive, rules.way
    (4.0, 'random')
    """

    task: Literal["ranking", "rating"] = "ranking"
    threshold: float | None = None
    split_by: Literal["leave_one_out", "time", "random"] | None = None
    split: SplitFractions = field(default_factory=SplitFractions)
    repeats: Literal["last", "all", "error"] = "last"
    seed: int = 0
    history: HistorySettings | None = None

    def __post_init__(self) -> None:
        known = {
            "task": ("ranking", "rating"),
            "split_by": (None, "leave_one_out", "time", "random"),
            "repeats": ("last", "all", "error"),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                names = ", ".join(value for value in values if value)
                raise DataError(f"interactions: {name} is {getattr(self, name)!r}. Known: {names}.")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise DataError(f"interactions: threshold must be a number, found {self.threshold}.")

    @property
    def least_positive(self) -> float | None:
        """The lowest rating of a positive; None where every row is one."""
        return RATING_THRESHOLD if self.threshold is None and self.task == "rating" else self.threshold

    @property
    def positives_alone(self) -> bool:
        """Whether every row is a positive."""
        return self.task == "ranking"

    @property
    def way(self) -> str:
        """How the rows are split."""
        return self.split_by or ("leave_one_out" if self.task == "ranking" else "random")


def interaction_tables(
    frame: Any, layout: Layout, rules: InteractionRules, sides: Mapping[str, SideColumns]
) -> FeatureTables:
    """Labelled splits with their schema, in order of time where there is one, else of the file.

    frame: the columns of `layout`, no null in user, item, time and rating, and `row_number`, the order of the file;
    where the splits are given (`rules.way`), `GIVEN` too.
    sides: further columns of `user` and `item`, looked up by key.

    Raises:
        DataError: where the rules leave a split without rows or the labels without a contrast, or repeats are refused.
    """
    notes: list[str] = []
    if rules.history is not None:
        require_times(layout.time)
        require_pandas(engine_of(frame).NAME)
    frame = _labelled(_in_order(frame, layout), layout, rules, notes)
    if rules.repeats == "error":
        _refuse_repeats(frame, layout)
    splits = _split(frame, layout, rules, notes)
    if rules.task == "rating":
        _require_contrast(splits, rules.least_positive)
    _note_cold_items(splits, layout.item, notes)
    for entity, side in sides.items():
        missing = 0
        for name, rows in splits.items():
            splits[name], lacking = side.attach(rows)
            missing += lacking
        if missing:
            notes.append(
                f"{missing:,} rows have a {entity} that {side.path} does not list; its columns are null there."
            )
    lists: tuple[ListColumn, ...] = ()
    list_types: dict[str, str] = {}
    if rules.history is not None:
        lists, list_types = (rules.history.column(layout),), rules.history.dtypes(layout)
    schema = interaction_schema(layout, sides, lists)
    if rules.history is not None:
        liked = _positives_by_split(frame, layout, rules, sum(map(len, splits.values())))
        splits, told = split_histories(splits, layout, rules.history, ROW, liked)
        notes.append(told)
    dtypes = {column.name: column.dtype for column in schema.columns if column.role in ("categorical", "continuous")}
    workflow = Workflow((), [TARGET], dtypes | list_types).fit([splits["train"]])
    return FeatureTables({k: v[schema.table_columns] for k, v in splits.items()}, schema, tuple(notes), workflow)


def positives(frame: Any, layout: Layout, rules: InteractionRules) -> Any:
    """The interactions that histories hold, in order of time; `frame` as of `interaction_tables`."""
    frame, least = _in_order(frame, layout), rules.least_positive
    if rules.repeats == "error":
        _refuse_repeats(frame, layout)
    return frame if least is None else frame[frame[layout.rating] >= least].reset_index(drop=True)


def _in_order(frame: Any, layout: Layout) -> Any:
    return frame.sort_values([layout.time, ROW] if layout.time else [ROW]).reset_index(drop=True)


def interaction_schema(layout: Layout, sides: Mapping[str, SideColumns], lists: tuple[ListColumn, ...] = ()) -> Schema:
    """Roles and types of the splits' columns, and which of them are about the user and about the item."""
    found = list(sides.values())
    columns = [Column(name, "categorical", dtype) for name, dtype in layout.categorical.items()]
    columns += [Column(name, "categorical", dtype) for side in found for name, dtype in side.categorical.items()]
    columns += [Column(name, "continuous", "float32") for name in layout.continuous]
    columns += [Column(name, "continuous", "float32") for side in found for name in side.continuous]
    columns += [Column(TARGET, "target", "float32")]
    columns += [Column(layout.time, "time", layout.time_dtype)] if layout.time else []
    columns += [Column(ROW, "key", "int64")]
    about = {name: sides[name].names if name in sides else () for name in ("user", "item")}
    entities = (
        Entity("user", layout.user, (layout.user, *layout.user_columns, *about["user"])),
        Entity("item", layout.item, (layout.item, *layout.item_columns, *about["item"])),
    )
    return Schema(tuple(columns), (Target(TARGET, "binary"),), entities, lists)


def _labelled(frame: Any, layout: Layout, rules: InteractionRules, notes: list[str]) -> Any:
    """The frame, in its order, with its target; with task ranking those of target 0 are in no split."""
    frame = frame.copy(deep=False)
    least = rules.least_positive
    if least is None:
        frame[TARGET] = (frame[ROW] >= 0).astype("float32")
        return frame
    liked = frame[layout.rating] >= least
    frame[TARGET] = liked.astype("float32")
    if rules.positives_alone:
        num_liked = int(liked.sum())
        if num_liked == 0:
            raise DataError(f"interactions: no rating is at least {least:g}, so there is no positive. Lower threshold.")
        notes.append(f"{len(frame) - num_liked:,} of {len(frame):,} rows are rated below {least:g} and left out.")
    return frame


def _require_contrast(splits: Mapping[str, Any], least: float | None) -> None:
    num_liked = sum(int((rows[TARGET] == 1).sum()) for rows in splits.values())
    count = sum(map(len, splits.values()))
    if num_liked in (0, count):
        raise DataError(
            f"interactions: {num_liked:,} of {count:,} ratings are at least {least:g}, so there is nothing to tell "
            "apart. Set threshold, or task: ranking."
        )


def _refuse_repeats(frame: Any, layout: Layout) -> None:
    repeated = frame[layout.identity].duplicated(keep="last")
    if not bool(repeated.any()):
        return
    example = frame[repeated].head(1)[layout.identity].to_dict("records")[0]
    raise DataError(
        f"interactions: {int(repeated.sum()):,} row(s) repeat another's {', '.join(layout.identity)}, for example "
        f"{example}. Drop them, or set repeats to last or all."
    )


def _split(frame: Any, layout: Layout, rules: InteractionRules, notes: list[str]) -> dict[str, Any]:
    """frame: labelled, in order of time; so are the splits, which hold what `InteractionRules.repeats` lets stay."""
    asked, names = _asked(frame, rules), ", ".join(layout.identity)
    # What given splits share stays in them, or they would no longer be the given ones.
    same = [*layout.identity, *([GIVEN] if rules.way == "given" else [])]
    repeated = frame[same].duplicated(keep="last")
    if rules.repeats != "last" or not bool(repeated.any()):
        return _cut(asked, layout, rules, notes, len(asked))
    count = f"{int(repeated.sum()):,} of {len(frame):,} rows"
    if rules.way in ("given", "random") or layout.time is None:
        notes.append(f"{count} are repeated later ({names}); the last of each is kept.")
        rows = _asked(frame[~repeated].reset_index(drop=True), rules)
        return _cut(rows, layout, rules, notes, len(rows))
    new = asked[~asked[same].duplicated(keep="first")].reset_index(drop=True)
    splits = _cut(new, layout, rules, notes, len(new))
    if rules.history is None:
        known = frame[_known_to_train(frame, splits, layout, rules)]
        splits["train"] = _asked(known[~known[same].duplicated(keep="last")].reset_index(drop=True), rules)
        notes.append(
            f"{count} are repeated later ({names}); train keeps the last up to its end, valid and test the first."
        )
    else:  # a later row's history holds its answer
        notes.append(
            f"{count} are repeated later ({names}); the first of each is kept, and histories hold the others too."
        )
    return splits


def _asked(frame: Any, rules: InteractionRules) -> Any:
    """The rows that may be in a split: with task ranking the positives."""
    if not rules.positives_alone or rules.least_positive is None:
        return frame
    return frame[frame[TARGET] == 1].reset_index(drop=True)


def _known_to_train(frame: Any, splits: Mapping[str, Any], layout: Layout, rules: InteractionRules) -> Any:
    """Column of bool: the rows up to the moment at which train was cut, or ahead of the user's row in valid."""
    if rules.way == "time":
        return frame[layout.time] <= splits["train"][layout.time].max()
    engine = engine_of(frame)
    xp, users = engine.arrays, engine.codes(frame[layout.user])
    places = xp.nonzero(engine.array(frame[ROW].isin(splits["valid"][ROW])))[0]
    ends = xp.full(int(users.max()) + 1, len(frame))
    ends[users[places]] = places
    return engine.series(xp.arange(len(frame)) < ends[users], frame)


def _positives_by_split(frame: Any, layout: Layout, rules: InteractionRules, num_rows: int) -> dict[str, Any]:
    """What the histories of each split and of later ones may hold of a labelled frame: positives, met again or not.

    num_rows: of all splits.
    """
    liked = frame[frame[TARGET] == 1].reset_index(drop=True)
    # Cut by time, what was before a row of a user is in its own split or in an earlier one.
    found = {"train": liked, "valid": liked.head(0), "test": liked.head(0)}
    if rules.way in ("given", "random"):
        found = _cut(liked, layout, rules, [], num_rows)
    return {name: rows[[layout.user, layout.item, str(layout.time), ROW]] for name, rows in found.items()}


def _cut(frame: Any, layout: Layout, rules: InteractionRules, notes: list[str], num_rows: int) -> dict[str, Any]:
    """Every row of the frame, by split; it is in order of time, and so are they.

    num_rows: of all splits, by which random ones are cut.
    """
    if rules.way == "given":
        splits = {name: frame[frame[GIVEN] == number] for number, name in enumerate(SPLITS)}
        splits = {name: rows.drop(columns=[GIVEN]).reset_index(drop=True) for name, rows in splits.items()}
        _note_shared(splits, layout, notes)
        return splits
    if rules.way == "time":
        return split_by_time(frame, str(layout.time), ROW, rules.split)
    engine = engine_of(frame)
    if rules.way == "random":
        return cut_by_place(frame, unit_interval(_hashed(frame, layout, rules.seed)), rules.split.cuts(num_rows))
    if layout.time is None:
        frame[ORDER] = engine.series(_hashed(frame, layout, rules.seed).view("int64"), frame)
        frame = frame.sort_values([ORDER, ROW]).reset_index(drop=True)
    users = engine.codes(frame[layout.user])
    last, before, few = leave_one_out(engine.arrays, users)
    if not bool(last.any()):
        raise DataError(
            f"interactions: no user has {FEWEST} interactions, so leave_one_out finds no row for valid and test. Give "
            "more data, or set split_by."
        )
    if few:
        notes.append(f"{few:,} user(s) have fewer than {FEWEST} interactions; all of theirs are in train.")
    masks = {"train": ~(last | before), "valid": before, "test": last}
    splits = {name: frame[engine.series(mask, frame)].reset_index(drop=True) for name, mask in masks.items()}
    if layout.time is None:
        splits = {name: rows.sort_values([ROW]).reset_index(drop=True) for name, rows in splits.items()}
    return splits


def _note_shared(splits: Mapping[str, Any], layout: Layout, notes: list[str]) -> None:
    """Say how many rows of the given valid and test are in another given split too."""
    own = {name: rows[layout.identity].drop_duplicates() for name, rows in splits.items()}
    for one, other in (("valid", "train"), ("test", "train"), ("test", "valid")):
        both = engine_of(own[one]).frames.concat([own[other], own[one]], ignore_index=True)
        shared = int(both.duplicated().sum())
        if shared:
            notes.append(
                f"{shared:,} of {len(own[one]):,} interactions of the given {one} split ({', '.join(layout.identity)}) "
                f"are in {other} too; they are kept, as given."
            )


def leave_one_out(xp: Any, users: Any) -> tuple[Any, Any, int]:
    """(mask of each user's last row, mask of the one before, number of users with too few rows for either).

    users: int64 [R] from 0, of rows in order of time. xp: NumPy or CuPy.
    """
    order = xp.argsort(users, kind="stable")
    counts = tally(xp, users)
    ends = xp.cumsum(counts)
    from_end = xp.empty(len(users), dtype="int64")
    from_end[order] = ends[users[order]] - 1 - xp.arange(len(users))
    enough = (counts >= FEWEST)[users]
    return enough & (from_end == 0), enough & (from_end == 1), int((counts < FEWEST).sum())


def _note_cold_items(splits: dict[str, Any], item: str, notes: list[str]) -> None:
    known = splits["train"][item].drop_duplicates().reset_index(drop=True)
    for name in ("valid", "test"):
        cold = int((~splits[name][item].isin(known)).sum())
        if cold:
            notes.append(f"{cold:,} of {len(splits[name]):,} rows of {name} are of items that train does not have.")


def _hashed(frame: Any, layout: Layout, seed: int) -> Any:
    """uint64, one a row: a hash of user, item, categorical contexts and seed, whatever the order of the rows."""
    engine = engine_of(frame)
    xp = engine.arrays
    mixed = xp.full(len(frame), (seed * GAMMA) % 2**64, dtype="uint64")
    for name in layout.identity:
        filled = frame[name].fillna("" if layout.categorical[name] == "string" else 0)
        hashes = engine.hash64(filled).view("uint64")
        mixed = splitmix64((mixed ^ hashes) + xp.uint64(GAMMA))
    return mixed
