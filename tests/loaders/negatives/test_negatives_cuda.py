"""The Triton version: interpreted on the CPU against the reference, and on a GPU where there is one.

`tests/models/kernels/test_compiled_cuda.py` compiles it.

Triton decides at import whether it interprets, so the first takes a process of its own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gigabatch.loaders.negatives.draws import KnownPositives, PopularityNegatives, UniformNegatives
from tests.devices import captured

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def run(script: str, folder: Path, **environment: str) -> str:
    root = str(HERE.parents[2])
    settings = {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, HERE / script], env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
def test_interpreted_kernels_give_what_the_reference_gives(tmp_path):
    assert run("negatives_interpreted.py", tmp_path, TRITON_INTERPRET="1").endswith("all equal\n")


@needs_triton
def test_draws_on_any_device_are_those_of_the_cpu_and_replay_in_a_graph(any_device):
    num_rows = 2000 if any_device == "cpu" else 409_600
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(0, 100, (2000,), generator=generator)
    items = torch.randint(3, 500, (2000,), generator=generator)
    known, counts = KnownPositives.from_pairs(users, items, 100), torch.bincount(items, minlength=500)
    rows = torch.arange(num_rows), users.int()[torch.arange(num_rows) % 2000]
    for make in (
        lambda device: UniformNegatives(range(3, 500), 4, known, device=device),
        lambda device: UniformNegatives(range(3, 500), 4, known, replacement=False, device=device),
        lambda device: PopularityNegatives(range(3, 500), 4, counts, known=known, device=device),
    ):
        on_cpu, there = make("cpu"), make(any_device)
        moved = tuple(column.to(any_device) for column in rows)
        replay = captured(lambda: there(*moved), any_device, warmups=1)  # noqa: B023 (called in this turn)
        for epoch in (0, 3):
            on_cpu.set_epoch(epoch)
            there.set_epoch(epoch)
            for found, wanted in zip(replay(), on_cpu(*rows), strict=True):
                assert torch.equal(found.cpu(), wanted)
