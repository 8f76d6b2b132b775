"""What every test shares: the GPU gate, the sample data, and what a machine without all packages leaves out."""

import contextlib
import os
from pathlib import Path

# Before torch is loaded: what waits sleeps, as of the command line; and of several test processes each has one core,
# whose threads would wait for each other (tests of threads ask for two themselves).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a Triton kernel is declared, so before whichever test file imports one first: without a GPU they run in
    # Triton's interpreter, on CPU tensors. Processes that compile them set it to 0.
    os.environ["TRITON_INTERPRET"] = "1"

from tests import left_out
from tests.devices import DEVICE_FILTERS, libraries_warn_in_their_own_name
from tests.examples import THOROUGH, examples
from tests.left_out import (  # noqa: F401
    pytest_addoption,
    pytest_collection_finish,
    pytest_ignore_collect,
    pytest_make_collect_report,
    pytest_report_collectionfinish,
    pytest_report_header,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure(config):
    left_out.pytest_configure(config)  # before hypothesis, for which it may stand in
    from hypothesis import HealthCheck, settings

    # `make test` and CI try the same examples each time, so that what passed once passes again; `make test-thorough`
    # tries new ones, and four times as many. Nothing is asked of their time: the first call of a compiled loop compiles
    # it, and machines are shared.
    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("gigabatch", derandomize=not THOROUGH, max_examples=examples(100), **untimed)
    settings.load_profile("gigabatch")


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.filterwarnings(*DEVICE_FILTERS), append=False)  # a test's own go first
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with libraries_warn_in_their_own_name() if "gpu" in item.keywords else contextlib.nullcontext():
        return (yield)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def any_device(request) -> str:
    """The test runs on the CPU everywhere, and on a GPU too where there is one."""
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """What a test draws without a seed of its own does not depend on which tests ran before it in this process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of sample data beside a developer's checkout; it is not part of the product."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"sample data {SHARED_DATA} is not here")
    return SHARED_DATA
