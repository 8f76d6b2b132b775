"""The gate in front of the routes (ASGI): who may in and how many, bodies within bounds, and what was answered.

Every error leaves as the same JSON (`Refusal.body`), whatever raised it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from typing import Any

from starlette.requests import Request

from pipeline.serving.errors import Refusal
from pipeline.serving.line import Line
from pipeline.serving.metrics import Metrics
from pipeline.serving.settings import ServeSettings

log = logging.getLogger(__name__)
OPEN = ("/health",)  # whoever watches over the service need not hold its token


class Gate:
    """ASGI middleware around `app`. token: what a request must bear, None where none is asked for.

    line: what requests will wait in; where it is full they are refused here already, which takes a tenth of the time.
    """

    def __init__(self, app: Any, settings: ServeSettings, metrics: Metrics, token: str | None, line: Line) -> None:
        self.app, self.settings, self.metrics, self.line = app, settings, metrics, line
        self._token = None if token is None else b"Bearer " + token.encode()
        self.in_flight = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:  # the server closes it
                await send({"type": "websocket.close", "code": 1000})
            return
        started, status = time.perf_counter(), 0

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.in_flight += 1
        try:
            self._admit(scope)
            await self.app(scope, receive, noting)
        except Refusal as refusal:
            await answer(refusal, noting)
        except Exception:  # answered by the app (500), which raises it again for whoever keeps the log
            log.exception("%s %s", scope["method"], scope["path"])
        finally:
            self.in_flight -= 1
            self.metrics.request(scope["path"], status, time.perf_counter() - started)

    def _admit(self, scope: Any) -> None:
        if scope["path"] in OPEN:
            return
        if self._token is not None:
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            # Compared in constant time, so that its time tells nothing of how much of a guess is right.
            if len(given) != 1 or not hmac.compare_digest(given[0], self._token):
                message = "this service asks for a token: Authorization: Bearer TOKEN."
                raise Refusal(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})
        if self.in_flight > self.settings.max_in_flight:
            raise Refusal.busy(f"{self.settings.max_in_flight} requests are in work already. Try again.")
        if scope["method"] == "POST":
            self.line.require_room()


async def answer(refusal: Refusal, send: Any) -> None:
    """The refusal as an answer."""
    body = refusal.body()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


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
