"""Does training without any setting learn? Nine tables, each against the best of twelve configurations.

    python -m benchmarks.defaults [--quick] [--save] [--tables digits,shop,...] [--cache FOLDER]

Tables (`defaults_tables.py`): UCI adult, New York flights, pairs of a synthetic trivago log, the pair table (2,000,000
rows), a shop's orders, and four of scikit-learn or made here; binary, multiclass and regression, 1,000 to 1,600,000
train rows. The model is the default one (wide tables of rare ids are 16 wide at most, which is no training setting).

The twelve are batch sizes a factor of four apart, two learning rates and two numbers of epochs, by the size of the
table; the best of them is the one with the highest metric on the *test* rows, so nobody could have picked it. Without
settings a training has the mean over the seeds, two for small tables. Bounds: .005 of AUC (for classes the mean of one
against the rest), .01 of R². The constant is the train split's mean or shares of classes, by the loss on the test rows.

Finished runs are kept in `--cache`, so that an interrupted benchmark goes on. Runs share the cores, one thread each;
their seconds are therefore no claim.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.batch_scaling_tables import SPLITS
from benchmarks.common import arguments, finish
from benchmarks.defaults_tables import TABLES

BOUNDS = {"AUC": 0.005, "R²": 0.01}
# By the most train rows: batch sizes, learning rates, epochs.
GRIDS = [
    (10_000, (64, 256, 1024), (0.01, 0.03), (10, 40)),
    (500_000, (256, 1024, 4096), (0.01, 0.03), (3, 10)),
    (10**10, (1024, 4096, 16_384), (0.01, 0.03), (1, 2)),
]
SMALL_ROWS, SEEDS = 50_000, (1, 2)
QUICK = "digits,friedman"


@lru_cache(maxsize=1)
def splits(cache: str, name: str) -> dict[str, Any]:
    """Packed splits of a table, made where they are not there yet."""
    from gigabatch.loaders.tables.packed import PackedTable

    folder = Path(cache) / f"defaults-{name}"
    if not (folder / SPLITS[-1] / "layout.json").exists():
        for split, table in next(table for table in TABLES if table.name == name).make(Path(cache)).items():
            table.save(folder / split)
    return {split: PackedTable.load(folder / split, mmap=False) for split in SPLITS}


def train(cache: str, name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One training: its metric and loss on the test rows, the constant's loss, and what the rule filled in."""
    import torch

    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
    from gigabatch.pipeline.config.config import TrainSettings
    from gigabatch.pipeline.training.defaults import id_sizes, settle
    from gigabatch.pipeline.training.train import table_loss, train_model

    tables = splits(cache, name)
    schema, rows = tables["train"].schema, len(tables["train"])
    shape = next(table.model for table in TABLES if table.name == name)
    torch.manual_seed(seed)
    inputs = ModelInputs(id_sizes(schema), len(schema.floats), schema.num_outputs)
    loss = TargetLoss([(target.task, target.num_outputs) for target in schema.targets])
    chosen = settle(TrainSettings(**settings), rows, id_sizes(schema))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trained = train_model(
            TabularModel(inputs, TabularSettings(**shape)),
            tables["train"],
            tables["valid"],
            loss,
            TrainSettings(**settings),
            seed=seed,
            device="cpu",
            folder=Path(folder),
        )
    kind, metric, constant = judge(trained.model, tables)
    return {
        "metric": kind,
        "value": metric,
        "loss": table_loss(trained.model, tables["test"], loss, "cpu"),
        "constant": constant,
        "rows": rows,
        "settings": {key: getattr(chosen, key) for key in ("batch_size", "epochs", "lr_max")},
        "best_epoch": trained.best_epoch + 1,
        "seconds": time.perf_counter() - started,
    }


def judge(model: Any, tables: dict[str, Any]) -> tuple[str, float, float]:
    """Name and value of the metric on the test rows, and the loss of the train split's mean or shares there."""
    import torch

    from gigabatch.models.metrics.pointwise import roc_auc
    from gigabatch.pipeline.training.train import table_outputs

    test, train = (tables[split].unpack(tables[split].words) for split in ("test", "train"))
    (target,) = tables["test"].schema.targets
    labels, known = test.targets[0].double(), train.targets[0].double()
    outputs = table_outputs(model, tables["test"], "cpu").double()
    if target.task == "regression":
        errors = (outputs[:, 0] - labels).square().mean()
        constant = ((labels - known.mean()) / known.std(correction=0)).square().mean()
        return "R²", float(1 - errors / labels.var(correction=0)), float(constant)
    count = max(target.num_outputs, 2)
    shares = torch.stack([(known == k).double().mean() for k in range(count)])
    constant = -shares.log()[labels.long()].mean()
    scores = [outputs[:, 0]] if target.task == "binary" else list(outputs.softmax(1).unbind(1))
    chosen = [1] if target.task == "binary" else list(range(count))
    aucs = [roc_auc(score, (labels == k).float()) for score, k in zip(scores, chosen, strict=True)]
    return "AUC", float(torch.stack(aucs).mean()), float(constant)


def twelve(rows: int) -> list[dict[str, Any]]:
    """The configurations for a table of so many train rows."""
    _, sizes, lrs, epochs = next(grid for grid in GRIDS if rows < grid[0])
    return [
        {"batch_size": size, "lr_max": lr, "epochs": count} for size, lr, count in itertools.product(sizes, lrs, epochs)
    ]


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def run_all(cache: str, names: list[str], num_others: int) -> list[dict[str, Any]]:
    """Every table without settings and by the twelve (the first `num_others` of them), those that are not kept yet."""
    path = Path(cache) / "defaults-runs.jsonl"
    kept = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    wanted = []
    for name in names:
        rows = len(splits(cache, name)["train"])
        seeds = SEEDS if rows < SMALL_ROWS else SEEDS[:1]
        wanted += [{"table": name, "given": {}, "seed": seed} for seed in seeds]
        wanted += [{"table": name, "given": given, "seed": 1} for given in twelve(rows)[:num_others]]
    known = [{key: run[key] for key in ("table", "given", "seed")} for run in kept]
    found = [run for run, key in zip(kept, known, strict=True) if key in wanted]
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    context, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=context, initializer=one_thread) as pool, path.open("a") as file:
        missing = [run for run in wanted if run not in known]
        futures = {pool.submit(train, cache, run["table"], run["given"], run["seed"]): run for run in missing}
        for future in as_completed(futures):
            result = futures[future] | future.result()
            found.append(result)
            file.write(json.dumps(result, allow_nan=False) + "\n")
            file.flush()
            print(f"{len(found)} of {len(wanted)}: {json.dumps(result, allow_nan=False)}", file=sys.stderr)
    return found


def compared(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """One table: the mean without settings beside the best of the others."""
    own = [run for run in runs if run["table"] == name and not run["given"]]
    others = [run for run in runs if run["table"] == name and run["given"]]
    best = max(others, key=lambda run: run["value"])
    value = sum(run["value"] for run in own) / len(own)
    return {
        "table": name,
        "rows": own[0]["rows"],
        "metric": own[0]["metric"],
        "without settings": value,
        "best": best["value"],
        "difference": value - best["value"],
        "within": value >= best["value"] - BOUNDS[own[0]["metric"]],
        "above constant": all(run["loss"] < run["constant"] for run in own),
        "by the rule": own[0]["settings"],
        "best is": best["given"],
    }


def main() -> None:
    names = ",".join(table.name for table in TABLES)
    flags = arguments(__doc__ or "", tables=names, cache="")
    from gigabatch.pipeline.display import render_table

    chosen = (QUICK if flags.quick else flags.tables).split(",")
    if unknown := [name for name in chosen if name not in names.split(",")]:
        raise SystemExit(f"--tables: unknown {', '.join(unknown)}. Known: {names}.")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        cache = flags.cache or temporary
        Path(cache).mkdir(parents=True, exist_ok=True)
        runs = run_all(cache, chosen, 2 if flags.quick else 12)
    rows = [compared(runs, name) for name in chosen]
    render_table(rows, "Training without settings")
    within, above = (sum(row[key] for row in rows) for key in ("within", "above constant"))
    finish(
        "defaults",
        f"{len(rows)} tables, {min(row['rows'] for row in rows):,} to {max(row['rows'] for row in rows):,} train rows",
        {"all": time.perf_counter() - started},
        {f"{row['table']}_difference": row["difference"] for row in rows},
        {
            "within_best": (within, len(rows), within == len(rows)),
            "above_constant": (above, len(rows), above == len(rows)),
        },
        save=flags.save and not flags.quick,
        details={"tables": rows},
    )


if __name__ == "__main__":
    main()
