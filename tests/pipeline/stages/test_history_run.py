"""Runs of interactions whose label follows from the user's history, from YAML to scores, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML

from gigabatch.features.errors import DataError
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError
from gigabatch.pipeline.contract.state import QUARANTINED
from gigabatch.pipeline.lab.plan.plan import make_plan
from gigabatch.pipeline.lab.plan.sample import PlanError
from gigabatch.pipeline.nightly.nightly import require_times
from gigabatch.pipeline.stages.score import score_run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.stages.update import update_preprocessor

NUM_ROWS, NUM_ITEMS, NUM_USERS = 8000, 20, 60


def moody_log(seed: int = 3) -> pd.DataFrame:
    """Of each user's moods one likes even items and the other odd ones; a mood lasts some thirty plays. Neither user
    nor item tells a rating, but the items liked last and the item together do."""
    rng = np.random.default_rng(seed)
    mood, rows = rng.integers(0, 2, NUM_USERS), []
    for at in range(NUM_ROWS):
        user, item = int(rng.integers(NUM_USERS)), int(rng.integers(NUM_ITEMS))
        mood[user] ^= rng.random() < 1 / 30
        stars = 5 if item % 2 == mood[user] else 1
        rows.append((user, item, stars, at))
    frame = pd.DataFrame(rows, columns=["user", "item", "stars", "at"])
    return frame.assign(at=pd.Timestamp("2024-03-01") + pd.to_timedelta(frame["at"], unit="min"))


def write_config(folder: Path, history: dict | None, **changes) -> Path:
    path = folder / "config.yaml"
    if not (folder / "log.csv").exists():
        moody_log().to_csv(folder / "log.csv", index=False)
    features = {
        "path": str(folder / "log*.csv"), "id_type": "int64", "time": "at", "rating": "stars", "task": "rating",
        "threshold": 3, "split_by": "time", "repeats": "all",
    }  # fmt: skip
    content = {
        "name": "moods", "recipe": "interactions", "device": "cpu", "engine": "pandas", "seed": 1,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": features | ({"history": history} if history else {}),
        "model": {"kind": "fm"}, "train": {"epochs": 6, "batch_size": 128, "lr_max": 0.03, "negatives": None},
        "evaluate": {"importance": False, "baselines": [], "ranking": None},
    }  # fmt: skip
    with path.open("w") as file:
        YAML(typ="safe").dump(content | changes, file)
    return path


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moods")
    path = write_config(folder, {"length": 5, "half_life": "6h"})
    return folder, path, Pipeline.from_config(path).train()


def scores(path: Path, ask: pd.DataFrame, out: Path) -> np.ndarray:
    ask.to_parquet(out.with_suffix(".ask.parquet"))
    assert score_run(path, (), None, None, out, raw=str(out.with_suffix(".ask.parquet"))) == 0
    return pd.read_parquet(out)["predicted_target"].to_numpy()


def test_a_label_that_histories_decide_is_learnt(trained):
    run = trained[2]
    print(run.summary["metrics"]["test"]["auc"])
    assert run.summary["metrics"]["test"]["auc"] > 0.8


def test_without_histories_it_is_not(tmp_path):
    run = Pipeline.from_config(write_config(tmp_path, None)).train()
    print(run.summary["metrics"]["test"]["auc"])
    assert run.summary["metrics"]["test"]["auc"] < 0.6
