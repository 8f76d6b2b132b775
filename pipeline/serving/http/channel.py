"""What a supervisor and its workers tell each other: small JSON messages, and connections of clients."""

from __future__ import annotations

import json
import socket
from typing import Any

LONGEST = 1 << 16  # bytes of one message
LONGEST_TEXT = 4_000  # characters of an error's text
GIVEN = b"c"  # the message beside a client's connection


class Channel:
    """One end of a pair of sockets that keep the borders of messages. Nothing waits for the other end.

    A worker's end is closed by the system when the worker ends, however it does, and so is the supervisor's.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def tell(self, **message: Any) -> bool:
        """Send one message; False where the other end is gone, or takes no more."""
        try:
            self._end.send(json.dumps(message, allow_nan=False).encode())
        except OSError:
            return False
        return True

    def give(self, connection: socket.socket) -> bool:
        """Send a client's connection, which the caller still has to close; False as `tell`."""
        try:
            socket.send_fds(self._end, [GIVEN], [connection.fileno()])
        except OSError:
            return False
        return True

    def take(self) -> dict[str, Any] | socket.socket | None:
        """The next message, or a client's connection, or None where the other end is gone.

        `{"lost": True}` is a connection that this process had no room for: too many files are open. `BlockingIOError`
        where there is nothing yet.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._end, LONGEST, 1)
        except BlockingIOError:
            raise
        except OSError:
            return None
        if descriptors:
            return socket.socket(fileno=descriptors[0])
        if not data:
            return None
        if data == GIVEN:
            return {"lost": True}
        message: dict[str, Any] = json.loads(data)
        return message
