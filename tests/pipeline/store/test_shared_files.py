"""Weights of a run are on the disk once: the store and the run have one file under three names."""

import errno
import os
from pathlib import Path

import pytest

from gigabatch.pipeline.store.files import clone_file, share_file
from gigabatch.pipeline.store.locks import remove_folder


def test_weights_and_moments_are_one_file_and_the_run_has_its_own_of_the_rest(trained):
    """P24, and issue 14. What people may edit in a run's folder must not reach the store."""
    made, run = trained
    (fitted,) = {path.parent for path in made.folder.glob("artifacts/train/*/metrics.jsonl")}
    (evaluated,) = made.folder.glob(f"artifacts/evaluate/{run.summary['id']}*")
    for name in ("model/weights.safetensors", "training/optimizer.safetensors", "metrics.jsonl"):
        places = [os.stat(folder / name).st_ino for folder in (fitted, evaluated, run.path)]
        assert places[0] == places[1]
        assert (places[1] == places[2]) == name.endswith(".safetensors")


def test_weights_that_were_written_to_in_place_are_found_and_made_again(tiny):
    """All three names show the damage; nothing takes one of them for whole."""
    run = tiny.train()
    path = run.path / "model" / "weights.safetensors"
    before = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(-4, 2)
        file.write(b"xxxx")
    again = tiny.train()
    assert "train" not in again.skipped
    assert again.path == run.path
    assert path.read_bytes() == before


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
