"""What every test shares: the GPU gate, the sample data, and what a machine without all packages leaves out."""

import importlib.util
import os
from pathlib import Path

# Before torch is loaded: what waits sleeps, as of the command line; and of several test processes each has one core,
# whose threads would wait for each other (tests of threads ask for two themselves).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.examples import THOROUGH, examples

# `make test` and CI try the same examples each time, so that what passed once passes again; `make test-thorough` tries
# new ones, and four times as many. Nothing is asked of their time: the first call of a compiled loop compiles it, and
# machines are shared.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gigabatch", derandomize=not THOROUGH, max_examples=examples(100), **UNTIMED)
settings.load_profile("gigabatch")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# The offline GPU box lacks some packages (make gpu-check installs nothing): folders whose code needs them are left out
# there, and the report's first lines say so.
NEEDS = {
    "pipeline": ("pydantic", "ruamel.yaml", "safetensors", "typer"),
    "features": ("dask", "numba", "xxhash"),
    "pipeline/serving": ("fastapi", "httpx", "prometheus_client", "schemathesis", "uvicorn", "faiss"),
    "pipeline/export": ("onnx", "onnxruntime", "onnxscript"),
    "pipeline/embedding": ("faiss",),
    "models/test_retrieval.py": ("faiss",),
}


def _missing(packages):
    def absent(name):
        try:
            return importlib.util.find_spec(name) is None
        except ModuleNotFoundError:  # the parent of a dotted name
            return True

    return [name for name in packages if absent(name)]


LEFT_OUT = {folder: missing for folder, packages in NEEDS.items() if (missing := _missing(packages))}
if "features" in LEFT_OUT:
    LEFT_OUT.setdefault("pipeline", LEFT_OUT["features"])
collect_ignore = list(LEFT_OUT)


def pytest_report_header():
    return [f"LEFT OUT: tests/{folder} needs {', '.join(names)}" for folder, names in LEFT_OUT.items()]


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


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
