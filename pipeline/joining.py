"""The processes of one run find each other, share the machine, and end together."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gigabatch.features.errors import DataError
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.launched import AnotherRankFailed, launched_ranks, local_rank, ranks_of_machine, restarts
from gigabatch.pipeline.machine import available_cores, resolve_device

# The others wait while the first reads files or draws a report. A process that is gone is noticed at once all the same:
# its connections close, and torchrun ends the rest.
PATIENCE = timedelta(days=7)
FAILED = "failed"


class RankLost(ValueError):
    """Another process of the run has ended, and nobody has said why."""


@contextmanager
def joined(device: str, num_threads: int | None) -> Iterator[Ranks]:
    """The ranks that torchrun has started for this run, within a `with` block; without torchrun one rank alone.

    On GPUs `cuda` means within it, and after it, the one of the process's LOCAL_RANK, and ranks talk by NCCL (tensors
    on the host by gloo); else by gloo, and the machine's cores are divided among its ranks. What one rank raises ends
    all of them: it is raised there, and on the others as `AnotherRankFailed`, which has nothing to tell.

    Parameters
    ----------
    device, num_threads
        Of the configuration.

    Raises
    ------
    DataError
        Where the device is not for several ranks, or they cannot meet.
    RankLost
        Where another rank was killed.
    """
    rank, num_ranks = launched_ranks()
    if num_ranks == 1:
        yield Ranks()
        return
    try:
        found, _, _ = next(dist.rendezvous("env://", timeout=PATIENCE))
    except (RuntimeError, ValueError, OSError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise DataError(
            f"{num_ranks} ranks cannot meet at {place} ({' '.join(str(error).split())[:200]}). Name another "
            "MASTER_ADDR and MASTER_PORT, or let torchrun choose one: torchrun --standalone."
        ) from error
    # torchrun may hand the same store to the ranks that it starts again, with the addresses of those that are gone.
    store = dist.PrefixStore(f"start {restarts()}", found)
    try:
        kind = resolve_device(device)
        if kind != "cpu":
            take_gpu(device, local_rank())
        elif num_threads is None:
            torch.set_num_threads(max(available_cores() // ranks_of_machine(), 1))
        # Its functions take the group that there is as they are made for a default, and keep it beyond its end: gloo's
        # threads would outlive Python, and one that drops a tensor then aborts the process.
        importlib.import_module("torch.distributed.nn.functional")
        backend = "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=PATIENCE)
        yield Ranks()
    except BaseException as error:
        if not is_first_to_fail(store):
            raise AnotherRankFailed("another rank has failed") from error
        if is_of_connection(error):
            raise RankLost(
                f"a process of the {num_ranks} that train together has ended, so the others stop. Run again to go on "
                "from the last checkpoint; torchrun --max-restarts does it by itself."
            ) from error
        raise
    dist.destroy_process_group()


def take_gpu(device: str, place: int) -> None:
    """Make `cuda` the GPU at this place on the machine."""
    if device not in ("auto", "cuda"):
        raise DataError(f"device: {device} is one GPU, and several ranks take one each. Set device=cuda.")
    if place >= torch.cuda.device_count():
        raise DataError(
            f"device: {ranks_of_machine()} ranks were started on a machine with {torch.cuda.device_count()} GPU(s), "
            "and each takes one. Lower --nproc-per-node, or set device=cpu."
        )
    torch.cuda.set_device(place)


def is_first_to_fail(store: Any) -> bool:
    """Whether no other rank has asked this before; torchrun's store keeps the count, anew after each restart."""
    try:
        return int(store.add(FAILED, 1)) == 1
    except (RuntimeError, OSError):  # torchrun itself is gone
        return True


def is_of_connection(error: BaseException) -> bool:
    """Whether a collective has failed, because the other side is gone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
