"""The number format of a model's matrix products: float32, or bfloat16 where that is faster.

Weights, gradients, optimizer state and the loss are float32 either way; autocast only casts what enters a product.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch

from gigabatch.models.errors import require_known

PRECISIONS = ("auto", "float32", "bfloat16")
CPUINFO = Path("/proc/cpuinfo")


class Precision(NamedTuple):
    """A dtype, torch.float32 or torch.bfloat16, and why it was chosen, for a log line."""

    dtype: torch.dtype
    reason: str

    @property
    def name(self) -> str:
        """float32 or bfloat16."""
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

    auto: bfloat16 on a GPU that computes in it (not one that only emulates it), and on a Linux machine whose processor
    multiplies faster in it: with AMX, or AMD's with AVX-512 instructions for it. Intel's AVX-512 ones are slower than
    its float32 (docs/training.md). Else float32. A setting of its own is taken whatever the hardware has.
    """
    require_known("precision", [setting], PRECISIONS)
    found, reason = _hardware(torch.device(device))
    if setting != "auto":
        return Precision(getattr(torch, setting), f"as asked; {reason}")
    return Precision(torch.bfloat16 if found else torch.float32, reason)


def _hardware(device: torch.device) -> tuple[bool, str]:
    """Whether the device is faster in bfloat16, in words too."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        with torch.cuda.device(device):
            found = torch.cuda.is_bf16_supported(including_emulation=False)
        return found, f"{name} {'computes' if found else 'does not compute'} in bfloat16"
    flags = cpu_words("flags")
    if not flags:
        return False, f"{CPUINFO} does not say what the processor has"
    if "amx_bf16" in flags:
        return True, "the processor has amx_bf16"
    if "avx512_bf16" not in flags:
        return False, "the processor has neither amx_bf16 nor avx512_bf16"
    if "AuthenticAMD" in cpu_words("vendor_id"):
        return True, "the processor has avx512_bf16"
    return False, "the processor has avx512_bf16, which only AMD's multiply faster in than in float32, and no amx_bf16"


def cpu_words(name: str) -> frozenset[str]:
    """What Linux lists under `name` (`flags`, `vendor_id`) for the first processor; nothing where it does not."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    found = [line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() == name]
    return frozenset(found[0]) if found else frozenset()
