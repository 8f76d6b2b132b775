"""Where the tasks of the features and encode stages run: in this process, or on a Dask cluster.

`cluster: none` runs them in threads of this process, `local` in processes of this machine, `cuda` in one process a GPU,
and an address such as `tcp://host:8786` on the workers of a scheduler that runs already. Results do not depend on it.
Tasks hand each other files, so every worker must see the artifacts' folder under the same path.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gigabatch.features.engines.rapids_memory import LARGEST_SHARE, frames_at_work
from gigabatch.features.workflow.fit import threads
from gigabatch.own_code import OwnCodeError, import_all
from gigabatch.pipeline.config.config import ClusterSettings
from gigabatch.pipeline.machine import available_cores
from gigabatch.pipeline.store.keys import ALL, source_hash

log = logging.getLogger(__name__)
CONNECT_SECONDS = 15  # for a scheduler to answer
WORKER_SECONDS = 60  # for a first worker, which may have been started just now, to join it
AHEAD = 2  # tasks a worker thread that are handed out before the first result is taken


class ClusterError(ValueError):
    """A cluster cannot be used; the message says which, why, and what to do."""


class Cluster:
    """Threads of this process. Subclass `DaskCluster` sends the same tasks to workers."""

    distributed = False

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or available_cores()

    @property
    def scheduler(self) -> Any:
        """For Dask's `compute(scheduler=...)`: no more partitions at once than there are threads."""
        return threads(self.threads)

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        """The function's results on each task, in order. Tasks may run at once."""
        import dask  # here, as it takes long to load

        calls = [dask.delayed(function, pure=False)(task) for task in tasks]
        return list(dask.compute(*calls, scheduler=self.scheduler))  # by name Dask would load its cluster's client

    def in_turn(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """The same results one by one, in order; only a few are made before they are asked for."""
        return map(function, tasks)


class DaskCluster(Cluster):
    """The workers of a Dask scheduler. A task whose worker is lost runs again on another one."""

    distributed = True

    def __init__(self, client: Any) -> None:
        self.client = client

    @property
    def scheduler(self) -> Any:
        return self.client

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return self.client.gather(self.client.map(function, list(tasks), pure=False))

    def in_turn(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        waiting: deque[Any] = deque(tasks)
        started: deque[Any] = deque()
        limit = AHEAD * max(sum(self.client.nthreads().values()), 1)
        while waiting or started:
            while waiting and len(started) < limit:
                started.append(self.client.submit(function, waiting.popleft(), pure=False))
            yield started.popleft().result()

    def require_folder(self, folder: Path) -> None:
        """`ClusterError` unless every worker sees this process's folder."""
        probe = folder.absolute() / f".probe-{secrets.token_hex(8)}"
        probe.touch()
        try:
            # A worker that dies meanwhile answers with an error, and others do its tasks.
            told = self.client.run(os.path.exists, str(probe), on_error="return")
            blind = [address for address, sees in told.items() if not sees]
        finally:
            probe.unlink()
        if blind:
            raise ClusterError(
                f"cluster: worker(s) {', '.join(blind)} do not see {folder.absolute()}. Workers hand each other files: "
                "set `artifacts` to a folder that all of them share under one path."
            )

    def require_same_sources(self) -> None:
        """`ClusterError` unless every worker has this process's gigabatch: artifacts are kept by the key of this one's
        sources, whoever computes them."""
        own = own_sources()
        told = self.client.run(own_sources, on_error="return")
        # Of one that dies meanwhile nothing is known; of another version this very function may not be found.
        others = [address for address, found in told.items() if found != own and not isinstance(found, OSError)]
        if others:
            raise ClusterError(
                f"cluster: worker(s) {', '.join(others)} have another gigabatch than this process. Install this one "
                "there, and start them again: a worker goes on with what it has loaded."
            )


@functools.cache
def own_sources() -> str:
    """Hash of gigabatch as this process has it: of the time when it was first asked."""
    return source_hash(ALL)


@contextlib.contextmanager
def _lost(name: str, client: Any) -> Iterator[None]:
    """Tell of workers, or of the scheduler, that are lost within the block: also where a preprocessor or a workflow is
    fitted there, which asks Dask itself."""
    from distributed import KilledWorker

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"cluster: a task was tried on several workers and each of them died ({error}). Most often the worker's "
            "memory limit is too small: raise cluster_settings.memory_limit or lower rows_per_part."
        ) from error
    except Exception as error:
        if not _tells_of_lost_scheduler(error, client):
            raise
        raise ClusterError(
            f"cluster: the scheduler of cluster={name} has ended, or cannot be reached any more "
            f"({' '.join(str(error).split())}). Start it again, then run again: stages that are done stay."
        ) from error


def _tells_of_lost_scheduler(error: Exception, client: Any) -> bool:
    """Whether Dask has raised the error since the scheduler is gone; a task's own error is none such."""
    from concurrent.futures import CancelledError

    from distributed.client import ClosedClientError  # of what is handed out once the client has given up
    from distributed.comm import CommClosedError

    if isinstance(error, CommClosedError | ClosedClientError):
        return True
    if isinstance(error, CancelledError):  # a future's, of which Dask's own are some
        return type(error) is not CancelledError or client.status != "running"
    # What is asked of a scheduler meanwhile: a connection that times out, or is no attribute any more.
    of_connection = isinstance(error, AttributeError) or (isinstance(error, OSError) and error.errno is None)
    return of_connection and client.status != "running"


@contextlib.contextmanager
def open_cluster(
    name: str, settings: ClusterSettings, folder: Path, engine: str = "pandas", imports: Sequence[str] = ()
) -> Iterator[Cluster]:
    """The cluster of that name (see the module's docstring), closed at the end of the block.

    folder: where tasks will read and write; every worker must see it. engine: of the tasks' frames; on a GPU only one
    task holds a partition at a time. imports: of the configuration, which every worker imports too.
    """
    on_gpu = engine.startswith("cudf")
    if name == "none":
        with frames_at_work():
            yield Cluster(1 if on_gpu else settings.threads)
        return
    if name == "local" and on_gpu:
        raise ClusterError(
            "cluster: the workers of `local` would share one GPU, and each would hold a partition on it. With "
            "engine=cudf use cluster=none, or cluster=cuda for several GPUs."
        )
    from distributed import Client

    with contextlib.ExitStack() as stack:
        if name.startswith("tcp://"):
            try:
                client = stack.enter_context(Client(name, timeout=CONNECT_SECONDS, set_as_default=False))
            except (OSError, TimeoutError) as error:
                raise ClusterError(
                    f"cluster: no Dask scheduler answers at {name} within {CONNECT_SECONDS} seconds ({error}). Start "
                    "one with `dask scheduler`, correct the address, or use cluster=local."
                ) from error
        else:
            stack.enter_context(_dask_is_quiet())
            made = stack.enter_context(_ended(_cuda_cluster(settings) if name == "cuda" else _local_cluster(settings)))
            client = stack.enter_context(Client(made, set_as_default=False))
        try:
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError as error:
            raise ClusterError(
                f"cluster: the scheduler at {name} has had no workers for {WORKER_SECONDS} seconds. Start some with "
                f"`dask worker {name}`."
            ) from error
        crowded = [address for address, threads in client.nthreads().items() if threads > 1]
        if on_gpu and crowded:
            raise ClusterError(
                f"cluster: worker(s) {', '.join(crowded)} run several tasks at once, and with engine=cudf each would "
                "hold a partition on the same GPU. Start them with `--nthreads 1`, one for each GPU."
            )
        if imports:
            try:
                client.register_plugin(_imports_plugin(tuple(imports)))
            except OwnCodeError as error:
                raise ClusterError(
                    f"cluster: a worker cannot import a file of yours, which it must see: {error}"
                ) from error
        cluster = DaskCluster(client)
        with _lost(name, client):
            if name.startswith("tcp://"):  # the others were started by this process
                cluster.require_same_sources()
            cluster.require_folder(folder)
            yield cluster


@contextlib.contextmanager
def _dask_is_quiet() -> Iterator[None]:
    """Of Dask's own lines only warnings, unless its configuration says something of `logging`: a cluster of this
    machine quiets the handlers of Dask alone, and where a program has a handler of its own there is none."""
    import dask

    logger = logging.getLogger("distributed")
    level = logger.level
    if dask.config.get("logging", None) is None:
        logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _ended(made: Any) -> Iterator[Any]:
    """A cluster of this machine, whose processes are ended with the block."""
    try:
        yield made
    finally:
        try:
            made.close()
        except TimeoutError:  # Dask waits some seconds for workers that it has killed; all that they made is there
            log.warning("cluster: this machine is so busy that workers have not ended in time; they were killed.")


def _imports_plugin(imports: tuple[str, ...]) -> Any:
    """A plugin by which workers import a user's code, those too that join later; what has not changed is not run again
    (`import_all`)."""
    from distributed import WorkerPlugin

    class Imports(WorkerPlugin):
        name = f"gigabatch-imports-{secrets.token_hex(4)}"  # another run's workers keep what it imported

        def setup(self, worker: Any) -> None:
            import_all(imports)

    return Imports()


def _local_cluster(settings: ClusterSettings) -> Any:
    from distributed import LocalCluster

    with _workers_started():
        return LocalCluster(
            n_workers=settings.workers,
            threads_per_worker=settings.threads_per_worker,
            memory_limit=settings.memory_limit,
            dashboard_address=None,
            # Without a dashboard, too, it listens: at a port of its own, as another cluster may have that of Dask.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        )


@contextlib.contextmanager
def _workers_started() -> Iterator[None]:
    """Tell what kept the workers of this machine from being started, of which Dask's own error says no more than that
    they were not."""
    try:
        yield
    except RuntimeError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if type(cause) is not RuntimeError:
            raise ClusterError(
                f"cluster: {type(cause).__name__}: {' '.join(str(cause).split())}. So its workers could not be "
                "started. Mend what it says and run again, or use cluster=none."
            ) from error
        # Dask starts a worker again only once it has answered.
        raise ClusterError(
            f"cluster: a worker ended while it was started ({error} {cause}). Run again; where this comes back, start "
            "fewer (cluster_settings.workers). A script that makes one needs `if __name__ == '__main__':` around its "
            "work, since each worker imports it."
        ) from error


def _cuda_cluster(settings: ClusterSettings) -> Any:
    if importlib.util.find_spec("dask_cuda") is None:
        raise ClusterError(
            "cluster: cuda needs the package dask-cuda, which is not installed. Use environment.yml, or cluster=local."
        )
    from dask_cuda import LocalCUDACluster

    arguments = cuda_arguments(settings)
    with _workers_started():
        return LocalCUDACluster(**arguments)


def cuda_arguments(settings: ClusterSettings) -> dict[str, Any]:
    """For dask-cuda's LocalCUDACluster: a worker a GPU, which holds one partition, and one capped pool for it.

    Raises `ClusterError` where more threads than one a worker are asked for: each would hold a partition on its GPU.
    """
    if (settings.threads_per_worker or 1) > 1:
        raise ClusterError(
            "cluster: cuda runs one task a GPU at a time, and cluster_settings.threads_per_worker asks for "
            f"{settings.threads_per_worker}. Leave it out, and set cluster_settings.workers to the number of GPUs."
        )
    return {
        "n_workers": settings.workers,  # None: one for each of CUDA_VISIBLE_DEVICES
        "threads_per_worker": 1,
        "memory_limit": settings.memory_limit,
        "device_memory_limit": None,  # spills Dask's own results, and tasks give each other files
        "rmm_async": True,  # the driver's pool, as in one process: features/engines/rapids_memory.py
        "rmm_maximum_pool_size": LARGEST_SHARE,
        "dashboard_address": None,
    }
