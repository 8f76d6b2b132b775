"""How good are the flights features and model? scikit-learn's gradient boosting on our features, and our model.

Bars: mean test AUC over three seeds on the split by time. Raw columns alone give gradient boosting 0.707.

    python -m benchmarks.flights_quality [--quick] [--device cuda] [--engine cudf] [--save]
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import arguments, device_of, finish, needed

with needed():
    from sklearn.metrics import roc_auc_score

    from benchmarks.peers import gradient_boosting
    from gigabatch.features.engines.frame import engine_of
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.stages.stages import Pipeline


def on_host(frame: Any) -> pd.DataFrame:
    """A pandas frame, whatever engine made it."""
    return engine_of(frame).to_pandas(frame)


def main() -> None:
    flags = arguments(__doc__ or "", seeds=3, engine="pandas")
    seeds = range(1, 2 if flags.quick else flags.seeds + 1)
    rows, seconds = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            shared = (f"artifacts={folder}/artifacts", f"runs={folder}/runs", f"device={flags.device}")
            started = time.perf_counter()
            pipeline = Pipeline.from_config("conf/flights.yaml", *shared, f"seed={seed}", f"engine={flags.engine}")
            features = pipeline.features()
            run = features.train()
            if seed == seeds[0]:
                seconds["whole command"] = time.perf_counter() - started
            frames = {split: on_host(features.frame(split)) for split in ("train", "valid", "test")}
            label = features.schema.targets[0].name
            scores, fit_seconds = gradient_boosting(frames, features.schema, seed)
            seconds[f"gradient boosting, seed {seed}"] = fit_seconds
            seconds[f"our training, seed {seed}"] = run.summary["seconds"]["train"]
            peer = {split: roc_auc_score(frames[split][label], scores[split]) for split in scores}
            ours = {split: run.summary["metrics"][split]["auc"] for split in scores}
            rows.append({"seed": seed, **{f"ours {s}": v for s, v in ours.items()},
                         **{f"boosting {s}": v for s, v in peer.items()}})  # fmt: skip
    render_table(rows, "AUC")
    ours_mean = float(np.mean([row["ours test"] for row in rows]))
    peer_mean = float(np.mean([row["boosting test"] for row in rows]))
    claims = {
        "gradient boosting on our features, test AUC": (peer_mean, 0.765, peer_mean >= 0.765),
        "our model, test AUC": (ours_mean, 0.755, ours_mean >= 0.755),
        "our model less gradient boosting": (ours_mean - peer_mean, -0.010, ours_mean - peer_mean >= -0.010),
        "seconds of the whole command": (seconds["whole command"], 180, seconds["whole command"] <= 180),
    }
    boosting = np.median([v for k, v in seconds.items() if k.startswith("gradient")])
    training = np.median([v for k, v in seconds.items() if k.startswith("our")])
    finish(
        "flights_quality",
        f"New York flights 2013, split by time, {len(rows)} seed(s), engine {flags.engine}",
        seconds,
        {"gradient_boosting_fit": float(boosting / training)},
        {} if flags.quick else claims,
        save=flags.save,
        device=device_of(flags),
        details={"auc": rows},
    )


if __name__ == "__main__":
    main()
