"""Clickouts and their candidates from a chunk of the coded log: what follows from the chunk's own rows alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.errors import DataError
from features.frame import engine_of
from features.operators.explode_lists import ExplodeLists
from features.operators.rank_within_group import RankWithinGroup
from features.recipes.trivago_history import ITEM_BITS
from features.recipes.trivago_log import CLICKOUT, Books

FROM_ROWS = ("timestamp", "step", "moment", "session", "user", "platform", "city", "device", "filters", "session_hash",
             "has_reference")  # fmt: skip


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
    asked = engine.array(rows["action"]) == books.code("action_type", CLICKOUT)
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
