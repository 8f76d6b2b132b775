"""`gigabatch serve`: the bundle of a run behind a socket, until SIGTERM."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.runs.find import lease_of, run_link
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.http.app import create_app
from gigabatch.pipeline.serving.http.channel import Channel
from gigabatch.pipeline.serving.http.gate import Gate
from gigabatch.pipeline.serving.http.supervisor import Supervisor
from gigabatch.pipeline.serving.http.worker import Worker, name_log
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.serving.start import address_family, asked_settings, cannot_listen, require_start
from gigabatch.pipeline.serving.swap import Slot, Watcher

log = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 75  # longer than the 60 s of common proxies, or they would send into a connection that closes
LINGER_SECONDS = 1.0  # at the end, how long a connection without a request waits for one that is on its way
SWITCH_SECONDS = 0.0005  # how long the thread that loads a bundle may keep the interpreter from a request


def run_server(
    config: str | Path,
    overrides: Sequence[str] = (),
    run: str | Path | None = None,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    insecure: bool = False,
) -> int:
    """Serve a run's bundle until SIGTERM or Ctrl-C; 0 when all running requests were finished.

    run: current (the default), previous or latest, which are watched for another run; an id; the run's folder, or a
    link to one. host, port, workers: instead of the settings'. Errors: `ServingError`, `BundleError`.
    """
    loaded = load_config(config, overrides)
    settings = asked_settings(loaded.serve, host, port, workers)
    link = run_link(loaded, run)
    # What a link names stays without one, and is not to stay once the link names another.
    lease = None if link.is_symlink() else lease_of(loaded, Path(os.path.realpath(link)))
    try:
        return serve(settings, [link], insecure)
    finally:
        del lease


def serve(settings: ServeSettings, folders: Sequence[Path], insecure: bool = False) -> int:
    """Serve the bundle of the first of `folders` that exists, and whatever takes its place there."""
    token = require_start(settings, folders, insecure)
    sys.setswitchinterval(SWITCH_SECONDS)
    # What is imported stays for good, so no collection need look at it again. Bundles come later and can go.
    gc.collect()
    gc.freeze()
    slot, metrics = Slot(), Metrics(settings.workers)
    config = server_config(create_app(slot, settings, metrics, token), settings, metrics)
    run_workers = serve_alone if settings.workers == 1 else serve_together
    run_workers(config, slot, settings, metrics, folders)
    log.info("stopped")
    return 0


def serve_alone(
    config: uvicorn.Config,
    slot: Slot,
    settings: ServeSettings,
    metrics: Metrics,
    folders: Sequence[Path],
) -> None:
    """In this process, which watches for another bundle in a thread."""
    torch.set_num_threads(settings.threads)
    watcher = Watcher(slot, folders, lambda f: load_served(f, settings), metrics, settings.poll_seconds)
    watcher.first()
    metrics.answering(0, True)
    server = uvicorn.Server(config)
    # uvicorn stops for these signals and raises them again when it has stopped; then nothing is left to be stopped.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with listen(settings) as listener:
        watcher.start()
        try:
            server.run(sockets=[listener])
        finally:
            watcher.stop()


def serve_together(
    config: uvicorn.Config,
    slot: Slot,
    settings: ServeSettings,
    metrics: Metrics,
    folders: Sequence[Path],
) -> None:
    """In `settings.workers` processes that are forked from this one, and watched by it."""

    def work(place: int, channel: Channel) -> None:
        name_log(place)
        torch.set_num_threads(settings.threads)
        Worker(config, channel, slot, settings, metrics).run()

    Supervisor(settings, folders, metrics, work).run(lambda: listen(settings))


def server_config(app: Gate, settings: ServeSettings, metrics: Metrics) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        app,
        http=with_answers(AutoHTTPProtocol, metrics, min(LINGER_SECONDS, settings.drain_seconds)),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
    )


def with_answers(protocol: Any, metrics: Metrics, linger: float) -> type:
    """uvicorn's protocol class, whose answer to bytes that are no HTTP is JSON as every other error is, and which
    answers, at the end of the service, what was sent on an open connection before its client could know of the end:
    for `linger` seconds. The ends of its connections are counted."""

    class WithAnswers(protocol):
        def shutdown(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                super().shutdown()
                return
            state, closing = self.server_state, (b"connection", b"close")
            if closing not in state.default_headers:  # of the answers to requests that begin from now on
                state.default_headers = [*state.default_headers, closing]
            self.loop.call_later(linger, self._leave)

        def _leave(self) -> None:
            if not self.transport.is_closing():
                super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            metrics.closed()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            refusal = Refusal(400, "bad_request", f"{msg.removesuffix('.')}.")
            body = refusal.response().body
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + bytes(body))
            self.transport.close()

    return WithAnswers


def listen(settings: ServeSettings) -> socket.socket:
    """A listening socket, told in the log; `ServingError` where there can be none."""
    address = settings.host, settings.port
    try:
        listener = socket.create_server(address, family=address_family(settings), backlog=2048)
    except OSError as error:
        raise cannot_listen(settings, error) from error
    # Inherited by connections. An answer is written in two pieces, and without this the second waits 40 ms for the
    # first to be acknowledged; asyncio sets it only on sockets whose protocol was named when they were made.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = listener.getsockname()[:2]
    log.info("serving at http://%s:%d", f"[{host}]" if ":" in host else host, port)
    return listener
