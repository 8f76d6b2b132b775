"""The trivago recipe: features against a slow loop, nothing of the future in them, splits of whole sessions."""

from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import xxhash
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from gigabatch.features.engines import pandas as engine_pandas
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import read_files
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.trivago.chunk import ENCODED
from gigabatch.features.recipes.trivago.features import CATEGORICAL, CONTINUOUS
from gigabatch.features.recipes.trivago.log import LOG, VIEWS, survey
from gigabatch.features.recipes.trivago.recipe import METADATA, TrivagoRecipe, TrivagoSettings
from gigabatch.features.recipes.trivago.stream import split_of, split_times
from gigabatch.features.synthetic.trivago import write_synthetic_log
from tests.features.whole_log import build_pairs

KEY = ["session_id", "step", "candidate_order"]


def built(log, metadata):
    """Pairs by session, step and candidate, and the names of all features."""
    pairs, _, flags = build_pairs(log, metadata)
    names = [*CATEGORICAL, *CONTINUOUS, *flags]
    return pairs.sort_values(KEY).reset_index(drop=True), names


def read(folder):
    parts = [read_files("pandas", str(folder / f"{name}.csv"), LOG, null_values=("",)) for name in ("train", "test")]
    metadata = read_files("pandas", str(folder / "item_metadata.csv"), METADATA, null_values=("",))
    return pd.concat(parts, ignore_index=True), metadata


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trivago")
    write_synthetic_log(path, rows=4_000, seed=11)
    return path


@pytest.fixture(scope="module")
def raw(folder):
    return read(folder)


@pytest.fixture(scope="module")
def pairs_and_names(raw):
    return built(*raw)


def entries(text):
    return [int(entry) for entry in text.split("|")]


def item_of(row):
    wanted = row.action_type.startswith("interaction item") or row.action_type in ("clickout item", "search for item")
    return int(row.reference) if wanted and isinstance(row.reference, str) else None


class Past:
    """What a reader of the log remembers, row by row in order of (timestamp, step)."""

    def __init__(self):
        self.counts = defaultdict(int)
        self.sessions = defaultdict(list)  # earlier rows of the session
        self.lists = []  # earlier lists: (row, items, prices, clicked position or None)
        self.user_ranks = defaultdict(list)

    def add(self, row):
        item = item_of(row)
        if item is not None:
            last = self.last(row.session_id, lambda r: item_of(r) is not None)
            if last is None or item_of(last) != item:
                self.counts["visits", row.session_id, item] += 1
            for key in (item, ("user", row.user_id, item), ("session", row.session_id, item), ("city", row.city, item),
                        ("platform", row.platform, item)):  # fmt: skip
                self.counts[key] += 1
        if row.action_type == "clickout item":
            self.counts["user clickouts", row.user_id] += 1
            items, prices = entries(row.impressions), entries(row.prices)
            clicked = items.index(item) if item in items else None
            self.lists.append((row, items, prices, clicked))
            if clicked is not None:
                self.counts["clicks", row.session_id, item] += 1
                below = sum(price < prices[clicked] for price in prices)
                self.user_ranks[row.user_id].append(below * 1000 // max(len(prices) - 1, 1))
        self.sessions[row.session_id].append(row)

    def last(self, session, wanted):
        return next((row for row in reversed(self.sessions[session]) if wanted(row)), None)


def mean_of_past(past, wanted, key_of, key, smoothing):
    """Smoothed mean of hits over pairs of earlier lists: `key_of` gives each pair's key or None for every pair."""
    hits = trials = all_hits = all_trials = 0
    for row, items, _, clicked in past.lists:
        if clicked is None or not wanted(row):
            continue
        for place, item in enumerate(items):
            all_hits, all_trials = all_hits + (place == clicked), all_trials + 1
            if key_of(row, item) == key:
                hits, trials = hits + (place == clicked), trials + 1
    return (hits + smoothing * all_hits / all_trials) / (trials + smoothing) if all_trials else np.nan


def by_loop(past, row, folds, properties):
    """The features of every candidate of one clickout, from what came before it."""
    items, prices = entries(row.impressions), entries(row.prices)
    session = past.sessions[row.session_id]
    tests = {
        "interacted": lambda r: item_of(r) is not None,
        "viewed": lambda r: r.action_type in VIEWS and item_of(r) is not None,
        "clicked": lambda r: r.action_type == "clickout item" and item_of(r) is not None,
        "searched": lambda r: r.action_type == "search for item" and item_of(r) is not None,
    }
    lasts = {name: past.last(row.session_id, test) for name, test in tests.items()}
    lasts = {name: None if found is None else item_of(found) for name, found in lasts.items()}
    viewed = [p for r, its, ps, _ in past.lists if r.session_id == row.session_id
              for i, p in zip(its, ps, strict=True) if i == lasts["viewed"]]  # fmt: skip
    viewed_price = prices[items.index(lasts["viewed"])] if lasts["viewed"] in items else (viewed or [np.nan])[-1]
    usual = past.user_ranks[row.user_id]
    filters = [] if row.current_filters == "none" else row.current_filters.split("|")
    sort_order = past.last(row.session_id, lambda r: r.action_type == "change of sort order")
    shared = {
        "list_length": len(items),
        "session_actions": len(session),
        "session_clickouts": sum(r.action_type == "clickout item" for r in session),
        "user_clickouts": past.counts["user clickouts", row.user_id],
        "seconds_since_last_action": row.timestamp - session[-1].timestamp if session else np.nan,
        "seconds_since_session_start": row.timestamp - (session or [row])[0].timestamp,
        "session_step": row.step,
        "last_action": session[-1].action_type if session else None,
        "sort_order": None if sort_order is None else sort_order.reference,
        "current_filters": row.current_filters,
        "user_id": row.user_id,
        "platform": row.platform,
        "city": row.city,
        "device": row.device,
    }
    other_fold = lambda r: folds[r.session_id] != folds[row.session_id]  # noqa: E731
    for name, column in ENCODED.items():
        key_of = lambda r, _, column=column: getattr(r, column)  # noqa: E731
        shared[f"{name}_target_mean"] = mean_of_past(past, other_fold, key_of, getattr(row, column), 400.0)
    out = []
    for place, (item, price) in enumerate(zip(items, prices, strict=True), 1):
        rank = sum(p < price for p in prices)
        has = properties[item]
        shown = sum(i == item for _, its, _, _ in past.lists for i in its)
        out.append(shared | {
            "item_id": item, "position": place, "candidate_order": place, "price": price,
            "price_minus_list_mean": price - np.mean(prices), "price_over_list_mean": price / np.mean(prices),
            "price_minus_list_min": price - min(prices), "price_rank": rank + 1,
            "price_minus_last_viewed": price - viewed_price,
            "price_rank_minus_user_mean": rank * 1000 // max(len(prices) - 1, 1) - np.mean(usual) if usual else np.nan,
            "order_minus_last_interacted":
                place - 1 - items.index(lasts["interacted"]) if lasts["interacted"] in items else np.nan,
            **{f"is_last_{name}": float(item == last) for name, last in lasts.items()},
            "filters_matched": sum(f in has for f in filters) / max(len(filters), 1),
            "item_count": past.counts[item],
            **{f"{name}_item_count": past.counts[name, value, item] for name, value in
               (("user", row.user_id), ("session", row.session_id), ("city", row.city), ("platform", row.platform))},
            "session_item_visits": past.counts["visits", row.session_id, item],
            "session_item_clicks": past.counts["clicks", row.session_id, item],
            "item_impressions": shown,
            "item_ctr": mean_of_past(past, lambda r: True, lambda r, i: i, item, 20.0),
            "platform_item_ctr":
                mean_of_past(past, lambda r: True, lambda r, i: (r.platform, i), (row.platform, item), 20.0),
            "has": has,
        })  # fmt: skip
    for candidate in out:
        ctr = candidate["item_ctr"]
        better = sum(other["item_ctr"] > ctr for other in out)
        candidate["item_ctr_rank"] = np.nan if np.isnan(ctr) else 1 + better
    return out


def test_every_feature_equals_a_loop_over_earlier_rows(tmp_path):
    write_synthetic_log(tmp_path, rows=1_200, seed=23)
    log, metadata = read(tmp_path)
    pairs, names = built(log, metadata)
    # Folds are whole sessions: XXH64 of the session id, read as signed, modulo five.
    folds = {
        session: int(np.uint64(xxhash.xxh64_intdigest(session.encode())).view(np.int64)) % 5
        for session in log["session_id"]
    }
    properties = {i: set(text.split("|")) for i, text in metadata[["item_id", "properties"]].itertuples(index=False)}
    past, expected = Past(), []
    rows = list(log.fillna({"current_filters": "none"}).sort_values(["timestamp", "step"]).itertuples())
    ready = 0
    for row in rows:
        while (rows[ready].timestamp, rows[ready].step) < (row.timestamp, row.step):
            past.add(rows[ready])
            ready += 1
        if row.action_type == "clickout item":
            found = by_loop(past, row, folds, properties)
            expected += [candidate | {"session_id": row.session_id, "step": row.step} for candidate in found]
    expected = pd.DataFrame(expected).sort_values(KEY).reset_index(drop=True)
    assert len(pairs) == len(expected) > 1_500
    for name in [*CATEGORICAL, *CONTINUOUS]:
        if expected[name].dtype.kind in "if":
            exact = pairs[name].astype("float64")
            atol = 1e-4 if name.startswith("price") else 1e-7  # a difference of float32 numbers of up to 1,000
            np.testing.assert_allclose(exact, expected[name].astype("float64"), rtol=2e-6, atol=atol, err_msg=name)
        else:
            both_null = pairs[name].isna() & expected[name].isna()
            assert (both_null | (pairs[name] == expected[name])).all(), name
    assert len(names) == len(CATEGORICAL) + len(CONTINUOUS) + len(set().union(*properties.values()))
    five_star = np.array(["5 Star" in has for has in expected["has"]])
    np.testing.assert_array_equal(pairs["has_5_star"] == 1, five_star)


def same_features(left, right, names):
    pd.testing.assert_frame_equal(left[names].reset_index(drop=True), right[names].reset_index(drop=True))


def scramble_after(log, at, seed):
    """The log with every row after `at` changed in every column that a log may say something in, some rows gone."""
    rng = np.random.default_rng(seed)
    later = ((log["timestamp"] > at[0]) | ((log["timestamp"] == at[0]) & (log["step"] > at[1]))).to_numpy()
    out = log.copy()
    for name in ("platform", "city", "device", "current_filters", "user_id"):
        out.loc[later, name] = rng.permutation(out.loc[later, name].to_numpy())
    visit = later & log["action_type"].isin(VIEWS).to_numpy()
    out.loc[visit, "reference"] = rng.permutation(out.loc[visit, "reference"].to_numpy())
    out.loc[visit, "action_type"] = "search for item"
    asked = later & log["impressions"].notna().to_numpy()
    shuffled = rng.permutation(np.flatnonzero(asked))
    for name in ("reference", "impressions", "prices"):
        out.loc[asked, name] = log[name].iloc[shuffled].to_numpy()
    gone = later & (rng.random(len(log)) < 0.2)
    return out[~gone].reset_index(drop=True)


def test_altering_the_reference_or_any_later_row_changes_no_feature(raw, pairs_and_names):
    (log, metadata), (pairs, names) = raw, pairs_and_names
    asked = log[(log["action_type"] == "clickout item") & log["reference"].notna()].sort_values(["timestamp", "step"])
    row = asked.iloc[int(len(asked) * 0.6)]
    altered = scramble_after(log, (row["timestamp"], row["step"]), seed=6)
    other = next(item for item in row["impressions"].split("|") if item != row["reference"])
    here = (altered["session_id"] == row["session_id"]) & (altered["step"] == row["step"])
    assert here.sum() == 1
    altered.loc[here, "reference"] = other
    after, after_names = built(altered, metadata)
    assert after_names == names
    until = [
        frame[(frame["timestamp"] < row["timestamp"])
              | ((frame["timestamp"] == row["timestamp"]) & (frame["step"] <= row["step"]))]
        for frame in (pairs, after)
    ]  # fmt: skip
    assert len(until[0]) > 200
    same_features(*until, names)
    own = [frame[(frame["session_id"] == row["session_id"]) & (frame["step"] == row["step"])] for frame in until]
    assert own[0]["target"].tolist() != own[1]["target"].tolist()
    # The test can fail: later clickouts do feel the change.
    assert not pairs[names].equals(after[names])


def test_hiding_every_reference_of_a_clickout_changes_none_of_its_features(raw, pairs_and_names):
    """Features never need the label, so the clickouts to be scored get the very features that training saw."""
    (log, metadata), (pairs, names) = raw, pairs_and_names
    last = log[log["action_type"] == "clickout item"].sort_values(["timestamp", "step"]).tail(1)
    hidden = log.copy()
    hidden.loc[last.index, "reference"] = None
    same_features(built(hidden, metadata)[0], pairs, names)


def test_row_order_of_the_files_does_not_change_a_bit(raw, pairs_and_names):
    (log, metadata), (pairs, names) = raw, pairs_and_names
    shuffled, _ = built(log.sample(frac=1, random_state=4), metadata.sample(frac=1, random_state=5))
    same_features(shuffled, pairs, [*names, "target"])


def test_real_excerpt_gives_1171_pairs_and_position_mrr_0330(shared_data):
    settings = TrivagoSettings(
        path=str(shared_data / "trivago_sample"), train="train_small.csv", test="test_small.csv", item_metadata=None,
        split=SplitFractions(0.5, 0.2, 0.3),
    )  # fmt: skip
    found = TrivagoRecipe(settings).build("pandas")
    labelled = pd.concat([found.splits[name] for name in ("train", "valid", "test")])
    clicked = labelled[labelled["target"] == 1]
    assert len(labelled) == 1_171
    assert labelled["clickout"].nunique() == len(clicked) == 53
    assert round(float((1 / clicked["candidate_order"]).mean()), 3) == 0.330
    assert found.splits["score"]["clickout"].nunique() == 50
    assert found.splits["score"]["target"].isna().all()


def test_splits_hold_whole_sessions_in_time_with_the_schema(folder, raw):
    found = TrivagoRecipe(TrivagoSettings(path=str(folder), split=SplitFractions(0.6, 0.2, 0.2))).build("pandas")
    ends = raw[0].groupby("session_id")["timestamp"].max()
    labelled = {name: found.splits[name] for name in ("train", "valid", "test")}
    for earlier, later in (("train", "valid"), ("valid", "test")):
        assert ends[labelled[earlier]["session_id"]].max() < ends[labelled[later]["session_id"]].min()
    for frame in found.splits.values():
        assert dict(frame.dtypes.astype(str).replace("str", "string")) == found.schema.dtypes()
        assert not frame.duplicated(["clickout", "candidate_order"]).any()
    truth = pd.read_csv(folder / "ground_truth.csv")
    assert set(found.splits["score"]["session_id"]) == set(truth["session_id"])
    hits = pd.concat(labelled.values()).groupby("clickout")["target"].sum()
    assert (hits == 1).all()


def test_a_session_that_crosses_a_boundary_goes_to_the_later_split():
    # Clickouts at 10, 20, ..., 100; session 2 runs from 30 to 70, across the boundary at 60.
    session = np.array([0, 1, 2, 3, 4, 5, 2, 6, 7, 8])
    times = np.arange(10, 110, 10)
    until = split_times(times, SplitFractions(0.6, 0.2, 0.2))
    assert until == (60, 80)

    def sessions_of(ends):
        masks = split_of(engine_pandas, pd.Series(np.ones(10)), ends, *until)
        return {name: sorted(session[mask]) for name, mask in masks.items()}

    ends = np.array([times[session == number].max() for number in session])
    assert sessions_of(ends) == {"train": [0, 1, 3, 4, 5], "valid": [2, 2, 6], "test": [7, 8], "score": []}
    # A row without a clickout counts too: session 5 looks at something at 75.
    assert 5 in sessions_of(np.where(session == 5, 75, ends))["valid"]


def test_submission_ranks_the_items_of_every_clickout_to_be_scored_in_the_official_format(folder):
    recipe = TrivagoRecipe(TrivagoSettings(path=str(folder)))
    rows = recipe.build("pandas").splits["score"].sample(frac=1, random_state=3)
    # Cheapest first; equal prices keep the order of the list.
    found = recipe.submission(rows, pd.DataFrame({"target": -rows["price"].to_numpy()}))
    truth = pd.read_csv(folder / "ground_truth.csv")
    assert list(found.columns) == ["user_id", "session_id", "timestamp", "step", "item_recommendations"]
    key = ["user_id", "session_id", "timestamp", "step"]
    assert sorted(found[key].itertuples(index=False)) == sorted(truth[key].itertuples(index=False))
    found = found.merge(truth, on=key, validate="one_to_one")
    for row in found.itertuples():
        items, prices = row.impressions.split("|"), entries(row.prices)
        assert row.item_recommendations.split(" ") == [items[k] for k in np.argsort(prices, kind="stable")]


def test_clickouts_that_cannot_be_used_are_left_out_and_counted(folder, raw):
    log, metadata = raw
    asked = log.index[(log["action_type"] == "clickout item") & log["reference"].notna()]
    broken = log.copy()
    broken.loc[asked[:3], "reference"] = "999999999"
    broken.loc[asked[3:5], ["impressions", "prices"]] = None
    pairs, tables, _ = build_pairs(broken, metadata)
    assert (tables.not_in_list, tables.without_list) == (3, 2)
    lost = broken.loc[asked[:5], ["session_id", "step"]]
    assert pairs.merge(lost, on=["session_id", "step"]).empty
    assert pairs["clickout"].nunique() == (log["action_type"] == "clickout item").sum() - 5


def test_noise_labels_leave_every_feature_and_a_trained_model_at_chance(tmp_path):
    write_synthetic_log(tmp_path, rows=10_000, seed=2, noise_labels=True)
    found = TrivagoRecipe(TrivagoSettings(path=str(tmp_path))).build("pandas")
    names = found.schema.names("continuous")
    whole = pd.concat([found.splits[name] for name in ("train", "valid", "test")])
    positives = int(whole["target"].sum())
    deviation = 1 / np.sqrt(12 * positives)  # of the AUC of a score that knows nothing
    for name in names:
        known = whole[name].notna()
        auc = roc_auc_score(whole["target"][known], whole[name][known])
        share = np.sqrt(positives / whole["target"][known].sum())
        assert abs(auc - 0.5) < 5 * deviation * share, (name, auc)
    model = HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=15, random_state=0)
    train, rest = found.splits["train"], pd.concat([found.splits["valid"], found.splits["test"]])
    model.fit(train[names], train["target"])
    scores = model.predict_proba(rest[names])[:, 1]
    auc = roc_auc_score(rest["target"], scores)
    assert abs(auc - 0.5) < 5 / np.sqrt(12 * rest["target"].sum())
    rank = rest.assign(score=-scores).groupby("clickout")["score"].rank(method="first").to_numpy()
    mrr = (1 / rank)[rest["target"].to_numpy() == 1]
    chance = np.mean(1 / np.arange(1, 26))
    assert abs(mrr.mean() - chance) < 5 * mrr.std() / np.sqrt(len(mrr))


def test_as_many_properties_as_the_official_metadata_has(raw):
    log, metadata = raw
    rng = np.random.default_rng(1)
    words = np.array([f"Property {n}" for n in range(157)])
    texts = ["|".join(words[rng.random(157) < 0.2]) for _ in range(len(metadata))]
    pairs, names = built(log, metadata.assign(properties=pd.Series(texts, dtype="str")))
    assert sum(name.startswith("has_property_") for name in names) == 157
    mask = np.array([[word in text.split("|") for word in words] for text in texts])
    row = pairs.iloc[500]
    item = int(np.flatnonzero(metadata["item_id"] == row["item_id"])[0])
    assert [row[f"has_property_{n}"] == 1 for n in range(157)] == mask[item].tolist()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("timestamp", -5, "negative timestamp or step"),
        ("step", -1, "negative timestamp or step"),
        ("session_id", None, r"column 'session_id' holds 1 null"),
    ],
)
def test_a_log_that_cannot_be_ordered_is_refused(raw, column, value, message):
    log = raw[0].copy()
    log.loc[3, column] = value
    with pytest.raises(DataError, match=message):
        survey(log)


def test_an_item_described_twice_is_refused(folder, tmp_path):
    for name in ("train.csv", "test.csv", "item_metadata.csv"):
        text = (folder / name).read_text()
        (tmp_path / name).write_text(text + text.splitlines()[1] + "\n" if name == "item_metadata.csv" else text)
    with pytest.raises(DataError, match=r"item metadata: 1 item_id\(s\) appear twice"):
        TrivagoRecipe(TrivagoSettings(path=str(tmp_path))).build("pandas")


def test_fewer_than_two_folds_are_refused():
    with pytest.raises(DataError, match="num_folds must be at least 2, found 1"):
        TrivagoSettings(num_folds=1)


@pytest.mark.parametrize("name", ["ctr_smoothing", "target_smoothing"])
def test_a_smoothing_that_is_no_weight_is_refused(name):
    with pytest.raises(DataError, match=f"trivago: {name} must be a number, finite and not negative, found nan"):
        TrivagoSettings(**{name: float("nan")})
