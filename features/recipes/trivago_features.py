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
from features.operators.text_flags import TextFlags

CLICKOUT, SEARCH_ITEM, SORT_CHANGE = "clickout item", "search for item", "change of sort order"
VIEWS = ("interaction item image", "interaction item info", "interaction item deals", "interaction item rating")
ITEM_ACTIONS = (*VIEWS, CLICKOUT, SEARCH_ITEM)
# (name of the flag and of the clickout column, which item events count)
LAST_ITEMS = {"interacted": ITEM_ACTIONS, "viewed": VIEWS, "clicked": (CLICKOUT,), "searched": (SEARCH_ITEM,)}
ENCODED = {"filters": "current_filters", "city": "city", "device": "device", "user": "user_id"}
NO_FILTERS = "none"


def prepare_log(log: Any) -> Any:
    """The log in order of (timestamp, step), with row, moment, item (-1 for none) and the codes session and user.

    Row order of the input does not matter; a null in `current_filters` becomes 'none'.
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
    out["row"] = xp.arange(len(out))
    changes = (xp.diff(engine.array(out["timestamp"])) != 0) | (xp.diff(engine.array(out["step"])) != 0)
    moment = xp.zeros(len(out), dtype="int64")
    moment[1:] = xp.cumsum(changes)
    out["moment"] = moment
    out["session"] = engine.codes(out["session_id"])
    out["user"] = engine.codes(out["user_id"])
    out["current_filters"] = out["current_filters"].fillna(NO_FILTERS)
    is_item = out["action_type"].isin(list(ITEM_ACTIONS)) & out["reference"].fillna("").str.isdigit()
    out["item"] = out["reference"].where(is_item, "-1").astype("int64")
    return out


class PairBuilder:
    """From a prepared log and the item metadata to one frame of pairs with every feature.

    Attributes after `build`: flag_names, the columns of item properties; not_in_list and without_list, clickouts
    that were left out because their reference is not among their impressions, or because nothing was shown.
    """

    def __init__(self, metadata: Any | None, max_properties: int | None, num_folds: int, smoothing: float) -> None:
        self.metadata, self.num_folds, self.smoothing = metadata, num_folds, smoothing
        self.flags = TextFlags("properties", "has_", max_properties)

    def build(self, log: Any) -> Any:
        """All pairs, clickout by clickout in time order, each list in shown order."""
        self.log = log
        self.item_events = log[log["item"] >= 0].reset_index(drop=True)
        clickouts, pairs = self._explode()
        clickouts = self._history(self._fates(clickouts, pairs))
        pairs = self._with_clickout_columns(pairs, clickouts)
        pairs = self._item_history(self._relations(pairs))
        return self._properties(pairs, clickouts)

    def _explode(self) -> tuple[Any, Any]:
        """Clickouts that stay and their pairs, with `target` (null where the reference is missing)."""
        asked = self.log[self.log["action_type"] == CLICKOUT]
        self.without_list = int(asked["impressions"].isna().sum())
        clickouts = asked[asked["impressions"].notna()].reset_index(drop=True)
        xp = engine_of(clickouts).arrays
        clickouts["clickout"] = xp.arange(len(clickouts))
        lists = {"impressions": ("item_id", "int64"), "prices": ("price", "int64")}
        kept = ("clickout", "item", "reference")
        pairs = ExplodeLists(lists, "candidate_order", ("clickout", "item"))(clickouts)
        del kept
        labelled = clickouts["reference"].notna()
        clickouts["labelled"] = labelled
        hit = (pairs["item_id"] == pairs["item"]).astype("int8")
        found = hit.groupby(pairs["clickout"]).max().sort_index()
        return clickouts, pairs
