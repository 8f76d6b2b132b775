"""How fast is a training step of two towers? Packed rows to moved weights, captured as a CUDA graph and eager.

    python -m benchmarks.towers [--quick] [--device cuda] [--save]

Two towers [256, 128] over five id columns each, tables of a million users and 200,000 items among them, in-batch
softmax. Per batch size: milliseconds a step and rows a second; and the item tower's forward pass alone, as stored
vectors are made.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from benchmarks.common import arguments, device_of, finish, needed

with needed():
    from benchmarks.step import steps_a_turn, timed_turns
    from gigabatch.features.schema import IdColumn, Target, TensorSchema
    from gigabatch.loaders.batches.dataset import BatchDataset
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.inputs import EntityColumns, ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.optimizers.precision import choose_precision
    from gigabatch.models.optimizers.registry import build_optimizer
    from gigabatch.models.recommenders.two_tower import TwoTower, TwoTowerSettings
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors

NUM_IDS = (1_000_000, 20_000, 5_000, 100, 10, 200_000, 10_000, 2_000, 50, 5)  # five of the user, five of the item
USER, ITEM = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
EMBEDDING, LAYERS, VECTOR = 16, (256, 128), 64
BATCHES = (4_096, 32_768, 204_800)


def packed_pairs(num_rows: int) -> PackedTable:
    """Packed rows; ids by the square of a uniform number, so that the first ones come often; a tenth is positive."""
    generator = torch.Generator().manual_seed(1)
    columns = tuple(IdColumn(f"id_{place}", size) for place, size in enumerate(NUM_IDS))
    drawn = [(torch.rand(num_rows, generator=generator).square() * (size - 3)).int() + 3 for size in NUM_IDS]
    target = (torch.rand(num_rows, generator=generator) < 0.1).float()
    return PackedTable.from_columns(TensorSchema(columns, (), (Target("chosen", "binary"),)), drawn, [], [target])


def tower_step(table: PackedTable, batch_size: int, captured: bool) -> tuple[Any, Any]:
    """(one training step as a function, the model)."""
    inputs = ModelInputs(NUM_IDS, 0, 1, user=EntityColumns(0, USER), item=EntityColumns(5, ITEM))
    settings = TwoTowerSettings(embedding_dim=EMBEDDING, layers=LAYERS, vector_dim=VECTOR, loss="softmax")
    model = TwoTower(inputs, settings)
    batch = table.unpack(table.words)
    model.remember(batch.ids, batch.floats, batch.targets)
    model = model.to(table.device).train()
    optimizer = build_optimizer(model, "lamb", lr=1e-3)
    step = TrainStep(model, TargetLoss([("binary", 1)]), optimizer, choose_precision("auto", table.device))
    if captured:
        hold_in_tensors(optimizer, table.device)
        step.capture(table.schema, batch_size)
    loader = BatchLoader(BatchDataset(table, batch_size, drop_last=True), device=table.device)

    def batches() -> Any:
        while True:
            yield from loader

    rows = batches()
    return lambda: step(next(rows), 1e-3, 0.9), model


def operations(batch_size: int) -> float:
    """Of a step: three products a layer of both towers."""
    sizes = (len(USER) * EMBEDDING, *LAYERS, VECTOR)
    return 2 * 6.0 * batch_size * sum(one * other for one, other in pairwise(sizes))


def main() -> None:
    flags = arguments(__doc__ or "", rows=1_000_000, turns=5)
    device = device_of(flags)
    torch.manual_seed(0)
    rows, turns = (40_000, 1) if flags.quick else (flags.rows, flags.turns)
    table = packed_pairs(rows)
    seconds: dict[str, float] = {}
    shown: list[dict[str, Any]] = []
    for batch_size in BATCHES[:1] if flags.quick else BATCHES:
        ids = table.unpack(table.words[:batch_size]).ids
        table_there, ids = table.to(device), ids.to(device)
        contenders = {}
        for captured in (True, False) if device.type == "cuda" else (False,):
            step, model = tower_step(table_there, batch_size, captured)
            contenders["captured" if captured else "eager"] = step
        floats = torch.empty(batch_size, 0, device=device)

        def item_vectors(model: Any = model, ids: Any = ids, floats: Any = floats) -> None:
            with torch.inference_mode():
                model.item_vectors(ids, floats)

        contenders["item tower alone, forward"] = item_vectors
        found = timed_turns(contenders, turns, steps_a_turn(batch_size, device, flags.quick), device)
        for name, (middle, low, high) in found.items():
            seconds[f"{name}, {batch_size}"] = middle
            shown.append(
                {
                    "batch": f"{batch_size:,}",
                    "what": name,
                    "ms": round(1e3 * middle, 3),
                    "spread": f"{1e3 * low:.2f}-{1e3 * high:.2f}",
                    "rows/s": f"{batch_size / middle:,.0f}",
                }
            )
    render_table(shown, f"two towers {list(LAYERS)} over five columns each, {device}")
    pairs = [name for name in seconds if name.startswith("captured")]
    finish(
        "towers",
        f"training step of two towers {list(LAYERS)} over five columns each, in-batch softmax",
        seconds,
        {f"eager_{name.split(', ')[1]}": seconds[name.replace("captured", "eager")] / seconds[name] for name in pairs},
        {},
        save=flags.save,
        device=device,
        needs={name: (0.0, operations(int(name.split(", ")[1]))) for name in pairs},
    )


if __name__ == "__main__":
    main()
