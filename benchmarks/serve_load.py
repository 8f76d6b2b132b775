"""A server process and h2load against it, for benchmarks/serve.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SERVE = (
    "import logging, sys; from pathlib import Path\n"
    "from gigabatch.pipeline.config.serving import ServeSettings\n"
    "from gigabatch.pipeline.serving.http.server import serve\n"
    "logging.basicConfig(level=logging.INFO, format='%(message)s')\n"
    "sys.exit(serve(ServeSettings(port=0, poll_seconds=0.5, workers=int(sys.argv[2])), [Path(sys.argv[1])]))"
)


class Server:
    """The service in processes of its own, at a free port of this machine."""

    def __init__(self, link: Path, log: Path, workers: int = 1) -> None:
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen([sys.executable, "-c", SERVE, str(link), str(workers)], stderr=out)
        self.port = int(self.wait_for(r"serving at http://.*:(\d+)")[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for(self, pattern: str, timeout: float = 120) -> re.Match[str]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text()):
                return found
            time.sleep(0.05)
        raise SystemExit(f"the server did not say {pattern!r}:\n{self.log.read_text()}")

    def processes(self) -> list[int]:
        """The server's process and its workers."""
        own = self.process.pid
        return [own, *map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split())]

    def resident(self) -> int:
        """Bytes of memory in use; of pages that processes share each has its part."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes()]
        return sum(
            int(found[1]) << 10 for text in rollups if (found := re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE))
        )

    def cpu_seconds(self) -> float:
        """Used so far by all processes that still run."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.processes()]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@dataclass
class Load:
    """What h2load did. cpu_seconds: of the server meanwhile. due: requests that the rate asks for; lost: without an
    answer; durations in ms, corrected."""

    seconds: float
    cpu_seconds: float = float("nan")
    due: float = float("nan")
    lost: int = 0
    durations: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return len(self.durations)

    @property
    def failed(self) -> int:
        return self.lost + self.sent - self.statuses.get(200, 0)

    @property
    def other(self) -> int:
        """Answers that are neither 200 nor 503."""
        return self.sent - self.statuses.get(200, 0) - self.statuses.get(503, 0)

    def percentile(self, share: float) -> float:
        return round(float(np.percentile(self.durations, share)), 3)


def load(
    server: Server,
    bodies: Sequence[str],
    folder: Path,
    duration: int,
    connections: int,
    rate: float | None = None,
    midway: Callable[[], None] | None = None,
) -> Load:
    """h2load for `duration` seconds with a process for each body, of which each has `connections` connections.

    rate: requests/s of all together, for which each process has one connection; None: as fast as answers come. midway:
    called after half of the time.
    """
    processes, before = [], server.cpu_seconds()
    for number, body in enumerate(bodies):
        content, log = folder / f"body-{number}.json", folder / f"h2load-{number}.tsv"
        content.write_text(body)
        log.unlink(missing_ok=True)
        command = ["h2load", "--h1", "-t1", f"-c{connections}", f"-D{duration}", f"-d{content}", f"--log-file={log}"]
        command += ["-H", "content-type: application/json", f"{server.url}/rank"]
        command += [] if rate is None else [f"--rps={rate / len(bodies):g}"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if rate is not None:  # so that the connections' requests are evenly apart
            time.sleep(1 / rate)
    if midway is not None:
        time.sleep(duration / 2)
        midway()
    found = Load(duration, due=duration * (rate or float("nan")))
    for number, process in enumerate(processes):
        text = process.communicate()[0]
        counts = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", text)
        if process.returncode or counts is None:
            raise SystemExit(f"h2load failed:\n{text}")
        found.lost += int(counts[2]) + int(counts[3])
        rows = np.loadtxt(folder / f"h2load-{number}.tsv", np.int64, usecols=(0, 1, 2), ndmin=2)
        for status, count in zip(*np.unique(rows[:, 1], return_counts=True), strict=True):
            found.statuses[int(status)] = found.statuses.get(int(status), 0) + int(count)
        durations = rows[:, 2] if rate is None else corrected(rows[:, 0], rows[:, 2], 1e6 * len(bodies) / rate)
        found.durations += (durations / 1000).tolist()
    found.cpu_seconds = server.cpu_seconds() - before
    return found


def corrected(starts: np.ndarray, durations: np.ndarray, interval: float) -> np.ndarray:
    """Durations with the time added that a request of this one connection was due but waited for the answer before it.

    starts, durations: [N] microseconds; interval: between requests. The due times are those of the timer that is
    earliest for the requests as a whole; what the timer itself is late is not the service's.
    """
    order = np.argsort(starts, kind="stable")
    starts, durations = starts[order].astype(np.float64), durations[order].astype(np.float64)
    steps = interval * np.arange(len(starts))
    due = np.min(starts - steps) + steps
    answered = np.concatenate([[due[0]], (starts + durations)[:-1]])
    return durations + np.clip(np.minimum(answered, starts) - due, 0, None) * (answered > due)
