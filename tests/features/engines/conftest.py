"""Where Triton kernels run, and the stand-ins of cuDF and CuPy."""

import importlib
import sys

import pytest

from gigabatch.features.engines import frame as engine_frame
from tests.features.triton_device import triton_device  # noqa: F401

ENGINES = ("cudf", "cudf_plain")


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in's module; what imports cuDF or CuPy gets them from it."""
    from tests.features.engines import device_stand_in

    monkeypatch.setitem(sys.modules, "cudf", device_stand_in.cudf)
    monkeypatch.setitem(sys.modules, "cupy", device_stand_in.cupy)
    monkeypatch.setitem(sys.modules, "pylibcudf", device_stand_in.pylibcudf)
    for name in ENGINES:
        monkeypatch.delitem(sys.modules, f"gigabatch.features.engines.{name}", raising=False)
        monkeypatch.delattr(f"gigabatch.features.engines.{name}", raising=False)
    monkeypatch.setattr(engine_frame, "_cudf", "cudf")
    yield device_stand_in
    for name in ENGINES:
        sys.modules.pop(f"gigabatch.features.engines.{name}", None)


@pytest.fixture(params=ENGINES)
def engine(request, stand_in, monkeypatch):
    """One of the cuDF engines on the stand-in, its Triton launches counted."""
    from gigabatch.features.engines import row_loops_cuda
    from gigabatch.features.exact import loops_cuda

    found = importlib.import_module(f"gigabatch.features.engines.{request.param}")
    assert stand_in.count_launches(monkeypatch, loops_cuda, row_loops_cuda)
    return found
