"""Makes `loops.txt`: `python -m gigabatch.pipeline.warm.record [FOLDER]`.

Trains `runs`, each in a process of its own, and lists the loops that Python calls in them. What one of the two
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
import yaml

from gigabatch.pipeline.warm.listed import LIST, Loop, written

PRECISIONS = ("bfloat16", "float32")
CONF = Path(__file__).resolve().parents[2] / "conf"  # of the checkout
ROWS = 20_000
LARGE_BATCH = 8192
TABLE = {
    "path": "rows.parquet",
    "targets": {"label": {"task": "binary"}},
    "categorical": {"city": "string", "month": "int64"},
    "continuous": ["age", "price"],
}
GROUPS = {"by": ["city"], "values": ["price"], "statistics": ["count", "sum", "mean", "min", "max", "std"]}
LISTS = TABLE | {
    "lists": {"tags": {"weights": "marks"}, "words": {}, "seen": {"shares": "month", "elements": "int64"}},
    "steps": [{"join_groupby": GROUPS}],
    "continuous": [*TABLE["continuous"], "price_mean_by_city"],
}


def shipped(name: str, **features: Any) -> dict[str, Any]:
    """A configuration of `conf/` on other files, for one epoch."""
    found: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    found["features"] |= features
    found["train"]["epochs"] = 1
    return found


def table(features: dict[str, Any], model: dict[str, Any], **train: Any) -> dict[str, Any]:
    """A configuration on the files of `write_tables`."""
    return {"recipe": "table", "features": features, "model": model, "train": {"epochs": 1} | train}


def runs() -> dict[str, dict[str, Any]]:
    """By name: what is shipped, and models and features that nothing shipped has."""
    adult, flights = shipped("adult"), shipped("flights")
    large = flights | {"train": flights["train"] | {"batch_size": LARGE_BATCH}}
    return {
        "flights": flights,
        "flights_large": large,
        "trivago": shipped("trivago", path="trivago"),
        "adult": table(TABLE | {"path": "rows.csv"}, adult["model"], **adult["train"]),
        "movielens": shipped("movielens", path="movielens"),
        "frappe": shipped("frappe", path="frappe.csv"),
        "clicks": shipped("clicks", path="frappe.csv"),
        "by_default": table(TABLE, {}),
        "tabm": table(TABLE, {"kind": "tabm"}),
        "lists": table(LISTS, {}),
    }


def followed(out: Path, arguments: list[str]) -> None:
    """A command of gigabatch in this process; the loops that it calls go to `out`, a JSON array a line."""
    from numba.core import event

    from gigabatch import loops
    from gigabatch.pipeline.warm import warm

    # What is listed by now is to be compiled here, as it is called.
    warm.compile_first = lambda device: None  # type: ignore[assignment]
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
    """Trains `runs` in both precisions below `folder`."""
    inputs(folder)
    seen: dict[tuple[str, str], dict[str, float]] = {}
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "compiled"), "OMP_NUM_THREADS": "1"}
    for name, config in runs().items():
        for precision in PRECISIONS:
            whole = config | {"name": name, "device": "cpu", "evaluate": {"importance": False, "baselines": []}}
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
    """The files that `runs` read."""
    from gigabatch.features.synthetic import movielens, trivago

    write_tables(folder)
    for module, arguments in ((trivago, ["--rows", str(ROWS)]), (movielens, ["--format", "ml-1m", "--users", "400"])):
        name = module.__name__.rpartition(".")[2]
        subprocess.run([sys.executable, "-m", module.__name__, *arguments, "--out", str(folder / name)], check=True)


def write_tables(folder: Path, num_rows: int = ROWS) -> None:
    """Made-up rows: rows.csv without lists, rows.parquet with some, frappe.csv of users, items and contexts."""
    random = np.random.default_rng(1)
    rows: dict[str, Any] = {
        "city": random.choice(["Oslo", "Bonn", "Rome", ""], num_rows),
        "month": random.integers(1, 13, num_rows),
        "age": random.normal(40, 10, num_rows).round(1),
        "price": random.gamma(2, 50, num_rows).round(2),
        "label": random.integers(0, 2, num_rows),
    }
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    lengths = random.integers(0, 6, num_rows)
    rows["tags"] = [random.choice(list("abcdef"), length).tolist() for length in lengths]
    rows["marks"] = [random.random(length).tolist() for length in lengths]
    rows["words"] = [random.choice(["new", "old", "red"], length).tolist() for length in lengths[::-1]]
    rows["seen"] = [random.integers(1, 13, length).tolist() for length in random.permutation(lengths)]
    pd.DataFrame(rows).to_parquet(folder / "rows.parquet")
    contexts = yaml.safe_load((CONF / "frappe.yaml").read_text())["features"]["contexts"]
    logged = {"user": random.integers(0, 300, num_rows), "item": random.zipf(1.3, num_rows) % 1000}
    logged |= {name: random.choice(["one", "two", "three"], num_rows) for name in contexts}
    pd.DataFrame(logged).to_csv(folder / "frappe.csv", sep="\t", index=False)


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
