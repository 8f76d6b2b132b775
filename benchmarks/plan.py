"""How well `gigabatch plan` foretells: predicted against measured, for memory and time of whole runs.

Plans each workload, then runs it (`gigabatch train`: features to the evaluated model) in an artifact folder of its own,
with the resident set of its processes sampled. Synthetic logs are kept in `--folder` for the next time.

    python -m benchmarks.plan [--rows 500000] [--larger 2000000] [--folder /tmp/gigabatch-plan] [--quick] [--save]
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish
from benchmarks.large import PeakMemory, synthetic_log
from gigabatch.pipeline.display import render_table

WITHIN = 0.30


@dataclass(frozen=True)
class Workload:
    """name: for the table. config: YAML file and overrides."""

    name: str
    config: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """A process and its children. host_bytes: sampled peak of the resident set."""

    seconds: float
    cpu_seconds: float
    host_bytes: int
    output: str


def run(command: str, arguments: list[str], expected: int = 0) -> Measured:
    """One command of the command line."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    script = [sys.executable, "-m", "gigabatch", command, "--config", *arguments]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process, PeakMemory(process.pid) as memory:
        out, _ = process.communicate()
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != expected:
        raise SystemExit(f"{command} ended with exit code {process.returncode}: {out}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(seconds, cpu, memory.peak, out)


def compare(workload: Workload, folder: Path, device: str) -> dict[str, Any]:
    """Plan and run a workload; everything that was predicted beside what was measured."""
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    given = [*workload.config, f"artifacts={home / 'artifacts'}", f"runs={home / 'runs'}", f"device={device}"]
    plan = json.loads(run("plan", [*given, "--json"]).output)
    measured = run("train", [*given, f"rows_per_part={plan['rows_per_part']}"])
    (summary,) = home.glob("runs/*/latest/summary.json")
    seconds = json.loads(summary.read_text())["seconds"]
    stages = {
        stage["stage"]: [round(stage["seconds"], 2), round(seconds[stage["stage"]], 2)] for stage in plan["stages"]
    }
    shutil.rmtree(home)
    return {
        "planning_seconds": round(plan["planning_seconds"], 1),
        "seconds": [plan["seconds"], measured.seconds],
        "cpu_seconds": [sum(stage["cpu_seconds"] for stage in plan["stages"]), measured.cpu_seconds],
        "host_bytes": [plan["host_bytes"], measured.host_bytes],
        "stage_seconds": stages,
    }


def main() -> None:
    flags = arguments(__doc__ or "", rows=500_000, larger=2_000_000, folder="/tmp/gigabatch-plan")
    folder = Path(flags.folder)
    if flags.quick:
        short = ("train.epochs=1", "evaluate.importance=false")
        workloads = [Workload("flights, one epoch", ("conf/flights.yaml", *short))]
    else:
        workloads = [Workload("flights", ("conf/flights.yaml",))]
        for rows in (flags.rows, flags.larger):
            log, _ = synthetic_log(folder, rows)
            workloads.append(Workload(f"trivago {rows:,}", ("conf/trivago.yaml", f"features.path={log}")))
    found = {workload.name: compare(workload, folder, flags.device) for workload in workloads}
    claims, rows = {}, []
    for name, values in found.items():
        for what, key in (("peak host memory", "host_bytes"), ("time", "seconds")):
            predicted, measured = values[key]
            error = predicted / measured - 1
            claims[f"{name}: error of {what}"] = (error, WITHIN, abs(error) <= WITHIN)
        rows.append(
            {
                "workload": name,
                "predicted GiB": values["host_bytes"][0] / 2**30,
                "measured GiB": values["host_bytes"][1] / 2**30,
                "predicted s": values["seconds"][0],
                "measured s": values["seconds"][1],
                "predicted CPU s": values["cpu_seconds"][0],
                "measured CPU s": values["cpu_seconds"][1],
                "planning s": values["planning_seconds"],
            }
        )
    render_table(rows, "plan: predicted and measured")
    finish(
        "plan",
        ", ".join(found),
        {name: values["seconds"][1] for name, values in found.items()},
        {},
        claims,
        save=flags.save,
        details=found,
    )


if __name__ == "__main__":
    main()
