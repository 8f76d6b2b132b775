"""Memory that is used again: large tensors of a step, taken and given back by the code that knows when they are done.

On a CPU a tensor of some ten megabytes comes as new pages each time, and clearing those costs about as much as what a
step does with them. On other devices torch keeps memory itself, so a pool hands out ordinary tensors there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_FREE = 16  # buffers that a pool keeps; a step of a few layers needs about two a layer


class BufferPool:
    """Uninitialised tensors, in memory that was given back where one is large enough."""

    def __init__(self) -> None:
        self._free: list[torch.UntypedStorage] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of any content. Whoever takes it may give it back, and must not use it afterwards."""
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        fitting = [storage for storage in self._free if num_bytes <= storage.nbytes() <= 2 * num_bytes]
        if not fitting:
            return torch.empty(shape, dtype=dtype)
        best = min(fitting, key=lambda storage: storage.nbytes())
        self._free = [storage for storage in self._free if storage is not best]
        return torch.empty(0, dtype=dtype).set_(best, 0, shape)  # type: ignore[call-overload]

    def give(self, tensor: Tensor) -> None:
        """Take back the memory of a tensor from `take`, or of a view of one."""
        if tensor.device.type == "cpu":
            self._free = [*self._free[-MAX_FREE + 1 :], tensor.untyped_storage()]

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, ()  # copied, or saved with its module, a pool is empty
