"""Features of (clickout, candidate) pairs from a log in the format of the RecSys Challenge 2019.

Time discipline. A moment is a (timestamp, step). Everything about a pair comes from its own clickout row without the
reference (what was shown, to whom, when) and from rows of a strictly smaller moment. So changing a clickout's
reference, or anything later, changes none of its features.

The log may come in chunks of time, each with what earlier ones left (`trivago_history`, `trivago_chunk`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.exact.tally import tally
from gigabatch.features.operators.categories.text_flags import TextFlags, Words
from gigabatch.features.operators.history.asof import ratio
from gigabatch.features.operators.history.rank_within_group import RankWithinGroup
from gigabatch.features.recipes.trivago.chunk import (
    ENCODED,
    ITEM_GROUPS,
    LAST_ITEMS,
    Chunk,
    Tables,
    places_in_list,
    target_counts,
)
from gigabatch.features.recipes.trivago.history import FIRST, LAST, NONE, Family
from gigabatch.features.recipes.trivago.log import CLICKOUT, NO_FILTERS, Books

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
# Columns that are text in the pairs: the number behind them, and the column whose book it is of.
TEXTS = {
    "user_id": ("user", "user_id"), "session_id": ("session", "session_id"), "platform": ("platform", "platform"),
    "city": ("city", "city"), "device": ("device", "device"), "current_filters": ("filters", "current_filters"),
    "sort_order": ("sort_order", "sort_order"), "last_action": ("last_action", "action_type"),
}  # fmt: skip


@dataclass(frozen=True)
class Properties:
    """What the metadata says: item_id, `has` int8 [items, words], and the words with their columns."""

    item_id: Any
    has: Any
    words: Words

    @classmethod
    def of(cls, metadata: Any | None, max_properties: int, engine: str) -> Properties:
        """metadata: columns item_id and properties, or None for no properties at all."""
        module = load_engine(engine)
        if metadata is None:
            empty = module.frames.Series([], dtype="int64")
            return cls(empty, module.arrays.zeros((0, 0), dtype="int8"), Words((), ()))
        flags = TextFlags("properties", "has_", max_properties)
        words = flags.fit([metadata])
        return cls(metadata["item_id"], flags.matrix(metadata, words), words)


class PairBuilder:
    """From the tables of a chunk to one frame of its pairs with every feature."""

    def __init__(
        self, books: Books, properties: Properties, num_folds: int, ctr_smoothing: float, target_smoothing: float
    ) -> None:
        self.books, self.properties, self.num_folds = books, properties, num_folds
        self.ctr_smoothing, self.target_smoothing = ctr_smoothing, target_smoothing

    def build(self, tables: Tables, carried: Mapping[str, Any] | None = None, first_clickout: int = 0) -> Any:
        """All pairs, clickout by clickout in time order, every list in shown order.

        carried: by family what earlier chunks left, None for the first chunk. first_clickout: number of the first.
        Beside the features: target, clickout, timestamp, step, session_id and `session`, its number.
        """
        chunk = Chunk(tables, self.books, self.num_folds, carried)
        clicks = self._of_clickouts(chunk)
        columns = self._from_clickouts(chunk, clicks) | self._from_pairs(chunk)
        columns |= self._relations(chunk, clicks) | self._history(chunk, clicks.pop("visit_starts"))
        columns |= self._flags(chunk)
        columns["clickout"] = chunk.of_pair + first_clickout
        ranked = chunk.engine.frame({name: columns[name] for name in ("clickout", "item_ctr")}, chunk.tables.pairs)
        rank = RankWithinGroup(("clickout",), "item_ctr", "item_ctr_rank", descending=True)
        columns["item_ctr_rank"] = rank(ranked)["item_ctr_rank"]
        return chunk.engine.frame(columns, chunk.tables.pairs)

    def _of_clickouts(self, chunk: Chunk) -> dict[str, Any]:
        """What is alike for all candidates of a list, by clickout: history of session and user, target means."""
        row, click, xp = chunk.row, chunk.click, chunk.xp
        sessions, users = chunk.sessions(), chunk.users()
        own, moment = sessions.codes["rows"][click["row"]], click["moment"]

        def last(name: str, values: Any, where: Any = None) -> Any:
            return (
                sessions.events("rows", row["moment"], where).ask(own, moment).last(sessions.before(name, LAST), values)
            )

        every = sessions.events("rows", row["moment"]).ask(own, moment)
        found = {
            f"last_{name}": last(name, row["item_id"], chunk.acted(actions) & (row["item_id"] >= 0))
            for name, actions in LAST_ITEMS.items()
        }
        found["visit_starts"] = (row["item_id"] >= 0) & (chunk.previous_items(sessions) != row["item_id"])
        found["sort_order"] = last("sort_order", row["sort_order"], chunk.sort_changes())
        found["last_action"] = every.last(sessions.before("last_action", LAST), row["action"])
        found["last_at"] = every.last(sessions.before("last_at", LAST), row["timestamp"])
        # A session's first row may be the clickout itself.
        start = every.first(sessions.before("start", FIRST), row["timestamp"])
        found["start"] = xp.where(start == NONE, click["timestamp"], start)
        found["session_actions"] = every.count(sessions.before("actions"))
        asked = chunk.acted((CLICKOUT,))
        found["session_clickouts"] = every.sum(sessions.before("clickouts"), asked.astype("int64"))
        codes = users.codes["clickouts"]
        found["user_clickouts"] = (
            users.events("rows", row["moment"]).ask(codes, moment).count(users.before("clickouts"))
        )
        clicked = users.events("clickouts", moment, chunk.labelled).ask(codes, moment)
        found["permille"] = clicked.sum(users.before("permille"), click["clicked_price_permille"])
        found["permille_known"] = clicked.count(users.before("known"))
        return found | self._target_means(chunk)

    def _target_means(self, chunk: Chunk) -> dict[str, Any]:
        """Out of fold: each mean is of earlier lists of other folds; TargetEncoding states the formula."""
        out_of_fold = {}
        for name in (*ENCODED, "all"):
            whole = self._mean_sums(chunk, chunk.users() if name == "user" else chunk.encoded(name, False))
            own = self._mean_sums(chunk, chunk.encoded(name, True))
            out_of_fold[name] = whole[0] - own[0], whole[1] - own[1]
        return {
            f"{name}_target_mean": _smoothed(chunk, *out_of_fold[name], *out_of_fold["all"], self.target_smoothing)
            for name in ENCODED
        }

    def _mean_sums(self, chunk: Chunk, family: Family) -> tuple[Any, Any]:
        """int64 [clickouts]: hits and trials of each one's group before it."""
        asked = family.events("clickouts", chunk.click["moment"], chunk.labelled).ask(
            family.codes["clickouts"], chunk.click["moment"]
        )
        return asked.count(family.before("hits")), asked.sum(family.before("trials"), chunk.click["list_length"])

    def _from_clickouts(self, chunk: Chunk, clicks: dict[str, Any]) -> dict[str, Any]:
        """The clickout's columns on each of its pairs."""
        engine, xp, of_pair = chunk.engine, chunk.xp, chunk.of_pair
        numbers = chunk.click | {
            name: xp.where(clicks[name] < 0, -1, clicks[name]) for name in ("sort_order", "last_action")
        }
        found = {name: self.books.decode(book, numbers[number][of_pair]) for name, (number, book) in TEXTS.items()}
        found["timestamp"], found["session"] = chunk.click["timestamp"][of_pair], chunk.click["session"][of_pair]
        found["step"] = engine.array(chunk.tables.clickouts["step"])[of_pair]
        for name in ("session_actions", "session_clickouts", "user_clickouts"):
            found[name] = clicks[name].astype("float32")[of_pair]
        for name in ENCODED:
            found[f"{name}_target_mean"] = clicks[f"{name}_target_mean"].take(of_pair).reset_index(drop=True)
        since = (chunk.click["timestamp"] - clicks["last_at"]).astype("float32")
        found["seconds_since_last_action"] = _column(chunk, since[of_pair], (clicks["last_at"] != NONE)[of_pair])
        found["seconds_since_session_start"] = (chunk.click["timestamp"] - clicks["start"]).astype("float32")[of_pair]
        found["session_step"] = found["step"].astype("float32")
        return found

    def _from_pairs(self, chunk: Chunk) -> dict[str, Any]:
        """The candidate and its price in the list."""
        pairs = chunk.tables.pairs
        names = ("price_minus_list_mean", "price_over_list_mean", "price_minus_list_min", "price_rank")
        found = {name: pairs[name] for name in (*names, "item_id", "target")}
        found |= {name: pairs[name].astype("float32") for name in ("price", "candidate_order", "list_length")}
        found["position"] = pairs["candidate_order"]
        return found

    def _relations(self, chunk: Chunk, clicks: dict[str, Any]) -> dict[str, Any]:
        """The candidate against what the session did last, and its price rank against what the user takes."""
        engine, of_pair, pairs = chunk.engine, chunk.of_pair, chunk.tables.pairs
        found = {
            f"is_last_{name}": (chunk.item == clicks[f"last_{name}"][of_pair]).astype("float32") for name in LAST_ITEMS
        }
        order, price = places_in_list(chunk.tables, clicks["last_interacted"], clicks["last_viewed"])
        for output, column, there in (
            ("order_minus_last_interacted", "candidate_order", order[of_pair]),
            ("price_minus_last_viewed", "price", self._viewed_price(chunk, clicks["last_viewed"], price)[of_pair]),
        ):
            difference = (engine.array(pairs[column]) - there).astype("float32")
            found[output] = _column(chunk, difference, there >= 0)
        usual = ratio(chunk.tables.clickouts, clicks["permille"].astype("float64"), clicks["permille_known"])
        usual = usual.take(of_pair).reset_index(drop=True)
        found["price_rank_minus_user_mean"] = (pairs["price_permille"] - usual).astype("float32")
        return found

    def _viewed_price(self, chunk: Chunk, viewed: Any, here: Any) -> Any:
        """int64 [clickouts]: the last viewed item's price: `here`, else when last shown in the session; -1 for none."""
        pairs = chunk.tables.pairs
        session, asks = chunk.click["session"], (here < 0) & (viewed >= 0)
        asked_of = chunk.xp.zeros(len(chunk.books.frames["session_id"]), dtype=bool)
        asked_of[session[asks]] = True
        shown_in = chunk.xp.where(asked_of[session], session, -1)[chunk.of_pair]  # few sessions are asked of
        family = chunk.family(
            "session_item", pairs=chunk.item_key(shown_in, chunk.item), viewed=chunk.item_key(session, viewed)
        )
        seen = family.events("pairs", chunk.at).ask(family.codes["viewed"], chunk.click["moment"])
        earlier = seen.last(family.before("price", LAST), chunk.engine.array(pairs["price"]))
        return chunk.xp.where(here >= 0, here, chunk.xp.where(earlier == NONE, -1, earlier))

    def _history(self, chunk: Chunk, visit_starts: Any) -> dict[str, Any]:
        """Counts of the candidate before the clickout, and its click-through."""
        moment, target = chunk.row["moment"], target_counts(chunk)
        labelled = chunk.labelled[chunk.of_pair].astype("int64")
        prior = self._mean_of_pairs(chunk)
        found = {}
        for name in ITEM_GROUPS:
            family = chunk.items(name)
            prefix = f"{name}_" if name else ""
            asked = family.events("rows", moment).ask(family.codes["pairs"], chunk.at)
            found[f"{prefix}item_count"] = asked.count(family.before("count")).astype("float32")
            if name == "session":
                clicks = (chunk.acted((CLICKOUT,)) & (chunk.row["item_id"] >= 0)).astype("int64")
                found["session_item_visits"] = asked.sum(family.before("visits"), visit_starts).astype("float32")
                found["session_item_clicks"] = asked.sum(family.before("clicks"), clicks).astype("float32")
            if name in ("", "platform"):
                shown = family.events("pairs", chunk.at).ask_own()
                hits, trials = shown.sum(family.before("hits"), target), shown.sum(family.before("trials"), labelled)
                found[f"{prefix}item_ctr"] = _smoothed(
                    chunk, hits, trials, *prior, self.ctr_smoothing, chunk.tables.pairs
                )
            if not name:
                found["item_impressions"] = shown.count(family.before("impressions")).astype("float32")
        return found

    def _mean_of_pairs(self, chunk: Chunk) -> tuple[Any, Any]:
        """int64 [pairs]: clicks and candidates of all lists before each pair's."""
        click = chunk.click
        # A list may show the item clicked twice.
        clicked = tally(chunk.xp, chunk.of_pair[target_counts(chunk) > 0], len(chunk.fold))
        everyone = chunk.encoded("all", False)
        lists = everyone.events("clickouts", click["moment"], chunk.labelled).ask(
            everyone.codes["clickouts"], click["moment"]
        )
        hits = lists.sum(everyone.before("pair_hits"), clicked)
        return hits[chunk.of_pair], lists.sum(everyone.before("trials"), click["list_length"])[chunk.of_pair]

    def _flags(self, chunk: Chunk) -> dict[str, Any]:
        """Item properties as 0/1 columns, and the share of the filters set that the candidate fulfils."""
        engine, xp, properties = chunk.engine, chunk.xp, self.properties
        filters = self.books.frames["current_filters"]["value"]
        texts = engine.frames.DataFrame({"properties": filters})
        wanted = TextFlags("properties", "has_").matrix(texts, properties.words)
        number = chunk.click["filters"][chunk.of_pair]
        matched = xp.zeros(len(number), dtype="int64")
        found = {}
        position = engine.positions_in(chunk.tables.pairs["item_id"], properties.item_id)
        for column, name in enumerate(properties.words.columns):
            has = properties.has[:, column][xp.clip(position, 0, None)] * (position >= 0)
            matched += has * wanted[:, column][number]
            found[name] = has.astype("float32")
        bars = (filters.str.count(r"\|") + 1).where(filters != NO_FILTERS, 0)
        filters_set = engine.array(bars).astype("int64")[number]
        found["filters_matched"] = (matched / xp.maximum(filters_set, 1)).astype("float32")
        return found


def _column(chunk: Chunk, values: Any, valid: Any) -> Any:
    return chunk.engine.series(values, chunk.tables.pairs, valid=valid)


def _smoothed(
    chunk: Chunk, hits: Any, trials: Any, all_hits: Any, all_trials: Any, smoothing: float, like: Any = None
) -> Any:
    """(hits + smoothing * prior) / (trials + smoothing), the prior being the same quotient over all groups."""
    prior = all_hits / chunk.xp.maximum(all_trials, 1)
    known = all_trials > 0
    like = chunk.tables.clickouts if like is None else like
    return ratio(like, hits + smoothing * prior, (trials + smoothing) * known)
