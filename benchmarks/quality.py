"""How good is the default model beside boosted trees at their best? Real tables, the same rows, splits and metrics.

    python -m benchmarks.quality [--tables adult,flights] [--contenders ours,lightgbm,catboost] [--seeds 5]
                                 [--trials 30] [--threads 1] [--cache FOLDER] [--quick] [--save]

Peers (`make quality-env`) read the rows of our features stage with native categories and stop early on valid log loss,
once at their defaults and once with the settings of the lowest valid log loss of `--trials` random ones
(`quality_peers.drawn` is the space), searched with one seed. Ours is the configuration of the table, without search.
Nothing is chosen by test rows, except the peer that ours is compared with: the best tuned one there.

Every fit is a line of `results.jsonl` in `--cache`, by table, contender, trial, seed and versions, so that a run that
was cut off goes on. The version of ours is the commit: changes that are not committed need another folder. Intervals
are 95 %, by Student's t over the seeds. Peers take `--threads`, ours torch's own.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, commit, finish, needed

with needed():
    import torch

    from gigabatch.features.engines.frame import engine_of
    from gigabatch.models.metrics.pointwise import expected_calibration_error, roc_auc
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.stages.stages import Pipeline

ROOT = Path(__file__).parents[1]
PEERS = ("lightgbm", "catboost")
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile at n - 1 degrees of freedom
METRICS = ("auc", "log_loss", "ece")


def pipeline_of(table: str, folder: str, *overrides: str) -> Pipeline:
    """The table's configuration with its artifacts in `folder`."""
    files = []
    if table == "adult":
        data = ROOT.parent / "shared/data/adult"
        files = [f"features.{split}_path={data}/adult.{end}" for split, end in (("train", "data"), ("test", "test"))]
    kept = (f"artifacts={folder}/artifacts", f"runs={folder}/runs", "device=cpu", "engine=pandas")
    return Pipeline.from_config(str(ROOT / f"conf/{table}.yaml"), *kept, *files, *overrides)


def written(table: str, cache: Path) -> Path:
    """The rows of the features stage as Parquet, with the roles of their columns; the folder's name has their key."""
    features = pipeline_of(table, str(cache)).features()
    folder = cache / f"{table}-{features.artifact.key}"
    if not (folder / "layout.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "valid", "test"):
            frame = features.frame(split)
            engine_of(frame).to_pandas(frame).to_parquet(folder / f"{split}.parquet")
        (target,) = features.schema.targets
        layout = {role: list(features.schema.names(role)) for role in ("categorical", "continuous")}
        (folder / "layout.json").write_text(json.dumps({**layout, "target": target.name}, allow_nan=False))
    return folder


def judged(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """AUC, log loss and expected calibration error (15 bins) of probabilities of class 1."""
    chance, truth = torch.tensor(scores, dtype=torch.float64), torch.tensor(labels, dtype=torch.float64)
    loss = torch.nn.functional.binary_cross_entropy(chance.clamp(1e-15, 1 - 1e-15), truth)
    error = expected_calibration_error(chance, truth)
    return {"auc": float(roc_auc(chance, truth)), "log_loss": float(loss), "ece": float(error)}


def ours(table: str, seed: int) -> tuple[dict[str, float], np.ndarray]:
    """One run of the table's configuration: seconds, and its probabilities of the test rows."""
    with tempfile.TemporaryDirectory() as folder:
        features = pipeline_of(table, folder, f"seed={seed}").features()
        run = features.train()
        test, bundle = features.frame("test"), run.bundle()
        started = time.perf_counter()
        scores = bundle.predict(test)[features.schema.targets[0].name].to_numpy()
        scoring = (time.perf_counter() - started) / len(scores) * 1e6
        return {"train_seconds": run.summary["seconds"]["train"], "seconds_of_1M_rows": scoring}, scores


@contextmanager
def peers_process() -> Iterator[subprocess.Popen[str]]:
    """The process of the peers' environment; it ends when its input does."""
    command = [ROOT / ".venv-quality/bin/python", ROOT / "benchmarks/quality_peers.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def ask(process: subprocess.Popen[str], job: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a job and wait for its answer; without one: the versions, which the process says first."""
    assert process.stdin
    assert process.stdout
    if job:
        process.stdin.write(json.dumps(job, allow_nan=False) + "\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the peers' process ended at {job}; its error is printed above")
    answer: dict[str, Any] = json.loads(line)
    return answer


class Fits:
    """Finished fits, by their key, in a file that grows by a line each."""

    def __init__(self, cache: Path, threads: int) -> None:
        self.cache, self.threads, self.file = cache, threads, cache / "results.jsonl"
        cache.mkdir(parents=True, exist_ok=True)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.done = {row["key"]: row for row in map(json.loads, lines)}

    def keep(self, key: str, row: dict[str, Any]) -> dict[str, Any]:
        self.done[key] = {"key": key, **row}
        with self.file.open("a") as file:
            file.write(json.dumps(self.done[key], allow_nan=False) + "\n")
        return self.done[key]

    def peer(
        self, process: subprocess.Popen[str], versions: str, folder: Path, contender: str, trial: int, seed: int
    ) -> dict[str, Any]:
        """A fit of a peer, from the file where it is there."""
        key = f"{folder.name} {contender} trial {trial} seed {seed} {versions}"
        if key in self.done:
            return self.done[key]
        scores = self.cache / "scores.npy"
        job = {"table": str(folder), "contender": contender, "trial": trial, "seed": seed, "threads": self.threads,
               "scores": str(scores)}  # fmt: skip
        row = ask(process, job)
        return self.keep(key, {**row, **judged(np.load(scores), labels_of(folder))})

    def our(self, table: str, folder: Path, seed: int) -> dict[str, Any]:
        """A run of ours, from the file where it is there."""
        key = f"{folder.name} ours seed {seed} {commit()}"
        if key in self.done:
            return self.done[key]
        row, scores = ours(table, seed)
        return self.keep(key, {**row, **judged(scores, labels_of(folder))})


def labels_of(folder: Path) -> np.ndarray:
    import pandas as pd

    target = json.loads((folder / "layout.json").read_text())["target"]
    labels: np.ndarray = pd.read_parquet(folder / "test.parquet", columns=[target])[target].to_numpy("float64")
    return labels


def row_of(table: str, contender: str, fits: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds, with the half width of the AUC's interval where there are several."""
    row: dict[str, Any] = {"table": table, "contender": contender}
    for name in (*METRICS, "train_seconds", "seconds_of_1M_rows"):
        row[name] = round(float(np.mean([fit[name] for fit in fits])), 5)
    if len(fits) > 1:
        spread = float(np.std([fit["auc"] for fit in fits], ddof=1)) / len(fits) ** 0.5
        row["auc_plus_minus"] = round(STUDENT[len(fits)] * spread, 5)
    return row


def main() -> None:
    flags = arguments(
        __doc__ or "", tables="adult,flights", contenders="ours,lightgbm,catboost", seeds=5, trials=30, threads=1,
        cache="/tmp/gigabatch-quality",
    )  # fmt: skip
    if not 1 <= flags.seeds <= 5:
        raise SystemExit("benchmarks.quality: --seeds is from 1 to 5.")
    seeds, trials = (range(1, 2), 2) if flags.quick else (range(1, flags.seeds + 1), flags.trials)
    chosen, rows = flags.contenders.split(","), []
    fits = Fits(Path(flags.cache), flags.threads)
    for table in flags.tables.split(","):
        folder = written(table, fits.cache)
        if "ours" in chosen:
            rows.append(row_of(table, "ours", [fits.our(table, folder, seed) for seed in seeds]))
        with peers_process() as process:
            versions = json.dumps(ask(process), allow_nan=False)
            for contender in (peer for peer in PEERS if peer in chosen):
                tried = [fits.peer(process, versions, folder, contender, trial, 1) for trial in range(trials + 1)]
                best = 1 + int(np.argmin([fit["valid_loss"] for fit in tried[1:]])) if trials else 0
                for name, trial in {"defaults": 0, **({"tuned": best} if best else {})}.items():
                    found = [fits.peer(process, versions, folder, contender, trial, seed) for seed in seeds]
                    rows.append({**row_of(table, f"{contender} {name}", found), "trial": trial})
    render_table([{name: str(value) for name, value in row.items()} for row in rows], "means over seeds")
    claims: dict[str, tuple[float, float, bool]] = {}
    for table in flags.tables.split(","):
        mine = [row["auc"] for row in rows if row["table"] == table and row["contender"] == "ours"]
        best = [row["auc"] for row in rows if row["table"] == table and row["contender"].endswith("tuned")]
        if mine and best:
            less = mine[0] - max(best)
            claims[f"{table}_less_best"] = (less, -0.001, less > -0.001)
    seconds = {f"{row['table']} {row['contender']}": row["train_seconds"] for row in rows}
    workload = f"{flags.tables}: {len(seeds)} seed(s), {trials} trials of search on valid, {flags.threads} thread(s)"
    finish("quality", workload, seconds, {}, {} if flags.quick else claims, save=flags.save, details={"rows": rows})


if __name__ == "__main__":
    main()
