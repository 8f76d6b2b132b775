"""How fast are lists? Pooled lookup, backward and update of the rows of a table, beside torch and FBGEMM.

    python -m benchmarks.lists [--quick] [--turns N] [--save]

Each contender pools the same lists of Zipf ids, by the same weights where there are any, receives the same gradient of
what it pooled and moves its table. Lengths of lists are skewed: a tenth of them are empty, the others are rounded
log-normal numbers. Contenders:

- ours: `EmbeddingTables` and `RowOptimizer`;
- bag: nn.EmbeddingBag(include_last_offset=True, sparse=True) with torch's SGD or Adagrad, whose second moment is full
  where ours and FBGEMM's are one number a row; a maximum has dense gradients there;
- fbgemm: SplitTableBatchedEmbeddingBagsCodegen on a CPU, whose exact optimizer runs within the backward pass. It is
  that of `make bench-env`, and has no maximum.

Before anything is timed, what is pooled and the table after a step of SGD, and of row-wise Adagrad beside FBGEMM, must
agree within 1e-5. All run in one process on all cores and take turns; a ratio is the median over turns of the better
peer's time over ours of the same turn, so that what else runs on the machine meets both. `lists_step` (forward,
backward and update) and `lists_forward` are the least over the cases at batch 204,800 that have two peers; the claim is
on the first.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish, needed

with needed():
    import numpy as np

    from benchmarks.embedding import has_fbgemm
    from benchmarks.pairs import zipf_ranks
    from gigabatch.models.inputs import ListInputs
    from gigabatch.models.layers.embeddings import EmbeddingTables
    from gigabatch.models.optimizers.row_optimizer import RowOptimizer
    from gigabatch.pipeline.display import render_table

CPU = torch.device("cpu")
LR, EPS = 0.05, 1e-8
TOLERANCE = 1e-5
BATCH_SIZES = (4_096, 204_800)
EMPTY = 0.1  # of the lists
EXPONENT = 1.05  # of Zipf's law, as in the grid of benchmarks/embedding_grid.py
SPREAD = 1.0  # of the logarithm of the others' lengths
REQUIRED = 2.0
Step = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """Lists of a mean length over a table of `rows` rows and `width` columns, and what is made of them."""

    pooling: str
    weighted: bool
    batch: int
    length: int
    rows: int
    width: int
    method: str = "adagrad"

    def __str__(self) -> str:
        kind = ("weighted " if self.weighted else "") + self.pooling
        return f"{kind}, {self.batch} lists of {self.length}, {self.rows} x {self.width}, {self.method}"


class Lists(NamedTuple):
    """A batch: ids int32 [T], offsets int64 [B + 1], weights float32 [T] or None."""

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None


class Contender(NamedTuple):
    """Ways to run one: forward alone, all of a step, and its table [V, D]."""

    forward: Callable[[], Tensor]
    step: Step
    table: Callable[[], Tensor]


def cases(quick: bool) -> list[Case]:
    """Around a mean of 10 elements over 1,000,000 rows of 32 columns, one thing changes at a time."""
    found = []
    for batch in (4_096,) if quick else BATCH_SIZES:
        rows = 100_000 if quick else 1_000_000
        found += [Case(pooling, False, batch, 10, rows, 32) for pooling in ("sum", "mean", "max")]
        found.append(Case("sum", True, batch, 10, rows, 32))
        found.append(Case("mean", False, batch, 10, rows, 32, "sgd"))
        found += [Case("mean", False, batch, 10, rows, width) for width in (16, 64)]
        if not quick:
            found += [Case("mean", False, batch, 50, rows, 32), Case("mean", False, batch, 10, 100_000, 32)]
    return found


def lists_of(case: Case, seed: int = 1) -> Lists:
    """Lists of skewed lengths with Zipf ids; by their ids' ranks, as our vocabularies are ordered by frequency."""
    random = np.random.default_rng(seed)
    lengths = np.exp(random.normal(-(SPREAD**2) / 2, SPREAD, case.batch)) * case.length / (1 - EMPTY)
    lengths = np.where(random.random(case.batch) < EMPTY, 0, np.rint(lengths)).astype("int64")
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    ids = torch.from_numpy(zipf_ranks(random, case.rows, int(offsets[-1]), EXPONENT).astype("int32"))
    weights = torch.from_numpy(random.random(len(ids)).astype("float32")) if case.weighted else None
    return Lists(ids, offsets, weights)


def ours(case: Case, lists: Lists, table: Tensor, gradient: Tensor) -> Contender:
    tables = EmbeddingTables(
        (), [case.width], lists=[ListInputs(case.rows, weighted=case.weighted)], pooling=case.pooling
    )
    tables.weights[0].data.copy_(table)
    optimizer = RowOptimizer([tables], LR, method=case.method, eps=EPS)
    no_ids = torch.empty(case.batch, 0, dtype=torch.int32)

    def step() -> None:
        tables(no_ids, (lists,)).backward(gradient)
        optimizer.step()

    return Contender(lambda: tables(no_ids, (lists,)).detach(), step, lambda: tables.weights[0].detach())


def bag(case: Case, lists: Lists, table: Tensor, gradient: Tensor) -> Contender:
    module = nn.EmbeddingBag(
        case.rows, case.width, mode=case.pooling, include_last_offset=True, sparse=case.pooling != "max",
        _weight=table.clone(),
    )  # fmt: skip
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    optimizer = kinds[case.method](module.parameters(), lr=LR, **({"eps": EPS} if case.method == "adagrad" else {}))
    offsets = lists.offsets.int()  # ids and offsets of one type: int32 halves what it reads

    def forward() -> Tensor:
        pooled: Tensor = module(lists.ids, offsets, lists.weights)
        return pooled

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().backward(gradient)
        optimizer.step()

    return Contender(lambda: forward().detach(), step, lambda: module.weight.detach())


def fbgemm(case: Case, lists: Lists, table: Tensor, gradient: Tensor) -> Contender:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    kinds = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(case.rows, case.width, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=kinds[case.method],
        learning_rate=LR,
        eps=EPS,
        pooling_mode=PoolingMode[case.pooling.upper()],
    )
    (weight,) = module.split_embedding_weights()
    weight.copy_(table)
    ids = lists.ids.long()  # its kernel for a CPU takes int64

    def forward() -> Tensor:
        pooled: Tensor = module(ids, lists.offsets, lists.weights)
        return pooled

    return Contender(lambda: forward().detach(), lambda: forward().backward(gradient), lambda: weight.detach())


def contenders(case: Case, lists: Lists, with_fbgemm: bool) -> dict[str, Contender]:
    """All that can run the case, with equal tables."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(case.rows, case.width, generator=generator) * 0.01
    gradient = torch.randn(case.batch, case.width, generator=generator) / case.batch
    kinds = {"ours": ours, "bag": bag} | ({"fbgemm": fbgemm} if with_fbgemm and case.pooling != "max" else {})
    return {name: build(case, lists, table, gradient) for name, build in kinds.items()}


def require_equal(case: Case, found: Mapping[str, Contender]) -> None:
    """Raise AssertionError unless all pool alike and, after a step, those of equal arithmetic have equal tables."""
    pooled = {name: one.forward() for name, one in found.items()}
    for name, other in pooled.items():
        _close(other, pooled["ours"], f"{case}: what {name} pools")
    for one in found.values():
        one.step()
    for name, one in found.items():
        if name != "bag" or case.method != "adagrad":  # of a full second moment
            _close(one.table(), found["ours"].table(), f"{case}: the table of {name}")


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{what}: {text}")


def turns_of(runs: Mapping[str, Step], turns: int) -> dict[str, list[float]]:
    """Seconds of each in each turn, after one that is not counted; who begins changes from turn to turn."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = time.perf_counter()
            runs[name]()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def main() -> None:
    flags = arguments(__doc__ or "", turns=15)
    turns = 2 if flags.quick else flags.turns
    with_fbgemm = has_fbgemm(CPU)
    seconds: dict[str, float] = {}
    shown: list[dict[str, Any]] = []
    found_ratios: dict[str, float] = {}
    for case in cases(flags.quick):
        lists = lists_of(case)
        found = contenders(case, lists, with_fbgemm)
        require_equal(case, found)
        for what in ("forward", "step"):
            repeats = 1 if case.batch > 100_000 else 8
            runs = {name: _repeated(getattr(one, what), repeats) for name, one in found.items()}
            with torch.set_grad_enabled(what == "step"):
                times = turns_of(runs, turns)
            peers = [name for name in times if name != "ours"]
            key = f"lists_{what}, {case}"
            seconds |= {f"{key}, {name}": median(own) / repeats for name, own in times.items()}
            better = [min(times[name][turn] for name in peers) for turn in range(turns)]
            found_ratios[key] = median(peer / own for peer, own in zip(better, times["ours"], strict=True))
            shown.append(
                {"case": str(case), "what": what}
                | {f"{name}, ms": round(1e3 * seconds[f"{key}, {name}"], 2) for name in times}
                | {"ours is faster by": round(found_ratios[key], 2)}
            )
        del found
        gc.collect()
    render_table(shown, "pooled lists: medians, and the better peer's time over ours")
    ratios = {
        what: min(ratio for key, ratio in found_ratios.items() if key.startswith(what) and ", max" not in key
                  and (flags.quick or f", {BATCH_SIZES[-1]} lists" in key))
        for what in ("lists_step", "lists_forward")
    }  # fmt: skip
    holds = ratios["lists_step"] >= REQUIRED
    finish(
        "lists",
        "pooled lookup of lists of Zipf ids, backward and update of a table",
        seconds,
        ratios | found_ratios,
        {} if flags.quick else {"times the better peer, lists_step": (ratios["lists_step"], REQUIRED, holds)},
        save=flags.save,
        details={"threads": torch.get_num_threads(), "fbgemm": with_fbgemm, "turns": turns},
    )


def _repeated(work: Step, count: int) -> Step:
    def run() -> None:
        for _ in range(count):
            work()

    return run


if __name__ == "__main__":
    main()
