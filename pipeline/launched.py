"""What torchrun's environment says of this process; imports nothing heavy."""

from __future__ import annotations

import os


class AnotherRankFailed(ValueError):
    """This process ends because another one of the run has failed, which has said why."""


def launched_ranks() -> tuple[int, int]:
    """This process's rank, and how many processes were started for one run; (0, 1) without torchrun.

    Examples
    --------
    >>> launched_ranks()
    (0, 1)
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def local_rank() -> int:
    """This process's number among those of the run on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched_ranks()[1] > 1 else 0


def restarts() -> int:
    """How often torchrun has started the processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def ranks_of_machine() -> int:
    """How many processes of the run share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched_ranks()[1] > 1 else 1
