"""Peers that several benchmarks compare with."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

from gigabatch.features.schema import Schema

MOST_CATEGORIES = 254  # scikit-learn's limit is 255, one of which is kept for the rest


def gradient_boosting(
    frames: dict[str, pd.DataFrame], schema: Schema, seed: int, iterations: int = 300
) -> tuple[dict[str, np.ndarray], float]:
    """scikit-learn's HistGradientBoostingClassifier on our features: scores of valid and test, and seconds to fit.

    Categories are numbered by frequency on the train split; those beyond the limit and unseen ones are missing.
    """
    categorical = schema.names("categorical")
    index = {name: pd.Index(frames["train"][name].value_counts().index[:MOST_CATEGORIES]) for name in categorical}

    def matrix(frame: pd.DataFrame) -> pd.DataFrame:
        columns: dict[str, Any] = {}
        for name in categorical:
            codes = index[name].get_indexer(frame[name]).astype("float64")
            columns[name] = np.where(codes < 0, np.nan, codes)
        for name in schema.names("continuous"):
            columns[name] = frame[name].to_numpy("float64", na_value=np.nan)
        return pd.DataFrame(columns)

    from sklearn.ensemble import HistGradientBoostingClassifier

    started = time.perf_counter()
    model = HistGradientBoostingClassifier(max_iter=iterations, random_state=seed, categorical_features=categorical)
    model.fit(matrix(frames["train"]), frames["train"][schema.targets[0].name].to_numpy())
    seconds = time.perf_counter() - started
    return {split: model.predict_proba(matrix(frames[split]))[:, 1] for split in ("valid", "test")}, seconds
