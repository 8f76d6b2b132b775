"""A chunk of the trivago log: its clickouts and candidates, its groups of events, and what it leaves to later chunks.

`explode` finds what follows from the chunk's own rows alone; `totals` is pass 1 of the scan over chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.rank_within_group import RankWithinGroup
from gigabatch.features.operators.lists.explode_lists import ExplodeLists
from gigabatch.features.recipes.trivago.history import FIRST, ITEM_BITS, LAST, NONE, SUM, Events, Family
from gigabatch.features.recipes.trivago.log import CLICKOUT, ITEM_ACTIONS, SEARCH_ITEM, SORT_CHANGE, VIEWS, Books

FROM_ROWS = ("timestamp", "step", "moment", "session", "user", "platform", "city", "device", "filters", "session_hash",
             "has_reference")  # fmt: skip
# Name of the flag, and the actions whose last item it compares with.
LAST_ITEMS = {"interacted": ITEM_ACTIONS, "viewed": VIEWS, "clicked": (CLICKOUT,), "searched": (SEARCH_ITEM,)}
# Target means of clickouts: the number that they go by, and the column of the log behind it.
ENCODED = {"filters": "current_filters", "city": "city", "device": "device", "user": "user_id"}
ITEM_GROUPS = ("", "user", "session", "city", "platform")  # items by themselves, and within each of these

_MEAN = {"hits": SUM, "trials": SUM}
# What is carried of the groups of each family: rules by column. Families that end in `_fold` are parted by fold.
FAMILIES: dict[str, dict[str, str]] = {
    "session": {"actions": SUM, "clickouts": SUM, "start": FIRST, "last_at": LAST, "last_action": LAST,
                "sort_order": LAST, **dict.fromkeys(LAST_ITEMS, LAST)},
    "user": {"clickouts": SUM, "permille": SUM, "known": SUM, **_MEAN},
    "user_fold": _MEAN, "filters": _MEAN, "filters_fold": _MEAN, "city": _MEAN, "city_fold": _MEAN, "device": _MEAN,
    "device_fold": _MEAN, "all": {**_MEAN, "pair_hits": SUM}, "all_fold": _MEAN,
    "item": {"count": SUM, "impressions": SUM, **_MEAN}, "platform_item": {"count": SUM, **_MEAN},
    "city_item": {"count": SUM}, "user_item": {"count": SUM},
    "session_item": {"count": SUM, "visits": SUM, "clicks": SUM, "price": LAST},
}  # fmt: skip
# Families whose groups belong to one session or user and are of no use once that has ended: the divisor that gives
# the number of the owner from a key, None for the number of folds.
OWNED = {"session": ("session", 1), "session_item": ("session", 1 << ITEM_BITS), "user": ("user", 1),
         "user_fold": ("user", None), "user_item": ("user", 1 << ITEM_BITS)}  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """Log rows, clickouts and pairs of a chunk, each in order of time.

    clickouts: one a list that is used, with `row`, its place among the rows, `list_length` and, where it has a
    reference, `clicked_price_permille`. pairs: one a candidate, with `clickout`, its place among the clickouts.
    without_list, not_in_list: clickouts left out because nothing was shown, or not the item clicked.
    """

    rows: Any
    clickouts: Any
    pairs: Any
    without_list: int
    not_in_list: int


def explode(rows: Any, books: Books) -> Tables:
    """The tables of a chunk's coded rows in order of time; `target` is null without a reference."""
    engine = engine_of(rows)
    xp = engine.arrays
    asked = books.acted((CLICKOUT,))[engine.array(rows["action"])]
    place = xp.nonzero(asked & engine.array(rows["impressions"].notna()))[0]
    shown = rows[["impressions", "prices", "item_id", "has_reference"]].take(place).reset_index(drop=True)
    shown = shown.rename(columns={"item_id": "clicked_item"})
    shown["clickout"] = xp.arange(len(shown))
    lists = {"impressions": ("item_id", "int64"), "prices": ("price", "int64")}
    pairs = ExplodeLists(lists, "candidate_order", ("clickout",))(shown)
    _check_items(pairs, rows)
    of_pair = engine.array(pairs["clickout"])
    hit = engine.array(pairs["item_id"]) == engine.array(shown["clicked_item"])[of_pair]
    labelled = engine.array(shown["has_reference"])
    stays = ~labelled
    stays[of_pair[hit]] = True
    number = xp.cumsum(stays) - 1
    pairs["target"] = engine.series(hit.astype("float32"), pairs, valid=labelled[of_pair])
    pairs["clickout"] = number[of_pair]
    pairs = pairs[engine.series(stays[of_pair], pairs)].reset_index(drop=True)
    clickouts = rows[list(FROM_ROWS)].take(place[stays]).reset_index(drop=True)
    clickouts["row"] = place[stays]
    pairs = _prices(pairs)
    without = int(asked.sum()) - len(shown)
    return Tables(
        rows.drop(columns=["impressions", "prices"]), _outcomes(clickouts, pairs), pairs, without, int((~stays).sum())
    )


def _check_items(pairs: Any, rows: Any) -> None:
    for where, column in (("impressions", pairs["item_id"]), ("reference", rows["item_id"])):
        if len(column) and (int(column.max()) >= 1 << ITEM_BITS or int(column.min()) < -1):
            raise DataError(
                f"trivago log: {where} hold an item number outside [0, 2^{ITEM_BITS}), for example "
                f"{int(column.max())}. Number the items anew."
            )


def _by_clickout(pairs: Any, column: str, how: str, out: Any) -> Any:
    """`out` with the aggregate of every clickout of `pairs` written at its number."""
    engine = engine_of(pairs)
    found = pairs.groupby("clickout").agg({column: how}).reset_index()
    out[engine.array(found["clickout"])] = engine.array(found[column])
    return out


def _prices(pairs: Any) -> Any:
    """The price against its list; sums of integers, so that no engine or order changes a bit."""
    prices = pairs.groupby("clickout")["price"]
    size, total = prices.transform("count"), prices.transform("sum")
    pairs["list_length"] = size
    pairs["price_minus_list_mean"] = ((pairs["price"] * size - total) / size).astype("float32")
    pairs["price_over_list_mean"] = (pairs["price"] * size / total.where(total > 0, 1)).astype("float32")
    pairs["price_minus_list_min"] = (pairs["price"] - prices.transform("min")).astype("float32")
    pairs = RankWithinGroup(("clickout",), "price", "price_rank")(pairs)
    above = pairs["price_rank"].astype("int64") - 1
    pairs["price_permille"] = above * 1000 // (size - 1).where(size > 1, 1)
    return pairs


def _outcomes(clickouts: Any, pairs: Any) -> Any:
    """What becomes known of a list when it is clicked: its length and the price rank of the item clicked."""
    xp = engine_of(clickouts).arrays
    zeros = xp.zeros(len(clickouts), dtype="int64")
    clickouts["list_length"] = _by_clickout(pairs, "list_length", "max", zeros.copy())
    clicked = pairs[(pairs["target"].fillna(0) > 0)]
    clickouts["clicked_price_permille"] = _by_clickout(clicked, "price_permille", "min", zeros)
    return clickouts


def places_in_list(tables: Tables, last_interacted: Any, last_viewed: Any) -> tuple[Any, Any]:
    """int64 [clickouts]: where the last interacted item stands in the list, and what the last viewed one costs there;
    -1 where it was not shown. The items come as int64 [clickouts], negative for none."""
    pairs = tables.pairs
    engine = engine_of(pairs)
    xp = engine.arrays
    of_pair, item = engine.array(pairs["clickout"]), engine.array(pairs["item_id"])
    found = []
    for last, column in ((last_interacted, "candidate_order"), (last_viewed, "price")):
        same = pairs[["clickout", column]][engine.series(item == last[of_pair], pairs)]
        found.append(_by_clickout(same, column, "min", xp.full(len(tables.clickouts), -1, dtype="int64")))
    return found[0], found[1]


def owner_of(family: str, keys: Any, num_folds: int) -> Any:
    """The session or user that each key of an owned family belongs to."""
    return keys // (OWNED[family][1] or num_folds)


class Chunk:
    """A chunk's tables and its families, for the totals as for the features."""

    def __init__(self, tables: Tables, books: Books, num_folds: int, carried: Mapping[str, Any] | None) -> None:
        self.tables, self.books = tables, books
        self.engine = engine = engine_of(tables.rows)
        self.xp = engine.arrays
        self.row = {name: engine.array(tables.rows[name]).astype("int64") for name in
                    ("session", "user", "platform", "city", "item_id", "moment", "action", "timestamp",
                     "sort_order")}  # fmt: skip
        self.click = {name: engine.array(tables.clickouts[name]).astype("int64") for name in
                      ("session", "user", "platform", "city", "device", "filters", "moment", "row", "timestamp",
                       "list_length", "clicked_price_permille", "session_hash")}  # fmt: skip
        self.fold = self.click["session_hash"] % num_folds
        self.labelled = engine.array(tables.clickouts["has_reference"])
        self.of_pair = engine.array(tables.pairs["clickout"])
        self.item = engine.array(tables.pairs["item_id"])
        self.num_folds, self.carried = num_folds, carried
        self.at = self.click["moment"][self.of_pair]

    def family(self, name: str, **keys: Any) -> Family:
        return Family(self.engine, keys, None if self.carried is None else self.carried[name])

    def acted(self, actions: tuple[str, ...]) -> Any:
        """bool [rows]: the action is one of these."""
        return self.books.acted(actions)[self.row["action"]]

    def sessions(self) -> Family:
        return self.family("session", rows=self.row["session"])

    def users(self) -> Family:
        return self.family("user", rows=self.xp.where(self.acted((CLICKOUT,)), self.row["user"], -1),
                           clickouts=self.click["user"])  # fmt: skip

    def encoded(self, name: str, folded: bool) -> Family:
        """The clickouts by one of `ENCODED`, or `all`; folded: each fold apart."""
        key = self.xp.zeros(len(self.fold), dtype="int64") if name == "all" else self.click[name]
        if folded:
            return self.family(f"{name}_fold", clickouts=self.xp.where(key >= 0, key * self.num_folds + self.fold, -1))
        return self.family(name, clickouts=key)

    def items(self, name: str = "", keep: Any = None) -> Family:
        """Rows and pairs by item, or by item and a number of `ITEM_GROUPS`; keep: a bool a number, None for all."""
        if not name:
            return self.family("item", rows=self.row["item_id"], pairs=self.item)
        rows, clickouts = self.row[name], self.click[name]
        if keep is not None:
            rows, clickouts = (self.xp.where(keep[number], number, -1) for number in (rows, clickouts))
        return self.family(
            f"{name}_item",
            rows=self.item_key(rows, self.row["item_id"]),
            pairs=self.item_key(clickouts[self.of_pair], self.item),
        )

    def item_key(self, number: Any, item: Any) -> Any:
        return self.xp.where((number >= 0) & (item >= 0), (number << ITEM_BITS) + item, -1)

    def previous_items(self, sessions: Family) -> Any:
        """int64 [rows]: the item of the session's last earlier row about one, NONE where there is none."""
        about = sessions.events("rows", self.row["moment"], self.row["item_id"] >= 0)
        return about.ask(sessions.codes["rows"], self.row["moment"]).last(
            sessions.before("interacted", LAST), self.row["item_id"]
        )

    def sort_changes(self) -> Any:
        """bool [rows]: the row changes the sort order."""
        return self.acted((SORT_CHANGE,))


def totals(chunk: Chunk, began: Mapping[str, Any], goes_on: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What a chunk adds to the history, and of which groups it needs to be told, as arrays on the host.

    began, goes_on: by `session` and `user` a bool each, those with rows in earlier and in later chunks. Of families
    that they own nothing is kept of one that does not go on, and nothing asked of one that begins here.

    As `<family>/key` and `<family>/<column>` the totals, ascending by key; as `<family>/asked` the keys of the chunk,
    but for families owned by sessions, which are told everything. `first/session` and `first/item`: rows about an item
    that start a visit unless that item was the session's last one before the chunk.
    """
    out: dict[str, Any] = {}
    for name, (family, columns) in _all_totals(chunk, began, out, goes_on).items():
        keys = chunk.engine.to_host(family.distinct)
        order = np.argsort(keys)
        order = order[keys[order] >= 0]
        host = {column: chunk.engine.to_host(values)[order] for column, values in columns.items()}
        told = np.zeros(len(order), dtype=bool)
        for column, values in host.items():
            told |= values != (0 if FAMILIES[name][column] == SUM else NONE)
        asked = np.ones(len(order), dtype=bool)
        if name in OWNED:
            owner = OWNED[name][0]
            owners = owner_of(name, keys[order], chunk.num_folds)
            told &= chunk.engine.to_host(goes_on[owner])[owners]
            asked = chunk.engine.to_host(began[owner])[owners]
        if OWNED.get(name, ("",))[0] != "session":
            out[f"{name}/asked"] = keys[order][asked]
        out[f"{name}/key"] = keys[order][told]
        out |= {f"{name}/{column}": values[told] for column, values in host.items()}
    return out


def _all_totals(
    chunk: Chunk, began: Mapping[str, Any], out: dict[str, Any], goes_on: Mapping[str, Any]
) -> dict[str, tuple[Family, dict]]:
    found: dict[str, tuple[Family, dict]] = {}
    sessions = chunk.sessions()
    found["session"] = sessions, _session_totals(chunk, sessions)
    for name in (*ENCODED, "all"):
        for folded in (False, True):
            family = chunk.users() if (name, folded) == ("user", False) else chunk.encoded(name, folded)
            found[f"{name}_fold" if folded else name] = family, _mean_totals(chunk, family)
    _add_user_totals(chunk, *found["user"])
    everyone, columns = found["all"]
    columns["pair_hits"] = chunk.xp.full(everyone.num_groups, int(target_counts(chunk).sum()), dtype="int64")
    starts = _visit_starts(chunk, sessions, began["session"], goes_on["session"], out)
    keep = {
        "session": goes_on["session"],
        "user": began["user"] | goes_on["user"],
    }  # most sessions end where they begin
    for name in ITEM_GROUPS:
        family = chunk.items(name, keep.get(name))
        columns = _item_totals(chunk, family, f"{name}_item" if name else "item", starts)
        found[f"{name}_item" if name else "item"] = family, columns
    return found


def _session_totals(chunk: Chunk, sessions: Family) -> dict[str, Any]:
    row = chunk.row

    def events(where: Any = None) -> Events:
        return sessions.events("rows", row["moment"], where)

    every = events()
    return {
        "actions": every.total(),
        "clickouts": every.total(chunk.acted((CLICKOUT,)).astype("int64")),
        "start": every.first(row["timestamp"]),
        "last_at": every.last(row["timestamp"]),
        "last_action": every.last(row["action"]),
        "sort_order": events(chunk.sort_changes()).last(row["sort_order"]),
        **{
            name: events(chunk.acted(actions) & (row["item_id"] >= 0)).last(row["item_id"])
            for name, actions in LAST_ITEMS.items()
        },
    }


def _mean_totals(chunk: Chunk, family: Family) -> dict[str, Any]:
    events = family.events("clickouts", chunk.click["moment"], chunk.labelled)
    return {"hits": events.total(), "trials": events.total(chunk.click["list_length"])}


def _add_user_totals(chunk: Chunk, users: Family, columns: dict[str, Any]) -> None:
    clicked = users.events("clickouts", chunk.click["moment"], chunk.labelled)
    columns["clickouts"] = users.events("rows", chunk.row["moment"]).total()
    columns["permille"], columns["known"] = clicked.total(chunk.click["clicked_price_permille"]), clicked.total()


def _visit_starts(chunk: Chunk, sessions: Family, began: Any, goes_on: Any, out: dict[str, Any]) -> Any:
    """int64 [rows]: 1 where a row surely starts a visit; those that hang on earlier chunks go into `out`."""
    item = chunk.row["item_id"]
    previous = chunk.previous_items(sessions)
    first = (previous == NONE) & (item >= 0)
    hangs = first & began[chunk.row["session"]]
    kept = hangs & goes_on[chunk.row["session"]]
    out["first/session"] = chunk.engine.to_host(chunk.row["session"][kept])
    out["first/item"] = chunk.engine.to_host(item[kept])
    return ((item >= 0) & (previous != item) & ~hangs).astype("int64")


def _item_totals(chunk: Chunk, family: Family, name: str, visit_starts: Any) -> dict[str, Any]:
    events = family.events("rows", chunk.row["moment"])
    found = {"count": events.total()}
    if "trials" in FAMILIES[name]:
        shown = family.events("pairs", chunk.at)
        found |= {"hits": shown.total(target_counts(chunk)), "trials": shown.total(chunk.labelled[chunk.of_pair])}
    if name == "item":
        found["impressions"] = shown.total()
    if name == "session_item":
        clicks = (chunk.acted((CLICKOUT,)) & (chunk.row["item_id"] >= 0)).astype("int64")
        found |= {"visits": events.total(visit_starts), "clicks": events.total(clicks)}
        found["price"] = family.events("pairs", chunk.at).last(chunk.engine.array(chunk.tables.pairs["price"]))
    return found


def target_counts(chunk: Chunk) -> Any:
    """int64 [pairs]: 1 for a candidate that was clicked, 0 for others and where the reference is not known."""
    return chunk.engine.array(chunk.tables.pairs["target"], fill=0).astype("int64")
