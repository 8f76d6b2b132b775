"""The pool of cuDF and CuPy, driven with stand-ins for RMM and the driver: no GPU is here."""

import sys
import weakref
from types import ModuleType, SimpleNamespace

import pytest

from gigabatch.features.engines import rapids_memory
from gigabatch.features.engines.rapids_memory import KEEP_ALL, SWITCH, frames_at_work, use_pool

FREE = 80 * 2**30


class Default:
    """Stands for rmm.mr.CudaMemoryResource."""


class Own(Default):
    """A resource that a user set, even one that derives from the default."""


class Device:
    """Records what is asked of RMM and the driver; memory is `held` by arrays or `kept` by the pool."""

    def __init__(self, current):
        self.current, self.calls, self.threshold, self.kept, self.held = current, [], 0, 0, 0

    def set_attribute(self, pool, attribute, value):
        assert (pool, attribute) == (77, "threshold")
        self.threshold = value

    def set_resource(self, resource):
        self.current = resource
        self.calls.append("set")

    def trim(self, pool, size):
        assert (pool, size) == (77, 0)
        assert self.calls[-1] == "synchronize"
        self.kept = 0

    def buffer(self, size):
        """Memory that is held until nobody has the buffer."""
        self.held += size
        made = Buffer()
        weakref.finalize(made, self.free, size)
        return made

    def free(self, size):
        self.held, self.kept = self.held - size, self.kept + size


class Buffer:
    """Stands for rmm.DeviceBuffer."""


@pytest.fixture
def device(monkeypatch):
    made = Device(Default())
    runtime = SimpleNamespace(
        getDevice=lambda: 0, deviceGetDefaultMemPool=lambda number: 77 + number, memGetInfo=lambda: (FREE, 2 * FREE),
        memPoolSetAttribute=made.set_attribute, cudaMemPoolAttrReleaseThreshold="threshold",
        deviceSynchronize=lambda: made.calls.append("synchronize"), memPoolTrimTo=made.trim,
    )  # fmt: skip
    modules = {
        "rmm": SimpleNamespace(
            mr=SimpleNamespace(
                CudaMemoryResource=Default, get_current_device_resource=lambda: made.current,
                set_current_device_resource=made.set_resource,
                CudaAsyncViewMemoryResource=lambda handle: ("view", handle),
                LimitingResourceAdaptor=lambda upstream, allocation_limit: ("capped", upstream, allocation_limit),
            ),
            DeviceBuffer=lambda size: made.buffer(size),
        ),
        "cuda": ModuleType("cuda"), "cuda.bindings": ModuleType("cuda.bindings"),
        "cuda.bindings.runtime": SimpleNamespace(cudaMemPool_t=lambda handle: ("handle", handle)),
        "cupy": SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)),
        "cupy.cuda": SimpleNamespace(runtime=runtime),
    }  # fmt: skip
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(rapids_memory._Pool, "handle", None)
    monkeypatch.delenv(SWITCH, raising=False)
    return made


def test_one_capped_pool_is_made_once(device):
    assert use_pool()
    assert device.current == ("capped", ("view", ("handle", 77)), FREE * 4 // 5)
    assert (device.threshold, device.kept, device.held) == (KEEP_ALL, FREE // 8, 0)
    assert use_pool()
    assert device.calls == ["set"]


def test_a_users_own_resource_stays(device):
    device.current = own = Own()
    assert not use_pool()
    assert (device.current, device.calls, device.threshold) == (own, [], 0)
    with frames_at_work():
        pass
    assert device.calls == []


def test_the_pool_can_be_switched_off(device, monkeypatch):
    monkeypatch.setenv(SWITCH, "off")
    assert not use_pool()
    assert device.calls == []
    monkeypatch.setenv(SWITCH, "on")
    with pytest.raises(ValueError, match="GIGABATCH_RMM='on': must be auto or off"):
        use_pool()


def test_a_stage_gives_back_what_no_array_holds_and_the_next_one_keeps_it_again(device):
    with frames_at_work():  # of the first stage, which imports the engine
        assert use_pool()
    assert (device.threshold, device.kept) == (0, 0)
    with frames_at_work():
        assert device.threshold == KEEP_ALL
        device.kept = 5
    assert (device.threshold, device.kept) == (0, 0)


def test_a_stage_that_fails_gives_back_too(device):
    use_pool()
    with pytest.raises(ZeroDivisionError), frames_at_work():
        raise ZeroDivisionError
    assert (device.threshold, device.kept) == (0, 0)


def test_the_work_of_a_stage_has_the_pool_and_what_follows_has_the_memory(device, tmp_path):
    """`open_cluster` is where the features and the encode stage work; training comes after it."""
    from gigabatch.pipeline.config.config import ClusterSettings
    from gigabatch.pipeline.stages.cluster import open_cluster

    use_pool()
    for _ in range(2):
        with open_cluster("none", ClusterSettings(), tmp_path, "cudf"):
            assert device.threshold == KEEP_ALL
            device.kept = 5
        assert (device.threshold, device.kept) == (0, 0)


def test_without_cudf_nothing_is_asked_of_a_device(monkeypatch):
    monkeypatch.setattr(rapids_memory._Pool, "handle", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with frames_at_work():
        pass
