"""How fast is a training step? From packed rows to moved weights, the model of RAPIDS' RecSys 2019 work, beside torch.

    python -m benchmarks.step [--quick] [--device cuda] [--save]

Tables 938,604 x 16, 903,867 x 16, 56 x 4, 32,763 x 8, 4 x 1, 27,842 x 8 and 7 of 3 x 3, 20 continuous columns with
batch norm, layers [64, 32]; ids drawn as the pair table draws them and numbered by frequency, as they are encoded.
Each contender gathers a shuffled batch of the same packed table, goes forward and backward and moves its weights:

- torch: nn.Embedding, float32, fused AdamW over everything (dense gradients), its rows by index_select of a randperm;
- ours: BatchLoader, tables moved row by row in one kernel, batch norm folded, bfloat16 where that is faster. On a
  GPU "captured" replays the step as a CUDA graph, as `gigabatch train` does there, and "eager" launches it kernel by
  kernel; bars are for the captured one, and all variants are captured.

The same again with layers [1000, 500] and dropout of .1 at batch 14,336, where torch's masks took most of a step; there
"torch's masks" is ours with the plain form and `nn.Dropout`, and "not folded" the plain form with our dropout.

They take turns in one process, a few steps at a time, medians of all steps but the first of each turn (on a GPU, where
steps are queued, of the turns' means). Bars: at least 5 times torch at batch 204,800 and 12 times at 4,096, and with
dropout 1.4 times ours with torch's masks; at most 10 % of a step spent waiting for its rows (3 % on a GPU).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common import arguments, device_of, finish, needed, wait_for

with needed():
    from benchmarks.pairs import CARDINALITY, zipf_ranks
    from gigabatch.features.schema import IdColumn, Target, TensorSchema
    from gigabatch.loaders.batches.dataset import BatchDataset
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.optimizers.precision import choose_precision
    from gigabatch.models.optimizers.registry import build_optimizer
    from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.training.train_step import WARMUP_STEPS, TrainStep, hold_in_tensors

NUM_IDS = (938_604, 903_867, 56, 32_763, 4, 27_842, *(3,) * 7)
WIDTHS = (16, 16, 4, 8, 1, 8, *(3,) * 7)
NUM_FLOATS, LAYERS = 20, (64, 32)
BATCHES = {204_800: 5.0, 4_096: 12.0}
WIDE, WIDE_BATCH, DROPOUT, WIDE_RATIO = (1000, 500), 14_336, 0.1, 1.4
MOST_WAITING = {"cpu": 0.10, "cuda": 0.03}
Step = Callable[[], Tensor]


def packed_pairs(num_rows: int, seed: int = 1) -> PackedTable:
    """Rows of the pair table's shape with random labels."""
    rng = np.random.default_rng(seed)
    names = [*CARDINALITY, *(f"is_{i}" for i in range(7))]
    columns = tuple(IdColumn(name, size) for name, size in zip(names, NUM_IDS, strict=True))
    floats = tuple(f"cont_{i}" for i in range(NUM_FLOATS))
    schema = TensorSchema(columns, floats, (Target("target", "binary"),))
    words = np.empty((num_rows, schema.num_words), np.int32)
    for place, size in enumerate(NUM_IDS):
        codes = zipf_ranks(rng, size - 1, num_rows) if size > 4 else rng.integers(0, size - 1, num_rows)
        words[:, place] = 1 + codes
    words[:, len(NUM_IDS) :].view(np.float32)[:] = rng.normal(size=(num_rows, NUM_FLOATS + 1))
    words[:, -1].view(np.float32)[:] = rng.random(num_rows) < 0.1
    return PackedTable(torch.from_numpy(words), schema)


def torch_step(table: PackedTable, batch_size: int, widths: tuple[int, ...] = LAYERS, dropout: float = 0.0) -> Step:
    """One step of plain torch as a function; widths are those of the hidden layers."""
    tables = nn.ModuleList(nn.Embedding(n, d) for n, d in zip(NUM_IDS, WIDTHS, strict=True))
    norm = nn.BatchNorm1d(NUM_FLOATS)
    sizes = [sum(WIDTHS) + NUM_FLOATS, *widths]
    blocks: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        blocks += [nn.Linear(num_in, num_out, bias=False), nn.ReLU(inplace=True), nn.BatchNorm1d(num_out)]
        blocks += [nn.Dropout(dropout)] if dropout else []
    layers = nn.Sequential(*blocks, nn.Linear(sizes[-1], 1))
    device = table.device
    model = nn.ModuleList([tables, norm, layers]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def batches() -> Iterator[Tensor]:
        while True:
            order = torch.randperm(len(table), device=device)
            yield from order.split(batch_size)[: len(table) // batch_size]

    rows = batches()

    def step() -> Tensor:
        batch = table.unpack(torch.index_select(table.words, 0, next(rows)))
        embedded = [one(batch.ids[:, column]) for column, one in enumerate(tables)]
        outputs = layers(torch.cat([*embedded, norm(batch.floats)], dim=1))
        loss = functional.binary_cross_entropy_with_logits(outputs[:, 0], batch.targets[0])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def our_step(
    table: PackedTable,
    batch_size: int,
    optimizer: str = "lamb",
    precision: str = "auto",
    folded: bool = True,
    waits: list[float] | None = None,
    widths: tuple[int, ...] = LAYERS,
    dropout: float = 0.0,
    torch_masks: bool = False,
    captured: bool = False,
    **settings: str,
) -> Step:
    """One step of ours as a function, through the loader and the step that `gigabatch train` runs.

    waits: is given the seconds that each step waited for its batch. widths: of the hidden layers. torch_masks: masks
    of the plain form by `nn.Dropout`. captured: as a CUDA graph from the fourth step on. settings: of the optimizer.
    """
    inputs = ModelInputs(NUM_IDS, NUM_FLOATS)
    model = TabularModel(inputs, TabularSettings(widths, dropout, embedding_widths=WIDTHS)).to(table.device)
    model.folded = folded
    if torch_masks:
        for block in list(model.layers)[:-1]:
            assert isinstance(block, nn.Sequential)
            block[-1] = nn.Dropout(dropout)
    loader = BatchLoader(BatchDataset(table, batch_size, shuffle=True, drop_last=True), device=table.device)
    moved = build_optimizer(model, optimizer, lr=1e-3, **settings)
    # Not by `make_step`, here and in other benchmarks of a GPU box: its settings need pydantic, which a box may lack.
    step = TrainStep(model, TargetLoss([("binary", 1)]), moved, choose_precision(precision, table.device))
    model.train()
    if captured:
        hold_in_tensors(moved, table.device)
        step.capture(table.schema, batch_size)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    rows = batches()

    def timed_step() -> Tensor:
        started = time.perf_counter()
        batch = next(rows)
        if waits is not None:
            waits.append(time.perf_counter() - started)
        return step(batch, 1e-3, 0.9)

    return timed_step


def timed_turns(
    contenders: Mapping[str, Callable[[], Any]], turns: int, steps: int, device: torch.device
) -> dict[str, tuple[float, float, float]]:
    """Median, least and greatest seconds of a step; turns of `steps` + 1 steps, the first of which is not counted.

    On a GPU the steps of a turn are queued, as in training, and the turn's mean counts.
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):  # the first turn compiles, captures and fills pools
        for name, step in contenders.items():
            if turn == 0:
                for _ in range(max(steps, WARMUP_STEPS) + 1):
                    step()
                wait_for(device)
                continue
            step()
            wait_for(device)
            turn_started = time.perf_counter()
            for _ in range(steps):
                started = time.perf_counter()
                step()
                if device.type == "cpu":
                    found[name].append(time.perf_counter() - started)
            if device.type == "cuda":
                wait_for(device)
                found[name].append((time.perf_counter() - turn_started) / steps)
    return {name: (median(times), min(times), max(times)) for name, times in found.items()}


def steps_a_turn(batch_size: int, device: torch.device, quick: bool) -> int:
    if quick:
        return 2
    few, many = (20, 100) if device.type == "cuda" else (3, 20)
    return few if batch_size > 100_000 else many


def table_of(found: dict[str, tuple[float, float, float]], title: str, batch_size: int) -> list[dict[str, Any]]:
    """Lines of the table that is printed."""
    return [
        {
            "batch": title,
            "who": name,
            "ms a step": round(1e3 * time_, 2),
            "spread": f"{1e3 * least:.1f}-{1e3 * most:.1f}",
            "rows/s": f"{batch_size / time_:,.0f}",
            "times torch": round(found["torch"][0] / time_, 2),
        }
        for name, (time_, least, most) in found.items()
    ]


def least(table: PackedTable, batch_size: int) -> tuple[float, float]:
    """(bytes, operations) that a step cannot do without: packed rows read and written, what was looked up and its
    gradient written and read, each row that a batch touches with two moments both ways, three products a layer."""
    ids = table.unpack(table.words[:batch_size]).ids
    touched = sum(len(ids[:, column].unique()) * width for column, width in enumerate(WIDTHS))
    moved = 4 * (batch_size * (2 * table.schema.num_words + 4 * sum(WIDTHS)) + 6 * touched)
    sizes = [sum(WIDTHS) + NUM_FLOATS, *LAYERS, 1]
    return moved, 6 * batch_size * sum(one * other for one, other in pairwise(sizes))


def main() -> None:
    flags = arguments(__doc__ or "", rows=2_000_000, turns=7)
    device = device_of(flags)
    graph: dict[str, Any] = {"captured": device.type == "cuda"}
    judged = "ours, captured" if graph["captured"] else "ours"
    eager = ("ours, eager",) if graph["captured"] else ()
    needs: dict[str, tuple[float, float]] = {}
    torch.manual_seed(0)
    rows, turns = (300_000, 1) if flags.quick else (flags.rows, flags.turns)
    table = packed_pairs(rows).to(device)
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    claims: dict[str, tuple[float, float, bool]] = {}
    shown: list[dict[str, Any]] = []
    for batch_size, required in BATCHES.items():
        waits: list[float] = []
        contenders = {
            "torch": torch_step(table, batch_size),
            judged: our_step(table, batch_size, waits=waits, **graph),
            **{name: our_step(table, batch_size) for name in eager},
            "ours, float32": our_step(table, batch_size, precision="float32", **graph),
            "ours, bfloat16": our_step(table, batch_size, precision="bfloat16", **graph),
            "ours, not folded": our_step(table, batch_size, folded=False, **graph),
            "ours, LAMB on rows": our_step(table, batch_size, rowwise_method="lamb", **graph),
            "ours, lazy Adam": our_step(table, batch_size, "cowclip", **graph),
        }
        steps = steps_a_turn(batch_size, device, flags.quick)
        found = timed_turns(contenders, turns, steps, device)
        middle = {name: time_ for name, (time_, _, _) in found.items()}
        seconds |= {f"{name}, {batch_size}": time_ for name, time_ in middle.items()}
        ratio = ratios[f"torch_{batch_size}"] = middle["torch"] / middle[judged]
        ratios |= {f"torch_{batch_size}_eager": middle["torch"] / middle[name] for name in eager}
        needs[f"{judged}, {batch_size}"] = least(table, batch_size)
        claims[f"times torch at batch {batch_size:,}"] = (ratio, required, ratio >= required)
        share, most = median(waits) / middle[judged], MOST_WAITING[device.type]
        claims[f"share of a step that waits for its batch of {batch_size:,}"] = (share, most, share <= most)
        shown += table_of(found, f"{batch_size:,}", batch_size)
    wide: dict[str, Any] = {"widths": WIDE, "dropout": DROPOUT, **graph}
    contenders = {
        "torch": torch_step(table, WIDE_BATCH, WIDE, DROPOUT),
        judged: our_step(table, WIDE_BATCH, **wide),
        **{name: our_step(table, WIDE_BATCH, **{**wide, "captured": False}) for name in eager},
        "ours, not folded": our_step(table, WIDE_BATCH, folded=False, **wide),
        "ours, torch's masks": our_step(table, WIDE_BATCH, folded=False, torch_masks=True, **wide),
        "ours, no dropout": our_step(table, WIDE_BATCH, widths=WIDE, **graph),
    }
    found = timed_turns(contenders, turns, 2 if flags.quick else 5, device)
    middle = {name: time_ for name, (time_, _, _) in found.items()}
    seconds |= {f"{name}, dropout": time_ for name, time_ in middle.items()}
    ratios["torch_dropout"] = middle["torch"] / middle[judged]
    ratio = ratios["torch_masks_dropout"] = middle["ours, torch's masks"] / middle[judged]
    claims["times ours with torch's masks, dropout .1"] = (ratio, WIDE_RATIO, ratio >= WIDE_RATIO)
    shown += table_of(found, f"{WIDE_BATCH:,}, dropout .1, layers [1000, 500]", WIDE_BATCH)
    render_table(shown, f"a training step from packed rows, {rows:,} rows in the table")
    finish(
        "step",
        f"a training step of the RecSys 2019 model from {rows:,} packed rows",
        seconds,
        ratios,
        {} if flags.quick else claims,
        save=flags.save,
        details={"precision": choose_precision("auto", device).name, "threads": torch.get_num_threads()},
        device=device,
        needs=needs,
    )


if __name__ == "__main__":
    main()
