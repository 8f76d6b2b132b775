"""A process that trains an ensemble's members, forked from one that has imported what it needs, and run nothing.

`import torch` and the package take several seconds of a process; test_beside.py begins some as users' runs do.
"""

import multiprocessing
import sys
from multiprocessing.reduction import DupFd

from tests.models.parallel.together import PRELOADED


class Forked:
    """In the place of a `subprocess.Popen` of `gigabatch.pipeline.training.member`."""

    def __init__(self, command: list[str], *, pass_fds: list[int], **_) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._process = context.Process(target=_train, args=(_OpenFile(pass_fds[0]),), daemon=True)
        self._process.start()
        self.args, self.pid = command, self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


class _OpenFile:
    """The number of an open file, which that of the same file in the other process takes the place of."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        handle = DupFd(self.number)
        return type(handle).detach, (handle,)


def _train(channel: int) -> None:
    from gigabatch.pipeline.training import member

    sys.argv = ["member", str(channel)]
    member.main()
