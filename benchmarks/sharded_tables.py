"""A training step of sharded embedding tables on two ranks of this machine, over gloo: rows/s and bytes.

Ours beside the exchange that suggests itself: every id of the batch goes to its owner, its row comes back, its gradient
goes there, in three all-to-alls of all tables without de-duplication; the same kernels look rows up and move them. Both
train the same tables with row-wise Adagrad on the same ids, drawn by Zipf's law. Bytes are counted by `Ranks`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from benchmarks.common import arguments, finish, needed

with needed():
    from gigabatch.models.kernels import kernel
    from gigabatch.models.layers.embeddings import EmbeddingTables
    from gigabatch.models.optimizers.row_optimizer import RowOptimizer
    from gigabatch.models.parallel.placement import Placement
    from gigabatch.models.parallel.ranks import Ranks
    from gigabatch.models.parallel.sharded import ShardedTables

NUM_RANKS = 2
SIZES = (1_000_000, 200_000, 200_000, 50_000, 10_000, 10_000, 1_000, 1_000)
WIDTH = 16
EXPONENT = 1.05  # of Zipf's law, as in the grid of benchmarks/embedding_grid.py


def batches(rank: int, num_rows: int, number: int) -> list[Tensor]:
    """ids [B, C] int32 of this rank: the inverse of Zipf's distribution function, with its sum as an integral."""
    random = torch.Generator().manual_seed(rank)
    power = 1 - EXPONENT
    found = []
    for _ in range(number):
        u = torch.rand(num_rows, len(SIZES), generator=random, dtype=torch.float64)
        top = torch.tensor([(size + 1.0) ** power for size in SIZES], dtype=torch.float64)
        values = (1 + u * (top - 1)) ** (1 / power) - 1
        found.append(torch.minimum(values.long(), torch.tensor(SIZES) - 1).int())
    return found


class Naive:
    """Rows by rank i mod N, every id of the batch sent, every row and every gradient."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.sizes = [len(range(ranks.rank, size, ranks.num_ranks)) for size in SIZES]
        self.tables = EmbeddingTables(self.sizes, [WIDTH] * len(SIZES), gradients="rows")
        self.first = torch.tensor(self.sizes).cumsum(0) - torch.tensor(self.sizes)
        self.optimizer = RowOptimizer([self.tables], lr=0.01, method="adagrad")
        # One table of all rows, so that ids of all tables are one column.
        self.table = torch.cat([table.detach() for table in self.tables.weights])
        self.state = self.optimizer._rule().new_state(self.table)

    def step(self, ids: Tensor, gradient: Tensor) -> Tensor:
        count = self.ranks.num_ranks
        owner = (ids % count).flatten()
        starts = torch.tensor([[len(range(rank, size, count)) for size in SIZES] for rank in range(count)])
        starts = starts.cumsum(1) - starts
        rows = (ids // count).flatten() + starts[owner, torch.arange(len(SIZES)).repeat(len(ids))]
        order = owner.argsort(stable=True)
        send = torch.bincount(owner, minlength=count).tolist()
        receive = self.ranks.all_to_all_counts(send, ids.device)
        wanted = self.ranks.all_to_all(rows[order].int(), send, receive, "ids")
        came = self.ranks.all_to_all(self.table[wanted], receive, send, "rows")
        found = torch.empty_like(came)
        found[order] = came
        sums = self.ranks.all_to_all(gradient.reshape(-1, WIDTH)[order], send, receive, "gradients of rows")
        update = kernel("row_update", ids.device)
        update.update_rows([self.table], [self.state], wanted[:, None], sums, self.optimizer._rule())
        return found.view(len(ids), -1)


class Ours:
    """`ShardedTables`, all tables by rows."""

    def __init__(self, ranks: Ranks) -> None:
        self.model = EmbeddingTables(SIZES, [WIDTH] * len(SIZES), gradients="rows")
        self.tables = ShardedTables(self.model, [Placement("row")] * len(SIZES), ranks)
        self.optimizer = RowOptimizer([self.model], lr=0.01, method="adagrad")

    def step(self, ids: Tensor, gradient: Tensor) -> Tensor:
        with self.tables.fetched(ids):
            found = self.model(ids)
            found.backward(gradient)
            self.tables.exchange_gradients()
        self.optimizer.step()
        return found


def measure(rank: int, folder: str, num_rows: int, repeats: int, told: Any) -> None:
    """One rank; the first one tells seconds of the repeats and bytes of a step by system and batch."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=NUM_RANKS)
    random = torch.Generator().manual_seed(rank)
    found: dict[str, tuple[list[float], float]] = {}
    systems: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {"ours": [], "naive": []}
    for name, kind in (("ours", Ours), ("naive", Naive)):
        torch.manual_seed(0)
        ranks = Ranks()
        systems[name] = (ranks, kind(ranks))
    gradient = torch.randn(num_rows, len(SIZES) * WIDTH, generator=random) / num_rows
    drawn = batches(rank, num_rows, repeats + 2)
    for number, ids in enumerate(drawn):
        for name, (ranks, system) in systems.items():  # by turns, so that both meet the same machine
            if number == 2:
                ranks.traffic.clear()
            dist.barrier()
            started = time.perf_counter()
            system.step(ids, gradient)
            dist.barrier()
            if number >= 2:
                seconds[name].append(time.perf_counter() - started)
    for name, (ranks, _) in systems.items():
        found[name] = seconds[name], ranks.traffic.total / repeats
    if rank == 0:
        told.put(found)
    dist.destroy_process_group()


def main() -> None:
    flags = arguments(__doc__ or "", repeats=15)
    if flags.device == "cuda":
        sys.exit("sharded_tables: two ranks over gloo on the CPU; a GPU has not been measured.")
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    claims: dict[str, tuple[float, float, bool]] = {}
    for num_rows in (4096,) if flags.quick else (1024, 4096, 16384):
        context = multiprocessing.get_context("spawn")
        told = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            work = (folder, num_rows, flags.repeats, told)
            processes = multiprocessing.spawn(measure, work, nprocs=NUM_RANKS, join=False)
            while told.empty():  # a rank that has died raises here; `get` alone would wait for ever
                processes.join(timeout=1)
            found = told.get()
            while not processes.join():
                pass
        medians = {name: median(times) for name, (times, _) in found.items()}
        sent = {name: number for name, (_, number) in found.items()}
        seconds |= {f"{name}, batch {num_rows}": value for name, value in medians.items()}
        speed, saved = medians["naive"] / medians["ours"], sent["naive"] / sent["ours"]
        ratios |= {f"speed_{num_rows}": speed, f"bytes_{num_rows}": saved}
        ratios |= {f"{name}_rows_per_s_{num_rows}": NUM_RANKS * num_rows / value for name, value in medians.items()}
        ratios |= {f"{name}_kilobytes_{num_rows}": number / 1e3 for name, number in sent.items()}
        claims[f"steps of {num_rows} rows a rank against the naive exchange"] = (speed, 1.0, speed >= 1.0)
        claims[f"fewer bytes at {num_rows} rows a rank"] = (saved, 1.5, saved >= 1.5)
    workload = f"{len(SIZES)} tables of up to {max(SIZES):,} rows of {WIDTH}, two gloo ranks, a thread each"
    finish("sharded_tables", workload, seconds, ratios, {} if flags.quick else claims, save=flags.save)


if __name__ == "__main__":
    main()
