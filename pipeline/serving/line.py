"""Requests that wait for the model: a bounded line, worked off in the event loop.

The model is fast and keeps a core busy, so a thread of its own would add switching but no throughput, and threads that
fight for the interpreter make some answers late by milliseconds. One that finds the line full is refused at once, so no
wait is longer than the line.

While the line is short, the loop reads and answers others between two of its works, so that the first answer does not
wait for the second work. A long line is worked off in one go: then a turn of the loop brings hundreds of refusals, and
one answer a turn would be one in hundreds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.serving.errors import Refusal

T = TypeVar("T")
SHORT = 8


class Line:
    """`await line.run(work)` gives `work()`. longest: works that may wait; timeout_seconds: how long one may wait.

    Errors: what `work` raises, and `Refusal` 503 where the line is full or the wait was too long.
    """

    def __init__(self, longest: int, timeout_seconds: float) -> None:
        self.longest, self.timeout_seconds = longest, timeout_seconds
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any], float]] = deque()
        self._working = False

    def __len__(self) -> int:
        return len(self._waiting)

    def require_room(self) -> None:
        """`Refusal` 503 where the line is full."""
        if len(self._waiting) >= self.longest:
            raise Refusal.busy(f"{self.longest} requests are waiting already. Try again.")

    async def run(self, work: Callable[[], T]) -> T:
        self.require_room()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((future, work, time.monotonic() + self.timeout_seconds))
        if not self._working:
            self._working = True
            loop.call_soon(self._next)
        return await future

    def _next(self) -> None:
        for _ in range(1 if len(self._waiting) <= SHORT else len(self._waiting)):
            self._work(*self._waiting.popleft())
        self._working = bool(self._waiting)
        if self._working:
            asyncio.get_running_loop().call_soon(self._next)

    def _work(self, future: asyncio.Future[Any], work: Callable[[], Any], deadline: float) -> None:
        if future.done():  # whoever asked was cancelled
            return
        if time.monotonic() > deadline:
            future.set_exception(Refusal.busy(f"the model was busy for {self.timeout_seconds:g} s. Try again."))
            return
        try:
            future.set_result(work())
        except Exception as error:  # belongs to whoever asked
            future.set_exception(error)
