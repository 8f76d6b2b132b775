"""How fast are embedding tables? Lookup, backward and update of the 13 tables of the RecSys 2019 model, beside torch.

    python -m benchmarks.embedding [--quick] [--device cuda] [--save]

Each contender looks up the same ids, receives the same gradient of what it looked up, and moves its tables:

- dense_adamw: nn.Embedding, one dense gradient a table, torch's fused AdamW;
- sparse_adam: nn.Embedding(sparse=True), torch's SparseAdam;
- ours: one lookup, and one kernel that sums the gradients by row and moves the rows. The one that is compared does
  SparseAdam's own arithmetic (lazy Adam with a full second moment); LAMB, row-wise Adagrad and SGD stand beside it.

- fbgemm, where it is installed (on a CPU by `make bench-env`): FBGEMM's table-batched embeddings with its exact
  row-wise Adagrad. Its widths must be multiples of 4, so the tables of 1 and 3 columns have 4 there.

They take turns in one process, medians. Bars: at batch 4,096 at least 10 times dense AdamW and 3 times SparseAdam; at
204,800 at least twice the better of the two.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import arguments, copy_bandwidth, device_of, finish, needed

with needed():
    from benchmarks.step import NUM_IDS, WIDTHS, packed_pairs, steps_a_turn, timed_turns
    from gigabatch.models.layers.embeddings import EmbeddingTables
    from gigabatch.models.optimizers.row_optimizer import RowOptimizer
    from gigabatch.pipeline.display import render_table

Step = Callable[[], None]
OURS = {
    "ours": {"method": "adam", "second_moment": "full"},
    "ours, LAMB, one second moment a row": {"method": "lamb"},
    "ours, row-wise Adagrad": {"method": "adagrad"},
    "ours, SGD": {"method": "sgd"},
}
LR = 1e-3
BATCH_SIZES = (4_096, 204_800)
FBGEMM = Path(".venv-bench/fbgemm")


def torch_tables(batches: Sequence[Tensor], gradient: Tensor, sparse: bool) -> Step:
    """nn.Embedding with fused dense AdamW, or sparse with SparseAdam."""
    tables = nn.ModuleList(nn.Embedding(n, d, sparse=sparse) for n, d in zip(NUM_IDS, WIDTHS, strict=True))
    tables = tables.to(gradient.device)
    optimizer: Any = (
        torch.optim.SparseAdam(list(tables.parameters()), lr=LR)
        if sparse
        else torch.optim.AdamW(tables.parameters(), lr=LR, fused=True)
    )
    turn = iter(endless(batches))

    def step() -> None:
        ids = next(turn)
        out = torch.cat([table(ids[:, column]) for column, table in enumerate(tables)], dim=1)
        optimizer.zero_grad(set_to_none=True)
        out.backward(gradient)
        optimizer.step()

    return step


def our_tables(batches: Sequence[Tensor], gradient: Tensor, settings: dict[str, Any]) -> Step:
    tables = EmbeddingTables(NUM_IDS, WIDTHS).to(gradient.device)
    optimizer = RowOptimizer([tables], LR, **settings)
    turn = iter(endless(batches))

    def step() -> None:
        tables(next(turn)).backward(gradient)
        optimizer.step()

    return step


def has_fbgemm(device: torch.device) -> bool:
    """On a GPU any installed one; on a CPU the one of `make bench-env`, which is built for it."""
    if device.type == "cpu" and FBGEMM.exists():
        sys.path.append(str(FBGEMM))
    return importlib.util.find_spec("fbgemm_gpu") is not None


def fbgemm_tables(batches: Sequence[Tensor], batch_size: int, device: torch.device) -> Step:
    """FBGEMM's tables; a lookup sums over one id, as there is one a column."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    on_gpu = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    place = on_gpu if device.type == "cuda" else (EmbeddingLocation.HOST, ComputeDevice.CPU)
    widths = [-(-width // 4) * 4 for width in WIDTHS]
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, d, *place) for n, d in zip(NUM_IDS, widths, strict=True)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=LR,
        pooling_mode=PoolingMode.SUM,
    )
    offsets = torch.arange(len(NUM_IDS) * batch_size + 1, device=device)
    gradient = torch.randn(batch_size, sum(widths), device=device) / batch_size
    turn = iter(endless(batches))

    def step() -> None:
        tables(next(turn).t().reshape(-1).long(), offsets).backward(gradient)

    return step


def endless(batches: Sequence[Tensor]) -> Any:
    while True:
        yield from batches


def main() -> None:
    flags = arguments(__doc__ or "", turns=7)
    device = device_of(flags)
    torch.manual_seed(0)
    turns = 1 if flags.quick else flags.turns
    seconds: dict[str, float] = {}
    shown: list[dict[str, Any]] = []
    unique: dict[str, float] = {}
    needs: dict[str, tuple[float, float]] = {}
    for batch_size in BATCH_SIZES:
        table = packed_pairs(4 * batch_size).to(device)
        batches = [table.unpack(words).ids for words in table.words.split(batch_size)]
        gradient = torch.randn(batch_size, sum(WIDTHS), device=device) / batch_size
        contenders: dict[str, Step] = {
            "dense_adamw": torch_tables(batches, gradient, sparse=False),
            "sparse_adam": torch_tables(batches, gradient, sparse=True),
        }
        contenders |= {name: our_tables(batches, gradient, settings) for name, settings in OURS.items()}
        if has_fbgemm(device):
            contenders["fbgemm, row-wise Adagrad"] = fbgemm_tables(batches, batch_size, device)
        found = timed_turns(contenders, turns, steps_a_turn(batch_size, device, flags.quick), device)
        seconds |= {f"{name}, {batch_size}": time_ for name, (time_, _, _) in found.items()}
        # What must move at least: ids, the output and its gradient once, each unique row and its moments both ways.
        rows = [len(batches[0][:, column].unique()) * width for column, width in enumerate(WIDTHS)]
        least = 4 * (batch_size * (len(WIDTHS) + 2 * sum(WIDTHS)) + 2 * 3 * sum(rows))
        needs[f"ours, {batch_size}"] = (least, 0.0)
        unique[f"{batch_size}"] = round(sum(rows) / (batch_size * sum(WIDTHS)), 3)
        shown += [
            {
                "batch": f"{batch_size:,}",
                "who": name,
                "ms": round(1e3 * middle, 2),
                "spread": f"{1e3 * low:.1f}-{1e3 * high:.1f}",
                "GB/s of the least": round(least / middle / 1e9, 2),
                "ours is faster by": round(middle / found["ours"][0], 2),
            }
            for name, (middle, low, high) in found.items()
        ]
    render_table(shown, f"lookup, backward and update of {len(NUM_IDS)} tables, {sum(NUM_IDS):,} rows")
    ratios = {name: seconds[f"{name}, 4096"] / seconds["ours, 4096"] for name in ("dense_adamw", "sparse_adam")}
    best = min(seconds["dense_adamw, 204800"], seconds["sparse_adam, 204800"])
    ratios["best_torch_204800"] = best / seconds["ours, 204800"]
    required = {"dense_adamw": 10.0, "sparse_adam": 3.0, "best_torch_204800": 2.0}
    claims = {f"times {name}": (ratios[name], bar, ratios[name] >= bar) for name, bar in required.items()}
    against_fbgemm = {
        batch_size: round(
            seconds[f"fbgemm, row-wise Adagrad, {batch_size}"] / seconds[f"ours, row-wise Adagrad, {batch_size}"], 2
        )
        for batch_size in BATCH_SIZES
        if f"fbgemm, row-wise Adagrad, {batch_size}" in seconds
    }
    details = {
        "row-wise Adagrad: times faster than FBGEMM, by batch": against_fbgemm,
        "distinct elements over elements looked up, by batch": unique,
        "copy bandwidth, GB/s": round(copy_bandwidth() / 1e9, 1) if device.type == "cpu" else None,
    }
    finish(
        "embedding",
        "lookup, backward and update of the 13 tables of the RecSys 2019 model",
        seconds,
        ratios,
        {} if flags.quick else claims,
        save=flags.save,
        details=details,
        device=device,
        needs=needs,
    )


if __name__ == "__main__":
    main()
