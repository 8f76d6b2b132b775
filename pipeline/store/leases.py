"""Leases: which artifacts and runs a living process uses, so that `gigabatch gc` leaves them; and whose they are.

A lease is a file in `<root>/.leases/` under a lock that the kernel drops when its holder dies; it names folders below
the root, one a line. `gc` looks at leases and takes folders away while it holds the lock of the leases themselves, and
nobody adds to a lease without it: what is leased after `gc` has looked is either still there or seen to be gone.

`<root>/.used/<name>/<folder>` is empty, and its time is when a run of that name last used the folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from gigabatch.pipeline.store.files import refusals_named
from gigabatch.pipeline.store.locks import host_name, is_old

log = logging.getLogger(__name__)
LEASES, USED = ".leases", ".used"


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, after whoever holds it now; for what takes no time."""
    with refusals_named(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = open(path, "a")  # noqa: SIM115
    with opened as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def leases_held_still(root: Path) -> Iterator[set[str]]:
    """The folders below `root` that living processes use; none is added within the block.

    Locks may not reach from machine to machine, so leases of others that share the disk count as held for
    `GONE_SECONDS` after something was added or used.
    """
    home = root / LEASES
    with waiting_lock(home / "lock"):
        held: set[str] = set()
        for path in sorted(home.glob("*@*")):
            with open(path, "a+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    is_held = True
                else:
                    is_held = not path.name.startswith(f"{host_name()}@") and not is_old(path)
                if not is_held:
                    path.unlink(missing_ok=True)
                    continue
                file.seek(0)
                held |= set(file.read().splitlines())
        yield held


class Lease:
    """Keep folders below `root` from `gigabatch gc` while this object, and its process, live.

    name: of the configuration that uses them, where they are shared by several.
    """

    def __init__(self, root: Path, name: str | None = None) -> None:
        self.root, self.name = root, name
        self._file: FileIO | None = None
        self.folders: set[str] = set()

    def __reduce__(self) -> tuple[type[Lease], tuple[Path, str | None]]:
        """A worker's copy has a lease of its own."""
        return Lease, (self.root, self.name)

    def add(self, folder: str) -> None:
        """Take in a folder, such as `train/<key>`. Where nothing may be written, gc may not remove anything either."""
        try:
            if self.name is not None:
                mark = self.root / USED / self.name / folder
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
            if folder not in self.folders or not self._touch():
                with waiting_lock(self.root / LEASES / "lock"):
                    file, new = self._file, {folder}
                    if file is None or not self._touch():
                        file, new = self._open(), {*self.folders, folder}
                    file.write("".join(f"{name}\n" for name in sorted(new)).encode())
                    self._file = file
                self.folders.add(folder)
        except OSError as error:
            log.debug("%s: no lease of %s (%s)", self.root, folder, error)

    def _touch(self) -> bool:
        """Whether its file is there, which counts as held from now on where another machine looks at it; one that took
        this process for gone has removed it."""
        try:
            if self._file is not None:
                os.utime(self._file.name)
                return True
        except FileNotFoundError:
            pass
        return False

    def _open(self) -> FileIO:
        path = self.root / LEASES / f"{host_name()}@{os.getpid()}-{secrets.token_hex(4)}"
        file = open(path, "ab", buffering=0)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        weakref.finalize(self, _end, file, path, os.getpid())
        return file


def _end(file: FileIO, path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a child process that was forked with it
        path.unlink(missing_ok=True)
    file.close()
