"""An epoch of contextual NCF beside the way it was written: 106 minutes an epoch on the owner's GPU, 143 on a CPU.

    python -m benchmarks.ncf [--quick] [--device cuda] [--parts speed,way,tried,quality] [--save]

3,647,614 positives x 24 columns (user, item, 21 numbers of context, label), four sampled negatives each, so 18.2
million rows an epoch; NeuMF with the context in the MLP, vectors of 8 (GMF) and 32 (MLP) for 311,000 users and items,
MLP 85-32-16-8: 12.45 million parameters.

- naive: the owner's set-up (benchmarks/ncf_naive.py). Timed in windows of 200 steps, in turns with ours, and
  extrapolated to the 14,249 steps of an epoch; nobody waits for the whole.
- ours: packed rows, negatives drawn on the device, rows of tables moved in one kernel, a batch of its own choice; whole
  epochs, negatives included. Before the first one the known positives are sorted, once a run.

Why the naive version is slow, and what each change brings, is measured too: a step by part, more workers, one thread,
DistributedDataParallel on this machine, and the way from naive to ours one change at a time. HR@10 of both is compared
on planted data of a twentieth of the size, trained until valid HR@10 stops rising, at the same number of steps an epoch
for ours. Bar: at least 20 times naive. --parts leaves some of it out; `tried` runs on the CPU whatever the device.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from itertools import chain, islice, pairwise, repeat
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.common import arguments, device_of, finish, needed, wait_for

with needed():
    from benchmarks.ncf_data import POSITIVES, Interactions, leave_one_out, listed, planted
    from benchmarks.ncf_naive import BATCH, GMF, LAYERS, MLP, NEGATIVES, Naive, ddp_step_seconds, step_parts
    from gigabatch.features.vocabulary.vocabulary import LAYOUT
    from gigabatch.loaders.batches.dataset import BatchDataset
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.loaders.negatives.draws import UniformNegatives
    from gigabatch.loaders.negatives.implicit import ImplicitBatches, apart_from
    from gigabatch.loaders.negatives.table import KnownPositives
    from gigabatch.loaders.tables.entity_rows import EntityRows
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.optimizers.precision import choose_precision
    from gigabatch.models.optimizers.registry import build_optimizer
    from gigabatch.models.optimizers.schedule import Constant
    from gigabatch.models.recommenders.ncf import NCF, NCFSettings
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.evaluation.rank_evaluate import Catalogue, RankingSettings, rank_evaluate
    from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors

    SETTINGS = NCFSettings(gmf_dim=GMF, mlp_dim=MLP, layers=LAYERS, context="mlp")
    RANKING = RankingSettings(k=(10,), negatives=99, full_catalogue=False, max_rows=None)
OUR_BATCH = 16_384  # positives; 81,920 rows a step
# The best valid HR@10 of twelve settings on the planted data (.8768; lr .003 to .01, decay 0 to .3, CowClip, Adagrad).
OURS = {"name": "adamw", "lr": 0.003, "weight_decay": 0.3, "rowwise": True}
PARTS = ("speed", "way", "tried", "quality")  # `speed` is always measured
PATIENCE, MOST_EPOCHS = 10, 40  # on 20,000 rows naive ranks by popularity alone for ten epochs before it learns more


class Ours:
    """Our training of NCF on a packed table of positives, batch by batch."""

    def __init__(
        self,
        data: Interactions,
        table: PackedTable,
        batch_size: int,
        device: str,
        optimizer: dict[str, Any] | None = None,
        precision: str = "auto",
        seed: int = 0,
    ) -> None:
        started = time.perf_counter()
        users, items = table.words[:, 0].contiguous(), table.words[:, 1].contiguous()
        known = KnownPositives.from_pairs(users, items, data.inputs.num_ids[0])
        item_ids = range(LAYOUT.first, data.inputs.num_ids[1])
        sampler = UniformNegatives(item_ids, NEGATIVES, apart_from(known, item_ids), seed=seed, device=device)
        self.setup_seconds = time.perf_counter() - started
        negatives = ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1,)).to(device), item_ids)
        settings = dict(optimizer or OURS)
        self.lr = settings["lr"]
        self.model = NCF(data.inputs, SETTINGS).to(device)
        moved = build_optimizer(self.model, **settings)
        dataset = BatchDataset(table.to(device), batch_size, seed=seed, drop_last=True)
        self.loader = BatchLoader(dataset, device)
        self.batches = chain.from_iterable(repeat(self.loader))  # of one epoch after the other
        self.step = TrainStep(
            self.model,
            TargetLoss([("binary", 1)]),
            moved,
            choose_precision(precision, device),
            negatives=negatives,
        )
        if device == "cuda":
            hold_in_tensors(moved, torch.device(device))
            self.step.capture(table.schema, batch_size)
        self.schedule: Any = Constant(self.lr, len(self.loader))
        self.done = 0

    def steps(self, count: int) -> None:
        """Train on so many batches, over the ends of epochs."""
        self.model.train()
        for batch in islice(self.batches, count):
            source = self.loader.source
            place = source.epoch, source.positions(self.loader.step - 1)[0]
            self.step(batch, *self.schedule.at(self.done % self.schedule.num_steps), place)
            self.done += 1

    def epoch(self) -> None:
        self.steps(len(self.loader))


def timed(work: Callable[[], Any], device: str) -> float:
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def hit_rate(model: nn.Module, rows: PackedTable, catalogue: Catalogue, device: str) -> float:
    """HR@10 among 99 negatives that the user has nowhere."""
    found = rank_evaluate(model, rows, catalogue, RANKING, seed=1, device=device)
    return float(found["sampled"]["hr@10"])


def converged(model: nn.Module, epoch: Callable[[], Any], valid: PackedTable, catalogue: Catalogue, device: str) -> int:
    """Train until valid HR@10 has not risen for `PATIENCE` epochs; the model ends with its best weights."""
    best, best_at, weights = -1.0, 0, copy.deepcopy(model.state_dict())
    for number in range(1, MOST_EPOCHS + 1):
        epoch()
        found = hit_rate(model, valid, catalogue, device)
        if found > best:
            best, best_at, weights = found, number, copy.deepcopy(model.state_dict())
        if number - best_at >= PATIENCE:
            break
    model.load_state_dict(weights)
    return best_at


def compare_quality(num_positives: int, batch_size: int, device: str) -> list[dict[str, Any]]:
    """HR@10 on the test rows of planted data, and the epoch that was kept."""
    data = planted(num_positives)
    parts = dict(zip(("train", "valid", "test"), leave_one_out(data), strict=True))
    tables = {name: part.packed() for name, part in parts.items()}
    catalogue = Catalogue.of(tables, data.inputs, device)
    torch.manual_seed(0)
    naive, ours = Naive(parts["train"], device=device), Ours(data, tables["train"], batch_size, device)
    shown = []
    for name, model, epoch in (("naive", naive.model, naive.epoch), ("ours", ours.model, ours.epoch)):
        kept = converged(model, epoch, tables["valid"], catalogue, device)
        shown.append({"who": name, "HR@10": hit_rate(model, tables["test"], catalogue, device), "epoch": kept})
    popularity = torch.bincount(tables["train"].words[:, 1], minlength=data.inputs.num_ids[1]).float().to(device)
    shown.append({"who": "by popularity", "HR@10": hit_rate(_Popular(popularity), tables["test"], catalogue, device)})
    return shown


class _Popular(nn.Module):
    """Scores an item by how often it was chosen."""

    def __init__(self, counts: torch.Tensor) -> None:
        super().__init__()
        self.counts = counts

    def forward(self, ids: torch.Tensor, floats: torch.Tensor) -> torch.Tensor:
        return self.counts[ids[:, 1].long()][:, None]


def why_not(data: Interactions, steps: int) -> list[dict[str, Any]]:
    """What was tried with the naive version, as milliseconds a step of 256 positives."""
    threads = torch.get_num_threads()
    found = [(f"{workers} worker(s)", step_seconds(Naive(data, workers), steps)) for workers in (0, 1, 2, 4)]
    torch.set_num_threads(1)
    found.append(("1 thread", step_seconds(Naive(data), steps)))
    torch.set_num_threads(threads)
    found.append(("DistributedDataParallel, 2 processes", ddp_step_seconds(data, 2, steps)))
    return [{"naive with": name, "ms a step": 1e3 * seconds} for name, seconds in found]


def step_seconds(naive: Naive, steps: int) -> float:
    """Mean seconds of a step after a few, its batch included."""
    naive.steps(3)
    spent = timed(lambda: naive.steps(steps), "cpu") / steps
    naive.close()
    return spent


def way_there(data: Interactions, table: PackedTable, steps: int, device: str) -> list[dict[str, Any]]:
    """From the naive step to ours, one change at a time: minutes an epoch, extrapolated from a few steps."""
    adam = {"name": "adamw", "lr": 1e-3, "weight_decay": 0.0}
    stages = [
        ("batches and negatives by ours, dense Adam", BATCH, adam, "float32"),
        ("rows of a batch move alone (lazy Adam)", BATCH, adam | {"rowwise": True}, "float32"),
        ("weight decay, a higher rate, batch of 4,096 positives", 4096, None, "float32"),
        (f"batch of {OUR_BATCH:,} positives", OUR_BATCH, None, "float32"),
        ("bfloat16 where the processor has it", OUR_BATCH, None, "auto"),
    ]
    shown = []
    for name, batch_size, optimizer, precision in stages:
        ours = Ours(data, table, batch_size, device, optimizer, precision)
        ours.steps(3)
        spent = timed(lambda o=ours: o.steps(steps), device) / steps
        shown.append({"step": name, "ms a batch": 1e3 * spent, "minutes": spent * len(table) / batch_size / 60})
    return shown


def least(table: PackedTable, samples: int) -> tuple[float, float]:
    """(bytes, operations) of an epoch: packed rows once, each sample's vectors and their gradients both ways, three
    products a layer."""
    sizes = (2 * MLP + table.words.shape[1] - 3, *LAYERS)
    moved = 4.0 * (table.words.numel() + samples * 4 * 2 * (GMF + MLP))
    return moved, 6.0 * samples * sum(one * other for one, other in pairwise(sizes))


def main() -> None:
    flags = arguments(__doc__ or "", rows=POSITIVES, windows=5, steps=200, parts=",".join(PARTS))
    device, parts = device_of(flags).type, flags.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"--parts {flags.parts}: unknown {', '.join(sorted(unknown))}. Known: {', '.join(PARTS)}.")
    rows, windows, steps = (60_000, 2, 10) if flags.quick else (flags.rows, flags.windows, flags.steps)
    torch.manual_seed(0)
    random.seed(0)  # which the naive version draws from
    data = listed(rows)
    table = data.packed()
    naive, ours = Naive(data, device=device), Ours(data, table, min(OUR_BATCH, rows // 4), device)
    timed(ours.epoch, device)
    naive.steps(5)
    naive_steps, our_epochs = [], []
    for _ in range(windows):
        naive_steps.append(timed(lambda n=naive: n.steps(steps), device) / steps)
        our_epochs.append(timed(ours.epoch, device))
    epoch_steps = -(-rows // BATCH)
    trained = len(ours.loader) * ours.loader.source.batch_size  # without the last rows, too few for a batch
    seconds = {"naive, extrapolated": median(naive_steps) * epoch_steps, "ours": median(our_epochs) * rows / trained}
    ratio = seconds["naive, extrapolated"] / seconds["ours"]
    samples = rows * (1 + NEGATIVES)
    details: dict[str, Any] = {
        "naive_windows_ms_a_step": [round(1e3 * one, 3) for one in naive_steps],
        "our_epochs_seconds": [round(one, 3) for one in our_epochs],
        "our_samples_a_second": round(samples / seconds["ours"]),
        "our_batch": ours.loader.source.batch_size,
        "sorting_known_positives_seconds": round(ours.setup_seconds, 3),
        "parameters": sum(parameter.numel() for parameter in ours.model.parameters()),
    }
    shown = [
        {"who": name, "seconds an epoch": spent, "samples/s": f"{samples / spent:,.0f}"}
        for name, spent in seconds.items()
    ]
    render_table(shown, f"an epoch of {rows:,} positives and {NEGATIVES} negatives each; naive extrapolated")
    naive.close()
    few = max(steps // 5, 5)
    claims = {"times the naive epoch": (ratio, 20.0, ratio >= 20)}
    if "tried" in parts:
        details["naive_step_ms"] = {name: 1e3 * one for name, one in step_parts(data, few).items()}
        render_table([{"part": k, "ms": v} for k, v in details["naive_step_ms"].items()], "the naive step by part")
        details["tried_with_naive"] = why_not(data, few)
        render_table(details["tried_with_naive"], "what does not help")
    if "way" in parts:
        details["way"] = way_there(data, table, few, device)
        render_table(details["way"], "what does: from the naive step to ours, one change after another")
    if "quality" in parts:
        details["quality"] = compare_quality(max(rows // 20, 20_000), max(OUR_BATCH // 20, 64), device)
        render_table(details["quality"], "HR@10 among 99 negatives, planted data of a twentieth of the size, converged")
        naive_quality, our_quality = (entry["HR@10"] for entry in details["quality"][:2])
        claims["HR@10 less that of naive"] = (
            our_quality - naive_quality,
            -0.005,
            our_quality - naive_quality >= -0.005,
        )
    if device == "cuda":
        claims["seconds an epoch"] = (seconds["ours"], 2.0, seconds["ours"] <= 2)
    finish(
        "ncf",
        f"contextual NCF, {rows:,} positives x 24 columns, {samples:,} rows an epoch",
        seconds,
        {"naive": ratio},
        {} if flags.quick else claims,
        save=flags.save,
        details=details,
        device=device,
        needs={"ours": least(table, samples)},
    )


if __name__ == "__main__":
    main()
