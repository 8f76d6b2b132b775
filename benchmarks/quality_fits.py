"""What `benchmarks.quality` fits and judges: the tables' rows as files, our runs, the peers' process, finished fits."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import machine, needed
from benchmarks.quality_peers import NETS, bounds, drawn
from benchmarks.quality_tables import ROOT, Table, plain_config

with needed():
    import torch

    from gigabatch.features.engines.frame import engine_of
    from gigabatch.models.metrics.pointwise import accuracy, expected_calibration_error, r2, rmse, roc_auc
    from gigabatch.models.metrics.ranking import grouped_mrr
    from gigabatch.pipeline.stages.stages import Pipeline

KEPT = ROOT / "benchmarks/results/quality-peers.jsonl"  # fits of peers, which no change of ours makes anew
PYTHON = ROOT / ".venv-quality/bin/python"
UNJUDGED = ("evaluate.importance=false", "evaluate.baselines=[]")  # of our runs: what takes time and is not read here
HIGHER = {"auc": True, "log_loss": False, "rmse": False}  # the first metric of each task: whether more is better
FIRST = {"binary": "auc", "multiclass": "log_loss", "regression": "rmse"}
COMMON = 400  # elements of lists that peers have a column for
Row = dict[str, Any]


def judged(task: str, scores: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None) -> dict[str, float]:
    """The metrics of a task's predictions, the first one first.

    scores: chances of label 1 [n], of each class [n, K], or values [n]. labels: [n] numbers, or class numbers.
    Returns AUC, log loss and expected calibration error (15 bins; with `groups` also the mean reciprocal rank); for
    classes log loss, accuracy, the mean AUC of one class against the rest, and calibration error; RMSE and R².
    """
    found, truth = torch.tensor(scores, dtype=torch.float64), torch.tensor(labels, dtype=torch.float64)
    if task == "regression":
        return {"rmse": float(rmse(found, truth)), "r2": float(r2(found, truth))}
    error = float(expected_calibration_error(found, truth.long()))
    if task == "binary":
        loss = torch.nn.functional.binary_cross_entropy(found.clamp(1e-15, 1 - 1e-15), truth)
        ranks = {} if groups is None else {"mrr": float(grouped_mrr(found, truth, torch.tensor(groups)))}
        return {"auc": float(roc_auc(found, truth)), "log_loss": float(loss), "ece": error, **ranks}
    loss = -found.gather(1, truth.long()[:, None]).clamp(min=1e-15).log().mean()
    areas = [float(roc_auc(found[:, k], (truth == k).double())) for k in range(found.shape[1])]
    return {
        "log_loss": float(loss),
        "accuracy": float(accuracy(found, truth.long())),
        "auc_ovr": float(np.mean(areas)),
        "ece": error,
    }


def pipeline_of(path: Path, cache: Path, device: str, *overrides: str) -> Pipeline:
    """The configuration's pipeline; its artifacts are kept in the cache, so that a stage is computed once.

    device: as the setting, or `cuda+cudf`, with the engine behind the plus; without one it is pandas.
    """
    place, _, engine = device.partition("+")
    kept = (f"artifacts={cache}/artifacts", f"runs={cache}/runs", f"device={place}", f"engine={engine or 'pandas'}")
    overrides = (*UNJUDGED, *overrides)
    return Pipeline.from_config(str(path), *kept, *overrides)


def written(table: Table, cache: Path, device: str = "cpu", quick: bool = False) -> Path:
    """The rows of the features stage as Parquet, with the roles of their columns.

    The folder's name has a hash of them, so that peers need no new fit where other code makes the same rows. List
    columns, which peers do not read, become the columns of `flat_lists`. Raises ValueError for a table of several
    targets.
    """
    features = pipeline_of(plain_config(table, cache, quick), cache, device).features()
    schema = features.schema
    if len(schema.targets) != 1:
        raise ValueError(f"benchmarks.quality: {table.name} has {len(schema.targets)} targets, peers learn one.")
    (target,) = schema.targets
    groups = schema.names("group")
    layout = {
        "task": target.task, "target": target.name, "group": groups[0] if groups else None,
        **{role: list(schema.names(role)) for role in ("categorical", "continuous")},
    }  # fmt: skip
    frames = {split: engine_of(frame).to_pandas(frame) for split, frame in _splits(features)}
    names = list(schema.names())
    for column in schema.lists:
        flat = {
            split: flat_lists(frames["train"], frame, column.name, column.shares) for split, frame in frames.items()
        }
        for split, found in flat.items():
            frames[split] = pd.concat([frames[split].drop(columns=column.name), found], axis=1)
        for one in found.columns:
            layout["continuous" if pd.api.types.is_numeric_dtype(found[one]) else "categorical"].append(one)
        names += list(found.columns)
    digest = hashlib.blake2b(json.dumps(layout, allow_nan=False).encode(), digest_size=8)
    for frame in frames.values():
        digest.update(pd.util.hash_pandas_object(frame[names], index=False).to_numpy().tobytes())
    folder = cache / "rows" / f"{table.name}-{digest.hexdigest()}"
    if not (folder / "layout.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for split, frame in frames.items():
            frame.to_parquet(folder / f"{split}.parquet")
        (folder / "layout.json").write_text(json.dumps(layout, allow_nan=False))
    return folder


def flat_lists(train: pd.DataFrame, frame: pd.DataFrame, name: str, shares: str | None) -> pd.DataFrame:
    """A list column as people hand it to boosted trees: its length, its last three elements, how often each of the
    `COMMON` commonest elements of the train split is in it, and with `shares` how often that column's value is."""
    lists = [[] if one is None else list(one) for one in frame[name]]
    counts = pd.Series([element for one in train[name] for element in one]).value_counts(sort=True)
    common = {element: place for place, element in enumerate(sorted(counts.index[:COMMON]))}
    hot = np.zeros((len(lists), len(common)), "float32")
    for row, one in enumerate(lists):
        for element in one:
            if element in common:
                hot[row, common[element]] += 1
    found: dict[str, Any] = {f"{name} length": np.array([len(one) for one in lists], "float32")}
    for back in (1, 2, 3):
        found[f"{name} -{back}"] = np.array([one[-back] if len(one) >= back else None for one in lists], object)
    if shares is not None:
        own = [one.count(value) for one, value in zip(lists, frame[shares], strict=True)]
        found[f"{name} has {shares}"] = np.array(own, "float32")
    bag = pd.DataFrame(hot, columns=[f"{name} {element}" for element in common], index=frame.index)
    return pd.concat([pd.DataFrame(found, index=frame.index), bag], axis=1)


def _splits(features: Any) -> list[tuple[str, Any]]:
    return [(split, features.frame(split)) for split in ("train", "valid", "test")]


def ours(path: Path, cache: Path, device: str, seed: int, *overrides: str) -> tuple[Row, np.ndarray]:
    """One run of a configuration: seconds and valid log loss, and its predictions of the test rows."""
    features = pipeline_of(path, cache, device, f"seed={seed}", *overrides).features()
    run, test = features.train(), features.frame("test")
    bundle = run.bundle()
    started = time.perf_counter()
    predictions = engine_of(test).to_pandas(bundle.predict(test)).to_numpy("float64")
    scoring = (time.perf_counter() - started) / len(predictions) * 1e6
    valid = run.summary["metrics"]["valid"]
    seconds = run.summary["seconds"]["encode"] + run.summary["seconds"]["train"]  # peers' matrices are in theirs
    row = {"train_seconds": seconds, "seconds_of_1M_rows": scoring,
           "valid_loss": valid["logloss"] if valid["logloss"] is not None else valid["rmse"]}  # fmt: skip
    return row, predictions[:, 0] if predictions.shape[1] == 1 else predictions


class Peers:
    """The process of the peers' environment, started anew where a fit was ended; it ends when its input does."""

    def __init__(self, python: Path = PYTHON) -> None:
        self.python, self.process = python, None
        if not python.exists():
            raise SystemExit(f"benchmarks.quality: {python} is not there. Run make quality-env, or --contenders ours.")
        self.versions = self._start()

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> dict[str, dict[str, str]]:
        command = [self.python, ROOT / "benchmarks/quality_peers.py"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return json.loads(self.process.stdout.readline())

    def _stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def ask(self, job: Row, seconds: float) -> Row | None:
        """The answer to a job; None where it took more than `seconds`, in which case its process was ended.

        Raises RuntimeError where the process ended by itself.
        """
        if self.process is None:
            self._start()
        over = threading.Event()
        timer = threading.Timer(seconds, lambda: (over.set(), self.process.kill()))
        timer.start()
        try:
            self.process.stdin.write(json.dumps(job, allow_nan=False) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if over.is_set():
            self._stop()
            return None
        if not line:
            self._stop()
            raise RuntimeError(f"the peers' process ended at {job}; its error is printed above")
        answer: Row = json.loads(line)
        return answer


def package_sources(root: Path = ROOT) -> str:
    """A hash of the package's Python files and of what they are called."""
    digest = hashlib.blake2b(digest_size=6)
    for folder in ("gigabatch", "features", "loaders", "models", "pipeline"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def lines_of(file: Path) -> list[Row]:
    """The fits of a file; none where it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Fits:
    """Finished fits, by their key, in a file that grows by a line each, beside those of peers in `KEPT`.

    A peer's fit follows from rows, settings, seed and versions, and not from our code: hours of them are made once, and
    each line says on which machine and day.

    Parameters
    ----------
    cache
        Folder of the file, the tables and the artifacts.
    threads
        Of a peer's fit.
    seconds
        After which a peer's fit ends: trees keep their best round, a network has no result.
    """

    def __init__(self, cache: Path, threads: int, seconds: float, device: str = "cpu", quick: bool = False) -> None:
        self.cache, self.threads, self.seconds = cache, threads, seconds
        self.device, self.quick, self.file = device, quick, cache / "results.jsonl"
        self.sources = package_sources()  # of the code that was imported; what is edited later is not what runs here
        cache.mkdir(parents=True, exist_ok=True)
        self.done = {row["key"]: row for row in [*lines_of(KEPT), *lines_of(self.file)]}

    def keep(self, key: str, row: Row) -> Row:
        self.done[key] = {"key": key, **row}
        with self.file.open("a") as file:
            file.write(json.dumps(self.done[key], allow_nan=False) + "\n")
        shown = ", ".join(f"{name} {row[name]:.5g}" for name in (*HIGHER, "train_seconds") if name in row)
        print(f"{key.partition(' {')[0]}: {shown or row}", file=sys.stderr, flush=True)
        return self.done[key]

    def commit_peers(self) -> None:
        """Add the fits of peers that are in the cache to `KEPT`; those of quick runs stay out."""
        own = {row["key"]: row for row in [*lines_of(KEPT), *lines_of(self.file)] if "machine" in row}
        if not self.quick:
            KEPT.write_text("".join(json.dumps(own[key], allow_nan=False) + "\n" for key in sorted(own)))

    def peer(self, peers: Peers, folder: Path, contender: str, trial: int, seed: int) -> Row:
        """A fit of a peer, from the file where it is there; `cut_off` says that it has none, after how many seconds.

        One that its time ended is made again where there is more of it.
        """
        settings = {**drawn(contender, trial), **bounds(contender, self.quick)}
        known = json.dumps([settings, peers.versions[contender]], allow_nan=False, sort_keys=True)
        key = f"{folder.name} {contender} trial {trial} seed {seed} {{{known}}}"
        found = self.done.get(key)
        if found and not (found.get("out_of_time") and found["limit"] < self.seconds):
            return found
        with tempfile.TemporaryDirectory() as temporary:
            scores = Path(temporary) / "scores.npy"
            job = {"table": str(folder), "contender": contender, "trial": trial, "seed": seed, "threads": self.threads,
                   "seconds": self.seconds, "quick": self.quick, "scores": str(scores)}  # fmt: skip
            # Trees end by themselves, and then predict.
            answer = peers.ask(job, self.seconds if contender in NETS else 3 * self.seconds + 60)
            where = {"limit": self.seconds, "machine": machine(), "date": datetime.now(UTC).date().isoformat()}
            if answer is None:
                return self.keep(key, {"out_of_time": True, "cut_off": self.seconds, **where})
            return self.keep(key, {**answer, **where, **self.judged(folder, np.load(scores))})

    def our(self, name: str, path: Path, folder: Path, seed: int, *overrides: str) -> Row:
        """A run of ours, from the file where it is there."""
        key = f"{folder.name} {' '.join((name, *overrides))} seed {seed} {self.sources} {self.device}"
        if key in self.done:
            return self.done[key]
        row, scores = ours(path, self.cache, self.device, seed, *overrides)
        return self.keep(key, {**row, **self.judged(folder, scores)})

    def judged(self, folder: Path, scores: np.ndarray) -> dict[str, float]:
        layout = json.loads((folder / "layout.json").read_text())
        columns = [name for name in (layout["target"], layout["group"]) if name]
        rows = pd.read_parquet(folder / "test.parquet", columns=columns)
        groups = pd.factorize(rows[layout["group"]])[0] if layout["group"] else None
        return judged(layout["task"], scores, rows[layout["target"]].to_numpy("float64"), groups)
