"""The curve of one training on 1, 2 and 4 ranks: how far losses and metrics are apart, by model.

    python -m benchmarks.ranks_equal [--quick] [--save] [--ranks 2,4] [--epochs 4]

Four models with their optimizers train on planted rows (`benchmarks/communication_quality.py`), batch 2,000, with batch
norm and dropout where the model has them, with whole tables on each rank and with tables spread over the ranks, by the
pipeline's own training over gloo. A curve has train losses and, by epoch, the valid loss. Nothing here is timed, so a
loaded machine does no harm.

What rounding alone does to a curve is shown by a control: one rank whose first weights are one part in 2^23 larger.

- `ranks_equal`: largest |loss on N ranks - loss on one| over models, ranks, layouts and both losses, in the first epoch
  (30 steps); that of all epochs is in the table, beside that of the control.
- `row_accounting`: rows trained on N ranks less those on one, the largest.
- `bits_apart`: weights of ranks of one training that differ where each holds all, the largest number.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from operator import ne
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, needed

with needed():
    import torch

    from benchmarks.communication_quality import NUM_FLOATS, SIZES, planted
    from benchmarks.communication_schemes import on_ranks
    from gigabatch.features.schema import IdColumn, Target, TensorSchema
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.parallel.ranks import Ranks
    from gigabatch.models.shelf import model_class
    from gigabatch.pipeline.config.config import TrainSettings
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.training.train import train_model

TOLERANCE = 1e-4  # of a loss of about .6: sums in float32 in another order, over 30 steps
BATCH = 2_000
LOSSES = ("train_loss", "valid_loss")
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tabular, lamb": ("tabular", {"layers": [128, 64], "dropout": 0.1, "embedding_dropout": 0.05}, {"lr_max": 0.01}),
    "deepfm, cowclip": ("deepfm", {"layers": [64], "dropout": 0.1}, {"optimizer": "cowclip", "lr_max": 0.003}),
    "dcn, clipped": ("dcn", {"layers": [64], "dropout": 0.1}, {"lr_max": 0.01, "max_grad_norm": 0.1}),
    "dlrm, averaged": ("dlrm", {}, {"lr_max": 0.01, "ema_decay": 0.99}),
}


def packed(num_rows: int, seed: int) -> PackedTable:
    """Planted rows as a table."""
    rows = planted(num_rows, seed)
    columns = tuple(IdColumn(f"id{place}", size) for place, size in enumerate(SIZES))
    floats = tuple(f"x{place}" for place in range(NUM_FLOATS))
    schema = TensorSchema(columns, floats, (Target("label", "binary"),))
    return PackedTable.from_columns(schema, list(rows.ids.T), list(rows.floats.T), [rows.targets])


def curves(ranks: Ranks, name: str, tables: str, epochs: int, num_rows: int, rounded: bool = False) -> dict[str, Any]:
    """Losses by epoch, rows and checksums of this rank's weights; rounded: the control's weights."""
    kind, settings, train = MODELS[name]
    torch.manual_seed(1)
    model = model_class(kind)(ModelInputs(SIZES, NUM_FLOATS), model_class(kind).Settings(**settings))
    if rounded:
        with torch.no_grad():
            for weight in model.parameters():
                weight *= 1 + 2.0**-23
    options = TrainSettings(**{"epochs": epochs, "batch_size": BATCH, "tables": tables, "patience": None} | train)
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(ranks.tell(folder, "folder")) if ranks.num_ranks > 1 else Path(folder)
        found = train_model(
            model, packed(num_rows, 0), packed(num_rows // 2, 1), TargetLoss([("binary", 1)]), options,
            seed=3, device="cpu", folder=shared, ranks=ranks if ranks.num_ranks > 1 else None,
        )  # fmt: skip
        ranks.barrier()
    bits = [hashlib.md5(value.detach().contiguous().numpy()).hexdigest() for value in found.model.state_dict().values()]
    losses = [{key: value for key, value in point.items() if key in ("epoch", *LOSSES)} for point in found.curve]
    return {"curve": losses, "rows": found.rows, "steps": found.steps, "bits": bits}


def main() -> None:
    flags = arguments(__doc__ or "", ranks="2,4", epochs=4)
    names = list(MODELS)[:1] if flags.quick else list(MODELS)
    numbers = [2] if flags.quick else [int(one) for one in flags.ranks.split(",")]
    num_rows = 10_000 if flags.quick else 60_000
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    table: list[dict[str, Any]] = []
    apart, lost, torn = 0.0, 0, 0
    for name in names:
        (one,) = on_ranks(curves, 1, name, "replicated", flags.epochs, num_rows)
        ways = [(number, tables, False) for number in numbers for tables in ("replicated", "sharded")]
        for number, tables, rounded in [(1, "replicated", True), *ways]:
            told = on_ranks(curves, number, name, tables, flags.epochs, num_rows, rounded)
            off = {
                point["epoch"]: max(abs(found[key] - point[key]) for key in LOSSES if key in point)
                for found, point in zip(told[0]["curve"], one["curve"], strict=True)
            }
            first = max(value for epoch, value in off.items() if epoch <= 1)
            if not rounded:
                apart, lost = max(apart, first), max(lost, abs(told[0]["rows"] - one["rows"]))
            if tables == "replicated":  # else each rank holds rows of its own
                torn = max(torn, *(sum(map(ne, rank["bits"], told[0]["bits"])) for rank in told))
            table.append({
                "model": name, "ranks": number, "tables": "control" if rounded else tables,
                "valid loss": round(told[0]["curve"][-1]["valid_loss"], 6),
                "apart in the first epoch": first, "in all": max(off.values()),
            })  # fmt: skip
            print(table[-1], flush=True)
    render_table(table, "how far a curve is from that of one rank")
    claims = {
        "ranks_equal": (apart, TOLERANCE, apart <= TOLERANCE),
        "row_accounting": (lost, 0, lost == 0),
        "bits_apart": (torn, 0, torn == 0),
    }
    finish(
        "ranks_equal",
        f"{', '.join(names)} on 1, {', '.join(map(str, numbers))} gloo ranks, {num_rows:,} rows, batch {BATCH:,}",
        {},
        {"ranks_equal": apart},
        {} if flags.quick else claims,
        save=flags.save,
        details={"trainings": table},
    )


if __name__ == "__main__":
    main()
