"""Run as a script: compiles the Triton kernels for an H200 (sm_90), which needs no GPU; prints the size of each."""

import sys
import warnings

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gigabatch.loaders.negatives import draws_cuda as negatives_cuda

INT64 = ("start", "positions", "offsets", "allowed", "mass_before", "cumulative")
POINTERS = dict.fromkeys(INT64, "*i64") | dict.fromkeys(("users", "items", "guide", "ids"), "*i32")
POINTERS |= dict.fromkeys(("log_allowed", "log_item", "log_q"), "*fp32")


def cubin_bytes(kernel: triton.JITFunction, **constants: int) -> int:
    """Triton makes a constant of an argument that is 1, so `constants` may name any of them."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    return len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"])


def main() -> None:
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    block = {"BLOCK": negatives_cuda.BLOCK}
    for weighted in (False, True):
        draw = {"WEIGHTED": weighted, **block}
        sys.stdout.write(f"_draw {cubin_bytes(negatives_cuda._draw, ROUNDS=9, ITEM_ROUNDS=7, **draw)}\n")
        ones = draw | {"num_draws": 1, "low": 1, "guide_shift": 1, "ROUNDS": 1, "ITEM_ROUNDS": 1}
        sys.stdout.write(f"_draw {cubin_bytes(negatives_cuda._draw, **ones)}\n")
    for rows, width in ((256, 8), (2, 1024)):
        tile = {"NUM_DRAWS": width - 1, "ROUNDS": 9, "ROWS": rows, "WIDTH": width}
        sys.stdout.write(f"_draw_distinct {cubin_bytes(negatives_cuda._draw_distinct, **tile)}\n")


if __name__ == "__main__":
    main()
