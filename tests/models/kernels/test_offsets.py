"""No kernel computes an address in 32 bits that do not hold it: 42.8M rows of 132 words are 5.6e9 words.

In a process of its own, because Triton decides at import whether it interprets.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_no_kernel_passes_32_bits_on_the_way_to_an_address(tmp_path):
    """Where `unreached` fails, add to tests/models/kernels/offsets.py a launch of the kernel at its largest."""
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.kernels.offsets"],
        env={**os.environ, **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["found"] == []
    assert told["too_large"] == []
    assert told["unreached"] == []
    assert len(told["launched"]) >= 14
    wide, narrow = told["planted"][::2], told["planted"][1::2]  # of a loop, and of an index without one
    assert wide == [[], []]
    assert all("arith.muli" in lines[0] for lines in narrow)
