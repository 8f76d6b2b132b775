"""Run as a script: whatever the CUDA versions launch, compiled for an H200 (sm_90) without a GPU.

Triton's own launch path decides what each kernel is specialised for, with a made-up driver in place of CUDA's; the
launches themselves are left out. Prints one line a compiled kernel: its name and the bytes of its machine code.
"""

import sys
import warnings

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gigabatch.models.kernels.dropout import cuda as dropout_cuda
from gigabatch.models.kernels.folded import cuda as folded_cuda
from gigabatch.models.kernels.lookup import cuda as lookup_cuda
from gigabatch.models.kernels.row_update import cuda as row_update_cuda
from gigabatch.models.kernels.row_update.rules import RowRule


class NoGpu:
    """What `JITFunction.run` asks a driver for before it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


RULES = (
    RowRule("lamb", 0.1),
    RowRule("adagrad", torch.tensor(0.1), clip_ratio=1.0, step="row"),
    RowRule("adam", 0.1, beta1=torch.tensor(0.9), second_moment="full"),
)


def main() -> None:
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    driver.set_active(NoGpu())
    run, compiled = JITFunction.run, {}

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled[kernel.hash] = (self.fn.__name__, len(kernel.asm["cubin"]))

    JITFunction.run = compile_only
    # a batch of one span and one of many; a table of a few rows, narrow and wide ones
    for num_rows, shapes, rules in ((4096, [(40, 4), (1000, 7), (900, 8)], RULES), (300_000, [(90, 300)], RULES[:1])):
        tables, width = [torch.empty(shape) for shape in shapes], sum(width for _, width in shapes)
        ids, floats = torch.empty(num_rows, len(shapes), dtype=torch.int32), torch.empty(num_rows, 3)
        out = torch.empty(num_rows, width + 3, dtype=torch.bfloat16)
        lookup_cuda.lookup(ids, tables, out, floats, floats[0], floats[1])
        for rule in rules:
            row_update_cuda.update_rows(tables, [rule.new_state(table) for table in tables], ids.zero_(), out, rule)
    values = torch.empty(500, 64, dtype=torch.bfloat16)
    folded_cuda.column_moments(values)
    folded_cuda.relu_moments(values, torch.empty(64))
    folded_cuda.norm_relu_backward(values, values, torch.empty(64), torch.empty(64))
    seed = torch.zeros(2, dtype=torch.int64)
    folded_cuda.dropped_sums(values, values, seed, 0.1)
    folded_cuda.norm_relu_backward(values, values, torch.empty(64), torch.empty(64), torch.empty(64), seed, 0.1)
    dropout_cuda.dropout(values, values, seed, 0.1)
    dropout_cuda.dropout(values, values, seed, 0.1, torch.empty(64), torch.empty(64))
    for name, size in compiled.values():
        sys.stdout.write(f"{name} {size}\n")


if __name__ == "__main__":
    main()
