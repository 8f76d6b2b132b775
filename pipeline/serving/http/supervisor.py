"""Several workers behind one port: a process that accepts connections, and gives each to the worker that has fewest.

It computes nothing and holds no bundle, so that workers can be forked from it at any time, with all that was imported.
A worker that ends is replaced. What links lead to is looked at here alone, and a newer bundle goes through two steps:
one worker loads it first and, where that went well, the others do; only when all hold it, each is told to take it. So a
bundle that one worker refuses answers nowhere, and one whose loading kills its process costs one worker. A connection
stays with its worker, whose bundle only follows that order.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import ServingError
from gigabatch.pipeline.serving.http.channel import Channel
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.swap import Watched, log_refusal

log = logging.getLogger(__name__)
LONGEST_PAUSE = 30.0  # seconds before another worker is started in the place of those that end at once
LIVED = 60.0  # seconds after which the end of a worker is no longer part of a row of them
SHORT_WAIT = 0.02  # seconds until a connection that no worker took is offered again
SLOW_LOAD = 60.0  # seconds after which a bundle that is still being loaded is told of, as no newer one is looked for
MORE_TO_END = 5.0  # seconds beside `drain_seconds` that a worker has to end


@dataclass(eq=False)
class _Process:
    """A worker's process. asked, ready, holds: the bundle that it loads, has loaded, and answers with, by number."""

    place: int
    pid: int
    channel: Channel
    started: float
    asked: int = 0
    ready: int = 0
    holds: int = 0
    given: int = 0  # connections
    answers: bool = False
    leaving: bool = False


@dataclass
class _Bundle:
    """A folder, and its number among the bundles that were tried. told_at: monotonic, when it is told of as slow."""

    number: int
    folder: Path
    told_at: float = math.inf


@dataclass
class _Place:
    """Where a worker belongs. deaths: in a row, each soon after its start; next_start: monotonic, while it is empty."""

    process: _Process | None = None
    deaths: int = 0
    next_start: float = 0.0


@dataclass
class Supervisor:
    """Runs `settings.workers` workers for the bundle that `folders` lead to. work: what a forked worker does with its
    place, from 0, and its end of the channel, until it has drained."""

    settings: ServeSettings
    folders: Sequence[Path]
    metrics: Metrics
    work: Callable[[int, Channel], None]
    _places: list[_Place] = field(init=False)
    _selector: selectors.BaseSelector = field(init=False, default_factory=selectors.DefaultSelector)
    _listener: socket.socket | None = None
    _held: socket.socket | None = None  # accepted, and taken by no worker yet
    _taken: _Bundle | None = None
    _tried: _Bundle | None = None
    _numbers: int = 0
    _next_look: float = 0.0
    _signals: list[int] = field(default_factory=list)
    _ending: bool = False

    def __post_init__(self) -> None:
        self._places = [_Place() for _ in range(self.settings.workers)]
        self._watched = Watched(self.folders, self.settings.poll_seconds)

    def run(self, listen: Callable[[], socket.socket]) -> None:
        """Until SIGTERM or Ctrl-C, and all workers have drained. listen: called when the first bundle answers.

        `ServingError` where the first bundle cannot be served.
        """
        with self._signals_heard():
            try:
                while not any(process.answers for process in self._processes()) and not self._signals:
                    self._turn()
                if not self._signals:
                    self._listener = listen()
                    self._listener.setblocking(False)
                    self._selector.register(self._listener, selectors.EVENT_READ)
                while not self._signals:
                    self._turn()
                self._drain()
            finally:
                self._kill()
                self._selector.close()

    @contextlib.contextmanager
    def _signals_heard(self) -> Iterator[None]:
        """SIGTERM and SIGINT are noted, and wake the selector."""
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        self._wakers = wake, woken
        before = {
            number: signal.signal(number, lambda number, _: self._signals.append(number))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        former = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(former)
            for number, handler in before.items():
                signal.signal(number, handler)
            wake.close()
            woken.close()

    def _turn(self) -> None:
        """What is due by now; then what is heard until something is due again."""
        now = time.monotonic()
        for number, place in enumerate(self._places):
            if place.process is None and now >= place.next_start:
                self._start(number, place)
        if self._tried is None and now >= self._next_look:
            self._next_look = now + self.settings.poll_seconds
            self._look()
        self._exchange()
        self._hear(self._pause())

    def _pause(self) -> float:
        """Seconds until something is due; what a worker could not be told is told again soon."""
        now = time.monotonic()
        due = [now + SHORT_WAIT if self._tried is not None else self._next_look]
        due += [place.next_start for place in self._places if place.process is None]
        return SHORT_WAIT if self._held is not None else max(min(due) - now, 0.001)

    def _hear(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is not None:
                self._hear_worker(key.data)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                with contextlib.suppress(BlockingIOError):
                    self._wakers[1].recv(4096)
        if self._held is not None:
            self._give()

    # Connections

    def _accept(self) -> None:
        """Take what waits in line, as far as workers take it."""
        assert self._listener is not None
        while self._held is None:
            try:
                self._held, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # too many open files, or a client that has left
                log.error("a connection could not be accepted: %s", error)
                time.sleep(SHORT_WAIT)
                return
            self._give()

    def _give(self) -> None:
        """Give the connection to the worker that has fewest; while none takes it, the others wait in the system."""
        held, listener = self._held, self._listener
        assert held is not None
        assert listener is not None
        answering = [process for process in self._processes() if process.answers]
        for process in sorted(answering, key=lambda one: one.given - self.metrics.num_closed(one.place)):
            if process.channel.give(held):
                process.given += 1
                held.close()
                self._held = None
                break
        known = listener in self._selector.get_map()
        if self._held is None and not known:
            self._selector.register(listener, selectors.EVENT_READ)
        elif self._held is not None and known:
            self._selector.unregister(listener)

    # Bundles

    def _look(self) -> None:
        """Begin with a bundle that is new, if one is."""
        try:
            folder = self._watched.due()
        except OSError:  # a file system that fails for a moment must not end the service
            log.exception("watching %s", ", ".join(map(str, self.folders)))
            return
        if folder is not None:
            self._numbers += 1
            self._tried = _Bundle(self._numbers, folder, time.monotonic() + SLOW_LOAD)

    def _exchange(self) -> None:
        """The next step of the bundle that is tried; and what workers that came later still lack."""
        processes = [process for process in self._processes() if not process.leaving]
        tried, taken = self._tried, self._taken
        if tried is None:
            for process in processes:
                if taken is not None and process.holds != taken.number:
                    self._bring(process, taken)
            return
        if time.monotonic() >= tried.told_at:
            tried.told_at = math.inf
            waiting = [str(process.place + 1) for process in processes if process.ready != tried.number]
            log.error(
                "bundle %s is still being loaded after %g s (worker %s); until it is, no newer one is looked for. "
                "Where its files cannot be read, end the service and start it again", tried.folder, SLOW_LOAD,
                ", ".join(waiting),
            )  # fmt: skip
        if not processes:
            return
        if not any(process.ready == tried.number for process in processes):
            if not any(process.asked == tried.number for process in processes):
                self._ask(min(processes, key=lambda one: (not one.answers, one.place)), tried)
            return
        for process in processes:
            self._ask(process, tried)
        if all(process.ready == tried.number for process in processes):
            self._tried, self._taken = None, tried
            self._watched.took()
            for process in processes:
                self._bring(process, tried)
            if taken is not None:
                self.metrics.swap("taken")
            log.info("bundle %s answers (%s)", tried.folder.name, tried.folder)

    def _ask(self, process: _Process, bundle: _Bundle) -> None:
        if process.asked != bundle.number and process.channel.tell(prepare=str(bundle.folder), number=bundle.number):
            process.asked = bundle.number

    def _bring(self, process: _Process, bundle: _Bundle) -> None:
        """The bundle that answers, to a worker that does not hold it."""
        if process.ready == bundle.number:
            if not process.channel.tell(take=bundle.number):  # it takes no more for now
                return
            process.holds = bundle.number
            if self._watched.refused is not None:
                process.channel.tell(refused=asdict(self._watched.refused), number=0)
        else:
            self._ask(process, bundle)

    def _refuse(self, error: str, text: str, known: bool, again: bool) -> None:
        """The bundle that is tried does not answer. known: the text needs no kind of error before it."""
        tried, taken = self._tried, self._taken
        assert tried is not None
        if taken is None:
            raise ServingError(text if known else f"bundle {tried.folder}: {error}: {text}")
        self._tried = None
        first = self._watched.refuse(tried.folder, error, again)
        assert self._watched.refused is not None
        for process in self._processes():
            process.ready = 0 if process.ready == tried.number else process.ready
            process.channel.tell(refused=asdict(self._watched.refused), number=tried.number)
        if first:
            self.metrics.swap("refused")
            log_refusal(tried.folder, taken.folder.name, f"{error}: {text}", again)

    # Workers

    def _processes(self) -> list[_Process]:
        return [place.process for place in self._places if place.process is not None]

    def _start(self, number: int, place: _Place) -> None:
        here, there = Channel.pair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            here.close()
            there.close()
            place.next_start = time.monotonic() + LONGEST_PAUSE
            log.error("worker %d cannot be started (%s); tried again in %g s", number + 1, error, LONGEST_PAUSE)
            return
        if pid == 0:
            self._become_worker(number, here, there)
        there.close()
        place.process = _Process(number, pid, here, time.monotonic())
        self._selector.register(here, selectors.EVENT_READ, place.process)

    def _become_worker(self, number: int, here: Channel, channel: Channel) -> None:
        """What a forked process does; it does not return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            ends: list[Any] = [here, self._listener, self._held, *self._wakers, self._selector]
            ends += [process.channel for process in self._processes()]
            for end in ends:
                if end is not None:
                    end.close()
            self.metrics.worker = number
            self.work(number, channel)
            code = 0
        except BaseException:  # also SystemExit: nothing of the supervisor's stack may go on here
            log.exception("worker %d failed", number + 1)
        finally:
            logging.shutdown()
            os._exit(code)

    def _hear_worker(self, process: _Process) -> None:
        try:
            heard = process.channel.take()
        except BlockingIOError:
            return
        if not isinstance(heard, dict):
            self._ended(process)
        elif "ready" in heard:
            process.ready = heard["ready"]
        elif "taken" in heard:
            if not process.answers and process.holds == heard["taken"] and not process.leaving:
                process.answers = True
                self.metrics.answering(process.place, True)
                log.info("worker %d answers (process %d)", process.place + 1, process.pid)
        elif "leaving" in heard:
            process.leaving, process.answers = True, False
            self.metrics.answering(process.place, False)
            process.channel.tell(drain=True)
        elif self._tried is not None and heard["failed"] == self._tried.number:
            self._refuse(heard["error"], heard["text"], heard["known"], heard["again"])
        elif self._taken is not None and heard["failed"] == self._taken.number and process.holds != heard["failed"]:
            log.error("worker %d cannot load the bundle that answers: %s", process.place + 1, heard["text"])
            os.kill(process.pid, signal.SIGKILL)

    def _ended(self, process: _Process) -> None:
        """A worker is gone, or its end of the channel is: another takes its place."""
        self._selector.unregister(process.channel)
        process.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        place = self._places[process.place]
        place.process = None
        self.metrics.ended(process.place)
        now = time.monotonic()
        place.deaths = place.deaths + 1 if now - process.started < LIVED else 0
        pause = 0.0 if place.deaths < 2 else min(2.0 ** (place.deaths - 2), LONGEST_PAUSE)
        place.next_start = now + pause
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._signals or self._ending:
            return
        tried = self._tried
        if tried is not None and process.asked == tried.number and not process.leaving:
            self._refuse("WorkerEnded", f"a worker ended while it loaded it ({end}).", known=False, again=True)
        self.metrics.restart()
        later = f" in {pause:g} s" if pause else ""
        log.error(
            "worker %d (process %d) ended by %s; another is started%s", process.place + 1, process.pid, end, later
        )

    def _drain(self) -> None:
        """No new connections; ask all workers to finish what runs, and wait. A second signal ends them at once."""
        if self._listener is not None:
            if self._listener in self._selector.get_map():
                self._selector.unregister(self._listener)
            self._listener.close()
        if self._held is not None:
            self._held.close()
            self._held = None
        for process in self._processes():
            self.metrics.answering(process.place, False)
            if not process.leaving:
                process.channel.tell(drain=True)
        heard, until = len(self._signals), time.monotonic() + self.settings.drain_seconds + MORE_TO_END
        while self._processes() and time.monotonic() < until and len(self._signals) == heard:
            self._hear(max(until - time.monotonic(), 0))
        for process in self._processes():
            log.error("worker %d (process %d) does not end and is killed", process.place + 1, process.pid)

    def _kill(self) -> None:
        """End what is left of the workers."""
        self._ending = True
        for process in self._processes():
            self._ended(process)
