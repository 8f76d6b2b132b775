"""Every kernel compiles for the GPU, in a process of its own: Triton decides at import whether it interprets."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = {
    "_lookup",
    "_sum_small",
    "_move_small",
    "write_keys",
    "_update_spans",
    "_update_crossing",
    "_pass",
    "_dropout",
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_every_kernel_compiles_for_sm_90(tmp_path):
    settings = {"PYTHONPATH": str(HERE.parents[2]), "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, HERE / "compiled.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in sizes} == KERNELS
    assert all(int(size) > 1000 for _, size in sizes)
