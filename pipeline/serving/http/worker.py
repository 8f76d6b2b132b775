"""A worker: a process that answers the connections which a supervisor hands it, with the bundle that it names.

It is told `prepare` (load a bundle beside the one that answers), `take` (from now on that one answers), `refused` (it
does not, for what another worker found) and `drain`; it tells `ready` or `failed`, `taken`, and `leaving` where it was
itself asked to end. One that hears no more of its supervisor drains, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.http.channel import LONGEST_TEXT, Channel
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import ServedBundle, load_served
from gigabatch.pipeline.serving.swap import RefusedBundle, Slot, may_pass

log = logging.getLogger(__name__)
SHORT_WAIT = 0.02  # seconds until what the supervisor took no more of is told again


class Worker(uvicorn.Server):
    """uvicorn's server without a listening socket of its own. config: of the application over `slot`."""

    def __init__(
        self, config: uvicorn.Config, channel: Channel, slot: Slot, settings: ServeSettings, metrics: Metrics
    ) -> None:
        super().__init__(config)
        self.channel, self.slot, self.settings, self.metrics = channel, slot, settings, metrics
        self._prepared: tuple[int, ServedBundle] | None = None
        self._loading: asyncio.Queue[tuple[int, Path]] = asyncio.Queue()
        self._wanted: set[int] = set()  # of those to be loaded: none that was refused meanwhile
        self._tasks: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        loop.add_reader(self.channel.fileno(), self._hear)
        self._keep(loop.create_task(self._prepare_in_turn()))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: ask to be left out; connections that are on their way come before the answer. Ctrl-C, which all
        processes of a terminal get, is the supervisor's."""
        if sig == signal.SIGTERM and not self.channel.tell(leaving=True):
            self.should_exit = True

    def _hear(self) -> None:
        while True:
            try:
                heard = self.channel.take()
            except BlockingIOError:
                return
            if isinstance(heard, socket.socket):
                self._keep(asyncio.get_running_loop().create_task(self._connect(heard)))
            elif heard is None or "drain" in heard:
                if heard is None:
                    log.error("the supervisor is gone; this worker ends")
                asyncio.get_running_loop().remove_reader(self.channel.fileno())
                self.should_exit = True
                return
            elif "lost" in heard:
                log.error("a connection was closed: too many open files")
                self.metrics.closed()
            elif "prepare" in heard:
                self._wanted.add(heard["number"])
                self._loading.put_nowait((heard["number"], Path(heard["prepare"])))
            elif "take" in heard:
                self._take(heard["take"])
            else:
                self._wanted.discard(heard["number"])
                if self._prepared is not None and self._prepared[0] == heard["number"]:
                    self._prepared = None
                self.slot.refused = RefusedBundle(**heard["refused"])

    def _tell(self, **message: Any) -> None:
        """Tell the supervisor; later where it takes no more now, as it waits for each of these messages."""
        if not self.channel.tell(**message):
            self._keep(asyncio.get_running_loop().create_task(self._tell_later(message)))

    async def _tell_later(self, message: dict[str, Any]) -> None:
        while not self.should_exit:
            await asyncio.sleep(SHORT_WAIT)
            if self.channel.tell(**message):
                return

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Until it is done: the loop itself holds its tasks weakly."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        def protocol() -> asyncio.Protocol:
            made: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
            return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        except OSError:  # the client has left
            connection.close()
            self.metrics.closed()

    async def _prepare_in_turn(self) -> None:
        while True:
            number, folder = await self._loading.get()
            if number in self._wanted:
                await self._prepare(number, folder)

    async def _prepare(self, number: int, folder: Path) -> None:
        found: asyncio.Future[ServedBundle] = asyncio.get_running_loop().create_future()
        # A thread that the process does not wait for when it ends.
        threading.Thread(target=self._load, args=(folder, found), name="bundle loader", daemon=True).start()
        try:
            served = await found
            self.slot.require_no_less(served)
        except Exception as error:
            text, known = str(error)[:LONGEST_TEXT], isinstance(error, ValueError)
            self._tell(failed=number, error=type(error).__name__, text=text, known=known, again=may_pass(error))
        else:
            if number in self._wanted:
                self._prepared = number, served
                self._tell(ready=number)
        self._wanted.discard(number)

    def _load(self, folder: Path, found: asyncio.Future[ServedBundle]) -> None:
        loop = found.get_loop()

        def give(served: ServedBundle | None, error: Exception | None) -> None:
            if found.done():
                return
            if error is not None:
                found.set_exception(error)
            elif served is not None:
                found.set_result(served)

        served, error = None, None
        try:
            served = load_served(folder, self.settings)
        except Exception as failed:
            error = failed
        with contextlib.suppress(RuntimeError):  # the worker has drained meanwhile
            loop.call_soon_threadsafe(give, served, error)

    def _take(self, number: int) -> None:
        assert self._prepared is not None
        assert self._prepared[0] == number, (self._prepared[0], number)
        served, self._prepared = self._prepared[1], None
        self.slot.take(served)
        self.metrics.bundle(served.bundle_id, served.kind)
        self._tell(taken=number)


def name_log(worker: int) -> None:
    """Every line of this process's log says which worker it is of, counted from 1."""
    made = logging.getLogRecordFactory()

    def named(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = made(*arguments, **more)
        record.msg = f"worker {worker + 1}: {record.msg}"
        return record

    logging.setLogRecordFactory(named)
