"""What real trainings launch on a GPU, compiled without one: no kernel is left out, none spills, and they are few.

In a process of its own, because Triton decides at import whether it interprets. `make test` compiles the most used
trainings for an H200 (sm_90) and a T4 (sm_75); `make test-thorough` all shapes of `real_shapes.py` for sm_80 and
sm_100 too; the cuDF engine's few kernels always for all four. Nothing that was compiled before is taken.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import THOROUGH

ROOT = Path(__file__).parents[3]
WARPS_WANTED = 16  # that run on a multiprocessor at a time, of 64 (32 on sm_75)
MOST_REGISTERS = 65_536 // (WARPS_WANTED * 32)  # a thread
MOST_STACK = 8  # bytes a thread: a value or two, which one version of ptxas keeps there and another does not
# of a training and its evaluation: forms of kernels that Triton compiles, about a third of a second each
MOST_VARIANTS = {"flights": 20, "step": 19}
# of a batch: launches of Triton's kernels, and operators of torch beside them
# the most are those of float16, whose loss is scaled; the wide step has dropout
MOST_LAUNCHES = {"flights": (24, 460), "step": (18, 460), "step, 14336": (22, 560)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    which = ("every", str(os.cpu_count()), "75", "80", "90", "100") if THOROUGH else ("representative", "1", "75", "90")
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.kernels.compiled", *which],
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def described(one):
    return f"{one['kernel']} on sm_{one['capability']} with {one['warps']} warps: {one['variant']}"


def test_every_kernel_is_launched_by_a_case_of_real_shapes(found):
    """Where this fails, add to tests/models/kernels/real_shapes.py what launches the kernel named."""
    assert found["unreached"] == []


@pytest.mark.parametrize(
    "source",
    [
        *(f"@{mark}\ndef new(a): ..." for mark in ("triton.jit", "tr.jit", "jit", "jit(do_not_specialize=['a'])")),
        "def outer():\n    @triton.autotune([], key=[])\n    @triton.jit\n    def new(a): ...",
        "new = triton.jit(new)",
    ],
)
def test_a_kernel_is_seen_however_it_is_written(source, tmp_path):
    from tests.models.kernels import recorder

    assert list(recorder.kernels_of(ast.parse(source))) == ["new"]
    assert list(recorder.kernels_of(ast.parse("@njit()\ndef new(a): ...\nnew[(1,)](a)"))) == []
    for folder in ("features/exact", "loaders", "models/a/b", "pipeline"):
        place = tmp_path / folder / "module.py"
        place.parent.mkdir(parents=True)
        place.write_text(f"import triton as tr\n{source}\n")
    names = {"features.exact", "loaders", "models.a.b", "pipeline"}
    assert recorder.jit_functions(tmp_path) == {f"gigabatch.{name}.module.new" for name in names}


def test_every_kernel_compiles_and_spills_no_register(found):
    assert [f"{described(one)}: {one['error']}" for one in found["compiled"] if "error" in one] == []
    assert [f"{described(one)}: {one}" for one in found["compiled"] if one["stack"] > MOST_STACK or one["local"]] == []
    assert len(found["compiled"]) >= 80
    for_all = {one["kernel"] for one in found["compiled"] if one["capability"] == 100}
    assert len(for_all) >= 3, "the cuDF engine's"


def test_registers_leave_room_for_enough_warps(found):
    assert [f"{described(one)}: {one['reg']}" for one in found["compiled"] if one["reg"] > MOST_REGISTERS] == []


def test_what_is_written_in_place_was_read_by_all_warps(found):
    """On an H200 a row's step took the mean that another warp had stored, in a tile that several warps hold."""
    compiled = [one for one in found["compiled"] if "error" not in one]
    assert {one["kernel"] for one in compiled if one["in_place"]} >= {"_update_spans", "_move_small"}
    assert [f"{described(one)}: {one['unguarded']}" for one in compiled if one["unguarded"]] == []


@pytest.mark.parametrize("name", MOST_VARIANTS)
def test_a_training_compiles_few_variants_and_launches_few_kernels(found, name):
    trainings = {case: one for case, one in found["cases"].items() if case.split(",")[0] == name}
    assert len(trainings) >= 1
    for case, one in trainings.items():
        launches, operators = MOST_LAUNCHES.get(case.rpartition(",")[0], MOST_LAUNCHES[name])
        assert 10 <= len(one["variants"]) <= MOST_VARIANTS[name], (case, one["variants"])
        assert 10 <= sum(one["batch"]["launches"].values()) <= launches, (case, one["batch"])
        assert one["batch"]["launches"]["_gather"] == 1, case
        assert 50 <= one["batch"]["operators"] <= operators, (case, one["batch"])


def test_a_batch_of_other_rows_compiles_nothing_new(found):
    """The last batch of an epoch, or of an evaluation, has its own number of rows."""
    first, *others = found["neighbours"].values()
    assert len(first) >= 10
    assert [sorted(set(other) - set(first)) for other in others] == [[]] * len(others)
