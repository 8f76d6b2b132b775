"""What somebody waits for in the first hour: the first run, a run of another learning rate, and commands that answer.

Each is a process of its own, as in a terminal, on conf/flights.yaml in an empty folder; loops are compiled before, as
`make setup` does it. A quiet machine is needed: seconds are those of a clock.

    python -m benchmarks.first_hour [--config conf/flights.yaml] [--turns 3] [--quick] [--save]
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

from benchmarks.common import arguments, finish
from gigabatch.pipeline.warm.warm import warm_up

FIRST, AGAIN, START = 60.0, 20.0, 1.5  # seconds of issue 17, on two cores
IMPORTANCE = (
    "import sys, gigabatch.pipeline.stages.run as run, time\n"
    """
alone, taken = run.permutation_importance, []
def timed(*given):
    started = time.perf_counter()
    found = alone(*given)
    taken.append(time.perf_counter() - started)
    return found
run.permutation_importance = timed
from gigabatch.pipeline.commands.app import main
code = main(sys.argv[1:])
print("importance", sum(taken))
sys.exit(code)
"""
)
QUICK = ["train.epochs=1", "evaluate.baselines=[constant]", "evaluate.importance_rows=100"]


def clocked(command: list[str], folder: Path) -> tuple[float, str]:
    """Seconds of a command in `folder`, and what it prints; its own errors end the benchmark."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds, done.stdout


def main() -> None:
    flags = arguments(__doc__ or "", config="conf/flights.yaml", turns=3)
    turns = 1 if flags.quick else flags.turns
    gigabatch = [sys.executable, "-m", "gigabatch"]
    asked = ["--config", str(Path(flags.config).resolve()), "device=cpu", *(QUICK if flags.quick else [])]
    warm_up(worth=0.0)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name)
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])  # this checkout, from whichever folder
        watched = [sys.executable, "-c", IMPORTANCE]
        seconds["first train"], text = clocked([*watched, "train", *asked], folder)
        seconds["importance"] = float(text.rpartition("importance ")[2])
        (latest,) = (folder / "runs").glob("*/latest")
        summary = json.loads((latest / "summary.json").read_text())
        seconds["training"] = summary["seconds"]["train"]
        stages = {f"{stage} of the first train": value for stage, value in summary["seconds"].items()}
        seconds["another learning rate"], _ = clocked([*gigabatch, "train", *asked, "train.lr_max=0.0123"], folder)
        again = json.loads((latest / "summary.json").read_text())
        assert again["skipped"] == ["features", "encode"], again["skipped"]
        stages |= {f"{stage} of another rate": again["seconds"][stage] for stage in ("train", "evaluate")}
        for label, command in (
            ("--version", ["--version"]),
            ("runs", ["runs", *asked[:2]]),
            ("train --help", ["train", "--help"]),
            ("skipped train", ["train", *asked]),
        ):
            seconds[label] = median(clocked([*gigabatch, *command], folder)[0] for _ in range(turns))
    bars = {"first train": FIRST, "another learning rate": AGAIN}
    bars |= dict.fromkeys(("--version", "runs", "train --help", "skipped train"), START)
    claims = {f"{label}, s": (seconds[label], bar, seconds[label] <= bar) for label, bar in bars.items()}
    share = seconds["importance"] / seconds["training"]
    claims["importance over training"] = (share, 1.0, share <= 1)
    finish(
        "first_hour",
        f"{Path(flags.config).name}, {summary['rows']:,} rows, loops compiled before",
        seconds | stages,
        {"importance over training": share},
        {} if flags.quick else claims,
        save=flags.save,
        details={"turns": turns, "load": os.getloadavg()[0]},
    )


if __name__ == "__main__":
    main()
