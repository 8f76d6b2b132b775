"""nvCOMP's library without the code of other chips, as NVIDIA's cuobjdump reads it."""

import subprocess
from pathlib import Path

import pytest

from tools.gpu_thin import without_other_chips

triton = pytest.importorskip("triton")
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def code(library, folder):
    """The machine code of Hopper by fat binary, and of how many others there is some."""
    folder.mkdir()
    listed = subprocess.run([CUOBJDUMP, "--list-elf", library], capture_output=True, text=True, check=True).stdout
    subprocess.run([CUOBJDUMP, "--extract-elf", "sm_90", library], cwd=folder, capture_output=True, check=True)
    return sorted(path.read_bytes() for path in folder.iterdir()), listed.count("sm_") - listed.count("sm_90")


def test_only_hoppers_code_is_left_and_it_is_the_same(tmp_path):
    found = pytest.importorskip("nvidia.libnvcomp")
    (library,) = Path(found.__path__[0]).glob("lib64/libnvcomp.so.*")
    thinned = tmp_path / library.name
    thinned.write_bytes(without_other_chips(library.read_bytes(), 90))
    before, others = code(library, tmp_path / "before")
    after, left = code(thinned, tmp_path / "after")
    assert others > 100
    assert (len(before) > 10, left) == (True, 0)
    assert after == before
