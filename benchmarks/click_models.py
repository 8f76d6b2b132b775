"""Which click models earn their row? Every one of the shelf with one budget, by LAMB at two batch sizes.

    python -m benchmarks.click_models [--quick] [--save] [--tables clicks,flights,trivago] [--models lr,fm,...]
        [--batches 4096,65536] [--rows 600000] [--epochs 3] [--seeds 3] [--cache FOLDER]

Tables: `clicks`, made here (eight id columns by Zipf's law, four floats; effects of columns, of pairs by products of
hidden vectors, of products of three columns; the order that its own probabilities give is the best there is),
New York flights, and pairs of a synthetic trivago log. The shared sample of the real trivago log has 53 clickouts: too
few to compare anything.

The budget is one for all: vectors of 8 numbers, hidden layers of 128 and 64, dropout .1, so many epochs, the rates of
`RATES`, of which each model at each batch size takes the one with the lowest valid log loss under the first seed. So
CowClip is compared too, for two models (`+cowclip`), by its own rules of how rates follow a batch's size.

A model is beaten in a cell (table, batch size) where the interval (95 %, of differences by seed) of its AUC less that
of the cell's best lies below 0. One that is beaten in every cell has earned no row. Runs are kept in `--cache`, so that
it can be run in parts. Cores are shared, so that seconds are no claim.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.batch_scaling_tables import SPLITS, cowclip_settings, splits_folder
from benchmarks.common import arguments, finish, needed
from benchmarks.pairs import zipf_ranks

with needed():
    from scipy.stats import t as student

RATES = {4096: (0.02, 0.06, 0.18), 65_536: (0.06, 0.18, 0.5)}
COWCLIP_RATES = {4096: (0.002, 0.006, 0.02), 65_536: (0.006, 0.02, 0.06)}
TEST_ROWS = 50_000
DIM, LAYERS = 8, (128, 64)
DEEP = {"embedding_dim": DIM, "layers": LAYERS, "dropout": 0.1}
ATTENTION = {"embedding_dim": DIM, "num_layers": 2, "num_heads": 2, "head_dim": 8}
CROSS = {"embedding_dim": DIM, "dropout": 0.1}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {  # name: model and settings; `+cowclip` says the optimizer
    "lr": ("lr", {}),
    "fm": ("fm", {"embedding_dim": DIM}),
    "wide_deep": ("wide_deep", DEEP),
    "deepfm": ("deepfm", DEEP),
    "dlrm": ("dlrm", {"embedding_dim": DIM, "bottom_layers": (64,), "top_layers": LAYERS, "dropout": 0.1}),
    "dcn": ("dcn", DEEP),
    "autoint": ("autoint", ATTENTION),
    "autoint+network": ("autoint", ATTENTION | {"layers": LAYERS, "dropout": 0.1}),
    "finalmlp": (
        "finalmlp",
        {"embedding_dim": DIM, "first_layers": LAYERS[:1], "second_layers": LAYERS[:1], "num_heads": 8}
        | {"first_dropout": 0.1, "second_dropout": 0.1, "gate_layers": (64,)},
    ),
    "fcn": ("fcn", CROSS),
    "fcn+plain": ("fcn", CROSS | {"loss": "plain"}),
    "fcn+low_cost": ("fcn", CROSS | {"second_half": "low_cost"}),
    "ecn": ("fcn", CROSS | {"networks": "exponential"}),
    "qnn": ("qnn", CROSS | {"num_layers": 2, "num_rows": 2}),
    "deepfm+cowclip": ("deepfm", DEEP),
    "dcn+cowclip": ("dcn", DEEP),
}
SIZES = {"user": 20_000, "item": 5000, "ad": 1000, "site": 300, "city": 200, "campaign": 50, "hour": 24, "device": 5}
PAIRS = (("user", "item"), ("item", "site"), ("ad", "city"), ("device", "hour"), ("campaign", "user"))
TRIPLES = (("item", "city", "hour"), ("ad", "site", "device"))


def clicks(rows: int, seed: int = 31) -> tuple[pd.DataFrame, np.ndarray]:
    """A log of clicks, `rows` to train on and twice `TEST_ROWS`, and the logit [rows] by which each was drawn."""
    random, rows = np.random.default_rng(seed), rows + 2 * TEST_ROWS
    codes = {name: random.permutation(size)[zipf_ranks(random, size, rows, 1.0)] for name, size in SIZES.items()}
    floats = {name: random.normal(size=rows) for name in ("price", "age", "depth", "noise")}
    logit = np.full(rows, -2.2)
    for name, size in SIZES.items():
        logit += 0.4 * random.normal(size=size)[codes[name]]
    for one, other in PAIRS:
        vectors = [random.normal(size=(SIZES[name], 3))[codes[name]] for name in (one, other)]
        logit += 0.5 * (vectors[0] * vectors[1]).sum(axis=1) / np.sqrt(3)
    for names in TRIPLES:
        logit += 0.6 * np.prod([random.normal(size=SIZES[name])[codes[name]] for name in names], axis=0)
    logit += 0.4 * np.abs(floats["price"]) + 0.4 * floats["age"] * floats["depth"]
    logit += 0.5 * floats["price"] * random.normal(size=SIZES["campaign"])[codes["campaign"]]
    frame = pd.DataFrame({name: np.char.add(name[0], code.astype(str)) for name, code in codes.items()} | floats)
    frame["clicked"] = random.random(rows) < 1 / (1 + np.exp(-logit))
    return frame, logit


@lru_cache(maxsize=1)
def splits(cache: str, name: str, rows: int) -> dict[str, Any]:
    """Packed splits of a table, made where they are not there yet."""
    from benchmarks.defaults_tables import from_recipe, packed
    from gigabatch.features.schema import Target
    from gigabatch.loaders.tables.packed import PackedTable

    folder = Path(cache) / f"click-{name}-{rows}"
    if name == "trivago":
        folder = splits_folder(Path(cache), name, rows)
    elif not (folder / SPLITS[-1] / "layout.json").exists():
        if name == "flights":
            tables = from_recipe("conf/flights.yaml")
        else:
            frame, logit = clicks(rows)
            tables = packed(frame, Target("clicked", "binary"), rows, TEST_ROWS)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / "logit.npy", logit[-TEST_ROWS:])
        for split, table in tables.items():
            table.save(folder / split)
    return {split: PackedTable.load(folder / split, mmap=False) for split in SPLITS}


def train(cache: str, rows: int, epochs: int, run: dict[str, Any]) -> dict[str, Any]:
    """One training: AUC and log loss of the test rows, and the log loss of the valid rows, which picks the rate."""
    import torch

    from gigabatch.models.inputs import EntityColumns, ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.metrics.pointwise import roc_auc
    from gigabatch.models.shelf import ModelSpec, model_class
    from gigabatch.pipeline.config.config import TrainSettings
    from gigabatch.pipeline.training.defaults import id_sizes
    from gigabatch.pipeline.training.train import table_loss, table_outputs, train_model

    tables = splits(cache, run["table"], rows)
    schema, batch_size, lr = tables["train"].schema, run["batch"], run["rate"]
    who = {"user": EntityColumns(0, (0,)), "item": EntityColumns(1, (1,))} if run["table"] == "clicks" else {}
    inputs = ModelInputs(id_sizes(schema), len(schema.floats), schema.num_outputs, **who)
    kind, settings = CONTENDERS[run["model"]]
    cowclip = run["model"].endswith("+cowclip")
    chosen = TrainSettings(
        epochs=epochs,
        batch_size=batch_size,
        optimizer="cowclip" if cowclip else "lamb",
        optimizer_settings=cowclip_settings(batch_size / 1000, lr) if cowclip else {},
        lr_max=lr,
    )
    loss = TargetLoss([(target.task, target.num_outputs) for target in schema.targets])
    torch.manual_seed(run["seed"])
    model, started = ModelSpec(kind, inputs, model_class(kind).Settings(**settings)).build(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        given = tables["train"], tables["valid"], loss, chosen
        model = train_model(model, *given, seed=run["seed"], device="cpu", folder=Path(folder)).model
    seconds = time.perf_counter() - started
    labels = tables["test"].unpack(tables["test"].words).targets[0]
    dense = [value.numel() for name, value in model.named_parameters() if "tables" not in name]
    return {
        "auc": float(roc_auc(table_outputs(model, tables["test"], "cpu")[:, 0].double(), labels)),
        "loss": table_loss(model, tables["test"], loss, "cpu"),
        "valid loss": table_loss(model, tables["valid"], loss, "cpu"),
        "parameters beside tables": sum(dense),
        "seconds": round(seconds, 2),
    }


class Runs:
    """Trainings that are kept in a file, and done where they are not."""

    def __init__(self, cache: str, rows: int, epochs: int) -> None:
        self.given = cache, rows, epochs
        self.path = Path(cache) / f"click-runs-{rows}-{epochs}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.kept = [json.loads(line) for line in lines]

    def __call__(self, **run: Any) -> dict[str, Any]:
        """What `train` found of this run, with the run itself."""
        for known in self.kept:
            if run.items() <= known.items():
                return known
        found = run | train(*self.given, run)
        self.kept.append(found)
        with self.path.open("a") as file:
            file.write(json.dumps(found, allow_nan=False) + "\n")
        print(json.dumps(found, allow_nan=False), file=sys.stderr, flush=True)
        return found


def cell(runs: Runs, table: str, batch: int, models: list[str], seeds: int) -> list[dict[str, Any]]:
    """Every model on a table at a batch size: its best rate, its means over seeds, and how far it is from the best."""
    found = {}
    for model in models:
        rates = (COWCLIP_RATES if model.endswith("+cowclip") else RATES)[batch]
        asked = {"table": table, "batch": batch, "model": model}
        tried = [runs(**asked, rate=rate, seed=1) for rate in rates]
        rate = min(tried, key=lambda run: run["valid loss"])["rate"]
        found[model] = [runs(**asked, rate=rate, seed=seed) for seed in range(1, seeds + 1)]
    best = max(found, key=lambda model: mean(run["auc"] for run in found[model]))
    rows = []
    for model, own in found.items():
        apart = [run["auc"] - other["auc"] for run, other in zip(own, found[best], strict=True)]
        half = float(student.ppf(0.975, seeds - 1)) * stdev(apart) / seeds**0.5 if seeds > 1 else float("inf")
        rows.append(
            {
                "table": table,
                "batch": batch,
                "model": model,
                "rate": own[0]["rate"],
                "auc": mean(run["auc"] for run in own),
                "log loss": mean(run["loss"] for run in own),
                "less the best": mean(apart),
                "+-": half if model != best else 0.0,
                "beaten": model != best and mean(apart) + half < 0,
                "parameters": own[0]["parameters beside tables"],
            }
        )
    return rows


def best_reachable(cache: str, rows: int) -> dict[str, float]:
    """AUC and log loss on the test rows of `clicks` of the probabilities by which they were drawn."""
    import torch
    from torch.nn import functional

    from gigabatch.models.metrics.pointwise import roc_auc

    test = splits(cache, "clicks", rows)["test"]
    logit = torch.from_numpy(np.load(Path(cache) / f"click-clicks-{rows}" / "logit.npy"))
    labels = test.unpack(test.words).targets[0]
    loss = functional.binary_cross_entropy_with_logits(logit, labels.double())
    return {"auc": float(roc_auc(logit, labels)), "log loss": float(loss)}


def chosen_of(given: str, known: list[str], flag: str) -> list[str]:
    """The names in a list with commas, all of them known."""
    names = given.split(",")
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--{flag}: unknown {', '.join(unknown)}. Known: {', '.join(known)}.")
    return names


def main() -> None:
    flags = arguments(
        __doc__ or "", tables="clicks,flights", models=",".join(CONTENDERS), batches="4096,65536", rows=600_000,
        epochs=3, seeds=3, cache="",
    )  # fmt: skip
    from gigabatch.pipeline.display import render_table

    tables = chosen_of(flags.tables, ["clicks", "flights", "trivago"], "tables")
    models = chosen_of(flags.models, list(CONTENDERS), "models")
    batches = [int(size) for size in chosen_of(flags.batches, [str(size) for size in RATES], "batches")]
    rows, epochs, seeds = flags.rows, flags.epochs, flags.seeds
    if flags.quick:
        tables, models, batches, rows, epochs, seeds = ["clicks"], ["lr", "fcn"], batches[:1], 20_000, 1, 1
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        cache = flags.cache or temporary
        Path(cache).mkdir(parents=True, exist_ok=True)
        runs = Runs(cache, rows, epochs)
        found = [row for table in tables for batch in batches for row in cell(runs, table, batch, models, seeds)]
        oracle = best_reachable(cache, rows) if "clicks" in tables else None
    render_table(found, "Click models")
    beaten = [model for model in models if all(row["beaten"] for row in found if row["model"] == model)]
    print("beaten everywhere:", ", ".join(beaten) or "none")
    finish(
        "click_models",
        f"{', '.join(tables)}; {rows:,} rows of clicks, {epochs} epochs, batches {batches}, {seeds} seeds",
        {"all": time.perf_counter() - started},
        {},
        {},
        save=flags.save,
        details={"cells": found, "best reachable on clicks": oracle, "beaten everywhere": beaten},
    )


if __name__ == "__main__":
    main()
