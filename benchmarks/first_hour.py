"""What somebody waits for in the first hour: the first run, a run of another learning rate, commands for which all is
there, and mistakes of each command.

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
ANSWERS = {  # commands for which everything is there, as words behind `gigabatch`
    "--version": "--version",
    "train --help": "train --help",
    "runs": "runs CONFIG",
    "skipped train": "train RUN",
    "skipped features": "features RUN",
    "evaluate, there": "evaluate RUN",
    "plan, kept": "plan RUN",
    "warm, all there": "warm",
}
MISTAKES = {  # each of another command, and ends with exit code 2
    "train, unknown key": "train RUN train.epoch=3",
    "train, missing file": "train RUN features.path=nowhere",
    "features, unknown key": "features RUN features.nowhere=1",
    "plan, missing file": "plan RUN features.path=nowhere",
    "evaluate, unknown run": "evaluate RUN --run nowhere",
    "score, missing file": "score RUN --input nowhere.csv",
    "export, unknown format": "export RUN --formats nowhere",
    "embed, unknown dtype": "embed RUN --dtype nowhere",
    "serve, port out of bounds": "serve RUN --port 99999999",
    "update, missing file": "update RUN --data nowhere.csv",
    "tune, too few seeds": "tune RUN --seeds 1",
    "compare, one model": "compare RUN --models fm",
    "lr-range, too few steps": "lr-range RUN --steps 1",
    "profile, no step": "profile RUN --steps 0",
    "advise, no time": "advise RUN --seconds 0",
    "init, missing file": "init nowhere.csv --target clicked",
    "contract, missing file": "contract RUN features.path=nowhere",
    "promote, unknown run": "promote nowhere CONFIG",
    "unblock, unknown run": "unblock nowhere CONFIG",
}
QUICK = ["train.epochs=1", "evaluate.baselines=[constant]", "evaluate.importance_rows=100"]


def clocked(command: list[str], folder: Path, code: int = 0) -> tuple[float, str]:
    """Seconds of a command in `folder`, and what it prints; another exit code than `code` ends the benchmark."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}, not {code}:\n{done.stderr}")
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
        clocked([*gigabatch, "train", *asked], folder)  # the latest again, as its evaluation tells
        for command in ("evaluate", "plan"):
            seconds[f"first {command}"], _ = clocked([*gigabatch, command, *asked], folder)
        given = {"CONFIG": asked[:2], "RUN": asked}
        for code, lines in ((0, ANSWERS), (2, MISTAKES)):
            for label, line in lines.items():
                words = [part for word in line.split() for part in given.get(word, [word])]
                seconds[label] = median(clocked([*gigabatch, *words], folder, code)[0] for _ in range(turns))
    bars = {"first train": FIRST, "another learning rate": AGAIN}
    bars |= dict.fromkeys([*ANSWERS, *MISTAKES], START)
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
