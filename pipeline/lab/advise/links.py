"""What a collective takes between two ranks of this machine, and how ranks that share its cores slow each other."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.store.files import json_text

KINDS = ("all_reduce", "all_gather", "all_to_all")
SMALL, LARGE = 16, 1 << 20  # numbers of a message, 4 bytes each
TURNS = {SMALL: 40, LARGE: 10}
PATIENCE_S = 120.0


class LinkError(ValueError):
    """The collectives between two ranks could not be measured."""


@dataclass(frozen=True)
class Link:
    """A collective of one kind: seconds of a call between two ranks that sends next to nothing, and bytes a second
    that a rank sends beyond that."""

    latency: float
    bandwidth: float

    def seconds(self, num_bytes: float, calls: float, num_ranks: int) -> float:
        """Of so many calls that send so many bytes a rank together; each of N ranks waits for N - 1 others in turn."""
        return calls * self.latency * (num_ranks - 1) + num_bytes / self.bandwidth


@dataclass(frozen=True)
class Links:
    """Collectives by kind; others are like an all-gather.

    sharing: seconds of a piece of work on one core with a second process beside it, over its seconds alone; 1 where
    ranks have devices of their own. measured: False where bandwidth and latency were given.
    """

    kinds: Mapping[str, Link]
    sharing: float
    measured: bool

    @classmethod
    def given(cls, bandwidth: float, latency: float) -> Links:
        """All kinds alike."""
        return cls(dict.fromkeys(KINDS, Link(latency, bandwidth)), 1.0, measured=False)

    def seconds(self, sent: Mapping[str, float], calls: Mapping[str, float], num_ranks: int) -> float:
        """Of what a rank sends in a step, one message after the other; by name, which begins with the kind."""
        found = 0.0
        for name, num_bytes in sent.items():
            link = self.kinds.get(name.split()[0], self.kinds["all_gather"])
            found += link.seconds(num_bytes, calls[name], num_ranks)
        return found

    @property
    def bandwidth(self) -> float:
        """Of an all-reduce, bytes a second that a rank sends."""
        return self.kinds["all_reduce"].bandwidth


def measure_links(device: str) -> Links:
    """Measure collectives between two new processes: over gloo on a CPU, a core each, over NCCL between two GPUs.

    Takes the seconds in which two processes import torch, and one or two more.

    Parameters
    ----------
    device : str
        `cpu`, or one of CUDA's, of which two are needed.

    Returns
    -------
    Links
        Medians.

    Raises
    ------
    LinkError
        Where there are no two GPUs, or a process ends before it has told.
    """
    if device != "cpu" and torch.cuda.device_count() < 2:
        raise LinkError(
            f"advise: {torch.cuda.device_count()} GPU is here, and what crosses between GPUs is measured between two. "
            "Give --bandwidth in bytes a second that a GPU sends (and --latency in seconds a message)."
        )
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="gigabatch-") as folder:
        told = Path(folder) / "told"
        processes = [context.Process(target=_rank, args=(rank, folder, device), daemon=True) for rank in range(2)]
        try:
            for process in processes:
                process.start()
            until = time.monotonic() + PATIENCE_S
            while all(process.exitcode in (None, 0) for process in processes) and time.monotonic() < until:
                running = [process.sentinel for process in processes if process.is_alive()]
                if not running:
                    break
                connection.wait(running, timeout=1.0)
        finally:
            for process in processes:
                process.kill()
        if not told.exists():
            raise LinkError(
                "advise: two processes that talk to each other could not be measured (their words stand above). Give "
                "--bandwidth in bytes a second that a rank sends, and --latency in seconds a message."
            )
        found = json.loads(told.read_text())
    return Links({kind: Link(*found[kind]) for kind in KINDS}, found["sharing"], measured=True)


def _rank(rank: int, folder: str, device: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for this one ends it
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.set_device(rank)
        device = f"cuda:{rank}"
    else:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=2)
    ranks = Ranks()
    found = collectives(ranks, device)
    if ranks.is_first:
        (Path(folder) / "told-").write_text(json_text(found))
        (Path(folder) / "told-").rename(Path(folder) / "told")
    ranks.barrier()
    dist.destroy_process_group()


def collectives(ranks: Ranks, device: str) -> dict[str, Any]:
    """Latency and bandwidth of each kind between these ranks, and `sharing`; all call it, the first one's count."""
    found: dict[str, Any] = {kind: _link(ranks, kind, device) for kind in KINDS}
    return found | {"sharing": 1.0 if device != "cpu" else _sharing(ranks)}


def _link(ranks: Ranks, kind: str, device: str) -> tuple[float, float]:
    seconds, sent = {}, {}
    for size in (SMALL, LARGE):
        call = _call(ranks, kind, torch.zeros(size, device=device))
        ranks.traffic.clear()
        call()
        sent[size] = ranks.traffic.total
        seconds[size] = median(_timed(ranks, call, device) for _ in range(TURNS[size]))
    more = max(seconds[LARGE] - seconds[SMALL], 0.1 * seconds[LARGE])  # on a busy machine one may have been late
    return seconds[SMALL], (sent[LARGE] - sent[SMALL]) / more


def _call(ranks: Ranks, kind: str, tensor: Tensor) -> Callable[[], object]:
    half = [len(tensor) // 2] * 2
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: ranks.all_reduce(tensor, "link"),
        "all_gather": lambda: ranks.all_gather(tensor, "link"),
        "all_to_all": lambda: ranks.all_to_all(tensor, half, half, "link"),
    }
    return calls[kind]


def _timed(ranks: Ranks, call: Callable[[], object], device: str) -> float:
    ranks.barrier()
    started = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _sharing(ranks: Ranks) -> float:
    """Of work like a step's, products and rows read at random, by the first rank alone and by both at once."""
    table, ids = torch.ones(1 << 18, 16), torch.randint(1 << 18, (1 << 15,))
    left, right = torch.ones(1024, 256), torch.ones(256, 256)

    def work() -> None:
        for _ in range(4):
            table.index_select(0, ids)
            torch.mm(left, right)

    work()
    alone, both = [], []
    for _ in range(15):
        if ranks.is_first:
            alone.append(_timed_alone(work))
        ranks.barrier()
        both.append(_timed_alone(work))
        ranks.barrier()
    return max(median(both) / median(alone), 1.0) if ranks.is_first else 1.0


def _timed_alone(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
