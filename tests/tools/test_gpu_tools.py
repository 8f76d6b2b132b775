"""The scripts of the steps, run on a CPU as far as they go: a body that was never executed is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import common
from tools import cudf_checks, first_look, sanitizer_targets

ROOT = Path(__file__).parents[2]


def test_versions_name_the_packages(capsys):
    first_look.versions()
    printed = capsys.readouterr().out
    assert f"torch=={torch.__version__.partition('+')[0]}" in printed
    assert printed.startswith(f"Python {sys.version}")


def test_one_addition():
    first_look.add_torch("cpu")


def test_the_triton_addition_is_right_in_the_interpreter():
    pytest.importorskip("triton")
    script = "from tools.first_look import add_triton; add_triton('cpu'); print('right')"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "right\n", done.stderr


def test_ceilings_and_shares_of_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(common.COPY_WORDS, "cpu", 1 << 20)
    monkeypatch.setitem(common.MATRIX_SIDE, "cpu", 64)
    found = common.ceilings("cpu")
    assert set(found) == {"copy GB/s", "bf16 matrix TFLOP/s"}
    assert 0.1 < found["copy GB/s"] < 10_000
    rates = {"copy GB/s": 4000.0, "bf16 matrix TFLOP/s": 800.0}
    shares = common.against(rates, {"step": 0.001}, {"step": (2e9, 4e11)})
    assert shares == {"step": {"bytes": 0.5, "operations": 0.5}}
    assert common.against(rates, {"step": 0.001}, {"step": (1e9, 0.0)}) == {"step": {"bytes": 0.25}}
    first_look.measure("cpu", tmp_path / "out")
    (kept,) = (tmp_path / "out").glob("ceilings-*.json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == json.loads(kept.read_text())


@pytest.mark.parametrize("name", sanitizer_targets.TARGETS)
def test_a_kernel_on_small_shapes_gives_what_its_reference_gives(name):
    sanitizer_targets.TARGETS[name]("cpu")


@pytest.mark.parametrize(("name", "function"), [("lookup", "lookup"), ("dropout", "dropout")])
def test_a_kernel_that_leaves_a_row_unwritten_is_found(monkeypatch, name, function):
    from gigabatch.models.kernels import kernel

    module = kernel(name, "cpu")
    right = getattr(module, function)

    def spoiled(*arguments):
        right(*arguments)
        next(value for value in (arguments[2], arguments[1]) if isinstance(value, torch.Tensor) and value.dim() == 2)[
            -1
        ] += 1

    monkeypatch.setattr(module, function, spoiled)
    with pytest.raises(AssertionError):
        sanitizer_targets.TARGETS[name]("cpu")


def test_the_preprocessor_in_three_partitions_is_that_of_one(capsys):
    cudf_checks.preprocessor("pandas", 2000)
    assert "2,000 rows of 2 ids" in capsys.readouterr().out


# Of each (hidden, *flags) `python -m benchmarks.embedding` with the flags, where the package `hidden` cannot be
# imported: a process forked from one that has imported torch, which takes longer than all the rest.
FORKED = """
import json, os, runpy, sys, torch
codes = []
for number, (hidden, *flags) in enumerate(json.loads(sys.argv[2])):
    child = os.fork()
    if not child:
        for handle in (1, 2):
            os.dup2(os.open(f"{sys.argv[1]}/{number}-{handle}", os.O_CREAT | os.O_WRONLY), handle)
        sys.modules[hidden] = None
        sys.argv = ["benchmarks/embedding.py", *flags]
        runpy.run_module("benchmarks.embedding", run_name="__main__")
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""
RUNS = {
    "help": ("rich", "--help"),
    "quick": ("rich", "--quick"),
    "ours": ("gigabatch.models.layers.embeddings", "--help"),
    "cuda": ("no_such_package", "--device", "cuda"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """By run its exit code, and what it printed as output and as errors."""
    folder = tmp_path_factory.mktemp("forked")
    told = subprocess.run(
        [sys.executable, "-c", FORKED, str(folder), json.dumps(list(RUNS.values()))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    codes = json.loads(told.stdout)
    return {
        name: (code, *((folder / f"{number}-{handle}").read_text() for handle in (1, 2)))
        for number, (name, code) in enumerate(zip(RUNS, codes, strict=True))
    }


def test_help_needs_no_package_and_a_run_names_the_one_that_is_missing(done):
    code, printed, errors = done["help"]
    assert code == 0, errors
    assert "--out FOLDER" in printed
    code, _, errors = done["quick"]
    assert code == 2
    assert "needs rich, which is not installed" in errors


def test_a_module_of_ours_that_is_missing_stays_an_error(done):
    code, _, errors = done["ours"]
    assert code == 1
    assert "ModuleNotFoundError" in errors


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a CUDA device here")
def test_a_device_that_is_not_there_is_refused_before_anything_is_made(done):
    code, _, errors = done["cuda"]
    assert code == 2
    assert "torch sees no CUDA device" in errors
