"""Ctrl-C and SIGTERM as one exception, which is known again whatever a library makes of it on its way up."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EVENTS: weakref.WeakSet[threading.Event] = weakref.WeakSet()
_asked: list[int] = []  # numbers of the signals that came to a `stoppable` block of this process
_raised: int | None = None  # the last signal that has raised `Stopped` in the `stoppable` block on its way
_held: list[int] | None = None  # of those that were held back; None where signals are let through


class Stopped(KeyboardInterrupt):
    """Somebody has asked this process to stop. A `KeyboardInterrupt`, so that what it passes cleans up as for that.

    recorded: whether the night that was stopped has its line in nightly.jsonl.
    """

    def __init__(self, number: int, recorded: bool = False) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.recorded = signal.Signals(number), recorded


def stop_event() -> threading.Event:
    """An event that is set when `Stopped` is raised, for work in another thread, which no signal reaches."""
    event = threading.Event()
    _EVENTS.add(event)
    return event


@contextmanager
def stoppable() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise `Stopped` in the main thread and set every `stop_event`; a signal that
    is ignored stays so. An error that a library has made of `Stopped` leaves the block as `Stopped`."""
    global _held, _raised
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        global _raised
        _asked.append(number)
        if _held is not None:
            _held.append(number)
            return
        for event in list(_EVENTS):
            event.set()
        _raised = number
        raise Stopped(number)

    _held = _raised = None
    before = _take(stop)
    try:
        yield
    except Exception as error:
        if number := stopped_by(error):
            raise Stopped(number) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _held = _raised = None


def hold_back() -> None:
    """From here on to the end of the `stoppable` block signals stop nothing but what `let_through` does."""
    global _held, _raised
    _held, _raised = _held or [], None


def let_through(work: Callable[[], Any]) -> None:
    """Do the work, which a signal stops, one too that was held back before; others are held back again after it."""
    global _held
    try:
        waiting, _held = _held, None
        if waiting:
            raise Stopped(waiting[0])
        work()
    finally:
        _held = []


def end_at_once() -> None:
    """From here on SIGINT and SIGTERM end the process outside of a `stoppable` block, with their exit code and without
    a traceback: while Python starts, and at its end, where it waits for a thread that still writes. There
    a second signal says that nobody wants to wait; the next run removes what is left. An ignored one stays so."""
    _take(_end)


def _end(number: int, _: FrameType | None) -> NoReturn:
    if not _asked:  # else the command has said so already
        with suppress(OSError):  # nobody may read it
            os.write(2, f"gigabatch: {stopped_line(number)}\n".encode())
    os._exit(128 + number)  # no exception can be raised that Python's own end would not print


def _take(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Give the signals that are not ignored this handler; those that they had."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {number: found for number, found in before.items() if found not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, handler)
    return taken


def stopped_line(number: int) -> str:
    """What a command says that was stopped."""
    return f"stopped by {signal.Signals(number).name}; run again to go on."


def stopped_text(number: signal.Signals) -> str:
    """What a night's line says of it."""
    line = stopped_line(number)
    return line[0].upper() + line[1:]


def stopped_by(error: BaseException) -> signal.Signals | None:
    """The signal that an error comes from, None where it comes from none.

    A compiled loop that is interrupted raises SystemError, and a reader its own error, from the `KeyboardInterrupt`; an
    import of pydantic's raises one that has no more of it than its text, so that any error after a signal is its.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        item = left.pop()
        if item is None or id(item) in seen:
            continue
        if isinstance(item, KeyboardInterrupt):
            return item.number if isinstance(item, Stopped) else signal.SIGINT
        seen.add(id(item))
        left += [item.__cause__, item.__context__]
    return None if _raised is None else signal.Signals(_raised)
