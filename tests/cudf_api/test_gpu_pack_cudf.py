"""cuDF and what runs on it load without the wheels that `make gpu-pack` leaves out, and nothing asks for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cudf_api.checked import CheckedFrame, CheckedSeries, NotInCudf
from tools.gpu_pack import NOT_USED

ROOT = Path(__file__).parents[2]
LOADS = """
import sys

LEFT_OUT = sys.argv[1:]


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple(LEFT_OUT)):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())
import cudf, cupy, dask_cudf, pylibcudf, rmm.allocators.cupy, rmm.allocators.torch
from gigabatch.features.engines import cudf, cudf_plain, rapids_memory
import tools.cudf_checks

print("loaded")
"""


def test_cudf_and_our_engines_load_without_what_is_left_out():
    names = [name.replace("-", "_") for name in NOT_USED] + ["nvidia.cuda_nvcc", "nvidia.nvvm"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADS, *names],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "loaded\n", done.stderr[-2000:]


@pytest.mark.parametrize("text", ["series.apply(abs)", "frame.apply(len, axis=1)", "frame.query('a > 1')"])
def test_a_function_that_cudf_would_compile_is_refused(text):
    scope = {"__name__": "control", "series": CheckedSeries([1]), "frame": CheckedFrame({"a": [1]})}
    with pytest.raises(NotInCudf, match="leaves out"):
        eval(compile(text, "planted", "eval"), scope)
