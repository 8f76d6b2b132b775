"""One pool of device memory for cuDF and CuPy, held while data frames are at work and given back before training.

Without a pool RMM calls `cudaMalloc` for every column, which waits for the device each time. The pool is the driver's
own (`cudaMallocAsync`, the device's default one), not RMM's `PoolMemoryResource`: that one keeps whole what it once
took as long as one row of it lives, while the driver's gives every unused page back when it is asked to, so that packed
rows can stay where encode left them and torch's allocator gets the rest. To allocate from it is also allowed to another
thread while a CUDA graph is captured; `cudaMalloc` is not. CuPy needs nothing: `import cudf` makes RMM its allocator.

None of this has run on a GPU yet; tests drive it with stand-ins, and check names and signatures on the real packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH = "GIGABATCH_RMM"  # environment variable: `off` leaves memory as RMM has it
LARGEST_SHARE = 0.8  # of the memory that was free; the rest is for contexts, libraries and torch's first tensors
FIRST_SHARE = 0.125  # taken at once, so that the first partitions find it mapped
KEEP_ALL = 2**64 - 1  # the driver's threshold of memory that it keeps: all


class _Pool:
    """handle: of the driver's pool, once cuDF takes its memory from there."""

    handle: int | None = None


def use_pool() -> bool:
    """Let cuDF and CuPy take their memory from one pool, from now on, once a process.

    A user's own choice stays: whatever was set with `rmm.mr.set_current_device_resource`, or `GIGABATCH_RMM=off`.

    Returns
    -------
    bool
        Whether the pool is in use.

    Raises
    ------
    ValueError
        Where `GIGABATCH_RMM` is neither `auto` nor `off`.

    Examples
    --------
    >>> import gigabatch.features.engines.cudf  # doctest: +SKIP
    >>> from gigabatch.features.engines.rapids_memory import use_pool
    >>> use_pool()  # doctest: +SKIP
    True
    """
    wish = os.environ.get(SWITCH, "auto")
    if wish not in ("auto", "off"):
        raise ValueError(f"{SWITCH}={wish!r}: must be auto or off.")
    if _Pool.handle is not None or wish == "off":
        return _Pool.handle is not None
    import rmm
    from cuda.bindings.runtime import cudaMemPool_t
    from cupy.cuda import runtime

    if type(rmm.mr.get_current_device_resource()) is not rmm.mr.CudaMemoryResource:  # RMM's own default
        return False
    handle = runtime.deviceGetDefaultMemPool(runtime.getDevice())
    free, _ = runtime.memGetInfo()
    pool = rmm.mr.CudaAsyncViewMemoryResource(cudaMemPool_t(handle))
    capped = rmm.mr.LimitingResourceAdaptor(pool, int(LARGEST_SHARE * free))
    runtime.memPoolSetAttribute(handle, runtime.cudaMemPoolAttrReleaseThreshold, KEEP_ALL)
    rmm.mr.set_current_device_resource(capped)
    rmm.DeviceBuffer(size=int(FIRST_SHARE * free))  # freed at once, and kept by the pool
    _Pool.handle = handle
    return True


@contextmanager
def frames_at_work() -> Iterator[None]:
    """For a `with` block of a stage: the pool keeps its memory within, and gives back at the end what no array holds.

    Without cuDF it does nothing. Examples: `pipeline/stages/cluster.py:open_cluster`.
    """
    _keep(KEEP_ALL)
    try:
        yield
    finally:
        _keep(0)


def _keep(most: int) -> None:
    """How much unused memory the pool keeps from now on, in bytes; more than that goes back to the device."""
    if _Pool.handle is None:
        return
    runtime = sys.modules["cupy"].cuda.runtime
    runtime.memPoolSetAttribute(_Pool.handle, runtime.cudaMemPoolAttrReleaseThreshold, most)
    if not most:
        runtime.deviceSynchronize()  # what is freed in a stream's order counts as used until the stream is there
        runtime.memPoolTrimTo(_Pool.handle, 0)
