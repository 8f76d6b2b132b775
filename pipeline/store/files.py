"""Single files and links, replaced whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gigabatch.features.errors import DENIED

FICLONE = 0x40049409  # of linux/fs.h; another system refuses it
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)
WRITTEN = re.compile(r"\..+-\d+-[0-9a-f]{8}")  # names that `replacing` gives
THREADS = 4  # that read or flush files at once
READ_ONLY, FULL = (*DENIED, errno.EROFS), (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Item = TypeVar("Item")
Result = TypeVar("Result")


class ArtifactError(ValueError):
    """An artifact cannot be written, read or shared; the message names the folder."""


@contextlib.contextmanager
def refusals_named(folder: Path) -> Iterator[None]:
    """Where the system refuses to write in `folder`, raise its `OSError` with the folder and what to do, in place of
    the name of a lock or of a temporary file that was to be there."""
    try:
        yield
    except OSError as error:
        names = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
        # An error of a write names no file.
        inside = not names or any(name.parent == folder or folder.is_relative_to(name) for name in names)
        if error.errno not in READ_ONLY + FULL or not inside:
            raise
        advice = "Free some space (gigabatch gc)" if error.errno in FULL else "Make it writable for this user"
        if error.errno == errno.EFBIG:
            advice = "Raise the limit of a file's size (ulimit -f)"
        raise OSError(
            error.errno,
            f"{folder}: {error.strerror}, so nothing can be written there. {advice}, or name another folder (settings "
            "runs and artifacts, option --out).",
        ) from error


def require_there(folder: Path) -> None:
    """Raise `ArtifactError` where the folder, or one that it lies in, is a link that leads nowhere."""
    for path in (folder, *folder.parents):
        if path.is_symlink() and not os.path.exists(path):
            raise ArtifactError(
                f"{path} leads to {os.path.realpath(path)}, which is not there. Mount the disk that it is on, or "
                "correct the link."
            )


def require_writable(folder: Path) -> None:
    """Raise the error of `refusals_named` where nothing could be written in the folder, which need not be there yet; so
    before any work. Nothing is left there."""
    require_there(folder.absolute())
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    with refusals_named(there), tempfile.TemporaryFile(dir=there):
        pass


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, and give what was written there the name `path` at the end of the block.

    A reader sees the old file or the new one. An error in the block leaves the old one and nothing else.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    with refusals_named(path.parent):
        try:
            yield temporary
            if not temporary.is_symlink():
                with open(temporary, "rb") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def behind_links(path: Path) -> Path:
    """The file that a name of a user's means: where it is a link, what that leads to, as `cp` and an `open` to write
    have it. `replacing` would put a file in the link's place."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def atomic_write(path: Path, content: bytes) -> bytes:
    """Replace a file's content, whole or not at all; gives `content`, of which a checksum is that of what was written,
    while another process may have replaced the file since."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return content


def write_json(path: Path, content: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Replace a file by `content` as JSON, indented, whole or not at all; see `json_text`. Gives what was written."""
    return atomic_write(path, (json_text(content, indent=1, default=default) + "\n").encode())


def json_text(content: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """What every report, log and answer is written with: JSON, which has no NaN and no infinity, so null instead.

    States and settings that are read again are written with `allow_nan=False`, which refuses them.

    Parameters
    ----------
    content
        Of JSON's types, at any depth.
    indent, default
        As of `json.dumps`.

    Examples
    --------
    >>> from gigabatch.pipeline.store.files import json_text
    >>> json_text({"auc": float("nan"), "rows": 3})
    '{"auc": null, "rows": 3}'
    """
    return json.dumps(without_nan(content), indent=indent, default=default, allow_nan=False)


def without_nan(value: Any) -> Any:
    """Nested dicts and lists for JSON, which has no NaN and no infinity: None instead."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def share_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> str:
    """A second name of a file that nothing here writes to once it has a name: a hard link, else a copy."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        clone_file(source, target)
    return str(target)


def clone_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> str:
    """A file of the same content that is changed apart from the first: one that shares its blocks until then, where the
    file system can (Btrfs, XFS; ioctl_ficlonerange(2)), else a copy."""
    with open(source, "rb") as given, open(target, "wb") as made:
        try:
            fcntl.ioctl(made.fileno(), FICLONE, given.fileno())
        except OSError:
            shutil.copyfileobj(given, made, 1 << 22)
    return str(target)


def atomic_symlink(target: Path, link: Path) -> None:
    """Point `link` at `target`; a reader sees the old or the new, never none."""
    if link.is_dir() and not link.is_symlink():
        raise ArtifactError(f"{link} is a folder, not a link to one. Move it away and run again.")
    with replacing(link) as temporary:
        temporary.symlink_to(target)


def fsync_tree(folder: Path) -> None:
    """Every file and folder below, and the folder itself, on disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        (fsync_folder if path.is_dir() else fsync_file)(path)
    fsync_folder(folder)


def fsync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`function` of each item, `THREADS` at once, for work that leaves the interpreter to others: checksums, flushes.

    The results come in order. Of several errors the first in order is raised, when all that had begun has ended; what
    had not begun is left out. An executor would not do: it takes no work once the main thread has ended, and an
    artifact may be finished after that.

    Examples
    --------
    >>> from gigabatch.pipeline.store.files import in_threads
    >>> in_threads(len, ["a", "bc"])
    [1, 2]
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque((item, Future()) for item in items)
    futures = [future for _, future in waiting]

    def work() -> None:
        while True:
            try:
                item, future = waiting.popleft()
            except IndexError:
                return
            try:
                future.set_result(function(item))
            except BaseException as error:  # raised below
                future.set_exception(error)
                waiting.clear()  # nobody asks for what comes after it

    threads = [threading.Thread(target=work, name="files") for _ in futures[:THREADS]]
    for thread in threads:
        thread.start()
    try:
        return [future.result() for future in futures]
    finally:
        waiting.clear()
        for thread in threads:
            thread.join()
