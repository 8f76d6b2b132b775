"""Run as a script: every kernel that the functions of the cuDF engine launch, compiled for some GPUs without one.

Triton's own launch path decides what a kernel is specialised for, with a made-up driver in place of CUDA's; launches
are left out. Prints a line a compiled kernel: GPU, name, registers a thread, bytes of its stack, of local memory.
"""

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gigabatch.features.engines import row_loops_cuda
from gigabatch.features.exact import loops_cuda

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class NoGpu:
    """What `JITFunction.run` asks a driver for before it compiles."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)


def used(cubin):
    """Registers, stack and local bytes, by the compiler's own report."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = dict(word.split(":")[:2] for word in text.split() if word.startswith(("REG:", "STACK:", "LOCAL:")))
    return found["REG"], found["STACK"], found["LOCAL"]


def main(capabilities):
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    run, seen = JITFunction.run, set()

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            sys.stdout.write(" ".join([str(capability), self.fn.__name__, *used(kernel.asm["cubin"])]) + "\n")

    JITFunction.run = compile_only
    for capability in capabilities:
        driver.set_active(NoGpu(capability))
        for kernel in (value for module in (loops_cuda, row_loops_cuda) for value in vars(module).values()):
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()
        column = loops_cuda.DeviceColumn(16, 0, 0, 5000)
        loops_cuda.add_leading_moments32([column] * 2, torch.zeros(2, 1 << 16, 3, dtype=torch.int64))
        loops_cuda.add_rest_counts32([column] * 2, [1, 2], torch.zeros(2, 1 << 16, dtype=torch.int32))
        for width in (5, 48):  # less than a program writes; more, and a multiple of 16
            words = [row_loops_cuda.DeviceWord(row_loops_cuda.FLOAT, column)] * width
            zeros = torch.zeros(5000, width, dtype=torch.int32)
            row_loops_cuda.pack_words(words, zeros, zeros[0].clone())


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
