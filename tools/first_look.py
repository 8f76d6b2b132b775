"""Step 0 of `tools/gpu_run.py`: what is there, one addition each in torch, CuPy and Triton, and the measured ceilings.

python -m tools.first_look versions|torch|cupy|triton|ceilings [--device cuda] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from pathlib import Path

NUM_WORDS = 100_003  # no multiple of a block
PROGRAMS = (
    ("nvidia-smi",),
    ("nvcc", "--version"),
    ("compute-sanitizer", "--version"),
    (sys.executable, "-m", "pip", "check"),
)


def versions() -> None:
    """Python, system, programs and every installed distribution, a line each; what is missing is said."""
    print(f"Python {sys.version}\n{platform.platform()}\n{sys.executable}")
    for command in PROGRAMS:
        if shutil.which(command[0]) is None:
            print(f"{command[0]}: not here")
            continue
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        print(f"$ {' '.join(command)} (exit code {done.returncode})\n{(done.stdout + done.stderr).strip()}")
    found = {f"{one.metadata['Name']}=={one.version}" for one in importlib.metadata.distributions()}
    print("\n".join(sorted(found, key=str.lower)))


def add_torch(device: str) -> None:
    import torch

    left, right = (torch.randn(NUM_WORDS, device=device) for _ in range(2))
    expected = left.cpu() + right.cpu()
    assert torch.equal((left + right).cpu(), expected)


def add_cupy(device: str) -> None:
    import cupy
    import numpy as np

    assert device == "cuda", "CuPy has no CPU"
    left, right = (np.random.default_rng(seed).standard_normal(NUM_WORDS, dtype=np.float32) for seed in range(2))
    assert np.array_equal(cupy.asnumpy(cupy.asarray(left) + cupy.asarray(right)), left + right)


def add_triton(device: str) -> None:
    import torch

    from tools.triton_add import add

    left, right = (torch.randn(NUM_WORDS, device=device) for _ in range(2))
    assert torch.equal(add(left, right).cpu(), left.cpu() + right.cpu())


def measure(device: str, out: Path | None) -> None:
    from benchmarks.common import finish

    finish("ceilings", f"copy and matrix product on {device}", {}, {}, {}, save=out, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("versions", "torch", "cupy", "triton", "ceilings"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder that keeps the JSON line of the ceilings")
    flags = parser.parse_args()
    if flags.part == "versions":
        versions()
    elif flags.part == "ceilings":
        measure(flags.device, flags.out)
    else:
        {"torch": add_torch, "cupy": add_cupy, "triton": add_triton}[flags.part](flags.device)
        print(f"{flags.part}: {NUM_WORDS:,} sums on {flags.device} equal those of the CPU")


if __name__ == "__main__":
    main()
