"""The gate in front of the routes (ASGI), who may in and how many, bodies within bounds, and what was answered; and the
line in which requests wait for the model.

Every error leaves as the same JSON (`Refusal.response`), whatever raised it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.parallel_loops import one_at_a_time

log = logging.getLogger(__name__)
T = TypeVar("T")
SHORT = 8
OPEN = ("/health",)  # whoever watches over the service need not hold its token
WATCHED = ("/metrics",)  # answered under overload too, which is when it is looked at


class Line:
    """A bounded line of requests that wait for the model, worked off in the event loop.

    `await line.run(work)` gives `work()`. The model is fast and keeps a core busy, so a thread of its own would add
    switching but no throughput, and threads that fight for the interpreter make some answers late by milliseconds. One
    that finds the line full is refused at once, so no wait is longer than the line.

    While the line is short, the loop reads and answers others between two of its works, so that the first answer does
    not wait for the second work. A long line is worked off in one go: then a turn of the loop brings hundreds of
    refusals, and one answer a turn would be one in hundreds.

    longest: works that may wait; timeout_seconds: how long one may wait.

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
            with one_at_a_time():
                found = work()
            future.set_result(found)
        except Exception as error:  # belongs to whoever asked
            future.set_exception(error)


class Gate:
    """ASGI middleware around `app`. token: what a request must bear, None where none is asked for.

    line: what requests will wait in; where it is full they are refused here already, which takes a tenth of the time.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, token: str | None, line: Line) -> None:
        self.app, self.settings, self.metrics, self.line = app, settings, metrics, line
        self._token = None if token is None else token.encode()
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:  # the server closes it
                await send({"type": "websocket.close", "code": 1000})
            return
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.in_flight += 1
        self.metrics.now(self.in_flight, len(self.line))
        try:
            self._admit(scope)
            await self.app(scope, receive, noting)
        except Refusal as refusal:
            await refusal.response()(scope, receive, noting)
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"])
            if not status:  # FastAPI answers, and raises it again for whoever keeps the log
                failed = Refusal(500, "internal_error", "the service failed; its log says why.")
                await failed.response()(scope, receive, noting)
        finally:
            self.in_flight -= 1
            self.metrics.now(self.in_flight, len(self.line))
            self.metrics.request(scope["path"], status, time.perf_counter() - started)

    def _admit(self, scope: Scope) -> None:
        names = {name for name, _ in scope["headers"]}
        if b"content-length" in names and b"transfer-encoding" in names:
            # Two lengths, of which a proxy may take the other (RFC 9112, 6.3).
            message = "send Content-Length or Transfer-Encoding, not both."
            raise Refusal(400, "bad_request", message, headers={"connection": "close"})
        if scope["path"] in OPEN:
            return
        if self._token is not None:
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            scheme, _, own = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
            # Compared in constant time, so that its time tells nothing of how much of a guess is right.
            if scheme.lower() != b"bearer" or not hmac.compare_digest(own, self._token):
                message = "this service asks for a token: Authorization: Bearer TOKEN."
                raise Refusal(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})
        if scope["path"] in WATCHED:
            return
        if self.in_flight > self.settings.max_in_flight:
            raise Refusal.busy(f"{self.settings.max_in_flight} requests are in work already. Try again.")
        if scope["method"] == "POST":
            self.line.require_room()


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """The body of a JSON request; `Refusal` where it is of another type (415), too long (413) or too slow (408).

    The length is enforced while the body is read, for a client need not say it, or say it rightly.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "unsupported_media_type", "send JSON as it is, with Content-Type: application/json.")
    most = settings.max_body_bytes
    too_long = Refusal(413, "too_large", f"the body is longer than {most:,} bytes.")
    declared = headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > most):
        raise too_long
    parts: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(settings.timeout_seconds):
            while True:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise Refusal(400, "disconnected", "the client left before its request was whole.")
                length += len(message.get("body", b""))
                if length > most:
                    raise too_long
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        limit = f"the body did not arrive within {settings.timeout_seconds:g} s."
        raise Refusal(408, "too_slow", limit, headers={"connection": "close"}) from None
