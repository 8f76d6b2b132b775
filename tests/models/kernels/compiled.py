"""Run as a script: what real trainings launch, recorded, then compiled for GPUs that are not here. Prints JSON.

    python -m tests.models.kernels.compiled representative|every PROCESSES CAPABILITY...

cases: of each the texts of its variants and, of a training, what a batch launches. neighbours: variants of trainings
that differ in the rows of a batch alone, recorded and not compiled. unreached: functions under
`triton.jit` in the four folders that no case reaches. compiled: of each variant and capability (75, 80, 90, 100) its
kernel, warps, registers a thread and bytes of stack, which is where spilled registers go, and its stores in place
(`in_place`); or the error. Kernels of the cuDF engine, which are few, are compiled for all four.
"""

import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path

import triton

from tests.models.kernels import real_shapes
from tests.models.kernels.recorder import Variant, jit_functions, reached_by, recording

EVERY = (75, 80, 90, 100)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
variants: dict[str, Variant] = {}  # of all cases; the processes that compile are forked and find them here


def measure(place: tuple[str, int]) -> dict:
    """Compile one variant for one capability."""
    text, capability = place
    variant = variants[text]
    found = {"kernel": variant.name, "capability": capability, "variant": text, "warps": variant.options["num_warps"]}
    try:
        kernel = variant.compiled(capability)
    except Exception as error:  # Triton's and ptxas' errors share no base
        return found | {"error": f"{type(error).__name__}: {error}"[-2000:]}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        done = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    found |= dict(zip(("in_place", "unguarded"), in_place(kernel.asm["ttgir"]), strict=True))
    usage = dict(re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", done.stdout))
    return found | {name.lower(): int(number) for name, number in usage.items()}


def in_place(text: str) -> tuple[int, int]:
    """Of Triton's code before it becomes that of threads: how many stores write what a load through the same pointers
    has read, and how many of these no barrier parts from that load.

    What several warps hold is read by each; without a barrier a late one reads what an early one has stored.
    """
    read: dict[str, int] = {}
    stores = unguarded = barriers = 0
    for line in text.splitlines():
        if "gpu.barrier" in line or "ttg.barrier" in line:
            barriers += 1
        elif match := re.search(r"= tt\.load (%\w+)", line):
            read[match[1]] = barriers
        elif (match := re.search(r"tt\.store (%\w+)", line)) and match[1] in read:
            stores += 1
            unguarded += read[match[1]] == barriers
    return stores, unguarded


def record(cases, kept: dict[str, Variant]) -> dict[str, dict]:
    """kept: takes the variants."""
    found = {}
    for name, case in cases:
        with recording() as recorder:
            batch = case()
        kept.update(recorder.variants)
        found[name] = {"variants": list(recorder.variants), "batch": batch}
    return found


def main() -> None:
    which, processes, *capabilities = sys.argv[1:]
    warnings.filterwarnings("ignore")
    cases = record(real_shapes.features(), variants)
    everywhere = product(variants.copy(), EVERY)
    cases |= record(getattr(real_shapes, which)(), variants)
    neighbours = {name: one["variants"] for name, one in record(real_shapes.neighbours(), {}).items()}
    reached = reached_by({variant.function for variant in variants.values()})
    unreached = sorted(jit_functions() - {f"{one.module}.{one.fn.__name__}" for one in reached})
    places = sorted(
        place
        for place in {*everywhere, *product(variants, map(int, capabilities))}
        if not (place[1] == 75 and "bf16" in place[0])  # a T4 has none: trainings there take float16
    )
    with multiprocessing.get_context("fork").Pool(int(processes)) as pool:
        compiled = pool.map(measure, places, chunksize=1)
    json.dump({"cases": cases, "neighbours": neighbours, "unreached": unreached, "compiled": compiled}, sys.stdout)


if __name__ == "__main__":
    main()
