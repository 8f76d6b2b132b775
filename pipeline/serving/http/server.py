"""`gigabatch serve`: the bundle of a run behind a socket, until SIGTERM."""

from __future__ import annotations

import gc
import ipaddress
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
from pydantic import ValidationError
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.runs.find import run_link
from gigabatch.pipeline.serving.errors import Refusal, ServingError
from gigabatch.pipeline.serving.http.app import create_app
from gigabatch.pipeline.serving.http.channel import Channel
from gigabatch.pipeline.serving.http.gate import Gate
from gigabatch.pipeline.serving.http.supervisor import Supervisor
from gigabatch.pipeline.serving.http.worker import Worker, name_log
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.serving.swap import Slot, Watcher

log = logging.getLogger(__name__)
TOKEN_VARIABLE = "GIGABATCH_TOKEN"
SHORTEST_TOKEN = 16
KEEP_ALIVE_SECONDS = 75  # longer than the 60 s of common proxies, or they would send into a connection that closes
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
    flags = {"host": host, "port": port, "workers": workers}
    settings = loaded.serve
    try:
        settings = ServeSettings(**{**settings.model_dump(), **{k: v for k, v in flags.items() if v is not None}})
    except ValidationError as error:
        found = "; ".join(
            f"serve.{item['loc'][0]}: {item['msg']} (found {item['input']!r})"
            if item["loc"]
            else f"serve: {item['msg']}"
            for item in error.errors()
        )
        raise ServingError(f"{found}.") from error
    return serve(settings, [run_link(loaded, run)], insecure)


def serve(settings: ServeSettings, folders: Sequence[Path], insecure: bool = False) -> int:
    """Serve the bundle of the first of `folders` that exists, and whatever takes its place there."""
    token = read_token(settings)
    require_safe(settings, token, insecure)
    if not any(os.path.lexists(folder) for folder in folders):
        names = " nor ".join(map(str, folders))
        raise ServingError(
            f"serve: there is no run {names}. Train first (gigabatch train), promote a run (gigabatch runs lists them, "
            "gigabatch promote ID), or give another with --run."
        )
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
    watcher = Watcher(slot, folders, lambda f: load_served(f, settings.device), metrics, settings.poll_seconds)
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
        http=json_errors(AutoHTTPProtocol, metrics),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
    )


def json_errors(protocol: Any, metrics: Metrics) -> type:
    """uvicorn's protocol class, whose answer to bytes that are no HTTP is JSON as every other error is. The ends of its
    connections are counted."""

    class JsonErrors(protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            metrics.closed()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            refusal = Refusal(400, "bad_request", f"{msg.removesuffix('.')}.")
            body = refusal.response().body
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + bytes(body))
            self.transport.close()

    return JsonErrors


def read_token(settings: ServeSettings) -> str | None:
    """From the variable GIGABATCH_TOKEN, or the file; None where neither is set. Never from the command line, which
    other users of the machine can read."""
    given = os.environ.get(TOKEN_VARIABLE)
    where = TOKEN_VARIABLE
    if settings.token_file is not None:
        if given is not None:
            raise ServingError(f"serve: both {TOKEN_VARIABLE} and serve.token_file are set. Remove one of them.")
        where = str(settings.token_file)
        try:
            given = settings.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ServingError(f"serve.token_file: {settings.token_file} cannot be read ({error}).") from error
    if given is None:
        return None
    if len(given) < SHORTEST_TOKEN or not all("!" <= letter <= "~" for letter in given):
        raise ServingError(
            f"serve: the token in {where} must be at least {SHORTEST_TOKEN} printable ASCII characters without spaces. "
            "For example: openssl rand -hex 32."
        )
    return given


def require_safe(settings: ServeSettings, token: str | None, insecure: bool) -> None:
    """Raise `ServingError` where strangers could ask without a token, unless that is said to be wanted."""
    if token is None and not insecure and not is_loopback(settings.host):
        raise ServingError(
            f"serve: {settings.host} can be reached from other machines, and no token is set. Set {TOKEN_VARIABLE} or "
            "serve.token_file, listen at 127.0.0.1, or say --insecure."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address; a name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(settings: ServeSettings) -> socket.socket:
    """A listening socket, told in the log; `ServingError` where there can be none."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise ServingError(f"serve: cannot listen at {settings.host}:{settings.port} ({error}).") from error
    # Inherited by connections. An answer is written in two pieces, and without this the second waits 40 ms for the
    # first to be acknowledged; asyncio sets it only on sockets whose protocol was named when they were made.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    address, port = listener.getsockname()[:2]
    log.info("serving at http://%s:%d", f"[{address}]" if ":" in address else address, port)
    return listener
