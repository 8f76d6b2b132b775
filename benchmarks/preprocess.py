"""How fast is encoding? From Parquet to packed rows: fit and transform of the pair table, beside its peers.

    make bench-env && python -m benchmarks.preprocess [--quick] [--save] [--rows N]

Ours and every peer run in processes of their own, one after another, in rounds; the clock starts after imports (and
after our loops were compiled: the seconds of a first compilation are shown) and stops when the model's inputs lie in
memory. pandas and Polars are written in several ways, and the fastest one counts. Bars: at least 4 times pandas, 2
times Polars, 5 times fastai, 12 times scikit-learn; and cost that grows linearly from 0.5M to 8M rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import arguments, copy_bandwidth, finish
from benchmarks.pairs import schema, write_pairs
from gigabatch.pipeline.display import render_table

PEERS = {
    "pandas": ("pandas", "pandas_dictionary", "pandas_lookup"),
    "polars": ("polars", "polars_categorical", "polars_replace"),
    "fastai": ("fastai",),
    "sklearn": ("sklearn",),
}
REQUIRED = {"pandas": 4.0, "polars": 2.0, "fastai": 5.0, "sklearn": 12.0}
PEER_PYTHON = Path(".venv-bench/bin/python")
FASTAI_PYTHON = Path(".venv-bench/fastai/bin/python")


def once(path: str) -> dict[str, Any]:
    """One fit and transform in this process, after one of a small file, which loads or compiles the loops."""
    import torch

    from gigabatch.features.encoding.preprocessor import Preprocessor
    from gigabatch.loaders.tables.packed import PackedTable

    with tempfile.TemporaryDirectory() as folder:
        small = f"{folder}/small.parquet"
        write_pairs(small, 20_000)
        started = time.perf_counter()
        Preprocessor(schema()).fit_pack([("pandas", small)])
        warm = time.perf_counter() - started
    start, cpu = time.perf_counter(), time.process_time()
    preprocessor = Preprocessor(schema())
    frame = preprocessor.read(("pandas", path))
    read = time.perf_counter()
    (rows,) = preprocessor.fit_pack([frame])
    table = PackedTable(torch.from_numpy(rows), preprocessor.tensor_schema)
    stop, cpu_stop = time.perf_counter(), time.process_time()
    return {
        "peer": "ours", "read": read - start, "rest": stop - read, "cpu": cpu_stop - cpu, "first": warm,
        "bytes": table.num_bytes,
    }  # fmt: skip


def run(command: list[str]) -> dict[str, Any]:
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
    return json.loads(found.stdout.strip().splitlines()[-1])


def ours(path: Path) -> dict[str, Any]:
    return run([sys.executable, "-m", "benchmarks.preprocess", "--once", str(path)])


def main() -> None:
    flags = arguments(__doc__ or "", rows=2_000_000, rounds=5, once="", cache="")
    if flags.once:
        print(json.dumps(once(flags.once), allow_nan=False))
        return
    if not (PEER_PYTHON.exists() and FASTAI_PYTHON.exists()):
        raise SystemExit("The peers' environment is missing: make bench-env")
    rows, rounds = (100_000, 1) if flags.quick else (flags.rows, flags.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(flags.cache or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        table = pairs(folder, rows)
        results: dict[str, list[dict[str, Any]]] = {}
        for number in range(rounds):
            names = [name for forms in PEERS.values() for name in forms]
            for name in ["ours", *names]:
                if number and name in slower_forms(results):
                    continue  # the first round told which form of a peer is its fastest
                python = FASTAI_PYTHON if name == "fastai" else PEER_PYTHON
                peer = [str(python), "benchmarks/preprocess_peers.py", name, str(table)]
                results.setdefault(name, []).append(ours(table) if name == "ours" else run(peer))
        linear = {} if flags.quick else growth(folder)
    report(results, linear, rows, flags)


def pairs(folder: Path, rows: int) -> Path:
    path = folder / f"pairs-{rows}.parquet"
    if not path.exists():
        write_pairs(path, rows)
    return path


def slower_forms(results: dict[str, list[dict[str, Any]]]) -> set[str]:
    """Forms that took over 1.25 times as long in the first round as the fastest of the same peer."""
    first = {name: runs[0]["read"] + runs[0]["rest"] for name, runs in results.items()}
    slow = set()
    for forms in PEERS.values():
        fastest = min(first.get(form, float("inf")) for form in forms)
        slow |= {form for form in forms if form in first and first[form] > 1.25 * fastest}
    return slow


def growth(folder: Path) -> dict[int, float]:
    """Seconds by number of rows, medians of three."""
    sizes = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(3):
        for size in sizes:
            one = ours(pairs(folder, size))
            found[size].append(one["read"] + one["rest"])
    return {size: median(seconds) for size, seconds in found.items()}


def report(results: dict[str, list[dict[str, Any]]], linear: dict[int, float], rows: int, flags: Any) -> None:
    total = {name: median(run["read"] + run["rest"] for run in runs) for name, runs in results.items()}
    best = {peer: min((total[form], form) for form in forms) for peer, forms in PEERS.items()}
    ratios = {peer: seconds / total["ours"] for peer, (seconds, _) in best.items()}
    render_table(
        [
            {
                "who": name,
                "seconds": round(total[name], 3),
                "reading": round(median(run["read"] for run in runs), 3),
                "CPU seconds": round(median(run["cpu"] for run in runs), 3),
                "times ours": round(total[name] / total["ours"], 2),
            }
            for name, runs in sorted(results.items(), key=lambda item: total[item[0]])
        ],
        f"{rows:,} rows, Parquet to model inputs",
    )
    mine = results["ours"]
    reading, rest = median(run["read"] for run in mine), median(run["rest"] for run in mine)
    bandwidth = copy_bandwidth()
    # What must move at least: the columns are read twice (fit, pack), the packed rows written once.
    bytes_moved = rows * (2 * (20 * 4 + 13 * 4) + mine[0]["bytes"] / rows)
    details: dict[str, Any] = {
        "share of Parquet decoding": round(reading / (reading + rest), 3),
        "copy bandwidth, GB/s": round(bandwidth / 1e9, 1),
        "encoding moves, GB/s": round(bytes_moved / rest / 1e9, 1),
        "share of copy bandwidth": round(bytes_moved / rest / bandwidth, 3),
        "first call, seconds (compiled loops from disk)": round(median(run["first"] for run in mine), 2),
        "fastest form": {peer: form for peer, (_, form) in best.items()},
        "seconds of every run": {
            name: [round(run["read"] + run["rest"], 3) for run in runs] for name, runs in results.items()
        },
    }
    claims = {
        f"times faster than {peer}": (ratios[peer], REQUIRED[peer], ratios[peer] >= REQUIRED[peer]) for peer in PEERS
    }
    if linear:
        per_row = {size: seconds / size for size, seconds in linear.items()}
        spread = max(per_row.values()) / min(per_row.values())
        slope = float(np.polyfit(np.log(list(linear)), np.log(list(linear.values())), 1)[0])
        claims["exponent of growth from 0.5M to 8M rows"] = (slope, 1.1, slope <= 1.1)
        details["seconds by rows"] = {str(size): round(seconds, 3) for size, seconds in linear.items()}
        details["largest over smallest cost a row"] = round(spread, 2)
    finish(
        "preprocess",
        f"pair table, {rows:,} rows, 13 categorical and 20 continuous columns, Parquet to packed rows",
        total,
        ratios,
        {} if flags.quick else claims,
        save=flags.save,
        details=details,
    )


if __name__ == "__main__":
    main()
