"""How much of the way from position order to the best reachable order does the trivago model go?

A synthetic log with planted preferences has a known oracle (the true click probabilities). On the test split:
closed = (MRR of the model - MRR of position order) / (MRR of the oracle - MRR of position order), at least 0.70.
The same log with labels drawn at random must leave the model at chance.

    python -m benchmarks.trivago_quality [--rows 400000] [--quick] [--device cuda] [--engine cudf] [--save]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.common import arguments, device_of, finish, needed

with needed():
    from gigabatch.features.engines.frame import engine_of
    from gigabatch.features.synthetic.trivago import write_synthetic_log
    from gigabatch.models.metrics.ranking import grouped_mrr
    from gigabatch.pipeline.stages.stages import Pipeline


def train(folder: Path, device: str, noise: bool, rows: int, engine: str) -> tuple[Any, Any]:
    """The finished run on a fresh synthetic log, and its features."""
    write_synthetic_log(folder / "log", rows, seed=11, noise_labels=noise)
    pipeline = Pipeline.from_config(
        "conf/trivago.yaml",
        f"features.path={folder / 'log'}",
        f"artifacts={folder / 'artifacts'}",
        f"runs={folder / 'runs'}",
        f"device={device}",
        f"engine={engine}",
        "evaluate.importance=false",
    )
    features = pipeline.features()
    return features.train(), features


def on_host(frame: Any) -> pd.DataFrame:
    """A pandas frame, whatever engine made it."""
    return engine_of(frame).to_pandas(frame)


def main() -> None:
    flags = arguments(__doc__ or "", rows=400_000, engine="pandas")
    rows = min(flags.rows, 60_000) if flags.quick else flags.rows
    with tempfile.TemporaryDirectory() as name:
        run, features = train(Path(name) / "planted", flags.device, False, rows, flags.engine)
        test = on_host(features.frame("test"))
        labels, groups = torch.tensor(test["target"].to_numpy()), torch.tensor(test["clickout"].to_numpy())
        position = float(grouped_mrr(-torch.tensor(test["candidate_order"].to_numpy()), labels, groups))
        clickouts = test.drop_duplicates("clickout")[["session_id", "step"]]
        oracle_rows = pd.read_parquet(Path(name) / "planted" / "log" / "oracle.parquet")
        joined = clickouts.merge(oracle_rows, on=["session_id", "step"], how="inner", validate="one_to_one")
        oracle = float(joined["oracle_rr"].mean())
        assert len(joined) == len(clickouts), "every clickout of the test split has its oracle"
        model = run.summary["mrr"]
        noise, noise_features = train(Path(name) / "noise", flags.device, True, min(rows, 100_000), flags.engine)
        test = on_host(noise_features.frame("test"))
        sizes = test.groupby("clickout")["target"].size()
        chance = float(sizes.map(lambda n: sum(1 / rank for rank in range(1, n + 1)) / n).mean())
        seconds, summary, noise_summary = run.summary["seconds"], run.summary, noise.summary
    closed = (model - position) / (oracle - position)
    noise_auc, noise_mrr = noise_summary["auc"], noise_summary["mrr"]
    claims = {
        "share of the distance from position order to the oracle, MRR": (closed, 0.70, closed >= 0.70),
        "AUC on random labels, distance from 0.5": (abs(noise_auc - 0.5), 0.02, abs(noise_auc - 0.5) <= 0.02),
        "MRR on random labels less chance": (abs(noise_mrr - chance), 0.02, abs(noise_mrr - chance) <= 0.02),
    }
    finish(
        "trivago_quality",
        f"synthetic log of {rows:,} rows in the RecSys Challenge 2019 format, {sum(features.rows.values()):,} pairs",
        seconds,
        {},
        {} if flags.quick else claims,
        save=flags.save,
        device=device_of(flags),
        details={"mrr": {"model": model, "position": position, "oracle": oracle, "chance": chance},
                 "auc": summary["auc"], "noise": {"auc": noise_auc, "mrr": noise_mrr}},
    )  # fmt: skip


if __name__ == "__main__":
    main()
