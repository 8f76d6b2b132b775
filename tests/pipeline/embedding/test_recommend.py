"""The best items for every user, beside a slow loop over `Bundle.predict`."""

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch import Pipeline, init, load_bundle, recommend
from gigabatch.features.errors import DataError
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.serving.served import load_served
from tests.pipeline.serving.conftest import Caller

USERS, ITEMS = 50, 40
PLAIN = {"ranking": None, "importance": False, "baselines": []}
SMALL = {"train.epochs": 2, "evaluate.ranking": None, "evaluate.importance": False, "evaluate.baselines": []}


def log(seed=0, rows=USERS * 8):
    draw = np.random.default_rng(seed)
    pairs = draw.permutation(USERS * ITEMS)[:rows]
    found = pd.DataFrame({"user": pairs // ITEMS + 100, "item": pairs % ITEMS + 7})
    found["rating"] = draw.integers(1, 6, len(found))
    found["at"] = 1_600_000_000 + draw.permutation(len(found)) * 60
    return found


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log().to_csv("log.csv", index=False)
    init("log.csv", out="log.yaml")
    return "log.yaml"


def by_a_loop(bundle, rows, user, again):
    """Items of the train split by prediction, best first, without those that the user has."""
    items = bundle.preprocessor.vocabularies["item"].values.tolist()
    asked = pd.DataFrame({"user": user, "item": items})
    asked["score"] = bundle.predict(asked)["target"].to_numpy()
    had = set() if again else set(rows.loc[rows["user"] == user, "item"])
    left = asked[~asked["item"].isin(had)]
    return left.sort_values("score", ascending=False, kind="stable")


@pytest.mark.parametrize("kind", ["mf", "ncf", "two_tower", "ease", "item_knn", "top_frequency", "popularity"])
def test_they_are_those_of_the_greatest_predictions(config, kind):
    run = Pipeline.from_config(config, SMALL, {"model.kind": kind}).train()
    bundle, rows = run.bundle(), log()
    for again in (False, True):
        found = recommend(config, SMALL, {"model.kind": kind}, k=5, again=again)
        assert found["user"].nunique() == rows["user"].nunique()
        ranks = found.groupby("user", sort=False)["rank"].apply(list)
        assert ranks.map(lambda of_user: of_user == [1, 2, 3, 4, 5]).all()
        for user in rows["user"].unique()[:8]:
            own, known = found[found["user"] == user], by_a_loop(bundle, rows, user, again)
            np.testing.assert_allclose(own["predicted_target"], known["score"].head(5), rtol=1e-5, atol=1e-6)
            scores = known.set_index("item")["score"]  # equal scores may be in another order
            np.testing.assert_allclose(scores[own["item"]], own["predicted_target"], rtol=1e-5, atol=1e-6)
    assert_served_alike(config, run, found)


def assert_served_alike(config, run, found):
    """A service gives these recommendations too, less what a request excludes, and popular items to a stranger."""
    pipeline = Pipeline.from_config(config, SMALL)
    embed(run.path, run.bundle(), pipeline.features(), EmbedSettings())
    caller = Caller(load_served(run.path))
    assert caller("GET", "/health").json()["can_recommend"] is True
    for user, own in list(found.groupby("user", sort=False))[:8]:
        answer = caller.post("/recommend", {"user": user, "k": 5}).json()
        np.testing.assert_allclose(answer["scores"], own["predicted_target"], rtol=1e-5, atol=1e-6)
        banned = own["item"].tolist()[1:3]
        less = caller.post("/recommend", {"user": user, "k": 3, "exclude": banned}).json()
        assert not set(banned) & set(less["items"])
        np.testing.assert_allclose(less["scores"], own["predicted_target"].iloc[[0, 3, 4]], rtol=1e-5, atol=1e-6)
    stranger = caller.post("/recommend", {"user": 123_456, "k": 40}).json()
    assert stranger["user_known"] is False
    assert stranger["scores"] == sorted(stranger["scores"], reverse=True)
    ranked = caller.post("/rank", {"user": 123_456, "items": stranger["items"]}).json()["scores"]
    np.testing.assert_allclose(stranger["scores"], ranked, rtol=1e-5, atol=1e-6)


AGAIN = {"features.repeats": "all", "model.kind": "top_frequency"}


@pytest.mark.parametrize(
    ("ranking", "come_back"),
    [
        (None, True),
        ({"k": [5]}, True),
        ({"catalogue_is_without": ["train"]}, False),
        ({"catalogue_is_without": []}, True),
    ],
)
def test_what_a_user_has_is_recommended_where_the_ranking_asks_about_it(config, ranking, come_back):
    """Of users who come back, with rows of their own that repeat; a loop counts them."""
    rows = log()
    pd.concat([rows, rows.assign(at=rows["at"] + 7), rows.iloc[::3]]).to_csv("log.csv", index=False)
    ranking = ranking and {"negatives": None, "baselines": ["popularity"], **ranking}
    given = (SMALL | {"evaluate.ranking": ranking}, AGAIN)
    Pipeline.from_config(config, *given).train()
    found, both = recommend(config, *given, k=3), {flag: recommend(config, *given, k=3, again=flag) for flag in (0, 1)}
    assert found.equals(both[come_back])
    had = rows.groupby("user")["item"].agg(set)
    own = [row.item in had[row.user] for row in both[True].itertuples()]
    assert all(own)  # each has eight
    assert not any(row.item in had[row.user] for row in both[False].itertuples())


def test_the_file_has_what_a_user_chose_before_or_not(config, tmp_path):
    rows = log()
    pd.concat([rows, rows]).to_csv("log.csv", index=False)
    given = ["train.epochs=1", "evaluate.importance=false", "model.kind=top_frequency", "features.repeats=all"]
    assert main(["train", "--config", config, *given]) == 0
    had, shares = rows.groupby("user")["item"].agg(set), {}
    for flags in ((), ("--again",), ("--new",)):
        out = tmp_path / "found.csv"
        assert main(["recommend", "--config", config, *given, *flags, "--k", "3", "--out", str(out)]) == 0
        shares[flags] = np.mean([row.item in had[row.user] for row in pd.read_csv(out).itertuples()])
    assert shares == {(): 1, ("--again",): 1, ("--new",): 0}


def test_the_file_has_the_rows_of_the_users_asked_for(config, tmp_path, capsys, caplog):
    arguments = ["train.epochs=1", "evaluate.ranking=null", "evaluate.importance=false", "model.kind=popularity"]
    assert main(["train", "--config", config, *arguments]) == 0
    pd.DataFrame({"user": [105, 103, 9999, None]}).to_csv("asked.csv", index=False)
    out = tmp_path / "found.csv"
    with caplog.at_level(logging.WARNING):
        options = ["--k", "3", "--users", "asked.csv", "--out", str(out)]
        assert main(["recommend", "--config", config, *arguments, *options]) == 0
    assert "recommend: 1 of 3 users that are asked for have no row" in caplog.text
    found = pd.read_csv(out)
    assert set(found["user"]) == {103, 105}
    assert len(found) == 6
    assert found.columns.tolist() == ["user", "rank", "item", "predicted_target"]
    assert main(["recommend", "--config", config, *arguments]) == 0
    path = next((tmp_path / "runs").rglob("recommendations.parquet"))
    assert pd.read_parquet(path)["user"].nunique() == log()["user"].nunique()


def test_users_that_came_after_the_training_are_counted(config, caplog):
    overrides = {"model.kind": "popularity", "evaluate.ranking": None}
    Pipeline.from_config(config, SMALL, overrides).train()
    rows = log()
    later = pd.DataFrame({"user": [900] * 4, "item": [7, 8, 9, 10], "rating": 3, "at": rows["at"].max() + 1})
    pd.concat([rows, later]).to_csv("log.csv", index=False)
    with caplog.at_level(logging.WARNING):
        found = recommend(config, SMALL, overrides, k=2)
    assert f"recommend: 1 of {USERS + 1} users are new since the training" in caplog.text
    assert 900 not in set(found["user"])
    with pytest.raises(DataError, match="no user is left that the model knows"):
        recommend(config, SMALL, overrides, users=[900])


def test_a_user_who_has_nearly_everything_gets_what_is_left(config):
    rows = log()
    more = pd.DataFrame({"user": 100, "item": range(7, 7 + ITEMS - 2), "rating": 3})
    more["at"] = 1_500_000_000 + np.arange(len(more))
    rows = pd.concat([more, rows[rows["user"] != 100]])
    rows.to_csv("log.csv", index=False)
    overrides = {"model.kind": "popularity", "evaluate.ranking": None}
    Pipeline.from_config(config, SMALL, overrides).train()
    found = recommend(config, SMALL, overrides, k=10)
    assert sorted(found.loc[found["user"] == 100, "item"]) == [7 + ITEMS - 2, 7 + ITEMS - 1]


def test_of_ratings_what_was_rated_low_is_no_recommendation(config):
    overrides = {"features.task": "rating", "train.negatives": None, "model": {"kind": "mf", "loss": "bce"}}
    overrides |= {"train.batch_size": 64}
    Pipeline.from_config(config, SMALL, overrides).train()
    found = recommend(config, SMALL, overrides, k=ITEMS)
    rows = log()
    assert not set(zip(found["user"], found["item"], strict=True)) & set(zip(rows["user"], rows["item"], strict=True))
    assert set(zip(rows["user"], rows["item"], strict=True)) & set(
        zip(*(recommend(config, SMALL, overrides, k=ITEMS, again=True)[name] for name in ("user", "item")), strict=True)
    )


def test_histories_are_those_of_now(config):
    """A user's newest row lacks its own item in the history; what is asked now has it."""
    overrides = {"model": {"kind": "sasrec"}, "features.history": {"length": 5}}
    run = Pipeline.from_config(config, SMALL, overrides).train()
    found, rows = recommend(config, SMALL, overrides, k=3, again=True), log().sort_values("at")
    bundle = run.bundle()
    items = bundle.preprocessor.vocabularies["item"].values.tolist()
    for user in rows["user"].unique()[:5]:
        history = rows.loc[rows["user"] == user, "item"].tail(5).tolist()
        asked = pd.DataFrame({"user": user, "item": items, "history": [history] * len(items)})
        best = np.sort(bundle.predict(asked)["target"].to_numpy())[::-1][:3]
        np.testing.assert_allclose(found.loc[found["user"] == user, "predicted_target"], best, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("features", "match"),
    [
        ({"targets": {"rating": {"task": "regression"}}}, "does not say which columns are those of users and items"),
        (
            {
                "targets": {"rating": {"task": "multiclass"}},
                "entities": {"user": {"key": "user"}, "item": {"key": "item"}},
            },
            "'rating', is multiclass, by which items have no order",
        ),
        (
            {
                "targets": {"rating": {"task": "regression", "quantiles": [0.1, 0.5, 0.9]}},
                "entities": {"user": {"key": "user"}, "item": {"key": "item"}},
            },
            "'rating', is of several quantiles, by which items have no one order",
        ),
    ],
)
def test_what_has_no_order_of_items_is_refused(config, features, match):
    settings = {"path": "log.csv", "categorical": {"user": "int64", "item": "int64"}, **features}
    whole = {"name": "table", "recipe": "table", "features": settings, "train": {"epochs": 1}, "evaluate": PLAIN}
    Pipeline.from_config(whole).train()
    with pytest.raises(DataError, match=match):
        recommend(whole)


def test_a_regression_ranks_by_its_numbers(config):
    entities = {"user": {"key": "user"}, "item": {"key": "item"}}
    features = {"path": "log.csv", "categorical": {"user": "int64", "item": "int64"}, "entities": entities}
    features["targets"] = {"rating": {"task": "regression"}}
    whole = {"name": "table", "recipe": "table", "features": features, "train": {"epochs": 2}, "evaluate": PLAIN}
    run, rows = Pipeline.from_config(whole).train(), log()
    found, bundle = recommend(whole, k=4), load_bundle(run.path / "model")
    assert not set(zip(found["user"], found["item"], strict=True)) & set(zip(rows["user"], rows["item"], strict=True))
    told = bundle.predict(found[["user", "item"]])["rating"].to_numpy()
    np.testing.assert_allclose(found["predicted_rating"], told, rtol=1e-5, atol=1e-5)


def test_less_than_one_item_is_refused(config):
    Pipeline.from_config(config, SMALL, {"model.kind": "popularity"}).train()
    with pytest.raises(DataError, match="k must be at least 1, found 0"):
        recommend(config, SMALL, {"model.kind": "popularity"}, k=0)


def test_users_are_a_column_or_a_list_of_keys(config):
    """One key alone was an error of pandas."""
    given = (SMALL, {"model.kind": "popularity"})
    Pipeline.from_config(config, *given).train()
    keys = [103, 105]
    whole = recommend(config, *given, k=2, users=keys)
    for users in (tuple(keys), pd.Series(keys, index=[7, 9]), np.array(keys), pa.array(keys)):
        pd.testing.assert_frame_equal(recommend(config, *given, k=2, users=users), whole)
    for users in (103, "103", {103}, pd.DataFrame({"user": keys})):
        with pytest.raises(DataError, match=rf"users is a column or list of keys, found {type(users).__name__}"):
            recommend(config, *given, k=2, users=users)


def test_items_are_as_their_last_rows_have_them_and_those_that_only_a_final_run_knows_are_among_them(config):
    """An item of the newest rows alone, which train lacks, and a price that has changed since."""
    rows = log(rows=1600).sort_values("at")
    rows["price"] = rows["item"].astype("float64")
    newest = rows.index[-200:-140]  # of valid and test, and of what a final run learns from
    rows.loc[newest, "price"] += 100
    rows.loc[newest[::2], "item"] = 900
    rows.to_csv("log.csv", index=False)
    given = {"model": {"kind": "two_tower"}, "features.split_by": "time", "features.continuous": ["price"]}
    given["features.item_columns"] = ["price"]
    given["train.batch_size"] = 64
    run = Pipeline.from_config(config, SMALL, given).train_final()
    found = recommend(config, SMALL, given, k=ITEMS + 1, again=True, run=run.path)
    assert 900 in set(found["item"])
    prices = rows.groupby("item")["price"].last()
    asked = found[["user", "item"]].assign(price=found["item"].map(prices))
    told = run.bundle().predict(asked)["target"].to_numpy()
    np.testing.assert_allclose(found["predicted_target"], told, rtol=1e-4, atol=1e-5)


def test_a_key_that_is_named_as_the_predictions_stays(config):
    """Its column was overwritten by the numbers."""
    rows = log().rename(columns={"user": "predicted_target", "item": "rank"})
    rows.to_csv("odd.csv", index=False)
    init("odd.csv", out="odd.yaml", user="predicted_target", item="rank")
    Pipeline.from_config("odd.yaml", SMALL, {"model.kind": "popularity"}).train()
    found = recommend("odd.yaml", SMALL, {"model.kind": "popularity"}, k=2)
    assert found.columns.tolist() == ["predicted_target", "rank_", "rank", "predicted_target_"]
    assert set(found["predicted_target"]) == set(rows["predicted_target"])
