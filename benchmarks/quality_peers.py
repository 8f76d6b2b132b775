"""The peers of `benchmarks.quality`, in an environment of their own (`make quality-env`).

Reads one job a line from stdin and answers each with one line of JSON; test predictions go to the file that the job
names. It imports nothing of this project, so that it needs none of it.

Boosted trees stop early on the valid loss (log loss; squared error of numbers), and after `seconds` at the best round
so far. Networks are pytabkit's at its tuned defaults, RealMLP-TD and TabM-D, whose best epoch is that of the lowest
valid loss, too; label smoothing is off, as pytabkit advises where log loss counts. Nulls among their numbers are the
train split's median, and a column of 0 and 1 says where.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
import warnings
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROUNDS, PATIENCE = 3000, 100
QUICK_ROUNDS, QUICK_EPOCHS = 30, 2
PACKAGES = {
    "lightgbm": ("lightgbm",),
    "catboost": ("catboost",),
    "realmlp": ("pytabkit", "torch", "scikit-learn"),
    "tabm": ("pytabkit", "torch", "scikit-learn"),
}
TREES, NETS = ("lightgbm", "catboost"), ("realmlp", "tabm")
LOSSES = {  # by task: of LightGBM, of CatBoost, of pytabkit
    "binary": ("binary_logloss", "Logloss", "cross_entropy"),
    "multiclass": ("multi_logloss", "MultiClass", "cross_entropy"),
    "regression": ("l2", "RMSE", "rmse"),
}


def drawn(contender: str, trial: int) -> dict[str, Any]:
    """Settings of a trial of the random search; trial 0 has the package's defaults, networks have no other."""
    if trial == 0:
        return {}
    if contender not in TREES:
        raise ValueError(f"{contender} has no search: trial {trial}")
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


def bounds(contender: str, quick: bool = False) -> dict[str, int]:
    """What bounds a fit beside its seconds: rounds and patience of trees; of networks the epochs of a quick fit."""
    if contender in TREES:
        return {"rounds": QUICK_ROUNDS if quick else ROUNDS, "patience": PATIENCE}
    return {"n_epochs": QUICK_EPOCHS} if quick else {}


@lru_cache(maxsize=1)
def table(folder: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    layout = json.loads((Path(folder) / "layout.json").read_text())
    return layout, {split: pd.read_parquet(Path(folder) / f"{split}.parquet") for split in ("train", "valid", "test")}


def text_of(column: pd.Series) -> pd.Series:
    """Categories as text, null as one. Whole numbers are written alike beside nulls, where pandas reads floats."""
    text = column.astype("string")
    if pd.api.types.is_float_dtype(column):
        text = text.str.removesuffix(".0")
    return text.fillna("<null>")


def matrix(contender: str, layout: dict[str, Any], train: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Native categories of the train split for LightGBM (others are missing), text for the others; null is one."""
    columns: dict[str, Any] = {}
    for name in layout["categorical"]:
        text = text_of(frame[name]).astype(object)
        if contender == "lightgbm":
            known = text_of(train[name]).unique()
            text = pd.Categorical(text.where(text.isin(known)), categories=sorted(known))
        columns[name] = text
    for name in layout["continuous"]:
        numbers = frame[name].to_numpy("float64", na_value=np.nan)
        if contender in NETS:
            seen = train[name].to_numpy("float64", na_value=np.nan)
            if np.isnan(seen).any():
                columns[f"{name} is null"] = np.isnan(numbers).astype("float32")
            median = 0.0 if np.isnan(seen).all() else np.nanmedian(seen)
            numbers = np.where(np.isnan(numbers), median, numbers).astype("float32")
        columns[name] = numbers
    return pd.DataFrame(columns, index=frame.index)


def labels_of(layout: dict[str, Any], frame: pd.DataFrame) -> np.ndarray:
    """[n] numbers, or class numbers (of binary targets 0 and 1)."""
    kind = "float64" if layout["task"] == "regression" else "int64"
    labels: np.ndarray = frame[layout["target"]].to_numpy(kind)
    return labels


def predicted(model: Any, task: str, rows: pd.DataFrame) -> np.ndarray:
    """[n] values or chances of label 1, or [n, classes] chances."""
    if task == "regression":
        return np.asarray(model.predict(rows), "float64").reshape(-1)
    chances = np.asarray(model.predict_proba(rows), "float64")
    return chances[:, 1] if task == "binary" else chances


def valid_loss(task: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean log loss, or the root of the mean squared error."""
    if task == "regression":
        return float(np.sqrt(np.mean((predictions - labels) ** 2)))
    if task == "binary":
        predictions = np.stack([1 - predictions, predictions], 1)
    return float(-np.log(np.maximum(predictions[np.arange(len(labels)), labels], 1e-15)).mean())


class OutOfTime:
    """Callback of LightGBM and CatBoost that ends a fit after `seconds`, at the best round so far."""

    order, before_iteration = 50, False  # LightGBM's: after the metrics of a round, after its early stopping

    def __init__(self, seconds: float) -> None:
        self.end, self.out, self.losses = time.perf_counter() + seconds, False, []

    def __call__(self, env: Any) -> None:
        self.losses.append(env.evaluation_result_list[0][2])
        if time.perf_counter() > self.end:
            from lightgbm.callback import EarlyStopException

            self.out = True
            raise EarlyStopException(int(np.argmin(self.losses)), env.evaluation_result_list)

    def after_iteration(self, info: Any) -> bool:
        self.out = time.perf_counter() > self.end
        return not self.out


def trees(job: dict[str, Any], task: str, settings: dict[str, Any], data: Any, clock: OutOfTime) -> tuple[Any, int]:
    """The fitted model and its number of rounds. data: rows and labels of train, then of valid."""
    (train, train_labels), (valid, valid_labels) = data
    limit = bounds(job["contender"], job["quick"])
    of_lightgbm, of_catboost, _ = LOSSES[task]
    if job["contender"] == "lightgbm":
        import lightgbm

        kind = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
        model = kind(
            n_estimators=limit["rounds"], random_state=job["seed"], n_jobs=job["threads"], verbose=-1, **settings
        )
        stop = lightgbm.early_stopping(limit["patience"], first_metric_only=True, verbose=False)
        model.fit(
            train, train_labels, eval_X=valid, eval_y=valid_labels, eval_metric=of_lightgbm, callbacks=[stop, clock]
        )
        return model, int(model.best_iteration_)
    from catboost import CatBoostClassifier, CatBoostRegressor

    # Its default rate is chosen by its default of 1000 rounds.
    rounds = {"iterations": limit["rounds"]} if settings or job["quick"] else {}
    model = (CatBoostRegressor if task == "regression" else CatBoostClassifier)(
        random_seed=job["seed"], thread_count=job["threads"], od_type="Iter", od_wait=limit["patience"], verbose=False,
        allow_writing_files=False, loss_function=of_catboost,
        cat_features=[name for name in train.columns if train[name].dtype == object], **rounds, **settings,
    )  # fmt: skip
    model.fit(train, train_labels, eval_set=(valid, valid_labels), use_best_model=True, callbacks=[clock])
    return model, int(model.tree_count_)


def select_tabm_by_log_loss() -> None:
    """Correct how pytabkit 1.7.3 takes TabM's best epoch: it gives probabilities to a cross-entropy of logits, so that
    too sure epochs win (on adult a valid loss of .45 falls for 22 epochs)."""
    import torch
    from pytabkit.models.alg_interfaces import tabm_interface
    from pytabkit.models.training.metrics import Metrics

    class OfProbabilities:
        @staticmethod
        def apply(predictions: Any, labels: Any, name: str) -> Any:
            is_loss = name == "cross_entropy"
            return Metrics.apply(torch.log(predictions.clamp_min(1e-30)) if is_loss else predictions, labels, name)

    tabm_interface.Metrics = OfProbabilities


def network(job: dict[str, Any], task: str, layout: dict[str, Any], data: Any) -> Any:
    """The fitted model of pytabkit. data: rows and labels of train, then of valid."""
    warnings.filterwarnings("ignore")  # torch's and Lightning's, of what pytabkit calls
    import pytabkit

    for name in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)

    if job["contender"] == "tabm":
        select_tabm_by_log_loss()
    (train, train_labels), (valid, valid_labels) = data
    task_name = "Regressor" if task == "regression" else "Classifier"
    kind = getattr(pytabkit, f"{'RealMLP_TD' if job['contender'] == 'realmlp' else 'TabM_D'}_{task_name}")
    smoothing = {"use_ls": False} if job["contender"] == "realmlp" and task != "regression" else {}
    model = kind(
        device="cpu", n_threads=job["threads"], random_state=job["seed"], val_metric_name=LOSSES[task][2], **smoothing,
        **bounds(job["contender"], job["quick"]),
    )  # fmt: skip
    return model.fit(train, train_labels, valid, valid_labels, cat_col_names=layout["categorical"])


def fitted(job: dict[str, Any]) -> dict[str, Any]:
    """Fit one model on the train split and predict the test rows; scoring counts from the frame on."""
    contender, settings = job["contender"], drawn(job["contender"], job["trial"])
    layout, frames = table(job["table"])
    importlib.import_module(PACKAGES[contender][0])  # which takes seconds, and is no part of the fit
    task, clock = layout["task"], OutOfTime(job["seconds"])
    labels = {split: labels_of(layout, frame) for split, frame in frames.items()}
    started = time.perf_counter()
    train, valid = (matrix(contender, layout, frames["train"], frames[split]) for split in ("train", "valid"))
    data = (train, labels["train"]), (valid, labels["valid"])
    if contender in TREES:
        model, rounds = trees(job, task, settings, data, clock)
    else:
        model, rounds = network(job, task, layout, data), None
    seconds = time.perf_counter() - started
    loss = valid_loss(task, predicted(model, task, valid), labels["valid"])
    started = time.perf_counter()
    scores = predicted(model, task, matrix(contender, layout, frames["train"], frames["test"]))
    scoring = time.perf_counter() - started
    np.save(job["scores"], scores)
    return {"valid_loss": loss, "rounds": rounds, "out_of_time": clock.out, "train_seconds": seconds,
            "seconds_of_1M_rows": scoring / len(scores) * 1e6}  # fmt: skip


def installed() -> dict[str, dict[str, str]]:
    """Versions of what each contender needs; those that lack something are left out."""
    found = {}
    for contender, packages in PACKAGES.items():
        try:
            found[contender] = {name: version(name) for name in packages}
        except ModuleNotFoundError:  # PackageNotFoundError
            continue
    return found


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    print(json.dumps(installed(), allow_nan=False), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(fitted(json.loads(line)), allow_nan=False), file=answers, flush=True)


if __name__ == "__main__":
    main()
