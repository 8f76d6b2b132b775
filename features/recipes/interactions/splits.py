"""From interactions, rows of a user and an item, to labelled splits: what is a positive, and which split it is in.

The recipes `interactions` and `movielens` differ in how they read files; the rest is here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from gigabatch.features.columns.hashing import GAMMA, splitmix64, unit_interval
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.tally import tally
from gigabatch.features.history.asof import sorted_rows
from gigabatch.features.operators.base import unused
from gigabatch.features.recipes.base import FeatureTables, SplitFractions, cut_by_place
from gigabatch.features.recipes.interactions.histories import (
    HISTORY,
    HistorySettings,
    require_times,
    split_histories,
)
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.side_tables import SideColumns
from gigabatch.features.schema import Column, Entity, ListColumn, Schema, Target
from gigabatch.features.workflow.workflow import ROW, Workflow

TARGET = "target"
GIVEN = "__split__"  # place in `SPLITS` of each row, where the splits are given
SPLITS = ("train", "valid", "test")
RATING_THRESHOLD = 4.0
SHARED = (("valid", "train"), ("test", "train"), ("test", "valid"))  # pairs of given splits
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
        changes it, and valid and test have the first of what is new by then; else, the last in time (without a time
        column, in the file). `all` keeps every one, `error` refuses them.
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
    made = UserSplits(layout, rules, sides)
    looked = made.look(frame)
    made.count(looked)
    splits = made.split(looked, made.cut())
    made.require_splits()
    schema, workflow = made.schema, made.workflow(splits["train"])
    return FeatureTables({k: v[schema.table_columns] for k, v in splits.items()}, schema, made.notes(), workflow)


class Looked(NamedTuple):
    """Rows in order of time with their target, with task ranking the positives; those of them by which splits are cut,
    one of each interaction where repeats go; how many rows and positives there are in all, and how many are repeated
    later."""

    frame: Any
    asked: Any
    num_rows: int
    num_liked: int
    repeated: int


class Cut(NamedTuple):
    """Where the splits of all rows are cut: the number of rows in them, and the last moments of train and valid."""

    num_rows: int
    moments: tuple[Any, Any] | None = None


class UserSplits:
    """Make the splits of the rows of some users after those of others, or of all at once; what is told and refused is
    about all of them.

    Parameters
    ----------
    layout, rules, sides
        As of `interaction_tables`.
    engine
        Of the frames.
    times_file
        Where times wait that rows are cut by; None keeps them in memory.

    Raises
    ------
    DataError
        For histories without a time.
    """

    def __init__(
        self,
        layout: Layout,
        rules: InteractionRules,
        sides: Mapping[str, SideColumns],
        times_file: Path | None = None,
    ) -> None:
        if rules.history is not None:
            require_times(layout.time)
        self.layout, self.rules, self.sides = layout, rules, sides
        self._counts: Counter[str] = Counter()
        self._repeated: dict[str, Any] = {}
        self._times: list[np.ndarray] = []
        self._times_file = times_file
        self._items: dict[str, Any] = {}
        self._num_rows = unused("rows", [layout.item])

    @property
    def schema(self) -> Schema:
        """Of the splits."""
        history = self.rules.history
        return interaction_schema(self.layout, self.sides, () if history is None else (history.column(self.layout),))

    def workflow(self, train: Any) -> Workflow:
        """From raw rows to features; train: rows of that split."""
        dtypes = {one.name: one.dtype for one in self.schema.columns if one.role in ("categorical", "continuous")}
        lists = {} if self.rules.history is None else self.rules.history.dtypes(self.layout)
        lists |= {name: kind for side in self.sides.values() for name, kind in side.list_types.items()}
        return Workflow((), [TARGET], dtypes | lists).fit([train])

    def look(self, frame: Any) -> Looked:
        """Look at rows with all of their users; `frame` as of `interaction_tables`."""
        layout, rules = self.layout, self.rules
        frame = _labelled(_in_order(frame, layout), layout, rules)
        num_rows, num_liked = len(frame), int((frame[TARGET] == 1).sum())
        if rules.positives_alone and num_liked < num_rows:
            frame = frame[frame[TARGET] == 1].reset_index(drop=True)
        repeated: Any = None if rules.repeats == "all" else frame[self._same].duplicated(keep="last")
        count = 0 if repeated is None else int(repeated.sum())
        asked = frame
        if count and rules.repeats == "last":
            # In time valid and test ask about a row as it was new: later, its answer would stand in its history.
            left = frame[self._same].duplicated(keep="first") if self._in_time else repeated
            asked = frame[~left].reset_index(drop=True)
        return Looked(frame, asked, num_rows, num_liked, count)

    def count(self, looked: Looked) -> None:
        """Count rows, for what is told of all of them and for where they are cut."""
        counts, frame = self._counts, looked.frame
        counts["rows"] += looked.num_rows
        counts["liked"] += looked.num_liked
        counts["kept"] += len(frame)
        counts["asked"] += len(looked.asked)
        counts["repeated"] += looked.repeated
        if self.rules.repeats == "error" and looked.repeated and not self._repeated:
            first = frame[frame[self._same].duplicated(keep="last")].head(1)
            self._repeated = first[self.layout.identity].to_dict("records")[0]
        if self.rules.way == "time":
            engine = engine_of(frame)
            times = engine.to_host(engine.array(looked.asked[self.layout.time]))
            if self._times_file is None:
                self._times.append(times)
            else:
                with self._times_file.open("ab") as file:
                    times.tofile(file)
                self._times = [times[:0]]

    def cut(self) -> Cut:
        """Where the rows are cut, once all were counted.

        Raises
        ------
        DataError
            Repeats that are refused, and labels without a contrast.
        """
        self._require_labels()
        num_rows = self._counts["asked"]
        if self.rules.way != "time":
            return Cut(num_rows)
        times = np.concatenate(self._times)
        if self._times_file is not None and num_rows:
            times = np.memmap(self._times_file, times.dtype, mode="r+")
        times.sort()
        first, second = (times[max(end - 1, 0)] for end in self.rules.split.ends(num_rows))
        return Cut(num_rows, (first, second))

    def split(self, looked: Looked, cut: Cut) -> dict[str, Any]:
        """The splits, in order of time where there is one, else of the file."""
        splits = self._without_repeats(looked, cut)
        self._count_items(splits)
        for entity, side in self.sides.items():
            for name, rows in splits.items():
                splits[name], missing = side.attach(rows)
                self._counts[f"lacking {entity}"] += missing
        if self.rules.history is not None:
            known = self._positives(looked.frame, cut)
            splits = split_histories(splits, self.layout, self.rules.history, ROW, known)
            for name, rows in splits.items():
                self._counts[f"empty {name}"] += int((rows[HISTORY].list.len() == 0).sum())
        for name, rows in splits.items():
            self._counts[name] += len(rows)
            self._counts["labelled 1"] += int((rows[TARGET] == 1).sum())
        return splits

    def _require_labels(self) -> None:
        rules, counts, least = self.rules, self._counts, self.rules.least_positive
        if rules.repeats == "error" and counts["repeated"]:
            identity = self.layout.identity
            raise DataError(
                f"interactions: {counts['repeated']:,} row(s) repeat another's {', '.join(identity)}, for example "
                f"{self._repeated}. Drop them, or set repeats to last or all."
            )
        if rules.positives_alone and least is not None and not counts["liked"]:
            raise DataError(f"interactions: no rating is at least {least:g}, so there is no positive. Lower threshold.")

    def require_splits(self) -> None:
        """Raise `DataError`, once all rows were split, where leave_one_out finds no row for valid and test, or where
        all labels are the same."""
        rules, counts = self.rules, self._counts
        num_rows, high = sum(counts[name] for name in SPLITS), counts["labelled 1"]
        if rules.task == "rating" and high in (0, num_rows):
            raise DataError(
                f"interactions: {high:,} of {num_rows:,} ratings are at least {rules.least_positive:g}, so there is "
                "nothing to tell apart. Set threshold, or task: ranking."
            )
        if rules.way == "leave_one_out" and not counts["test"]:
            raise DataError(
                f"interactions: no user has {FEWEST} interactions, so leave_one_out finds no row for valid and test. "
                "Give more data, or set split_by."
            )

    def notes(self) -> tuple[str, ...]:
        """What is to be told of all rows, once they were split."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        counts, identity = self._counts, ", ".join(self.layout.identity)
        if counts["repeated"]:
            told = f"{counts['repeated']:,} of {counts['kept']:,} rows are repeated later ({identity}); "
            in_time = "train keeps the last up to its end, valid and test the first."
            yield told + (in_time if self._in_time else "the last of each is kept.")
        if self.rules.positives_alone and self.rules.least_positive is not None:
            low, least = counts["rows"] - counts["liked"], self.rules.least_positive
            yield f"{low:,} of {counts['rows']:,} rows are rated below {least:g} and left out."
        if counts["few"]:
            yield f"{counts['few']:,} user(s) have fewer than {FEWEST} interactions; all of theirs are in train."
        for one, other in SHARED:
            if shared := counts[f"{one} in {other}"]:
                yield (
                    f"{shared:,} of {counts[f'distinct {one}']:,} interactions of the given {one} split ({identity}) "
                    f"are in {other} too; they are kept, as given."
                )
        for name in ("valid", "test"):
            known = self._items["train"][self.layout.item]
            items = self._items[name]
            cold = int(items[self._num_rows][~items[self.layout.item].isin(known)].sum())
            if cold:
                yield f"{cold:,} of {counts[name]:,} rows of {name} are of items that train does not have."
        for entity, side in self.sides.items():
            if missing := counts[f"lacking {entity}"]:
                yield (f"{missing:,} rows have a {entity} that {side.path} does not list; its columns are null there.")
            yield from side.notes
        if self.rules.history is not None:
            empty = (f"{counts[f'empty {name}']:,} of {counts[name]:,} rows of {name}" for name in SPLITS)
            yield f"Empty histories: {', '.join(empty)}."

    @property
    def _same(self) -> list[str]:
        """The columns in which repeats are alike. What given splits share stays in them, or they would no longer be the
        given ones."""
        given = self.rules.way == "given" and self.rules.repeats == "last"
        return [*self.layout.identity, *([GIVEN] if given else [])]

    @property
    def _in_time(self) -> bool:
        """Whether train ends at a moment, of all rows or of a user."""
        return self.layout.time is not None and self.rules.way in ("time", "leave_one_out")

    def _without_repeats(self, looked: Looked, cut: Cut) -> dict[str, Any]:
        """The splits with what `InteractionRules.repeats` lets stay."""
        frame, rules = looked.frame, self.rules
        splits = self._split(looked.asked, cut)
        if rules.way == "given":
            self._count_shared(splits)
        if rules.repeats == "last" and looked.repeated and self._in_time:
            known = frame[self._known_to_train(frame, splits, cut)]
            splits["train"] = known[~known[self._same].duplicated(keep="last")].reset_index(drop=True)
        return splits

    def _known_to_train(self, frame: Any, splits: Mapping[str, Any], cut: Cut) -> Any:
        """Column of bool: the rows up to the moment at which train is cut, or ahead of the user's row in valid."""
        if cut.moments is not None:
            return frame[self.layout.time] <= cut.moments[0]
        engine = engine_of(frame)
        xp, users = engine.arrays, engine.codes(frame[self.layout.user])
        places = xp.nonzero(engine.array(frame[ROW].isin(splits["valid"][ROW])))[0]
        ends = xp.full(int(users.max()) + 1, len(frame))
        ends[users[places]] = places
        return engine.series(xp.arange(len(frame)) < ends[users], frame)

    def _positives(self, frame: Any, cut: Cut) -> dict[str, Any]:
        """What the histories of each split and of later ones may hold: positives, met again or not."""
        liked = frame[frame[TARGET] == 1].reset_index(drop=True)
        # Cut in order of time, what was before a row of a user is in its own split or in an earlier one.
        found = {"train": liked, "valid": liked.head(0), "test": liked.head(0)}
        if not self._in_time:
            found = self._split(liked, cut)
        columns = [self.layout.user, self.layout.item, str(self.layout.time), ROW]
        return {name: rows[columns] for name, rows in found.items()}

    def _split(self, frame: Any, cut: Cut) -> dict[str, Any]:
        """Every row, by split; frame: in order of time; so are the splits."""
        layout, rules = self.layout, self.rules
        if rules.way == "given":
            splits = {name: frame[frame[GIVEN] == number] for number, name in enumerate(SPLITS)}
            return {name: rows.drop(columns=[GIVEN]).reset_index(drop=True) for name, rows in splits.items()}
        if cut.moments is not None:
            times, (first, second) = frame[layout.time], cut.moments
            masks = {"train": times <= first, "valid": (times > first) & (times <= second), "test": times > second}
            return {name: frame[mask].reset_index(drop=True) for name, mask in masks.items()}
        engine = engine_of(frame)
        if rules.way == "random":
            return cut_by_place(
                frame, unit_interval(_hashed(frame, layout, rules.seed)), rules.split.cuts(cut.num_rows)
            )
        if layout.time is None:
            order = unused("order", frame.columns)
            frame = frame.assign(**{order: engine.series(_hashed(frame, layout, rules.seed).view("int64"), frame)})
            frame = frame.sort_values([order, ROW]).drop(columns=[order]).reset_index(drop=True)
        last, before, few = leave_one_out(engine.arrays, engine.codes(frame[layout.user]))
        self._counts["few"] += few
        masks = {"train": ~(last | before), "valid": before, "test": last}
        splits = {name: frame[engine.series(mask, frame)].reset_index(drop=True) for name, mask in masks.items()}
        if layout.time is None:
            splits = {name: rows.sort_values([ROW]).reset_index(drop=True) for name, rows in splits.items()}
        return splits

    def _count_shared(self, splits: Mapping[str, Any]) -> None:
        """How many rows of the given valid and test are in another given split too."""
        own = {name: rows[self.layout.identity].drop_duplicates() for name, rows in splits.items()}
        for name, rows in own.items():
            self._counts[f"distinct {name}"] += len(rows)
        for one, other in SHARED:
            both = engine_of(own[one]).frames.concat([own[other], own[one]], ignore_index=True)
            self._counts[f"{one} in {other}"] += int(both.duplicated().sum())

    def _count_items(self, splits: Mapping[str, Any]) -> None:
        """How many rows of each item the splits have."""
        item = self.layout.item
        for name, rows in splits.items():
            parts = [rows[[item]].assign(**{self._num_rows: 1})]
            if name in self._items:
                parts.append(self._items[name])
            found = engine_of(rows).frames.concat(parts, ignore_index=True)
            self._items[name] = found.groupby(item, sort=False)[self._num_rows].sum().reset_index()


def positives(frame: Any, layout: Layout, rules: InteractionRules) -> Any:
    """The interactions that histories hold, in order of time; `frame` as of `interaction_tables`."""
    frame, least = _in_order(frame, layout), rules.least_positive
    return frame if least is None else frame[frame[layout.rating] >= least].reset_index(drop=True)


def _in_order(frame: Any, layout: Layout) -> Any:
    engine = engine_of(frame)
    rows = engine.array(frame[ROW])
    times = engine.array(frame[layout.time]) if layout.time else rows
    if times.dtype.kind != "i":
        return frame.sort_values([layout.time, ROW]).reset_index(drop=True)
    return frame.take(sorted_rows(engine, times, rows)).reset_index(drop=True)


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
    about = {name: sides[name].features if name in sides else () for name in ("user", "item")}
    entities = (
        Entity("user", layout.user, (layout.user, *layout.user_columns, *about["user"])),
        Entity("item", layout.item, (layout.item, *layout.item_columns, *about["item"])),
    )
    lists += tuple(column for side in found for column in side.lists)
    return Schema(tuple(columns), (Target(TARGET, "binary"),), entities, lists)


def _labelled(frame: Any, layout: Layout, rules: InteractionRules) -> Any:
    """The frame, in its order, with its target; with task ranking those of target 0 are in no split."""
    least = rules.least_positive
    liked = frame[ROW] >= 0 if least is None else frame[layout.rating] >= least
    return frame.assign(**{TARGET: liked.astype("float32")})


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
