"""What does an extreme batch cost in quality, by optimizer? Batches of train_rows/4,000, /160 and /40.

A batch of 204,800 was 167 steps an epoch in 2019; on fewer rows the same batch is a handful of steps and learns
nothing. So batches are compared by steps an epoch: 4,000, 160 and, to see it break, 40. On a GPU with `--rows
42800000` the larger two are 204,800 and 819,600 themselves (that part has not run yet).

    python -m benchmarks.batch_scaling [--quick] [--save] [--rows N] [--log_rows N] [--cache FOLDER] [--docs docs]

Tables: the pair table and the pairs of a synthetic trivago log. Epochs, model and schedule (one-cycle) are the same for
all. Every optimizer gets the same search at every batch size: five runs with one seed, at 1/4, 1 and 4 times its
centre, then at half and twice the best of them. The run with the highest mean of AUC and MRR on the validation rows
gives the rate of the five seeds that count, whose AUC and MRR are those of the test rows. The centre is the same at
every batch size: where it followed the square-root rule, the best rate of the small batches lay at the search's edge.

Paired by seed, the relative difference to the reference at 4,000 steps an epoch has a mean and a lower 95 % bound
(Student's t, one-sided, over the seeds: the test rows are fixed, so it says how certain the training is, not how the
result would vary with other rows). The bar is a bound above -0.1 %, for AUC and MRR, at 160 steps an epoch, with two
references: the optimizer's own small batch, and the best small batch of any optimizer, picked by validation.

Finished runs are kept in `--cache`, so that an interrupted benchmark goes on; `--save` writes the table and the plot
into docs/ too. On a CPU runs share the cores, one thread each; seconds are therefore not reported.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.batch_scaling_tables import COARSE, CONTENDERS, FINE, SPLITS, STEPS, TABLES, Run, Table, splits_folder
from benchmarks.common import arguments
from benchmarks.end_to_end_ours import OTHER_WIDTH, WIDTHS

QUICK_STEPS = (80, 16)
SEEDS = (1, 2, 3, 4, 5)
SEARCH_SEED = 0
CURVE_POINTS = 40
EVALUATED_ROWS = 1 << 16  # at a time


@lru_cache(maxsize=6)
def split_table(folder: str, split: str, device: str) -> Any:
    from gigabatch.loaders.tables.packed import PackedTable

    return PackedTable.load(Path(folder) / split, mmap=False).to(device)


def build_model(table: Table, schema: Any) -> Any:
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.layers.embeddings import embedding_width
    from gigabatch.models.tabular.tabular import TabularModel, TabularSettings

    def width(column: Any) -> int:
        return WIDTHS.get(column.name, OTHER_WIDTH) if table.fixed_widths else min(16, embedding_width(column.num_ids))

    inputs = ModelInputs(tuple(column.num_ids for column in schema.ids), len(schema.floats))
    settings = TabularSettings(
        embedding_widths=tuple(width(column) for column in schema.ids),
        layers=table.layers,
        dropout=table.dropout,
        embedding_dropout=table.dropout,
    )
    return TabularModel(inputs, settings)


def train(run: Run) -> dict[str, Any]:
    """Metrics of the validation and test rows, and the mean training loss of `CURVE_POINTS` stretches of the run.

    A run that diverges (a loss or a score that is no number) has metrics of 0, which no search picks.
    """
    import torch

    from gigabatch.loaders.batches.dataset import BatchDataset
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.optimizers.precision import choose_precision
    from gigabatch.models.optimizers.registry import build_optimizer
    from gigabatch.models.optimizers.schedule import OneCycle
    from gigabatch.pipeline.training.train_step import TrainStep

    table, contender = TABLES[run.table], CONTENDERS[run.contender]
    rows = split_table(run.folder, "train", run.device)
    torch.manual_seed(run.seed)
    model = build_model(table, rows.schema).to(run.device)
    settings = contender.settings(run.batch_size / 1_000, run.lr)
    optimizer = build_optimizer(model, contender.optimizer, lr=run.lr, **settings)
    loader = BatchLoader(BatchDataset(rows, run.batch_size, seed=run.seed, drop_last=True), run.device)
    schedule = OneCycle(run.lr, len(loader) * run.epochs)
    step = TrainStep(model, TargetLoss((("binary", 1),)), optimizer, choose_precision("auto", run.device))
    losses = torch.zeros(schedule.num_steps, device=run.device)
    number = 0
    for _ in range(run.epochs):
        for batch in loader:
            losses[number] = step(batch, *schedule.at(number))
            number += 1
    points = min(CURVE_POINTS, number)
    ends = [i * number // points for i in range(points + 1)]
    curve = [float(losses[a:b].mean()) for a, b in pairwise(ends)]
    model.eval()
    found: dict[str, Any] = {split: judge(model, split_table(run.folder, split, run.device)) for split in SPLITS[1:]}
    return {**found, "curve": curve, "samples": [end * run.batch_size for end in ends[1:]]}


def judge(model: Any, table: Any) -> dict[str, float]:
    import torch

    from gigabatch.models.metrics.pointwise import log_loss, roc_auc
    from gigabatch.models.metrics.ranking import grouped_mrr

    batch = table.unpack(table.words)
    with torch.inference_mode():
        blocks = zip(batch.ids.split(EVALUATED_ROWS), batch.floats.split(EVALUATED_ROWS), strict=True)
        scores = torch.cat([model(ids, floats)[:, 0] for ids, floats in blocks]).sigmoid()
        if not bool(scores.isfinite().all()):
            return {"auc": 0.0, "mrr": 0.0, "logloss": float("inf")}
        labels = batch.targets[0]
        return {
            "auc": float(roc_auc(scores, labels)),
            "mrr": float(grouped_mrr(scores, labels, batch.group)),
            "logloss": float(log_loss(scores, labels)),
        }


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


class Runs:
    """Results by run: those of earlier calls from a file of JSON lines, to which every new one is added.

    Use it in a `with` block. On a CPU there is a process a core, each with one thread: small batches gain nothing from
    more.
    """

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        whole = [line for line in lines if line.endswith("}}")]  # the last one may be cut off
        self.known = {entry["key"]: entry["result"] for entry in map(json.loads, whole)}
        self.pool = None
        if device == "cpu":
            os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
            spawn, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
            self.pool = ProcessPoolExecutor(cores, mp_context=spawn, initializer=one_thread)

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def __call__(self, runs: Iterable[Run]) -> None:
        """Train those that are not known, the longest first."""
        missing = sorted({run for run in runs if run.key not in self.known}, key=lambda run: -run.steps * run.epochs)
        if self.pool is None:
            for run in missing:
                self.keep(run, train(run))
            return
        futures = {self.pool.submit(train, run): run for run in missing}
        for future in as_completed(futures):
            self.keep(futures[future], future.result())

    def keep(self, run: Run, result: dict[str, Any]) -> None:
        self.known[run.key] = result
        with self.path.open("a") as file:
            file.write(json.dumps({"key": run.key, "result": result}, allow_nan=False) + "\n")
        valid = result["valid"]
        print(
            f"{len(self.known)}: {run.table} {run.contender} steps {run.steps} lr {run.lr:.4g} seed {run.seed}: "
            f"valid AUC {valid['auc']:.4f} MRR {valid['mrr']:.4f}",
            file=sys.stderr,
        )

    def score(self, run: Run) -> float:
        """What the search maximises."""
        valid = self.known[run.key]["valid"]
        return (valid["auc"] + valid["mrr"]) / 2


def search_and_train(templates: list[Run], runs: Runs, seeds: tuple[int, ...]) -> dict[tuple[str, str, int], list[Run]]:
    """By (table, contender, steps an epoch) the runs of `seeds` at the rate that the search found.

    templates: a run for each of these, at the centre of its search.
    """
    coarse = {template: [replace(template, lr=template.lr * factor) for factor in COARSE] for template in templates}
    runs(run for tried in coarse.values() for run in tried)
    fine = {
        template: [replace(best, lr=best.lr * factor) for best in [max(tried, key=runs.score)] for factor in FINE]
        for template, tried in coarse.items()
    }
    runs(run for tried in fine.values() for run in tried)
    chosen = {template: max(coarse[template] + fine[template], key=runs.score) for template in templates}
    final = {template: [replace(best, seed=seed) for seed in seeds] for template, best in chosen.items()}
    runs(run for tried in final.values() for run in tried)
    return {(template.table, template.contender, template.steps): tried for template, tried in final.items()}


def batch_sizes(train_rows: int, flags: Any) -> dict[int, int]:
    """Rows of a batch by steps an epoch."""
    if flags.device == "cuda" and train_rows >= 33_000_000:
        return {STEPS[0]: train_rows // STEPS[0], STEPS[1]: 204_800, STEPS[2]: 819_600}
    return {steps: max(2, train_rows // steps) for steps in (QUICK_STEPS if flags.quick else STEPS)}


def main() -> None:
    flags = arguments(__doc__ or "", rows=2_000_000, log_rows=1_000_000, cache="", docs="docs", tables="pairs,trivago")
    from benchmarks.batch_scaling_report import report
    from gigabatch.pipeline.machine import resolve_device

    flags.device = resolve_device(flags.device)
    rows = {"pairs": flags.rows, "trivago": flags.log_rows}
    contenders = list(CONTENDERS)
    if flags.quick:
        rows, contenders = {"pairs": 10_000, "trivago": 10_000}, ["lamb", "cowclip"]
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(flags.cache or temporary)
        cache.mkdir(parents=True, exist_ok=True)
        templates, sizes = [], {}
        for name in flags.tables.split(","):
            folder = str(splits_folder(cache, name, rows[name]))
            sizes[name] = {split: len(split_table(folder, split, "cpu")) for split in SPLITS}
            for steps, batch_size in batch_sizes(sizes[name]["train"], flags).items():
                shared = {"epochs": TABLES[name].epochs, "device": flags.device, "folder": folder}
                for key in contenders:
                    lr = CONTENDERS[key].centre
                    templates.append(Run(name, rows[name], key, steps, batch_size, lr, SEARCH_SEED, **shared))
        with Runs(cache / "runs.jsonl", flags.device) as runs:
            final = search_and_train(templates, runs, SEEDS[:2] if flags.quick else SEEDS)
        report(final, runs.known, sizes, Path(flags.docs) if flags.save and not flags.quick else cache, flags)


if __name__ == "__main__":
    main()
