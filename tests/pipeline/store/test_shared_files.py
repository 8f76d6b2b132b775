"""Weights of a run are on the disk twice, not three times: the store has one file under two names."""

import errno
import os
from pathlib import Path

import pytest

from gigabatch.pipeline.store.files import clone_file, share_file
from gigabatch.pipeline.store.locks import remove_folder


def test_the_store_has_one_file_of_the_weights_and_the_run_its_own(trained):
    """P24. What is done to a run's folder must not reach the store, so that one shares nothing."""
    made, run = trained
    (fitted,) = {path.parent for path in made.folder.glob("artifacts/train/*/metrics.jsonl")}
    (evaluated,) = made.folder.glob(f"artifacts/evaluate/{run.summary['id']}*")
    for name in ("model/weights.safetensors", "metrics.jsonl"):
        places = [os.stat(folder / name).st_ino for folder in (fitted, evaluated, run.path)]
        assert places[0] == places[1] != places[2]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_the_disk_has_no_links_the_file_is_copied(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, "no links")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(bytes(range(256)) * 40_000)
    share_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert os.stat(tmp_path / "a").st_ino != os.stat(tmp_path / "b").st_ino


def test_a_full_disk_is_not_taken_for_one_without_links(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", full)
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(OSError, match="full"):
        share_file(tmp_path / "a", tmp_path / "b")


def test_a_clone_is_changed_apart(tmp_path):
    (tmp_path / "a").write_bytes(b"one" * 100_000)
    clone_file(tmp_path / "a", tmp_path / "b")
    with open(tmp_path / "b", "r+b") as file:
        file.write(b"two")
    assert (tmp_path / "a").read_bytes() == b"one" * 100_000


def test_bytes_that_have_another_name_are_not_counted_as_freed(tmp_path):
    for name in ("a", "b"):
        Path(tmp_path, name).mkdir()
    (tmp_path / "a" / "weights").write_bytes(b"12345")
    (tmp_path / "a" / "own").write_bytes(b"123")
    share_file(tmp_path / "a" / "weights", tmp_path / "b" / "weights")
    assert remove_folder(tmp_path / "a") == 3
    assert remove_folder(tmp_path / "b") == 5
