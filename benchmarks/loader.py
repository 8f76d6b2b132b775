"""How fast are batches there? Model-ready rows a second (ids and floats in hand) from packed rows, beside the loaders
that tabular models are trained with.

    make bench-env && python -m benchmarks.loader [--quick] [--save] [--rows N] [--peer_rows N]
    python -m benchmarks.loader --device cuda --peers torch

A table of the pair table's shape: 13 ids, 20 floats and the target, 34 words a row. Ours walks through epochs of all
rows; the peers through an epoch of the first `peer_rows`, which they hold in memory too (fewer rows stay in the caches
better, so that is no harm to them). Every contender has a process of its own; rounds are interleaved, medians count.
Peers use the number of workers that was fastest in a first short round. Streaming is measured against reading the same
files in order, both after their pages were dropped from memory. On a GPU the bars are for the table that lies on it, as
`gigabatch train` keeps one that fits; --peers names who is compared (fastai needs `make bench-env`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.common import arguments, copy_bandwidth, device_of, finish, needed, wait_for

with needed():
    from benchmarks.pairs import CARDINALITY, CONTINUOUS
    from gigabatch.features.schema import IdColumn, Target, TensorSchema
    from gigabatch.loaders.batches.dataset import BatchDataset, BatchSource
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.loaders.batches.shards import write_shuffled
    from gigabatch.loaders.batches.stream import BLOCK_BYTES, NUM_LANES, WINDOW_BLOCKS, StreamedDataset
    from gigabatch.loaders.order.blocks import BlockOrder
    from gigabatch.loaders.order.order import SampleOrder
    from gigabatch.loaders.order.quality import shuffle_quality
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.pipeline.display import render_table

SMALL, LARGE = 4096, 204_800
PEERS = {"torch": "torch_dataloader", "fastai": "fastai"}
PEER_PYTHON = {"torch": sys.executable, "fastai": ".venv-bench/fastai/bin/python"}
WORKERS = (0, 2)
RESIDENT = " resident on the GPU"
REQUIRED = {("torch", SMALL): 50.0, ("torch", LARGE): 100.0, ("fastai", SMALL): 5.0, ("fastai", LARGE): 5.0}
STREAMED_TIMES = 4  # the streamed table is so many times as long, so that starting and ending weigh little
READ_BYTES = 16 << 20


def schema() -> TensorSchema:
    """What the pair table packs to."""
    sizes = {**CARDINALITY, **{f"is_{i}": 3 for i in range(7)}}
    ids = tuple(IdColumn(name, num_ids + 3) for name, num_ids in sizes.items())
    return TensorSchema(ids, tuple(CONTINUOUS), (Target("target", "binary"),))


def random_table(num_rows: int) -> PackedTable:
    layout, generator = schema(), torch.Generator().manual_seed(0)
    ids = [torch.randint(0, c.num_ids, (num_rows,), generator=generator, dtype=torch.int32) for c in layout.ids]
    floats = [torch.randn(num_rows, generator=generator) for _ in layout.floats]
    target = torch.randint(0, 2, (num_rows,), generator=generator).float()
    return PackedTable.from_columns(layout, ids, floats, [target])


def walk(loader: BatchLoader, num_epochs: int) -> float:
    """Rows a second over `num_epochs`, after one epoch for what is done once (buffers, compiled loops)."""
    rows, start = 0, 0.0
    for epoch in range(num_epochs + 1):
        if epoch == 1:
            rows, start = 0, _now(loader.device)
        for batch in loader:
            rows += batch.ids.shape[0]
    return rows / (_now(loader.device) - start)


def _now(device: torch.device) -> float:
    wait_for(device)
    return time.perf_counter()


def once(folder: Path, device: str) -> dict[str, float]:
    """Rows a second of every form of ours, in this process."""
    table = PackedTable.load(folder, mmap=False)
    found = {}

    def measure(name: str, source: BatchSource, **settings: Any) -> None:
        # Rows for a tenth of a second at least, also of a small table.
        num_epochs = 1 + (50_000_000 if device == "cuda" else 5_000_000) // source.num_rows
        found[name] = walk(BatchLoader(source, device=device, **settings), num_epochs)

    for size in (SMALL, LARGE):
        measure(f"{size}", BatchDataset(table, size, seed=1))
        measure(f"{size} in order of storage", BatchDataset(table, size, shuffle=False))
        if device == "cuda":
            measure(f"{size} not gathered ahead", BatchDataset(table, size, seed=1), prefetch=0)
            measure(f"{size}{RESIDENT}", BatchDataset(table.to("cuda"), size, seed=1))
        else:
            measure(f"{size} gathered ahead", BatchDataset(table, size, seed=1), prefetch=1)
    return found


def streaming(folder: Path) -> dict[str, float]:
    """Bytes a second of an epoch of streamed rows and of reading the same files, both from cold pages."""
    source = StreamedDataset(folder, LARGE, seed=1)
    num_bytes = source.table.num_bytes
    small = next(iter(BatchLoader(source)))  # compiles, or loads what was compiled
    assert small.ids.shape[0] == min(LARGE, source.num_rows)
    source.set_epoch(1)  # which also ends its reading ahead
    drop_pages(folder)
    start = time.perf_counter()
    for path in sorted(folder.glob("*.npy")):
        read_whole(path)
    read = time.perf_counter() - start
    drop_pages(folder)
    start = time.perf_counter()
    rows = sum(batch.ids.shape[0] for batch in BatchLoader(source))
    streamed = time.perf_counter() - start
    assert rows == source.num_rows
    return {"read": num_bytes / read, "streamed": num_bytes / streamed, "rows": rows / streamed}


def drop_pages(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_whole(path: Path) -> None:
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def run(command: list[str]) -> dict[str, float]:
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
    return json.loads(found.stdout.strip().splitlines()[-1])


def peer(name: str, folder: Path, num_rows: int, num_workers: int, device: str, size: int) -> float:
    """Rows a second of a peer at a batch size."""
    layout = schema()
    numbers = [len(layout.ids), len(layout.floats), num_rows, num_workers]
    command = [PEER_PYTHON[name], "benchmarks/loader_peers.py", name, str(folder / "words.npy"), *map(str, numbers)]
    return run([*command, device, str(size)])[str(size)]


def main() -> None:
    flags = arguments(
        __doc__ or "", rows=2_000_000, peer_rows=3 * LARGE, rounds=5, peers="torch,fastai", once="", stream=""
    )
    device = device_of(flags).type
    if flags.once or flags.stream:
        print(
            json.dumps(once(Path(flags.once), device) if flags.once else streaming(Path(flags.stream)), allow_nan=False)
        )
        return
    wanted = [key for key in REQUIRED if key[0] in flags.peers.split(",")]
    if unknown := set(flags.peers.split(",")) - PEERS.keys():
        raise SystemExit(f"--peers {flags.peers}: unknown {', '.join(sorted(unknown))}. Known: {', '.join(PEERS)}.")
    if any(not Path(PEER_PYTHON[name]).exists() for name, _ in wanted):
        raise SystemExit("The peers' environment is missing: make bench-env, or --peers torch")
    rows, peer_rows, rounds = (500_000, LARGE, 1) if flags.quick else (flags.rows, flags.peer_rows, flags.rounds)
    me = [sys.executable, "-m", "benchmarks.loader", "--device", device]
    ours, streamed = [], []
    peers: dict[tuple[str, int], list[float]] = {key: [] for key in wanted}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        table = random_table(rows)
        table.save(folder / "table")
        times = 1 if flags.quick else STREAMED_TIMES
        write_shuffled([table] * times, folder / "streamed", table.schema, times * rows, seed=3)
        choices = WORKERS[: 1 if flags.quick else 2]
        workers = fastest_workers(folder / "table", min(peer_rows, LARGE), device, choices, wanted)
        for _ in range(rounds):
            ours.append(run([*me, "--once", str(folder / "table")]))
            for (name, size), found in peers.items():
                found.append(peer(name, folder / "table", peer_rows, workers[name, size], device, size))
            streamed.append(run([*me, "--stream", str(folder / "streamed")]))
    report(ours, peers, streamed, workers, rows, peer_rows, flags, device)


def fastest_workers(
    folder: Path, num_rows: int, device: str, choices: tuple[int, ...], wanted: list[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """For each peer and batch size, the number of worker processes that gives the most rows a second."""
    if len(choices) == 1:
        return dict.fromkeys(wanted, choices[0])
    return {
        (name, size): max(choices, key=lambda count: peer(name, folder, num_rows, count, device, size))
        for name, size in wanted
    }


def report(
    ours: list[dict[str, float]],
    peers: dict[tuple[str, int], list[float]],
    streamed: list[dict[str, float]],
    workers: dict[tuple[str, int], int],
    rows: int,
    peer_rows: int,
    flags: Any,
    device: str,
) -> None:
    place = RESIDENT if device == "cuda" else ""
    rates = {f"ours, {name}": median(found[name] for found in ours) for name in ours[0]}
    peer_rates = {key: median(found) for key, found in peers.items()}
    rates |= {f"{name}, {size}": rate for (name, size), rate in peer_rates.items()}
    times_faster = {(name, size): rates[f"ours, {size}{place}"] / rate for (name, size), rate in peer_rates.items()}
    bandwidth, row_bytes = copy_bandwidth(), 4 * schema().num_words
    render_table(
        [
            {
                "loader and batch": name,
                "rows a second": f"{rate:,.0f}",
                "ms a million rows": round(1e9 / rate, 1),
                "GB/s of rows": round(rate * row_bytes / 1e9, 2),
            }
            for name, rate in rates.items()
        ],
        f"{rows:,} packed rows of {row_bytes} bytes to model inputs",
    )
    share = median(found["streamed"] / found["read"] for found in streamed)
    streamed_rows = rows * (1 if flags.quick else STREAMED_TIMES)
    block_rows = BLOCK_BYTES // row_bytes
    blocks = BlockOrder(streamed_rows, block_rows, WINDOW_BLOCKS, NUM_LANES, seed=1, epoch=1)
    moved = 2 * row_bytes * rates[f"ours, {LARGE}{place}"]  # every row is read and written once
    details: dict[str, Any] = {
        "rows a second": {name: round(rate) for name, rate in rates.items()},
        "ms a batch of 204,800, ours": round(1e3 * LARGE / rates[f"ours, {LARGE}{place}"], 3),
        "copy bandwidth of the host, read and written, GB/s": round(bandwidth / 1e9, 1),
        "gathering moves, read and written, GB/s": round(moved / 1e9, 1),
        "share of copy bandwidth": round(moved / bandwidth, 3) if device == "cpu" else None,
        "shuffle quality, resident": round(shuffle_quality(SampleOrder(rows, 1, 1), rows, SMALL), 4),
        "shuffle quality, streamed, by where rows lie on disk": round(shuffle_quality(blocks, streamed_rows, SMALL), 4),
        "streamed rows": streamed_rows,
        "streamed rows a second": round(median(found["rows"] for found in streamed)),
        "streamed, GB/s": round(median(found["streamed"] for found in streamed) / 1e9, 2),
        "files read in order, GB/s": round(median(found["read"] for found in streamed) / 1e9, 2),
        "rows of the peers' epochs": peer_rows,
        "fastest number of workers": {f"{name}, {size}": count for (name, size), count in workers.items()},
        "rows a second of every run": {
            "ours": [{name: round(rate) for name, rate in found.items()} for found in ours],
            **{f"{name}, {size}": [round(rate) for rate in found] for (name, size), found in peers.items()},
        },
    }
    claims = {
        f"times faster than {name} at batch {size:,}": (measured, required, measured >= required)
        for (name, size), measured in times_faster.items()
        for required in [REQUIRED[name, size]]
    }
    claims["streaming, share of reading the same files in order"] = (share, 0.8, share >= 0.8)
    finish(
        "loader",
        f"{rows:,} packed rows of 13 ids, 20 floats and a target to ids and floats in hand, shuffled",
        {f"{name}, a million rows": 1e6 / rate for name, rate in rates.items()},
        {key: times_faster[name, LARGE] for name, key in PEERS.items() if (name, LARGE) in times_faster},
        {} if flags.quick else claims,
        save=flags.save,
        details=details,
        device=device,
        needs={f"ours, {size}{place}, a million rows": (2e6 * row_bytes, 0.0) for size in (SMALL, LARGE)},
    )


if __name__ == "__main__":
    main()
