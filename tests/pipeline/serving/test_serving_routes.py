"""What the routes answer: the batch's scores within the tolerance, cold users, unknown items, retrieval."""

import copy
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.models.ensemble import Ensemble
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving import served as served_module
from gigabatch.pipeline.serving.served import load_served
from tests.pipeline.serving.small_bundles import CREATED, interactions, random_bundle, write_run

USER = ["user_id", "city", "age", "visits"]
ITEM = ["item_id", "genre", "price"]


def assert_scores(found, expected) -> None:
    """JSON's numbers are float32 exactly, and equal to the expected ones within the tolerance that is promised."""
    wide = np.array(found, np.float64)
    assert np.array_equal(wide.astype(np.float32).astype(np.float64), wide)
    np.testing.assert_allclose(wide, np.array(expected, np.float64), rtol=SCORE_RTOL, atol=SCORE_ATOL)


def pairs(frame: pd.DataFrame, user: pd.DataFrame, items: list[int]) -> pd.DataFrame:
    """Rows of the features stage: one user's columns beside those of each item."""
    by_item = frame.drop_duplicates("item_id").set_index("item_id", drop=False)
    rows = by_item.loc[items, ITEM].reset_index(drop=True)
    columns = {name: pd.Series([user[name].iloc[0]] * len(items), dtype=user[name].dtype) for name in user}
    return pd.DataFrame({**columns, **{name: rows[name] for name in ITEM}})


def user_of(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    return frame.loc[frame["user_id"] == name, USER].head(1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"top": "dot"}, {"top": "mlp", "batch_norm": True}, {"normalise": False}, {"kind": "tabular"}],
    ids=str,
)
def test_ranked_scores_are_the_batchs(changes, frame, tmp_path, make_caller, bundle, caller):
    if changes:
        bundle = random_bundle(frame, **changes)
        caller = make_caller(load_served(write_run(tmp_path / "run", bundle, frame)))
    for user, count in (("u0", 1), ("u7", 3), ("u39", 60)):
        items = np.random.default_rng(count).permutation(np.arange(1000, 1060))[:count].tolist()
        answer = caller.post("/rank", {"user": user, "items": items})
        assert answer.status_code == 200
        expected = bundle.predict(pairs(frame, user_of(frame, user), items))["clicked"].to_numpy()
        assert_scores(answer.json()["scores"], expected)
        assert answer.json()["user_known"] is True


def test_context_comes_with_the_request_and_enters_the_score(tmp_path, make_caller):
    frame = interactions(context=True)
    bundle = random_bundle(frame, context=True)
    caller = make_caller(load_served(write_run(tmp_path / "run", bundle, frame)))
    items = [1003, 1010, 1001]
    found = []
    for hour, wait in ((3, 0.5), (17, -2.0)):
        answer = caller.post("/rank", {"user": "u4", "context": {"hour": hour, "wait": wait}, "items": items})
        rows = pairs(frame, user_of(frame, "u4"), items)
        rows["hour"], rows["wait"] = hour, np.float32(wait)
        assert_scores(answer.json()["scores"], bundle.predict(rows)["clicked"])
        found.append(answer.json()["scores"])
    assert found[0] != found[1]
    refused = caller.post("/rank", {"user": "u4", "items": items})
    assert refused.status_code == 422
    assert refused.json()["fields"][0]["field"] == "context"
    assert "'hour', 'wait'" in refused.json()["message"]


def test_a_described_user_is_scored_by_what_the_request_says(frame, bundle, caller):
    items = [1002, 1030]
    features = {"city": "Oslo", "age": None, "visits": 12}
    for name, known in (("u3", True), ("stranger", False), (None, False)):
        request = {"user_features": features, "items": items} | ({"user": name} if name else {})
        user = pd.DataFrame(
            {
                "user_id": pd.array([name], "str"),
                "city": pd.array(["Oslo"], "str"),
                "age": np.array([np.nan], "float32"),
                "visits": [12],
            }
        )
        answer = caller.post("/rank", request).json()
        assert answer["user_known"] is known
        assert_scores(answer["scores"], bundle.predict(pairs(frame, user, items))["clicked"])


def test_an_unknown_user_is_scored_as_unseen_with_nulls(frame, bundle, caller):
    """Whole numbers hold no null: there the median, rounded, stands for it."""
    items = [1002, 1030, 1059]
    user = pd.DataFrame(
        {
            "user_id": pd.array(["stranger"], "str"),
            "city": pd.array([None], "str"),
            "age": np.array([np.nan], "float32"),
            "visits": [round(float(frame["visits"].median()))],
        }
    )
    answer = caller.post("/rank", {"user": "stranger", "items": items}).json()
    assert answer["user_known"] is False
    assert_scores(answer["scores"], bundle.predict(pairs(frame, user, items))["clicked"])


def test_unknown_items_get_null_and_are_listed(caller):
    known = caller.post("/rank", {"user": "u1", "items": [1001, 1002]}).json()["scores"]
    answer = caller.post("/rank", {"user": "u1", "items": [7, 1001, -(2**63), 1002, 1001, 7]}).json()
    assert [score is None for score in answer["scores"]] == [True, False, True, False, False, True]
    assert_scores([score for score in answer["scores"] if score is not None], [known[0], known[1], known[0]])
    assert answer["unknown_items"] == [7, -(2**63), 7]
    assert caller.post("/rank", {"user": "u1", "items": [1]}).json()["scores"] == [None]


def test_a_bundle_without_entities_scores_rows_and_says_that_it_cannot_rank(trained, make_caller):
    run = trained[1].path
    caller = make_caller(load_served(run))
    rows = trained[1].bundle()
    from tests.pipeline.tiny_recipe import day_of_rows

    frame = day_of_rows(3, 20)[list(rows.online().columns)]
    asked = json.loads(frame.to_json(orient="records", double_precision=15))
    answer = caller.post("/score", {"rows": asked}).json()
    expected = rows.predict(frame)
    assert list(answer["predictions"]) == list(expected.columns)
    for name in expected:
        assert_scores(answer["predictions"][name], expected[name])
    for path, request in (("/rank", {"user": "a", "items": ["b"]}), ("/recommend", {"user": "a"})):
        refused = caller.post(path, request)
        assert refused.status_code == 409
        assert "user and item" in refused.json()["message"]
    health = caller("GET", "/health").json()
    assert (health["can_rank"], health["bundle"]) == (False, run.name)


@pytest.mark.parametrize("kind", ["two_tower", "tabular"])
def test_recommendations_are_the_best_of_the_whole_catalogue(kind, frame, tmp_path, make_caller, bundle, caller):
    if kind != "two_tower":  # every item is scored
        bundle = random_bundle(frame, kind)
        caller = make_caller(load_served(write_run(tmp_path / "run", bundle, frame)))
    items = list(range(1000, 1060))
    for user in ("u2", "u30"):
        scores = bundle.predict(pairs(frame, user_of(frame, user), items))["clicked"].to_numpy()
        order = sorted(range(60), key=lambda place: -scores[place])
        banned = [items[place] for place in order[1:4]]
        best = [items[place] for place in order if items[place] not in banned]
        answer = caller.post("/recommend", {"user": user, "k": 50, "exclude": [*banned, 99999]}).json()
        assert answer["items"] == best[:50]
        assert_scores(answer["scores"], scores[[item - 1000 for item in best[:50]]])
    everything = caller.post("/recommend", {"user": "u2", "k": 500, "exclude": items[:58]}).json()
    assert sorted(everything["items"]) == items[58:]
    assert caller.post("/recommend", {"user": "u2", "exclude": items}).json()["items"] == []


@pytest.mark.parametrize("index", ["exact", "approximate"])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", ["mf", "two_tower"])
def test_items_that_train_does_not_have_are_recommended_by_what_else_is_known_of_them_alone(
    kind, members, index, frame, tmp_path, make_caller
):
    """Those of mf share one vector, so whoever likes it was given all of them."""
    if members > 1 and index == "approximate":
        pytest.skip("an ensemble has no vectors to search")
    new = set(range(1000, 1010))
    made = random_bundle(frame[~frame["item_id"].isin(new)], kind)
    if members > 1:
        made = replace(made, model=Ensemble([made.model, copy.deepcopy(made.model)]))
    caller = make_caller(load_served(write_run(tmp_path / "run", made, frame, index=index, recall=0.8)))
    for user in ("u2", "u30"):
        found = caller.post("/recommend", {"user": user, "k": 60}).json()["items"]
        assert set(found) == set(range(1000, 1060)) - (new if kind == "mf" else set())
    assert None not in caller.post("/rank", {"user": "u2", "items": sorted(new)}).json()["scores"]


def test_a_catalogue_is_not_scored_row_by_row_beyond_a_number_of_items(frame, tmp_path, make_caller):
    """Without vectors a request of a million items would keep all others waiting."""
    run = write_run(tmp_path / "run", random_bundle(frame, "tabular"), frame)
    for most, status in ((60, 200), (59, 409)):
        caller = make_caller(load_served(run, ServeSettings(max_scan=most)))
        assert caller.post("/recommend", {"user": "u1"}).status_code == status
        health = caller("GET", "/health").json()
        assert (health["can_rank"], health["can_recommend"]) == (True, status == 200)
    refused = caller.post("/recommend", {"user": "u1"}).json()
    assert refused["error"] == "not_available"
    assert "TabularModel, has no item vectors to search, and to score each of 60 items" in refused["message"]


def test_predictions_that_are_the_same_at_their_bound_keep_the_order_of_what_the_model_gives(
    frame, tmp_path, make_caller
):
    """Float32 probabilities near 1 are all 1, and logits are not."""
    bundle = random_bundle(frame, "tabular")
    with torch.no_grad():
        list(bundle.model.parameters())[-1].add_(60)
    caller = make_caller(load_served(write_run(tmp_path / "run", bundle, frame)))
    found = caller.post("/recommend", {"user": "u2", "k": 60}).json()
    assert set(found["scores"]) == {1.0}
    rows = pairs(frame, user_of(frame, "u2"), found["items"]).astype(object)
    parts = [bundle.online()(row) for row in rows.where(rows.notna(), None).to_dict("records")]
    with torch.inference_mode():
        logits = bundle.model(*(torch.from_numpy(np.stack(part)) for part in zip(*parts, strict=True)))[:, 0]
    assert float(logits[0] - logits[-1]) > 1
    assert bool((logits.diff() <= SCORE_ATOL + SCORE_RTOL * 60).all())


def test_the_top_network_ranks_what_the_vectors_retrieve(frame, served, caller):
    """With k 3 the 12 items nearest to the user are ranked by the top network, and no others."""
    ranker = served.ranker
    row = ranker.users.rows["u11"]
    products = (ranker.items.vectors.numpy() @ ranker.users.vectors[row].numpy()).tolist()
    near = sorted(range(60), key=lambda place: -products[place])[:12]
    near_ids = [ranker.items.keys[place] for place in near]
    scores = dict(zip(near_ids, caller.post("/rank", {"user": "u11", "items": near_ids}).json()["scores"], strict=True))
    answer = caller.post("/recommend", {"user": "u11", "k": 3}).json()
    assert answer["items"] == sorted(near_ids, key=lambda item: -scores[item])[:3]


def test_the_approximate_index_recommends_what_comparing_all_does(frame, bundle, tmp_path, make_caller, caller):
    """In a catalogue this small its search reaches every item."""
    served = load_served(write_run(tmp_path / "run", bundle, frame, index="approximate", recall=1.0))
    assert served.ranker.index is not None
    approximate = make_caller(served)
    for user in ("u1", "u20", "stranger"):
        for exclude in ([], [1004, 1030, 7], list(range(1000, 1060))):
            request = {"user": user, "k": 5, "exclude": exclude}
            found, expected = (one.post("/recommend", request).json() for one in (approximate, caller))
            assert_scores(found.pop("scores"), expected.pop("scores"))
            assert {**found, "bundle": ""} == {**expected, "bundle": ""}


def test_a_first_target_of_classes_cannot_rank_but_score(frame, tmp_path, make_caller):
    folder = write_run(tmp_path / "run", random_bundle(frame, "tabular", classes=True), frame)
    caller = make_caller(load_served(folder))
    refused = caller.post("/rank", {"user": "u1", "items": [1001]})
    assert refused.status_code == 409
    assert "has classes" in refused.json()["message"]
    row = json.loads(frame.drop(columns="clicked").head(1).to_json(orient="records"))[0]
    assert caller.post("/score", {"rows": [row]}).json()["predictions"].keys() == {"clicked_no", "clicked_yes"}


def test_half_precision_gives_up_equality_and_says_so(frame, bundle, tmp_path, make_caller):
    caller = make_caller(load_served(write_run(tmp_path / "run", bundle, frame, dtype="float16")))
    assert caller("GET", "/health").json()["equals_batch_scores"] is False
    items = list(range(1000, 1060))
    scores = caller.post("/rank", {"user": "u5", "items": items}).json()["scores"]
    expected = bundle.predict(pairs(frame, user_of(frame, "u5"), items))["clicked"].to_numpy()
    assert np.abs(np.array(scores) - expected).max() < 0.02
    assert not np.allclose(scores, expected, rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_numbers_far_beyond_the_data_are_no_failure(frame, tmp_path, make_caller):
    """They overflow within the model: its scores are null, and there is no vector to search with."""
    bundle = random_bundle(frame, normalise=False)
    with torch.no_grad():
        for weights in bundle.model.user_tower.network.parameters():
            weights.mul_(30)
    caller = make_caller(load_served(write_run(tmp_path / "run", bundle, frame)))
    far = {"city": "Oslo", "age": 3e38, "visits": 2**62}
    ranked = caller.post("/rank", {"user_features": far, "items": [1001]})
    assert (ranked.status_code, ranked.json()["scores"]) == (200, [None])
    searched = caller.post("/recommend", {"user_features": far})
    assert searched.status_code == 422
    assert searched.json()["fields"][0]["field"] == "user_features"
    row = json.loads(frame.drop(columns="clicked").head(1).to_json(orient="records"))[0]
    scored = caller.post("/score", {"rows": [row, row | far]}).json()["predictions"]["clicked"]
    assert scored[0] is not None
    assert scored[1] is None


def test_health_names_the_bundle_and_is_503_without_one(caller, make_caller, run):
    health = caller("GET", "/health")
    assert health.status_code == 200
    found = health.json()
    assert found["age_seconds"] >= 0
    assert {name: found[name] for name in ("status", "bundle", "model", "can_rank", "equals_batch_scores")} == {
        "status": "ok", "bundle": run.name, "model": "TwoTower", "can_rank": True, "equals_batch_scores": True
    }  # fmt: skip
    assert found["created_utc"] == CREATED
    assert found["positive"] == {}
    empty = make_caller(None)
    for answer in (empty("GET", "/health"), empty.post("/rank", {"user": "u1", "items": [1]})):
        assert (answer.status_code, answer.json()["error"]) == (503, "no_bundle")
        assert answer.headers["retry-after"] == "1"


def test_metrics_count_requests_by_route_and_status(make_caller, served):
    caller = make_caller(served)
    caller.metrics.bundle(served.bundle_id, served.kind)
    caller.post("/rank", {"user": "u1", "items": [1001]})
    caller.post("/rank", {"user": "u1"})
    caller("GET", "/made/up/path")
    text = caller("GET", "/metrics").text
    for line in (
        'gigabatch_requests_total{route="/rank",status="200"} 1.0',
        'gigabatch_requests_total{route="/rank",status="422"} 1.0',
        'gigabatch_requests_total{route="other",status="404"} 1.0',
        'gigabatch_request_seconds_count{route="/rank"} 2.0',
        f'gigabatch_bundle_info{{id="{served.bundle_id}",model="TwoTower"}} 1.0',
        'gigabatch_swaps_total{outcome="refused"} 0.0',
        "gigabatch_in_flight 1.0",
    ):
        assert line in text.splitlines()
    assert "/made/up" not in text


def test_the_openapi_page_has_schemas_limits_examples_and_errors(caller):
    page = caller("GET", "/openapi.json").json()
    for path in ("/rank", "/recommend", "/score"):
        post = page["paths"][path]["post"]
        assert {"200", "400", "401", "413", "422", "503"} <= post["responses"].keys()
        body = post["requestBody"]["content"]["application/json"]
        assert body["schema"]["additionalProperties"] is False
        assert body["examples"]
    items = page["paths"]["/rank"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"][
        "items"
    ]
    assert (items["minItems"], items["maxItems"]) == (1, 1000)
    assert page["components"]["schemas"]["ErrorAnswer"]["required"] == ["error", "message", "fields"]


def test_ids_may_be_numbers_where_they_are_text_and_text_where_they_are_numbers(tmp_path, make_caller):
    frame = interactions()
    frame["user_id"] = frame["user_id"].str.removeprefix("u")
    caller = make_caller(load_served(write_run(tmp_path / "run", random_bundle(frame), frame)))
    asked = {"user": "7", "items": [1003, 1001, 5]}
    expected = caller.post("/rank", asked).json()
    assert (expected["user_known"], expected["unknown_items"]) == (True, [5])
    found = caller.post("/rank", {"user": 7, "items": ["1003", 1001, "5"]}).json()
    assert (found["scores"], found["user_known"]) == (expected["scores"], True)
    best = caller.post("/recommend", {"user": "7", "k": 3}).json()
    again = caller.post("/recommend", {"user": 7, "k": 3, "exclude": ["4", str(best["items"][0])]}).json()
    assert again["items"][:2] == best["items"][1:]
    for item in ("01003", "+1003", "1003.0", " 1003", "x", "", "9" * 19):
        refused = caller.post("/rank", {"user": "7", "items": [1001, item]})
        assert (refused.status_code, refused.json()["fields"][0]["field"]) == (422, "items[1]")
        assert "are integers" in refused.json()["message"]
    assert caller.post("/rank", {"user": "07", "items": [1001]}).json()["user_known"] is False


def test_an_item_whose_score_is_no_number_is_left_out_and_keeps_no_other_from_being_found(
    frame, tmp_path, make_caller, monkeypatch
):
    """One price far beyond the data overflows within the model, as it may of an item that came after the training."""
    monkeypatch.setattr(served_module, "TESTED", 3)  # of a large catalogue the item is not among those of the self-test
    bundle = random_bundle(frame, "tabular")
    with torch.no_grad():
        for weights in bundle.model.parameters():
            weights.mul_(5)
    far = frame["item_id"] == 1003
    assert far.any()
    later = frame.assign(price=frame["price"].mask(far, 3e38).astype("float32"))
    caller = make_caller(load_served(write_run(tmp_path / "run", bundle, later)))
    scores = caller.post("/rank", {"user": "u1", "items": list(range(1000, 1060))}).json()["scores"]
    assert [place for place, score in enumerate(scores) if score is None] == [3]
    found = caller.post("/recommend", {"user": "u1", "k": 60}).json()
    assert set(found["items"]) == set(range(1000, 1060)) - {1003}
    assert found["scores"] == sorted((score for score in scores if score is not None), reverse=True)
    nothing = caller.post("/recommend", {"user_features": {"city": "Oslo", "age": 3e38, "visits": 2**62}})
    assert nothing.status_code == 422
