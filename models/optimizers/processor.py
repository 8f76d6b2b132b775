"""What the processor computes fastest in, as the system tells; torch is not imported."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_precision() -> tuple[str, str]:
    """`bfloat16` or `float32`, in which this processor multiplies faster, and why in words."""
    flags = cpu_words("flags")
    if not flags:
        return "float32", f"{CPUINFO} does not say what the processor has"
    if "amx_bf16" in flags:
        return "bfloat16", "the processor has amx_bf16"
    if "avx512_bf16" not in flags:
        return "float32", "the processor has neither amx_bf16 nor avx512_bf16"
    if "AuthenticAMD" in cpu_words("vendor_id"):
        return "bfloat16", "the processor has avx512_bf16"
    reason = "the processor has avx512_bf16, which only AMD's multiply faster in than in float32, and no amx_bf16"
    return "float32", reason


def cpu_words(name: str) -> frozenset[str]:
    """What Linux lists under `name` (`flags`, `vendor_id`) for the first processor; nothing where it does not."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    found = [line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() == name]
    return frozenset(found[0]) if found else frozenset()
