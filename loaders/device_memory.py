"""How much memory of a GPU can be had, whoever holds what is not used: the driver, torch, CuPy or RMM."""

from __future__ import annotations

import sys
from typing import Any

import torch


def free_device_memory(device: torch.device | str) -> int:
    """Bytes that torch can allocate on a CUDA device now.

    What the driver has left, and what torch's allocator keeps of tensors that are gone. CuPy's own pool, which torch
    cannot take from, gives its free blocks back to the driver first. Where torch allocates from RMM (cuDF's memory
    manager), the free part of RMM's pool counts, as far as RMM's statistics tell what is used of it.

    Parameters
    ----------
    device : torch.device or str
        A CUDA device.

    Returns
    -------
    int
        Bytes, of which one allocation may get less: free memory is in pieces.
    """
    place = torch.device(device)
    if (cupy := sys.modules.get("cupy")) is not None:
        with cupy.cuda.Device(place.index):  # None: the current one
            cupy.get_default_memory_pool().free_all_blocks()
    free = int(torch.cuda.mem_get_info(place)[0])
    if torch.cuda.get_allocator_backend() == "pluggable":  # it has no counts of its own
        return free + _free_of_pool(sys.modules.get("rmm"))
    return free + int(torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place))


def total_device_memory(device: torch.device | str) -> int:
    """Bytes of memory that a CUDA device has, whoever holds them."""
    return int(torch.cuda.mem_get_info(torch.device(device))[1])


def _free_of_pool(rmm: Any) -> int:
    """Bytes of the pool of RMM's current resource that nobody uses; 0 where there is none, or no count of them.

    Resources lie on top of each other: a `StatisticsResourceAdaptor` counts for the `PoolMemoryResource` below it.
    """
    if rmm is None:
        return 0
    size = used = None
    resource = rmm.mr.get_current_device_resource()
    while resource is not None:
        if isinstance(resource, rmm.mr.StatisticsResourceAdaptor):
            used = resource.allocation_counts.current_bytes
        if isinstance(resource, rmm.mr.PoolMemoryResource):
            size = resource.pool_size()
        resource = getattr(resource, "upstream_mr", None)
    return 0 if size is None or used is None else max(int(size - used), 0)
