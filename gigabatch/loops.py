"""Compiled loops: how numba compiles them, where what it compiled is kept, and how long that took.

A loop of the package is a function under `njit` of this module. What is compiled lies in one file for each function,
signature, processor, version of numba and text of the sources, so that nothing of another processor or of older sources
is ever loaded, and processes that compile at once write different files or the same one. A file carries a checksum; a
damaged one is compiled anew. numba's own cache keeps an index a function, which two processes overwrite, and looks at
one source file only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching, config, event, serialize, sigutils

log = logging.getLogger(__name__)
_parallel: list[Any] = []  # dispatchers of loops that run on several threads
_serial = False
ROOT = Path(__file__).parent
CHECKSUM_BYTES = 32
SUFFIX = ".loop"


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit(nogil=True, **options)` whose compiled code is kept on disk (`folders`).

    >>> import numpy as np
    >>> from gigabatch.loops import njit
    >>> @njit()
    ... def total(values):
    ...     found = 0.0
    ...     for value in values:
    ...         found += value
    ...     return found
    >>> total(np.arange(4.0))
    6.0
    """

    def compiled(function: Callable[..., Any]) -> Any:
        found = numba.njit(nogil=True, **options)(function)
        if not config.DISABLE_JIT:
            found._cache = Kept(function)
            if options.get("parallel"):
                _parallel.append(found)
        return found

    return compiled


def is_serial() -> bool:
    """Whether this process was forked from one whose loops had started OpenMP's threads, so that it has one thread."""
    return _serial


def _after_fork() -> None:
    """Make the loops serial, and torch's sums, in a child of a process whose loops had started OpenMP's threads.

    GNU's OpenMP waits in a child for threads that only its parent has, and numba ends such a child by SIGTERM. TBB and
    numba's workqueue start threads anew.
    """
    global _serial
    if _serial or not numba.np.ufunc.parallel._is_initialized or numba.threading_layer() != "omp":
        return
    _serial = True
    for loop in _parallel:
        loop.targetoptions["parallel"] = False
        loop._reset_overloads()
        loop._cache.own += ("serial",)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


os.register_at_fork(after_in_child=_after_fork)


def folders() -> list[Path]:
    """Where compiled loops are looked for, the first that can be written being where new ones are kept.

    `NUMBA_CACHE_DIR` where it is set; else the user's cache (`XDG_CACHE_HOME`, or ~/.cache), and behind it a folder of
    the user's own in the system's temporary one, for homes that cannot be written.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(os.environ["NUMBA_CACHE_DIR"]) / "gigabatch"]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    shared = Path(tempfile.gettempdir()) / f"gigabatch-{os.getuid()}"
    return [Path(user) / "gigabatch", shared] if os.path.isabs(user) else [shared]


def kept_in() -> Path | None:
    """The first of `folders` that can be written; None where none can."""
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if is_trusted(folder):
                with tempfile.TemporaryFile(dir=folder) as file:
                    file.write(b"\0")
                return folder
        except OSError:  # of the next one, then
            continue
    return None


def is_trusted(folder: Path) -> bool:
    """Whether nobody else could have put files there, which are unpickled: of a folder in the temporary one, where
    others may make folders, too."""
    if folder.parent != Path(tempfile.gettempdir()):
        return True
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@functools.cache
def sources(room: Path) -> str:
    """A hash of all sources of a room (`models/kernels`): a loop includes constants and functions of other files."""
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(room.rglob("*.py")):
        found.update(path.relative_to(room).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def sources_of(function: Callable[..., Any]) -> str | None:
    """Of a loop of this package those of its room, of any other those of its file, and what it encloses; None where
    there is no such file (a notebook, a prompt) or what it encloses cannot be told apart."""
    package, *rooms = function.__module__.split(".")
    if package == "gigabatch" and len(rooms) > 2:
        found = sources(ROOT.joinpath(*rooms[:2]))
    else:
        try:
            content = Path(function.__code__.co_filename).read_bytes()
        except OSError:
            return None
        found = hashlib.blake2b(content, digest_size=16).hexdigest()
    try:
        enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a loop that calls itself, which is not there yet
        return None
    if all(isinstance(value, bool | int | float | complex | str | bytes | None) for value in enclosed):
        return f"{found} {enclosed!r}" if enclosed else found
    return None


class Kept(caching._Cache):
    """The files of one function, as numba asks for them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}".removeprefix("gigabatch.")
        self.own: tuple[Any, ...] = sources_of(function), function.__code__.co_firstlineno
        self.enabled = self.own[0] is not None

    @property
    def cache_path(self) -> str:
        return str(folders()[0])

    def enable(self) -> None:
        self.enabled = self.own[0] is not None

    def disable(self) -> None:
        self.enabled = False

    def flush(self) -> None:
        for folder in folders():
            for path in folder.glob(f"{self.name}-*{SUFFIX}"):
                path.unlink(missing_ok=True)

    def file_name(self, signature: Any, codegen: Any) -> str:
        """magic_tuple: of the processor, its name and all its instructions."""
        versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, config.OPT, config.BOUNDSCHECK
        arguments, _ = sigutils.normalize_signature(signature)
        told = repr((self.name, self.own, arguments, codegen.magic_tuple(), versions))
        return f"{self.name}-{hashlib.blake2b(told.encode(), digest_size=16).hexdigest()}{SUFFIX}"

    def paths(self, signature: Any, codegen: Any) -> list[Path]:
        """Where the file of a signature may lie."""
        name = self.file_name(signature, codegen)
        return [folder / name for folder in folders()]

    def load_overload(self, signature: Any, target: Any) -> Any:
        target.refresh()
        if not self.enabled:
            return None
        for path in self.paths(signature, target.codegen()):
            if (payload := read_checked(path)) is not None:
                return caching.CompileResultCacheImpl.rebuild(None, target, pickle.loads(payload))
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        if not self.enabled or compiled.lifted or compiled.library.has_dynamic_globals:
            return
        payload = serialize.dumps(caching.CompileResultCacheImpl.reduce(None, compiled))
        write_checked(self.file_name(signature, compiled.codegen), payload)


def read_checked(path: Path) -> bytes | None:
    """What `write_checked` wrote there; None where there is nothing, or nothing to be trusted."""
    try:
        content = path.read_bytes() if is_trusted(path.parent) else None
    except OSError:
        return None
    if content is None:
        return None
    payload = content[CHECKSUM_BYTES:]
    if checksum(payload) == content[:CHECKSUM_BYTES]:
        return payload
    log.warning("the compiled loop %s is damaged and is compiled again", path)
    return None


def write_checked(name: str, payload: bytes) -> None:
    """Into the first of `folders` that can be written, whole or not at all; a line in the log where none can."""
    for folder in folders():
        path = folder / f".{name}.{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not is_trusted(folder):
                continue
            path.write_bytes(checksum(payload) + payload)
            path.replace(folder / name)
            return
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
    tell_not_kept()


@functools.cache
def tell_not_kept() -> None:
    log.warning(
        "compiled loops cannot be kept: none of %s can be written, so that every run compiles them again. Set "
        "NUMBA_CACHE_DIR to a folder that can",
        ", ".join(map(str, folders())),
    )


def checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=CHECKSUM_BYTES).digest()


class Compilations(event.Listener):
    """Counts the compilations of this process and their seconds; one that another one needs is part of it.

    Listens once it is registered: `event.register("numba:compile", Compilations())`.
    """

    def __init__(self) -> None:
        self.count, self.seconds, self.depth, self._started = 0, 0.0, 0, 0.0

    def begun(self, seconds: float) -> None:
        """Called as a compilation begins, with the seconds of all until then."""

    def ended(self, seconds: float) -> None:
        """Called as one ends that no other one needs, with its seconds."""

    def on_start(self, event: Any) -> None:  # numba compiles in one thread at a time
        now = time.perf_counter()
        if self.depth == 0:
            self._started = now
        self.depth += 1
        self.begun(self.seconds + now - self._started)

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            seconds = time.perf_counter() - self._started
            self.count, self.seconds = self.count + 1, self.seconds + seconds
            self.ended(seconds)
