"""Members of an ensemble side by side: each of so many processes trains one after the other of those that are left.

A step of a small model runs on one thread, so that the other cores have nothing to do. What a member becomes does not
depend on where it is trained. A process is begun anew (`member.py`) and not forked, since this one has threads; it ends
when this one does, however that ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

import torch

from gigabatch.own_code import OwnCodeError, told
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.machine import available_cores, available_memory, resident_bytes
from gigabatch.pipeline.training.callbacks import Callback
from gigabatch.pipeline.training.errors import TrainingError
from gigabatch.pipeline.training.start import Carried
from gigabatch.pipeline.training.train import Trained

log = logging.getLogger(__name__)
# About, of a core, for what one thread trains: a step, beside a row of it, and a process until it trains.
STEP_S, ROW_S, START_S = 3e-3, 4e-6, 3.0
MEMORY_SHARE = 0.8  # of the free memory
# Of a member's parameters: themselves, gradients, two moments, the same as of the best epoch, a start's, their average.
COPIES = 8
CLOSED = (EOFError, ConnectionError)  # of a pipe whose other end is gone


class CannotCross(ValueError):
    """What trains a member cannot be given to another process; says why."""


@dataclass(frozen=True)
class MemberTraining:
    """What `train_members` asks for: the training of one member.

    number: from 0. seed: `member_seed`. folder: of its checkpoints. settings: of the run, without what is the
    ensemble's. callbacks: told of it, beside those of the run.
    """

    number: int
    seed: int
    folder: Path
    settings: WholeTrainSettings
    callbacks: tuple[Callback, ...] = ()


Train = Callable[[MemberTraining], tuple[Trained, Carried | None]]


@dataclass(frozen=True)
class MemberDone:
    """A member that this run has trained. earlier_rows, earlier_seconds: see `Trained`."""

    number: int
    earlier_rows: int
    earlier_seconds: float


@dataclass(frozen=True)
class Beside:
    """How members are trained side by side.

    at_once: how many, two or more. imports: of the configuration. kinds: what of users' code trains, a registry and a
    name in it.
    """

    at_once: int
    imports: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]

    def packed(self, train: Train) -> tuple[tuple[str, ...], list[dict[str, Any]], bytes]:
        """What another process needs of `train`: what it imports, what it then knows by `told`, and a pickle.

        Raises:
            CannotCross: for code of a script or a notebook, and for what cannot be pickled.
        """
        try:
            found = [entry for what, name in self.kinds if (entry := told(what, name)) is not None]
            if here := [entry for entry in found if entry["import"] == "__main__"]:
                raise CannotCross(
                    f"{here[0]['what']} {here[0]['name']!r} was registered in a notebook or a script. Put it into a "
                    "file that `imports` names."
                )
            return self.imports, found, pickle.dumps(train)
        except (pickle.PicklingError, OwnCodeError, TypeError, AttributeError) as error:
            raise CannotCross(" ".join(str(error).split())[:300]) from error


def members_at_once(members: int, steps: int, rows: int, threads: Callable[[], int], parameter_bytes: int) -> int:
    """How many of these members are trained at once; 1 where another process would take longer to begin than it saves.

    As many as the cores give each the `threads` of one, and the free memory the resident set of this process and what
    is trained; no more than it takes to be done as early. steps, rows: of one member's whole training. threads: asked
    where it matters.
    """

    def rounds(at_once: int) -> int:
        return -(-members // at_once)

    def saves(at_once: int) -> bool:
        return (members - rounds(at_once)) * (steps * STEP_S + rows * ROW_S) >= 2 * START_S

    cores = available_cores()
    if cores == 1 or not saves(min(cores, members)):
        return 1
    memory = int(MEMORY_SHARE * available_memory() // (resident_bytes()[1] + COPIES * parameter_bytes))
    most = min(cores // threads(), memory, members)
    if most < 2 or not saves(most):
        return 1
    return -(-members // rounds(most))


@dataclass
class _Process:
    """One that trains members, the channel to it, the file of its errors, and the member that it is at."""

    process: subprocess.Popen[bytes]
    channel: Connection
    errors: IO[str]
    at: MemberTraining | None = None

    def send(self, message: Any) -> None:
        """One that has ended is noticed where it is listened to."""
        with contextlib.suppress(*CLOSED):
            self.channel.send(message)

    def lost(self) -> TrainingError:
        """Why it has ended without a word."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        what = "an ensemble's members" if self.at is None else f"member {self.at.number + 1}"
        return TrainingError(
            f"train.ensemble: the process that trains {what} {how}{f' ({lines[-1][:300]})' if lines else ''}. If that "
            "was for want of memory, free some. Run again to go on: finished members and checkpoints are kept."
        )


@contextlib.contextmanager
def _process() -> Iterator[_Process]:
    """A process that trains members, which is ended at the end of the block."""
    ours, theirs = Pipe()
    paths = os.pathsep.join(map(os.path.abspath, sys.path))  # that it finds what this one finds
    command = [sys.executable, "-P", "-m", "gigabatch.pipeline.training.member", str(theirs.fileno())]
    with ours, tempfile.TemporaryFile("w+") as errors:
        with theirs:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for this process, which ends those
                env=os.environ | {"PYTHONPATH": paths},
            )
        try:
            yield _Process(process, ours, errors)
        finally:
            process.kill()  # one that has ended does not mind
            process.wait()


def train_beside(
    beside: Beside, train: Train, left: Sequence[MemberTraining], advance: Callable[[int, str | None], None]
) -> list[MemberDone]:
    """Train these members into their folders.

    train: of `train_members`. advance: is told of epochs that are done, and what they came to. What the processes log
    is logged here.

    Raises
    ------
    CannotCross
        Where `train` is for this process alone; members may be trained here.
    Exception
        What a member's training has raised; the others are ended.
    TrainingError
        Where a process has ended without a word.
    """
    packed = beside.packed(train)
    waiting, done, epochs = deque(left), list[MemberDone](), dict.fromkeys((asked.number for asked in left), 0)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process()) for _ in range(min(beside.at_once, len(left)))]
        log.info("ensemble: %d members in %d processes", len(left), len(processes))
        for process in processes:
            process.send((threads_here(), log.getEffectiveLevel(), packed))
        living = {process.channel: process for process in processes}
        while living:
            for channel in wait(list(living)):
                process = living[channel]  # type: ignore[index]
                try:
                    kind, *content = process.channel.recv()
                except CLOSED:
                    raise process.lost() from None
                if kind == "log":
                    name, level, text = content
                    logging.getLogger(name).log(level, "%s%s", _member(process.at), text)
                elif kind == "epoch":
                    assert process.at is not None
                    number, (epoch, text) = process.at.number, content
                    advance(epoch - epochs[number], f"{_member(process.at)}{text}")
                    epochs[number] = epoch
                elif kind == "refused":
                    raise CannotCross(content[0])
                elif kind == "failed":
                    raise content[0]
                else:  # it waits for a member
                    if kind == "done":
                        assert process.at is not None
                        done += content
                        left_out = process.at.settings.epochs - epochs[process.at.number]  # patience, or a resumed end
                        advance(left_out, None)
                    process.at = waiting.popleft() if waiting else None
                    if process.at is None:
                        del living[process.channel]
                        process.process.kill()  # for its memory
                    else:
                        asked = process.at
                        log.info("ensemble: member %d, seed %d", asked.number + 1, asked.seed)
                        process.send(asked)
    return done


def _member(asked: MemberTraining | None) -> str:
    return "" if asked is None else f"member {asked.number + 1}: "


def threads_here() -> tuple[int, int]:
    """Those of the compiled loops and of torch, on which the last bits of weights depend."""
    import numba

    of_torch = torch.get_num_threads()
    of_loops = numba.get_num_threads()
    torch.set_num_threads(of_torch)  # the loops' set it too, where they begin only now
    return of_loops, of_torch


def take_threads(of_loops: int, of_torch: int) -> None:
    """What `threads_here` gave in another process; the loops' first, as they set torch's."""
    import numba

    numba.set_num_threads(of_loops)
    torch.set_num_threads(of_torch)
