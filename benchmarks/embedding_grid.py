"""Where does which embedding kernel win? One table over its rows, its width, the batch and how often ids repeat.

    python -m benchmarks.embedding_grid [--quick] [--device cuda] [--seconds 0] [--save]

The grid of the shared notes on algorithms, section 2: rows 1e2..1e8, width 8..128, ids a batch 1e4..1e7, ids uniform,
Zipf 1.05 or one-hot (the same id always); what does not fit the memory is left out, and counted, as is what --seconds
leaves no time for (cases come in a random order, so that those measured are spread over the grid). Each contender sums
the gradients of a batch by row and takes a step of plain SGD; the lookup is timed beside it:

- ours: the kernel of the device (`models/kernels`);
- dense: nn.EmbeddingBag with one id a bag, a dense gradient, then table -= lr gradient;
- sparse: nn.EmbeddingBag(sparse=True), the gradient coalesced, its rows added to the table.

The roofline of the update is the time to copy the gradient's bytes read, 4 n D, and those of the touched rows, 8 U D,
read and written, at the bandwidth that this device copies with, plus the time of one sort of the ids (on a GPU; the
CPU kernel does not sort). Bars, on a GPU: at least 60 % of it from a million ids on, and nowhere more than
10 % slower than the better of torch's. The part on a GPU has not run yet.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import arguments, device_of, finish, needed, wait_for

with needed():
    from gigabatch.loaders.device_memory import free_device_memory
    from gigabatch.models.kernels import kernel
    from gigabatch.models.kernels.row_update.rules import RowRule
    from gigabatch.pipeline.display import render_table

ROWS = (100, 10_000, 1_000_000, 100_000_000)
WIDTHS = (8, 16, 64, 128)
NUM_IDS = (10_000, 100_000, 1_000_000, 10_000_000)
KINDS = ("uniform", "zipf", "one-hot")
LR = 1e-3
Step = Callable[[], Any]


def draw_ids(kind: str, num_rows: int, num_ids: int, device: torch.device) -> Tensor:
    """[num_ids, 1] int32; id 0 is the most frequent one, as in a vocabulary."""
    if kind == "one-hot":
        return torch.zeros(num_ids, 1, dtype=torch.int32, device=device)
    u = torch.rand(num_ids, 1, dtype=torch.float64, device=device)
    # Zipf: the inverse of the continuous distribution with density x^-1.05 on [1, num_rows + 1)
    found = u * num_rows if kind == "uniform" else (1 - u * (1 - (num_rows + 1.0) ** -0.05)) ** -20 - 1
    return found.long().clamp_(0, num_rows - 1).int()


def bytes_needed(num_rows: int, width: int, num_ids: int) -> int:
    """Of the widest contender: table, dense gradient, the ids' gradient, its sorted or coalesced copy, the output."""
    return 4 * (2 * num_rows * width + 4 * num_ids * width + 16 * num_ids)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return free_device_memory(device)
    with open("/proc/meminfo") as lines:
        available = next(line for line in lines if line.startswith("MemAvailable"))
    return int(available.split()[1]) * 1024


def seconds_of(step: Step, device: torch.device, turns: int) -> float:
    """Median seconds of a call, after one that compiles and fills pools."""
    times = []
    for turn in range(turns + 1):
        started = time.perf_counter()
        step()
        wait_for(device)
        if turn:
            times.append(time.perf_counter() - started)
    return median(times)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written."""
    source = torch.ones((1 << 28) if device.type == "cuda" else (1 << 25), device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / seconds_of(lambda: target.copy_(source), device, 7)


def torch_update(table: Tensor, ids: Tensor, gradient: Tensor, sparse: bool) -> tuple[Step, Step]:
    """Lookup, and backward with an SGD step, of nn.EmbeddingBag."""
    bag = nn.EmbeddingBag(*table.shape, mode="sum", sparse=sparse, _weight=table)
    bag.weight.requires_grad_()
    offsets = torch.arange(len(ids) + 1, device=ids.device, dtype=torch.int32)[:-1]
    column = ids[:, 0].contiguous()
    out = bag(column, offsets)

    def update() -> None:
        bag.weight.grad = None
        out.backward(gradient, retain_graph=True)
        with torch.no_grad():
            found = bag.weight.grad
            assert found is not None
            bag.weight.add_(found.coalesce() if sparse else found, alpha=-LR)

    return lambda: bag(column, offsets), update


def our_update(table: Tensor, ids: Tensor, gradient: Tensor) -> tuple[Step, Step]:
    """Lookup, and update by the kernels of the device."""
    look, move = kernel("lookup", table.device), kernel("row_update", table.device)
    rule = RowRule("sgd", lr=LR)
    state, out = rule.new_state(table), torch.empty_like(gradient)
    return (
        lambda: look.lookup(ids, [table], out),
        lambda: move.update_rows([table], [state], ids, gradient, rule),
    )


def measure(case: tuple[int, int, int, str], device: torch.device, turns: int, bandwidth: float) -> dict[str, Any]:
    """A row of the table: milliseconds of each contender and our share of the roofline."""
    num_rows, width, num_ids, kind = case
    ids = draw_ids(kind, num_rows, num_ids, device)
    gradient = torch.randn(num_ids, width, device=device)
    touched = int(torch.unique(ids).numel())
    row: dict[str, Any] = {"rows": num_rows, "width": width, "ids": num_ids, "kind": kind, "repeats": num_ids / touched}
    for name in ("ours", "dense", "sparse"):
        table = torch.zeros(num_rows, width, device=device)
        look, update = (
            our_update(table, ids, gradient)
            if name == "ours"
            else torch_update(table, ids, gradient, sparse=name == "sparse")
        )
        row[f"{name} lookup ms"] = 1e3 * seconds_of(look, device, turns)
        row[f"{name} ms"] = 1e3 * seconds_of(update, device, turns)
        del table, look, update
    sort = seconds_of(lambda: torch.sort(ids[:, 0], stable=True), device, turns) if device.type == "cuda" else 0.0
    roofline = 4 * width * (num_ids + 2 * touched) / bandwidth + sort
    row["roofline %"] = 100 * roofline / (row["ours ms"] / 1e3)
    row["x torch"] = min(row["dense ms"], row["sparse ms"]) / row["ours ms"]
    row["x lookup"] = min(row["dense lookup ms"], row["sparse lookup ms"]) / row["ours lookup ms"]
    return row


def main() -> None:
    flags = arguments(__doc__ or "", turns=5, seconds=0)
    started, device = time.perf_counter(), device_of(flags)
    torch.manual_seed(0)
    bandwidth = copy_bandwidth(device)
    cases = list(itertools.product(ROWS, WIDTHS, NUM_IDS, KINDS))
    if flags.quick:
        cases = list(itertools.product((100, 1_000_000), (16,), (10_000, 100_000), KINDS))
    shown, left_out = [], 0
    random.Random(0).shuffle(cases)
    for case in cases:
        if flags.seconds and time.perf_counter() - started > flags.seconds:
            left_out += 1
            continue
        if bytes_needed(*case[:3]) > 0.8 * free_bytes(device):
            left_out += 1
            continue
        shown.append(measure(case, device, 2 if flags.quick else flags.turns, bandwidth))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    shown.sort(key=lambda row: (row["rows"], row["width"], row["ids"], row["kind"]))
    render_table([{key: _rounded(value) for key, value in row.items()} for row in shown], f"one table on {device}")
    large = [row["roofline %"] for row in shown if row["ids"] >= 1_000_000]
    if not shown:
        raise SystemExit("embedding_grid: no case fits the memory and the time.")
    slowest = min(min(row["x torch"], row["x lookup"]) for row in shown)
    claims = {}
    if device.type == "cuda" and large and not flags.quick:
        claims = {
            "share of the roofline from a million ids on, at the least": (min(large) / 100, 0.6, min(large) >= 60),
            "times the speed of torch's better one, at the least": (slowest, 1 / 1.1, slowest >= 1 / 1.1),
        }
    finish(
        "embedding_grid",
        f"{len(shown)} of {len(cases)} tables and batches on {device}, {left_out} left out; {bandwidth / 1e9:.0f} GB/s",
        {"updates": sum(row["ours ms"] for row in shown) / 1e3},
        {"torch_at_the_least": slowest},
        claims,
        save=flags.save,
        device=device,
        details={"grid": [{key: _rounded(value) for key, value in row.items()} for row in shown]},
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
