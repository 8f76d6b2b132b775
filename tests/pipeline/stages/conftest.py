"""Workers of a cluster of this machine that start at once."""

import pytest

from tests.models.parallel.together import PRELOADED


@pytest.fixture(scope="module")
def workers_of_one_import():
    """Workers that this process starts are forks of one that has imported the package, which takes seconds."""
    import dask
    from distributed.utils import get_mp_context

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload([*PRELOADED, "distributed", "gigabatch.pipeline.stages.stages"])
        yield
