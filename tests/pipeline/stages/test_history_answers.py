"""`sasrec`, `din` and `two_tower` with lists by every way to an answer: predict, score, embed, and a real server.

Expected are always the numbers of `Bundle.predict` for rows that the test puts together itself.
"""

import json
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.engines.frame import load_engine
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.embedding.embeddings import STAGE, StoredEmbeddings
from gigabatch.pipeline.stages.stages import Pipeline
from tests.pipeline.serving.server_process import Server
from tests.pipeline.stages.test_list_ranking import yaml_of

MODELS = {
    "sasrec": {"kind": "sasrec", "dim": 16, "num_blocks": 1, "length": 4, "dropout": 0.0},
    "din": {"kind": "din", "embedding_dim": 8, "attention_layers": [16], "layers": [16]},
    "two_tower": {"kind": "two_tower", "loss": "softmax", "layers": [16], "vector_dim": 8, "embedding_dim": 8},
}
CLOSE = {"rtol": SCORE_RTOL, "atol": SCORE_ATOL}


class Answers:
    """A run that was trained, embedded and is served, its bundle, and the rows of all splits."""

    def __init__(self, folder, kind: str) -> None:
        raw = json.loads(yaml_of(folder).read_text())
        raw |= {"name": kind, "model": MODELS[kind]}
        raw["train"] = {"epochs": 4, "batch_size": 64, "lr_max": 0.05, "negatives": {"per_positive": 2}}
        raw["evaluate"]["ranking"] = None
        if kind == "sasrec":  # its history takes no weights
            del raw["features"]["lists"]["seen"]["weights"]
        self.kind, self.folder, self.config = kind, folder, folder / "answers.yaml"
        self.config.write_text(json.dumps(raw, allow_nan=False))
        assert main(["train", "--config", str(self.config)]) == 0
        assert main(["embed", "--config", str(self.config)]) == 0
        self.run = (folder / "runs" / kind / "latest").resolve()
        self.bundle = load_bundle(self.run / "model")
        features = Pipeline.from_config(self.config).features()
        self.test = features.frame("test")
        self.rows = pd.concat([features.frame(split) for split in features.rows], ignore_index=True)
        self.names = [name for name in self.rows if name in self.bundle.online().columns]
        self.tags = self.rows.groupby("item").tail(1).set_index("item")["tags"]
        self.newest = self.rows.groupby("user").tail(1).set_index("user")
        self.server = Server([self.run], folder / "serve.log")

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        return self.bundle.predict(frame)["chosen"].to_numpy()

    def post(self, path: str, content: dict) -> dict:
        request = urllib.request.Request(
            self.server.url + path, json.dumps(content, allow_nan=False).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def json_of(self, frame: pd.DataFrame) -> list[dict]:
        return json.loads(frame[self.names].to_json(orient="records"))

    def candidates(self, user: int, items: list[int], **context) -> pd.DataFrame:
        """Rows of the user as of its newest row with each of these items, at the hour and with what context says."""
        row = self.newest.loc[user].to_dict() | {"user": user, "hour": 2} | context
        return pd.DataFrame([row | {"item": item, "tags": self.tags[item]} for item in items])


@pytest.fixture(scope="module", params=MODELS)
def answers(request, tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Answers(tmp_path_factory.mktemp(request.param), request.param)
    yield found
    assert found.server.stop() == 0
    torch.set_num_threads(before)


def test_the_lists_count_for_every_model(answers):
    rows = answers.test
    emptied = rows.assign(seen=[[]] * len(rows), **({"age": [[]] * len(rows)} if "age" in rows else {}))
    found = answers.predict(rows)
    assert np.abs(found - answers.predict(emptied)).max() > 100 * SCORE_ATOL  # more than answers may differ by


def test_score_of_a_split_of_raw_rows_and_over_http_gives_what_predict_does(answers, tmp_path):
    expected = answers.predict(answers.test)
    out = tmp_path / "split.parquet"
    assert main(["score", "--config", str(answers.config), "--split", "test", "--out", str(out)]) == 0
    np.testing.assert_allclose(pd.read_parquet(out)["predicted_chosen"], expected, **CLOSE)
    load_engine("pandas").write_parquet(answers.test[answers.names], tmp_path / "raw.parquet")
    arguments = ["score", "--config", str(answers.config), "--input", str(tmp_path / "raw.parquet"), "--out", str(out)]
    assert main(arguments) == 0
    np.testing.assert_allclose(pd.read_parquet(out)["predicted_chosen"], expected, **CLOSE)
    asked = answers.json_of(answers.test)
    found = answers.post("/score", {"rows": asked})["predictions"]["chosen"]
    np.testing.assert_allclose(found, expected, **CLOSE)
    alone = answers.post("/score", {"rows": asked[5:6]})["predictions"]["chosen"]
    np.testing.assert_allclose(alone, expected[5:6], **CLOSE)


def test_rank_takes_the_stored_history_or_the_one_that_is_sent(answers):
    items = [int(item) for item in answers.tags.index[[3, 0, 17, 8]]]
    new = {"seen": items[:2]} | ({"age": [1.0, 0.5]} if "age" in answers.rows else {})
    told_apart = []
    for user in answers.newest.index[:5].tolist():
        rankings = []
        for context in ({}, new):
            found = answers.post("/rank", {"user": user, "items": items, "context": {"hour": 2} | context})
            expected = answers.predict(answers.candidates(user, items, **context))
            np.testing.assert_allclose(found["scores"], expected, **CLOSE)
            rankings.append(expected)
        told_apart.append(np.abs(rankings[0] - rankings[1]).max())
    assert max(told_apart) > 0.01


def test_a_history_and_its_weights_are_sent_together(answers):
    """Weights without elements were blamed on the body, and empty ones left out of account."""
    if "age" not in answers.rows:  # sasrec's history has no weights
        return
    items = [int(item) for item in answers.tags.index[:3]]
    user = int(answers.newest.index[0])
    for context, there, other in (
        ({"age": [1.0]}, "age", "seen"), ({"age": []}, "age", "seen"), ({"seen": items}, "seen", "age")
    ):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as found:
            answers.post("/rank", {"user": user, "items": items, "context": {"hour": 2} | context})
        assert found.value.code == 422
        (field,) = json.load(found.value)["fields"]
        assert field["field"] == "context"
        assert f"holds {there!r} without {other!r}" in field["message"]


def test_an_unknown_user_is_ranked_by_the_history_that_is_sent(answers):
    items = [int(item) for item in answers.tags.index[:6]]
    new = {"seen": items[2:4]} | ({"age": [1.0, 0.5]} if "age" in answers.rows else {})
    found = answers.post("/rank", {"user": 10_000, "items": items, "context": {"hour": 1} | new})
    row = {"user": 10_000, "clubs": [], "hour": 1} | new
    expected = answers.predict(pd.DataFrame([row | {"item": item, "tags": answers.tags[item]} for item in items]))
    np.testing.assert_allclose(found["scores"], expected, **CLOSE)


def test_recommend_and_stored_vectors_find_the_best_of_all_predictions(answers):
    items = answers.tags.index.tolist()
    stored = StoredEmbeddings.load(answers.run / STAGE, answers.bundle)
    assert sorted(stored.item.keys.tolist()) == sorted(items)
    for user in answers.newest.index[:5].tolist():
        expected = answers.predict(answers.candidates(user, items))
        best = np.sort(expected)[::-1][:5]
        found = answers.post("/recommend", {"user": user, "k": 5, "context": {"hour": 2}})
        np.testing.assert_allclose(found["scores"], best, **CLOSE)
        of_item = dict(zip(items, expected, strict=True))
        np.testing.assert_allclose([of_item[item] for item in found["items"]], best, **CLOSE)
