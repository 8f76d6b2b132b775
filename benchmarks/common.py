"""What every benchmark shares: who ran it, on what, the table for people and the JSON line for machines."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
COPY_WORDS = {"cuda": 1 << 29, "cpu": 1 << 25}  # 2 GiB read and 2 written, many times an L2
MATRIX_SIDE = {"cuda": 8192, "cpu": 512}
_missing: list[str] = []


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Imports of a benchmark: one that ends at a package that is not installed is remembered, so that `--help` works
    all the same; `arguments` then says what is missing and exits with code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "benchmarks", "gigabatch") or _is_there(package):
            raise
        _missing.append(package)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # hidden by an import hook, or by None in sys.modules
        return False


with needed():
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.store.files import json_text


def arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """The flags that all benchmarks take; defaults: further `--name` flags with their default values.

    Exits with code 2 where a package or the wanted device is missing.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="finish within a minute; claims are not judged")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument(
        "--save", action="store_const", const=RESULTS, help="keep the JSON line as a file under benchmarks/results/"
    )
    parser.add_argument("--out", dest="save", type=Path, metavar="FOLDER", help="as --save, but in this folder")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help="default: %(default)s")
    flags = parser.parse_args()
    if _missing:
        parser.exit(2, f"{parser.prog} needs {_missing[0]}, which is not installed for {sys.executable}.\n")
    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, f"{parser.prog} --device cuda: torch sees no CUDA device. Use --device cpu.\n")
    return flags


def device_of(flags: argparse.Namespace) -> torch.device:
    """The device that `--device` names."""
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(automatic if flags.device == "auto" else flags.device)


def wait_for(device: torch.device | str) -> None:
    """Return once the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


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


def seconds_of(work: Callable[[], object], device: torch.device | str, turns: int = 10) -> float:
    """Median seconds of `work`, after three runs that are not counted. On a GPU by events, so that the host's waiting
    is not in it."""
    for _ in range(3):
        work()
    wait_for(device)
    times = []
    for _ in range(turns):
        if torch.device(device).type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            work()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
        else:
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
    return median(times)


def ceilings(device: torch.device | str) -> dict[str, float]:
    """What the device reaches at best: bytes copied a second, read and written, and bfloat16 operations a second of a
    square matrix product of random numbers (zeros are faster), both medians.

    Returns:
        `copy GB/s` and `bf16 matrix TFLOP/s`.
    """
    kind = torch.device(device).type
    source = torch.ones(COPY_WORDS[kind], dtype=torch.int32, device=device)
    target, side = torch.empty_like(source), MATRIX_SIDE[kind]
    copied = 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source), device)
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    product = torch.empty_like(left)
    multiplied = 2 * side**3 / seconds_of(lambda: torch.mm(left, right, out=product), device)
    return {"copy GB/s": round(copied / 1e9, 1), "bf16 matrix TFLOP/s": round(multiplied / 1e12, 4)}


def against(
    found: Mapping[str, float], seconds: Mapping[str, float], needs: Mapping[str, tuple[float, float]]
) -> dict[str, dict[str, float]]:
    """Shares of the ceilings `found`. needs: name in `seconds` -> (bytes, bfloat16 operations) of that work."""
    rates = (found["copy GB/s"] * 1e9, found["bf16 matrix TFLOP/s"] * 1e12)
    return {
        name: {
            kind: round(amount / rate / seconds[name], 4)
            for kind, amount, rate in zip(("bytes", "operations"), amounts, rates, strict=True)
            if amount
        }
        for name, amounts in needs.items()
    }


def commit() -> str:
    """The tree's commit, or "unknown" where there is no git or no history."""
    with contextlib.suppress(OSError):
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    return "unknown"


def finish(
    name: str,
    workload: str,
    seconds: Mapping[str, float],
    ratios: Mapping[str, float],
    claims: Mapping[str, tuple[float, float, bool]],
    *,
    save: Path | None,
    details: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    needs: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Print the claims as a table and everything as one JSON line; also keep it as a file in the folder `save`.

    claims: text -> (measured, required, holds). device: of a GPU the ceilings are measured, and what each part in
    `needs` reaches of them: name in `seconds` -> (bytes, bfloat16 operations).
    """
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # the ceilings need 4 GiB
        found = ceilings(device)
        details = {**(details or {}), "ceilings": found, "against ceilings": against(found, seconds, needs or {})}
    result = {
        "name": name,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "workload": workload,
        "seconds": {key: round(value, 6) for key, value in seconds.items()},
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
        save.mkdir(parents=True, exist_ok=True)
        who = torch.cuda.get_device_name().replace(" ", "-").lower() if torch.cuda.is_available() else "cpu"
        (save / f"{name}-{who}-{result['date']}.json").write_text(json_text(result, indent=1) + "\n")
    print(json_text(result))
