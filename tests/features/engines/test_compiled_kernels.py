"""Every kernel of `features/` compiles for the GPUs that are supported and keeps its values in registers."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gigabatch import features

HERE = Path(__file__).parent
CAPABILITIES = ("75", "80", "90", "100")
REGISTERS = 128  # a thread: with 256 threads a program, two programs share a multiprocessor


def launched(tree):
    """Names of the kernels in a module: functions under `@triton.jit` that something subscripts with a grid.

    However it was imported; numba's decorators have other names.
    """
    kernels = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(is_jit(mark) for mark in node.decorator_list)
    }
    return {node.value.id for node in ast.walk(tree) if is_name(node)} & kernels


def is_jit(mark):
    """`triton.jit`, `jit`, another name of the module, with arguments or without."""
    return ast.unparse(mark.func if isinstance(mark, ast.Call) else mark).rpartition(".")[2] == "jit"


def test_a_kernel_is_seen_however_triton_was_imported():
    for mark in ("triton.jit", "tr.jit", "jit", "jit(do_not_specialize=['a'])", "triton.jit(debug=True)"):
        assert launched(ast.parse(f"@{mark}\ndef new(a): ...\nnew[(1,)](a)")) == {"new"}
    assert launched(ast.parse("@njit()\ndef new(a): ...\nnew[(1,)](a)")) == set()


def is_name(node):
    """Whether it is `name[...]`."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_every_kernel_compiles_without_spills(tmp_path):
    files = Path(features.__file__).parent.rglob("*.py")
    names = {name for path in files for name in launched(ast.parse(path.read_text()))}
    settings = {"PYTHONPATH": str(HERE.parents[2]), "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, HERE / "compiled.py", *CAPABILITIES],
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {tuple(line[:2]) for line in lines} == {(number, name) for number in CAPABILITIES for name in names}
    assert len(names) >= 3
    for capability, name, registers, stack, local in lines:
        assert (int(stack), int(local)) == (0, 0), f"{name} spills on {capability}"
        assert int(registers) <= REGISTERS, f"{name} takes {registers} registers on {capability}"
