"""A function in several processes over gloo.

They are forked from a server that has imported what they need and run nothing: a child of a process that has run a
compiled loop may run none (numba ends it, because GNU OpenMP does not survive a fork).
"""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gigabatch.models.parallel.ranks import Ranks

TIMEOUT_S = 300
PRELOADED = [
    "numba", "pytest", "torch", "torch._dynamo", "torch.distributed", "gigabatch.models.shelf",
    "gigabatch.models.tabular.tabular", "gigabatch.pipeline.training.member", "tests.models.parallel.preloaded",
]  # fmt: skip


def together(work: Callable[..., Any], num_ranks: int, folder: Path, *arguments: Any) -> list[Any]:
    """What `work(ranks, *arguments)` returns on each of `num_ranks` processes; fails where one of them does.

    work: a function of a module, found by its name; arguments and results are pickled."""
    meeting = folder / f"meeting-{work.__name__}-{num_ranks}"
    meeting.unlink(missing_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    task = pickle.dumps((work, arguments))
    processes = [
        context.Process(target=_one, args=(task, rank, num_ranks, meeting, folder / f"told-{rank}"))
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_S)
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
    assert not late, f"{len(late)} of {num_ranks} ranks did not end"
    told = [pickle.loads((folder / f"told-{rank}").read_bytes()) for rank in range(num_ranks)]
    for error, _ in told:
        assert error is None, error
    return [result for _, result in told]


def _one(task: bytes, rank: int, num_ranks: int, meeting: Path, told: Path) -> None:
    error, result = None, None
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks)
        work, arguments = pickle.loads(task)
        result = work(Ranks(), *arguments)
    except BaseException:
        error = traceback.format_exc()
    told.write_bytes(pickle.dumps((error, result)))
    os._exit(0)
