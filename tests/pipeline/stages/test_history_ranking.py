"""Users who walk a circle of items: the next item follows from the last ones, from YAML to ranks and scores."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines.frame import load_engine
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.stages.score import score_run
from gigabatch.pipeline.stages.stages import Pipeline

NUM_USERS, NUM_ITEMS, VISITS = 150, 30, 12
RANKING = {"k": [1], "negatives": None, "catalogue_is_without": ["train", "valid"], "baselines": ["ease"]}
MODELS = {
    "sasrec": {"dim": 16, "num_blocks": 1, "dropout": 0.0},
    "two_tower": {"loss": "softmax", "layers": [32], "vector_dim": 16},
    "din": {},
}


def circle_log() -> pd.DataFrame:
    """Each user starts anywhere and goes on by one item a visit; all items are equally popular."""
    rng = np.random.default_rng(5)
    starts = rng.integers(0, NUM_ITEMS, NUM_USERS)
    rows = [
        (f"u{user}", f"i{(start + visit) % NUM_ITEMS}", float(visit * NUM_USERS + user))
        for user, start in enumerate(starts)
        for visit in range(VISITS)
    ]
    return pd.DataFrame(rows, columns=["user", "item", "at"]).sample(frac=1, random_state=1)


def content(folder: Path, kind: str, length: int) -> dict:
    drawn = kind != "sasrec"
    return {
        "name": kind, "recipe": "interactions", "device": "cpu", "engine": "pandas", "seed": 1,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {
            "path": str(folder / "log.csv"), "time": "at", "task": "ranking", "split_by": "leave_one_out",
            "history": {"length": length},
        },
        "model": {"kind": kind, **MODELS[kind]},
        "train": {
            "epochs": 12, "batch_size": 256 if drawn else 64, "optimizer": "adamw", "lr_max": 0.01, "select": "last",
            "negatives": {"per_positive": 3} if drawn else None, "precision": "float32",
        },
        "evaluate": {"importance": False, "baselines": [], "ranking": RANKING},
    }  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_the_next_item_is_ranked_first(tmp_path, kind):
    circle_log().to_csv(tmp_path / "log.csv", index=False)
    pipeline = Pipeline(RunConfig.model_validate(content(tmp_path, kind, 3)))
    run = pipeline.train()
    assert run.summary["ranking"]["catalogue"]["hr@1"] > 0.9
    assert run.summary["ranking"]["baselines"]["found"][0]["catalogue"]["hr@1"] < 0.5, "sets alone do not tell it"
    features = pipeline.features().frame("test")
    bundle = load_bundle(run.path / "model")
    catalogue = [f"i{item}" for item in range(NUM_ITEMS)]
    seen = circle_log().groupby("user")["item"].agg(set)
    hits = []
    for row in features.head(40).itertuples():
        others = [item for item in catalogue if item == row.item or item not in seen[row.user]]
        asked = pd.concat([features[features["user"] == row.user]] * len(others)).assign(item=others)
        scores = bundle.predict(asked)["target"].to_numpy()
        hits.append(not (scores > scores[others.index(row.item)]).any())
    assert np.mean(hits) > 0.9, "predictions of rows say the same"


def test_scores_of_a_file_look_up_the_histories(tmp_path):
    circle_log().to_csv(tmp_path / "log.csv", index=False)
    pipeline = Pipeline(RunConfig.model_validate(content(tmp_path, "sasrec", 3)))
    run = pipeline.train()
    frame = pipeline.features().frame("test")
    expected = load_bundle(run.path / "model").predict(frame)["target"].to_numpy()
    ask = tmp_path / "ask.parquet"
    load_engine("pandas").write_parquet(frame[["user", "item", "at"]], ask)
    (tmp_path / "config.yaml").write_text(json.dumps(content(tmp_path, "sasrec", 3), allow_nan=False))
    assert score_run(tmp_path / "config.yaml", (), None, None, tmp_path / "out.parquet", raw=str(ask)) == 0
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "out.parquet")["predicted_target"], expected, rtol=1e-6)
