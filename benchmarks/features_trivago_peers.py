"""The Trivago peers of benchmarks/features.py, by hand: recipe `trivago` in pandas and Polars, raw files to Parquet.

    python -m benchmarks.features_trivago_peers FORM RAW OUT

As benchmarks/features_peers.py, with train, valid, test and score. RAW holds train.csv, test.csv, item_metadata.csv and
hashes.parquet, XXH64 of each session's id, which says its fold: neither library has it.

What was known of a group before a moment is a search in group and moment as one number in pandas, as NumPy can, and a
`join_asof` to running sums in Polars.
"""

from __future__ import annotations

import re

import numpy as np

from benchmarks.features_peers import main

CLICKOUT, SEARCH, SORT_CHANGE = "clickout item", "search for item", "change of sort order"
VIEWS = ("interaction item image", "interaction item info", "interaction item deals", "interaction item rating")
LAST_ITEMS = {"interacted": (*VIEWS, CLICKOUT, SEARCH), "viewed": VIEWS, "clicked": (CLICKOUT,), "searched": (SEARCH,)}
TEXT = ("user_id", "session_id", "action_type", "reference", "platform", "city", "device", "current_filters",
        "impressions", "prices")  # fmt: skip
ENCODED = {"filters": "current_filters", "city": "city", "device": "device", "user": "user_id"}
GROUPS = {"": None, "user_": "user_id", "session_": "session_id", "city_": "city", "platform_": "platform"}
FOLDS, CTR_SMOOTHING, TARGET_SMOOTHING, MAX_PROPERTIES, SHARES = 5, 20.0, 400.0, 200, (0.8, 0.8 + 0.1)
NONE = -(2**62)


def flag_names(words: list[str]) -> list[str]:
    """A column's name for each word, which of the words of a catalogue no two share."""
    return ["has_" + re.sub(r"\W+", "_", word.lower()).strip("_") for word in words]


def moments_until(times: np.ndarray) -> list[int]:
    """The times by which train, and train and valid, have their share; times: of the labelled clickouts, ascending."""
    return [int(times[max(int(len(times) * share) - 1, 0)]) for share in SHARES]


class Searched:
    """Events by group and moment; `ask` finds those of each asker's group before its moment."""

    def __init__(self, groups: np.ndarray, moments: np.ndarray, where: np.ndarray | None = None) -> None:
        rows = np.flatnonzero(groups >= 0 if where is None else where & (groups >= 0))
        keys = groups[rows] * SPAN + moments[rows]
        order = np.argsort(keys, kind="stable")
        self.rows, self.keys = rows[order], keys[order]

    def ask(self, groups: np.ndarray, moments: np.ndarray) -> Searched:
        self.start = np.searchsorted(self.keys, groups * SPAN)
        self.stop = np.where(groups >= 0, np.searchsorted(self.keys, groups * SPAN + moments), self.start)
        return self

    def count(self) -> np.ndarray:
        return self.stop - self.start

    def sum(self, values: np.ndarray) -> np.ndarray:
        running = np.concatenate([[0], np.cumsum(values[self.rows].astype("int64"))])
        return running[self.stop] - running[self.start]

    def last(self, values: np.ndarray) -> np.ndarray:
        return self._at(values, self.stop - 1)

    def first(self, values: np.ndarray) -> np.ndarray:
        return self._at(values, self.start)

    def _at(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        if not len(self.rows):
            return np.full(len(places), NONE)
        found = values[self.rows[np.clip(places, 0, len(self.rows) - 1)]].astype("int64")
        return np.where(self.stop > self.start, found, NONE)


SPAN = 1 << 31  # above every moment


def smoothed(hits, trials, all_hits, all_trials, smoothing: float) -> np.ndarray:
    """float32; null where nothing was known of any group."""
    prior = all_hits / np.maximum(all_trials, 1)
    return np.where(all_trials > 0, (hits + smoothing * prior) / (trials + smoothing), np.nan).astype("float32")


def with_pandas(raw: str, out: str) -> None:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    types = dict.fromkeys(TEXT, "str") | {"timestamp": "int64", "step": "int64"}
    how = {"engine": "pyarrow", "dtype": types, "keep_default_na": False, "na_values": [""]}
    log = pd.concat([pd.read_csv(f"{raw}/{name}.csv", **how) for name in ("train", "test")], ignore_index=True)
    codes = {name: pd.factorize(log[name])[0] for name in ("user_id", "session_id", "platform", "city", "device")}
    codes["current_filters"], filters = pd.factorize(log["current_filters"].fillna("none"))
    actions, names = pd.factorize(log["action_type"])
    sort_by, sorts = pd.factorize(log["reference"].where(log["action_type"] == SORT_CHANGE))
    session, sessions = pd.factorize(log["session_id"])
    hashes = pd.read_parquet(f"{raw}/hashes.parquet").set_index("session_id")["hash"].reindex(sessions).to_numpy()
    order = np.lexsort([hashes[session], log["step"].to_numpy(), log["timestamp"].to_numpy()])
    log = log.take(order).reset_index(drop=True)
    codes = {name: column[order] for name, column in codes.items()}
    actions, sort_by, at, step = actions[order], sort_by[order], *(log[n].to_numpy() for n in ("timestamp", "step"))
    moment = np.concatenate([[0], np.cumsum((np.diff(at) != 0) | (np.diff(step) != 0))])

    def acted(wanted: tuple[str, ...]) -> np.ndarray:
        return np.isin(names, wanted)[actions]

    clicks, about = acted((CLICKOUT,)), acted(LAST_ITEMS["interacted"]) & log["reference"].notna().to_numpy()
    item = np.full(len(log), -1)
    digits = log["reference"][about].str.isdigit()
    item[np.flatnonzero(about)[digits.to_numpy()]] = log["reference"][about][digits].astype("int64")

    # Clickouts with their candidates; those whose reference was not shown are left out.
    place = np.flatnonzero(clicks & log["impressions"].notna().to_numpy())

    def lists(name: str) -> tuple[np.ndarray, np.ndarray]:
        found = pc.split_pattern(pa.array(log[name].take(place)), "|")
        return pc.list_value_length(found).to_numpy(zero_copy_only=False), pc.cast(
            pc.list_flatten(found), "int64"
        ).to_numpy(zero_copy_only=False)

    sizes, shown = lists("impressions")
    price = lists("prices")[1]
    of = np.repeat(np.arange(len(place)), sizes)
    hit = shown == item[place][of]
    labelled = log["reference"].notna().to_numpy()[place]
    stays = ~labelled
    stays[of[hit]] = True
    kept = stays[of]
    shown, price, hit, sizes, place, labelled = (
        shown[kept],
        price[kept],
        hit[kept],
        sizes[stays],
        place[stays],
        labelled[stays],
    )
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    of = np.repeat(np.arange(len(place)), sizes)
    number = np.arange(len(of)) - starts[of] + 1
    of_row = place[of]
    size = sizes[of]
    total, least = np.add.reduceat(price, starts), np.minimum.reduceat(price, starts)

    def rank(values: np.ndarray) -> np.ndarray:
        by = np.lexsort([values, of])
        fresh = np.concatenate([[True], (np.diff(values[by]) != 0) | (np.diff(of[by]) != 0)])
        places = np.empty(len(of), dtype="int64")
        places[by] = np.maximum.accumulate(np.where(fresh, np.arange(len(of)), 0))
        return places - starts[of] + 1

    price_rank = rank(price)
    permille = (price_rank - 1) * 1000 // np.maximum(size - 1, 1)
    clicked_permille = np.full(len(place), 1 << 40)
    np.minimum.at(clicked_permille, of[hit], permille[hit])
    clicked_permille[clicked_permille == 1 << 40] = 0
    target = (hit & labelled[of]).astype("int64")
    told = labelled[of].astype("int64")

    click = {name: column[place] for name, column in codes.items()}
    when, ids = moment[place], codes["session_id"]
    asked = click["session_id"]
    every = Searched(ids, moment).ask(asked, when)
    last_at, start = every.last(at), every.first(at)
    start = np.where(start == NONE, at[place], start)
    last_action, session_actions = every.last(actions), every.count()
    last_items = {name: Searched(ids, moment, acted(wanted) & (item >= 0)).ask(asked, when).last(item)
                  for name, wanted in LAST_ITEMS.items()}  # fmt: skip
    sort_order = Searched(ids, moment, acted((SORT_CHANGE,))).ask(asked, when).last(sort_by)
    before = Searched(ids, moment, item >= 0).ask(ids, moment).last(item)
    visits = (item >= 0) & (before != item)
    by_user = Searched(click["user_id"], when, labelled).ask(click["user_id"], when)
    usual = by_user.sum(clicked_permille) / np.where(by_user.count() > 0, by_user.count(), np.nan)

    fold = (hashes[session][order] % FOLDS)[place]

    def means(groups: np.ndarray) -> list[np.ndarray]:
        """Of lists of other folds: hits and trials."""
        found = []
        for keys in (groups, np.where(groups >= 0, groups * FOLDS + fold, -1)):
            known = Searched(keys, when, labelled).ask(keys, when)
            found.append((known.count(), known.sum(sizes)))
        return [whole - own for whole, own in zip(*found, strict=True)]

    nothing = np.zeros(len(place), dtype="int64")
    everyone = means(nothing)
    encoded = {
        f"{name}_target_mean": smoothed(*means(click[column]), *everyone, TARGET_SMOOTHING)
        for name, column in ENCODED.items()
    }
    lists_before = Searched(nothing, when, labelled).ask(nothing, when)
    prior = [lists_before.sum(np.bincount(of, target, len(place)).astype("int64"))[of], lists_before.sum(sizes)[of]]

    when_of = when[of]
    made: dict[str, np.ndarray] = {}
    for prefix, column in GROUPS.items():
        of_rows, of_pairs = item, shown
        if column:
            of_rows = np.where((item >= 0) & (codes[column] >= 0), (codes[column] << 32) + item, -1)
            of_pairs = np.where(click[column][of] >= 0, (click[column][of] << 32) + shown, -1)
        both = pd.factorize(np.concatenate([of_rows, of_pairs]))[0]
        rows, pairs = np.where(of_rows >= 0, both[: len(item)], -1), np.where(of_pairs >= 0, both[len(item) :], -1)
        known = Searched(rows, moment).ask(pairs, when_of)
        made[f"{prefix}item_count"] = known.count()
        if prefix == "session_":
            made["session_item_visits"], made["session_item_clicks"] = known.sum(visits), known.sum(clicks)
        if prefix in ("", "platform_"):
            own = Searched(pairs, when_of).ask(pairs, when_of)
            made[f"{prefix}item_ctr"] = smoothed(own.sum(target), own.sum(told), *prior, CTR_SMOOTHING)
            if not prefix:
                made["item_impressions"] = own.count()

    def in_list(last: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The least value at the item that was last, NONE where it was not shown."""
        found = np.full(len(place), 1 << 60)
        same = shown == last[of]
        np.minimum.at(found, of[same], values[same])
        return np.where(found == 1 << 60, NONE, found)

    order_there, price_there = in_list(last_items["interacted"], number), in_list(last_items["viewed"], price)
    viewed = last_items["viewed"]
    asks = (price_there == NONE) & (viewed >= 0)
    wanted = np.zeros(len(sessions), dtype=bool)
    wanted[asked[asks]] = True
    some = np.flatnonzero(wanted[asked][of])
    both = pd.factorize(np.concatenate([(asked[of[some]] << 32) + shown[some], (asked[asks] << 32) + viewed[asks]]))[0]
    seen = Searched(both[: len(some)], when_of[some]).ask(both[len(some) :], when[asks])
    price_there[asks] = seen.last(price[some])
    ctr = np.where(np.isnan(made["item_ctr"]), 2.0, -made["item_ctr"].astype("float64"))

    properties = pd.read_csv(f"{raw}/item_metadata.csv", dtype={"item_id": "int64", "properties": "str"},
                             keep_default_na=False, na_values=[""], engine="pyarrow")  # fmt: skip
    words = properties["properties"].str.split("|").explode()
    counts = words[words != ""].value_counts().rename_axis("word").reset_index(name="n")
    counts = counts.sort_values(["n", "word"], ascending=[False, True])["word"].head(MAX_PROPERTIES).tolist()

    def flags(texts) -> np.ndarray:
        """int8 [texts, words]."""
        split = texts.str.split("|").explode()
        places = pd.Index(counts).get_indexer(split)
        found = np.zeros((len(texts), len(counts)), dtype="int8")
        found[split.index.to_numpy()[places >= 0], places[places >= 0]] = 1
        return found

    has = flags(properties["properties"])
    row_of = pd.Index(properties["item_id"]).get_indexer(shown)
    texts = pd.Series(filters)
    wanted_words, set_words = flags(texts), (texts.str.count(r"\|") + 1).where(texts != "none", 0).to_numpy()
    filter_of = click["current_filters"][of]
    has = has[np.clip(row_of, 0, None)] * (row_of >= 0).astype("int8")[:, None]
    matched = np.zeros(len(of), dtype="int64")
    for column in range(len(counts)):
        matched += has[:, column] * wanted_words[:, column][filter_of]

    def null(values: np.ndarray, known: np.ndarray) -> np.ndarray:
        return np.where(known, values, np.nan)

    numbers = {
        "price": price, "price_minus_list_mean": (price * size - total[of]) / size,
        "price_over_list_mean": price * size / np.where(total > 0, total, 1)[of],
        "price_minus_list_min": price - least[of], "price_rank": price_rank,
        "price_minus_last_viewed": null(price - price_there[of], price_there[of] >= 0),
        "price_rank_minus_user_mean": permille - usual.astype("float32")[of], "candidate_order": number,
        "list_length": size, "order_minus_last_interacted": null(number - order_there[of], order_there[of] >= 0),
        **{f"is_last_{name}": shown == last[of] for name, last in last_items.items()},
        "filters_matched": matched / np.maximum(set_words, 1)[filter_of], **made,
        "item_ctr_rank": null(rank(ctr), ctr < 2), **{name: column[of] for name, column in encoded.items()},
        "session_actions": session_actions[of],
        "session_clickouts": every.sum(clicks)[of],
        "user_clickouts": Searched(codes["user_id"], moment, clicks).ask(click["user_id"], when).count()[of],
        "seconds_since_last_action": null(at[place] - last_at, last_at != NONE)[of],
        "seconds_since_session_start": (at[place] - start)[of], "session_step": step[of_row],
        **{name: has[:, column] for column, name in enumerate(flag_names(counts))},
    }  # fmt: skip

    def texts_of(column: str):
        return log[column].take(of_row).reset_index(drop=True)

    def decoded(values: np.ndarray, which):
        return pd.Series(pd.array(which, dtype="str").take(np.where(values < 0, -1, values), allow_fill=True)).take(of)

    whole = pd.DataFrame(
        {
            "user_id": texts_of("user_id"), "item_id": shown, "platform": texts_of("platform"),
            "city": texts_of("city"), "device": texts_of("device"),
            "current_filters": texts_of("current_filters").fillna("none"),
            "sort_order": decoded(sort_order, sorts).reset_index(drop=True),
            "last_action": decoded(last_action, names).reset_index(drop=True), "position": number.astype("int32"),
            **{name: column.astype("float32") for name, column in numbers.items()},
            "target": np.where(labelled[of], hit, np.nan).astype("float32"), "clickout": of, "timestamp": at[of_row],
            "session_id": texts_of("session_id"), "step": step[of_row],
        },
        copy=False,
    )  # fmt: skip
    until = moments_until(at[place][labelled])
    ends = np.zeros(len(sessions), dtype="int64")
    np.maximum.at(ends, ids, at)
    ends = ends[asked][of]
    known = labelled[of]
    for split, rows in {"train": known & (ends <= until[0]), "valid": known & (ends > until[0]) & (ends <= until[1]),
                        "test": known & (ends > until[1]), "score": ~known}.items():  # fmt: skip
        whole[rows].to_parquet(f"{out}/{split}.parquet", index=False, compression="zstd", compression_level=1)


def with_polars(raw: str, out: str) -> None:
    import polars as pl

    col, lit = pl.col, pl.lit
    texts_of = ("platform", "city", "device", "current_filters")
    coded = {column: f"{column}_code" for column in ("user_id", "session_id", *texts_of)}
    types = dict.fromkeys(TEXT, pl.String) | {"timestamp": pl.Int64, "step": pl.Int64}
    action = col("action_type")
    log = (
        pl.concat([pl.scan_csv(f"{raw}/{name}.csv", schema_overrides=types) for name in ("train", "test")])
        .with_columns(current_filters=col("current_filters").fill_null("none"))
        .join(pl.scan_parquet(f"{raw}/hashes.parquet"), on="session_id", how="left")
        .sort("timestamp", "step", "hash")
        .with_columns(
            moment=pl.struct("timestamp", "step").rle_id().cast(pl.Int64),
            click=action == CLICKOUT,
            item=pl.when(action.is_in(LAST_ITEMS["interacted"]) & col("reference").str.contains(r"^[0-9]+$")).then(
                col("reference").cast(pl.Int64, strict=False)
            ),
            **{code: col(name).cast(pl.Categorical).to_physical().cast(pl.Int64) for name, code in coded.items()},
        )
        .collect()
    )  # fmt: skip

    def ask(queries, events, by, sums=None, last=None, prefix="") -> pl.LazyFrame:
        """Of each query sums and last values of earlier events with its key; by: an expression of both."""
        sums, last = sums or {}, last or {}
        known = events.lazy().select(
            by.alias("key"), "moment", *[value.cast(pl.Int64).alias(name) for name, value in sums.items()],
            *[value.alias(name) for name, value in last.items()],
        ).drop_nulls("key").select(
            "key", "moment", *[col(name).cum_sum().over("key") for name in sums], *last
        )  # fmt: skip
        found = queries.lazy().select(by.alias("key"), "moment").join_asof(
            known, on="moment", by="key", allow_exact_matches=False, check_sortedness=False
        )  # fmt: skip
        return found.select(*[col(name).fill_null(0).alias(prefix + name) for name in sums],
                            *[col(name).alias(prefix + name) for name in last])  # fmt: skip

    one, session, user, item = lit(1), col("session_id_code"), col("user_id_code"), col("item")
    before = ask(log, log.filter(item.is_not_null()), session, last={"before": item}).collect()
    log = log.with_columns(visit=item.is_not_null() & item.ne_missing(before["before"]))

    clickouts = (
        log.lazy()
        .filter(col("click") & col("impressions").is_not_null())
        .with_columns(
            items=col("impressions").str.split("|").cast(pl.List(pl.Int64)),
            prices=col("prices").str.split("|").cast(pl.List(pl.Int64)),
            labelled=col("reference").is_not_null(),
        )
        .filter(~col("labelled") | col("items").list.contains(item.fill_null(-1)))
        .with_row_index("clickout")
        .with_columns(
            size=col("items").list.len().cast(pl.Int64), total=col("prices").list.sum(), least=col("prices").list.min(),
            fold=((col("hash") % FOLDS) + FOLDS) % FOLDS, clicked=item.fill_null(-1),
        )
        .drop("item")
        .collect()
    )  # fmt: skip
    pairs = (
        clickouts.lazy()
        .select("clickout", "moment", "labelled", "clicked", "size", "items", "prices", *coded.values())
        .explode("items", "prices")
        .rename({"items": "item", "prices": "price"})
        .with_columns(
            number=pl.int_range(pl.len()).over("clickout") + 1,
            price_rank=col("price").rank("min").over("clickout").cast(pl.Int64),
            hit=item == col("clicked"),
        )
        .with_columns(
            permille=(col("price_rank") - 1) * 1000 // pl.max_horizontal(col("size") - 1, lit(1)),
            target=(col("hit") & col("labelled")).cast(pl.Int64),
        )
        .collect()
    )  # fmt: skip
    outcomes = pairs.lazy().group_by("clickout", maintain_order=True).agg(
        clicked_permille=col("permille").filter(col("hit")).min().fill_null(0), clicks=col("target").sum()
    ).drop("clickout").collect()  # fmt: skip
    clickouts = pl.concat([clickouts, outcomes], how="horizontal")

    known = clickouts.filter("labelled")
    plans = {
        "every": ask(clickouts, log.with_columns(first=col("timestamp").first().over(session)), session,
                     {"actions": one, "clickouts": col("click")},
                     {"last_at": col("timestamp"), "start": col("first"), "last_action": action}),
        "sort": ask(clickouts, log.filter(action == SORT_CHANGE), session, last={"sort_order": col("reference")}),
        "user": ask(clickouts, log.filter("click"), user, {"user_clickouts": one}),
        "usual": ask(clickouts, known, user, {"permille": col("clicked_permille"), "known": one}),
        "all": ask(clickouts, known, lit(0), {"pair_hits": col("clicks"), "pair_trials": col("size")}),
        **{f"last_{name}": ask(clickouts, log.filter(action.is_in(wanted) & item.is_not_null()), session,
                               last={f"last_{name}": item}) for name, wanted in LAST_ITEMS.items()},
    }  # fmt: skip
    for name in (*ENCODED, "all"):
        key = lit(0) if name == "all" else col(coded[ENCODED[name]])
        for part, by in (("whole", key), ("own", key * FOLDS + col("fold"))):
            plans[f"{name}_{part}"] = ask(
                clickouts, known, by, {"hits": one, "trials": col("size")}, prefix=f"{name}_{part}_"
            )
    clickouts = pl.concat([clickouts, *pl.collect_all(list(plans.values()))], how="horizontal")

    def smooth(hits: pl.Expr, trials: pl.Expr, all_hits: pl.Expr, all_trials: pl.Expr, k: float) -> pl.Expr:
        return pl.when(all_trials > 0).then((hits + k * all_hits / all_trials) / (trials + k)).cast(pl.Float32)

    def others(name: str) -> list[pl.Expr]:
        return [col(f"{name}_whole_{kind}") - col(f"{name}_own_{kind}") for kind in ("hits", "trials")]

    viewed = clickouts.lazy().select(session, "moment", item=col("last_viewed"))
    of_session = (session * 2**32) + item
    in_list = {
        name: pairs.lazy().select("clickout", "item", value).join(
            clickouts.lazy().select("clickout", item=col(f"last_{last}")), on=["clickout", "item"], how="semi"
        ).group_by("clickout").agg(col(value).min().alias(name))
        for name, last, value in (("order_there", "interacted", "number"), ("price_there", "viewed", "price"))
    }  # fmt: skip
    asked = pairs.lazy().join(viewed.filter(item.is_not_null()), on=["session_id_code", "item"], how="semi",
                              maintain_order="left").collect()  # fmt: skip
    seen = ask(viewed.collect(), asked, of_session, last={"price_seen": col("price")}).collect()
    clickouts = (
        pl.concat([clickouts, seen], how="horizontal")
        .lazy()
        .join(in_list["order_there"], on="clickout", how="left", maintain_order="left")
        .join(in_list["price_there"], on="clickout", how="left", maintain_order="left")
        .with_columns(
            price_there=pl.coalesce("price_there", "price_seen"),
            usual=(col("permille") / col("known")).cast(pl.Float32).fill_nan(None),
            since=(col("timestamp") - col("last_at")).cast(pl.Float32),
            since_start=(col("timestamp") - pl.coalesce("start", "timestamp")).cast(pl.Float32),
            **{f"{name}_target_mean": smooth(*others(name), *others("all"), TARGET_SMOOTHING) for name in ENCODED},
        )
        .collect()
    )

    counts = {}
    for prefix, column in GROUPS.items():
        by = item if column is None else col(coded[column]) * 2**32 + item
        sums = {"item_count": one}
        if prefix == "session_":
            sums |= {"item_visits": col("visit"), "item_clicks": col("click")}
        counts[prefix] = ask(pairs, log, by, sums, prefix=prefix)
        if prefix in ("", "platform_"):
            sums = {"hits": col("target"), "trials": col("labelled"), "shown": one}
            counts[f"{prefix}own"] = ask(pairs, pairs, by, sums, prefix=prefix)
    pairs = pl.concat([pairs, *pl.collect_all(list(counts.values()))], how="horizontal")

    metadata = pl.read_csv(f"{raw}/item_metadata.csv", schema_overrides={"properties": pl.String})
    metadata = metadata.select(item="item_id", words=col("properties").fill_null("").str.split("|"))
    words = (
        metadata.select(word=col("words").explode()).filter(col("word") != "").group_by("word").len()
        .sort("len", "word", descending=[True, False]).head(MAX_PROPERTIES)["word"].to_list()
    )  # fmt: skip
    names = flag_names(words)
    flags = metadata.select("item", *[col("words").list.contains(word).cast(pl.Float32).alias(name)
                                      for word, name in zip(words, names, strict=True)])  # fmt: skip
    filters = coded["current_filters"]
    texts = clickouts.select(filters, wanted=col("current_filters").str.split("|")).unique(filters)
    matched = (
        pairs.lazy().select(filters, "item").unique()
        .join(texts.lazy(), on=filters).join(metadata.lazy(), on="item", how="left")
        .select(
            filters, "item",
            filters_matched=pl.when(col("wanted").list.first() == "none").then(lit(0, pl.Float32)).otherwise(
                col("words").list.set_intersection("wanted").list.set_intersection(lit(words, pl.List(pl.String)))
                .list.len().fill_null(0) / col("wanted").list.len()
            ).cast(pl.Float32),
        )
    )  # fmt: skip
    ctr, prior = {}, (col("pair_hits"), col("pair_trials"))
    for prefix in ("", "platform_"):
        ctr[f"{prefix}item_ctr"] = smooth(col(f"{prefix}hits"), col(f"{prefix}trials"), *prior, CTR_SMOOTHING)
    price, size, total = col("price"), col("size"), col("total")
    of_list = ["clickout", "user_id", "session_id", *texts_of, "sort_order", "last_action", "timestamp",
               "step", "total", "least", "usual", "since", "since_start", "order_there", "price_there", "actions",
               "clickouts", "user_clickouts", "pair_hits", "pair_trials",
               *(f"last_{name}" for name in LAST_ITEMS), *(f"{name}_target_mean" for name in ENCODED)]  # fmt: skip
    numbers = {
        "price": price, "price_minus_list_mean": (price * size - total) / size,
        "price_over_list_mean": price * size / pl.when(total > 0).then(total).otherwise(1),
        "price_minus_list_min": price - col("least"), "price_rank": col("price_rank"),
        "price_minus_last_viewed": price - col("price_there"),
        "price_rank_minus_user_mean": col("permille") - col("usual"), "candidate_order": col("number"),
        "list_length": size, "order_minus_last_interacted": col("number") - col("order_there"),
        **{f"is_last_{name}": item.eq_missing(col(f"last_{name}")) for name in LAST_ITEMS},
        "filters_matched": col("filters_matched"),
        **{f"{prefix}item_count": col(f"{prefix}item_count") for prefix in GROUPS},
        "session_item_visits": col("session_item_visits"), "session_item_clicks": col("session_item_clicks"),
        "item_impressions": col("shown"), "item_ctr": col("item_ctr"),
        "item_ctr_rank": col("item_ctr").rank("min", descending=True).over("clickout"),
        "platform_item_ctr": col("platform_item_ctr"),
        **{f"{name}_target_mean": col(f"{name}_target_mean") for name in ENCODED},
        "session_actions": col("actions"), "session_clickouts": col("clickouts"),
        "user_clickouts": col("user_clickouts"), "seconds_since_last_action": col("since"),
        "seconds_since_session_start": col("since_start"), "session_step": col("step"),
        **{name: col(name).fill_null(0) for name in names},
    }  # fmt: skip
    ends = log.lazy().group_by("session_id").agg(ends=col("timestamp").max())
    until = moments_until(clickouts.filter("labelled")["timestamp"].to_numpy())
    whole = (
        pairs.lazy()
        .join(clickouts.lazy().select(of_list), on="clickout", how="left", maintain_order="left")
        .join(flags.lazy(), on="item", how="left", maintain_order="left")
        .join(matched, on=[filters, "item"], how="left", maintain_order="left")
        .join(ends, on="session_id", how="left", maintain_order="left")
        .with_columns(**ctr)
        .select(
            "user_id", *texts_of, "sort_order", "last_action", "labelled", "ends", item_id="item",
            position=col("number").cast(pl.Int32),
            **{name: value.cast(pl.Float32) for name, value in numbers.items()},
            target=pl.when("labelled").then(col("hit")).cast(pl.Float32), clickout=col("clickout").cast(pl.Int64),
            timestamp="timestamp", session_id="session_id", step="step",
        )
        .collect()
    )  # fmt: skip
    labelled, last = col("labelled"), col("ends")
    for split, rows in {"train": labelled & (last <= until[0]),
                        "valid": labelled & (last > until[0]) & (last <= until[1]),
                        "test": labelled & (last > until[1]), "score": ~labelled}.items():  # fmt: skip
        part = whole.filter(rows).drop("labelled", "ends")
        part.write_parquet(f"{out}/{split}.parquet", compression="zstd", compression_level=1)


FORMS = {"trivago_pandas": with_pandas, "trivago_polars": with_polars}

if __name__ == "__main__":
    main(FORMS)
