"""Locks of the kernel: one run at a time, and temporary folders whose writer is known to live or to be gone."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import IO

from gigabatch.pipeline.store.files import ArtifactError, refusals_named

log = logging.getLogger(__name__)
WAIT_S = 0.1  # between two looks at a lock that is waited for
GONE_SECONDS = 7 * 86_400  # after which a process of another machine, which holds no lock that is seen here, is gone
HOLDER_NAME_S = 1.0  # how long a refused run waits for the holder of a lock to write its name


def temporary_path(target: Path) -> Path:
    """A name beside `target` that no other writer has: of this machine, this process and this call."""
    return target.with_name(f".tmp-{target.name}@{host_name()}@{os.getpid()}-{secrets.token_hex(4)}")


def host_name() -> str:
    """This machine's, as names of files hold it."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[None]:
    """Make `path`, hold a lock beside it while it is written, and remove both at the end if they are still there.

    The kernel drops the lock of a killed process, which is how `remove_leftovers` knows that nobody writes there.
    """
    lock = path.with_name(path.name + ".lock")
    with locked(lock):
        try:
            path.mkdir()
            yield
        finally:
            shutil.rmtree(path, ignore_errors=True)
            lock.unlink(missing_ok=True)


# flock rather than the package filelock: both uses need the open file. A holder writes its name into the one that is
# locked, and a lock on a file that a cleaner has removed meanwhile is taken again.
def locked(lock: Path) -> IO[str]:
    """The lock file, open and locked; again where a cleaner removed it between the two steps."""
    while True:
        with refusals_named(lock.parent):
            file = open(lock, "w")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        file.close()


def remove_leftovers(folder: Path) -> dict[Path, int]:
    """Remove temporary folders whose writer is gone; returns them with the bytes that they took.

    Locks may not reach from machine to machine, so those of others that share the disk stay for `GONE_SECONDS` after
    something was written there.
    """
    removed = {}
    for name in sorted({path.name.removesuffix(".lock") for path in folder.glob(".tmp-*@*@*")}):
        path, lock = folder / name, folder / f"{name}.lock"
        if f"@{host_name()}@" not in name and not _is_left(path, lock):
            continue
        with refusals_named(folder):
            opened = open(lock, "a")  # noqa: SIM115
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if path.exists():
                removed[path] = remove_folder(path)
            lock.unlink(missing_ok=True)
    return removed


def _is_left(path: Path, lock: Path) -> bool:
    """Whether a folder of another machine is old, with its lock and all that is in it; what vanishes meanwhile has a
    writer."""
    if not is_old(lock, path):
        return False
    try:
        return is_old(*path.rglob("*"))
    except OSError:
        return False


def is_old(*paths: Path) -> bool:
    """Whether `GONE_SECONDS` have passed since any of these was written; what is not there does not count."""
    newest = 0.0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, path.stat().st_mtime)
    return time.time() - newest > GONE_SECONDS


def folder_size(folder: Path) -> int:
    """Bytes of a folder's files, but of those that have another name elsewhere; 0 where another process removes it, and
    of a link to a folder."""
    if folder.is_symlink():
        return 0
    with contextlib.suppress(FileNotFoundError):
        stats = [file.stat() for file in folder.rglob("*") if file.is_file()]
        return sum(stat.st_size for stat in stats if stat.st_nlink == 1)
    return 0


def remove_folder(folder: Path) -> int:
    """Remove a folder, or a link to one, which another process may be removing, too; returns its `folder_size`."""
    size = folder_size(folder)
    while os.path.lexists(folder):
        with contextlib.suppress(FileNotFoundError):
            folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
    return size


@contextlib.contextmanager
def folder_lock(path: Path, waits_for: str = "") -> Iterator[None]:
    """Hold the lock file `path`; a second holder gets an `ArtifactError` that names the first. Survives crashes.

    waits_for: what holders do, in a clause; then a second one says so and waits.
    """
    with refusals_named(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = open(path, "ab+", buffering=0)  # noqa: SIM115
    with opened as file:
        holder = _take_lock(file)
        if holder and waits_for:
            log.info("another process (%s) %s; this one waits for it.", holder, waits_for)
            while _take_lock(file):
                time.sleep(WAIT_S)
        elif holder:
            raise ArtifactError(
                f"{path} is held by another run ({holder}). Wait for it, or end it, then run this again: what it has "
                "finished is not made twice. A run that was killed holds no lock."
            )
        file.truncate(0)
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name, and gc must be able to take it
            file.write(f"pid {os.getpid()} since {datetime.now(UTC).isoformat(timespec='seconds')}".encode())
        try:
            yield
        finally:
            file.truncate(0)  # so that the next holder is not taken for this one before it has written its name


def lock_holder(path: Path) -> str | None:
    """What the holder of a `folder_lock` has written of itself; None where nobody holds it. Nothing is written."""
    try:
        file = open(path)  # noqa: SIM115
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip() or "unknown"
    return None


def _take_lock(lock: FileIO) -> str | None:
    """Take the lock, or tell what its holder wrote of itself.

    A holder without a name is about to write it, or has just let go; so both are tried again for a moment.
    """
    until = time.monotonic() + HOLDER_NAME_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            text = lock.read().decode(errors="replace").strip()
        else:
            return None
        if text or time.monotonic() > until:
            return text or "unknown"
        time.sleep(0.01)
