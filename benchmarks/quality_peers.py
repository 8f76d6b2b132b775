"""The boosted trees of `benchmarks.quality`, in an environment of their own (`make quality-env`).

Reads one job a line from stdin and answers each with one line of JSON; test predictions go to the file that the job
names. It imports nothing of this project, so that it needs none of it.
"""

from __future__ import annotations

import json
import sys
import time
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROUNDS, PATIENCE = 3000, 100
PACKAGES = ("lightgbm", "catboost", "numpy", "pandas")


def drawn(contender: str, trial: int) -> dict[str, Any]:
    """Settings of a trial of the random search; trial 0 has the package's defaults."""
    if trial == 0:
        return {}
    random = np.random.default_rng(trial)

    def log(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    if contender == "lightgbm":
        return {
            "learning_rate": log(0.01, 0.2),
            "num_leaves": round(log(8, 256)),
            "min_child_samples": round(log(5, 300)),
            "colsample_bytree": float(random.uniform(0.4, 1)),
            "subsample": float(random.uniform(0.5, 1)),
            "subsample_freq": 1,
            "reg_lambda": log(1e-3, 30),
            "cat_smooth": log(1, 100),
            "cat_l2": log(1, 100),
            "min_data_per_group": round(log(10, 300)),
        }
    return {
        "learning_rate": log(0.02, 0.2),
        "depth": int(random.integers(4, 9)),
        "l2_leaf_reg": log(1, 30),
        "random_strength": log(0.1, 10),
        "bagging_temperature": float(random.uniform(0, 1)),
        "one_hot_max_size": int(random.choice([2, 10, 50])),
    }


@lru_cache(maxsize=1)
def table(folder: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    layout = json.loads((Path(folder) / "layout.json").read_text())
    return layout, {split: pd.read_parquet(Path(folder) / f"{split}.parquet") for split in ("train", "valid", "test")}


def matrix(contender: str, layout: dict[str, Any], train: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Native categories of the train split for LightGBM (others are missing), text for CatBoost; null is one."""
    columns: dict[str, Any] = {}
    for name in layout["categorical"]:
        text = frame[name].astype("string").fillna("<null>").astype(object)
        if contender == "lightgbm":
            known = train[name].astype("string").fillna("<null>").unique()
            text = pd.Categorical(text.where(text.isin(known)), categories=sorted(known))
        columns[name] = text
    for name in layout["continuous"]:
        columns[name] = frame[name].to_numpy("float64", na_value=np.nan)
    return pd.DataFrame(columns, index=frame.index)


def fitted(job: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Fit one model with early stopping on valid log loss; scoring counts from the frame on."""
    contender, threads = job["contender"], job["threads"]
    layout, frames = table(job["table"])
    labels = {split: frame[layout["target"]].to_numpy("float64") for split, frame in frames.items()}
    started = time.perf_counter()
    train, valid = (matrix(contender, layout, frames["train"], frames[split]) for split in ("train", "valid"))
    if contender == "lightgbm":
        import lightgbm

        model = lightgbm.LGBMClassifier(
            n_estimators=ROUNDS, random_state=job["seed"], n_jobs=threads, verbose=-1, **settings
        )
        stop = lightgbm.early_stopping(PATIENCE, first_metric_only=True, verbose=False)
        model.fit(
            train, labels["train"], eval_X=valid, eval_y=labels["valid"], eval_metric="binary_logloss", callbacks=[stop]
        )
        rounds = model.best_iteration_
    else:
        from catboost import CatBoostClassifier

        bound = {"iterations": ROUNDS} if settings else {}  # its default rate is chosen by its default of 1000 rounds
        model = CatBoostClassifier(
            random_seed=job["seed"], thread_count=threads, od_type="Iter", od_wait=PATIENCE, verbose=False,
            allow_writing_files=False, cat_features=layout["categorical"], **bound, **settings,
        )  # fmt: skip
        model.fit(train, labels["train"], eval_set=(valid, labels["valid"]), use_best_model=True)
        rounds = model.tree_count_
    seconds = time.perf_counter() - started
    chance = np.clip(model.predict_proba(valid)[:, 1], 1e-15, 1 - 1e-15)
    loss = -np.mean(np.where(labels["valid"] == 1, np.log(chance), np.log1p(-chance)))
    started = time.perf_counter()
    scores = model.predict_proba(matrix(contender, layout, frames["train"], frames["test"]))[:, 1]
    scoring = time.perf_counter() - started
    np.save(job["scores"], scores)
    return {"valid_loss": float(loss), "rounds": int(rounds), "train_seconds": seconds,
            "seconds_of_1M_rows": scoring / len(scores) * 1e6}  # fmt: skip


def main() -> None:
    print(json.dumps({name: version(name) for name in PACKAGES}, allow_nan=False), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(fitted(job, drawn(job["contender"], job["trial"])), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
