"""Standard output and standard error that outlive whoever reads them."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Output(io.FileIO):
    """An output whose descriptor leads nowhere once nobody reads it, for what the process starts, too: a pipe that is
    closed, a terminal that has hung up."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.was_terminal = os.isatty(descriptor)

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            hung_up = error.errno == errno.EIO and self.was_terminal  # of a file it is a disk that fails
            if error.errno != errno.EPIPE and not hung_up:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def outlive_readers() -> None:
    """From here on a command whose output nobody reads any more does its work and ends with its own exit code: a pager
    that is closed, or a session that ends, stops no night."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before the process began
            continue
        stream.flush()
        raw = _Output(stream.fileno())
        buffered = not isinstance(stream.buffer, io.RawIOBase)  # python -u has none
        text = io.TextIOWrapper(
            io.BufferedWriter(raw) if buffered else raw,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, text)
