"""What every benchmark shares: who ran it, on what, the table for people and the JSON line for machines."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.store.files import json_text

RESULTS = Path(__file__).parent / "results"


def arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """The flags that all benchmarks take; defaults: further `--name` flags with their default values."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="finish within a minute; claims are not judged")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="keep the JSON under benchmarks/results/")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help="default: %(default)s")
    return parser.parse_args()


def machine() -> str:
    """Processor, cores, memory and GPU, in words."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {gigabytes:.0f} GiB{gpu}"


def copy_bandwidth() -> float:
    """Bytes a second that this machine copies (read and written), all cores, best of six."""
    source = torch.ones(64 << 20, dtype=torch.int32)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - started)
    return 2 * source.numel() * 4 / best


def finish(
    name: str,
    workload: str,
    seconds: Mapping[str, float],
    ratios: Mapping[str, float],
    claims: Mapping[str, tuple[float, float, bool]],
    *,
    save: bool,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Print the claims as a table and everything as one JSON line; with `save` also keep it as a file.

    claims: text -> (measured, required, holds).
    """
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {
        "name": name,
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "workload": workload,
        "seconds": {key: round(value, 3) for key, value in seconds.items()},
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "claims": {text: [round(m, 5), required, holds] for text, (m, required, holds) in claims.items()},
        **({"details": details} if details else {}),
    }
    rows = [
        {"claim": text, "measured": m, "required": required, "holds": holds}
        for text, (m, required, holds) in claims.items()
    ]
    if rows:
        render_table(rows, f"{name}: {workload}")
    if save:
        RESULTS.mkdir(exist_ok=True)
        device = torch.cuda.get_device_name().replace(" ", "-").lower() if torch.cuda.is_available() else "cpu"
        path = RESULTS / f"{name}-{device}-{result['date']}.json"
        path.write_text(json_text(result, indent=1) + "\n")
    print(json_text(result))
