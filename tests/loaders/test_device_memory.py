"""What counts as free on a GPU, on stand-ins for torch's, CuPy's and RMM's counts, and that nobody counts otherwise."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gigabatch
from gigabatch.loaders.device_memory import free_device_memory, total_device_memory

FREE, RESERVED, ALLOCATED = 1000, 700, 300


@pytest.fixture
def gpu(monkeypatch):
    """Counts of a GPU whose memory is held by torch, and neither CuPy nor RMM imported."""
    state = SimpleNamespace(backend="native", free=FREE)
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: (state.free, 10_000))
    monkeypatch.setattr(cuda, "memory_reserved", lambda device: RESERVED)
    monkeypatch.setattr(cuda, "memory_allocated", lambda device: ALLOCATED)
    monkeypatch.setattr(cuda, "get_allocator_backend", lambda: state.backend)
    for name in ("cupy", "rmm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return state


def test_what_torch_keeps_of_tensors_that_are_gone_is_free(gpu):
    """G7: it counted as used, so the second training of a process had its rows on the host."""
    assert free_device_memory("cuda:0") == FREE + RESERVED - ALLOCATED


def test_cupys_pool_gives_its_blocks_back_first(gpu, monkeypatch):
    class Device:
        def __init__(self, index):
            assert index == 0

        def __enter__(self):
            return self

        def __exit__(self, *exit):
            return None

    def free_all_blocks():
        gpu.free += 50

    pool = SimpleNamespace(free_all_blocks=free_all_blocks)
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=Device), get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert free_device_memory("cuda:0") == FREE + 50 + RESERVED - ALLOCATED


class Pool:
    upstream_mr = None

    def pool_size(self):
        return 5000


class Counts:
    upstream_mr = Pool()
    allocation_counts = SimpleNamespace(current_bytes=1200)


@pytest.mark.parametrize(("resource", "free"), [(Counts(), 3800), (Pool(), 0), (SimpleNamespace(), 0)])
def test_the_free_part_of_rmms_pool_counts_where_torch_allocates_from_it(gpu, monkeypatch, resource, free):
    mr = SimpleNamespace(
        get_current_device_resource=lambda: resource, PoolMemoryResource=Pool, StatisticsResourceAdaptor=Counts
    )
    monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=mr))
    assert free_device_memory("cuda:0") == FREE + RESERVED - ALLOCATED  # torch has memory of its own
    gpu.backend = "pluggable"
    assert free_device_memory("cuda:0") == FREE + free


def test_rmm_has_these_names():
    """Where RMM is installed; it is imported without a GPU."""
    mr = pytest.importorskip("rmm").mr
    assert hasattr(mr.PoolMemoryResource, "pool_size")
    assert hasattr(mr.StatisticsResourceAdaptor, "allocation_counts")
    assert hasattr(mr.StatisticsResourceAdaptor, "upstream_mr")


def test_nobody_else_asks_the_driver_and_no_whole_table_is_page_locked():
    """torch's page-locked allocations are rounded up to a power of two: 40 GB would take 64."""
    package = Path(gigabatch.__file__).parent
    paths = [path for folder in package.iterdir() if folder.is_dir() for path in folder.resolve().rglob("*.py")]
    paths += list((package.parent / "benchmarks").glob("*.py"))
    assert len(paths) > 200
    asking, locking = [], []
    for path in paths:
        text = path.read_text()
        named = any(name in text for name in ("mem_get_info", "memGetInfo", "pin_memory"))
        for node in ast.walk(ast.parse(text if named else "")):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            name = node.arg if isinstance(node, ast.keyword) else name
            asking += [path.name] if name in ("mem_get_info", "memGetInfo") else []
            locking += [path.name] if name == "pin_memory" else []
    # probe.py: what all programs use, before and after; rapids_memory.py: how large the pool may be, at its making.
    assert set(asking) == {"device_memory.py", "probe.py", "rapids_memory.py"}
    # One batch of a slot; blocks of `COPY_BYTES` on the way to a GPU; two of `WRITE_BYTES` on the way from one.
    assert sorted(locking) == ["host_blocks.py", "loader.py", "residency.py"]


@pytest.mark.gpu
def test_a_tensor_that_is_gone_leaves_as_much_as_before():
    before = free_device_memory("cuda")
    kept = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    assert before - free_device_memory("cuda") >= 1 << 28
    del kept
    assert abs(before - free_device_memory("cuda")) < 1 << 26


def test_all_memory_is_what_the_driver_says(gpu):
    assert total_device_memory("cuda:0") == 10_000
