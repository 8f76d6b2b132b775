"""Compiles what is missing of the listed loops, in as many processes as there are cores, with a bar."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numba

from gigabatch.loops import folders, kept_in, write_checked
from gigabatch.models.optimizers.processor import cpu_precision
from gigabatch.pipeline.display import about_seconds, progress, tell
from gigabatch.pipeline.machine import available_cores
from gigabatch.pipeline.warm.listed import KINDS, Loop, WarmError, are_there, files_of, listed, missing, record_name
from gigabatch.pipeline.warm.worker import DONE

log = logging.getLogger(__name__)
MOST_PROCESSES = 8
WORTH_S = 5.0  # of compilation, below which loops are compiled as they are called
START_S = 2.0  # of a process, until it compiles
SET = "Set NUMBA_CACHE_DIR to a folder that can be written and has room."


@dataclass(frozen=True)
class Warmed:
    """How many loops are listed for this machine, and how many of them were compiled now."""

    listed: int
    compiled: int


def warm_up(every: bool = False, worth: float = WORTH_S) -> Warmed:
    """Compile the listed loops that are not on disk.

    Two processes that ask for it at once: the second waits, and finds them.

    Parameters
    ----------
    every
        Also loops of the precision that this processor does not train in by itself.
    worth
        Seconds of compilation, below which nothing is done.

    Raises
    ------
    WarmError
        Where a process that compiles fails, or what it compiles cannot be kept.
    """
    if numba.config.DISABLE_JIT:
        raise WarmError("NUMBA_DISABLE_JIT is set, so that no loop is compiled. Unset it.")
    loops = listed(KINDS if every else ("any", cpu_precision()[0]))
    record = record_name(loops)
    if are_there(record):
        return Warmed(len(loops), 0)
    left = missing(loops)
    if not left and kept_in() is not None:
        write_checked(record, json.dumps(files_of(loops), allow_nan=False).encode())
    if not left or sum(loop.seconds for loop in left) < worth:
        return Warmed(len(loops), 0)
    folder = kept_in()
    if folder is None:
        raise WarmError(
            f"compiled loops cannot be kept: none of {', '.join(map(str, folders()))} can be written. {SET}"
        )
    with alone(folder):
        left = missing(left)  # another process may have compiled them meanwhile
        if left:
            compile_loops(left)
            if lost := missing(left):
                raise WarmError(f"{len(lost)} of {len(left)} compiled loops could not be kept in {folder}. {SET}")
    write_checked(record, json.dumps(files_of(loops), allow_nan=False).encode())
    return Warmed(len(loops), len(left))


@functools.cache
def compile_first(device: str) -> None:
    """Before the stages of a run on `device`, once in a process: compile what they may need, rather than one loop after
    the other on one core as they are called. Where that fails the run begins all the same, and the log says why.

    device: `cpu`, or a GPU as torch names it, where nothing is compiled ahead.
    """
    if device != "cpu" or numba.config.DISABLE_JIT:
        return
    try:
        warm_up()
    except (WarmError, OSError) as error:  # the second where no process can be started
        log.warning("%s Loops are compiled as they are called.", error)


def compile_loops(loops: Sequence[Loop]) -> None:
    """Compile them in processes, and show how many of how many are done, and what is compiled now.

    Raises:
        WarmError: where a process fails; what was compiled until then is kept.
    """
    shares = shared_out(loops, min(available_cores(), MOST_PROCESSES, len(loops)))
    seconds = max(sum(loop.seconds for loop in share) for share in shares) + START_S
    about = f"about {about_seconds(seconds)} on {len(shares)} core(s)"
    tell(log, "compile", f"compiling {len(loops):,} loops for this processor, once: {about}")
    said: queue.Queue[str | None] = queue.Queue()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker(share, said)) for share in shares]
        with progress(len(loops), "compile") as bar:
            living = len(workers)
            while living:
                line = said.get()
                if line is None:
                    living -= 1
                else:
                    word, name = line.split()
                    bar.advance(int(word == DONE), name)
        for process, errors in workers:
            if process.wait() != 0:
                errors.seek(0)
                lines = errors.read().strip().splitlines()
                raise WarmError(f"compiling loops failed: {lines[-1] if lines else f'exit code {process.returncode}'}")


@contextlib.contextmanager
def worker(share: Sequence[Loop], said: queue.Queue[str | None]) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process that compiles these, and the file of its errors. `said` gets its lines, and None when it has ended."""
    command = [sys.executable, "-m", "gigabatch.pipeline.warm.worker"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdin is not None
        assert process.stdout is not None

        def listen(lines: Iterable[str]) -> None:
            for line in lines:
                said.put(line)
            said.put(None)

        listening = threading.Thread(target=listen, args=(process.stdout,), daemon=True)
        try:
            listening.start()
            with contextlib.suppress(BrokenPipeError):  # it has failed, and its exit code says so
                process.stdin.write("".join(f"{loop}\n" for loop in share))
                process.stdin.close()
            yield process, errors
        finally:
            process.kill()  # one that has ended does not mind
            process.wait()
            listening.join()
            process.stdout.close()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within the block no other process compiles the listed loops into the folder, where a lock can be had."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system without locks: loops are compiled twice
            lock = stack.enter_context(open(folder / ".lock", "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another process compiles the loops; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def shared_out(loops: Sequence[Loop], number: int) -> list[list[Loop]]:
    """So that the processes end at about the same time: each loop, the longest first, to the one with least to do.

    >>> [[loop.name for loop in share] for share in shared_out([Loop(s, "any", n, "") for s, n in
    ...     ((5, "a"), (4, "b"), (2, "c"), (2, "d"))], 2)]
    [['a', 'd'], ['b', 'c']]
    """
    shares: list[list[Loop]] = [[] for _ in range(number)]
    for loop in sorted(loops, key=lambda loop: -loop.seconds):
        min(shares, key=lambda share: sum(each.seconds for each in share)).append(loop)
    return shares
