"""The number format of a model's matrix products: float32, or bfloat16 or float16 where that is faster.

Weights, gradients, optimizer state and the loss are float32 either way; autocast only casts what enters a product.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from gigabatch.models.errors import require_known
from gigabatch.models.optimizers.processor import cpu_precision

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
REDUCTIONS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
TENSOR_CORES = (7, 0)  # the first compute capability whose GPUs multiply faster in float16


class Precision(NamedTuple):
    """A dtype, torch.float32, torch.bfloat16 or torch.float16, and why it was chosen, for a log line.

    float16 asks for a `LossScale`.
    """

    dtype: torch.dtype
    reason: str

    @property
    def name(self) -> str:
        """float32, bfloat16 or float16."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self, device: torch.device | str) -> AbstractContextManager[None]:
        """The context that a forward pass runs in.

        The cache of cast weights is off: a weight is used once a pass, and a CUDA graph must cast it at each replay.
        """
        low = self.dtype != torch.float32
        return torch.autocast(
            torch.device(device).type, dtype=self.dtype if low else None, enabled=low, cache_enabled=False
        )


def choose_precision(setting: str, device: torch.device | str) -> Precision:
    """The precision that `setting`, one of `PRECISIONS`, means on a device.

    auto: on a GPU bfloat16 where it computes in it (and does not only emulate it), else float16 where it has tensor
    cores (T4, V100), else float32. bfloat16 on a Linux machine whose processor
    multiplies faster in it: with AMX, or AMD's with AVX-512 instructions for it. Intel's AVX-512 ones are slower than
    its float32 (docs/training.md), else float32. A setting of its own is taken whatever the hardware has.
    """
    require_known("precision", [setting], PRECISIONS)
    found, reason = _hardware(torch.device(device))
    if setting != "auto":
        return Precision(getattr(torch, setting), f"as asked; {reason}")
    return Precision(found, reason)


@contextmanager
def full_reductions() -> Iterator[None]:
    """Within the block cuBLAS adds up the parts of a product of half precision in float32.

    By default it may round them to the product's type on the way; a weight's gradient is a sum over all rows of a
    batch. What was set before is set again.
    """
    settings: Any = torch.backends.cuda.matmul
    before = {}
    for name in REDUCTIONS:
        before[name] = getattr(settings, name)
        if (split_k := getattr(settings, f"{name}_split_k", None)) is not None:  # torch has it from 2.10 on
            before[name] = before[name], split_k
    try:
        for name in REDUCTIONS:
            setattr(settings, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


def _hardware(device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype in which the device is fastest, and why in words."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        with torch.cuda.device(device):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return torch.bfloat16, f"{name} computes in bfloat16"
        if torch.cuda.get_device_capability(device) >= TENSOR_CORES:
            return torch.float16, f"{name} does not compute in bfloat16 and has tensor cores for float16"
        return torch.float32, f"{name} does not compute in bfloat16 and has no tensor cores"
    name, reason = cpu_precision()
    return getattr(torch, name), reason
