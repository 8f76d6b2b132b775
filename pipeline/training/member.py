"""A process that trains members of an ensemble for another one: `python -m gigabatch.pipeline.training.member CHANNEL`.

The channel is the number of an open file, a `multiprocessing.connection.Connection`. What trains comes first, then one
`MemberTraining` after the other; back go a line of the log, an epoch, and in the end what became of the member. When
the channel closes, the other process is gone, and this one ends at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from gigabatch.models.model import Model
from gigabatch.own_code import import_all, require_told
from gigabatch.pipeline.training.beside import CLOSED, MemberTraining, take_threads
from gigabatch.pipeline.training.callbacks import Callback
from gigabatch.pipeline.training.ensemble import train_member
from gigabatch.pipeline.training.train import valid_text


class Channel:
    """What is said to the other process, by any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def say(self, kind: str, *content: Any) -> None:
        with self._lock:
            self._connection.send((kind, *content))


class Lines(logging.Handler):
    """Hands the log over."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage() if record.exc_info is None else self.format(record)
        self.channel.say("log", record.name, record.levelno, text)


class Epochs(Callback):
    """Tells of each epoch."""

    def __init__(self, channel: Channel, select_by: str) -> None:
        self.channel, self.select_by = channel, select_by

    def epoch(self, points: Sequence[Mapping[str, Any]], model: Model) -> None:
        self.channel.say("epoch", round(points[-1]["epoch"]), valid_text(points[-1], self.select_by))


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    channel = Channel(connection)
    threads, level, (imports, own, pickled) = connection.recv()
    logging.basicConfig(level=level, handlers=[Lines(channel)])
    logging.captureWarnings(True)
    take_threads(*threads)
    try:
        import_all(imports)
        require_told(own)
        train = pickle.loads(pickled)
    except Exception as error:  # of anyone's module, or of one that is not to be found here
        channel.say("refused", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return
    asked: SimpleQueue[MemberTraining] = SimpleQueue()
    threading.Thread(target=listen, args=(connection, asked), daemon=True).start()
    channel.say("ready")
    while True:
        member = asked.get()
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # one shows progress for all
                callbacks = Epochs(channel, member.settings.select_by)
                done = train_member(train, replace(member, callbacks=(*member.callbacks, callbacks)))
        except Exception as error:
            channel.say("failed", crossing(error))
            return
        channel.say("done", done)


def listen(connection: Connection, asked: SimpleQueue[MemberTraining]) -> None:
    """Take what is asked for; end with the process that asks."""
    try:
        while True:
            asked.put(connection.recv())
    except CLOSED:
        os._exit(1)


def crossing(error: Exception) -> Exception:
    """The error with its traceback as a note; one that cannot be pickled as a RuntimeError that tells of it."""
    error.add_note(f"In the process of a member:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.add_note(error.__notes__[-1])
        return told
    return error


if __name__ == "__main__":
    main()
