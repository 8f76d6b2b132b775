"""Features of (clickout, candidate) pairs from a log in the format of the RecSys Challenge 2019.

Time discipline. `moment` numbers the log's distinct (timestamp, step) in order. Everything about a pair comes from
its own clickout row without the reference (what was shown, to whom, when) and from rows of a strictly smaller moment.
So changing a clickout's reference, or anything later, changes none of its features.
"""

from __future__ import annotations

from typing import Any

from features.errors import DataError
from features.frame import engine_of
from features.operators.asof import AsOf, Mean
from features.operators.base import Operator
from features.operators.count_encoding import CountEncoding, LastBefore
from features.operators.difference import Difference
from features.operators.explode_lists import ExplodeLists
from features.operators.rank_within_group import RankWithinGroup
from features.operators.target_encoding import TargetEncoding
from features.operators.text_flags import TextFlags, Words

CLICKOUT, SEARCH_ITEM, SORT_CHANGE = "clickout item", "search for item", "change of sort order"
VIEWS = ("interaction item image", "interaction item info", "interaction item deals", "interaction item rating")
ITEM_ACTIONS = (*VIEWS, CLICKOUT, SEARCH_ITEM)
# Name of the flag, and the actions whose last item it compares with.
LAST_ITEMS = {"interacted": ITEM_ACTIONS, "viewed": VIEWS, "clicked": (CLICKOUT,), "searched": (SEARCH_ITEM,)}
ENCODED = {"filters": "current_filters", "city": "city", "device": "device", "user": "user_id"}
NO_FILTERS = "none"

CATEGORICAL = {
    "user_id": "string", "item_id": "int64", "platform": "string", "city": "string", "device": "string",
    "current_filters": "string", "sort_order": "string", "last_action": "string", "position": "int32",
}  # fmt: skip
CONTINUOUS = (
    "price", "price_minus_list_mean", "price_over_list_mean", "price_minus_list_min", "price_rank",
    "price_minus_last_viewed", "price_rank_minus_user_mean", "candidate_order", "list_length",
    "order_minus_last_interacted", *(f"is_last_{name}" for name in LAST_ITEMS), "filters_matched", "item_count",
    "user_item_count", "session_item_count", "city_item_count", "platform_item_count", "session_item_visits",
    "session_item_clicks", "item_impressions", "item_ctr", "item_ctr_rank", "platform_item_ctr",
    *(f"{name}_target_mean" for name in ENCODED), "session_actions", "session_clickouts", "user_clickouts",
    "seconds_since_last_action", "seconds_since_session_start", "session_step",
)  # fmt: skip

# Columns of a clickout that its pairs carry.
FROM_CLICKOUT = (
    "user_id", "session_id", "timestamp", "step", "user", "platform", "city", "device", "current_filters",
    "sort_order", "last_action", "session_actions", "session_clickouts", "user_clickouts", "seconds_since_last_action",
    "seconds_since_session_start", *(f"{name}_target_mean" for name in ENCODED),
)  # fmt: skip


def prepare_log(log: Any) -> Any:
    """The log in order of (timestamp, step), with row, moment, item (-1 for none) and the codes session and user.

    The row order of the input does not matter; a null in `current_filters` becomes 'none'.
    """
    if bool((log["timestamp"] < 0).any()) or bool((log["step"] < 0).any()):
        bad = log[(log["timestamp"] < 0) | (log["step"] < 0)].head(1)[["session_id", "timestamp", "step"]]
        raise DataError(f"trivago log: negative timestamp or step, for example {bad.to_dict('records')[0]}.")
    for name in ("user_id", "session_id", "action_type"):
        if bool(log[name].isna().any()):
            raise DataError(f"trivago log: column {name!r} holds {int(log[name].isna().sum())} null(s).")
    engine = engine_of(log)
    xp = engine.arrays
    out = log.copy(deep=False)
    out["session_hash"] = engine.series(engine.hash64(log["session_id"]), log)
    out = out.sort_values(["timestamp", "step", "session_hash"]).reset_index(drop=True)
    changes = (xp.diff(engine.array(out["timestamp"])) != 0) | (xp.diff(engine.array(out["step"])) != 0)
    moment = xp.zeros(len(out), dtype="int64")
    moment[1:] = xp.cumsum(changes)
    out["row"], out["moment"] = xp.arange(len(out)), moment
    out["session"], out["user"] = engine.codes(out["session_id"]), engine.codes(out["user_id"])
    out["current_filters"] = out["current_filters"].fillna(NO_FILTERS)
    reference = out["reference"].fillna("")
    is_item = out["action_type"].isin(list(ITEM_ACTIONS)) & reference.str.isdigit()
    out["item_id"] = reference.where(is_item, "-1").astype("int64")
    return out


class PairBuilder:
    """From a prepared log and the item metadata to one frame of pairs with every feature.

    After `build`, `flag_names` holds the columns of item properties, and `without_list` and `not_in_list` how many
    clickouts were left out because nothing was shown, or because their reference was not among what was shown.
    """

    def __init__(
        self, metadata: Any | None, max_properties: int, num_folds: int, ctr_smoothing: float, target_smoothing: float
    ) -> None:
        self.metadata, self.num_folds = metadata, num_folds
        self.ctr_smoothing, self.target_smoothing = ctr_smoothing, target_smoothing
        self.flags = TextFlags("properties", "has_", max_properties)
        self.flag_names: tuple[str, ...] = ()
        self.without_list = self.not_in_list = 0

    def build(self, log: Any) -> Any:
        """All pairs, clickout by clickout in time order, every list in shown order."""
        items = log[log["item_id"] >= 0].reset_index(drop=True)
        clickouts, pairs = self._explode(log)
        pairs = _prices(pairs)
        clickouts = self._clickout_features(_outcomes(clickouts, pairs), log, items)
        clickouts = _places_in_list(clickouts, pairs)
        pairs = _relations(pairs, clickouts)
        for operator in self._item_operators(pairs, items):
            pairs = operator(pairs)
        return self._properties(pairs, clickouts)

    def _explode(self, log: Any) -> tuple[Any, Any]:
        """Clickouts that stay, numbered in time order, and their pairs with `target` (null without a reference)."""
        asked = log[log["action_type"] == CLICKOUT]
        shown = asked[asked["impressions"].notna()].reset_index(drop=True).rename(columns={"item_id": "clicked_item"})
        xp = engine_of(log).arrays
        shown["clickout"] = xp.arange(len(shown))
        lists = {"impressions": ("item_id", "int64"), "prices": ("price", "int64")}
        kept = ("clickout", "clicked_item", "moment", "session")
        pairs = ExplodeLists(lists, "candidate_order", kept)(shown)
        pairs["target"] = (pairs["item_id"] == pairs["clicked_item"]).astype("float32")
        labelled = engine_of(log).array(shown["reference"].notna())
        hit = _by_clickout(pairs, "target", "max", xp.zeros(len(shown), dtype="float32")) > 0
        stays = hit | ~labelled
        self.without_list, self.not_in_list = len(asked) - len(shown), int((~stays).sum())
        number = xp.cumsum(stays) - 1
        rows = engine_of(log).array(pairs["clickout"])
        pairs["clickout"] = number[rows]
        pairs["target"] = pairs["target"].where(engine_of(log).series(labelled[rows], pairs))
        shown["clickout"] = number
        pairs = pairs[engine_of(log).series(stays[rows], pairs)].drop(columns=["clicked_item"])
        return shown[engine_of(log).series(stays, shown)].reset_index(drop=True), pairs.reset_index(drop=True)

    def _clickout_features(self, clickouts: Any, log: Any, items: Any) -> Any:
        """What is alike for all candidates of a list: history of session and user, out-of-fold target means."""
        clickouts["fold"] = clickouts["session_hash"] % self.num_folds
        for operator in self._clickout_operators(log, items):
            clickouts = operator(clickouts)
        first = log.groupby("session").agg({"timestamp": "min"}).sort_index()
        start = engine_of(log).array(first["timestamp"])[engine_of(log).array(clickouts["session"])]
        seconds = engine_of(log).array(clickouts["timestamp"]) - start
        clickouts["seconds_since_session_start"] = seconds.astype("float32")
        return clickouts

    def _clickout_operators(self, log: Any, items: Any) -> list[Operator]:
        session, user = ("session",), ("user",)
        found: list[Operator] = [
            LastBefore(_acted(items, actions), session, {"item_id": f"last_{name}_item"}, at="moment", order="row")
            for name, actions in LAST_ITEMS.items()
        ]
        previous = {"timestamp": "last_action_at", "action_type": "last_action"}
        orders = _acted(log, (SORT_CHANGE,))
        asked = _acted(log, (CLICKOUT,))
        return [
            *found,
            LastBefore(log, session, previous, at="moment", order="row"),
            LastBefore(orders, session, {"reference": "sort_order"}, at="moment", order="row"),
            CountEncoding(log, session, "session_actions", at="moment"),
            CountEncoding(asked, session, "session_clickouts", at="moment"),
            CountEncoding(asked, user, "user_clickouts", at="moment"),
            Difference("timestamp", "last_action_at", "seconds_since_last_action"),
            AsOf(user, "moment", "moment", [Mean("clicked_price_permille", "user_price_permille")], "row"),
            *(
                TargetEncoding(
                    (column,), "hits", f"{name}_target_mean",
                    at="moment", trials="list_length", fold="fold", smoothing=self.target_smoothing,
                )
                for name, column in ENCODED.items()
            ),
        ]  # fmt: skip

    def _item_operators(self, pairs: Any, items: Any) -> list[Operator]:
        """Counts of the candidate before the clickout, and its click-through."""
        counts: dict[str, tuple[str, ...]] = {
            "item_count": ("item_id",),
            "user_item_count": ("user", "item_id"),
            "session_item_count": ("session", "item_id"),
            "city_item_count": ("city", "item_id"),
            "platform_item_count": ("platform", "item_id"),
        }
        in_session = ("session", "item_id")
        return [
            *(CountEncoding(items, by, output, at="moment") for output, by in counts.items()),
            CountEncoding(_visit_starts(items), in_session, "session_item_visits", at="moment"),
            CountEncoding(_acted(items, (CLICKOUT,)), in_session, "session_item_clicks", at="moment"),
            CountEncoding(pairs[["item_id", "moment"]], ("item_id",), "item_impressions", at="moment"),
            *(
                TargetEncoding(by, "target", output, at="moment", smoothing=self.ctr_smoothing)
                for output, by in (("item_ctr", ("item_id",)), ("platform_item_ctr", ("platform", "item_id")))
            ),
            RankWithinGroup(("clickout",), "item_ctr", "item_ctr_rank", descending=True),
        ]

    def _properties(self, pairs: Any, clickouts: Any) -> Any:
        """Item properties as 0/1 columns, and the share of the filters set that the candidate fulfils."""
        engine = engine_of(pairs)
        xp = engine.arrays
        matched = xp.zeros(len(pairs), dtype="int64")
        if self.metadata is not None:
            words = self.flags.fit([self.metadata])
            self.flag_names = words.columns
            wanted = self._wanted(clickouts, words)[engine.array(pairs["clickout"])]
            of_item = self.flags.matrix(self.metadata, words)
            position = engine.positions_in(pairs["item_id"], self.metadata["item_id"])
            flags = {}
            for column, name in enumerate(words.columns):
                has = of_item[:, column][xp.clip(position, 0, None)] * (position >= 0)
                matched += has * wanted[:, column]
                flags[name] = has.astype("float32")
            pairs = engine.frames.concat([pairs, engine.frames.DataFrame(flags, index=pairs.index)], axis=1)
        share = matched / xp.maximum(engine.array(pairs["filters_set"]), 1)
        pairs["filters_matched"] = share.astype("float32")
        return pairs

    def _wanted(self, clickouts: Any, words: Words) -> Any:
        """int8 [clickouts, words]: the properties among the current filters."""
        renamed = clickouts[["current_filters"]].rename(columns={"current_filters": "properties"})
        return self.flags.matrix(renamed, words)


def _acted(rows: Any, actions: tuple[str, ...]) -> Any:
    return rows[rows["action_type"].isin(list(actions))].reset_index(drop=True)


def _visit_starts(items: Any) -> Any:
    """The first row of every run of rows about one item in a session: a visit shows as many image views in a row."""
    previous = LastBefore(items, ("session",), {"item_id": "previous"}, at="moment", order="row")(items)
    return items[(previous["previous"].fillna(-1) != items["item_id"])].reset_index(drop=True)


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
    """What becomes known of a list when it is clicked: hits (null without a reference) and the price rank clicked."""
    engine = engine_of(pairs)
    xp = engine.arrays
    number = len(clickouts)
    clickouts["list_length"] = _by_clickout(pairs, "list_length", "max", xp.zeros(number, dtype="int64"))
    labelled = clickouts["reference"].notna()
    clickouts["hits"] = engine.series(xp.ones(number), clickouts).where(labelled)
    clicked = pairs[(pairs["target"].fillna(0) > 0)]
    permille = _by_clickout(clicked, "price_permille", "min", xp.zeros(number, dtype="int64"))
    clickouts["clicked_price_permille"] = engine.series(permille.astype("float64"), clickouts).where(labelled)
    return clickouts


def _places_in_list(clickouts: Any, pairs: Any) -> Any:
    """Where the last interacted item stands in the list, and what the last viewed one costs: here, else when shown
    last in this session; -1 where it was not shown."""
    engine = engine_of(pairs)
    xp = engine.arrays
    rows = engine.array(pairs["clickout"])
    for name, column, output in (
        ("interacted", "candidate_order", "last_interacted_order"),
        ("viewed", "price", "last_viewed_price"),
    ):
        item = engine.array(clickouts[f"last_{name}_item"], fill=-1).astype("int64")
        same = pairs[engine.series(engine.array(pairs["item_id"]) == item[rows], pairs)]
        clickouts[output] = _by_clickout(same, column, "min", xp.full(len(clickouts), -1, dtype="int64"))
    asked = clickouts[["session", "moment"]].copy(deep=False)
    asked["item_id"] = item
    seen = pairs[["session", "item_id", "moment", "price"]].copy(deep=False)
    seen["order"] = xp.arange(len(seen))
    earlier = LastBefore(seen, ("session", "item_id"), {"price": "earlier"}, at="moment", order="order")(asked)
    price = clickouts["last_viewed_price"]
    clickouts["last_viewed_price"] = price.where(price >= 0, earlier["earlier"].fillna(-1).astype("int64"))
    return clickouts


def _relations(pairs: Any, clickouts: Any) -> Any:
    """The clickout's columns on each of its pairs, and the candidate against what the session did last."""
    engine = engine_of(pairs)
    rows = engine.array(pairs["clickout"])
    shared = clickouts[[*FROM_CLICKOUT, "user_price_permille"]].take(rows).reset_index(drop=True)
    for name in FROM_CLICKOUT:
        pairs[name] = shared[name]
    item = engine.array(pairs["item_id"])
    for name in LAST_ITEMS:
        last = engine.array(clickouts[f"last_{name}_item"], fill=-1).astype("int64")
        pairs[f"is_last_{name}"] = (item == last[rows]).astype("float32")
    for output, column, last in (
        ("order_minus_last_interacted", "candidate_order", "last_interacted_order"),
        ("price_minus_last_viewed", "price", "last_viewed_price"),
    ):
        there = engine.array(clickouts[last])[rows]
        difference = (engine.array(pairs[column]) - there).astype("float32")
        pairs[output] = engine.series(difference, pairs, valid=there >= 0)
    pairs["price_rank_minus_user_mean"] = (pairs["price_permille"] - shared["user_price_permille"]).astype("float32")
    filters = clickouts["current_filters"]
    bars = (filters.str.count(r"\|") + 1).where(filters != NO_FILTERS, 0)
    pairs["filters_set"] = engine.array(bars).astype("int64")[rows]
    pairs["session_step"] = pairs["step"].astype("float32")
    pairs["position"] = pairs["candidate_order"]
    return pairs
