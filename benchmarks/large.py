"""A log larger than memory allows in one piece: raw rows to packed tables within 8 GiB, however many rows there are.

Writes a synthetic log (kept in `--folder` for the next run), runs the features and encode stages of conf/trivago.yaml
in a process of its own, and samples what that process and its children hold (resident set, shared pages counted once a
process, so rather too much than too little).

    python -m benchmarks.large [--rows 20000000] [--folder FOLDER] [--set "cluster=local ..."] [--quick] [--save]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import arguments, finish
from gigabatch.features.synthetic.trivago import write_synthetic_log

LIMIT_GIB, SAMPLE_SECONDS = 8.0, 0.1
STAGES = """
import sys, time
from gigabatch.pipeline.store.files import json_text
from gigabatch.pipeline import Pipeline

if __name__ == "__main__":
    started = time.perf_counter()
    features = Pipeline.from_config("conf/trivago.yaml", *sys.argv[1:]).features()
    middle = time.perf_counter()
    encoded = features.encode()
    tables = {split: encoded.table(split) for split in ("train", "valid", "test")}
    print(json_text({
        "seconds": {"features": middle - started, "encode": time.perf_counter() - middle},
        "pairs": sum(features.rows.values()),
        "packed_rows": sum(map(len, tables.values())),
        "packed_bytes": sum(table.num_bytes for table in tables.values()),
        "parts": len(features.parts("train")),
    }))
"""


class PeakMemory:
    """The largest resident set of a process and its children, sampled while the `with` block runs; bytes."""

    def __init__(self, pid: int) -> None:
        self.root, self.peak = psutil.Process(pid), 0
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            total = 0
            try:
                for process in (self.root, *self.root.children(recursive=True)):
                    total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.peak = max(self.peak, total)

    def __enter__(self) -> PeakMemory:
        self._sampler.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._sampler.join()


def synthetic_log(folder: Path, rows: int) -> tuple[Path, float]:
    """The folder of a log of `rows` rows, and the seconds that it took to write; 0 where it was there already."""
    log = folder / f"log-{rows}"
    if (log / "oracle.json").exists():  # written last
        return log, 0.0
    started = time.perf_counter()
    write_synthetic_log(log, rows, seed=11)
    return log, time.perf_counter() - started


def run_stages(overrides: list[str]) -> tuple[dict[str, Any], float]:
    """What the stages report, and the peak memory of their processes in GiB."""
    script = [sys.executable, "-c", STAGES, *overrides]
    if any(item.startswith("cluster=") for item in overrides):  # workers import the main module, so it must be a file
        path = Path(overrides[1].partition("=")[2]) / "stages.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAGES)
        script = [sys.executable, str(path), *overrides]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process, PeakMemory(process.pid) as memory:
        out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the stages failed with exit code {process.returncode}")
    return json.loads(out.splitlines()[-1]), memory.peak / 2**30


def main() -> None:
    flags = arguments(__doc__ or "", rows=20_000_000, folder="/tmp/gigabatch-large", set="")
    rows = min(flags.rows, 200_000) if flags.quick else flags.rows
    folder = Path(flags.folder)
    log, written = synthetic_log(folder, rows)
    artifacts = folder / "artifacts"
    shutil.rmtree(artifacts, ignore_errors=True)
    overrides = [f"features.path={log}", f"artifacts={artifacts}", "engine=pandas", *flags.set.split()]
    report, peak = run_stages(overrides)
    shutil.rmtree(artifacts)
    seconds = report.pop("seconds")
    finish(
        "large",
        f"{rows:,} Trivago log rows, {report['pairs']:,} pairs, {report['packed_bytes'] / 2**30:.1f} GiB packed"
        + (f"; {flags.set}" if flags.set else ""),
        seconds | {"total": sum(seconds.values()), "writing the log": written},
        {},
        {"peak GiB": (peak, LIMIT_GIB, peak <= LIMIT_GIB)},
        save=flags.save,
        details=report | {"log_bytes": sum(path.stat().st_size for path in log.glob("t*.csv"))},
    )


if __name__ == "__main__":
    main()
