"""Tensors that the system does not let be written: the system's error, in place of safetensors' text."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from gigabatch.pipeline.store.tensors import save_tensors

LIMITED = """
import errno, resource, sys, torch
from pathlib import Path
from gigabatch.pipeline.store.tensors import save_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_tensors({"weight": torch.zeros(100_000)}, Path(sys.argv[1]))
except OSError as error:
    print(errno.errorcode[error.errno], error.filename)
"""


def test_a_write_that_the_system_refuses_is_its_error_with_number_and_file(tmp_path):
    path = tmp_path / "weights.safetensors"
    told = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True)
    assert told.stdout.split() == ["EFBIG", str(path)], told.stderr


def test_a_folder_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "none" / "weights.safetensors"
    with pytest.raises(FileNotFoundError) as error:
        save_tensors({"weight": torch.zeros(1)}, path)
    assert error.value.filename == str(path)


def test_what_safetensors_itself_refuses_stays_its_error(monkeypatch):
    def refuse(*_):
        raise SafetensorError("invalid dtype")

    monkeypatch.setattr("gigabatch.pipeline.store.tensors.save_file", refuse)
    with pytest.raises(SafetensorError, match="invalid dtype"):
        save_tensors({"weight": torch.zeros(1)}, Path("weights.safetensors"))


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path):
    """safetensors makes files of mode 600: another user, such as the one who serves, could not read the weights."""
    path, private = tmp_path / "weights.safetensors", tmp_path / "private.safetensors"
    before = os.umask(0o027)
    try:
        save_tensors({"weight": torch.zeros(1)}, path)
        os.umask(0o077)
        save_tensors({"weight": torch.zeros(1)}, private)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, private)] == [0o640, 0o600]
    assert sorted(tmp_path.iterdir()) == [private, path]


def test_a_refused_write_leaves_no_empty_file(tmp_path):
    path = tmp_path / "weights.safetensors"
    subprocess.run([sys.executable, "-c", LIMITED, path], check=True, capture_output=True)
    assert not path.exists()
