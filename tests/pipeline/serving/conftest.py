"""A small recommender that is served: in process, and by a real server in a process of its own (server_process.py)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    import httpx

    from gigabatch.pipeline.config.serving import ServeSettings


def one_thread(make: Any) -> Any:
    """Fixtures of a session run before the test's own thread is set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return make()
    finally:
        torch.set_num_threads(before)  # what comes after the service's tests has its own


@pytest.fixture(scope="session")
def frame():
    from tests.pipeline.serving.small_bundles import interactions

    return interactions()


@pytest.fixture(scope="session")
def run(frame, tmp_path_factory):
    """The folder of a two-tower run with stored embeddings."""
    from tests.pipeline.serving.small_bundles import random_bundle, write_run

    folder = tmp_path_factory.mktemp("served") / "first"
    return one_thread(lambda: write_run(folder, random_bundle(frame), frame))


@pytest.fixture(scope="session")
def bundle(run):
    from gigabatch.pipeline.bundle import load_bundle

    return load_bundle(run / "model")


@pytest.fixture(scope="session")
def served(run):
    from gigabatch.pipeline.serving.served import load_served

    return one_thread(lambda: load_served(run))


class Caller:
    """Requests to a service in this process."""

    def __init__(self, served: Any, settings: ServeSettings | None = None, token: str | None = None) -> None:
        from gigabatch.pipeline.config.serving import ServeSettings
        from gigabatch.pipeline.serving.http.app import create_app
        from gigabatch.pipeline.serving.metrics import Metrics
        from gigabatch.pipeline.serving.swap import Slot

        self.metrics, self.slot = Metrics(), Slot(served)
        self.metrics.answering(0, served is not None)
        self.app = create_app(self.slot, settings or ServeSettings(), self.metrics, token)

    def __call__(self, method: str, path: str, **request: Any) -> httpx.Response:
        return asyncio.run(self._call(method, path, **request))

    def post(self, path: str, content: Any) -> httpx.Response:
        """JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self("POST", path, content=body, headers={"content-type": "application/json"})

    async def _call(self, method: str, path: str, **request: Any) -> httpx.Response:
        import httpx

        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
            return await client.request(method, path, **request)


@pytest.fixture(scope="session")
def caller(served):
    return Caller(served)


@pytest.fixture(scope="session")
def make_caller():
    return Caller


@pytest.fixture(scope="module")
def server(run, tmp_path_factory):
    """A server that tests of one file share."""
    from tests.pipeline.serving.server_process import Server

    settings = {"max_body_bytes": 4096, "timeout_seconds": 2.0}
    made = Server([run], tmp_path_factory.mktemp("log") / "log", **settings)
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def second(frame, tmp_path_factory):
    """A run of other weights."""
    from tests.pipeline.serving.small_bundles import random_bundle, write_run

    return write_run(tmp_path_factory.mktemp("swapped") / "second", random_bundle(frame, seed=1), frame)


@pytest.fixture
def home(run, second, tmp_path):
    """runs/<name>/ with two runs, `current` on the first."""
    from gigabatch.pipeline.store.files import atomic_symlink

    shutil.copytree(run, tmp_path / "first", symlinks=True)
    shutil.copytree(second, tmp_path / "second", symlinks=True)
    atomic_symlink(Path("first"), tmp_path / "current")
    return tmp_path
