"""Recommenders over the full catalogue, beside the linear models that should not be beaten by name alone.

    python -m benchmarks.recommenders [--quick] [--device cuda] [--users 1000] [--items 800] [--models ncf,mf,two_tower]
                                      [--seeds 3] [--save]

Synthetic MovieLens (`gigabatch.features.synthetic.movielens`: Zipf's tail, log-normal activity, tastes that drift);
each user's last rating is the test and the one before valid. Every item that the user does not have in train competes;
NDCG@10 and HR@10 are means over users, then over seeds of data and training together.

- ours: conf/movielens.yaml as it is shipped (ncf), and with the changes of `CHANGES` for the other models.
- EASE (Steck, WWW 2019, arXiv 1905.03375) in NumPy, closed form; its l2 is the best on valid of `L2`.
- item-kNN in NumPy: cosines with shrinkage, the k best neighbours, both chosen on valid.
- popularity: train rows of an item.

Claim for each model: NDCG@10 less that of EASE is at least 0, on the mean over seeds. Quality alone is judged; seconds
are those of a whole run of the pipeline.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.common import arguments, device_of, finish, needed

with needed():
    from gigabatch.features.synthetic.movielens import write_movielens
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.stages.stages import Pipeline

CONFIG = Path(__file__).resolve().parents[1] / "conf" / "movielens.yaml"
# What conf/movielens.yaml says of these models beside its own.
CHANGES: dict[str, list[str]] = {
    "ncf": [],
    "mf": ["model={kind: mf, dim: 64, loss: softmax}"],
    "two_tower": [
        "model={kind: two_tower, loss: softmax, temperature: 0.2, layers: []}",
        "train.negatives.per_positive=1",
        "train.lr_max=0.005",
        "train.select=last",  # the valid loss is of probabilities, and this loss is of ranks
    ],
}
SPLITS = ("train", "valid", "test")
L2 = (30.0, 100.0, 200.0, 300.0, 500.0, 1000.0)
NEIGHBOURS, SHRINKAGE = (20, 50, 100, 200), (0.0, 10.0, 100.0)


def ease(seen: np.ndarray, l2: float) -> np.ndarray:
    """Scores [U, I] of X B, B = I - P / diag(P), P = (X'X + l2 I)^-1. seen: float64 [U, I] of 0 and 1."""
    inverse = np.linalg.inv(seen.T @ seen + l2 * np.eye(seen.shape[1]))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return seen @ weights


def item_knn(seen: np.ndarray, neighbours: int, shrinkage: float) -> np.ndarray:
    """Scores [U, I]: sums of an item's shrunken cosines with the user's items, its `neighbours` most similar ones."""
    together = seen.T @ seen
    lengths = np.sqrt(np.maximum(np.diag(together), 1e-9))
    similar = together / (np.outer(lengths, lengths) + shrinkage)
    np.fill_diagonal(similar, 0.0)
    if neighbours < len(similar):
        least = np.partition(similar, -neighbours, axis=1)[:, -neighbours]
        similar = np.where(similar >= least[:, None], similar, 0.0)
    return seen @ similar.T


def at_ten(scores: np.ndarray, seen: np.ndarray, users: np.ndarray, items: np.ndarray) -> tuple[float, float]:
    """NDCG@10 and HR@10 of one item for each of these users, among the items that the user has not seen."""
    rows = np.where(seen[users] > 0, -np.inf, scores[users])
    own = scores[users, items]
    rank = (rows > own[:, None]).sum(1)
    return float(np.where(rank < 10, 1 / np.log2(rank + 2), 0.0).mean()), float((rank < 10).mean())


def peers(splits: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """NDCG@10 and HR@10 on test of the three, from the features stage's frames."""
    users, items = (np.unique(splits["train"][name]) for name in ("user_id", "item_id"))
    placed = {}
    for name, frame in splits.items():
        known = frame[frame["item_id"].isin(items)]  # others cannot be ranked by any of them
        placed[name] = np.searchsorted(users, known["user_id"]), np.searchsorted(items, known["item_id"])
    seen = np.zeros((len(users), len(items)))
    seen[placed["train"]] = 1.0

    def best(score: Callable[..., np.ndarray], settings: list[tuple[Any, ...]]) -> tuple[float, float]:
        chosen = max(settings, key=lambda one: at_ten(score(seen, *one), seen, *placed["valid"])[0])
        return at_ten(score(seen, *chosen), seen, *placed["test"])

    return {
        "popularity": best(lambda rows: np.tile(rows.sum(0), (len(rows), 1)), [()]),
        "item-kNN": best(item_knn, list(product(NEIGHBOURS, SHRINKAGE))),
        "EASE": best(ease, [(l2,) for l2 in L2]),
    }


def measured(folder: Path, seed: int, users: int, items: int, models: list[str], device: str) -> dict[str, Any]:
    """By who: (NDCG@10, HR@10, seconds; None where they are not a run of ours)."""
    write_movielens(folder / "data", "ml-100k", users, items, seed=seed)
    found: dict[str, Any] = {}
    for model in models:
        places = [f"artifacts={folder / 'artifacts'}", f"runs={folder / 'runs' / model}"]
        given = [f"features.path={folder / 'data'}", f"seed={seed}", f"device={device}", *places, *CHANGES[model]]
        pipeline = Pipeline.from_config(CONFIG, *given)
        started = time.perf_counter()
        ranked = pipeline.train().summary["ranking"]["catalogue"]
        found[model] = ranked["ndcg@10"], ranked["hr@10"], time.perf_counter() - started
        features = pipeline.features()
    splits = {name: features.frame(name).to_pandas() if device == "cuda" else features.frame(name) for name in SPLITS}
    return {name: (*both, None) for name, both in peers(splits).items()} | found


def main() -> None:
    flags = arguments(__doc__ or "", users=1000, items=800, models=",".join(CHANGES), seeds=3)
    models = flags.models.split(",")
    if unknown := set(models) - set(CHANGES):
        raise SystemExit(f"--models {flags.models}: unknown {', '.join(sorted(unknown))}. Known: {', '.join(CHANGES)}.")
    users, items, seeds = (200, 200, 1) if flags.quick else (flags.users, flags.items, flags.seeds)
    device = device_of(flags).type
    runs = []
    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measured(Path(folder), seed, users, items, models, device))
    names = list(runs[0])
    ndcg, hits = ({name: mean(run[name][k] for run in runs) for name in names} for k in (0, 1))
    render_table(
        [{"who": name, "NDCG@10": ndcg[name], "HR@10": hits[name]} for name in names],
        f"the full catalogue: {users:,} users, {items:,} items, {seeds} seed(s)",
    )
    less = {name: ndcg[name] - ndcg["EASE"] for name in models}
    claims = {f"ndcg_less_ease {name}": (value, 0.0, value >= 0) for name, value in less.items()}
    claims["popularity's share of EASE's NDCG@10"] = (
        ndcg["popularity"] / ndcg["EASE"],
        0.6,
        ndcg["popularity"] <= 0.6 * ndcg["EASE"],
    )
    finish(
        "recommenders",
        f"synthetic MovieLens, {users:,} users x {items:,} items, leave one out, full catalogue, {seeds} seed(s)",
        {name: mean(run[name][2] for run in runs) for name in models},
        {f"{name} / EASE, NDCG@10": ndcg[name] / ndcg["EASE"] for name in models},
        {} if flags.quick else claims,
        save=flags.save,
        details={"ndcg@10": [{k: round(v[0], 4) for k, v in run.items()} for run in runs], "hr@10": hits},
        device=device,
    )


if __name__ == "__main__":
    main()
